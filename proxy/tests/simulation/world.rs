//! What a run is made of: one clock, one log, a lease store, a disk, and what is known of the connections to upstream.
//! Each fails in exactly the ways that are written here, when the seed says so.

use crate::check::{Entry, Event};
use fastrand::Rng;
use palisade::{
    authority::{Authority, ReadDone, Reading, Unreadable},
    gate::News,
    state::{Durable, Floors, StateError, Stored},
};
use palisade_fence::{Time, Token};
use palisade_lease::clock::Clock;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{task::spawn_local, time::sleep};

/// The one scope.
pub const SCOPE: &str = "nightly";
/// A6, for the proxy and for the upstream that keeps to it to the last millisecond.
pub const SETTLE: Duration = Duration::from_millis(300);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A time between these, in milliseconds.
pub fn between(rng: &mut Rng, from: u64, to: u64) -> Duration {
    ms(rng.u64(from..=to))
}

/// True once in `n` times.
pub fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

/// What the proxy under test is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The real one.
    Real,
    /// One that refuses what is older than the newest token it has seen, and does nothing else.
    Naive,
    /// The real one, told that upstream does nothing more once its connection is gone.
    NoSettle,
    /// The real one, on a disk that says of every stop that it was clean.
    Forgetful,
    /// The real one without a lease store: it believes every token.
    Credulous,
}

/// Shared by all hosts of one run.
pub struct World {
    pub subject: Subject,
    pub clock: Arc<SimClock>,
    log: Mutex<Vec<Entry>>,
    leases: Mutex<Leases>,
    disk: Mutex<Rows>,
    lines: Mutex<BTreeMap<SocketAddr, Arc<Line>>>,
    ids: AtomicU32,
    seed: u64,
    forks: AtomicU64,
    /// The highest token that a naive proxy has seen.
    pub seen: AtomicU64,
    pub disk_full: AtomicBool,
    pub store_away: AtomicBool,
    /// The proxy is to end in order.
    pub stop: AtomicBool,
    /// It has.
    pub stopped: AtomicBool,
    /// No more faults; workers end.
    pub over: AtomicBool,
}

/// The moment in the simulation.
#[derive(Default)]
pub struct SimClock(AtomicU64);

impl SimClock {
    /// Called between steps.
    pub fn at(&self, elapsed: Duration) {
        self.0.store(elapsed.as_nanos() as u64, SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let step = Time::from_nanos(self.0.load(SeqCst));
        // A host that is being crashed has no time of its own any more.
        if tokio::runtime::Handle::try_current().is_err() {
            return step;
        }
        turmoil::sim_elapsed().map_or(step, |at| step.max(Time::ZERO.after(at)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl World {
    pub fn new(seed: u64, subject: Subject) -> Arc<Self> {
        Arc::new(Self {
            subject,
            clock: Arc::default(),
            log: Mutex::default(),
            leases: Mutex::default(),
            disk: Mutex::default(),
            lines: Mutex::default(),
            ids: AtomicU32::new(0),
            seed,
            forks: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            disk_full: AtomicBool::new(false),
            store_away: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            over: AtomicBool::new(false),
        })
    }

    /// Luck of its own, for one part of the run.
    pub fn rng(&self) -> Rng {
        let fork = self.forks.fetch_add(1, SeqCst);
        Rng::with_seed(
            self.seed
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add(fork),
        )
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub fn log(&self, event: Event) {
        let at = self.now().since(Time::ZERO);
        lock(&self.log).push(Entry { at, event });
    }

    pub fn fault(&self, what: impl Into<String>) {
        self.log(Event::Fault(what.into()));
    }

    pub fn entries(&self) -> Vec<Entry> {
        lock(&self.log).clone()
    }

    pub fn id(&self) -> u32 {
        self.ids.fetch_add(1, SeqCst) + 1
    }

    pub fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// What is known of the connection that the proxy has opened from this address.
    pub fn line(&self, from: SocketAddr) -> Option<Arc<Line>> {
        lock(&self.lines).get(&from).cloned()
    }

    pub fn opened_line(&self, from: SocketAddr) -> Arc<Line> {
        let line = Arc::new(Line::default());
        lock(&self.lines).insert(from, Arc::clone(&line));
        line
    }
}

/// A connection to upstream, as A6 sees it. In nanoseconds; 0: never.
#[derive(Default)]
pub struct Line {
    bytes: AtomicU64,
    wrote: AtomicU64,
    ended: AtomicU64,
}

impl Line {
    pub fn wrote(&self, bytes: usize, now: Time) {
        self.bytes.fetch_add(bytes as u64, SeqCst);
        self.wrote.store(now.as_nanos(), SeqCst);
    }

    /// How many bytes were written in all.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    pub fn ended(&self, now: Time) {
        self.ended.store(now.as_nanos().max(1), SeqCst);
    }

    /// Until when what was not answered may be applied; `None` while the connection is open.
    pub fn settled_at(&self) -> Option<Time> {
        match self.ended.load(SeqCst) {
            0 => None,
            ended => Some(Time::from_nanos(ended.max(self.wrote.load(SeqCst))).after(SETTLE)),
        }
    }
}

/// The lease store. Tokens are its revisions.
#[derive(Default)]
struct Leases {
    revision: u64,
    grant: Option<(u64, Time)>,
    grants: Vec<u64>,
}

impl World {
    /// Takes the lease if it is free.
    pub fn acquire(&self, ttl: Duration, rng: &mut Rng) -> Option<u64> {
        let mut leases = lock(&self.leases);
        if leases.grant.is_some() {
            return None;
        }
        leases.revision += rng.u64(1..4);
        let token = leases.revision;
        leases.grant = Some((token, self.now().after(ttl)));
        leases.grants.push(token);
        drop(leases);
        self.log(Event::Granted { token });
        Some(token)
    }

    /// Keeps it, if it still is held under this token.
    pub fn renew(&self, token: u64, ttl: Duration) {
        let until = self.now().after(ttl);
        match &mut lock(&self.leases).grant {
            Some((held, deadline)) if *held == token => *deadline = until,
            _ => {}
        }
    }

    /// Gives it back, if it still is held under this token.
    pub fn release(&self, token: u64) {
        self.free_if(|held, _| held == token);
    }

    /// Called between steps: what has run out is free. `all`: whatever its deadline.
    pub fn expire(&self, all: bool) {
        let now = self.now();
        self.free_if(|_, deadline| all || deadline <= now);
    }

    fn free_if(&self, which: impl FnOnce(u64, Time) -> bool) {
        let mut leases = lock(&self.leases);
        let Some((token, _)) = leases.grant.filter(|&(held, until)| which(held, until)) else {
            return;
        };
        leases.grant = None;
        // Deleting the key is a revision too.
        leases.revision += 1;
        drop(leases);
        self.log(Event::Freed { token });
    }
}

/// The lease store from the proxy's side: answers that are late or lost, a watch that is late or blind.
pub struct Store {
    world: Arc<World>,
    rng: Mutex<Rng>,
}

impl Store {
    pub fn new(world: &Arc<World>) -> Self {
        Self {
            world: Arc::clone(world),
            rng: Mutex::new(world.rng()),
        }
    }
}

impl Authority for Store {
    fn read(&self, _: &Arc<str>, done: ReadDone) {
        let world = Arc::clone(&self.world);
        let mut rng = lock(&self.rng);
        let there = between(&mut rng, 0, 15);
        let back = if one_in(&mut rng, 6) {
            between(&mut rng, 0, 250)
        } else {
            between(&mut rng, 0, 15)
        };
        let lost = one_in(&mut rng, 20) && !world.is_over();
        spawn_local(async move {
            sleep(there).await;
            let away = world.store_away.load(SeqCst);
            let reading = {
                let leases = lock(&world.leases);
                Reading {
                    grant: leases.grant.and_then(|(token, _)| Token::new(token)),
                    revision: leases.revision,
                }
            };
            sleep(back).await;
            done(if away || lost {
                Err(Unreadable::Unavailable)
            } else {
                Ok(reading)
            });
        });
    }
}

/// Tells the gate of grants: each some time later, or never.
pub async fn watch(world: Arc<World>, news: News) {
    use palisade::authority::Reports;
    let mut rng = world.rng();
    let blind = one_in(&mut rng, 3);
    let mut told = lock(&world.leases).grants.len();
    loop {
        sleep(between(&mut rng, 1, 60)).await;
        let grants: Vec<_> = {
            let leases = lock(&world.leases);
            leases.grants[told..].to_vec()
        };
        told += grants.len();
        for token in grants {
            if !blind && !one_in(&mut rng, 4) && !world.store_away.load(SeqCst) {
                Token::new(token)
                    .into_iter()
                    .for_each(|t| news.granted(SCOPE, t));
            }
        }
    }
}

/// What a row and the starts say together is the state file's own rule (`state::rule`).
#[derive(Clone, Copy)]
struct Row {
    floor: Token,
    opened: bool,
    settled: u64,
    marked: u64,
}

#[derive(Default)]
struct Rows {
    rows: BTreeMap<String, Row>,
    run: u64,
    unclean: u64,
    all_settled: u64,
    clean: bool,
}

/// The proxy's disk. It outlives the proxy's host; a write is on it at some moment before the proxy hears of it, so a crash
/// may come in between. A full one changes nothing and says so.
pub struct Disk {
    world: Arc<World>,
    rng: Mutex<Rng>,
    run: u64,
}

impl Disk {
    /// As the proxy finds it at its start.
    pub fn start(world: &Arc<World>) -> Arc<Self> {
        let mut rows = lock(&world.disk);
        rows.run += 1;
        let run = rows.run;
        if run > 1 && !rows.clean && world.subject != Subject::Forgetful {
            rows.unclean = run;
        }
        rows.clean = false;
        drop(rows);
        Arc::new(Self {
            world: Arc::clone(world),
            rng: Mutex::new(world.rng()),
            run,
        })
    }

    /// What was left before this start has been waited out.
    pub fn all_settled(&self) {
        lock(&self.world.disk).all_settled = self.run;
    }

    pub fn stop_clean(&self, unsettled: &[Arc<str>]) {
        let mut rows = lock(&self.world.disk);
        let next = rows.run + 1;
        for scope in unsettled {
            rows.rows
                .get_mut(&**scope)
                .into_iter()
                .for_each(|row| row.marked = next);
        }
        rows.clean = true;
    }

    fn delay(&self, often: u64) -> Duration {
        let mut rng = lock(&self.rng);
        if one_in(&mut rng, 8) {
            between(&mut rng, 0, 120)
        } else {
            between(&mut rng, 0, often)
        }
    }
}

impl Floors for Disk {
    fn load(&self, scope: &str) -> Result<Option<Stored>, StateError> {
        let rows = lock(&self.world.disk);
        Ok(rows.rows.get(scope).map(|row| Stored {
            floor: row.floor,
            opened: row.opened,
            unsettled: row.settled.max(rows.all_settled) < rows.unclean.max(row.marked),
        }))
    }

    fn has_own(&self, scope: &str) -> Result<bool, StateError> {
        self.load(scope).map(|stored| stored.is_some())
    }

    fn close(&self, scope: &Arc<str>, floor: Token, done: Durable) {
        let (before, after) = (self.delay(10), self.delay(5));
        let (world, scope, run) = (Arc::clone(&self.world), Arc::clone(scope), self.run);
        spawn_local(async move {
            sleep(before).await;
            if world.disk_full.load(SeqCst) {
                return done(Err(StateError("no space left".into())));
            }
            {
                let mut rows = lock(&world.disk);
                let row = rows.rows.entry(scope.to_string()).or_insert(Row {
                    floor,
                    opened: false,
                    settled: run,
                    marked: 0,
                });
                if row.floor < floor {
                    row.floor = floor;
                    row.opened = false;
                }
            }
            sleep(after).await;
            done(Ok(()));
        });
    }

    fn opened(&self, scope: &Arc<str>, floor: Token) {
        let (world, scope, run) = (Arc::clone(&self.world), Arc::clone(scope), self.run);
        let delay = self.delay(40);
        spawn_local(async move {
            sleep(delay).await;
            let mut rows = lock(&world.disk);
            if let Some(row) = rows.rows.get_mut(&*scope)
                && row.floor == floor
            {
                row.opened = true;
                row.settled = run;
            }
        });
    }
}
