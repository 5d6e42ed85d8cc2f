//! Sequences of events on one scope, with and without a lease store. Each byte is an event; the high bits choose among what it
//! can be about. What must hold: nobody is admitted who was not granted the lease, none after a newer one, and none
//! while an older write may still be applied.
//!
//! `cargo +nightly fuzz run scope`
#![no_main]

use libfuzzer_sys::fuzz_target;
use palisade_fence::{Action, Arrival, Decision, ReadId, Reading, Scope, Time, Token, Unreadable};

const SETTLE: u64 = 10;

struct World {
    verify: bool,
    scope: Scope,
    /// The lease store, revision by revision, each with the grant at that moment.
    store: Vec<(u64, Option<u64>)>,
    read: Option<(ReadId, usize)>,
    closing: Option<Token>,
    waiting: Vec<Arrival>,
    /// By token, until when each may be applied; `u64::MAX` while it is in flight, 0 when it is settled.
    writes: Vec<(u64, u64)>,
    now: u64,
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

impl World {
    fn new(verify: bool) -> Self {
        Self {
            verify,
            scope: Scope::new(verify),
            store: vec![(1, None)],
            read: None,
            closing: None,
            waiting: Vec::new(),
            writes: Vec::new(),
            now: 1,
        }
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn event(&mut self, byte: u8) {
        let (event, which) = (byte & 15, usize::from(byte >> 4));
        let (revision, _) = self.store[self.store.len() - 1];
        match event {
            0 => self.store.push((revision + 1, Some(revision + 1))),
            1 => self.store.push((revision + 1, None)),
            2..=4 => {
                let number = (revision + 2).saturating_sub(which as u64).max(1);
                self.waiting.push(self.scope.arrive(token(number)));
            }
            5 | 6 => {
                if let Some((id, sent)) = self.read.take() {
                    let since = &self.store[sent..];
                    let (revision, grant) = since[which % since.len()];
                    let grant = grant.map(token);
                    let now = self.time();
                    self.scope.read(id, Ok(Reading { grant, revision }), now);
                }
            }
            7 => {
                if let Some((id, _)) = self.read.take() {
                    let now = self.time();
                    self.scope.read(id, Err(Unreadable::Unavailable), now);
                }
            }
            8 => {
                // News may be old, and come twice.
                if let (_, Some(grant)) = self.store[self.store.len().saturating_sub(1 + which)] {
                    let now = self.time();
                    self.scope.granted(token(grant), now);
                }
            }
            9 | 10 => self
                .closing
                .take()
                .into_iter()
                .for_each(|floor| self.scope.durable(floor)),
            11 => self
                .closing
                .take()
                .into_iter()
                .for_each(|_| self.scope.not_durable()),
            12 | 13 => {
                let flying = self.writes.iter_mut().filter(|write| write.1 == u64::MAX);
                if let Some(write) = flying.into_iter().nth(which) {
                    if event == 12 {
                        write.1 = 0;
                        self.scope.settled(token(write.0));
                    } else {
                        write.1 = self.now + SETTLE;
                        self.scope
                            .ambiguous(token(write.0), Time::from_nanos(write.1));
                    }
                }
            }
            14 => {
                self.scope.settle_ambiguous();
                let ambiguous = self.writes.iter_mut().filter(|write| write.1 != u64::MAX);
                ambiguous.for_each(|write| write.1 = 0);
            }
            _ => self.now += which as u64,
        }
        self.ask_again();
    }

    fn ask_again(&mut self) {
        for mut arrival in std::mem::take(&mut self.waiting) {
            match self.scope.decide(&mut arrival, Time::from_nanos(self.now)) {
                Decision::Wait => self.waiting.push(arrival),
                Decision::Admit => self.admitted(arrival.token().get()),
                Decision::Refuse(_) => {}
            }
            while let Some(action) = self.scope.poll_action() {
                match action {
                    Action::Read(id) => {
                        assert!(self.verify && self.read.is_none());
                        self.read = Some((id, self.store.len() - 1));
                    }
                    Action::Close(floor) => assert!(self.closing.replace(floor).is_none()),
                    Action::RecordOpened(floor) => assert_eq!(Some(floor), self.scope.floor()),
                }
            }
        }
    }

    fn admitted(&mut self, number: u64) {
        let granted = self.store.iter().any(|moment| moment.1 == Some(number));
        assert!(granted || !self.verify, "{number} was never granted");
        for &(older, until) in &self.writes {
            assert!(older <= number, "{number} after {older}");
            assert!(
                older == number || until <= self.now,
                "{number} while {older} may be applied"
            );
        }
        self.scope.start(token(number)).expect("an open floor");
        self.writes.push((number, u64::MAX));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, events)) = bytes.split_first() else {
        return;
    };
    let mut world = World::new(first & 1 == 1);
    events.iter().for_each(|&byte| world.event(byte));
});
