//! Workers that know nothing of leases but `FENCE_TOKEN`, in other languages and under other schedulers: against real etcd, a real
//! datastore and Palisade in front of it. Where a language is not installed, its test says so and passes over.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_examples::{
    brought::brought,
    stage::{Kind, Leases, Stage},
    worker::{Answer, Worker},
};
use palisade_loadtest::servers::{Etcd, program};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const LEASE: &str = "nightly/report";
const FILE: &str = "report.txt";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn etcd(stage: &Stage) -> &Etcd {
    match &stage.leases {
        Leases::Etcd(etcd) => etcd,
        Leases::File(_) => panic!("a stage with etcd was set"),
    }
}

/// `palisade-lease run` with these options, and this job.
fn lease(stage: &Stage, options: &[&str], job: &[&str]) -> Command {
    let mut command = Command::new(program("palisade-lease"));
    command
        .args(["run", LEASE, "--leases", &etcd(stage).url()])
        .args(options)
        .arg("--")
        .args(job);
    command
}

fn is_installed(language: &str, version: &str) -> bool {
    let found = Command::new(language).arg(version).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {language} is not installed");
    }
    found
}

/// Python with the packages that `scripts/need.sh` brings.
fn python() -> Option<String> {
    brought("venv/bin/python").map(|path| path.display().to_string())
}

async fn write(worker: &mut Worker, line: &str) -> Answer {
    worker.give(line).await.expect("the worker reads");
    worker.answer().await.expect("the worker answers")
}

/// One worker writes; then the lease goes to another one without a word to the first, which holds on to its token: its next
/// write is refused, the datastore keeps the other's, and it stops.
async fn is_fenced(job: &[&str]) {
    let stage = Stage::set(LEASE, Kind::Etcd).await.unwrap();
    let url = stage.proxy.url(FILE);
    let job = [job, &[&*url]].concat();
    // It is not told of the loss, like one that is frozen.
    let ignorant = lease(&stage, &["--on-lost", "ignore"], &job);
    let mut old = Worker::start("old", ignorant).unwrap();
    let first = old.started().await.expect("the first holder starts").token;
    let answer = write(&mut old, "first").await;
    assert!(
        [200, 201, 204].contains(&answer.status),
        "{}",
        answer.response
    );
    assert_eq!(answer.header("X-Fence-Outcome"), Some("answered"));

    let mut new = Worker::start("new", lease(&stage, &["--steal"], &job)).unwrap();
    let second = new.started().await.expect("the second holder starts").token;
    assert!(second > first);
    assert!(write(&mut new, "second").await.status < 300);

    let late = write(&mut old, "late").await;
    assert_eq!(late.status, 412, "{}", late.response);
    assert_eq!(late.header("X-Fence-Outcome"), Some("refused"));
    assert!(late.body().contains("stale-token"), "{}", late.response);
    assert_eq!(old.ended().await.unwrap().code(), Some(76), "it went on");
    assert_eq!(stage.fenced.read(FILE).unwrap().trim_end(), "second");
    assert!(new.finish().await.unwrap().success());
}

#[tokio::test]
async fn a_worker_with_pythons_requests() {
    let Some(python) = python() else { return };
    let worker = example("python/requests_worker.py").display().to_string();
    is_fenced(&[&python, &worker]).await;
}

#[tokio::test]
async fn a_worker_in_node() {
    if is_installed("node", "--version") {
        let worker = example("node/worker.mjs").display().to_string();
        is_fenced(&["node", &worker]).await;
    }
}

#[tokio::test]
async fn a_worker_in_go() {
    if is_installed("go", "version") {
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("worker").display().to_string();
        let made = Command::new("go")
            .args(["build", "-o", &built])
            .arg(example("go/worker.go"))
            .env("GOCACHE", folder.path().join("cache"))
            .env("GO111MODULE", "off")
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        is_fenced(&[&built]).await;
    }
}

/// The line of a crontab, by the shell and with the environment that cron gives it.
async fn by_shell(stage: &Stage, script: &str, environment: &[(&str, String)]) -> Output {
    let script = script.replace(
        "http://127.0.0.1:8080",
        stage.proxy.url("").trim_end_matches('/'),
    );
    let lease = program("palisade-lease");
    let folder = lease.parent().unwrap().display().to_string();
    let script = script.replace("/usr/bin/palisade-lease", &lease.display().to_string());
    let mut command = tokio::process::Command::new("/bin/sh");
    command
        .args(["-c", &script])
        .env_clear()
        .env("HOME", "/")
        .env("PATH", format!("{folder}:/usr/bin:/bin"))
        .envs(environment.iter().map(|(name, value)| (name, value)));
    // What is left behind is found by this.
    if let Some(mark) = std::env::var_os("PALISADE_TEST_RUN") {
        command.env("PALISADE_TEST_RUN", mark);
    }
    command.output().await.unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{:?} {}{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test]
async fn a_line_of_crontab() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.unwrap();
    let crontab = fs::read_to_string(example("cron/nightly-report")).unwrap();
    let line = crontab
        .lines()
        .find(|line| line.contains("palisade-lease run"))
        .unwrap();
    // Five fields of time and the user, then the command.
    let command = line.splitn(7, ' ').nth(6).unwrap();
    assert!(!command.contains('%'), "cron ends a command at a %");
    let leases = [("PALISADE_LEASES", etcd(&stage).url())];
    let ran = by_shell(&stage, command, &leases).await;
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert_eq!(said(&ran), "Some(0) ", "cron mails what is said");
    let written = stage.fenced.read(FILE).unwrap();
    assert!(!written.is_empty());
    // Another host has it: this one says nothing of it but that, and fails nothing.
    let mut other = Worker::start(
        "other",
        lease(
            &stage,
            &[],
            &[
                "sh",
                "-c",
                "echo worker: process $$ has the lease, token $FENCE_TOKEN; cat",
            ],
        ),
    )
    .unwrap();
    other.started().await.unwrap();
    let ran = by_shell(&stage, command, &leases).await;
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert_eq!(stage.fenced.read(FILE).unwrap(), written);
    assert!(other.finish().await.unwrap().success());
}

#[tokio::test]
async fn a_systemd_timers_service() {
    let stage = Stage::set(LEASE, Kind::Etcd).await.unwrap();
    let unit = fs::read_to_string(example("systemd/nightly-report.service")).unwrap();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    // What systemd makes of it (systemd.service(5), "Command lines").
    let command = start.replace("$$", "$");
    let ran = by_shell(&stage, &command, &[("PALISADE_LEASES", etcd(&stage).url())]).await;
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert_eq!(stage.fenced.read(FILE).unwrap(), "report");
}

/// `systemd-analyze verify`, where it is installed, with the program at the place where it is.
#[test]
fn the_units_are_valid() {
    if !is_installed("systemd-analyze", "--version") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let service = fs::read_to_string(example("systemd/nightly-report.service")).unwrap();
    let program = program("palisade-lease").display().to_string();
    let service = service.replace("/usr/bin/palisade-lease", &program);
    fs::write(at("nightly-report.service"), service).unwrap();
    fs::copy(
        example("systemd/nightly-report.timer"),
        at("nightly-report.timer"),
    )
    .unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args([at("nightly-report.service"), at("nightly-report.timer")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success(), "{said}");
    assert!(!said.contains("nightly-report"), "{said}");
}

/// The CronJob's command and arguments are what `palisade-lease` takes, and do what they say.
#[tokio::test]
async fn a_kubernetes_cron_jobs_command() {
    let Some(python) = python() else { return };
    let stage = Stage::set(LEASE, Kind::Etcd).await.unwrap();
    let read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let read = Command::new(python)
        .args(["-c", read])
        .arg(example("kubernetes/cronjob.yaml"))
        .output()
        .unwrap();
    let job: serde_json::Value = serde_json::from_slice(&read.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&read.stderr)));
    assert_eq!(
        (&job["apiVersion"], &job["kind"]),
        (&"batch/v1".into(), &"CronJob".into())
    );
    let container = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    let words = |key: &str| -> Vec<String> {
        let words = container[key].as_array().unwrap().iter();
        words
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let command = [words("command"), words("args")].concat();
    assert_eq!(command[0], "palisade-lease");
    let ran = tokio::process::Command::new(program("palisade-lease"))
        .args(&command[1..])
        .env("PALISADE_LEASES", etcd(&stage).url())
        .env("STORE", stage.proxy.url("").trim_end_matches('/'))
        .output()
        .await
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert_eq!(stage.fenced.read(FILE).unwrap(), "report");
}
