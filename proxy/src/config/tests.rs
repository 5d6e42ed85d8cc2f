use super::*;
use std::fs;
use tempfile::TempDir;

const UPSTREAM: &str = "upstream = \"http://127.0.0.1:9000\"\n";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> Sources {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        Sources::file(path)
    }
}

fn load(text: &str) -> Result<Settings, ConfigErrors> {
    Settings::load(&Folder::new().file("p.toml", text))
}

fn good(text: &str) -> Settings {
    load(&format!("{UPSTREAM}{text}")).unwrap()
}

/// The one error of a text, as line, key, and the whole message.
fn bad(text: &str) -> (usize, String, String) {
    let errors = load(text).unwrap_err().0;
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0];
    assert!(!error.remedy.is_empty(), "{error}");
    let line = match &error.place {
        Place::File(_, line) => *line,
        _ => 0,
    };
    (line, error.key.clone(), error.to_string())
}

#[test]
fn defaults() {
    let settings = good("");
    let seconds = Duration::from_secs;
    assert_eq!(settings.name, "default");
    assert_eq!(
        settings.listen,
        [Listen::Tcp("127.0.0.1:8080".parse().unwrap())]
    );
    assert_eq!(
        settings.admin,
        Some(Listen::Tcp("127.0.0.1:8081".parse().unwrap()))
    );
    assert_eq!(settings.state, PathBuf::from("/var/lib/palisade"));
    assert_eq!(settings.leases, Leases::HighestSeen);
    assert_eq!(settings.threads, 0);
    assert_eq!(
        settings.fence,
        Fence {
            settle: Settle::After(seconds(30)),
            abort_after: seconds(5),
            drain_timeout: seconds(60),
            buffer_body: 64 << 10,
        }
    );
    assert_eq!(
        settings.limits,
        Limits {
            connections: 10_000,
            inflight: 10_000,
            waiting: 1_000,
            header_bytes: 64 << 10,
            header_count: 100,
            http2_streams: 256,
            header_timeout: seconds(10),
            tls_handshake_timeout: seconds(10),
            body_idle_timeout: seconds(30),
            response_idle_timeout: seconds(60),
            keepalive_idle: seconds(75),
            request_timeout: None,
            upstream_connect_timeout: seconds(5),
            upstream_response_timeout: seconds(60),
            upstream_idle_timeout: seconds(4),
            drain_delay: seconds(0),
            shutdown_timeout: seconds(25),
        }
    );
    assert_eq!(settings.etcd.prefix, "/palisade/");
    assert_eq!(
        (settings.tls.is_none(), settings.replicas.is_none()),
        (true, true)
    );
    assert_eq!(*settings.routes, RouteTable::single("default"));
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.tcp_user_timeout(), seconds(15));
}

#[test]
fn a_whole_file() {
    let settings = good(
        r#"
name = "billing"
listen = ["0.0.0.0:80", "[::1]:0", "unix:/run/palisade/front.sock"]
admin = "off"
state = "/tmp/state"
leases = "etcds://a:1,[::1],c"
threads = 2
log_format = "json"
log_level = "info,palisade::gate=debug"
access_log = false
via = false
forwarded = "x-forwarded"

[fence]
settle = "manual"
abort_after = "1m30s"
drain_timeout = "2m"
buffer_body = 0

[etcd]
user = "root"
password_file = "/p"
ca = "/ca"
cert = "/c"
key = "/k"
prefix = "/x/"

[limits]
header_bytes = "128KiB"
request_timeout = "1h"

[metrics]
scopes = ["a", "b"]

[replicas]
group = "g"

[[route]]
path = "/tenants/{tenant}/{*rest}"
scope = "ingest/{tenant}"
paths = "opaque"
reads = ["POST"]
writes = ["GET"]
query = { delete = "" }
deny = false
"#,
    );
    assert_eq!(settings.listen.len(), 3);
    assert_eq!(settings.admin, None);
    assert_eq!(
        settings.leases,
        Leases::Etcd {
            endpoints: vec!["a:1".into(), "[::1]:2379".into(), "c:2379".into()],
            tls: true,
        }
    );
    assert_eq!(settings.fence.settle, Settle::Manual);
    assert_eq!(settings.fence.abort_after, Duration::from_secs(90));
    assert_eq!(settings.fence.buffer_body, 0);
    assert_eq!(
        settings.limits.request_timeout,
        Some(Duration::from_secs(3600))
    );
    assert_eq!(
        settings.metric_scopes,
        MetricScopes::Named(vec!["a".into(), "b".into()])
    );
    let replicas = settings.replicas.as_ref().unwrap();
    assert_eq!(
        (replicas.session_ttl, replicas.max_pause),
        (Duration::from_secs(15), Duration::from_secs(5))
    );
    assert_eq!(
        settings.log,
        Log {
            format: LogFormat::Json,
            level: "info,palisade::gate=debug".into(),
            access: false
        }
    );
    assert!(
        settings.forwarding.x_forwarded
            && !settings.forwarding.forwarded
            && !settings.forwarding.via
    );
    assert!(
        settings
            .routes
            .to_string()
            .contains("/tenants/{tenant}/{*rest}")
    );
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file() {
    let folder = Folder::new();
    let mut sources = folder.file(
        "p.toml",
        &format!("{UPSTREAM}threads = 1\nscope = \"f\"\nname = \"f\""),
    );
    sources.env.insert("threads", "2".into());
    sources.env.insert("scope", "e".into());
    sources.flags.insert("threads", "3".into());
    let (settings, shown) = Settings::show(&sources).unwrap();
    assert_eq!(settings.threads, 3);
    assert_eq!(*settings.routes, RouteTable::single("e"));
    assert_eq!(settings.name, "f");
    assert!(shown.contains("threads = 3  # flag --threads\n"), "{shown}");
    assert!(
        shown.contains("scope = \"e\"  # environment PALISADE_SCOPE\n"),
        "{shown}"
    );
    assert!(shown.contains("p.toml:4\n"), "{shown}");
    sources.env.insert("fence.settle", "soon".into());
    let error = Settings::load(&sources).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "environment PALISADE_FENCE_SETTLE: fence.settle: \"soon\" is no duration"
        ),
        "{error}"
    );
}

/// `palisade check` prints a file that says the same.
#[test]
fn what_is_shown_can_be_read_again() {
    let folder = Folder::new();
    let sources = folder.file("p.toml", &format!("{UPSTREAM}listen = [\"127.0.0.1:0\", \"unix:/x\"]\n[fence]\nsettle = \"1500ms\"\n[metrics]\nscopes = 3"));
    let (settings, shown) = Settings::show(&sources).unwrap();
    let again = Settings::load(&folder.file("again.toml", &shown)).unwrap();
    assert_eq!(
        Settings {
            warnings: Vec::new(),
            ..again
        },
        Settings {
            warnings: Vec::new(),
            ..settings
        }
    );
}

#[test]
fn every_error_has_its_line_its_key_and_a_remedy() {
    for (text, line, key, part) in [
        ("\nlisten = [\"localhost:80\"]", 3, "listen", "no address"),
        ("listen = []", 2, "listen", "no address to listen on"),
        (
            "listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]",
            2,
            "listen",
            "twice",
        ),
        ("admin = \"127.0.0.1:8080\"", 2, "admin", "same address"),
        ("leases = \"http://x\"", 2, "leases", "no lease store"),
        ("leases = \"etcd://\"", 2, "leases", "no lease store"),
        ("leases = \"sqlite:x.db\"", 2, "leases", "absolute"),
        ("leases = \"etcd://u:secret@h\"", 2, "leases", "has a user"),
        ("scope = \"a//b\"", 2, "scope", "no empty segment"),
        ("name = \"a/b\"", 2, "name", "without slashes"),
        ("treads = 1", 2, "treads", "Did you mean threads?"),
        (
            "[fense]\nsettle = \"1s\"",
            2,
            "fense",
            "Did you mean fence?",
        ),
        (
            "[fence]\nsetle = \"1s\"",
            3,
            "fence.setle",
            "Did you mean fence.settle?",
        ),
        ("[fence]\n\nsettle = 30", 4, "fence.settle", "no duration"),
        ("[fence]\nsettle = \"0s\"", 3, "fence.settle", "zero"),
        (
            "[fence]\nabort_after = \"2m\"",
            3,
            "fence.abort_after",
            "above fence.drain_timeout",
        ),
        (
            "[fence]\nbuffer_body = \"64 KiB\"",
            3,
            "fence.buffer_body",
            "no size",
        ),
        (
            "[limits]\nconnections = 0",
            3,
            "limits.connections",
            "no number from 1",
        ),
        (
            "[limits]\nheader_bytes = \"1KiB\"",
            3,
            "limits.header_bytes",
            "8KiB to 16MiB",
        ),
        (
            "[limits]\nrequest_timeout = \"1s\"",
            3,
            "limits.request_timeout",
            "below limits.header_timeout",
        ),
        ("threads = [1]", 2, "threads", "no kind"),
        ("threads = [\"1\"]", 2, "threads", "a list"),
        ("threads = 1.5", 2, "threads", "no kind"),
        ("log_level = \"loud=very\"", 2, "log_level", "no log level"),
        ("log_format = \"xml\"", 2, "log_format", "text or json"),
        ("access_log = \"maybe\"", 2, "access_log", "true or false"),
        ("forwarded = \"all\"", 2, "forwarded", "x-forwarded"),
        ("[tls]\ncert = \"/c\"", 3, "tls.cert", "without tls.key"),
        ("[tls]\nclient_ca = \"/c\"", 3, "tls.client_ca", "no TLS"),
        (
            "[upstream_tls]\nca = \"/c\"",
            3,
            "upstream_tls.ca",
            "not reached over TLS",
        ),
        (
            "[etcd]\nprefix = \"/x/\"",
            3,
            "etcd.prefix",
            "names no etcd",
        ),
        (
            "leases = \"etcd://h\"\n[etcd]\nca = \"/x\"",
            4,
            "etcd.ca",
            "etcds://",
        ),
        (
            "leases = \"etcd://h\"\n[etcd]\nprefix = \"x\"",
            4,
            "etcd.prefix",
            "slash",
        ),
        (
            "leases = \"etcd://h\"\n[etcd]\nuser = \"x\"",
            4,
            "etcd.user",
            "password_file",
        ),
        (
            "[replicas]\ngroup = \"g\"",
            3,
            "replicas.group",
            "need etcd",
        ),
        (
            "leases = \"sqlite:/l\"\n[replicas]\ngroup = \"g\"",
            4,
            "replicas.group",
            "need etcd",
        ),
        (
            "leases = \"etcd://h\"\n[replicas]\ngroup = \"g\"\nsession_ttl = \"1s\"",
            5,
            "replicas.session_ttl",
            "at least",
        ),
        (
            "leases = \"etcd://h\"\n[replicas]\nmax_pause = \"1s\"",
            0,
            "replicas.group",
            "missing",
        ),
        (
            "[[route]]\npath = \"/a/{*r}\"",
            2,
            "route.scope",
            "no scope",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"{x}\"",
            4,
            "route.scope",
            "captures no",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\npathss = \"tree\"",
            5,
            "route.pathss",
            "Did you mean paths?",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\npaths = \"flat\"",
            5,
            "route.paths",
            "opaque",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\nreads = \"POST\"",
            5,
            "route.reads",
            "a list",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\nreads = [\"post\"]",
            5,
            "route.reads",
            "capitals",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\nquery = { a = 1 }",
            5,
            "route.query",
            "strings",
        ),
        (
            "[[route]]\npath = \"/a\"\nscope = \"a\"\ndeny = \"no\"",
            5,
            "route.deny",
            "true or false",
        ),
        (
            "[[route]]\npath = \"/{x}\"\nscope = \"a\"\n[[route]]\npath = \"/b\"\nscope = \"b\"",
            6,
            "route.path",
            "never reached",
        ),
        ("[route]\npath = \"/x\"", 2, "route", "two brackets"),
        ("name = ", 2, "", "no TOML"),
        ("name = \"a\"\nname = \"b\"", 3, "", "no TOML"),
    ] {
        let (at, of, message) = bad(&format!("{UPSTREAM}{text}"));
        assert_eq!((at, of.as_str()), (line, key), "{text:?}: {message}");
        assert!(message.contains(part), "{part:?} is not in {message:?}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn upstreams() {
    for (text, shown) in [
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://db/", "http://db:80"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("unix:/run/db.sock", "unix:/run/db.sock"),
    ] {
        let settings = load(&format!("upstream = {text:?}")).unwrap();
        assert_eq!(settings.upstream.to_string(), shown);
    }
    let text = "upstream = \"https://db\"\n[upstream_tls]\nca = \"/ca\"\nserver_name = \"x\"";
    assert_eq!(load(text).unwrap().upstream.to_string(), "https://db:443");
    for text in [
        "db:9000",
        "ftp://db",
        "http://",
        "http://db/x",
        "http://db:0",
        "http://db:",
        "http://db:99999",
        "http://d b",
        "http://u:secret@db",
        "http://db?x",
        "unix:db.sock",
        "http://a,b",
        "http://[x]:1",
    ] {
        let (line, key, message) = bad(&format!("upstream = {text:?}"));
        assert_eq!((line, key.as_str()), (1, "upstream"), "{text}");
        assert!(!message.contains("secret"), "{message}");
    }
    let (_, key, message) = bad("name = \"x\"");
    assert_eq!(key, "upstream");
    assert!(
        message.contains("--upstream or PALISADE_UPSTREAM"),
        "{message}"
    );
    let (_, key, _) = bad("upstream = \"https://db\"");
    assert_eq!(key, "upstream_tls.ca", "nobody is trusted by default");
}

#[test]
fn all_errors_are_told_at_once() {
    let errors =
        load("listen = [\"x\"]\nupstream = \"y\"\n[fence]\nsettle = \"z\"\nnope = 1").unwrap_err();
    let keys: Vec<_> = errors.0.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["fence.nope", "listen", "upstream", "fence.settle"]);
    assert_eq!(errors.to_string().lines().count(), 4);
}

#[test]
fn a_missing_file_is_an_error() {
    let error = Settings::load(&Sources::file("/nonexistent/p.toml")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/nonexistent/p.toml:1: the file can't be read"),
        "{error}"
    );
}

#[test]
fn routes_in_a_file_of_their_own() {
    let folder = Folder::new();
    folder.file("r.toml", "[[route]]\npath = \"/{b}\"\nscope = \"{b}\"\n");
    let text = format!("{UPSTREAM}routes_file = \"r.toml\"\n");
    let settings = Settings::load(&folder.file("p.toml", &text)).unwrap();
    assert!(settings.routes.to_string().contains("/{b}"));
    let both = format!("{text}[[route]]\npath = \"/x\"\nscope = \"x\"\n");
    let error = Settings::load(&folder.file("p.toml", &both))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("p.toml:3: route: there are routes here and in r.toml"),
        "{error}"
    );
    folder.file("r.toml", "name = \"x\"\n[[route]]\npath = \"/{b}\"\n");
    let error = Settings::load(&folder.file("p.toml", &text))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("r.toml:1: name: only [[route]] tables"),
        "{error}"
    );
    assert!(
        error.contains("r.toml:2: route.scope: the route has no scope"),
        "{error}"
    );
}

#[test]
fn what_needs_a_restart() {
    let old = good("");
    assert_eq!(
        old.needs_restart(&good("[fence]\nsettle = \"1s\"\n[limits]\nwaiting = 1")),
        Vec::<&str>::new()
    );
    assert_eq!(
        old.needs_restart(&good("threads = 2\nstate = \"/x\"")),
        ["state", "threads"]
    );
}

/// `TCP_USER_TIMEOUT` stays below `settle` (design, A6), whatever `settle` is.
#[test]
fn the_kernel_gives_up_before_settle() {
    for settle in ["2ms", "100ms", "1s", "29s", "10m"] {
        let settings = good(&format!("[fence]\nsettle = \"{settle}\""));
        let Settle::After(settle) = settings.fence.settle else {
            panic!("not manual");
        };
        assert!(settings.tcp_user_timeout() < settle, "{settle:?}");
    }
    assert_eq!(
        good("[fence]\nsettle = \"manual\"").tcp_user_timeout(),
        Duration::from_secs(15)
    );
}

#[test]
fn keys_flags_and_variables_are_all_different() {
    let names: std::collections::HashSet<_> = keys::all()
        .flat_map(|(key, names)| {
            [
                key.name.to_owned(),
                format!("--{}", names.flag),
                names.env.clone(),
            ]
        })
        .collect();
    assert_eq!(names.len(), 3 * keys::KEYS.len());
    let limits = keys::all()
        .find(|(key, _)| key.name == "limits.header_bytes")
        .unwrap()
        .1;
    assert_eq!(
        (limits.flag.as_str(), limits.env.as_str()),
        ("limits-header-bytes", "PALISADE_LIMITS_HEADER_BYTES")
    );
}
