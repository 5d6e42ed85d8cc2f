//! `palisade-lease run`: waits for the lease, runs the command, keeps the lease until the last process of it has gone,
//! and gives it back.

use crate::{
    announce::{Announced, announce},
    cli::{OnLost, Run},
    job::{Job, Variables, has_terminal},
    outcome::{Outcome, say},
    serve_metrics::Metrics,
    signals::{Signals, asks_for_end},
    supervise::not_executed_code,
    tree,
    wire::{Order, Report},
};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::getpid,
};
use palisade_fence::Time;
use palisade_lease::{
    FencingToken, Lease, LeaseName, LeaseOptions, LeaseStore, Loss, Standing, clock,
};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// How long giving the lease back may hold up the end of the program; it ends by itself all the same.
const RELEASE_TIME: Duration = Duration::from_secs(3);

/// Runs it, and says and writes down how it ended.
pub(crate) async fn run(options: Run) -> ExitCode {
    let (outcome, token) = match Signals::catch() {
        Ok(signals) => acquire_and_run(&options, signals).await,
        Err(error) => (Outcome::System(error.to_string()), None),
    };
    if let Some(path) = &options.result_file
        && let Err(error) = outcome.write(path, token)
    {
        say(&format!("{}: {error}", path.display()));
    }
    outcome.finish()
}

async fn acquire_and_run(options: &Run, mut signals: Signals) -> (Outcome, Option<FencingToken>) {
    let store = match options.store.open() {
        Ok(store) => store,
        Err(reason) => return (Outcome::Usage(reason), None),
    };
    let metrics = match options.metrics {
        Some(address) => match Metrics::serve(address, options.name.clone()).await {
            Ok(metrics) => Some(metrics),
            Err(error) => {
                return (
                    Outcome::System(format!("--metrics {address}: {error}")),
                    None,
                );
            }
        },
        None => None,
    };
    let job = match Job::prepare(&options.command, options.grace) {
        Ok(job) => job,
        Err(error) => {
            let why = format!("the job's supervisor can't be started: {error}");
            return (Outcome::System(why), None);
        }
    };
    let asked = lease_options(options, &store);
    let acquire = async {
        if options.no_wait {
            store.try_acquire(&options.name, asked).await
        } else {
            store.acquire(&options.name, asked).await
        }
    };
    let acquired = tokio::select! {
        acquired = acquire => acquired,
        signal = signals.next_end() => {
            leave().await;
            return (Outcome::Cancelled(signal as i32), None);
        }
    };
    match acquired {
        Err(error) => {
            leave().await;
            (
                Outcome::from_refusal(&error, options.conflict_exit_code),
                None,
            )
        }
        Ok(lease) => {
            let token = lease.token();
            if let Some(metrics) = &metrics {
                metrics.granted(lease.standing());
            }
            (under_lease(options, lease, job, signals).await, Some(token))
        }
    }
}

fn lease_options(options: &Run, store: &Arc<dyn LeaseStore>) -> LeaseOptions {
    let mut asked = LeaseOptions {
        ttl: options.ttl,
        margin: options.margin,
        wait: options.waiting_time(),
        patience: options.patience,
        steal: options.steal,
        holder: options.holder.clone(),
        ..LeaseOptions::default()
    };
    if on_terminal(options) {
        let (name, store) = (options.name.clone(), store.clone());
        asked.on_waiting = Some(Arc::new(move |_| {
            tokio::spawn(tell_of_wait(store.clone(), name.clone()));
        }));
    }
    asked
}

fn on_terminal(options: &Run) -> bool {
    io::stderr().is_terminal() && !options.quiet
}

/// For people: who holds it, since when, and how long the queue is.
async fn tell_of_wait(store: Arc<dyn LeaseStore>, name: LeaseName) {
    let Ok(status) = store.status(&name).await else {
        return;
    };
    let by = status.record.map_or_else(String::new, |by| {
        format!(", held by {} since {}", by.holder, by.acquired_at)
    });
    say(&format!(
        "waiting for {name}{by}; {} in the queue",
        status.waiters.len()
    ));
}

/// Lets what was given up be given back, for a moment.
async fn leave() {
    let _ = tokio::time::timeout(RELEASE_TIME, palisade_lease::settled()).await;
}

async fn under_lease(options: &Run, lease: Lease, job: Job, mut signals: Signals) -> Outcome {
    if on_terminal(options) {
        say(&format!(
            "{} is held, token {}",
            lease.name(),
            lease.token()
        ));
    }
    let outcome = match announced(options, &lease, &mut signals).await {
        Ok(()) => run_job(options, &lease, job, signals).await,
        Err(outcome) => outcome,
    };
    // Only now: the last process of the job has gone.
    let _ = tokio::time::timeout(RELEASE_TIME, lease.release()).await;
    outcome
}

/// `--announce`; the job starts only if it succeeds.
async fn announced(options: &Run, lease: &Lease, signals: &mut Signals) -> Result<(), Outcome> {
    let Some(url) = &options.announce else {
        return Ok(());
    };
    let mut last = "no answer".to_owned();
    let announced = tokio::select! {
        announced = announce(url, lease.token(), &mut last) => Some(announced),
        loss = lease.lost() => return Err(Outcome::Lost { exit: None, reason: loss.to_string() }),
        signal = signals.next_end() => return Err(Outcome::Cancelled(signal as i32)),
        () = tokio::time::sleep(options.patience) => None,
    };
    match announced {
        Some(Announced::Closed) => Ok(()),
        Some(Announced::Outdated(why)) => Err(Outcome::Lost {
            exit: None,
            reason: format!("{url}: {why}"),
        }),
        Some(Announced::Refused(why)) => Err(Outcome::Unreachable(format!("--announce: {why}"))),
        None => Err(Outcome::Unreachable(format!("--announce: {last}"))),
    }
}

async fn run_job(options: &Run, lease: &Lease, mut job: Job, signals: Signals) -> Outcome {
    let first = deadline_order(options, lease, *lease.standing().borrow());
    match job.go(&variables(options, lease), first) {
        Ok(()) => Running::new(options, lease, job).until_gone(signals).await,
        Err(error) => Outcome::System(format!("the job's supervisor has gone: {error}")),
    }
}

fn variables(options: &Run, lease: &Lease) -> Variables {
    [
        ("FENCE_TOKEN", lease.token().to_string()),
        ("FENCE_LEASE", lease.name().to_string()),
        ("FENCE_HOLDER", lease.record().holder.clone()),
        ("ETCD_LOCK_KEY", options.store.key(lease.name())),
        ("ETCD_LOCK_REV", lease.token().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The lease's deadline as the supervisor's: SIGTERM a while before it, SIGKILL at it.
fn deadline_order(options: &Run, lease: &Lease, standing: Standing) -> Option<Order> {
    let kill = standing.deadline;
    let term = match options.on_lost {
        OnLost::Ignore => return None,
        OnLost::Kill => Time::NEVER,
        OnLost::Term => kill.before(options.grace.min(lease.ttl() / 4)),
    };
    Some(Order::Deadline { term, kill })
}

struct Running<'a> {
    options: &'a Run,
    lease: &'a Lease,
    job: Job,
    standing: watch::Receiver<Standing>,
    /// Why the lease counts as lost while the job runs.
    lost: Option<String>,
    ended: Option<i32>,
    not_executed: Option<i32>,
}

impl<'a> Running<'a> {
    fn new(options: &'a Run, lease: &'a Lease, job: Job) -> Self {
        Self {
            options,
            lease,
            job,
            standing: lease.standing(),
            lost: None,
            ended: None,
            not_executed: None,
        }
    }

    async fn until_gone(mut self, mut signals: Signals) -> Outcome {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.standing.changed() => self.standing_changed(),
                report = self.job.report() => match report {
                    Some(Report::Gone) => break,
                    Some(report) => self.reported(report),
                    None => {
                        self.supervisor_gone().await;
                        break;
                    }
                },
                signal = signals.next() => self.signalled(signal),
            }
        }
        let outcome = self.outcome();
        self.job.reap();
        outcome
    }

    fn standing_changed(&mut self) {
        let standing = *self.standing.borrow_and_update();
        match standing.loss {
            Some(loss) => self.lose(loss),
            None => {
                if let Some(order) = deadline_order(self.options, self.lease, standing) {
                    self.job.order(order);
                }
            }
        }
    }

    fn lose(&mut self, loss: Loss) {
        if self.ended.is_some() || self.lost.is_some() {
            return;
        }
        let reason = format!(
            "the lease {} (token {}) is lost: {loss}",
            self.lease.name(),
            self.lease.token()
        );
        self.lost = Some(reason);
        let now = clock::boot();
        match (self.options.on_lost, loss) {
            (OnLost::Ignore, _) => {}
            // At the deadline there is no more time.
            (_, Loss::Expired) | (OnLost::Kill, _) => self.end(Signal::SIGKILL, now),
            (OnLost::Term, _) => self.end(Signal::SIGTERM, now.after(self.options.grace)),
        }
    }

    fn end(&self, signal: Signal, kill: Time) {
        self.job.order(Order::End {
            signal: signal as i32,
            kill,
        });
    }

    fn reported(&mut self, report: Report) {
        match report {
            Report::NotExecuted(errno) => self.not_executed = Some(errno),
            Report::Ended(code) => self.ended = Some(code),
            Report::Terminated | Report::Killed => {
                if self.ended.is_none() && self.lost.is_none() {
                    let (name, token) = (self.lease.name(), self.lease.token());
                    let why = "no keep-alive was answered for so long that the job was stopped";
                    self.lost = Some(format!("the lease {name} (token {token}) is lost: {why}"));
                }
            }
            // As a shell's job control expects it. The lease is not kept meanwhile: a stopped job must not block the others
            // for ever, and its supervisor keeps the deadline.
            Report::Stopped if self.job.terminal => {
                let _ = kill(getpid(), Signal::SIGSTOP);
            }
            Report::Stopped | Report::Gone => {}
        }
    }

    fn signalled(&mut self, signal: Signal) {
        if signal == Signal::SIGCONT {
            self.job
                .order(Order::Continue(self.job.terminal && has_terminal()));
        } else if asks_for_end(signal) {
            self.end(signal, clock::boot().after(self.options.grace));
        } else {
            self.job.order(Order::Pass(signal as i32));
        }
    }

    /// Somebody killed the supervisor. Its orphans have come here.
    async fn supervisor_gone(&mut self) {
        while tree::reap_all() {
            tree::signal(Signal::SIGKILL);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn outcome(&self) -> Outcome {
        if let Some(reason) = &self.lost {
            return Outcome::Lost {
                exit: self.ended,
                reason: reason.clone(),
            };
        }
        if let Some(errno) = self.not_executed {
            let command = self
                .options
                .command
                .first()
                .map(|c| c.to_string_lossy())
                .unwrap_or_default();
            let why = Errno::from_raw(errno).desc();
            return Outcome::NotExecuted {
                code: not_executed_code(errno),
                reason: format!("{command}: {why}"),
            };
        }
        match self.ended {
            Some(code) => Outcome::Ended(code),
            None => {
                Outcome::System("the job's supervisor was killed, and the job with it".to_owned())
            }
        }
    }
}
