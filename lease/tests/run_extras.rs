//! `palisade-lease run` with `--announce` and `--metrics`, and with the leases in a file.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod common;

use common::{Place, command};
use palisade_lease::{FencingToken, LeaseName, LeaseOptions, sqlite};
use palisade_loadtest::{
    origin::{Origin, Step},
    servers::{Process, exchange, free_port, wait_for},
};
use std::{fs, path::Path, process::Stdio, time::Duration};

fn code(place: &Place, arguments: &[&str]) -> i32 {
    command(&place.url(), arguments)
        .output()
        .unwrap()
        .status
        .code()
        .unwrap()
}

fn answer(status: u16, outcome: Option<&str>) -> Vec<Step> {
    let headers = outcome
        .map(|word| format!("X-Fence-Outcome: {word}"))
        .into_iter()
        .collect();
    vec![Step::AnswerWith(
        status,
        headers,
        b"{\"detail\":\"because\"}".to_vec(),
    )]
}

/// What the proxy may say to the announcement, and what becomes of the job.
#[test]
fn the_job_starts_only_once_the_announcement_is_answered() {
    let place = Place::sqlite();
    for (number, (steps, expected)) in [
        (answer(404, Some("answered")), 0),
        (answer(412, Some("refused")), 76),
        (answer(403, Some("refused")), 69),
        // Not a fencing proxy.
        (answer(200, None), 69),
    ]
    .into_iter()
    .enumerate()
    {
        let origin = Origin::tcp().unwrap();
        // At first it is busy with a handover.
        origin.always("/x", steps);
        origin.once("/x", answer(503, Some("refused")));
        let name = format!("a{number}");
        let url = format!("http://{}/x", origin.address());
        assert_eq!(
            code(&place, &["run", "--announce", &url, &name, "true"]),
            expected,
            "{number}"
        );
        let seen = origin.arrivals_at("/x").len();
        assert_eq!(
            seen, 2,
            "asked again after the 503, and not after the answer"
        );
        // Given back in each case.
        assert_eq!(code(&place, &["run", "-n", &name, "true"]), 0);
    }
    let nobody = format!("http://127.0.0.1:{}/", free_port().unwrap());
    let away = [
        "run",
        "--patience",
        "500ms",
        "--announce",
        &nobody,
        "a",
        "true",
    ];
    assert_eq!(code(&place, &away), 69);
}

#[test]
fn metrics_tell_of_the_lease() {
    let place = Place::sqlite();
    let port = free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let mut job = command(
        &place.url(),
        &["run", "--metrics", &address, "a", "sleep", "600"],
    );
    let _job = Process::start("palisade-lease", job.stderr(Stdio::null())).unwrap();
    let address = address.parse().unwrap();
    let text = wait_for("the lease to be held", || {
        let text = exchange(address, b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        text.contains("palisade_lease_held{lease=\"a\"} 1")
            .then_some(text)
    });
    for expected in [
        "# HELP palisade_lease_remaining_seconds",
        "palisade_lease_remaining_seconds{lease=\"a\"} 1",
        "palisade_lease_heartbeat_failures_total 0",
        "palisade_lease_lost_total{reason=\"expired\"} 0",
        "palisade_lease_lost_total{reason=\"taken\"} 0",
        "palisade_lease_acquire_duration_seconds_bucket",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let other = exchange(address, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert!(other.contains("404"), "{other}");
}

/// Many processes on one file: never two at a time.
#[test]
fn processes_on_one_file_take_turns() {
    let place = Place::sqlite();
    let Place::Sqlite(folder) = &place else {
        unreachable!()
    };
    let (log, busy) = (folder.path().join("log"), folder.path().join("busy"));
    // `mkdir` fails if it is there: two jobs at a time would show.
    let job = format!(
        "mkdir {busy} || echo overlap >> {log}; echo $FENCE_TOKEN >> {log}; rmdir {busy}",
        busy = busy.display(),
        log = log.display()
    );
    let mut all: Vec<Process> = (0..20)
        .map(|_| {
            Process::start(
                "run",
                &mut command(&place.url(), &["run", "a", "sh", "-c", &job]),
            )
            .unwrap()
        })
        .collect();
    for process in &mut all {
        assert_eq!(process.wait().code(), Some(0));
    }
    let text = fs::read_to_string(log).unwrap();
    let tokens: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

fn file(place: &Place) -> std::path::PathBuf {
    Path::new(place.url().strip_prefix("sqlite:").unwrap()).to_owned()
}

/// What the proxy reads from the same file.
#[tokio::test]
async fn the_proxys_reader_sees_grants_and_only_live_ones() {
    let place = Place::sqlite();
    let (path, name) = (file(&place), "a".parse::<LeaseName>().unwrap());
    assert!(sqlite::read_grant(&path, &name).is_err(), "no file yet");
    let store = place.open();
    assert_eq!(sqlite::read_grant(&path, &name).unwrap().0, None);
    let lease = store.acquire("a", LeaseOptions::default()).await.unwrap();
    let (grant, revision) = sqlite::read_grant(&path, &name).unwrap();
    assert_eq!(grant, Some(lease.token()));
    assert!(revision >= lease.token().get());
    // Of another boot, the row is no holder.
    let database = rusqlite::Connection::open(&path).unwrap();
    database
        .execute("UPDATE sessions SET boot = 'another'", [])
        .unwrap();
    let (grant, later) = sqlite::read_grant(&path, &name).unwrap();
    assert_eq!((grant, later), (None, revision));
    // The holder is told at its next keep-alive, and the next one gets a larger token.
    let next = place
        .open()
        .acquire("a", LeaseOptions::default())
        .await
        .unwrap();
    assert!(next.token() > lease.token());
    // One that has run out is none either.
    database
        .execute("UPDATE sessions SET deadline = 1", [])
        .unwrap();
    assert_eq!(sqlite::read_grant(&path, &name).unwrap().0, None);
}

/// The revision never goes back, whatever rows are deleted.
#[tokio::test]
async fn the_revision_never_goes_back() {
    let place = Place::sqlite();
    let store = place.open();
    let lease = store.acquire("a", LeaseOptions::default()).await.unwrap();
    let token = lease.token();
    lease.release().await;
    let database = rusqlite::Connection::open(file(&place)).unwrap();
    for deleted in ["leases", "waiters", "sessions"] {
        database
            .execute(&format!("DELETE FROM {deleted}"), [])
            .unwrap();
    }
    for wrong in [
        "DELETE FROM store",
        "UPDATE store SET revision = 0",
        "UPDATE store SET id = 'x'",
    ] {
        assert!(database.execute(wrong, []).is_err(), "{wrong}");
    }
    let next: FencingToken = place
        .open()
        .acquire("a", LeaseOptions::default())
        .await
        .unwrap()
        .token();
    assert!(next > token);
}

/// A file that is deleted under its users is another store: they stop, and none grants beside the new one.
#[tokio::test]
async fn a_deleted_file_is_noticed() {
    let place = Place::sqlite();
    let store = place.open();
    let lease = store
        .acquire("a", LeaseOptions::with_ttl(Duration::from_secs(5)))
        .await
        .unwrap();
    fs::remove_file(file(&place)).unwrap();
    lease.lost().await;
    assert!(store.acquire("b", LeaseOptions::default()).await.is_err());
}
