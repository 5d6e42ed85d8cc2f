//! Palisade in front of datastores that people have, with the routes of `examples/routes` and each store's usual client: the token
//! goes along in the client's own way, a stale worker is refused, and the store keeps what the newer one wrote. Where a store is
//! not installed, its test says so and passes over; `scripts/need.sh test` installs them on Debian.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_lease::{Lease, LeaseOptions, LeaseStore, LeaseUrl};
use palisade_loadtest::{
    proxy::Palisade,
    servers::{Etcd, Process, free_port, wait_for},
};
use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

/// A program of the store on a port of its own, once it answers.
fn serve(name: &str, command: impl Fn(u16) -> Command) -> (Process, SocketAddr) {
    for _ in 0..5 {
        let port = free_port().unwrap();
        let mut command = command(port);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = Process::start(name, &mut command).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let up = wait_for(name, || {
            if process.ended().is_some() {
                return Some(false);
            }
            TcpStream::connect(address).is_ok().then_some(true)
        });
        if up {
            return (process, address);
        }
    }
    panic!("{name} does not start");
}

fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|folder| folder.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// The folder of the Python packages that `scripts/need.sh` brings.
fn venv() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let venv = own.ancestors().map(|folder| folder.join("venv/bin"));
    let found = venv
        .into_iter()
        .find(|bin| bin.join("moto_server").exists());
    if found.is_none() {
        println!("skipped: moto is not installed (scripts/need.sh test)");
    }
    found
}

/// etcd for the leases, the proxy with the store's routes, and two workers of which the second has taken the lease from the first.
struct Fenced {
    _etcd: Etcd,
    _store: Arc<dyn LeaseStore>,
    proxy: Palisade,
    old: Lease,
    name: String,
}

impl Fenced {
    async fn new(upstream: SocketAddr, routes: &str, lease: &str) -> Self {
        let etcd = Etcd::start().unwrap();
        let routes = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("routes")
            .join(routes);
        let mut proxy = Palisade::new(&format!("http://{upstream}"))
            .unwrap()
            .set("leases", etcd.url())
            .set("routes_file", routes.display());
        proxy.start().unwrap();
        let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
        let old = store.acquire(lease, LeaseOptions::default()).await.unwrap();
        Self {
            _etcd: etcd,
            _store: store,
            proxy,
            old,
            name: lease.to_owned(),
        }
    }

    async fn next(&self) -> Lease {
        let steal = LeaseOptions {
            steal: true,
            ..LeaseOptions::default()
        };
        self._store.acquire(&self.name, steal).await.unwrap()
    }

    fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.proxy.address())
    }
}

/// `curl` with these arguments; status and body.
fn curl(arguments: &[&str]) -> (String, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--noproxy", "*"])
        .args(["--write-out", "\n%{http_code}"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.trim().to_owned())
}

fn header(token: u64) -> String {
    format!("X-Fence-Token: {token}")
}

#[track_caller]
fn assert_stale((status, body): &(String, String)) {
    assert_eq!(status, "412", "{body}");
    assert!(body.contains("urn:palisade:problem:stale-token"), "{body}");
}

#[track_caller]
fn assert_good((status, body): &(String, String)) {
    assert!(status.starts_with('2'), "{status}: {body}");
}

/// boto3, with the event hook of `examples/python/s3_worker.py`, on moto.
#[tokio::test(flavor = "multi_thread")]
async fn s3_by_boto3() {
    let Some(venv) = venv() else { return };
    let (_moto, store) = serve("moto", |port| {
        let mut command = Command::new(venv.join("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    });
    let made = curl(&["-X", "PUT", "-d", "", &format!("http://{store}/reports")]);
    assert_good(&made);
    let fenced = Fenced::new(store, "s3.toml", "s3/reports").await;
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/s3_worker.py");
    let run = |token: u64, line: &str| {
        let mut command = Command::new(venv.join("python"));
        command
            .arg(&worker)
            .args([&*fenced.url(""), "reports", "nightly"])
            .env("FENCE_TOKEN", token.to_string())
            .env("AWS_ACCESS_KEY_ID", "someone")
            .env("AWS_SECRET_ACCESS_KEY", "something")
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), line.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let old = fenced.old.token().get();
    let (code, said) = run(old, "first\n");
    assert_eq!(code, Some(0), "{said}");
    let new = fenced.next().await;
    let (code, said) = run(new.token().get(), "second\n");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(old, "late\n");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("answered 412"), "{said}");
    // What the store itself says, past the proxy.
    let read = "import boto3, sys; print(boto3.client('s3', endpoint_url=sys.argv[1]).get_object(Bucket='reports', \
                Key='nightly')['Body'].read().decode())";
    let stored = Command::new(venv.join("python"))
        .args(["-c", read, &format!("http://{store}")])
        .env("AWS_ACCESS_KEY_ID", "someone")
        .env("AWS_SECRET_ACCESS_KEY", "something")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .output()
        .unwrap();
    let stored = format!(
        "{}{}",
        String::from_utf8_lossy(&stored.stdout),
        String::from_utf8_lossy(&stored.stderr)
    );
    assert_eq!(stored.trim(), "second");
}

/// curl, with etcd's own JSON gateway as the datastore: another etcd than that of the leases.
#[tokio::test(flavor = "multi_thread")]
async fn etcd_by_its_gateway() {
    let store = Etcd::start().unwrap();
    let fenced = Fenced::new(store.address(), "etcd-gateway.toml", "etcd").await;
    // `a`, and `first`, `second`, `late`, in base64.
    let put = |token: u64, value: &str| {
        let message = format!("{{\"key\":\"YQ==\",\"value\":\"{value}\"}}");
        let url = fenced.url("/v3/kv/put");
        curl(&["-X", "POST", "-d", &message, "-H", &header(token), &url])
    };
    let old = fenced.old.token().get();
    assert_good(&put(old, "Zmlyc3Q="));
    let new = fenced.next().await;
    assert_good(&put(new.token().get(), "c2Vjb25k"));
    assert_stale(&put(old, "bGF0ZQ=="));
    // A question needs no token.
    let url = fenced.url("/v3/kv/range");
    let read = curl(&["-X", "POST", "-d", "{\"key\":\"YQ==\"}", &url]);
    assert!(read.1.contains("c2Vjb25k"), "{read:?}");
    assert_eq!(
        store.ctl(&["get", "a", "--print-value-only"]).trim(),
        "second"
    );
}

/// curl, with Redis behind webdis.
#[tokio::test(flavor = "multi_thread")]
async fn redis_by_webdis() {
    if !is_installed("webdis") || !is_installed("redis-server") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_redis, redis) = serve("redis-server", |port| {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--dir"])
            .arg(folder.path());
        command
    });
    let (_webdis, store) = serve("webdis", |port| {
        let settings = folder.path().join("webdis.json");
        let text = format!(
            "{{\"redis_host\":\"127.0.0.1\",\"redis_port\":{},\"http_host\":\"127.0.0.1\",\"http_port\":{port},\
             \"threads\":1,\"daemonize\":false,\"verbosity\":0,\"logfile\":\"{}\"}}",
            redis.port(),
            folder.path().join("webdis.log").display()
        );
        fs::write(&settings, text).unwrap();
        let mut command = Command::new("webdis");
        command.arg(settings);
        command
    });
    let fenced = Fenced::new(store, "webdis.toml", "redis").await;
    let set = |token: u64, value: &str| {
        let url = fenced.url("/SET/nightly");
        curl(&["-X", "PUT", "-d", value, "-H", &header(token), &url])
    };
    let old = fenced.old.token().get();
    assert_good(&set(old, "first"));
    let new = fenced.next().await;
    assert_good(&set(new.token().get(), "second"));
    assert_stale(&set(old, "late"));
    // A GET that would write is a write here.
    let url = fenced.url("/SET/nightly/late");
    assert_stale(&curl(&["-H", &header(old), &url]));
    assert_eq!(curl(&[&url]).0, "428");
    let (_, read) = curl(&[&fenced.url("/GET/nightly")]);
    assert!(read.contains("second"), "{read}");
}

/// curl, as InfluxDB's own documents have it.
#[tokio::test(flavor = "multi_thread")]
async fn influxdb_by_its_api() {
    if !is_installed("influxd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (_influx, store) = serve("influxd", |port| {
        let mut command = Command::new("influxd");
        let rpc = free_port().unwrap();
        command
            .args(["run", "-config", "/dev/null"])
            .env("INFLUXDB_REPORTING_DISABLED", "true")
            .env("INFLUXDB_BIND_ADDRESS", format!("127.0.0.1:{rpc}"))
            .env("INFLUXDB_HTTP_BIND_ADDRESS", format!("127.0.0.1:{port}"))
            .env("INFLUXDB_META_DIR", at("meta"))
            .env("INFLUXDB_DATA_DIR", at("data"))
            .env("INFLUXDB_DATA_WAL_DIR", at("wal"));
        command
    });
    let fenced = Fenced::new(store, "influxdb.toml", "influxdb").await;
    let old = fenced.old.token().get();
    let made = curl(&[
        "-X",
        "POST",
        "-H",
        &header(old),
        "--data-urlencode",
        "q=CREATE DATABASE nightly",
        &fenced.url("/query"),
    ]);
    assert_good(&made);
    let write = |token: u64, value: u32| {
        let line = format!("report value={value} 1000000000");
        let url = fenced.url("/write?db=nightly");
        curl(&[
            "-X",
            "POST",
            "--data-binary",
            &line,
            "-H",
            &header(token),
            &url,
        ])
    };
    assert_good(&write(old, 1));
    let new = fenced.next().await;
    assert_good(&write(new.token().get(), 2));
    assert_stale(&write(old, 3));
    let asked = [
        "-G",
        &format!("http://{store}/query?db=nightly"),
        "--data-urlencode",
        "q=SELECT value FROM report",
    ];
    let stored = curl(&asked);
    assert!(stored.1.contains(",2]"), "{stored:?}");
    // By GET, version 1 takes statements that write, so a token is asked for.
    assert_eq!(curl(&[&fenced.url("/query?q=SHOW+DATABASES")]).0, "428");
}
