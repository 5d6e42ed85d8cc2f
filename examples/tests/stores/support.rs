//! What the stores' tests share.

use palisade_lease::{Lease, LeaseOptions, LeaseStore, LeaseUrl};
use palisade_loadtest::{
    proxy::Palisade,
    servers::{Etcd, Process, free_port, wait_for},
};
use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

/// A program of the store on a port of its own, once it answers.
pub(crate) fn serve(name: &str, command: impl Fn(u16) -> Command) -> (Process, SocketAddr) {
    let port = free_port().unwrap();
    let mut command = command(port);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = Process::start(name, &mut command).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    wait_for(name, || {
        let ended = process.ended();
        assert!(ended.is_none(), "{name} ended at once: {ended:?}");
        TcpStream::connect(address).ok()
    });
    (process, address)
}

pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|folder| folder.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// A file of the examples folder.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Runs a worker with this token and input; its exit code and all that it said.
pub(crate) fn work(command: &mut Command, token: u64, input: &str) -> (Option<i32>, String) {
    let mut child = command
        .env("FENCE_TOKEN", token.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// etcd for the leases, the proxy with the store's routes, and two workers of which the second has taken the lease from the first.
pub(crate) struct Fenced {
    pub(crate) etcd: Etcd,
    store: Arc<dyn LeaseStore>,
    pub(crate) proxy: Palisade,
    pub(crate) old: Lease,
    name: String,
}

impl Fenced {
    pub(crate) async fn new(upstream: SocketAddr, routes: &str, lease: &str) -> Self {
        let mut fenced = Self::without_proxy("60s", upstream, routes, lease).await;
        fenced.proxy.start().unwrap();
        fenced
    }

    /// One whose lease store is away, and was so before the proxy could hear of the lease by its watch. A request that has to wait is
    /// soon told so.
    pub(crate) async fn away(upstream: SocketAddr, routes: &str, lease: &str) -> Self {
        let mut fenced = Self::without_proxy("100ms", upstream, routes, lease).await;
        fenced.etcd.kill();
        fenced.proxy.start().unwrap();
        fenced
    }

    async fn without_proxy(
        drain_timeout: &str,
        upstream: SocketAddr,
        routes: &str,
        lease: &str,
    ) -> Self {
        let etcd = Etcd::start().unwrap();
        let routes = example("routes").join(routes);
        let proxy = Palisade::new(&format!("http://{upstream}"))
            .unwrap()
            .set("leases", etcd.url())
            .set("routes_file", routes.display())
            .set("fence.abort_after", "100ms")
            .set("fence.settle", "100ms")
            .set("fence.drain_timeout", drain_timeout);
        let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
        // Longer than any test takes, also while the lease store is away.
        let options = LeaseOptions::with_ttl(Duration::from_secs(600));
        let old = store.acquire(lease, options).await.unwrap();
        Self {
            etcd,
            store,
            proxy,
            old,
            name: lease.to_owned(),
        }
    }

    /// A worker with this job follows the rule of the book's page on workers: it has patience with a lease store that is away, and no
    /// more than it was given.
    pub(crate) fn has_patience(&mut self, input: &str, job: impl Fn() -> Command + Sync) {
        let token = self.old.token().get();
        let (code, said) = work(job().env("FENCE_PATIENCE", "1"), token, input);
        assert_eq!(code, Some(69), "{said}");
        let seen = self.proxy.log().len();
        let worker = std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(job().env("FENCE_PATIENCE", "600"), token, input));
            wait_for("a refusal for now", || {
                let log = self.proxy.log();
                let refused = log[seen..]
                    .iter()
                    .any(|line| line.get("outcome").is_some_and(|o| o == "refused"));
                refused.then_some(())
            });
            self.etcd.start_again().unwrap();
            worker.join().unwrap()
        });
        assert_eq!(worker.0, Some(0), "{}", worker.1);
    }

    /// POSTs this until it passes the gate: on a hasty proxy a new token may be told to come again.
    pub(crate) fn opens(&self, token: u64, target: &str, body: &str) {
        let (token, url) = (header(token), self.url(target));
        let answer = wait_for("a handover", || {
            let answer = curl(&["-X", "POST", "-H", &token, "--data-binary", body, &url]);
            (answer.0 != "503").then_some(answer)
        });
        assert_good(&answer);
    }

    pub(crate) async fn next(&self) -> Lease {
        let steal = LeaseOptions {
            steal: true,
            ..LeaseOptions::default()
        };
        self.store.acquire(&self.name, steal).await.unwrap()
    }

    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.proxy.address())
    }
}

/// `curl` with these arguments; status and body.
pub(crate) fn curl(arguments: &[&str]) -> (String, String) {
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

pub(crate) fn header(token: u64) -> String {
    format!("X-Fence-Token: {token}")
}

#[track_caller]
pub(crate) fn assert_stale((status, body): &(String, String)) {
    assert_eq!(status, "412", "{body}");
    assert!(body.contains("urn:palisade:problem:stale-token"), "{body}");
}

#[track_caller]
pub(crate) fn assert_good((status, body): &(String, String)) {
    assert!(status.starts_with('2'), "{status}: {body}");
}
