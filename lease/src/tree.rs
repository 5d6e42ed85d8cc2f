//! All processes below this one: found in `/proc`, not remembered, so that nothing which was started in the meantime or
//! has daemonized is missed. A child subreaper inherits every orphan below it (`prctl(2)`, PR_SET_CHILD_SUBREAPER), so
//! no descendant ever leaves the tree.

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};
use std::collections::HashMap;

/// Every process below this one, nearest first.
pub(crate) fn descendants() -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = vec![getpid()];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let below = children.remove(pid).unwrap_or_default();
        found.extend(below);
        at += 1;
    }
    found.remove(0);
    found
}

/// All processes with their parents.
fn processes() -> impl Iterator<Item = (Pid, Pid)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        Some((Pid::from_raw(pid), Pid::from_raw(parent(&stat)?)))
    })
}

/// The parent in a line of `/proc/PID/stat`: `pid (comm) state ppid ...`. The command may itself have `) ` in it.
fn parent(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Sends a signal to every descendant.
pub(crate) fn signal(signal: Signal) {
    for pid in descendants() {
        // One that has just ended is no error.
        let _ = kill(pid, signal);
    }
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// It ended: the exit code, 128+n for signal n.
    Ended(Pid, i32),
    /// It was stopped, by the terminal for example.
    Stopped(Pid),
    /// Some child ended, in a way that can't be told.
    Unknown,
    /// Nothing new, but children are left.
    Nothing,
    /// No child is left, and so no descendant.
    Empty,
}

/// Takes note of one child that has ended or stopped, without waiting.
pub(crate) fn reap() -> Reaped {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
    match waitpid(None, Some(flags)) {
        Ok(WaitStatus::Exited(pid, code)) => Reaped::Ended(pid, code),
        Ok(WaitStatus::Signaled(pid, signal, _)) => Reaped::Ended(pid, 128 + signal as i32),
        Ok(WaitStatus::Stopped(pid, _)) => Reaped::Stopped(pid),
        Ok(_) => Reaped::Nothing,
        Err(Errno::ECHILD) => Reaped::Empty,
        // A child that ended by a signal which the library has no name for, a real-time one.
        Err(_) => Reaped::Unknown,
    }
}

/// Takes note of all children that have ended; says whether any is left.
pub(crate) fn reap_all() -> bool {
    loop {
        match reap() {
            Reaped::Nothing => return true,
            Reaped::Empty => return false,
            Reaped::Ended(..) | Reaped::Stopped(_) | Reaped::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_of_odd_commands() {
        assert_eq!(parent(b"7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent(b"7 (a) R 1) S 3 7"), Some(3));
        assert_eq!(parent(b"7 (a\xff) S 3 7"), Some(3));
        assert_eq!(parent(b"7 sh S"), None);
    }

    #[test]
    fn a_child_is_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        assert!(descendants().contains(&Pid::from_raw(child.id() as i32)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
