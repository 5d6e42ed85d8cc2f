//! Workers of other languages, against real etcd, a real datastore and Palisade in front of it.

use palisade_examples::{
    stage::{Kind, Leases, Stage},
    worker::{Answer, Worker},
};
use palisade_lease::{LeaseOptions, LeaseUrl};
use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::Palisade,
    servers::{Etcd, exchange, program},
};
use std::{path::Path, process::Command};

const LEASE: &str = "nightly/report";
const FILE: &str = "report.txt";

/// A file of the examples folder.
fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(name)
        .display()
        .to_string()
}

fn etcd(stage: &Stage) -> &Etcd {
    match &stage.leases {
        Leases::Etcd(etcd) => etcd,
        Leases::File(_) => panic!("a stage with etcd was set"),
    }
}

fn python(stage: &Stage) -> Command {
    let mut command = Command::new("python3");
    let address = format!("http://{}", etcd(stage).address());
    command.arg(example("python/worker.py")).args([
        "--etcd",
        &address,
        "--lease",
        LEASE,
        &stage.proxy.url(FILE),
    ]);
    command
}

/// The worker in shell, under `palisade-lease run` with these options.
fn shell(stage: &Stage, options: &[&str]) -> Command {
    let mut command = Command::new(program("palisade-lease"));
    command
        .args(["run", LEASE, "--leases", &etcd(stage).url()])
        .args(options)
        .args(["--", &example("shell/worker.sh"), &stage.proxy.url(FILE)]);
    command
}

async fn write(worker: &mut Worker, line: &str) -> Answer {
    worker.give(line).await.expect("the worker reads");
    worker.answer().await.expect("the worker answers")
}

/// What the store holds, without the line's end.
fn stored(stage: &Stage) -> String {
    let text = stage.fenced.read(FILE).expect("the file is there");
    text.trim_end().to_owned()
}

fn assert_stale(answer: &Answer, highest: u64) {
    assert_eq!(answer.status, 412, "{}", answer.response);
    assert_eq!(answer.header("X-Fence-Outcome"), Some("refused"));
    assert_eq!(
        answer.header("X-Fence-Highest"),
        Some(highest.to_string().as_str())
    );
    assert_eq!(
        answer.header("Content-Type"),
        Some("application/problem+json")
    );
    let problem: serde_json::Value = serde_json::from_str(answer.body()).expect("a JSON document");
    assert_eq!(problem["type"], "urn:palisade:problem:stale-token");
    assert_eq!(problem["status"], 412);
    assert_eq!(problem["scope"], LEASE);
    assert_eq!(problem["highest"], highest);
}

/// A lease that is taken away while etcd's own lease under it lives: the old holder can't notice by its heartbeat, so
/// its late write is sent for sure.
async fn taken_over(stage: &Stage, mut old: Worker, old_exit: i32) {
    let first = old.started().await.expect("the first holder starts").token;
    let answer = write(&mut old, "first").await;
    assert_eq!(answer.status, 201, "{}", answer.response);
    assert_eq!(answer.header("X-Fence-Outcome"), Some("answered"));

    let mut new = Worker::start("new", shell(stage, &["--steal"])).expect("starts");
    let second = new.started().await.expect("the second holder starts").token;
    assert!(second > first, "{second} after {first}");
    let answer = write(&mut new, "second").await;
    assert_eq!(answer.status, 204, "{}", answer.response);

    assert_stale(&write(&mut old, "late").await, second);
    assert_eq!(stored(stage), "second");
    assert_eq!(old.ended().await.expect("ends").code(), Some(old_exit));

    let answer = write(&mut new, "third").await;
    assert_eq!(answer.status, 204, "{}", answer.response);
    assert!(new.finish().await.expect("ends").success());
    assert_eq!(stored(stage), "third");
}

#[tokio::test]
async fn a_python_worker_writes_until_its_lease_is_taken_over() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.expect("a stage");
    let old = Worker::start("old", python(&stage)).expect("starts");
    taken_over(&stage, old, 76).await;
}

/// Both sides know the same keys: what one of them holds, the other can't take, and what one gives back, the other can.
#[tokio::test]
async fn a_python_worker_and_palisade_lease_share_one_lease() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.expect("a stage");
    let mut python_first = Worker::start("python", python(&stage)).expect("starts");
    let first = python_first.started().await.expect("has it").token;

    let status = Command::new(program("palisade-lease"))
        .args(["status", LEASE, "--json", "--leases", &etcd(&stage).url()])
        .output()
        .expect("runs");
    assert_eq!(status.status.code(), Some(0), "held");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["token"], first);
    let busy = shell(&stage, &["--no-wait"]).status().expect("runs");
    assert_eq!(busy.code(), Some(75));

    assert!(python_first.finish().await.expect("ends").success());
    let mut lease = Worker::start("lease", shell(&stage, &["--no-wait"])).expect("starts");
    let second = lease.started().await.expect("has it").token;
    assert!(second > first);
    let busy = python(&stage).arg("--no-wait").status().expect("runs");
    assert_eq!(busy.code(), Some(75));
    assert!(lease.finish().await.expect("ends").success());

    let left = etcd(&stage).ctl(&["get", "--prefix", "--keys-only", "/palisade/leases/"]);
    assert_eq!(left.trim(), "", "both gave it back");
    assert_eq!(
        etcd(&stage).ctl(&["lease", "list"]).lines().next(),
        Some("found 0 leases")
    );
}

/// The example's own deadline: it counts from the last answered renewal, so a pause as long as that is noticed by the
/// worker itself, before it writes.
#[tokio::test]
async fn a_python_worker_that_slept_too_long_does_not_even_write() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.expect("a stage");
    let mut command = python(&stage);
    command.args(["--ttl", "5"]);
    let mut old = Worker::start("old", command).expect("starts");
    old.started().await.expect("has it");
    assert_eq!(write(&mut old, "first").await.status, 201);

    let frozen = old.freeze();
    let mut new = Worker::start("new", shell(&stage, &[])).expect("starts");
    new.started().await.expect("has it once it lapsed");
    assert_eq!(write(&mut new, "second").await.status, 204);
    old.give("late").await.expect("waits in the pipe");
    palisade_examples::tree::wake(&frozen);
    assert_eq!(old.ended().await.expect("ends").code(), Some(76));
    assert_eq!(stored(&stage), "second");
    assert!(new.finish().await.expect("ends").success());
}

#[tokio::test]
async fn a_shell_worker_writes_and_ends_with_its_input() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.expect("a stage");
    let mut worker = Worker::start("shell", shell(&stage, &[])).expect("starts");
    worker.started().await.expect("has it");
    assert_eq!(write(&mut worker, "one").await.status, 201);
    assert_eq!(write(&mut worker, "two").await.status, 204);
    assert!(worker.finish().await.expect("ends").success());
    assert_eq!(stored(&stage), "two");
}

/// An older write that is still under way keeps the new holder's out: refused for now.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_has_patience_and_then_no_more() {
    let etcd = Etcd::start().expect("etcd");
    let origin = Origin::tcp().expect("a datastore");
    let sign = Sign::new();
    let answer = Step::Answer(204, Vec::new());
    let slow = vec![
        Step::ReadBody,
        Step::Await(sign.clone()),
        Step::Apply,
        answer,
    ];
    origin.once("/x", slow);
    let mut proxy = Palisade::new(&origin.url())
        .expect("a proxy")
        .set("leases", etcd.url())
        .set("scope", LEASE)
        .set("fence.abort_after", "100ms")
        .set("fence.settle", "100ms")
        .set("fence.drain_timeout", "100ms");
    proxy.start().expect("starts");
    let url = etcd.url().parse::<LeaseUrl>().expect("a URL");
    let store = palisade_lease::open(&url).expect("a lease store");
    let options = LeaseOptions::default();
    let old = store.acquire(LEASE, options).await.expect("has it");
    let (front, token) = (proxy.address(), old.token());
    let older = std::thread::spawn(move || {
        let head = format!("PUT /x HTTP/1.1\r\nHost: x\r\nX-Fence-Token: {token}\r\n");
        let rest = "Connection: close\r\nContent-Length: 3\r\n\r\nold";
        loop {
            // Slow as the lease store may be to say whose the token is: it gets through at some time.
            let answer = exchange(front, format!("{head}{rest}").as_bytes()).expect("an answer");
            if !answer.starts_with("HTTP/1.1 503") {
                return answer;
            }
        }
    });
    sign.wait_reached();
    old.release().await;

    let mut command = Command::new("python3");
    command
        .arg(example("python/worker.py"))
        .args(["--etcd", &format!("http://{}", etcd.address())])
        .args(["--lease", LEASE, &format!("http://{front}/x")])
        .env("FENCE_PATIENCE", "1");
    let mut hasty = Worker::start("hasty", command).expect("starts");
    hasty.started().await.expect("has it");
    let answer = write(&mut hasty, "early").await;
    assert_eq!(answer.status, 503, "{}", answer.response);
    assert_eq!(hasty.ended().await.expect("ends").code(), Some(69));
    assert_eq!(origin.arrivals_at("/x").len(), 1);
    sign.give();
    let answer = older.join().expect("it ends");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}
