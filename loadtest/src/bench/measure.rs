//! What a process costs, by the kernel's own accounts.

use nix::unistd::Pid;
use std::{
    fs, io,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A process and those below it.
fn family(pid: Pid) -> Vec<i32> {
    let mut family = vec![pid.as_raw()];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        family.extend(
            children
                .split_whitespace()
                .filter_map(|child| child.parse::<i32>().ok()),
        );
        next += 1;
    }
    family
}

/// errno(3), as a task that has ended answers it.
const ENOENT: i32 = nix::errno::Errno::ENOENT as i32;
const ESRCH: i32 = nix::errno::Errno::ESRCH as i32;

/// The time that all threads of a process and those below it have run on a processor, in user and kernel mode
/// (`/proc/PID/task/TID/schedstat`, first field, in nanoseconds; the kernel's `sched-stats.rst`).
///
/// # Errors
/// If the kernel does not say.
pub fn cpu(pid: Pid) -> io::Result<Duration> {
    let mut nanos = 0;
    for process in family(pid) {
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            nanos += match ran(&task?.path()) {
                // It has ended since it was listed.
                Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ESRCH)) => 0,
                ran => ran?,
            };
        }
    }
    Ok(Duration::from_nanos(nanos))
}

fn ran(task: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other("a schedstat without numbers"))
}

/// The memory of a process and those below it, shared pages in proportion (`Pss`, proc(5)), in bytes.
///
/// # Errors
/// If the kernel does not say.
pub fn memory(pid: Pid) -> io::Result<u64> {
    let mut kib = 0;
    for process in family(pid) {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib += number.unwrap_or(0);
    }
    Ok(kib * 1024)
}

/// Counts system calls with strace(1), while it lives.
#[derive(Debug)]
pub struct Syscalls(Child);

impl Syscalls {
    /// Begins to count; gives it once strace is attached.
    ///
    /// # Errors
    /// If strace can't be run.
    pub fn count(pid: Pid) -> io::Result<Self> {
        let mut command = Command::new("strace");
        command.args(["-c", "-f"]);
        for process in family(pid) {
            command.args(["-p", &process.to_string()]);
        }
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let strace = child.id() as i32;
        crate::servers::wait_for("strace to be attached", || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status
                .lines()
                .any(|line| line == format!("TracerPid:\t{strace}"))
                .then_some(())
        });
        Ok(Self(child))
    }

    /// Ends, and gives how many there were in all, and how many of them were waits.
    ///
    /// # Errors
    /// If strace did not say.
    pub fn end(self) -> io::Result<(u64, u64)> {
        nix::sys::signal::kill(
            Pid::from_raw(self.0.id() as i32),
            nix::sys::signal::Signal::SIGINT,
        )?;
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let all = calls(&text, "total");
        let all = all.ok_or_else(|| io::Error::other(format!("strace said: {text}")))?;
        let waits = ["epoll_wait", "epoll_pwait"].map(|name| calls(&text, name).unwrap_or(0));
        Ok((all, waits.iter().sum()))
    }
}

/// The calls in one line of strace's table: `100.00 0.12 3 4567 12 total`.
fn calls(table: &str, name: &str) -> Option<u64> {
    let line = table
        .lines()
        .rev()
        .find(|line| line.split_whitespace().last() == Some(name))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_costs_is_known_and_grows() {
        let before = cpu(Pid::this()).unwrap();
        crate::servers::wait_for("some time on a processor", || {
            (cpu(Pid::this()).unwrap() > before).then_some(())
        });
        assert!(memory(Pid::this()).unwrap() > 100_000);
    }

    #[test]
    fn the_calls_of_straces_table() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n 60.00    0.1  1  4000  2 writev\n100.00    0.120000           3      4567        12 total\n";
        assert_eq!(calls(table, "total"), Some(4567));
        assert_eq!(calls(table, "writev"), Some(4000));
        assert_eq!(calls(table, "epoll_wait"), None);
        assert_eq!(calls("nothing", "total"), None);
    }
}
