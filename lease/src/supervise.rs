//! The process between the program and the job. It needs nobody: it has the deadline itself, on a timer that runs during
//! suspend, so a program that hangs, is stopped or is killed cannot keep a job alive beyond its lease.
//!
//! It ends with the job's last process. Single-threaded, no runtime.

use crate::{
    job::Variables,
    tree::{self, Reaped},
    wire::{Lines, Order, Report, read_some, take_over, write_line},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill, killpg},
        signalfd::{SfdFlags, SignalFd},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
    unistd::{Pid, getpgrp, getpid, getppid, tcsetpgrp},
};
use palisade_fence::Time;
use palisade_lease::{clock, timer};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Command, ExitCode},
    time::Duration,
};

/// The hidden first argument of the supervisor.
pub(crate) const SUPERVISE: &str = "__supervise";
/// The hidden first argument of the process that becomes the job.
pub(crate) const EXECUTE: &str = "__execute";
/// While killing, how often to look for processes that were started in the meantime.
const KILL_AGAIN: Duration = Duration::from_millis(5);
/// The program itself, even if its file has been replaced since.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// How the supervisor is called: numbers of the inherited pipe ends, the program's process, whether the job gets the
/// terminal, how long leftovers may take to end, and the command.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) orders: RawFd,
    pub(crate) reports: RawFd,
    /// Brings the command's environment, and with it the word to start.
    pub(crate) go: RawFd,
    pub(crate) program: Pid,
    pub(crate) terminal: bool,
    pub(crate) grace: Duration,
    pub(crate) command: Vec<OsString>,
}

impl Plan {
    /// As arguments.
    pub(crate) fn to_args(&self, hidden: &str) -> Vec<OsString> {
        let numbers = [
            self.orders.to_string(),
            self.reports.to_string(),
            self.go.to_string(),
            self.program.to_string(),
            u8::from(self.terminal).to_string(),
            self.grace.as_nanos().to_string(),
        ];
        let numbers = numbers.into_iter().map(OsString::from);
        [OsString::from(hidden)]
            .into_iter()
            .chain(numbers)
            .chain(self.command.iter().cloned())
            .collect()
    }

    fn from_args(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut number = || args.next()?.to_str()?.parse::<i64>().ok();
        Some(Self {
            orders: number()? as RawFd,
            reports: number()? as RawFd,
            go: number()? as RawFd,
            program: Pid::from_raw(number()? as i32),
            terminal: number()? != 0,
            grace: Duration::from_nanos(number()?.unsigned_abs()),
            command: args.collect(),
        })
    }
}

/// The hidden commands, if this is one of them.
pub(crate) fn hidden(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let first = args.nth(1)?;
    if first == SUPERVISE {
        let result = Plan::from_args(args)
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
            .and_then(supervise);
        return Some(if result.is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    if first == EXECUTE {
        return Some(Plan::from_args(args).map_or(ExitCode::FAILURE, execute));
    }
    None
}

/// Becomes the job, once it is told to: dies with the supervisor, takes the terminal, gets back the signals that were blocked.
fn execute(plan: Plan) -> ExitCode {
    let (Ok(reports), Ok(go)) = (take_over(plan.reports, true), take_over(plan.go, false)) else {
        return ExitCode::FAILURE;
    };
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    // The supervisor had died before that was in force.
    if getppid() != plan.program {
        return ExitCode::FAILURE;
    }
    let Some(variables) = told_to_go(&go) else {
        return ExitCode::FAILURE;
    };
    drop(go);
    if plan.terminal {
        // SIGTTOU is still blocked here, as all signals are.
        let _ = tcsetpgrp(io::stdin(), getpid());
    }
    let _ = SigSet::empty().thread_set_mask();
    let mut command = plan.command.into_iter();
    let Some(program) = command.next() else {
        return ExitCode::FAILURE;
    };
    let error = Command::new(program).args(command).envs(variables).exec();
    let errno = error.raw_os_error().unwrap_or(Errno::EINVAL as i32);
    write_line(&reports, Report::NotExecuted(errno));
    ExitCode::from(not_executed_code(errno))
}

/// Waits for the environment; `None` when it will not come: the lease was not granted, or the program has gone.
fn told_to_go(go: &File) -> Option<Variables> {
    let (mut told, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match poll(
            &mut [PollFd::new(go.as_fd(), PollFlags::POLLIN)],
            PollTimeout::NONE,
        ) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return None,
        }
        match read_some(go, &mut buffer) {
            Ok(0) => return serde_json::from_slice(&told).ok(),
            Ok(count) => told.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// 127 not found, 126 found and not executable: what shells say.
pub(crate) fn not_executed_code(errno: i32) -> u8 {
    if errno == Errno::ENOENT as i32 {
        127
    } else {
        126
    }
}

fn supervise(plan: Plan) -> io::Result<()> {
    let orders = take_over(plan.orders, false)?;
    // A name of its own, so that `pkill palisade-lease` means the program alone.
    let _ = prctl::set_name(c"lease-guard");
    let mask = SigSet::all();
    mask.thread_block()?;
    prctl::set_child_subreaper(true)?;
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    let execute = Plan {
        program: getpid(),
        ..plan.clone()
    };
    // The job inherits the number of the report pipe, and no order pipe.
    let job = Command::new(OWN_PROGRAM)
        .args(execute.to_args(EXECUTE))
        .process_group(0)
        .spawn()?;
    let reports = take_over(plan.reports, true)?;
    // The command's process has it now.
    nix::unistd::close(plan.go)?;
    Supervisor {
        job: Pid::from_raw(job.id() as i32),
        orders: Some(orders),
        reports,
        signals: SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
        timer: TimerFd::new(
            ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?,
        lines: Lines::default(),
        program: plan.program,
        terminal: plan.terminal,
        grace: plan.grace,
        term: Time::NEVER,
        kill: Time::NEVER,
        end_by: Time::NEVER,
        killing: false,
        ended: false,
        asked: false,
    }
    .run()
}

struct Supervisor {
    job: Pid,
    /// `None` once the program is gone.
    orders: Option<File>,
    reports: File,
    signals: SignalFd,
    timer: TimerFd,
    lines: Lines,
    program: Pid,
    terminal: bool,
    grace: Duration,
    /// When SIGTERM is due, by the lease's deadline.
    term: Time,
    /// When SIGKILL is due, by the lease's deadline.
    kill: Time,
    /// When SIGKILL is due because an end was asked for.
    end_by: Time,
    /// Kill whatever is there until nothing is.
    killing: bool,
    /// The command itself has ended.
    ended: bool,
    /// What it left behind has been asked to end.
    asked: bool,
}

impl Supervisor {
    fn run(mut self) -> io::Result<()> {
        loop {
            // The clock before anything else: after a stop or a suspend the deadline may be long past.
            self.look_at_clock(clock::boot());
            if self.killing {
                tree::signal(Signal::SIGKILL);
            }
            if self.reap() {
                write_line(&self.reports, Report::Gone);
                return Ok(());
            }
            self.end_leftovers();
            self.wait()?;
            self.read_signals();
            if getppid() != self.program {
                self.killing = true;
            }
            self.read_orders();
        }
    }

    fn look_at_clock(&mut self, now: Time) {
        if now >= self.kill.min(self.end_by) {
            if !self.killing && now >= self.kill {
                write_line(&self.reports, Report::Killed);
            }
            self.killing = true;
        } else if now >= self.term {
            self.term = Time::NEVER;
            write_line(&self.reports, Report::Terminated);
            self.end_tree(Signal::SIGTERM);
        }
    }

    /// A stopped process would see SIGTERM only once it goes on.
    fn end_tree(&self, signal: Signal) {
        tree::signal(signal);
        tree::signal(Signal::SIGCONT);
    }

    /// Takes note of what has ended; says whether nothing is left.
    fn reap(&mut self) -> bool {
        loop {
            match tree::reap() {
                Reaped::Ended(pid, code) if pid == self.job => self.job_ended(code),
                Reaped::Stopped(pid) if pid == self.job => {
                    write_line(&self.reports, Report::Stopped)
                }
                Reaped::Ended(..) | Reaped::Stopped(_) => {}
                Reaped::Unknown => {
                    if !self.ended && kill(self.job, None) == Err(Errno::ESRCH) {
                        self.job_ended(i32::from(u8::MAX));
                    }
                }
                Reaped::Nothing => return false,
                Reaped::Empty => return true,
            }
        }
    }

    /// The command has ended.
    fn job_ended(&mut self, code: i32) {
        self.ended = true;
        write_line(&self.reports, Report::Ended(code));
        if self.terminal {
            let _ = tcsetpgrp(io::stdin(), self.program_group());
        }
    }

    /// What the command left behind must not outlive the lease, so it is asked to end, too. Only once it is known that there is
    /// something: to look through all processes takes longer than the whole rest of a handover.
    fn end_leftovers(&mut self) {
        if self.ended && !self.asked && !self.killing {
            self.asked = true;
            self.end_tree(Signal::SIGTERM);
            self.end_by = self.end_by.min(clock::boot().after(self.grace));
        }
    }

    fn program_group(&self) -> Pid {
        nix::unistd::getpgid(Some(self.program)).unwrap_or_else(|_| getpgrp())
    }

    fn wait(&self) -> io::Result<()> {
        let at = self.term.min(self.kill).min(self.end_by);
        if at == Time::NEVER {
            self.timer.unset()?
        } else {
            timer::arm(&self.timer, at)?
        }
        let orders = self.orders.as_ref().map(|orders| orders.as_fd());
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(orders.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let limit = if self.killing {
            PollTimeout::try_from(KILL_AGAIN)
        } else {
            Ok(PollTimeout::NONE)
        };
        match poll(&mut fds, limit.unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// They only wake: SIGCHLD that something has ended, the parent-death signal that the program may be gone. What is
    /// meant for the job comes as an order.
    fn read_signals(&self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }

    fn read_orders(&mut self) {
        let mut buffer = [0; 4096];
        let Some(pipe) = &self.orders else { return };
        if !readable(pipe) {
            return;
        }
        match read_some(pipe, &mut buffer) {
            Ok(0) | Err(_) => {
                self.orders = None;
                self.killing = true;
            }
            Ok(count) => {
                let orders = self.lines.orders(&buffer[..count]);
                orders.into_iter().for_each(|order| self.obey(order));
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Deadline { term, kill } => {
                self.term = term;
                self.kill = kill;
            }
            Order::End { signal, kill } => {
                if let Ok(signal) = Signal::try_from(signal) {
                    self.end_tree(signal);
                }
                self.end_by = self.end_by.min(kill);
            }
            Order::Pass(signal) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    let _ = killpg(self.job, signal);
                }
            }
            Order::Continue(terminal) => {
                if terminal && io::stdin().is_terminal() {
                    let _ = tcsetpgrp(io::stdin(), self.job);
                }
                let _ = killpg(self.job, Signal::SIGCONT);
            }
        }
    }
}

fn readable(pipe: &File) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(count) if count > 0)
}
