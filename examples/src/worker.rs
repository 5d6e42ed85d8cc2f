//! A worker under a lease, as a test or the demo holds it: it is given lines to write, says what the store answered,
//! and can be frozen and woken.

use crate::tree;
use nix::unistd::Pid;
use std::{
    io,
    process::{ExitStatus, Stdio},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// A running worker that speaks as `examples/shell/worker.sh` and `examples/python/worker.py` do: its own words start
/// with `worker: `, and everything else is what the store answered.
///
/// Killed with all its descendants when dropped.
#[derive(Debug)]
pub struct Worker {
    name: String,
    child: Child,
    root: Pid,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

/// What a worker says when it has its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The token of its lease.
    pub token: u64,
    /// The job's own process, below the one that keeps the lease.
    pub job: Pid,
}

/// What came of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The response as it came: status line, headers, an empty line, body.
    pub response: String,
}

impl Answer {
    /// A header's value; its name is looked for without regard to case (RFC 9110, 5.1).
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.response.lines().take_while(|line| !line.is_empty());
        lines.find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// What follows the head.
    pub fn body(&self) -> &str {
        self.response
            .split_once("\n\n")
            .map_or("", |(_, body)| body)
    }
}

impl Worker {
    /// Starts it. In a process group of its own, so that Ctrl-C on a terminal reaches whoever drives it and not the
    /// worker itself.
    ///
    /// # Errors
    /// If the program can't be started.
    pub fn start(name: &str, command: std::process::Command) -> io::Result<Self> {
        let mut command = Command::from(command);
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a pipe of the worker is missing");
        let root = child.id().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        Ok(Self {
            name: name.to_owned(),
            root: Pid::from_raw(root as i32),
            input: child.stdin.take(),
            output: BufReader::new(output).lines(),
            child,
        })
    }

    /// Waits until it has its lease and says so.
    ///
    /// # Errors
    /// If it ends before, or says something else.
    pub async fn started(&mut self) -> io::Result<Started> {
        let line = self.line().await?;
        parse_started(&line).ok_or_else(|| self.error(&format!("said `{line}` at its start")))
    }

    /// Gives it a line to write. It may be frozen: the line waits for it in the pipe.
    ///
    /// # Errors
    /// If it reads no more.
    pub async fn give(&mut self, line: &str) -> io::Result<()> {
        let Some(input) = &mut self.input else {
            return Err(self.error("was told already that nothing more comes"));
        };
        input.write_all(format!("{line}\n").as_bytes()).await?;
        input.flush().await
    }

    /// Waits until it has written a line, and gives what the store answered.
    ///
    /// # Errors
    /// If it ends before.
    pub async fn answer(&mut self) -> io::Result<Answer> {
        let mut response = String::new();
        loop {
            let line = self.line().await?;
            if let Some(status) = parse_answered(&line) {
                return Ok(Answer { status, response });
            }
            response.push_str(&line);
            response.push('\n');
        }
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// If it prints no more.
    pub async fn line(&mut self) -> io::Result<String> {
        let line = self.output.next_line().await?;
        line.ok_or_else(|| self.error("ended before its time"))
    }

    /// Freezes it and all its descendants; gives their ids, the keeper of the lease first.
    pub fn freeze(&self) -> Vec<Pid> {
        tree::freeze(self.root)
    }

    /// Waits for its end without telling it to end.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Tells it that nothing more comes, and waits for its end.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub async fn finish(&mut self) -> io::Result<ExitStatus> {
        self.input = None;
        self.ended().await
    }

    fn error(&self, what: &str) -> io::Error {
        io::Error::other(format!("worker {} {what}", self.name))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Only a process that was not yet waited for still has its id for sure.
        if self.child.id().is_some() {
            tree::fell(self.root);
        }
    }
}

/// `worker: process 4711 has the lease, token 17`
fn parse_started(line: &str) -> Option<Started> {
    let rest = line.strip_prefix("worker: process ")?;
    let (job, token) = rest.split_once(" has the lease, token ")?;
    Some(Started {
        token: token.parse().ok()?,
        job: Pid::from_raw(job.parse().ok()?),
    })
}

/// `worker: answered 412`
fn parse_answered(line: &str) -> Option<u16> {
    line.strip_prefix("worker: answered ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_worker_says() {
        let started = parse_started("worker: process 4711 has the lease, token 17");
        assert_eq!(
            started,
            Some(Started {
                token: 17,
                job: Pid::from_raw(4711)
            })
        );
        assert_eq!(parse_answered("worker: answered 412"), Some(412));
        assert_eq!(parse_answered("HTTP/1.1 412 Precondition Failed"), None);
    }

    #[test]
    fn takes_a_response_apart() {
        let answer = Answer {
            status: 412,
            response: "HTTP/1.1 412 Precondition Failed\nX-Fence-Highest: 9\n\n{\"a\":\n1}\n"
                .to_owned(),
        };
        assert_eq!(answer.header("x-fence-highest"), Some("9"));
        assert_eq!(answer.header("x-fence-outcome"), None);
        assert_eq!(answer.body(), "{\"a\":\n1}\n");
    }
}
