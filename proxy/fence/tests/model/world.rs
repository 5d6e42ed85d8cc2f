//! Everything round the core: what may happen, and what must hold.

use palisade_fence::{
    Action, Arrival, Decision, Outcome, Reading, Refused, Rule, Scope, Sent, Stored, Time, Token,
    Unreadable, conclude_without,
};
use stateright::{Model, Property};

/// How long an unanswered write may still be applied, in ticks of the clock.
const SETTLE: u64 = 1;

/// How often each thing may happen: what makes the model end.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Grants of the lease, each to a worker of its own.
    pub(crate) grants: u8,
    /// Writes each holder sends.
    pub(crate) writes: u8,
    /// Reads with a token each holder sends.
    pub(crate) reads: u8,
    /// Crashes of the proxy.
    pub(crate) crashes: u8,
    /// Answers that are lost or time out.
    pub(crate) losses: u8,
    /// Answers of a gateway that does not know (504), before the write is applied.
    pub(crate) lates: u8,
    /// Requests with a token from nowhere.
    pub(crate) forgeries: u8,
    /// Reads of the lease store that fail.
    pub(crate) read_failures: u8,
    /// Floors that can't be made durable.
    pub(crate) disk_failures: u8,
    /// Whether the watch reports grants.
    pub(crate) watch: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            grants: 2,
            writes: 1,
            reads: 0,
            crashes: 1,
            losses: 1,
            lates: 1,
            forgeries: 0,
            read_failures: 0,
            disk_failures: 0,
            watch: true,
        }
    }
}

/// Rules that the shell round the core keeps, taken out by a test.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) struct Shell {
    /// A write without an answer is sent once more.
    pub(crate) sends_again: bool,
    /// What is written to disk is gone after a crash.
    pub(crate) disk_forgets: bool,
    /// A read with a token does not ask the gate.
    pub(crate) reads_pass: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) bounds: Bounds,
    pub(crate) without: Option<Rule>,
    pub(crate) shell: Shell,
}

/// Where a request is in the proxy.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Place {
    Waiting(Arrival),
    Admitted,
    Sent,
    Over,
}

/// What upstream has of a write.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Upstream {
    Nothing,
    /// On its way or being worked on; applied before this moment or never.
    Pending(Time),
    Applied,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Request {
    token: Token,
    write: bool,
    place: Place,
    upstream: Upstream,
    again: Option<Upstream>,
    told: Option<Outcome>,
    applied: u8,
}

/// A read of the lease store under way: what it saw, once it has seen it.
type Seen = Option<Reading>;

/// A floor on its way to the disk, and whether it is there yet.
type Writing = (Token, bool);

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct State {
    scope: Scope,
    now: Time,
    left: Bounds,
    /// The lease store.
    revision: u64,
    grant: Option<Token>,
    unseen: Vec<Token>,
    /// What each holder has still to send: its token, writes, reads.
    holders: Vec<(Token, u8, u8)>,
    requests: Vec<Request>,
    reading: Option<(u64, Seen)>,
    closing: Option<Writing>,
    records: Vec<Token>,
    disk: Option<Stored>,
    /// The highest token of which something was forwarded, applied, and read under.
    forwarded: Option<Token>,
    applied: Option<Token>,
    claimed: Option<Token>,
    broken: Broken,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Broken {
    g1: bool,
    g2: bool,
    g3: bool,
    locked_out: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Step {
    Grant,
    Expire,
    Watch,
    Write(usize),
    Read(usize),
    Forge,
    Decide(usize),
    Start(usize),
    Unreachable(usize),
    StoreReads,
    StoreAnswers,
    StoreFails,
    DiskWrites,
    DiskAnswers,
    DiskFails,
    Record(usize),
    Apply(usize),
    ApplyAgain(usize),
    Answer(usize),
    AnswerLate(usize),
    Lose(usize),
    Tick,
    Crash,
}

impl World {
    /// Carries out what the core asks for, as far as that is only putting it on its way.
    fn dispatch(state: &mut State) {
        while let Some(action) = state.scope.poll_action() {
            match action {
                Action::Read(id) => state.reading = Some((id, None)),
                Action::Close(floor) => state.closing = Some((floor, false)),
                Action::RecordOpened(floor) => state.records.push(floor),
            }
        }
    }

    fn end(&self, state: &mut State, which: usize, sent: Sent, answer: Option<u16>) {
        let end = conclude_without(self.without, sent, answer);
        let until = state.now.after(std::time::Duration::from_nanos(SETTLE));
        let request = &mut state.requests[which];
        request.told = Some(end.outcome);
        request.place = Place::Over;
        if end.settled {
            state.scope.settled(request.token);
        } else {
            state.scope.ambiguous(request.token, until);
        }
        // A5 and A6: when upstream may still act on it.
        match (&mut request.upstream, answer) {
            (Upstream::Pending(deadline), None | Some(202 | 502 | 504)) => *deadline = until,
            (pending @ Upstream::Pending(_), Some(_)) => *pending = Upstream::Nothing,
            _ => {}
        }
    }

    fn apply(state: &mut State, which: usize) {
        let request = &mut state.requests[which];
        request.applied += 1;
        state.broken.g2 |= state.applied > Some(request.token);
        state.broken.g3 |= state.claimed > Some(request.token);
        state.applied = state.applied.max(Some(request.token));
    }

    fn decide(&self, state: &mut State, which: usize) {
        let request = &mut state.requests[which];
        let Place::Waiting(arrival) = &mut request.place else {
            return;
        };
        let decision = if self.shell.reads_pass && !request.write {
            Decision::Admit
        } else {
            state.scope.decide(arrival, state.now)
        };
        match decision {
            Decision::Wait => {}
            Decision::Admit if request.write => request.place = Place::Admitted,
            Decision::Admit => {
                // A8: it sees all that is applied; nothing older may be applied after it.
                request.place = Place::Over;
                request.told = Some(Outcome::Answered);
                state.claimed = state.claimed.max(Some(request.token));
            }
            Decision::Refuse(why) => {
                let gone = matches!(
                    why,
                    Refused::Stale { .. } | Refused::Superseded { .. } | Refused::NotHolder { .. }
                );
                state.broken.locked_out |= gone && state.grant == Some(request.token);
                request.place = Place::Over;
                request.told = Some(Outcome::Refused);
            }
        }
    }

    fn arrive(state: &mut State, token: Token, write: bool) {
        let place = Place::Waiting(state.scope.arrive(token));
        let upstream = Upstream::Nothing;
        state.requests.push(Request {
            token,
            write,
            place,
            upstream,
            again: None,
            told: None,
            applied: 0,
        });
    }

    fn crash(&self, state: &mut State) {
        let until = state.now.after(std::time::Duration::from_nanos(SETTLE));
        for request in &mut state.requests {
            if request.told.is_none() {
                // The connection to the client is cut: it learns nothing.
                request.told = Some(Outcome::Unknown);
                request.place = Place::Over;
                if let Upstream::Pending(deadline) = &mut request.upstream {
                    *deadline = until;
                }
            }
        }
        if self.shell.disk_forgets {
            state.disk = None;
        }
        state.reading = None;
        state.closing = None;
        state.records.clear();
        state.unseen.clear();
        state.scope = match state.disk {
            Some(stored) => Scope::load_without(self.without, true, stored, Some(until)),
            None => Scope::new_without(self.without, true),
        };
    }

    fn waiting(state: &State) -> impl Iterator<Item = &Request> {
        state
            .requests
            .iter()
            .filter(|r| matches!(r.place, Place::Waiting(_) | Place::Admitted))
    }

    fn request_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (which, request) in state.requests.iter().enumerate() {
            match &request.place {
                Place::Waiting(arrival) => {
                    let (mut scope, mut arrival) = (state.scope.clone(), *arrival);
                    let moves = scope.decide(&mut arrival, state.now) != Decision::Wait
                        || scope != state.scope;
                    if moves || (self.shell.reads_pass && !request.write) {
                        steps.push(Step::Decide(which));
                    }
                }
                Place::Admitted => {
                    steps.push(Step::Start(which));
                    if state.left.losses > 0 {
                        steps.push(Step::Unreachable(which));
                    }
                }
                Place::Sent => {
                    if request.upstream == Upstream::Applied {
                        steps.push(Step::Answer(which));
                    } else if state.left.lates > 0 {
                        steps.push(Step::AnswerLate(which));
                    }
                    if state.left.losses > 0 {
                        steps.push(Step::Lose(which));
                    }
                }
                Place::Over => {}
            }
            if matches!(request.upstream, Upstream::Pending(deadline) if state.now < deadline) {
                steps.push(Step::Apply(which));
            }
            if matches!(request.again, Some(Upstream::Pending(_))) {
                steps.push(Step::ApplyAgain(which));
            }
        }
    }

    fn time_matters(state: &State) -> bool {
        let pending = state.requests.iter().any(|r| {
            matches!(r.upstream, Upstream::Pending(deadline) if deadline != Time::NEVER && state.now < deadline)
        });
        pending
            || state
                .scope
                .opens_at()
                .is_some_and(|at| at > state.now && at != Time::NEVER)
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            scope: Scope::new_without(self.without, true),
            now: Time::ZERO,
            left: self.bounds.clone(),
            revision: 0,
            grant: None,
            unseen: vec![],
            holders: vec![],
            requests: vec![],
            reading: None,
            closing: None,
            records: vec![],
            disk: None,
            forwarded: None,
            applied: None,
            claimed: None,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.grant.is_none() && state.left.grants > 0 {
            steps.push(Step::Grant);
        }
        if state.grant.is_some() && state.left.grants > 0 {
            steps.push(Step::Expire);
        }
        if !state.unseen.is_empty() {
            steps.push(Step::Watch);
        }
        for (holder, &(_, writes, reads)) in state.holders.iter().enumerate() {
            if writes > 0 {
                steps.push(Step::Write(holder));
            }
            if reads > 0 {
                steps.push(Step::Read(holder));
            }
        }
        if state.left.forgeries > 0 {
            steps.push(Step::Forge);
        }
        self.request_steps(state, steps);
        match state.reading {
            Some((_, None)) => steps.push(Step::StoreReads),
            Some((_, Some(_))) => steps.push(Step::StoreAnswers),
            None => {}
        }
        if state.reading.is_some() && state.left.read_failures > 0 {
            steps.push(Step::StoreFails);
        }
        match state.closing {
            Some((_, false)) => {
                steps.push(Step::DiskWrites);
                if state.left.disk_failures > 0 {
                    steps.push(Step::DiskFails);
                }
            }
            Some((_, true)) => steps.push(Step::DiskAnswers),
            None => {}
        }
        steps.extend((0..state.records.len()).map(Step::Record));
        if Self::time_matters(state) {
            steps.push(Step::Tick);
        }
        if state.left.crashes > 0 {
            steps.push(Step::Crash);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Grant => {
                state.left.grants -= 1;
                state.revision += 1;
                let token = Token::new(state.revision)?;
                state.grant = Some(token);
                state
                    .holders
                    .push((token, self.bounds.writes, self.bounds.reads));
                if self.bounds.watch {
                    state.unseen.push(token);
                }
            }
            Step::Expire => state.grant = None,
            Step::Watch => {
                let token = state.unseen.remove(0);
                if state.scope.takes_note() {
                    state.scope.granted(token, state.now);
                }
            }
            Step::Write(holder) => {
                state.holders[holder].1 -= 1;
                Self::arrive(&mut state, last.holders[holder].0, true);
            }
            Step::Read(holder) => {
                state.holders[holder].2 -= 1;
                Self::arrive(&mut state, last.holders[holder].0, false);
            }
            Step::Forge => {
                state.left.forgeries -= 1;
                Self::arrive(&mut state, Token::MAX, true);
            }
            Step::Decide(which) => self.decide(&mut state, which),
            Step::Start(which) | Step::Unreachable(which) => {
                let token = state.requests[which].token;
                match state.scope.start(token) {
                    Err(_) => {
                        state.requests[which].place = Place::Over;
                        state.requests[which].told = Some(Outcome::Refused);
                    }
                    Ok(()) if step == Step::Unreachable(which) => {
                        state.left.losses -= 1;
                        self.end(&mut state, which, Sent::Nothing, None);
                    }
                    Ok(()) => {
                        state.broken.g1 |= state.forwarded > Some(token);
                        state.forwarded = state.forwarded.max(Some(token));
                        state.requests[which].place = Place::Sent;
                        state.requests[which].upstream = Upstream::Pending(Time::NEVER);
                    }
                }
            }
            Step::StoreReads => {
                let seen = Reading {
                    grant: state.grant,
                    revision: state.revision,
                };
                state.reading.as_mut()?.1 = Some(seen);
            }
            Step::StoreAnswers => {
                let (id, seen) = state.reading.take()?;
                state.scope.read(id, Ok(seen?), state.now);
            }
            Step::StoreFails => {
                state.left.read_failures -= 1;
                let (id, _) = state.reading.take()?;
                state
                    .scope
                    .read(id, Err(Unreadable::Unavailable), state.now);
            }
            Step::DiskWrites => {
                let closing = state.closing.as_mut()?;
                closing.1 = true;
                state.disk = Some(Stored::close(state.disk, closing.0));
            }
            Step::DiskAnswers => {
                let (floor, _) = state.closing.take()?;
                state.scope.durable(floor);
            }
            Step::DiskFails => {
                state.left.disk_failures -= 1;
                state.closing = None;
                state.scope.not_durable();
            }
            Step::Record(which) => {
                let floor = state.records.remove(which);
                state.disk = state
                    .disk
                    .map(|stored| stored.opened_without(self.without, floor));
            }
            Step::Apply(which) => {
                state.requests[which].upstream = Upstream::Applied;
                Self::apply(&mut state, which);
            }
            Step::ApplyAgain(which) => {
                state.requests[which].again = Some(Upstream::Applied);
                Self::apply(&mut state, which);
            }
            Step::Answer(which) => self.end(&mut state, which, Sent::Completely, Some(200)),
            Step::AnswerLate(which) => {
                state.left.lates -= 1;
                self.end(&mut state, which, Sent::Completely, Some(504));
            }
            Step::Lose(which) => {
                state.left.losses -= 1;
                if self.shell.sends_again {
                    state.requests[which].again = Some(Upstream::Pending(Time::NEVER));
                }
                self.end(&mut state, which, Sent::Completely, None);
            }
            Step::Tick => state.now = state.now.after(std::time::Duration::from_nanos(1)),
            Step::Crash => {
                state.left.crashes -= 1;
                self.crash(&mut state);
            }
        }
        Self::dispatch(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 order of forwarding", |_, s: &State| !s.broken.g1),
            Property::always("G2 order of application", |_, s: &State| !s.broken.g2),
            Property::always("G3 a fenced read sees all that is older", |_, s: &State| {
                !s.broken.g3
            }),
            Property::always("G4 refused is never applied", |_, s: &State| {
                s.requests
                    .iter()
                    .all(|r| r.told != Some(Outcome::Refused) || r.applied == 0)
            }),
            Property::always("G4 refused is never still on its way", |_, s: &State| {
                s.requests.iter().all(|r| {
                    let on_its_way =
                        matches!(r.upstream, Upstream::Pending(deadline) if s.now < deadline);
                    r.told != Some(Outcome::Refused) || !on_its_way
                })
            }),
            Property::always("nothing is applied twice", |_, s: &State| {
                s.requests.iter().all(|r| r.applied < 2)
            }),
            Property::always("the holder is never locked out", |_, s: &State| {
                !s.broken.locked_out
            }),
            Property::always(
                "no end leaves a holder waiting",
                |world: &World, s: &State| {
                    let mut steps = vec![];
                    World::waiting(s).next().is_none() || {
                        world.actions(s, &mut steps);
                        !steps.is_empty()
                    }
                },
            ),
            Property::sometimes("a handover happens", |_, s: &State| {
                s.applied == Token::new(2)
                    && s.requests
                        .iter()
                        .any(|r| r.token == Token::MIN && r.applied == 1)
            }),
        ]
    }
}
