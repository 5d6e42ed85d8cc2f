//! What a holder or a waiter writes of itself: for people, and to know one's own grant again. Nothing is decided by it.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The value of a lease's key: JSON, written once, at the grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Made fresh for each attempt.
    pub id: String,
    /// Who holds it, as it calls itself.
    pub holder: String,
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Wall clock, RFC 3339 in UTC. Only to be read.
    pub acquired_at: String,
    /// Time to live asked for, in milliseconds.
    pub ttl_ms: u64,
}

impl Record {
    /// What this process says of itself.
    pub fn of_this_process(holder: Option<&str>, ttl: Duration) -> Self {
        let host = host();
        let pid = std::process::id();
        Self {
            id: format!("{:032x}", fastrand::u128(..)),
            holder: holder.map_or_else(|| format!("{host}:{pid}"), str::to_owned),
            host,
            pid,
            acquired_at: rfc3339(crate::clock::wall()),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// As it stands in the store.
    pub fn to_json(&self) -> String {
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what stands in the store; `None` for what somebody else wrote there.
    pub fn from_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }
}

/// This host's name.
pub fn host() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// A wall-clock time for people, in whole milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}
