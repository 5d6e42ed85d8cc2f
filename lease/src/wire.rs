//! What the program and the supervisor between it and the job tell each other: lines of text over two pipes. A line is
//! shorter than PIPE_BUF, so it arrives whole (`pipe(7)`).

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use palisade_fence::Time;
use std::{
    fmt,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::fs::OpenOptionsExt,
    },
};

/// From the program to the supervisor. The end of the pipe means that the program is gone: kill everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// SIGTERM and SIGKILL are due at these moments unless later ones come.
    Deadline { term: Time, kill: Time },
    /// End the job now: this signal, and SIGKILL at that moment, whatever deadlines come.
    End { signal: i32, kill: Time },
    /// Pass a signal on to the job's process group.
    Pass(i32),
    /// Go on after a stop; with the terminal if `true`.
    Continue(bool),
}

/// From the supervisor, or from the process that is about to become the job, to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command could not be executed, with this `errno`.
    NotExecuted(i32),
    /// The job was stopped by the terminal.
    Stopped,
    /// Asked to end because the deadline came near.
    Terminated,
    /// Killed because the deadline was there.
    Killed,
    /// The command ended, with this exit code.
    Ended(i32),
    /// No process of it is left.
    Gone,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline { term, kill } => {
                writeln!(f, "deadline {} {}", term.as_nanos(), kill.as_nanos())
            }
            Self::End { signal, kill } => writeln!(f, "end {signal} {}", kill.as_nanos()),
            Self::Pass(signal) => writeln!(f, "pass {signal}"),
            Self::Continue(terminal) => writeln!(f, "continue {}", u8::from(*terminal)),
        }
    }
}

impl Order {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(match word {
            "deadline" => Self::Deadline {
                term: Time::from_nanos(number()?),
                kill: Time::from_nanos(number()?),
            },
            "end" => Self::End {
                signal: number()? as i32,
                kill: Time::from_nanos(number()?),
            },
            "pass" => Self::Pass(number()? as i32),
            "continue" => Self::Continue(number()? != 0),
            _ => return None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExecuted(errno) => writeln!(f, "not-executed {errno}"),
            Self::Stopped => writeln!(f, "stopped"),
            Self::Terminated => writeln!(f, "terminated"),
            Self::Killed => writeln!(f, "killed"),
            Self::Ended(code) => writeln!(f, "ended {code}"),
            Self::Gone => writeln!(f, "gone"),
        }
    }
}

impl Report {
    fn parse(line: &str) -> Option<Self> {
        let (word, number) = line.split_once(' ').unwrap_or((line, ""));
        let number = number.parse().ok();
        Some(match word {
            "not-executed" => Self::NotExecuted(number?),
            "stopped" => Self::Stopped,
            "terminated" => Self::Terminated,
            "killed" => Self::Killed,
            "ended" => Self::Ended(number?),
            "gone" => Self::Gone,
            _ => return None,
        })
    }
}

/// Puts lines together from what a pipe gives.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Adds bytes; gives the whole lines that there are now.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.0.drain(..=end).collect();
        String::from_utf8_lossy(&whole)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Adds bytes; gives the orders that are complete now.
    pub(crate) fn orders(&mut self, bytes: &[u8]) -> Vec<Order> {
        self.push(bytes)
            .iter()
            .filter_map(|line| Order::parse(line))
            .collect()
    }

    /// Adds bytes; gives the reports that are complete now.
    pub(crate) fn reports(&mut self, bytes: &[u8]) -> Vec<Report> {
        self.push(bytes)
            .iter()
            .filter_map(|line| Report::parse(line))
            .collect()
    }
}

/// Reads once from a pipe; 0 is its end, `WouldBlock` that there is nothing now.
pub(crate) fn read_some(mut pipe: &File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match pipe.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes a whole line; a reader that is gone is noticed elsewhere.
pub(crate) fn write_line(mut pipe: &File, line: impl fmt::Display) {
    let _ = pipe.write_all(line.to_string().as_bytes());
}

/// Takes over a pipe end that a parent left open under this number: opened anew, closed on exec, and the inherited number
/// is closed. A number is not a descriptor that one owns, hence the way through `/proc` (`proc(5)`, `/proc/self/fd`).
pub(crate) fn take_over(number: RawFd, write: bool) -> io::Result<File> {
    // Without O_NONBLOCK, opening would wait for the other end if that were gone (`fifo(7)`).
    let file = File::options()
        .read(!write)
        .write(write)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(format!("/proc/self/fd/{number}"))?;
    nix::unistd::close(number)?;
    Ok(file)
}

/// Lets the next program that is started inherit this descriptor; gives its number.
pub(crate) fn inherit(fd: &OwnedFd) -> io::Result<RawFd> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_whole_however_they_were_cut() {
        let orders = [
            Order::Deadline {
                term: Time::from_nanos(1),
                kill: Time::NEVER,
            },
            Order::End {
                signal: 15,
                kill: Time::from_nanos(9),
            },
            Order::Pass(10),
            Order::Continue(true),
        ];
        let text: String = orders.iter().map(ToString::to_string).collect();
        for step in 1..text.len() {
            let mut lines = Lines::default();
            let found: Vec<Order> = text
                .as_bytes()
                .chunks(step)
                .flat_map(|c| lines.orders(c))
                .collect();
            assert_eq!(found, orders, "in pieces of {step}");
        }
        let reports = [
            Report::NotExecuted(2),
            Report::Stopped,
            Report::Terminated,
            Report::Killed,
            Report::Ended(143),
            Report::Gone,
        ];
        let text: String = reports.iter().map(ToString::to_string).collect();
        assert_eq!(Lines::default().reports(text.as_bytes()), reports);
    }
}
