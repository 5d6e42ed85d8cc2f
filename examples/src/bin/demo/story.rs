//! The story: A stalls, loses its lease, wakes up and writes.

use crate::say;
use palisade_examples::{
    stage::Stage,
    tree,
    worker::{Answer, Started, Worker},
};
use palisade_loadtest::servers::program;
use std::{
    fs::File,
    io,
    process::{Command, Stdio},
};

/// The lease that the workers compete for, and so the scope that it guards.
pub(crate) const LEASE: &str = "demo/report";
/// The same for the bare datastore. Another one, since the proxy watches its own: it would be closed to B's token of the
/// first story as soon as somebody takes that lease again.
pub(crate) const BARE_LEASE: &str = "demo/bare";
/// How long a lease lives without news of its holder. Long enough for a busy machine, short enough to wait for.
const TTL: &str = "5s";

const A_FIRST: &str = "A's first draft";
const A_LATE: &str = "A's late draft";
const B_REPORT: &str = "B's report";

/// Where a story's workers write to.
pub(crate) struct Target<'a> {
    /// The lease that guards it.
    pub(crate) lease: &'a str,
    /// The URL of the report.
    pub(crate) url: String,
    /// Reads the report past every server.
    pub(crate) report: &'a dyn Fn() -> io::Result<String>,
}

/// How a story ended.
pub(crate) struct Ending {
    /// A's token: out of date since B's grant.
    pub(crate) stale: u64,
    /// B's token.
    pub(crate) newest: u64,
    /// What came of A's late write.
    late: Answer,
    /// What the report holds at the end.
    pub(crate) report: String,
}

impl Ending {
    /// Says what is left at the end, and fails if that is not what was promised.
    pub(crate) fn tell(&self, good: bool, as_promised: bool) -> io::Result<()> {
        let fate = if good {
            "A's late write was refused, B's work is safe."
        } else {
            "A's late write was taken, B's work is destroyed."
        };
        if !as_promised {
            return Err(io::Error::other(format!(
                "promised was: {fate} Yet A was answered {} and the report holds \"{}\"",
                self.late.status,
                self.report.trim_end(),
            )));
        }
        say::ending(
            &format!("report.txt holds \"{}\": {fate}", self.report.trim_end()),
            good,
        );
        Ok(())
    }

    /// B's work is still there, A was told so, and by whom.
    pub(crate) fn is_fenced(&self) -> bool {
        self.late.status == 412
            && self.late.header("X-Fence-Outcome") == Some("refused")
            && self.late.header("X-Fence-Highest") == Some(&self.newest.to_string())
            && self
                .late
                .body()
                .contains("urn:palisade:problem:stale-token")
            && self.report.trim_end() == B_REPORT
    }

    /// A's late write went through and B's work is gone.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.late.status < 300 && self.report.trim_end() == A_LATE
    }
}

/// Plays the story against one target. Every step waits for what it needs to see, never for a time.
pub(crate) async fn play(stage: &Stage, target: &Target<'_>) -> io::Result<Ending> {
    let mut a = worker(stage, "A", target)?;
    let Started { token: stale, job } = a.started().await?;
    say::step(
        "A",
        &format!("takes the lease {} and gets token {stale}", target.lease),
    );
    write(&mut a, "A", A_FIRST, stale).await?;

    let frozen = a.freeze();
    say::step(
        "A",
        "stalls: SIGSTOP to its job and to the palisade-lease that keeps its lease, as when a machine is paused",
    );
    let waited_from = palisade_lease::clock::boot();
    let mut b = worker(stage, "B", target)?;
    say::step(
        "B",
        "wants the lease and waits in line: A can't renew it, so it will lapse",
    );
    let newest = b.started().await?.token;
    let waited = palisade_lease::clock::boot().since(waited_from);
    say::step(
        "B",
        &format!(
            "has the lease after {:.1} s and gets token {newest}",
            waited.as_secs_f64()
        ),
    );
    write(&mut b, "B", B_REPORT, newest).await?;

    // The next line of its work is there when it wakes. Its job wakes before the keeper of its lease does: in life
    // either may be first, and the fence has to hold in the worse order.
    a.give(A_LATE).await?;
    tree::wake(&[job]);
    say::step(
        "A",
        "wakes up (SIGCONT), does not know that time has passed, and goes on where it was",
    );
    let late = a.answer().await?;
    say::write("A", A_LATE, stale, &late);
    if late.status >= 300 {
        say::refusal(&late);
    }

    tree::wake(&frozen);
    let a_ended = a.ended().await?;
    say::step(
        "A",
        &format!(
            "is over: its palisade-lease woke too and found the lease lost ({})",
            exit(a_ended)
        ),
    );
    let b_ended = b.finish().await?;
    say::step(
        "B",
        &format!("is done and gives the lease back ({})", exit(b_ended)),
    );
    if a_ended.success() || !b_ended.success() {
        return Err(io::Error::other(
            "A must end with an error, and B without one",
        ));
    }
    let report = (target.report)()?;
    Ok(Ending {
        stale,
        newest,
        late,
        report,
    })
}

/// A worker under `palisade-lease run`: what a user would type.
fn worker(stage: &Stage, name: &str, target: &Target<'_>) -> io::Result<Worker> {
    let log = File::create(stage.folder().join(format!("worker-{name}.log")))?;
    let mut command = Command::new(program("palisade-lease"));
    command
        .args([
            "run",
            target.lease,
            "--ttl",
            TTL,
            "--leases",
            &stage.leases.url(),
            "--",
        ])
        .args(["sh", "-c", WORKER, "worker.sh", &target.url])
        .stderr(Stdio::from(log));
    Worker::start(name, command)
}

/// The worker's program, so that the demo runs from any folder.
const WORKER: &str = include_str!("../../../shell/worker.sh");

async fn write(worker: &mut Worker, name: &str, text: &str, token: u64) -> io::Result<()> {
    worker.give(text).await?;
    let answer = worker.answer().await?;
    say::write(name, text, token, &answer);
    if answer.status >= 300 {
        return Err(io::Error::other(format!(
            "{name}'s write was not taken:\n{}",
            answer.response
        )));
    }
    Ok(())
}

fn exit(status: std::process::ExitStatus) -> String {
    status
        .code()
        .map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}
