//! A lease store, a network and a clock as plain values, around real [`Holder`]s. The model checker walks through all
//! that can happen here; the simulation through what a seed picks.

use super::*;
use crate::store::{Change, Claim, Seen};
use std::collections::BTreeMap;

/// The length of one step of the clock.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// What has happened to the key or to a place, at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Happened {
    revision: u64,
    /// The lease's key, or the place of a session.
    place: Option<SessionId>,
    written: bool,
}

/// A store that does what etcd does, for one lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    pub(super) revision: u64,
    pub(super) key: Option<(Token, SessionId)>,
    /// When each may end. It does not end before.
    pub(super) sessions: BTreeMap<SessionId, (Time, Duration)>,
    /// Tickets with their sessions, in order.
    pub(super) queue: BTreeMap<u64, SessionId>,
    history: Vec<Happened>,
}

/// A request on its way, or a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Packet {
    /// `given_up`: the driver has reported a failure; it may still be carried out.
    Request {
        who: usize,
        request: Request,
        given_up: bool,
    },
    Reply {
        who: usize,
        id: u32,
        answer: Answer,
    },
}

/// Faults that tests of the tests plant in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Planted {
    Nothing,
    /// Sessions end one tick early.
    EndsEarly,
    /// A claim does not look at the key.
    GrantsTwice,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: Time,
    pub(super) holders: Vec<Holder>,
    pub(super) store: Store,
    pub(super) packets: Vec<Packet>,
    pub(super) faults: u8,
    pub(super) planted: Planted,
    /// Sessions that somebody revoked: their holders may believe a little longer.
    pub(super) revoked: Vec<SessionId>,
    /// Every token granted, in the order in which the holders were told.
    pub(super) granted: Vec<(usize, Token)>,
    /// Lost or over, and held again (H3).
    pub(super) held_again: bool,
}

/// One thing that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Tick,
    /// A holder's timer.
    Wake(usize),
    /// The store carries out a request.
    Apply(usize),
    /// A reply comes in.
    Deliver(usize),
    /// It comes in, and will once more.
    DeliverTwice(usize),
    /// A request or a reply is lost; the holder learns of it as a failure.
    Lose(usize),
    /// The driver gives up on a request that is still under way.
    GiveUp(usize),
    /// A session's time is over at the store.
    Expire(SessionId),
    /// Somebody revokes a session.
    Revoke(SessionId),
    GiveBack(usize),
}

impl World {
    pub(super) fn new(terms: &[Terms], faults: u8, planted: Planted) -> Self {
        let holders = terms.iter().enumerate();
        let mut world = Self {
            now: Time::ZERO,
            holders: holders
                .map(|(i, terms)| Holder::new(*terms, 100 * (i as i64 + 1), Time::ZERO))
                .collect(),
            store: Store {
                revision: 1,
                ..Store::default()
            },
            packets: Vec::new(),
            faults,
            planted,
            revoked: Vec::new(),
            granted: Vec::new(),
            held_again: false,
        };
        (0..world.holders.len()).for_each(|who| world.poll(who));
        world
    }

    /// Everything that can happen now.
    pub(super) fn steps(&self, last_tick: Time) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, packet) in self.packets.iter().enumerate() {
            match packet {
                Packet::Request {
                    request, given_up, ..
                } => {
                    if self.answerable(request.what) {
                        steps.push(Step::Apply(at));
                    }
                    if self.faults > 0 {
                        steps.push(Step::Lose(at));
                        if !given_up {
                            steps.push(Step::GiveUp(at));
                        }
                    }
                }
                Packet::Reply { .. } => {
                    steps.push(Step::Deliver(at));
                    if self.faults > 0 {
                        steps.push(Step::Lose(at));
                        steps.push(Step::DeliverTwice(at));
                    }
                }
            }
        }
        for (who, holder) in self.holders.iter().enumerate() {
            if holder.wake() <= self.now {
                steps.push(Step::Wake(who));
            }
            if holder.held().is_some() || matches!(holder.state, State::Lost { .. }) {
                steps.push(Step::GiveBack(who));
            }
        }
        for (&session, &(ends, _)) in &self.store.sessions {
            if ends <= self.now {
                steps.push(Step::Expire(session));
            } else if self.faults > 0 {
                steps.push(Step::Revoke(session));
            }
        }
        if self.now < last_tick {
            steps.push(Step::Tick);
        }
        steps
    }

    pub(super) fn take(&mut self, step: Step) {
        self.carry_out(step);
        // The order in which packets were sent means nothing: fewer states.
        self.packets.sort_by_key(|packet| match packet {
            Packet::Request { who, request, .. } => (*who, request.id, false),
            Packet::Reply { who, id, .. } => (*who, *id, true),
        });
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Tick => self.now = self.now.after(TICK),
            Step::Wake(who) => self.poll(who),
            Step::Apply(at) => self.apply(at),
            Step::Deliver(at) => {
                if let Packet::Reply { who, id, answer } = self.packets.remove(at) {
                    self.answer(who, id, answer);
                }
            }
            Step::DeliverTwice(at) => {
                self.faults -= 1;
                if let Packet::Reply { who, id, answer } = self.packets[at].clone() {
                    self.answer(who, id, answer);
                }
            }
            Step::Lose(at) => {
                self.faults -= 1;
                let (who, id) = match self.packets.remove(at) {
                    Packet::Request { given_up: true, .. } => return,
                    Packet::Request { who, request, .. } => (who, request.id),
                    Packet::Reply { who, id, .. } => (who, id),
                };
                self.answer(
                    who,
                    id,
                    Answer::Failed(StoreError::Unreachable(String::new())),
                );
            }
            Step::GiveUp(at) => {
                self.faults -= 1;
                if let Packet::Request {
                    who,
                    request,
                    given_up,
                } = &mut self.packets[at]
                {
                    *given_up = true;
                    let (who, id) = (*who, request.id);
                    self.answer(
                        who,
                        id,
                        Answer::Failed(StoreError::Unreachable(String::new())),
                    );
                }
            }
            Step::Expire(session) => self.store.end(session),
            Step::Revoke(session) => {
                self.faults -= 1;
                self.revoked.push(session);
                self.store.end(session);
            }
            Step::GiveBack(who) => {
                self.holders[who].give_back();
                self.poll(who);
            }
        }
    }

    /// Lets one holder go as far as it gets without faults and without time.
    pub(super) fn run_alone(&mut self, who: usize) {
        loop {
            let next = self
                .packets
                .iter()
                .enumerate()
                .find_map(|(at, packet)| match packet {
                    Packet::Request {
                        who: w, request, ..
                    } if *w == who && self.answerable(request.what) => Some(Step::Apply(at)),
                    Packet::Reply { who: w, .. } if *w == who => Some(Step::Deliver(at)),
                    _ => None,
                });
            match next {
                Some(step) => self.take(step),
                None => return,
            }
        }
    }

    /// Sends what the holder has to send, and hears its news.
    fn poll(&mut self, who: usize) {
        while let Some(request) = self.holders[who].poll_request(self.now) {
            self.packets.push(Packet::Request {
                who,
                request,
                given_up: false,
            });
        }
        while let Some(news) = self.holders[who].poll_news() {
            if let News::Granted { token, .. } = news {
                self.held_again |= self.granted.iter().any(|(other, _)| *other == who);
                self.granted.push((who, token));
            }
        }
        // A watch that nobody waits for is called off.
        let watching = self.holders[who].watching();
        self.packets.retain(|packet| match packet {
            Packet::Request {
                who: w, request, ..
            } if *w == who => {
                !matches!(request.what, Do::Watch { .. }) || watching == Some(request.id)
            }
            _ => true,
        });
    }

    fn answer(&mut self, who: usize, id: u32, answer: Answer) {
        self.holders[who].answer(id, answer, self.now);
        self.poll(who);
    }

    /// A watch is answered once there is something to tell.
    fn answerable(&self, what: Do) -> bool {
        match what {
            Do::Watch {
                target,
                place,
                after,
            } => self.store.change(target, place, after).is_some(),
            _ => true,
        }
    }

    fn apply(&mut self, at: usize) {
        let Packet::Request {
            who,
            request,
            given_up,
        } = self.packets.remove(at)
        else {
            return;
        };
        // Who is stolen from believes on until it is told, as with a revoked session.
        if let Do::Claim {
            place: Place::Any,
            expect: 1..,
            ..
        } = request.what
        {
            self.revoked
                .extend(self.store.key.map(|(_, session)| session));
        }
        let answer = self.store.carry_out(request.what, self.now, self.planted);
        if !given_up && !matches!(request.what, Do::Close(_)) {
            self.packets.push(Packet::Reply {
                who,
                id: request.id,
                answer,
            });
        }
    }

    /// Holders that believe, by their own clock, that they hold the lease.
    pub(super) fn believers(&self) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(|holder| holder.held().is_some() && self.now < holder.deadline())
    }

    /// H1 and H2: whoever believes is right, but for what was revoked under it.
    pub(super) fn beliefs_are_true(&self) -> bool {
        let mut sure = self
            .believers()
            .filter(|holder| !self.revoked.contains(&holder.session()));
        sure.all(|holder| self.store.key == holder.held().map(|token| (token, holder.session())))
    }

    /// Tokens grow from grant to grant as the store made them; each is told once.
    pub(super) fn tokens_are_unique(&self) -> bool {
        let mut tokens: Vec<Token> = self.granted.iter().map(|(_, token)| *token).collect();
        tokens.sort_unstable();
        tokens.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// For the simulation: all of it at once.
    pub(super) fn is_safe(&self) -> bool {
        self.beliefs_are_true() && self.tokens_are_unique() && !self.held_again
    }
}

impl Store {
    fn end(&mut self, session: SessionId) {
        if self.sessions.remove(&session).is_none() {
            return;
        }
        if self.key.is_some_and(|(_, on)| on == session) {
            self.key = None;
            self.note(None, false);
        }
        self.leave(session);
    }

    fn leave(&mut self, session: SessionId) {
        let before = self.queue.len();
        self.queue.retain(|_, waiter| *waiter != session);
        if self.queue.len() < before {
            self.note(Some(session), false);
        }
    }

    fn note(&mut self, place: Option<SessionId>, written: bool) {
        self.revision += 1;
        self.history.push(Happened {
            revision: self.revision,
            place,
            written,
        });
    }

    fn view(&self, session: SessionId) -> View {
        let ticket = self
            .queue
            .iter()
            .find(|(_, waiter)| **waiter == session)
            .map(|(ticket, _)| *ticket);
        let before = self.queue.range(..ticket.unwrap_or(u64::MAX));
        View {
            revision: self.revision,
            holder: self.key.map(|(token, on)| Seen {
                token,
                session: Some(on),
            }),
            ticket,
            ahead: before.last().map(|(_, waiter)| *waiter),
            record: None,
        }
    }

    fn change(&self, target: Target, own: Option<SessionId>, after: u64) -> Option<Change> {
        let watched = match target {
            Target::Lease => None,
            Target::Waiter(session) => Some(session),
        };
        self.history
            .iter()
            .filter(|happened| happened.revision > after)
            .find_map(|happened| {
                if happened.place == watched {
                    Some(if happened.written {
                        Change::Written(Token::new(happened.revision).unwrap())
                    } else {
                        Change::Deleted
                    })
                } else {
                    (own.is_some() && happened.place == own).then_some(Change::PlaceLost)
                }
            })
    }

    fn carry_out(&mut self, what: Do, now: Time, planted: Planted) -> Answer {
        let gone = Answer::Failed(StoreError::SessionGone);
        let life = |ttl: Duration| {
            if planted == Planted::EndsEarly {
                ttl - 2 * TICK
            } else {
                ttl
            }
        };
        match what {
            Do::Open(session) => {
                let ttl = 3 * TICK;
                self.sessions.insert(session, (now.after(life(ttl)), ttl));
                Answer::Opened(ttl)
            }
            Do::KeepAlive(session) => match self.sessions.get_mut(&session) {
                Some((ends, ttl)) => {
                    *ends = now.after(life(*ttl));
                    Answer::KeptAlive
                }
                None => gone,
            },
            Do::Close(session) => {
                self.end(session);
                Answer::Closed
            }
            Do::Claim {
                session,
                expect,
                place,
            } => {
                let alive = self.sessions.contains_key(&session);
                if !alive {
                    return gone;
                }
                let allowed = match place {
                    Place::NobodyWaits => self.queue.is_empty(),
                    Place::Queued => self.queue.values().any(|waiter| *waiter == session),
                    Place::Any => true,
                };
                let found = self.key.map_or(0, |(token, _)| token.get());
                if (!allowed || found != expect) && planted != Planted::GrantsTwice {
                    return Answer::Claimed(Claim::Refused(self.view(session)));
                }
                self.leave(session);
                self.note(None, true);
                let token = Token::new(self.revision).unwrap();
                self.key = Some((token, session));
                Answer::Claimed(Claim::Won(token))
            }
            Do::Enqueue(session) => {
                if !self.sessions.contains_key(&session) {
                    return gone;
                }
                if !self.queue.values().any(|waiter| *waiter == session) {
                    self.note(Some(session), true);
                    self.queue.insert(self.revision, session);
                }
                Answer::Seen(self.view(session))
            }
            Do::Look { session, .. } => Answer::Seen(self.view(session)),
            Do::Watch {
                target,
                place,
                after,
            } => Answer::Changed(self.change(target, place, after).unwrap_or(Change::Unknown)),
            Do::Release(token) => {
                if self.key.is_some_and(|(current, _)| current == token) {
                    self.key = None;
                    self.note(None, false);
                }
                Answer::Released
            }
        }
    }
}
