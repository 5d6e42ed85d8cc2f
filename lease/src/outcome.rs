//! How a run ended: exit code, result file, and the line for people. Every exit code is made here.

use palisade_lease::{AcquireError, FencingToken};
use serde_json::json;
use std::{path::Path, process::ExitCode};

/// EX_USAGE of `sysexits.h`.
pub(crate) const USAGE: u8 = 64;
/// EX_UNAVAILABLE: the lease store can't be reached.
pub(crate) const UNREACHABLE: u8 = 69;
/// EX_OSERR.
const SYSTEM: u8 = 71;
/// The lease was lost while CMD ran.
const LOST: u8 = 76;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// CMD ran and ended, with this code, while the lease was held.
    Ended(i32),
    /// The lease was lost while CMD ran.
    Lost { exit: Option<i32>, reason: String },
    /// Somebody else holds it.
    HeldElsewhere { reason: String, code: u8 },
    /// The lease store can't be reached or refuses.
    Unreachable(String),
    /// CMD could not be executed.
    NotExecuted { code: u8, reason: String },
    /// A signal asked for an end before CMD was started.
    Cancelled(i32),
    /// The command line is wrong.
    Usage(String),
    /// The system refuses something that is needed.
    System(String),
}

impl Outcome {
    pub(crate) fn from_refusal(error: &AcquireError, conflict: u8) -> Self {
        let reason = error.to_string();
        match error {
            AcquireError::Held(_) => Self::HeldElsewhere {
                reason,
                code: conflict,
            },
            AcquireError::Store(_) => Self::Unreachable(reason),
            AcquireError::Name(_) | AcquireError::Options(_) => Self::Usage(reason),
        }
    }

    /// The program's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Ended(code) => u8::try_from(*code).unwrap_or(u8::MAX),
            Self::Lost { .. } => LOST,
            Self::HeldElsewhere { code, .. } | Self::NotExecuted { code, .. } => *code,
            Self::Unreachable(_) => UNREACHABLE,
            Self::Cancelled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::Usage(_) => USAGE,
            Self::System(_) => SYSTEM,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Ended(_) => "ended",
            Self::Lost { .. } => "lost",
            Self::HeldElsewhere { .. } => "held-elsewhere",
            Self::Unreachable(_) => "unreachable",
            Self::NotExecuted { .. } => "not-executed",
            Self::Cancelled(_) => "cancelled",
            Self::Usage(_) => "usage",
            Self::System(_) => "system",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Ended(_) | Self::Cancelled(_) => None,
            Self::Lost { reason, .. }
            | Self::HeldElsewhere { reason, .. }
            | Self::NotExecuted { reason, .. }
            | Self::Unreachable(reason)
            | Self::Usage(reason)
            | Self::System(reason) => Some(reason),
        }
    }

    fn job_exit(&self) -> Option<i32> {
        match self {
            Self::Ended(code) => Some(*code),
            Self::Lost { exit, .. } => *exit,
            _ => None,
        }
    }

    /// `--result-file`. Written beside it and renamed, so that a reader never sees half of it.
    pub(crate) fn write(&self, path: &Path, token: Option<FencingToken>) -> std::io::Result<()> {
        let result = json!({
            "outcome": self.word(),
            "token": token.map(FencingToken::get),
            "exit": self.job_exit(),
            "reason": self.reason(),
        });
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        std::fs::write(&beside, format!("{result}\n"))?;
        std::fs::rename(&beside, path)
    }

    /// Says on stderr what went wrong, if anything did, and gives the exit code.
    pub(crate) fn finish(&self) -> ExitCode {
        if let Some(reason) = self.reason() {
            say(reason);
        }
        ExitCode::from(self.code())
    }
}

/// One line on stderr.
#[expect(clippy::print_stderr, reason = "what the program has to say to people")]
pub(crate) fn say(line: &str) {
    eprintln!("palisade-lease: {line}");
}
