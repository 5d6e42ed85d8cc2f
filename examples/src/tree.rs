//! Processes with all their descendants: to freeze a worker as a paused machine would, and to leave nothing behind.

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use palisade_loadtest::servers::wait_for;
use std::fs;

/// Stops a process and all its descendants, and returns once every one of them stands still.
pub fn freeze(root: Pid) -> Vec<Pid> {
    reach(root, Signal::SIGSTOP, stands_still)
}

/// Lets processes go on, in this order. One that has ended is no error.
pub fn wake(pids: &[Pid]) {
    for &pid in pids {
        let _ = kill(pid, Signal::SIGCONT);
    }
}

/// Kills a process and all its descendants, stopped ones too.
pub fn fell(root: Pid) {
    // Stopped first, so that none of them starts another one while it is being looked for.
    let all = freeze(root);
    for pid in all {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

/// Sends a signal to the process and then to its descendants, waiting for each until `done` says that it arrived.
fn reach(root: Pid, signal: Signal, done: fn(Pid) -> bool) -> Vec<Pid> {
    let mut reached = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        if kill(pid, signal) != Err(Errno::ESRCH) {
            wait_for("a process to stand still", || done(pid).then_some(()));
        }
        reached.push(pid);
        // Its children are final now: it can't start more of them.
        next.extend(children(pid));
    }
    reached
}

/// The processes whose parent this is.
fn children(parent: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.parent == parent))
        .collect()
}

/// Stopped, or gone.
fn stands_still(pid: Pid) -> bool {
    Stat::of(pid).is_none_or(|stat| matches!(stat.state, 'T' | 't' | 'Z' | 'X'))
}

/// What `/proc/PID/stat` says of a process (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R` running, `S` sleeping, `T` stopped, `Z` ended but not yet waited for, …
    pub state: char,
    /// The process that started it, or has adopted it.
    pub parent: Pid,
    /// When it started, in clock ticks since boot. With the process id this names one process for as long as the
    /// machine runs: ids are used again, this pair is not.
    pub started: u64,
}

impl Stat {
    /// Of a process that exists.
    pub fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, with anything in it: the last one counts.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: Pid::from_raw(fields.get(1)?.parse().ok()?),
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    /// A shell with a child of its own, which has said its id.
    fn family() -> (Child, Pid) {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("the child's id");
        (shell, Pid::from_raw(line.trim().parse().expect("a number")))
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1";
        let stat = Stat::parse(line).expect("fields");
        assert_eq!((stat.state, stat.parent), ('S', Pid::from_raw(7)));
        assert_eq!(stat.started, 123_456);
    }

    #[test]
    fn freezes_wakes_and_fells_the_whole_family() {
        let (mut shell, child) = family();
        let root = Pid::from_raw(shell.id() as i32);
        let frozen = freeze(root);
        assert_eq!(frozen, [root, child]);
        assert!(frozen.iter().all(|&pid| stands_still(pid)));

        wake(&frozen);
        wait_for("the child to go on", || {
            (!stands_still(child)).then_some(())
        });

        fell(root);
        shell.wait().expect("the shell's end");
        wait_for("the child's end", || {
            Stat::of(child).is_none_or(|s| s.state == 'Z').then_some(())
        });
    }
}
