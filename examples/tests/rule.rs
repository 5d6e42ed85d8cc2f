//! The one rule that the example workers follow ("What a worker makes of the answers" in the book), in each language: what is
//! refused for now is sent again, for a bounded time; what is the lease's end, or somebody's mistake, or unknown, is not.
//! Where a language is not installed, its worker is passed over, with a word.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_examples::{
    brought::brought,
    worker::{Answer, Worker},
};
use palisade_lease::{Lease, LeaseOptions, LeaseStore, LeaseUrl};
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::Palisade,
    servers::{Etcd, GIVE_UP, exchange, program, wait_for},
};
use std::{
    path::Path,
    process::Command,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};
use tokio::time::timeout;

const LEASE: &str = "nightly/report";
/// Longer than any test takes.
const TTL: Duration = Duration::from_secs(600);

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    path.display().to_string()
}

fn is_installed(language: &str, version: &str) -> bool {
    let found = Command::new(language).arg(version).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {language} is not installed");
    }
    found
}

fn shell() -> Option<Vec<String>> {
    Some(vec![example("shell/worker.sh")])
}

fn requests() -> Option<Vec<String>> {
    let python = brought("venv/bin/python")?.display().to_string();
    Some(vec![python, example("python/requests_worker.py")])
}

fn node() -> Option<Vec<String>> {
    is_installed("node", "--version").then(|| vec!["node".to_owned(), example("node/worker.mjs")])
}

/// Built once for all tests of this file.
fn go() -> Option<Vec<String>> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rule");
    let program = folder.join("worker").display().to_string();
    let built = BUILT.get_or_init(|| {
        if !is_installed("go", "version") {
            return false;
        }
        let made = Command::new("go")
            .args(["build", "-o", &program, &example("go/worker.go")])
            .env("GOCACHE", folder.join("cache"))
            .env("GO111MODULE", "off")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        true
    });
    built.then_some(vec![program])
}

/// etcd, a proxy, a datastore whose answers the test chooses, and a worker's lease.
struct Stage {
    etcd: Etcd,
    store: Arc<dyn LeaseStore>,
    origin: Origin,
    proxy: Palisade,
}

impl Stage {
    fn set() -> Self {
        let mut stage = Self::without_proxy("60s");
        stage.proxy.start().unwrap();
        stage
    }

    /// One where a request that has to wait for a handover, or for the lease store, is soon told so.
    fn hasty() -> Self {
        let mut stage = Self::without_proxy("100ms");
        stage.proxy.start().unwrap();
        stage
    }

    /// A hasty one whose lease store has gone away with a lease that the proxy has not heard of: its watch would have told it.
    async fn away() -> (Self, Lease) {
        let mut stage = Self::without_proxy("100ms");
        let lease = stage.lease().await;
        stage.etcd.kill();
        stage.proxy.start().unwrap();
        (stage, lease)
    }

    fn without_proxy(drain_timeout: &str) -> Self {
        let etcd = Etcd::start().unwrap();
        let origin = Origin::tcp().unwrap();
        let proxy = Palisade::new(&origin.url())
            .unwrap()
            .set("leases", etcd.url())
            .set("scope", LEASE)
            .set("fence.abort_after", "100ms")
            .set("fence.settle", "100ms")
            .set("fence.drain_timeout", drain_timeout);
        let store = palisade_lease::open(&etcd.url().parse::<LeaseUrl>().unwrap()).unwrap();
        Self {
            etcd,
            store,
            origin,
            proxy,
        }
    }

    async fn lease(&self) -> Lease {
        let options = LeaseOptions::with_ttl(TTL);
        self.store.acquire(LEASE, options).await.unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.proxy.address())
    }

    /// A worker for this file of the datastore, with this token, that has `patience` seconds.
    fn command(&self, job: &[String], token: &str, path: &str, patience: u32) -> Command {
        let mut command = Command::new(&job[0]);
        command
            .args(&job[1..])
            .arg(self.url(path))
            .env("FENCE_TOKEN", token)
            .env("FENCE_PATIENCE", patience.to_string());
        command
    }

    fn refusals(&self) -> Vec<String> {
        let log = self.proxy.log();
        let refused = log
            .iter()
            .filter(|line| line.get("outcome").is_some_and(|o| o == "refused"));
        let reasons = refused.filter_map(|line| line.get("reason")?.as_str());
        reasons.map(str::to_owned).collect()
    }

    /// How many requests were refused in all. Ends the proxy, so that all of its log is there.
    fn all_refused(&mut self) -> usize {
        self.proxy.stop();
        self.refusals().len()
    }

    fn wait_refused(&self, reason: &str) {
        wait_for(&format!("a refusal {reason}"), || {
            let found = self.refusals().iter().any(|refusal| refusal == reason);
            found.then_some(())
        });
    }
}

async fn write(worker: &mut Worker, line: &str) -> Answer {
    worker.give(line).await.expect("the worker reads");
    answer(worker).await
}

async fn answer(worker: &mut Worker) -> Answer {
    let answer = timeout(GIVE_UP, worker.answer()).await;
    let answer = answer.expect("gave up waiting for the worker's answer");
    answer.expect("the worker answers")
}

async fn exit_code(worker: &mut Worker) -> Option<i32> {
    let end = timeout(GIVE_UP, worker.ended()).await;
    end.expect("gave up waiting for the worker's end")
        .unwrap()
        .code()
}

/// The lease store is away when the worker writes for the first time, so nobody can say whose its token is; then it is back.
async fn waits_for_the_lease_store(job: &[String]) {
    let (mut stage, lease) = Stage::away().await;
    let token = lease.token().to_string();
    let command = stage.command(job, &token, "/x", 600);
    let mut worker = Worker::start("waits", command).unwrap();
    worker.started().await.unwrap();
    worker.give("report").await.unwrap();
    stage.wait_refused("authority-unavailable");
    stage.etcd.start_again().unwrap();
    let answer = answer(&mut worker).await;
    assert_eq!(answer.status, 204, "{}", answer.response);
    assert!(worker.finish().await.unwrap().success());
    // What was refused was sent again, and reached the datastore once.
    assert_eq!(stage.origin.arrivals_at("/x").len(), 1);
    assert_eq!(stage.origin.value("/x").unwrap(), b"report\n");
}

/// The same, and it does not come back while the worker has patience: `Retry-After: 1` and one second of it are two tries.
async fn loses_patience(job: &[String]) {
    let (mut stage, lease) = Stage::away().await;
    let token = lease.token().to_string();
    let mut worker = Worker::start("gives up", stage.command(job, &token, "/x", 1)).unwrap();
    worker.started().await.unwrap();
    let answer = write(&mut worker, "report").await;
    assert_eq!(answer.status, 503, "{}", answer.response);
    assert_eq!(exit_code(&mut worker).await, Some(69));
    // The second one was told why it waited, not why the first one was refused.
    assert_eq!(stage.all_refused(), 2);
    assert!(stage.origin.arrivals().is_empty());
}

/// Answers that are no better the second time, or must not be asked for twice.
async fn sends_it_once(job: &[String]) {
    let mut stage = Stage::set();
    let lease = stage.lease().await;
    let token = lease.token().to_string();
    // No token at all: 400.
    let mut worker = Worker::start("400", stage.command(job, "one", "/x", 600)).unwrap();
    worker.give("report").await.unwrap();
    assert_eq!(exit_code(&mut worker).await, Some(1));
    assert!(stage.origin.arrivals().is_empty());

    let later = || vec!["Retry-After: 1".to_owned()];
    let own = |status| {
        vec![
            Step::ReadBody,
            Step::AnswerWith(status, later(), Vec::new()),
        ]
    };
    // The datastore's own conflict, its own 412, and its own 503, of which nobody but it knows whether it did something.
    for (path, status) in [("/409", 409), ("/412", 412), ("/503", 503)] {
        stage.origin.always(path, own(status));
        let command = stage.command(job, &token, path, 600);
        let mut worker = Worker::start("own", command).unwrap();
        worker.started().await.unwrap();
        assert_eq!(write(&mut worker, "report").await.status, status);
        assert_eq!(exit_code(&mut worker).await, Some(1), "{path}");
        assert_eq!(stage.origin.arrivals_at(path).len(), 1, "{path}");
    }

    // Sent, and never answered: it may have been applied.
    stage
        .origin
        .always("/gone", vec![Step::ReadBody, Step::Apply, Step::Reset]);
    let command = stage.command(job, &token, "/gone", 600);
    let mut worker = Worker::start("unknown", command).unwrap();
    worker.started().await.unwrap();
    let answer = write(&mut worker, "report").await;
    assert_eq!(answer.status, 502, "{}", answer.response);
    assert_eq!(answer.header("X-Fence-Outcome"), Some("unknown"));
    assert_eq!(exit_code(&mut worker).await, Some(1));
    assert_eq!(stage.origin.arrivals_at("/gone").len(), 1);
    // Only the one with the token that is none.
    assert_eq!(stage.all_refused(), 1);
}

/// An older write keeps the worker waiting at the fence; meanwhile its lease is gone. palisade-lease ends it.
async fn stops_when_its_lease_is_lost(job: &[String]) {
    let stage = Stage::hasty();
    let sign = Sign::new();
    let slow = vec![
        Step::ReadBody,
        Step::Await(sign.clone()),
        Step::Apply,
        Step::Answer(204, Vec::new()),
    ];
    stage.origin.once("/x", slow);
    let old = stage.lease().await;
    let (front, token) = (stage.proxy.address(), old.token());
    let older = thread::spawn(move || {
        let head = format!(
            "PUT /x HTTP/1.1\r\nHost: x\r\nX-Fence-Token: {token}\r\nConnection: close\r\n"
        );
        let request = format!("{head}Content-Length: 3\r\n\r\nold");
        loop {
            // Slow as the lease store may be to say whose the token is: it gets through at some time.
            let answer = exchange(front, request.as_bytes()).unwrap();
            if !answer.starts_with("HTTP/1.1 503") {
                return answer;
            }
        }
    });
    sign.wait_reached();

    let mut command = Command::new(program("palisade-lease"));
    command
        .args(["run", LEASE, "--leases", &stage.etcd.url(), "--steal"])
        .args(["--ttl", "600s", "--"])
        .args(job)
        .arg(stage.url("/x"))
        .env("FENCE_PATIENCE", "600");
    let mut worker = Worker::start("waits", command).unwrap();
    worker.started().await.unwrap();
    worker.give("late").await.unwrap();
    stage.wait_refused("handover-pending");
    stage
        .etcd
        .ctl(&["del", &format!("/palisade/leases/{LEASE}")]);
    assert_eq!(exit_code(&mut worker).await, Some(76));
    sign.give();
    let answer = older.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert_eq!(stage.origin.arrivals_at("/x").len(), 1);
}

macro_rules! in_each_language {
    ($($language:ident),*) => { $(
        mod $language {
            #[tokio::test(flavor = "multi_thread")]
            async fn waits_for_the_lease_store() {
                if let Some(job) = super::$language() {
                    super::waits_for_the_lease_store(&job).await;
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn loses_patience() {
                if let Some(job) = super::$language() {
                    super::loses_patience(&job).await;
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn sends_it_once() {
                if let Some(job) = super::$language() {
                    super::sends_it_once(&job).await;
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn stops_when_its_lease_is_lost() {
                if let Some(job) = super::$language() {
                    super::stops_when_its_lease_is_lost(&job).await;
                }
            }
        }
    )* };
}

in_each_language!(shell, requests, node, go);
