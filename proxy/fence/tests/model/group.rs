//! Two replicas in front of one upstream: the same core, with real messages between them by way of etcd.
//!
//! What the model of one proxy covers (a slow disk, failing reads, requests that are woken late) happens at once here,
//! and so do acks: one that is put as soon as it can be is the one that lets the most happen. What stays free is what
//! can go wrong between replicas: how far each watch has come, when sessions end, who crashes, joins or reads anew, and
//! what upstream does when.

use palisade_fence::{
    Ack, Action, Clearance, Decision, Group, Outcome, Reading, Refused, Rule, Scope, Sent, Stored,
    Time, Token, conclude_without,
};
use stateright::{Model, Property};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

mod state;

pub(crate) use state::Bounds;
use state::{
    Etcd, Event, Place, Replica, Request, SCOPE, SETTLE, Stage, State, Step, Upstream, later,
};

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) bounds: Bounds,
    pub(crate) without: Option<Rule>,
    /// Whether a replica looks at its deadline right before it sends.
    pub(crate) deadline: bool,
}

impl World {
    fn wait_out() -> Option<Duration> {
        Some(Duration::from_nanos(SETTLE))
    }

    fn replica(
        &self,
        which: usize,
        joins: u8,
        disk: Option<Stored>,
        leftovers: Option<Time>,
    ) -> Replica {
        let id: Arc<str> = format!("{which}.{joins}").into();
        let scope = match disk {
            Some(stored) => Scope::load_without(self.without, true, stored, leftovers),
            None => Scope::new_without(self.without, true),
        };
        Replica {
            stage: Stage::Down,
            group: Group::new_without(self.without, Arc::clone(&id), Self::wait_out()),
            id,
            joins,
            scope: scope.grouped(),
            watch: 0,
            acked: Ack::default(),
            granted: 0,
            reading: None,
            disk,
        }
    }

    /// Reads all keys at one revision, and closes what has to be closed.
    fn read_all(state: &mut State, which: usize) {
        let (etcd, replica) = (&state.etcd, &mut state.replicas[which]);
        let replicas: Vec<_> = etcd
            .replicas
            .iter()
            .map(|(id, ack)| (Arc::clone(id), ack.clone()))
            .collect();
        replica
            .group
            .read(etcd.revision, &etcd.members, &replicas, state.now);
        replica.scope.joined(etcd.revision, etcd.grant, state.now);
        replica.watch = etcd.log.len();
        replica.granted = etcd.revision;
        replica.stage = Stage::Serving;
    }

    fn dispatch(&self, state: &mut State) {
        for replica in &mut state.replicas {
            while let Some(action) = replica.scope.poll_action() {
                match action {
                    Action::Read(id) => replica.reading = Some((id, None)),
                    Action::Close(floor) => {
                        replica.disk = Some(Stored::close(replica.disk, floor));
                        replica.scope.durable(floor);
                    }
                    Action::RecordOpened(floor) => {
                        replica.disk = replica.disk.map(|stored| stored.opened(floor))
                    }
                }
            }
            if let Some(floor) = replica.scope.wants_clearance()
                && replica.stage == Stage::Serving
                && replica.group.clearance(SCOPE, floor, state.now) == Clearance::Clear
            {
                replica.scope.clear(floor);
            }
        }
    }

    /// What happens at once.
    fn calm_down(&self, state: &mut State) {
        loop {
            let before = state.clone();
            self.dispatch(state);
            for which in 0..2 {
                if !state.left.slow_reads
                    && let Some((id, _)) = state.replicas[which].reading.take()
                {
                    let seen = Reading {
                        grant: state.etcd.grant,
                        revision: state.etcd.revision,
                    };
                    state.replicas[which].scope.read(id, Ok(seen), state.now);
                }
                Self::put_ack(state, which);
                Self::hear_what_helps(state, which);
            }
            (0..state.requests.len()).for_each(|which| Self::decide(state, which));
            if *state == before {
                break;
            }
        }
        Self::forget(state);
    }

    fn put_ack(state: &mut State, which: usize) {
        if let Some(ack) = Self::ack(state, which) {
            let id = Arc::clone(&state.replicas[which].id);
            state.etcd.replicas.insert(Arc::clone(&id), ack.clone());
            state.etcd.change([Event::Replica(id, ack.clone())]);
            state.replicas[which].acked = ack;
        }
    }

    /// News that only lets more happen: acks, and the ends of sessions and memberships. It is taken in as soon as it is
    /// next; grants and joins may be heard of late.
    fn hear_what_helps(state: &mut State, which: usize) {
        let replica = &state.replicas[which];
        let helps =
            |(_, event): &(u64, Event)| !matches!(event, Event::Grant(_) | Event::Member(_));
        if replica.stage == Stage::Serving && state.etcd.log.get(replica.watch).is_some_and(helps) {
            Self::watch(state, which);
        }
    }

    fn decide(state: &mut State, which: usize) {
        let request = &mut state.requests[which];
        let replica = &mut state.replicas[request.at];
        let (Place::Waiting(arrival), Stage::Serving) = (&mut request.place, &replica.stage) else {
            return;
        };
        match replica.scope.decide(arrival, state.now) {
            Decision::Wait => {}
            Decision::Admit => request.place = Place::Admitted,
            Decision::Refuse(why) => {
                let gone = matches!(
                    why,
                    Refused::Stale { .. } | Refused::Superseded { .. } | Refused::NotHolder { .. }
                );
                state.locked_out |= gone && state.etcd.grant == Some(request.token);
                request.place = Place::Over;
                request.told = Some(Outcome::Refused);
            }
        }
    }

    /// What nobody will look at any more only makes states differ that are the same.
    fn forget(state: &mut State) {
        for replica in &mut state.replicas {
            if replica.stage != Stage::Serving {
                replica.watch = state.etcd.log.len();
            }
        }
        let seen = state.replicas.iter().map(|r| r.watch).min().unwrap_or(0);
        state.etcd.log.drain(..seen);
        state.replicas.iter_mut().for_each(|r| r.watch -= seen);
    }

    fn watch(state: &mut State, which: usize) {
        let (now, replica) = (state.now, &mut state.replicas[which]);
        let (revision, _) = state.etcd.log[replica.watch];
        // All changes of one revision come together.
        while let Some((_, event)) = state
            .etcd
            .log
            .get(replica.watch)
            .filter(|(at, _)| *at == revision)
        {
            match event.clone() {
                Event::Grant(token) => {
                    replica.granted = revision;
                    if replica.scope.takes_note() {
                        replica.scope.granted(token, now);
                    }
                }
                Event::Member(id) => replica.group.member_put(&id),
                Event::MemberDeleted(id) => replica.group.member_deleted(&id),
                Event::Replica(id, ack) => replica.group.acked(&id, ack),
                Event::ReplicaGone(id) => replica.group.session_gone(&id, now),
            }
            replica.watch += 1;
        }
        replica.group.progress(revision);
    }

    /// What it would ack now, if that says anything new.
    fn ack(state: &State, which: usize) -> Option<Ack> {
        let replica = &state.replicas[which];
        if replica.stage != Stage::Serving
            || !state.etcd.replicas.contains_key(&replica.id)
            || !replica.scope.is_durable()
        {
            return None;
        }
        let mut ack = Ack {
            revision: replica.acked.revision.max(replica.granted),
            ..Ack::default()
        };
        if replica.scope.clone().has_older_unsettled(state.now) {
            ack.unsettled.insert(SCOPE.into());
        }
        (ack != replica.acked).then_some(ack)
    }

    fn end(&self, state: &mut State, which: usize, sent: Sent, answer: Option<u16>) {
        let end = conclude_without(self.without, sent, answer);
        let until = later(state.now, SETTLE);
        let request = &mut state.requests[which];
        request.told = Some(end.outcome);
        request.place = Place::Over;
        let scope = &mut state.replicas[request.at].scope;
        if end.settled {
            scope.settled(request.token)
        } else {
            scope.ambiguous(request.token, until)
        }
        if let (Upstream::Pending(deadline), None) = (&mut request.upstream, answer) {
            *deadline = (*deadline).min(until);
        }
    }

    /// From the end of a replica's session on, A6 counts from its last write.
    fn bound_pending(state: &mut State, which: usize) {
        let until = later(state.now, SETTLE);
        for request in state.requests.iter_mut().filter(|r| r.at == which) {
            if let Upstream::Pending(deadline) = &mut request.upstream {
                *deadline = (*deadline).min(until);
            }
        }
    }

    fn drop_requests(state: &mut State, which: usize) {
        for request in state
            .requests
            .iter_mut()
            .filter(|r| r.at == which && r.told.is_none())
        {
            request.told = Some(Outcome::Unknown);
            request.place = Place::Over;
        }
    }

    fn request_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (which, request) in state.requests.iter().enumerate() {
            let replica = &state.replicas[request.at];
            let may_send = replica.stage == Stage::Serving
                || (!self.deadline && replica.stage == Stage::Expired);
            match &request.place {
                Place::Admitted if may_send => steps.push(Step::Start(which)),
                Place::Sent => {
                    if request.upstream == Upstream::Applied {
                        steps.push(Step::Answer(which));
                    }
                    // An answer that never came runs into its timeout.
                    let gone = matches!(request.upstream, Upstream::Pending(deadline) if state.now >= deadline);
                    if gone || state.left.losses > 0 {
                        steps.push(Step::Lose(which));
                    }
                }
                _ => {}
            }
            if matches!(request.upstream, Upstream::Pending(deadline) if state.now < deadline) {
                steps.push(Step::Apply(which));
            }
        }
    }

    fn replica_steps(state: &State, which: usize, steps: &mut Vec<Step>) {
        let replica = &state.replicas[which];
        match replica.stage {
            Stage::Down => steps.push(Step::Join(which)),
            Stage::Joining => steps.push(Step::JoinReads(which)),
            Stage::Expired => steps.push(Step::Join(which)),
            Stage::Serving => {
                if replica.watch < state.etcd.log.len() {
                    steps.push(Step::Watch(which));
                }
                match replica.reading {
                    Some((_, None)) => steps.push(Step::StoreReads(which)),
                    Some((_, Some(_))) => steps.push(Step::StoreAnswers(which)),
                    None => {}
                }
                steps.extend(
                    replica
                        .group
                        .waited_out(state.now)
                        .into_iter()
                        .map(|id| Step::Remove(which, id)),
                );
                if state.left.expiries > 0 && which == state.left.victim {
                    steps.push(Step::Expire(which));
                }
                if state.left.gaps > 0
                    && which == state.left.victim
                    && replica.watch < state.etcd.log.len()
                {
                    steps.push(Step::Gap(which));
                }
            }
        }
        if state.left.crashes > 0 && replica.stage != Stage::Down && which == state.left.victim {
            steps.push(Step::Crash(which));
        }
    }

    fn time_matters(state: &State) -> bool {
        let pending = |r: &Request| matches!(r.upstream, Upstream::Pending(deadline) if deadline != Time::NEVER && state.now < deadline);
        let waits = |replica: &Replica| {
            let settles = replica
                .scope
                .opens_at()
                .is_some_and(|at| at > state.now && at != Time::NEVER);
            let clears = replica.scope.floor().is_some_and(|floor| {
                !replica.scope.is_open()
                    && matches!(replica.group.clearance(SCOPE, floor, state.now), Clearance::NotBefore(at) if at != Time::NEVER)
            });
            settles || clears
        };
        state.requests.iter().any(pending) || state.replicas.iter().any(waits)
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let etcd = Etcd {
            revision: 0,
            grant: None,
            members: vec![],
            replicas: BTreeMap::new(),
            log: vec![],
        };
        let mut state = State {
            now: Time::ZERO,
            left: self.bounds.clone(),
            etcd,
            replicas: [
                self.replica(0, 0, None, None),
                self.replica(1, 0, None, None),
            ],
            holders: vec![],
            requests: vec![],
            applied: None,
            out_of_order: false,
            locked_out: false,
        };
        for which in usize::from(self.bounds.late_join)..2 {
            state = self.next_state(&state, Step::Join(which)).expect("joins");
            state = self
                .next_state(&state, Step::JoinReads(which))
                .expect("reads");
        }
        // The first lease is held, and its holder's write is at the gate.
        if !self.bounds.any_replica {
            state = self.next_state(&state, Step::Grant).expect("grants");
            let at = usize::from(self.bounds.late_join);
            state = self.next_state(&state, Step::Write(0, at)).expect("writes");
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.left.grants > 0 {
            steps.push(if state.etcd.grant.is_none() {
                Step::Grant
            } else {
                Step::Release
            });
        }
        for (holder, &(_, writes)) in state.holders.iter().enumerate() {
            if writes > 0 {
                let serving = (0..2).filter(|&at| state.replicas[at].stage == Stage::Serving);
                steps.extend(
                    serving
                        .filter(|at| self.bounds.any_replica || *at == holder % 2)
                        .map(|at| Step::Write(holder, at)),
                );
            }
        }
        self.request_steps(state, steps);
        (0..2).for_each(|which| Self::replica_steps(state, which, steps));
        for id in state.etcd.replicas.keys() {
            let alive =
                |r: &Replica| r.id == *id && matches!(r.stage, Stage::Joining | Stage::Serving);
            if !state.replicas.iter().any(alive) {
                steps.push(Step::SessionEnds(Arc::clone(id)));
            }
        }
        if Self::time_matters(state) {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Grant => {
                state.left.grants -= 1;
                let token = Token::new(state.etcd.revision + 1)?;
                state.etcd.change([Event::Grant(token)]);
                state.etcd.grant = Some(token);
                state.holders.push((token, self.bounds.writes));
            }
            Step::Release => {
                // A deletion has a revision too, and nobody needs to hear of it.
                state.etcd.revision += 1;
                state.etcd.grant = None;
            }
            Step::Write(holder, at) => {
                state.holders[holder].1 -= 1;
                let token = last.holders[holder].0;
                let place = Place::Waiting(state.replicas[at].scope.arrive(token));
                state.requests.push(Request {
                    token,
                    at,
                    place,
                    upstream: Upstream::Nothing,
                    told: None,
                });
            }
            Step::Start(which) => {
                let request = &mut state.requests[which];
                match state.replicas[request.at].scope.start(request.token) {
                    Err(_) => {
                        request.place = Place::Over;
                        request.told = Some(Outcome::Refused);
                    }
                    Ok(()) => {
                        request.place = Place::Sent;
                        request.upstream = Upstream::Pending(Time::NEVER);
                    }
                }
            }
            Step::Apply(which) => {
                let request = &mut state.requests[which];
                request.upstream = Upstream::Applied;
                state.out_of_order |= state.applied > Some(request.token);
                state.applied = state.applied.max(Some(request.token));
            }
            Step::Answer(which) => self.end(&mut state, which, Sent::Completely, Some(200)),
            Step::Lose(which) => {
                let gone = matches!(state.requests[which].upstream, Upstream::Pending(deadline) if state.now >= deadline);
                state.left.losses -= u8::from(!gone);
                self.end(&mut state, which, Sent::Completely, None);
            }
            Step::Tick => state.now = later(state.now, 1),
            Step::Watch(which) => Self::watch(&mut state, which),
            Step::StoreReads(which) => {
                let seen = Reading {
                    grant: state.etcd.grant,
                    revision: state.etcd.revision,
                };
                state.replicas[which].reading.as_mut()?.1 = Some(seen);
            }
            Step::StoreAnswers(which) => {
                let (id, seen) = state.replicas[which].reading.take()?;
                state.replicas[which].scope.read(id, Ok(seen?), last.now);
            }
            Step::Remove(which, id) => {
                state.replicas[which].group.member_deleted(&id);
                state.etcd.members.retain(|member| *member != id);
                state.etcd.change([Event::MemberDeleted(id)]);
            }
            Step::Expire(which) => {
                state.left.expiries -= 1;
                state.replicas[which].stage = Stage::Expired;
                Self::bound_pending(&mut state, which);
            }
            Step::SessionEnds(id) => {
                state.etcd.replicas.remove(&id);
                state.etcd.change([Event::ReplicaGone(id)]);
            }
            Step::Crash(which) => {
                state.left.crashes -= 1;
                Self::bound_pending(&mut state, which);
                Self::drop_requests(&mut state, which);
                let old = &state.replicas[which];
                let until = later(state.now, SETTLE);
                state.replicas[which] = self.replica(which, old.joins, old.disk, Some(until));
            }
            Step::Join(which) => {
                // A replica that lost its session joins anew under a fresh id and keeps its scopes; what waited is refused.
                for request in state
                    .requests
                    .iter_mut()
                    .filter(|r| r.at == which && !matches!(r.place, Place::Sent | Place::Over))
                {
                    request.place = Place::Over;
                    request.told = Some(Outcome::Refused);
                }
                let replica = &mut state.replicas[which];
                replica.joins += 1;
                replica.id = format!("{which}.{}", replica.joins).into();
                replica.group =
                    Group::new_without(self.without, Arc::clone(&replica.id), Self::wait_out());
                replica.acked = Ack::default();
                replica.stage = Stage::Joining;
                let id = Arc::clone(&replica.id);
                state.etcd.members.push(Arc::clone(&id));
                state.etcd.replicas.insert(Arc::clone(&id), Ack::default());
                state.etcd.change([
                    Event::Member(Arc::clone(&id)),
                    Event::Replica(id, Ack::default()),
                ]);
            }
            Step::JoinReads(which) => Self::read_all(&mut state, which),
            Step::Gap(which) => {
                state.left.gaps -= 1;
                Self::read_all(&mut state, which);
            }
        }
        self.calm_down(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G2 order of application", |_, s: &State| !s.out_of_order),
            Property::always("G4 refused is never applied", |_, s: &State| {
                s.requests
                    .iter()
                    .all(|r| r.told != Some(Outcome::Refused) || r.upstream == Upstream::Nothing)
            }),
            Property::always("the holder is never locked out", |_, s: &State| {
                !s.locked_out
            }),
            Property::always(
                "no end leaves a holder waiting",
                |world: &World, s: &State| {
                    let waits =
                        |r: &Request| matches!(r.place, Place::Waiting(_) | Place::Admitted);
                    let mut steps = vec![];
                    !s.requests.iter().any(waits) || {
                        world.actions(s, &mut steps);
                        !steps.is_empty()
                    }
                },
            ),
            Property::sometimes(
                "a handover from one replica to the other happens",
                |_, s: &State| {
                    let applied = |r: &&Request| r.upstream == Upstream::Applied;
                    let mut done = s.requests.iter().filter(applied);
                    matches!((done.next(), done.next()), (Some(a), Some(b)) if a.at != b.at && a.token != b.token)
                },
            ),
        ]
    }
}
