//! Taking part, from a join to the end of its session.

use super::{
    Member, Over,
    join::Joined,
    keys::{Change, encode},
    puts::{Put, Puts},
    session::{Fitness, Keeper},
    watcher::{All, Heard, Watcher},
};
use crate::{authority::connect::Link, gate::Standing};
use palisade_fence::{Ack, Clearance, Group, Time, Token};
use palisade_lease::clock::boot;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// How many messages of the watch may wait.
const QUEUE: usize = 64;
/// A put that failed is tried again after this.
const AGAIN: Duration = Duration::from_millis(200);
/// Members that were waited out are not deleted more often than this.
const FORGET: Duration = Duration::from_secs(2);
/// How often a session's keeper and watch are heard of, within the time that it lasts.
const PER_SESSION: u32 = 6;

/// One session of a replica.
pub(super) struct Part<'a> {
    member: &'a Member,
    joined: Joined,
    group: Group,
    /// Who has a session, this replica included.
    present: BTreeSet<Arc<str>>,
    /// All other members, as far as this process knows: those of its sessions before, too.
    known: BTreeSet<Arc<str>>,
    /// Those of them that were not there any more when everything was read, without anybody having seen them leave.
    missing: BTreeSet<Arc<str>>,
    /// What the own key says.
    acked: Ack,
    /// The newest grant that was taken in, or the revision at which everything was read: what an ack is for.
    granted: u64,
    puts: Arc<Puts>,
    putting: Option<AbortOnDropHandle<Put>>,
    forgetting: Option<AbortOnDropHandle<()>>,
    not_before: Time,
    forget_at: Time,
    fitness: Arc<Fitness>,
    /// Since when a scope's floor is not on disk.
    undurable: HashMap<Arc<str>, Time>,
    serving: bool,
    _keeper: AbortOnDropHandle<()>,
    _watcher: AbortOnDropHandle<()>,
    heard: mpsc::Receiver<Heard>,
}

impl<'a> Part<'a> {
    /// With the other members that this process knows of.
    pub(super) fn new(member: &'a Member, joined: Joined, known: BTreeSet<Arc<str>>) -> Self {
        let fitness = Fitness::new();
        let keeper = Keeper {
            etcd: member.etcd.clone(),
            trust: member.trust.clone(),
            session: joined.session.clone(),
            fitness: fitness.clone(),
            lease: joined.lease,
            lasts: joined.lasts,
        };
        let (to, heard) = mpsc::channel(QUEUE);
        let watcher = Watcher {
            etcd: member.etcd.clone(),
            trust: member.trust.clone(),
            health: member.health.clone(),
            keys: member.keys.clone(),
            every: (joined.lasts / PER_SESSION).min(Duration::from_secs(3)),
            to,
        };
        let puts = Puts {
            etcd: member.etcd.clone(),
            trust: member.trust.clone(),
            keys: member.keys.clone(),
            id: joined.id.clone(),
            lease: joined.lease,
            link: tokio::sync::Mutex::new(Link::new(member.etcd.clone())),
        };
        let options = &member.options;
        let wait_out = options.settle.map(|settle| settle + options.max_pause);
        Self {
            group: Group::new(joined.id.clone(), wait_out),
            present: BTreeSet::new(),
            known,
            missing: BTreeSet::new(),
            acked: Ack::default(),
            granted: 0,
            puts: Arc::new(puts),
            putting: None,
            forgetting: None,
            not_before: Time::ZERO,
            forget_at: Time::ZERO,
            fitness,
            undurable: HashMap::new(),
            serving: false,
            _keeper: AbortOnDropHandle::new(tokio::spawn(keeper.run())),
            _watcher: AbortOnDropHandle::new(tokio::spawn(watcher.run())),
            heard,
            member,
            joined,
        }
    }

    /// Until it is told to leave, or its session has ended.
    pub(super) async fn run(mut self) -> Over {
        let over = self.take_part().await;
        metrics::gauge!("palisade_replicas").set(0.0);
        match over {
            Some(why) => {
                self.joined.session.end();
                Over::Lost(why, self.known)
            }
            None => Over::Leave(self.joined),
        }
    }

    /// Why it has lost its place, unless it is told to leave.
    async fn take_part(&mut self) -> Option<&'static str> {
        let session = self.joined.session.clone();
        loop {
            let next = match self.serving {
                true => self.look_round(),
                false => Time::NEVER,
            };
            let left = next.since(boot()).min(FORGET);
            tokio::select! {
                biased;
                () = session.over() => return Some("this replica's session has ended"),
                () = self.member.stop.cancelled() => return None,
                heard = self.heard.recv() => match heard {
                    Some(heard) => self.take_in(heard),
                    None => return Some("its watch has ended"),
                },
                put = finished(&mut self.putting) => {
                    self.putting = None;
                    if self.put(put).is_err() {
                        return Some("this replica's key has gone");
                    }
                }
                () = self.member.place.changed(), if self.serving => {}
                () = tokio::time::sleep(left), if self.serving => {}
            }
        }
    }

    fn take_in(&mut self, heard: Heard) {
        match heard {
            Heard::All(all) => self.read(all),
            Heard::Changes(revision, changes) => {
                changes.into_iter().for_each(|change| self.change(change));
                self.group.progress(revision);
            }
            Heard::Alive => {}
        }
        self.fitness.heard();
    }

    /// Everything at one revision: at the join, and after a gap in the watch.
    fn read(&mut self, mut all: All) {
        let grants = std::mem::take(&mut all.grants);
        self.member.gate.joined(all.revision, grants);
        self.present = all.replicas.iter().map(|(id, _)| id.clone()).collect();
        let now = self.miss_some(&mut all);
        self.group
            .read(all.revision, &all.members, &all.replicas, now);
        self.granted = self.granted.max(all.revision);
        if !self.serving {
            self.serving = true;
            tracing::info!(id = %self.joined.id, revision = all.revision, others = self.group.others(), "joined the group");
            self.member.place.joined(self.joined.session.clone());
        }
    }

    /// Takes members that are not there any more for such whose session is about to end, and gives the moment that counts as its end.
    ///
    /// They may have left in order. But an etcd that was restored from a snapshot with its revision pushed ahead, which looks like
    /// one whose history was compacted, does not know who joined after the snapshot; those may still be writing. Each has lost
    /// its session at the latest once the whole of it has passed since etcd was away.
    fn miss_some(&mut self, all: &mut All) -> Time {
        let there: BTreeSet<_> = self.present.iter().chain(&all.members).cloned().collect();
        let missing = self.known.difference(&there).cloned();
        let missing: BTreeSet<_> = missing.collect();
        self.known = &there | &missing;
        self.known.remove(&self.joined.id);
        if missing.is_empty() {
            return boot();
        }
        tracing::warn!(
            members = missing.len(),
            "members that nobody has seen leave are not there any more: new holders wait until nothing of them can be applied"
        );
        all.members.extend(missing.iter().cloned());
        self.missing.extend(missing);
        boot().after(self.member.options.session_ttl)
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Granted(scope, token) => {
                self.member.gate.granted(&scope, token);
                self.granted = self.granted.max(token.get());
            }
            Change::Released(scope) => self.member.gate.released(&scope),
            Change::Member(id) => {
                self.group.member_put(&id);
                self.knows(&id);
            }
            Change::MemberGone(id) => {
                self.group.member_deleted(&id);
                self.known.remove(&id);
            }
            Change::Replica(id, ack) => {
                self.group.acked(&id, ack);
                self.knows(&id);
                self.present.insert(id);
            }
            Change::ReplicaGone(id) => {
                self.group.session_gone(&id, boot());
                self.present.remove(&id);
            }
        }
    }

    fn knows(&mut self, id: &Arc<str>) {
        if *id != self.joined.id {
            self.known.insert(Arc::clone(id));
        }
    }

    /// Opens what may be opened, says what others wait for, and forgets who was waited out. When to look again.
    fn look_round(&mut self) -> Time {
        let settled = self.member.place.take_settled();
        let group = &self.group;
        let standing = self.member.gate.look(|scope, floor, now| {
            if settled.iter().any(|named| **named == *scope) {
                said_settled(group, scope, floor, now)
            } else {
                group.clearance(scope, floor, now)
            }
        });
        let now = boot();
        metrics::gauge!("palisade_replicas").set(self.present.len() as f64);
        self.member.place.set_present(self.present.len());
        self.watch_the_disk(&standing, now);
        self.put_ack(&standing, now);
        self.forget(now);
        let retry = if self.putting.is_none() && self.not_before > now {
            self.not_before
        } else {
            Time::NEVER
        };
        standing.next.min(retry)
    }

    /// A floor that does not come to the disk for a third of a session is a reason to let the session end: the others go on
    /// without this replica then.
    fn watch_the_disk(&mut self, standing: &Standing, now: Time) {
        let names: BTreeSet<_> = standing.undurable.iter().cloned().collect();
        self.undurable.retain(|name, _| names.contains(name));
        let limit = self.joined.lasts / 3;
        let mut stuck = false;
        for name in names {
            let since = *self.undurable.entry(Arc::clone(&name)).or_insert(now);
            if now.since(since) > limit {
                stuck = true;
            }
        }
        self.fitness.stuck(stuck);
    }

    fn put_ack(&mut self, standing: &Standing, now: Time) {
        if self.putting.is_some() || now < self.not_before || !standing.undurable.is_empty() {
            return;
        }
        let ack = Ack {
            revision: self.acked.revision.max(self.granted),
            unsettled: standing.unsettled.clone(),
        };
        if ack == self.acked {
            return;
        }
        let Some(value) = encode(&ack) else {
            tracing::warn!(
                scopes = ack.unsettled.len(),
                "too many scopes have unsettled writes for one key: the other replicas wait"
            );
            self.not_before = now.after(FORGET);
            return;
        };
        let put = self.puts.clone().ack(ack, value, self.joined.revision);
        self.putting = Some(AbortOnDropHandle::new(tokio::spawn(put)));
    }

    /// Fails if the own key has gone.
    fn put(&mut self, put: Put) -> Result<(), ()> {
        match put {
            Put::Done(ack, revision) => {
                self.acked = ack;
                self.joined.revision = revision;
            }
            Put::Moved(revision) => self.joined.revision = revision,
            Put::Failed => self.not_before = boot().after(AGAIN),
            Put::Gone => return Err(()),
        }
        Ok(())
    }

    fn forget(&mut self, now: Time) {
        if now < self.forget_at {
            return;
        }
        let members = self.group.waited_out(now);
        if members.is_empty() {
            return;
        }
        // No key of theirs is there whose end could be seen.
        for id in members.iter().filter(|id| self.missing.remove(*id)) {
            self.group.member_deleted(id);
            self.known.remove(id);
        }
        self.forget_at = now.after(FORGET);
        tracing::info!(
            members = members.len(),
            "waited until nothing of members that have gone can be applied any more"
        );
        let forget = self.puts.clone().forget(members);
        self.forgetting = Some(AbortOnDropHandle::new(tokio::spawn(forget)));
    }
}

/// An operator says that what members which are gone have left of this scope is settled.
fn said_settled(group: &Group, scope: &str, floor: Token, now: Time) -> Clearance {
    let mut without = group.clone();
    without.settle_gone();
    without.clearance(scope, floor, now)
}

async fn finished(putting: &mut Option<AbortOnDropHandle<Put>>) -> Put {
    match putting {
        Some(putting) => putting.await.unwrap_or(Put::Failed),
        None => std::future::pending().await,
    }
}
