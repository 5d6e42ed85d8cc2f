//! The job, as the program sees it: a supervisor to give orders to, which reports.

use crate::{
    supervise::{OWN_PROGRAM, Plan, SUPERVISE},
    wire::{Lines, Order, Report, inherit, write_line},
};
use nix::{
    fcntl::OFlag,
    unistd::{getpgrp, getpid, pipe2, tcgetpgrp},
};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    time::Duration,
};
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};

/// What is set in the job's environment.
pub(crate) type Variables = Vec<(String, String)>;

pub(crate) struct Job {
    supervisor: Child,
    orders: File,
    /// Where the command waits for its environment; closed without a word, it ends.
    go: Option<File>,
    reports: Receiver,
    lines: Lines,
    ready: VecDeque<Report>,
    /// Whether the job has the terminal.
    pub(crate) terminal: bool,
}

impl Job {
    /// Starts the supervisor and, below it, the process that will become the command: all that takes time is done while the lease
    /// is waited for. Dropped before [`Job::go`], both end.
    pub(crate) fn prepare(command: &[OsString], grace: Duration) -> io::Result<Self> {
        let (orders_read, orders) = pipe2(OFlag::O_CLOEXEC)?;
        let (reports, reports_write) = pipe2(OFlag::O_CLOEXEC)?;
        let (go_read, go) = pipe2(OFlag::O_CLOEXEC)?;
        let plan = Plan {
            orders: inherit(&orders_read)?,
            reports: inherit(&reports_write)?,
            go: inherit(&go_read)?,
            program: getpid(),
            terminal: has_terminal(),
            grace,
            command: command.to_vec(),
        };
        // Should the supervisor be killed, its orphans come here. A process group of its own, so that a SIGKILL to the
        // program's whole group leaves somebody who ends the job.
        nix::sys::prctl::set_child_subreaper(true)?;
        let supervisor = Command::new(OWN_PROGRAM)
            .args(plan.to_args(SUPERVISE))
            .process_group(0)
            .spawn()?;
        Ok(Self {
            supervisor,
            orders: File::from(orders),
            go: Some(File::from(go)),
            reports: Receiver::from_owned_fd(reports)?,
            lines: Lines::default(),
            ready: VecDeque::new(),
            terminal: plan.terminal,
        })
    }

    /// Starts the command, with a first order waiting for the supervisor.
    pub(crate) fn go(&mut self, variables: &Variables, first: Option<Order>) -> io::Result<()> {
        if let Some(order) = first {
            self.order(order);
        }
        let go = self.go.take().ok_or(io::ErrorKind::BrokenPipe)?;
        serde_json::to_writer(go, variables).map_err(io::Error::from)
    }

    /// Tells the supervisor something.
    pub(crate) fn order(&self, order: Order) {
        write_line(&self.orders, order);
    }

    /// The next report; `None` when there will be none: the supervisor is gone. Dropping the future loses nothing.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        loop {
            if let Some(report) = self.ready.pop_front() {
                return Some(report);
            }
            let mut buffer = [0; 1024];
            match self.reports.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.ready.extend(self.lines.reports(&buffer[..count])),
            }
        }
    }

    /// Waits for the supervisor's own end, which is near.
    pub(crate) fn reap(mut self) {
        let _ = self.supervisor.wait();
    }
}

/// Whether this process is in the foreground of a terminal that is its standard input.
pub(crate) fn has_terminal() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}
