//! The history of a run: one JSON object a line, in the order of time. Workers, the recording datastore, the scraper and
//! whoever makes the faults all take the time from the same clock, the machine's boot-time clock, so that their lines
//! can be put in one order.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

/// The number of a request: the number of the process that sent it times [`REQUESTS`], plus a count.
pub type RequestId = u64;

/// How many requests a process can number.
pub const REQUESTS: u64 = 10_000_000;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds since the start of the run.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// The first line: what was run.
    Start {
        /// The seed of the faults.
        seed: u64,
        /// What stood before the datastore.
        proxy: String,
        /// After the faults have stopped, each scope's holder succeeds within this many milliseconds.
        recovers_within_ms: u64,
        /// The scopes.
        scopes: Vec<String>,
        /// The command that runs the same again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<String>,
    },
    /// A process has been granted a lease, and has not used the token yet.
    Granted {
        /// The lease's name, and the scope's.
        scope: String,
        /// The token.
        token: u64,
        /// The number of the worker process.
        process: u64,
    },
    /// A process is about to send a request.
    Invoke {
        /// The request.
        id: RequestId,
        /// The scope that it is for.
        scope: String,
        /// The token that it carries.
        token: u64,
        /// A write or a read.
        kind: Kind,
        /// The number of the worker process.
        process: u64,
    },
    /// The datastore's own answer came back.
    Answered {
        /// The request.
        id: RequestId,
        /// Its HTTP status.
        status: u16,
        /// For a read: how many writes had been applied in the scope when it was served.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<u64>,
    },
    /// The proxy said that the request was never forwarded, and never will be.
    Refused {
        /// The request.
        id: RequestId,
        /// Its HTTP status.
        status: u16,
        /// The last part of the problem's type.
        reason: String,
    },
    /// The request may or may not have been applied: the proxy said so, or nothing came back.
    Unknown {
        /// The request.
        id: RequestId,
        /// Why.
        why: String,
    },
    /// The datastore has read a request to its end.
    Arrived {
        /// The request.
        id: RequestId,
    },
    /// The datastore has applied a write.
    Applied {
        /// The request.
        id: RequestId,
        /// The scope.
        scope: String,
        /// The token that it carried; 0 for none.
        token: u64,
        /// The how manieth write of the scope, from 1.
        position: u64,
        /// The number of the proxy that it came through, from 1.
        #[serde(default = "first")]
        proxy: u64,
    },
    /// What a proxy says is the scope's floor, or will be once a raise that is under way is done.
    Floor {
        /// The scope.
        scope: String,
        /// The floor.
        floor: u64,
        /// The number of the proxy, from 1. Each of several replicas has its own floors.
        #[serde(default = "first")]
        proxy: u64,
        /// Whether it has opened. Until then nothing was let in by it, and a crash may take it back.
        #[serde(default = "opened")]
        open: bool,
    },
    /// A proxy says that it does not trust the lease store any more: it lets nothing in.
    Frozen {
        /// The number of the proxy.
        proxy: u64,
    },
    /// An operator has begun a new epoch at a proxy.
    Epoch {
        /// The number of the proxy.
        proxy: u64,
        /// Every smaller token is of the time before.
        floor: u64,
    },
    /// A process has found its wall clock away from where it was, by its other clocks.
    Jumped {
        /// The number of the worker process.
        process: u64,
        /// By how many seconds.
        seconds: i64,
    },
    /// A fault begins or ends.
    Fault {
        /// Its name.
        name: String,
        /// Whom it hits.
        target: String,
        /// Whether it begins.
        begins: bool,
    },
    /// All faults have stopped, and all processes run.
    Calm,
    /// The last line.
    End,
}

/// The proxy of a history that does not tell them apart.
fn first() -> u64 {
    1
}

/// The floors of a history that does not say.
fn opened() -> bool {
    true
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Changes the datastore.
    Write,
    /// A read that carries a token.
    Read,
}

/// Reads a history; each event with the number of its line, from 1.
pub fn read(from: impl BufRead) -> impl Iterator<Item = io::Result<(u64, Event)>> {
    from.lines().zip(1..).map(|(line, number)| {
        let line = line?;
        let event = serde_json::from_str(&line).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {number}: {error}"),
            )
        })?;
        Ok((number, event))
    })
}

/// Writes a history, in the order of time.
///
/// # Errors
/// If it can't be written.
pub fn write(mut events: Vec<Event>, to: &mut impl Write) -> io::Result<()> {
    // Stable: what one process did in the same nanosecond keeps its order.
    events.sort_by_key(|event| event.at);
    for event in &events {
        serde_json::to_writer(&mut *to, event)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}
