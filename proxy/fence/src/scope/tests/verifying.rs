//! The scope with a lease store, against the store's whole history: grants, reads whose answers are late, news that comes late
//! or not at all, requests that wait. What must hold is said of the history, not of how the scope decides.

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// The lease is granted anew, some revisions on.
    Grant(u64),
    /// Nobody has it any more.
    Release,
    /// A request with the token of some grant.
    Holder(prop::sample::Index),
    /// A request with some number near the store's revision.
    Forged(u64),
    /// The read under way is answered, with what the store said at some moment since it was sent.
    Answer(prop::sample::Index),
    /// It is not.
    NoAnswer,
    /// The watch brings its next grant.
    News,
    Durable,
    NotDurable,
    Settle(prop::sample::Index),
    Ambiguous(prop::sample::Index),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => (1u64..4).prop_map(Event::Grant),
        1 => Just(Event::Release),
        6 => index().prop_map(Event::Holder),
        2 => (0u64..8).prop_map(Event::Forged),
        4 => index().prop_map(Event::Answer),
        1 => Just(Event::NoAnswer),
        2 => Just(Event::News),
        4 => Just(Event::Durable),
        1 => Just(Event::NotDurable),
        3 => index().prop_map(Event::Settle),
        2 => index().prop_map(Event::Ambiguous),
        2 => (1u64..SETTLE).prop_map(Event::Wait),
    ]
}

/// The store at one revision.
#[derive(Clone, Copy, Debug)]
struct Moment {
    revision: u64,
    grant: Option<u64>,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    number: u64,
    /// How far the store's history was.
    since: usize,
}

struct World {
    scope: Scope,
    store: Vec<Moment>,
    /// How many moments the watch has told.
    told: usize,
    /// The highest grant that the scope was told of, by whatever way.
    known: Option<u64>,
    read: Option<(ReadId, usize)>,
    closing: Option<Token>,
    waiting: Vec<Waiting>,
    writes: Vec<(u64, Fate)>,
    now: u64,
}

type Checked = Result<(), TestCaseError>;

impl World {
    fn new() -> Self {
        Self {
            scope: Scope::new(true),
            store: vec![Moment {
                revision: 1,
                grant: None,
            }],
            told: 0,
            known: None,
            read: None,
            closing: None,
            waiting: vec![],
            writes: vec![],
            now: 0,
        }
    }

    fn store_now(&self) -> Moment {
        self.store[self.store.len() - 1]
    }

    fn grants(&self) -> Vec<u64> {
        self.store
            .iter()
            .filter_map(|moment| moment.grant)
            .collect()
    }

    fn may_be_applied(&self, fate: Fate) -> bool {
        match fate {
            Fate::InFlight => true,
            Fate::Until(until) => until > self.now,
            Fate::Settled => false,
        }
    }

    fn request(&mut self, number: u64) {
        self.waiting.push(Waiting {
            arrival: self.scope.arrive(token(number)),
            number,
            since: self.store.len() - 1,
        });
    }

    /// Lets a random write that is in flight end.
    fn end(&mut self, which: prop::sample::Index, fate: Fate) {
        let flying = |w: &usize| self.writes[*w].1 == Fate::InFlight;
        let flying: Vec<usize> = (0..self.writes.len()).filter(flying).collect();
        if flying.is_empty() {
            return;
        }
        let write = &mut self.writes[*which.get(&flying)];
        write.1 = fate;
        match fate {
            Fate::Until(until) => self.scope.ambiguous(token(write.0), at(until)),
            _ => self.scope.settled(token(write.0)),
        }
    }

    fn told_of(&mut self, grant: Option<u64>) {
        self.known = self.known.max(grant);
    }

    fn answer(&mut self, which: impl FnOnce(&[Moment]) -> Moment) {
        if let Some((id, sent)) = self.read.take() {
            let said = which(&self.store[sent..]);
            self.told_of(said.grant);
            let reading = Reading {
                grant: said.grant.map(token),
                revision: said.revision,
            };
            self.scope.read(id, Ok(reading), at(self.now));
        }
    }

    fn happens(&mut self, event: Event) {
        let now = self.store_now();
        match event {
            Event::Grant(ahead) => {
                let revision = now.revision + ahead;
                self.store.push(Moment {
                    revision,
                    grant: Some(revision),
                });
            }
            Event::Release => self.store.push(Moment {
                revision: now.revision + 1,
                grant: None,
            }),
            Event::Holder(which) => {
                let grants = self.grants();
                if !grants.is_empty() {
                    self.request(*which.get(&grants));
                }
            }
            Event::Forged(ahead) => self.request(now.revision + ahead),
            Event::Answer(which) => self.answer(|since| *which.get(since)),
            Event::NoAnswer => {
                if let Some((id, _)) = self.read.take() {
                    let away = Err(Unreadable::Unavailable);
                    self.scope.read(id, away, at(self.now));
                }
            }
            Event::News => {
                if let Some(&moment) = self.store.get(self.told) {
                    self.told += 1;
                    self.told_of(moment.grant);
                    let grant = moment.grant.map(token);
                    grant
                        .into_iter()
                        .for_each(|grant| self.scope.granted(grant, at(self.now)));
                }
            }
            Event::Durable => {
                let closing = self.closing.take();
                closing
                    .into_iter()
                    .for_each(|floor| self.scope.durable(floor));
            }
            Event::NotDurable => {
                if self.closing.take().is_some() {
                    self.scope.not_durable();
                }
            }
            Event::Settle(which) => self.end(which, Fate::Settled),
            Event::Ambiguous(which) => self.end(which, Fate::Until(self.now + SETTLE)),
            Event::Wait(time) => self.now += time,
        }
    }

    /// As the shell does after each event: carries out what is asked for, and asks again for everyone who waits.
    fn pump(&mut self) -> Checked {
        let mut waiting = std::mem::take(&mut self.waiting);
        // The end of one may be what another waits for, and an action may need a second look.
        for _ in 0..2 {
            let mut still = vec![];
            for mut one in waiting {
                match self.scope.decide(&mut one.arrival, at(self.now)) {
                    Decision::Wait => still.push(one),
                    decision => self.decided(&one, decision)?,
                }
                self.carry_out()?;
            }
            waiting = still;
        }
        self.waiting = waiting;
        prop_assert_eq!(self.scope.floor().map(Token::get), self.known, "I1");
        Ok(())
    }

    fn carry_out(&mut self) -> Checked {
        while let Some(action) = self.scope.poll_action() {
            match action {
                Action::Read(id) => {
                    prop_assert!(self.read.is_none(), "two reads at once");
                    self.read = Some((id, self.store.len() - 1));
                }
                Action::Close(floor) => {
                    prop_assert!(
                        self.closing.is_none(),
                        "two floors on their way to the disk"
                    );
                    self.closing = Some(floor);
                }
                Action::RecordOpened(floor) => {
                    prop_assert_eq!(Some(floor.get()), self.known);
                    prop_assert!(self.scope.is_open());
                }
            }
        }
        Ok(())
    }

    fn decided(&mut self, request: &Waiting, decision: Decision) -> Checked {
        let number = request.number;
        // Who has held the lease all the time since the request came.
        let holder = self.store[request.since..]
            .iter()
            .all(|moment| moment.grant == Some(number));
        match decision {
            Decision::Admit => {
                prop_assert!(
                    self.grants().contains(&number),
                    "{} was never granted",
                    number
                );
                prop_assert_eq!(Some(number), self.known);
                let before = self.writes.iter();
                prop_assert!(
                    before.clone().all(|&(older, _)| older <= number),
                    "G1: {} after {:?}",
                    number,
                    self.writes
                );
                prop_assert!(
                    before
                        .clone()
                        .all(|&(older, fate)| older == number || !self.may_be_applied(fate)),
                    "G2: {} while {:?} may be applied",
                    number,
                    self.writes
                );
                self.scope.start(token(number)).unwrap();
                self.writes.push((number, Fate::InFlight));
            }
            Decision::Refuse(Refused::Stale { highest } | Refused::Superseded { highest }) => {
                prop_assert!(number < highest.get());
                prop_assert!(!holder, "the holder {} is told of {}", number, highest);
            }
            Decision::Refuse(Refused::NotHolder { .. }) => {
                prop_assert!(!holder, "the holder {} is no holder", number);
            }
            Decision::Refuse(Refused::Unreadable(_) | Refused::Storage) => {}
            Decision::Wait => unreachable!(),
        }
        Ok(())
    }

    /// The lease store and the disk answer from now on, and every write ends.
    fn all_well(&mut self) -> Checked {
        for _ in 0..6 {
            self.answer(|since| since[since.len() - 1]);
            self.happens(Event::Durable);
            for write in 0..self.writes.len() {
                if self.writes[write].1 == Fate::InFlight {
                    self.writes[write].1 = Fate::Settled;
                    self.scope.settled(token(self.writes[write].0));
                }
            }
            self.now += SETTLE;
            self.pump()?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whoever is admitted was granted the lease, in order and after all that is older; the holder is never called anything
    /// else; and once the store and the disk answer, nobody is left waiting and the holder gets in.
    #[test]
    fn believes_the_store_and_nobody_else(events in proptest::collection::vec(event(), 1..100)) {
        let mut world = World::new();
        for event in events {
            world.happens(event);
            world.pump()?;
        }
        world.all_well()?;
        prop_assert!(world.waiting.is_empty(), "left waiting: {:?}", world.waiting);
        if let Some(holder) = world.store_now().grant {
            world.request(holder);
            world.pump()?;
            world.all_well()?;
            prop_assert_eq!(world.writes.last().map(|write| write.0), Some(holder));
        }
    }
}
