//! One of several replicas in front of one datastore (design, section 6): joins its group, says how far its scopes are closed,
//! and opens what the others have closed. The rules are [`palisade_fence::Group`]'s; this is the shell round them.
//!
//! All that replicas share is etcd: a session lease that is kept alive, one watch, and small puts of the own replica key.
//! Nothing here is on the way of a request, except that what passes the gate is bound to a [`Session`](crate::gate::Session).

mod join;
mod keys;
mod part;
mod puts;
mod session;
mod version;
mod watcher;

pub(crate) use version::check_all as check_versions;

use crate::{
    authority::{
        EtcdAuthority,
        connect::{EtcdOptions, Link},
        health::Health,
        trust::{Doubt, Trust},
    },
    gate::{Gate, Place},
};
use join::Joined;
use keys::Keys;
use palisade_fence::{Clearance, Time};
use palisade_lease::clock::boot;
use part::Part;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Pauses between attempts to join: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// How often it is looked whether the disk has taken a floor, before a join.
const DISK: Duration = Duration::from_millis(50);

/// What a replica needs to know of itself and its group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The group in front of one datastore; no slash.
    pub group: String,
    /// After how long a silent replica has lost its place; whole seconds, at least 5.
    pub session_ttl: Duration,
    /// The longest that a replica may be paused unnoticed (A7).
    pub max_pause: Duration,
    /// A6; `None`: an operator says when.
    pub settle: Option<Duration>,
    /// Where it listens, for people.
    pub address: String,
    /// Its state folder's id, for people.
    pub state_id: Arc<str>,
}

/// The task that keeps this replica's place.
pub struct Replicas {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Replicas {
    /// Starts to join. Does not wait for etcd. The gate lets nothing with a token pass before it has joined.
    pub fn start(
        handle: &Handle,
        authority: &EtcdAuthority,
        gate: &Arc<Gate>,
        place: &Arc<Place>,
        options: GroupOptions,
    ) -> Self {
        let (etcd, trust, health) = authority.shared();
        let stop = CancellationToken::new();
        let member = Member {
            keys: Keys::new(&etcd.prefix, &options.group),
            etcd,
            trust,
            health,
            gate: Arc::clone(gate),
            place: Arc::clone(place),
            options,
            stop: stop.clone(),
        };
        let task = handle.spawn(member.run());
        Self {
            stop,
            task: Mutex::new(Some(task)),
        }
    }

    /// Leaves the group; once no request is under way any more. In order, if everything is settled: then nobody waits for
    /// this replica. Otherwise the others wait until what it may have left is settled.
    pub async fn leave(&self) {
        self.stop.cancel();
        let task = self
            .task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(task) = task
            && task.await.is_err()
        {
            tracing::error!("the task that kept this replica's place has panicked");
        }
    }
}

/// One replica, over all its sessions.
struct Member {
    etcd: Arc<EtcdOptions>,
    trust: Arc<Trust>,
    health: Arc<Health>,
    gate: Arc<Gate>,
    place: Arc<Place>,
    keys: Keys,
    options: GroupOptions,
    stop: CancellationToken,
}

/// How taking part came to an end.
enum Over {
    /// It is told to leave.
    Leave(Joined),
    /// Its session has ended; with the other members that it knew.
    Lost(&'static str, BTreeSet<Arc<str>>),
}

impl Member {
    async fn run(self) {
        let mut link = Link::new(self.etcd.clone());
        let mut pause = PAUSE.0;
        let mut told = false;
        let mut known = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.ready_to_join() => {}
            }
            // Not given up in the middle, which would leave keys behind for the others to wait out.
            match self.join(&mut link).await {
                Ok(joined) => {
                    (pause, told) = (PAUSE.0, false);
                    match Part::new(&self, joined, std::mem::take(&mut known))
                        .run()
                        .await
                    {
                        Over::Leave(joined) => return self.leave(joined).await,
                        Over::Lost(why, others) => {
                            known = others;
                            tracing::error!(
                                "{why}: fenced requests get session-expired until this replica has joined anew"
                            );
                            self.place.is_away(why);
                        }
                    }
                    self.gate.wake_all();
                }
                Err(Doubt::Changed) => self.place.is_away("etcd is not trusted any more"),
                Err(Doubt::Failed(failure)) => {
                    let why = format!("{}: {failure}", link.endpoint());
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!("this replica can't join its group: {why}");
                    }
                    self.place.is_away(&why);
                    link.rotate();
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Until etcd is trusted and the disk takes floors: a replica that can't close its scopes would only hold the others up.
    async fn ready_to_join(&self) {
        self.trust.trusted().await;
        let mut again = boot().after(PAUSE.1);
        loop {
            let standing = self.gate.look(|_, _, _| Clearance::NotBefore(Time::NEVER));
            if standing.undurable.is_empty() {
                return;
            }
            // Most are on their way.
            if boot() >= again {
                self.place.is_away("its disk does not take floors");
                standing
                    .undurable
                    .iter()
                    .for_each(|scope| self.gate.close_again(scope));
                again = boot().after(PAUSE.1);
            }
            tokio::time::sleep(DISK).await;
        }
    }
}
