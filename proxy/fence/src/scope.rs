//! One scope: its floor, the raise under way, the writes in flight.

use crate::{
    Stored, Time, Token,
    rules::{Rule, Rules},
    unsettled::Unsettled,
};

mod decision;
mod shell;

pub use decision::{Arrival, Decision, Refused, Superseded};
pub use shell::{Action, ReadId, Reading, Unreadable};

/// What the last finished read means for a request whose token it did not confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct LastRead {
    id: ReadId,
    failed: Option<Unreadable>,
}

/// One scope of the datastore, guarded by one lease.
///
/// Invariants, checked after each event:
/// - I1 `floor` never falls.
/// - I2 `durable` is not above `floor`.
/// - I3 `opened` means that `durable` is `floor` and that no write with a smaller token is unsettled.
/// - I4 a write starts only with the token of a floor that has opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    rules: Rules,
    /// Whether a lease store says who holds the lease; if not, the highest token seen is believed.
    verify: bool,
    /// I1. The highest token accepted; also the raise under way, until `opened`.
    floor: Option<Token>,
    /// Whether `floor` is known to be a grant of this lease. One that only closes what is below (after a crash, at a join,
    /// in a new epoch) is verified like a newer one when it comes.
    held: bool,
    /// I3.
    opened: bool,
    /// When `floor` last rose.
    closed_at: Time,
    /// I2. The highest floor known to be on disk.
    durable: Option<Token>,
    /// The floor on its way to the disk.
    closing: Option<Token>,
    close_wanted: bool,
    failures: u64,
    record_wanted: bool,
    reads_sent: ReadId,
    read_outstanding: bool,
    read_wanted: bool,
    last_read: LastRead,
    /// Whether other replicas must agree before a floor opens.
    grouped: bool,
    /// The highest floor to which they have agreed.
    cleared: Option<Token>,
    /// Readings from before this revision say nothing: the watch had a gap since.
    least_revision: u64,
    /// The newest reading: a token not above its revision that is not its grant will never be the current grant.
    reading: Option<Reading>,
    unsettled: Unsettled,
}

impl Scope {
    /// A scope that no token was ever accepted for. `verify`: whether there is a lease store to ask.
    pub fn new(verify: bool) -> Self {
        Self {
            rules: Rules::default(),
            verify,
            floor: None,
            held: false,
            opened: false,
            closed_at: Time::ZERO,
            durable: None,
            closing: None,
            close_wanted: false,
            failures: 0,
            record_wanted: false,
            reads_sent: 0,
            read_outstanding: false,
            read_wanted: false,
            last_read: LastRead::default(),
            grouped: false,
            cleared: None,
            least_revision: 0,
            reading: None,
            unsettled: Unsettled::default(),
        }
    }

    /// A scope as it stands on disk. `leftovers_until`: if the last stop left writes that may still be applied, when
    /// they are settled by time ([`Time::NEVER`]: when an operator says so).
    pub fn load(verify: bool, stored: Stored, leftovers_until: Option<Time>) -> Self {
        Self::new(verify).loaded(stored, leftovers_until)
    }

    /// [`Scope::load`] with a rule taken out.
    #[cfg(feature = "sabotage")]
    pub fn load_without(
        without: Option<Rule>,
        verify: bool,
        stored: Stored,
        leftovers_until: Option<Time>,
    ) -> Self {
        Self::new_without(without, verify).loaded(stored, leftovers_until)
    }

    /// [`Scope::new`] with a rule taken out.
    #[cfg(feature = "sabotage")]
    pub fn new_without(without: Option<Rule>, verify: bool) -> Self {
        Self {
            rules: Rules { without },
            ..Self::new(verify)
        }
    }

    /// As one of several replicas: a floor opens only when the others agree, see [`Scope::clear`].
    #[must_use]
    pub fn grouped(mut self) -> Self {
        self.grouped = true;
        self
    }

    fn loaded(mut self, stored: Stored, leftovers_until: Option<Time>) -> Self {
        self.floor = Some(stored.floor);
        self.durable = Some(stored.floor);
        self.opened = stored.opened || !self.rules.hold(Rule::ClosedIsNotOpened);
        self.held = self.opened || !self.verify;
        if let Some(until) = leftovers_until
            && self.rules.hold(Rule::CrashRemembersWrites)
        {
            // Its own writes may be left, even if it is not recorded as opened: the record comes later.
            self.unsettled.leftover(stored.floor, until);
            if !self.opened {
                let older = Token::new(stored.floor.get() - 1);
                older
                    .into_iter()
                    .for_each(|token| self.unsettled.leftover(token, until));
            }
        }
        self.checked();
        self
    }

    /// A request has arrived.
    pub fn arrive(&self, token: Token) -> Arrival {
        Arrival {
            token,
            reads: self.reads_sent,
            failures: self.failures,
            accepted: false,
        }
    }

    /// What is to be done with a request at the gate, a write or a read with a token alike.
    pub fn decide(&mut self, arrival: &mut Arrival, now: Time) -> Decision {
        let token = arrival.token;
        if self
            .floor
            .is_none_or(|floor| token > floor || (token == floor && !self.held))
        {
            if !self.verify || !self.rules.hold(Rule::HolderCheck) {
                self.close(token, now);
            } else {
                return self.decide_unverified(arrival);
            }
        }
        match self.floor {
            Some(highest) if token < highest && arrival.accepted => {
                Decision::Refuse(Refused::Superseded { highest })
            }
            Some(highest) if token < highest => Decision::Refuse(Refused::Stale { highest }),
            _ => {
                arrival.accepted = true;
                self.decide_accepted(arrival, now)
            }
        }
    }

    /// A token above the floor: only the lease store's word can raise it.
    fn decide_unverified(&mut self, arrival: &Arrival) -> Decision {
        let not_holder = Decision::Refuse(Refused::NotHolder {
            highest: self.floor,
        });
        // Grants have growing tokens: what was not the grant at revision R and is not above R never will be again.
        if self
            .reading
            .is_some_and(|r| arrival.token.get() <= r.revision && r.grant != Some(arrival.token))
        {
            return not_holder;
        }
        let its_read =
            arrival.reads < self.last_read.id || !self.rules.hold(Rule::SharedNoOnlyForEarlier);
        match self.last_read {
            LastRead {
                id,
                failed: Some(why),
            } if id > 0 && its_read => Decision::Refuse(Refused::Unreadable(why)),
            LastRead { id, failed: None } if id > 0 && its_read => not_holder,
            _ => {
                // The read that is outstanding was sent before this request came, unless the request waits for it.
                self.read_wanted |= !(self.read_outstanding && arrival.reads < self.reads_sent);
                Decision::Wait
            }
        }
    }

    /// A token that is the floor.
    fn decide_accepted(&mut self, arrival: &Arrival, now: Time) -> Decision {
        if self.try_open(now) {
            return Decision::Admit;
        }
        if self.durable < self.floor && self.closing.is_none() {
            if arrival.failures < self.failures {
                return Decision::Refuse(Refused::Storage);
            }
            self.close_wanted = true;
        }
        Decision::Wait
    }

    /// Step 2 of a raise: from here every smaller token is refused.
    fn close(&mut self, token: Token, now: Time) {
        self.close_below(token, now);
        self.held = true;
    }

    /// Refuses every smaller token. That nobody is known to hold this one: it is verified when it comes.
    fn close_below(&mut self, floor: Token, now: Time) {
        self.floor = Some(floor);
        self.held = false;
        self.opened = false;
        self.record_wanted = false;
        self.closed_at = now;
        self.close_wanted = true;
    }

    /// Steps 3 and 4: opens the floor if nothing stands against it; whether it is open.
    fn try_open(&mut self, now: Time) -> bool {
        let Some(floor) = self.floor else {
            return false;
        };
        if self.opened {
            return true;
        }
        if !self.held {
            return false;
        }
        if self.durable < self.floor && self.rules.hold(Rule::DurableBeforeOpen) {
            return false;
        }
        if self.grouped && self.cleared < self.floor {
            return false;
        }
        self.unsettled.pass(now);
        if self.unsettled.below(floor) && self.rules.hold(Rule::Drain) {
            return false;
        }
        self.opened = true;
        self.record_wanted = true;
        self.checked();
        true
    }

    /// An admitted write is about to send its first byte. From here on it is in flight, until [`Scope::settled`] or
    /// [`Scope::ambiguous`]. "Nothing sent" and "start sending" are one atomic change: once a newer token has closed the
    /// scope, nothing of this write will be sent.
    pub fn start(&mut self, token: Token) -> Result<(), Superseded> {
        match self.floor {
            Some(highest) if token != highest && self.rules.hold(Rule::StartLooksAgain) => {
                Err(Superseded { highest })
            }
            _ => {
                // I4
                assert!(
                    self.opened || !self.sound(),
                    "I4: a write starts with the token of a floor that has not opened"
                );
                self.unsettled.start(token);
                Ok(())
            }
        }
    }

    /// A write in flight is settled: upstream will do nothing more for it.
    pub fn settled(&mut self, token: Token) {
        self.unsettled.settle(token);
    }

    /// A write in flight ended without an answer that settles it: it may still be applied, until its settle time is
    /// over ([`Time::NEVER`]: until an operator settles it).
    pub fn ambiguous(&mut self, token: Token, until: Time) {
        self.unsettled.ambiguous(token, until);
    }

    /// An operator says that the writes that are ambiguous at this moment are settled; how many that were.
    pub fn settle_ambiguous(&mut self) -> u32 {
        self.unsettled.settle_ambiguous()
    }

    /// The lease store has answered a read.
    pub fn read(&mut self, id: ReadId, answer: Result<Reading, Unreadable>, now: Time) {
        assert!(
            self.read_outstanding && id == self.reads_sent,
            "an answer to a read that is not outstanding"
        );
        self.read_outstanding = false;
        // What was read before a gap in the watch may have been overtaken in the gap.
        let answer = answer.and_then(|reading| {
            if reading.revision < self.least_revision {
                Err(Unreadable::Unavailable)
            } else {
                Ok(reading)
            }
        });
        self.last_read = LastRead {
            id,
            failed: answer.err(),
        };
        if let Ok(reading) = answer {
            // I1: the answer may be older than the watch's news, or than another floor from the disk.
            if self
                .reading
                .is_none_or(|known| known.revision <= reading.revision)
            {
                self.reading = Some(reading);
            }
            reading
                .grant
                .into_iter()
                .for_each(|grant| self.granted(grant, now));
        }
    }

    /// The lease store says that this token was granted. If it is newer than the floor it is raised, without waiting for
    /// the new holder's first request.
    pub fn granted(&mut self, token: Token, now: Time) {
        if self.floor.is_none_or(|floor| token > floor) || !self.rules.hold(Rule::FloorOnlyRises) {
            self.close(token, now);
        }
        // A floor that nobody was known to hold has found its holder.
        self.held |= self.floor == Some(token);
        self.checked();
    }

    /// Whether a grant that is reported matters here: a scope without state takes no note.
    pub fn takes_note(&self) -> bool {
        self.floor.is_some() || !self.is_idle()
    }

    /// A replica has joined, or read everything anew after a gap in its watch: closes to every token up to this revision,
    /// except the lease's current grant. What was read before counts no more.
    pub fn joined(&mut self, revision: u64, grant: Option<Token>, now: Time) {
        if !self.rules.hold(Rule::ClosedAtJoin) {
            return;
        }
        self.least_revision = self.least_revision.max(revision);
        match (grant, Token::new(revision)) {
            _ if self.floor.is_none() => {}
            (Some(grant), _) => self.granted(grant, now),
            (None, Some(to)) if self.floor < Some(to) => self.close_below(to, now),
            (None, _) => {}
        }
        self.checked();
    }

    /// An operator has begun a new epoch (design, section 5): every token below this floor is refused, whatever may still
    /// be applied of earlier writes counts as unsettled until that moment, and what was read before counts no more. The
    /// floor is on disk by then.
    pub fn new_epoch(&mut self, floor: Token, unsettled_until: Time, now: Time) {
        if self.floor < Some(floor) {
            self.close_below(floor, now);
            self.close_wanted = false;
            self.durable = self.durable.max(Some(floor));
        }
        self.reading = None;
        self.least_revision = self.least_revision.max(floor.get());
        if let Some(older) = Token::new(floor.get() - 1) {
            self.unsettled.leftover(older, unsettled_until);
        }
        self.checked();
    }

    /// The other replicas agree that this floor opens. That stays true: none of them lets a smaller token pass any more.
    pub fn clear(&mut self, floor: Token) {
        self.cleared = self.cleared.max(Some(floor));
    }

    /// The floor that waits for the other replicas, if one does.
    pub fn wants_clearance(&self) -> Option<Token> {
        self.floor
            .filter(|_| self.grouped && self.held && !self.opened && self.cleared < self.floor)
    }

    /// Whether writes with tokens below the floor are unsettled: then this scope is on a replica's list.
    pub fn has_older_unsettled(&mut self, now: Time) -> bool {
        self.unsettled.pass(now);
        self.floor.is_some_and(|floor| self.unsettled.below(floor))
    }

    /// Whether the floor is on disk: a replica acks nothing before.
    pub fn is_durable(&self) -> bool {
        self.durable == self.floor
    }

    /// This floor is on disk.
    pub fn durable(&mut self, floor: Token) {
        self.closing = None;
        self.durable = self.durable.max(Some(floor));
        self.checked();
    }

    /// The floor could not be made durable: the scope stays closed, and those who wait are refused.
    pub fn not_durable(&mut self) {
        self.closing = None;
        self.close_wanted = false;
        self.failures += 1;
    }

    /// The next thing to carry out. Ask until there is none, after each event and each decision.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.read_wanted && !self.read_outstanding {
            self.read_wanted = false;
            self.read_outstanding = true;
            self.reads_sent += 1;
            return Some(Action::Read(self.reads_sent));
        }
        if let Some(floor) = self.floor {
            if self.close_wanted && self.closing.is_none() {
                self.close_wanted = false;
                if self.durable < self.floor {
                    self.closing = self.floor;
                    return Some(Action::Close(floor));
                }
            }
            if self.record_wanted {
                self.record_wanted = false;
                return Some(Action::RecordOpened(floor));
            }
        }
        None
    }

    /// When a closed floor can open by time alone: `None` if an event must come first, [`Time::NEVER`] if that event is
    /// an operator's word.
    pub fn opens_at(&self) -> Option<Time> {
        let floor = self
            .floor
            .filter(|_| !self.opened && self.durable == self.floor)?;
        self.unsettled.below_settles_at(floor)
    }

    /// When a newer token than this one closed the scope, if one has: its uploads have `abort_after` from then.
    pub fn closed_above(&self, token: Token) -> Option<Time> {
        self.floor
            .filter(|&floor| floor > token)
            .map(|_| self.closed_at)
    }

    /// Forgets what time has settled.
    pub fn pass(&mut self, now: Time) {
        self.unsettled.pass(now);
    }

    /// The floor: the highest token accepted.
    pub fn floor(&self) -> Option<Token> {
        self.floor
    }

    /// Whether the floor has opened.
    pub fn is_open(&self) -> bool {
        self.opened
    }

    /// When the floor last rose in this process.
    pub fn closed_at(&self) -> Time {
        self.closed_at
    }

    /// How many writes are in flight.
    pub fn in_flight(&self) -> u32 {
        self.unsettled.in_flight()
    }

    /// How many ambiguous writes have not been settled by time or an operator.
    pub fn settling(&self) -> u32 {
        self.unsettled.settling()
    }

    /// Whether nothing but the floor would be lost if the scope left memory: open and equal to disk, nothing in flight,
    /// settling, outstanding or to be carried out; or never raised at all.
    pub fn is_idle(&self) -> bool {
        // A floor that nobody holds is on disk what it is here: closed, and to be verified.
        let as_on_disk = self.durable == self.floor && (self.opened || !self.held);
        (as_on_disk || self.floor.is_none())
            && self.unsettled.is_empty()
            && self.closing.is_none()
            && !(self.read_outstanding
                || self.read_wanted
                || self.close_wanted
                || self.record_wanted)
    }

    /// The invariants that can be seen from one state. Cheap, so they are on in release too: it is better to stop than
    /// to let an older write pass.
    fn checked(&self) {
        if !self.sound() {
            return;
        }
        assert!(
            self.durable <= self.floor,
            "I2: a floor is on disk that is above the one in memory"
        );
        if self.opened {
            assert!(
                self.durable == self.floor,
                "I3: a floor has opened that is not on disk"
            );
            assert!(
                self.floor.is_some_and(|floor| !self.unsettled.below(floor)),
                "I3: a floor has opened with an older write unsettled"
            );
        }
    }

    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    const fn sound(&self) -> bool {
        true
    }

    /// A scope with a rule taken out breaks the invariants, as it should.
    #[cfg(feature = "sabotage")]
    fn sound(&self) -> bool {
        self.rules.without.is_none()
    }
}

#[cfg(test)]
mod tests;
