//! The gate over a disk that says exactly how it fails. The real disk and the real lease store have tests of their own.

use super::*;
use crate::state::{Durable, StateError};
use palisade_fence::{Reading, Sent, conclude};
use palisade_lease::clock::BootClock;
use std::{collections::HashMap, sync::Mutex, task::Poll};

/// A disk that holds every close back until it is told what to answer.
#[derive(Default)]
struct Disk {
    rows: Mutex<HashMap<String, crate::state::Stored>>,
    held: Mutex<Vec<(String, Token, Durable)>>,
    hold: AtomicBool,
}

impl Disk {
    fn finish(&self, full: bool) {
        for (scope, floor, done) in std::mem::take(&mut *self.held.lock().unwrap()) {
            if full {
                done(Err(StateError("no space left".into())));
            } else {
                let row = crate::state::Stored {
                    floor,
                    opened: false,
                    unsettled: false,
                };
                self.rows.lock().unwrap().insert(scope, row);
                done(Ok(()));
            }
        }
    }
}

impl Floors for Disk {
    fn load(&self, scope: &str) -> Result<Option<crate::state::Stored>, StateError> {
        Ok(self.rows.lock().unwrap().get(scope).copied())
    }

    fn has_own(&self, scope: &str) -> Result<bool, StateError> {
        Ok(self.rows.lock().unwrap().contains_key(scope))
    }

    fn close(&self, scope: &Arc<str>, floor: Token, done: Durable) {
        self.held
            .lock()
            .unwrap()
            .push((scope.to_string(), floor, done));
        if !self.hold.load(Relaxed) {
            self.finish(false);
        }
    }

    fn opened(&self, scope: &Arc<str>, floor: Token) {
        let mut rows = self.rows.lock().unwrap();
        rows.get_mut(&**scope)
            .into_iter()
            .filter(|row| row.floor == floor)
            .for_each(|row| row.opened = true);
    }
}

/// A lease store that answers when it is told to.
#[derive(Default)]
struct Store(Mutex<Vec<crate::authority::ReadDone>>);

impl Store {
    fn answer(&self, answer: Result<Reading, Unreadable>) {
        let asked = std::mem::take(&mut *self.0.lock().unwrap());
        assert!(!asked.is_empty(), "nothing was asked");
        asked.into_iter().for_each(|done| done(answer));
    }
}

impl Authority for Store {
    fn read(&self, _: &Arc<str>, done: crate::authority::ReadDone) {
        self.0.lock().unwrap().push(done);
    }
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn settings() -> GateSettings {
    GateSettings {
        settle: Settle::Manual,
        abort_after: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(600),
        waiting: 3,
    }
}

fn gate(disk: &Arc<Disk>, store: Option<&Arc<Store>>) -> Arc<Gate> {
    let authority = store.map(|store| Arc::clone(store) as Arc<dyn Authority>);
    let floors = Arc::clone(disk) as Arc<dyn Floors>;
    Gate::new(floors, Arc::new(BootClock), settings(), |_| authority)
}

fn name() -> Arc<str> {
    "nightly".into()
}

async fn pass(gate: &Arc<Gate>, token: Token) -> Result<Pass, Closed> {
    gate.pass(&name(), token, true, 0).await
}

/// Polls once: whether it is ready yet.
async fn now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = future;
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn the_next_holder_waits_for_the_write_in_flight() {
    let gate = gate(&Arc::default(), None);
    let ticket = pass(&gate, token(33)).await.ok().unwrap().start().unwrap();
    let mut next = pin!(pass(&gate, token(34)));
    assert!(now(next.as_mut()).await.is_none());
    ticket.end(conclude(Sent::Completely, Some(200)));
    assert!(next.await.is_ok());
}

#[tokio::test]
async fn a_dropped_ticket_is_ambiguous_and_an_operator_settles_it() {
    let gate = gate(&Arc::default(), None);
    drop(pass(&gate, token(33)).await.ok().unwrap().start().unwrap());
    let mut next = pin!(pass(&gate, token(34)));
    assert!(now(next.as_mut()).await.is_none());
    assert_eq!(&*gate.unsettled(), [name()]);
    assert_eq!(gate.settle(&name()), Ok(Some(1)));
    assert!(next.await.is_ok());
    assert_eq!(gate.settle(&"unheard of".into()), Ok(None));
    assert_eq!(gate.in_memory(), 1, "asking makes no scope");
}

#[tokio::test]
async fn nothing_passes_before_its_floor_is_durable() {
    let disk = Arc::new(Disk::default());
    disk.hold.store(true, Relaxed);
    let gate = gate(&disk, None);
    let mut first = pin!(pass(&gate, token(33)));
    assert!(now(first.as_mut()).await.is_none());
    disk.finish(true);
    assert_eq!(first.await.err(), Some(Closed::Refused(Refused::Storage)));
    let mut second = pin!(pass(&gate, token(33)));
    assert!(now(second.as_mut()).await.is_none());
    disk.finish(false);
    assert!(second.await.is_ok());
}

#[tokio::test]
async fn a_write_that_sends_learns_that_it_was_superseded() {
    let gate = gate(&Arc::default(), None);
    let waits = pass(&gate, token(33)).await.ok().unwrap();
    let sends = pass(&gate, token(33)).await.ok().unwrap().start().unwrap();
    let mut cut = pin!(sends.cut_at());
    assert!(now(cut.as_mut()).await.is_none());
    News(Arc::downgrade(&gate)).granted("nightly", token(34));
    assert!(now(cut.as_mut()).await.is_some());
    assert_eq!(
        waits.superseded().await,
        palisade_fence::Superseded { highest: token(34) }
    );
    assert!(waits.start().is_err());
}

#[tokio::test]
async fn a_grant_makes_no_scope_where_there_is_none() {
    let gate = gate(&Arc::default(), Some(&Arc::default()));
    News(Arc::downgrade(&gate)).granted("nightly", token(34));
    assert_eq!(gate.in_memory(), 0);
}

#[tokio::test]
async fn a_frozen_gate_lets_nothing_pass() {
    let store = Arc::new(Store::default());
    let gate = gate(&Arc::default(), Some(&store));
    let mut waits = pin!(pass(&gate, token(33)));
    assert!(now(waits.as_mut()).await.is_none());
    News(Arc::downgrade(&gate)).trusted(false);
    store.answer(Ok(Reading {
        grant: Some(token(33)),
        revision: 33,
    }));
    let changed = Some(Closed::Refused(Refused::Unreadable(Unreadable::Changed)));
    assert_eq!(waits.await.err(), changed);
    assert_eq!(pass(&gate, token(33)).await.err(), changed);
}

#[tokio::test]
async fn those_who_wait_are_limited() {
    let gate = gate(&Arc::default(), Some(&Arc::default()));
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(pass(&gate, token(33)))).collect();
    for request in &mut waiting {
        assert!(now(request.as_mut()).await.is_none());
    }
    assert_eq!(gate.waiting(), 3);
    assert_eq!(pass(&gate, token(33)).await.err(), Some(Closed::Overloaded));
    drop(waiting);
    assert_eq!(gate.waiting(), 0);
}

#[tokio::test]
async fn what_leaves_memory_comes_back_from_disk() {
    let gate = gate(&Arc::default(), None);
    let ticket = pass(&gate, token(33)).await.ok().unwrap().start().unwrap();
    gate.sweep();
    gate.sweep();
    assert_eq!(gate.in_memory(), 1, "it is in use");
    ticket.end(conclude(Sent::Completely, Some(200)));
    gate.sweep();
    assert_eq!(gate.in_memory(), 0);
    let stale = Refused::Stale { highest: token(33) };
    assert_eq!(
        pass(&gate, token(32)).await.err(),
        Some(Closed::Refused(stale))
    );
}

#[tokio::test]
async fn a_reload_waits_for_those_inside_and_those_outside_look_again() {
    let gate = gate(&Arc::default(), None);
    let inside = pass(&gate, token(33)).await.ok().unwrap();
    gate.hold();
    assert!(!gate.is_settled(), "one has passed and not sent yet");
    let ticket = inside.start().unwrap();
    assert!(!gate.is_settled(), "it is in flight");
    let mut outside = pin!(pass(&gate, token(33)));
    assert!(now(outside.as_mut()).await.is_none());
    ticket.end(conclude(Sent::Completely, Some(200)));
    assert!(gate.is_settled());
    gate.release(1);
    assert_eq!(outside.await.err(), Some(Closed::Reloaded));
    assert_eq!(
        pass(&gate, token(33)).await.err(),
        Some(Closed::Reloaded),
        "its table is the old one"
    );
    assert!(gate.pass(&name(), token(33), true, 1).await.is_ok());
}

/// A clock that stands where it is put.
#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Relaxed))
    }
}

/// A floor that was closed and whose settle time had passed without anybody asking for it made every request with a newer
/// token spin until the lease store had answered: it looked at the time when the older floor could open, which was over.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_lease_store_does_not_spin() {
    let (store, clock) = (Arc::new(Store::default()), Arc::new(Hand::default()));
    let second = Duration::from_secs(1);
    let settings = GateSettings {
        settle: Settle::After(second),
        ..settings()
    };
    let authority = Arc::clone(&store) as Arc<dyn Authority>;
    let gate = Gate::new(
        Arc::<Disk>::default(),
        Arc::clone(&clock) as _,
        settings,
        |_| Some(authority),
    );
    let mut first = Box::pin(pass(&gate, token(33)));
    assert!(now(first.as_mut()).await.is_none());
    store.answer(Ok(Reading {
        grant: Some(token(33)),
        revision: 33,
    }));
    drop(first.await.ok().unwrap().start().unwrap());
    News(Arc::downgrade(&gate)).granted("nightly", token(34));
    clock.0.store(2 * second.as_nanos() as u64, Relaxed);
    let mut newest = pin!(pass(&gate, token(35)));
    let mut polls = 0;
    let counted = std::future::poll_fn(|cx| {
        polls += 1;
        assert!(polls < 5, "it has nothing to do yet");
        newest.as_mut().poll(cx)
    });
    // Time goes on only when there is nothing to do.
    assert!(tokio::time::timeout(second, counted).await.is_err());
    store.answer(Ok(Reading {
        grant: Some(token(35)),
        revision: 35,
    }));
    assert!(newest.await.is_ok());
}
