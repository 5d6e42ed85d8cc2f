//! The table of settings: one line for each key, from which the file's keys, the flags, the environment's names, the
//! defaults and the help all come.

use std::sync::LazyLock;

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// As in the file, with its section: `fence.settle`.
    pub name: &'static str,
    /// What a value looks like, for help texts.
    pub form: &'static str,
    /// What holds when nothing is given; `None` where nothing is a value of its own, or an error.
    pub default: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
}

const fn key(
    name: &'static str,
    form: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Key {
    Key {
        name,
        form,
        default,
        help,
    }
}

/// The keys of a `[[route]]`.
pub const ROUTE_KEYS: [&str; 8] = [
    "path", "scope", "paths", "methods", "reads", "writes", "query", "deny",
];

/// Every setting, in the order in which `palisade check` prints them.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("name", "NAME", Some("default"), "This proxy's name among the proxies of one lease store"),
    key("listen", "ADDR,...", Some("127.0.0.1:8080"), "Where clients connect: IP:PORT or unix:PATH; several with commas"),
    key("upstream", "URL", None, "The datastore: http://HOST:PORT, https://HOST:PORT or unix:PATH"),
    key("admin", "ADDR", Some("127.0.0.1:8081"), "Where metrics and health are served: IP:PORT, unix:PATH or off"),
    key("state", "DIR", Some("/var/lib/palisade"), "The folder that holds the floors; made if missing"),
    key("leases", "URL", None, "The lease store: etcd://HOST:PORT,..., etcds:// for TLS, or sqlite:PATH; without: highest-seen"),
    key("scope", "NAME", Some("default"), "The one scope when there are no routes"),
    key("threads", "N", Some("0"), "Threads that serve; 0: one per core"),
    key("routes_file", "FILE", None, "A file of [[route]] tables, in place of those in the main file"),
    key("log_format", "text|json", Some("text"), "How log lines are written"),
    key("log_level", "LEVEL", Some("info"), "error, warn, info, debug or trace; or directives such as info,palisade::gate=debug"),
    key("access_log", "BOOL", Some("true"), "Whether each request gets a log line"),
    key("via", "BOOL", Some("true"), "Whether Via is added to requests and responses"),
    key("forwarded", "both|forwarded|x-forwarded|off", Some("both"), "Which fields tell upstream where a request came from"),
    key("fence.settle", "DUR|manual", Some("30s"), "How long an unanswered write may still be applied; manual: an operator says"),
    key("fence.abort_after", "DUR", Some("5s"), "How long a handover lets older writes finish sending before it cuts them"),
    key("fence.drain_timeout", "DUR", Some("60s"), "How long a request waits for a handover"),
    key("fence.buffer_body", "SIZE", Some("64KiB"), "Bodies up to this are read whole before anything is sent"),
    key("etcd.user", "NAME", None, "The user at etcd"),
    key("etcd.password_file", "FILE", None, "The file with that user's password"),
    key("etcd.ca", "FILE", None, "Certificate authorities that etcd's certificate may come from (PEM)"),
    key("etcd.cert", "FILE", None, "This proxy's certificate for etcd (PEM)"),
    key("etcd.key", "FILE", None, "The key of that certificate (PEM)"),
    key("etcd.prefix", "PREFIX", Some("/palisade/"), "What every key in etcd begins with"),
    key("tls.cert", "FILE", None, "The certificate for clients (PEM, with its chain)"),
    key("tls.key", "FILE", None, "The key of that certificate (PEM)"),
    key("tls.client_ca", "FILE", None, "Authorities that client certificates must come from: mutual TLS (PEM)"),
    key("upstream_tls.ca", "FILE", None, "Authorities that upstream's certificate may come from (PEM); https needs it"),
    key("upstream_tls.cert", "FILE", None, "This proxy's certificate for upstream (PEM)"),
    key("upstream_tls.key", "FILE", None, "The key of that certificate (PEM)"),
    key("upstream_tls.server_name", "NAME", None, "The name that upstream's certificate must have, if it is not the host's"),
    key("limits.connections", "N", Some("10000"), "Client connections at once"),
    key("limits.inflight", "N", Some("10000"), "Requests at upstream at once"),
    key("limits.waiting", "N", Some("1000"), "Requests waiting for a handover at once"),
    key("limits.header_bytes", "SIZE", Some("64KiB"), "A request's head"),
    key("limits.header_count", "N", Some("100"), "Header fields of a request"),
    key("limits.http2_streams", "N", Some("256"), "Requests at once on one HTTP/2 connection"),
    key("limits.header_timeout", "DUR", Some("10s"), "Time for a request's head, from its first byte"),
    key("limits.tls_handshake_timeout", "DUR", Some("10s"), "Time for a TLS handshake"),
    key("limits.body_idle_timeout", "DUR", Some("30s"), "Longest pause within a request's body"),
    key("limits.response_idle_timeout", "DUR", Some("60s"), "How long a client may take nothing of its response"),
    key("limits.keepalive_idle", "DUR", Some("75s"), "Longest pause between a client's requests"),
    key("limits.request_timeout", "DUR|off", Some("off"), "Time for a whole request"),
    key("limits.upstream_connect_timeout", "DUR", Some("5s"), "Time to connect to upstream"),
    key("limits.upstream_response_timeout", "DUR", Some("60s"), "Time for upstream's answer once the request is sent"),
    key("limits.upstream_idle_timeout", "DUR", Some("4s"), "How long an idle connection to upstream is kept; below upstream's own"),
    key("limits.drain_delay", "DUR", Some("0s"), "How long a stopping proxy, no longer ready, goes on accepting"),
    key("limits.shutdown_timeout", "DUR", Some("25s"), "How long a stopping proxy waits for requests under way"),
    key("metrics.scopes", "N|NAME,...", Some("10"), "Scopes with metrics of their own: a list, or the busiest N"),
    key("replicas.group", "NAME", None, "The group of replicas in front of one datastore"),
    key("replicas.session_ttl", "DUR", Some("15s"), "After how long a silent replica has lost its place"),
    key("replicas.max_pause", "DUR", Some("5s"), "The longest that a replica may be paused unnoticed"),
];

/// What a key is called on the command line and in the environment.
#[derive(Debug)]
pub struct Names {
    /// Without the dashes: `fence-settle`.
    pub flag: String,
    /// `PALISADE_FENCE_SETTLE`.
    pub env: String,
}

static NAMES: LazyLock<Vec<Names>> = LazyLock::new(|| {
    let names = |key: &Key| Names {
        flag: key.name.replace(['.', '_'], "-"),
        env: format!("PALISADE_{}", key.name.replace('.', "_").to_uppercase()),
    };
    KEYS.iter().map(names).collect()
});

/// Every setting with its names, in the order of [`KEYS`].
pub fn all() -> impl Iterator<Item = (&'static Key, &'static Names)> {
    KEYS.iter().zip(NAMES.iter())
}

/// The setting with this name in the file.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The nearest of some names, if one is near enough to have been meant.
pub fn nearest<'a>(meant: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (distance(meant, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name)
}

/// The edits between two words (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
