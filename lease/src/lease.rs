//! Leases for users of the library: asking for one, and the handle to one that is held.

use crate::{
    LeaseName,
    clock::{BootClock, Clock},
    driver::{Driver, Standing},
    error::{AcquireError, Lost},
    holder::{Holder, Loss, News, Terms, default_margin},
    metrics,
    record::Record,
    store::{LeaseStore, SessionId, View},
};
use palisade_fence::{Time, Token};
use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

/// The header that carries the token.
pub const TOKEN_HEADER: &str = "x-fence-token";

/// Told of a wait, and of who holds the lease.
pub type OnWaiting = Arc<dyn Fn(&View) + Send + Sync>;

/// What one may ask of an acquisition.
#[derive(Clone)]
pub struct LeaseOptions {
    /// How long the lease outlives a holder that has died; 15 s. etcd counts in whole seconds and raises what is below
    /// its minimum (2 s by default); the holder's own deadline follows the smaller of asked and granted.
    pub ttl: Duration,
    /// How long before the end of the time to live the lease counts as lost; `max(500 ms, ttl/10)` when absent.
    pub margin: Option<Duration>,
    /// How long to wait while somebody else holds it; for ever when absent.
    pub wait: Option<Duration>,
    /// How long to put up with a lease store that has not answered at all; 10 s.
    pub patience: Duration,
    /// Take the lease from whoever holds it. The old holder is told so and its token is out of date.
    pub steal: bool,
    /// What the holder calls itself; `host:pid` when absent.
    pub holder: Option<String>,
    /// Told when the wait begins, and who holds the lease.
    pub on_waiting: Option<OnWaiting>,
    /// The clock for deadlines. Anything but the boot-time clock is for tests.
    pub clock: Arc<dyn Clock>,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            margin: None,
            wait: None,
            patience: Duration::from_secs(10),
            steal: false,
            holder: None,
            on_waiting: None,
            clock: Arc::new(BootClock),
        }
    }
}

impl LeaseOptions {
    /// The defaults with another time to live.
    #[must_use]
    pub fn with_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), AcquireError> {
        if self.ttl < Duration::from_secs(1) {
            return Err(AcquireError::Options(
                "the time to live must be at least 1 s",
            ));
        }
        if self.ttl > Duration::from_secs(86_400 * 365) {
            return Err(AcquireError::Options(
                "the time to live must be at most a year",
            ));
        }
        if self.margin.unwrap_or_else(|| default_margin(self.ttl)) * 2 > self.ttl {
            return Err(AcquireError::Options(
                "the margin must be at most half of the time to live",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseOptions")
            .field("ttl", &self.ttl)
            .field("margin", &self.margin)
            .field("wait", &self.wait)
            .field("patience", &self.patience)
            .field("steal", &self.steal)
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

impl dyn LeaseStore {
    /// Waits for a lease, first come first served. Must be called in a tokio runtime; dropping the future leaves the
    /// queue.
    ///
    /// # Errors
    /// [`AcquireError::Held`] once [`LeaseOptions::wait`] is over; [`AcquireError::Store`] if the store refuses, or has
    /// not answered within [`LeaseOptions::patience`].
    pub async fn acquire(
        self: &Arc<Self>,
        name: impl AsRef<str>,
        options: LeaseOptions,
    ) -> Result<Lease, AcquireError> {
        self.ask(name.as_ref(), options, true).await
    }

    /// Takes a lease if it is free and nobody waits for it.
    ///
    /// # Errors
    /// [`AcquireError::Held`] at once if it is not, else as `acquire`.
    pub async fn try_acquire(
        self: &Arc<Self>,
        name: impl AsRef<str>,
        options: LeaseOptions,
    ) -> Result<Lease, AcquireError> {
        self.ask(name.as_ref(), options, false).await
    }

    async fn ask(
        self: &Arc<Self>,
        name: &str,
        options: LeaseOptions,
        wait: bool,
    ) -> Result<Lease, AcquireError> {
        let name = LeaseName::parse(name)?;
        options.check()?;
        let started = options.clock.now();
        let limit = if wait {
            options.wait
        } else {
            Some(options.patience)
        };
        let terms = Terms {
            ttl: options.ttl,
            margin: options.margin,
            wait,
            give_up: limit.map_or(Time::NEVER, |limit| started.after(limit)),
            patience: options.patience,
            steal: options.steal,
        };
        // Room above for the attempts that are numbered from it; positive, as etcd's leases are.
        let base = fastrand::i64(1..i64::MAX / 2);
        let (news_sender, mut news) = mpsc::unbounded_channel();
        let (standing_sender, standing) = watch::channel(Standing {
            deadline: Time::ZERO,
            loss: None,
        });
        let (give_back, give_back_receiver) = mpsc::channel(1);
        let record = Record::of_this_process(options.holder.as_deref(), options.ttl);
        let driver = Driver {
            store: self.clone(),
            name: name.clone(),
            holder: Holder::new(terms, base, started),
            clock: options.clock.clone(),
            record: record.clone(),
            news: news_sender,
            standing: standing_sender,
            give_back: give_back_receiver,
        };
        let task = TASKS.spawn(driver.run());
        loop {
            match news.recv().await {
                Some(News::Waiting(view)) => {
                    if let Some(tell) = &options.on_waiting {
                        tell(&view);
                    }
                }
                Some(News::Granted {
                    token,
                    session,
                    ttl,
                }) => {
                    metrics::acquired(&name, options.clock.now().since(started));
                    tracing::debug!(lease = %name, %token, "granted");
                    return Ok(Lease {
                        name,
                        token,
                        session,
                        ttl,
                        record,
                        standing,
                        give_back: Some(give_back),
                        ended: task,
                        clock: options.clock,
                    });
                }
                Some(News::Refused(refusal)) => {
                    return Err(AcquireError::from_refusal(&name, refusal));
                }
                Some(News::Lost(_) | News::Ended) => {}
                None => {
                    let why = "the acquisition's task has ended: no timer, or the runtime is shutting down";
                    return Err(crate::store::StoreError::Denied(why.to_owned()).into());
                }
            }
        }
    }
}

/// The tasks of all acquisitions.
static TASKS: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// Waits until every acquisition of this process has ended: what was dropped is given back, places in queues are left. For
/// the end of a program; while a lease is held somewhere it does not resolve.
pub async fn settled() {
    TASKS.close();
    TASKS.wait().await;
    TASKS.reopen();
}

/// A lease that was granted. Dropping it gives it back in the background, as long as the runtime runs; otherwise it ends
/// with its time to live.
pub struct Lease {
    name: LeaseName,
    token: Token,
    session: SessionId,
    ttl: Duration,
    record: Record,
    standing: watch::Receiver<Standing>,
    give_back: Option<mpsc::Sender<()>>,
    ended: tokio::task::JoinHandle<Result<(), std::io::Error>>,
    clock: Arc<dyn Clock>,
}

impl Lease {
    /// The fencing token: larger than every earlier grant's, the same as long as the lease is held.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The lease's name.
    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// What the lease hangs on in the store.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The time to live that counts: the smaller of asked and granted.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// What this holder wrote of itself.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether the lease is held. Looks at the clock each time, so it is right at once after a suspend.
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// How long the lease is held without another answered keep-alive.
    pub fn remaining(&self) -> Duration {
        let standing = *self.standing.borrow();
        match standing.loss {
            Some(_) => Duration::ZERO,
            None => standing.deadline.since(self.clock.now()),
        }
    }

    /// The deadline and the loss, to be told of each change.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Why the lease is lost, if it is.
    pub fn loss(&self) -> Option<Loss> {
        let standing = *self.standing.borrow();
        standing
            .loss
            .or_else(|| (self.clock.now() >= standing.deadline).then_some(Loss::Expired))
    }

    /// Waits until the lease is lost. Never resolves while it is held.
    pub async fn lost(&self) -> Loss {
        let mut standing = self.standing.clone();
        let found = standing.wait_for(|standing| standing.loss.is_some()).await;
        // Without its task nobody keeps the lease alive.
        found
            .ok()
            .and_then(|standing| standing.loss)
            .unwrap_or(Loss::Expired)
    }

    /// Fails if the lease is lost.
    pub fn check(&self) -> Result<(), Lost> {
        match self.loss() {
            None => Ok(()),
            Some(loss) => Err(Lost {
                name: self.name.clone(),
                token: self.token,
                loss,
            }),
        }
    }

    /// Puts the token into a request's headers, in place of any that is there.
    ///
    /// # Errors
    /// If the lease is lost: the request must not be sent.
    pub fn stamp(&self, headers: &mut http::HeaderMap) -> Result<(), Lost> {
        self.check()?;
        headers.insert(
            http::HeaderName::from_static(TOKEN_HEADER),
            self.token.get().into(),
        );
        Ok(())
    }

    /// Gives the lease back, and waits until that is done: its key deleted, its session closed. With the store away this
    /// goes on until the lease has surely ended by itself.
    pub async fn release(mut self) {
        self.give_back = None;
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The closed channel is what gives it back.
        metrics::held(&self.name, false);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
