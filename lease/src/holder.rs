//! One acquisition, as a state machine without I/O and without a clock: the time and the store's answers come in,
//! requests and news go out. The library, the program and the model checker run this same code.
//!
//! Idle -> opening a session -> claiming -> (queued -> claiming) -> held -> lost or given back. Whatever goes wrong before
//! the grant starts again with a fresh session; after the grant nothing is ever repeated that could change the token.
//!
//! What must hold, whatever answers are late, lost or repeated:
//! - H1 the lease is called held only with a token whose key hangs on this acquisition's live session;
//! - H2 it is called held only before `sent + min(asked, granted) - margin` of the last answered keep-alive;
//! - H3 once lost or given back it is never held again by this machine;
//! - H4 every session that may have been opened is asked to close, unless it has ended.

use crate::store::{Change, Claim, Place, Seen, SessionId, StoreError, Target, View};
use palisade_fence::{Time, Token};
use std::{collections::VecDeque, time::Duration};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

/// The first pause before something is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest pause before something is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Keep-alives go out three times in a time to live.
const BEATS_PER_TTL: u32 = 3;
/// The longest that a request may take before it counts as failed.
const CALL_MAX: Duration = Duration::from_secs(5);
/// The shortest such limit: a store may be slow for a moment even where the time to live is short.
const CALL_MIN: Duration = Duration::from_millis(300);
/// The smallest margin by itself.
const MARGIN_MIN: Duration = Duration::from_millis(500);

const _: () = assert!(
    BEATS_PER_TTL >= 2,
    "one lost keep-alive must not lose the lease"
);

/// What is asked of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Time to live asked for.
    pub ttl: Duration,
    /// How long before the session's end the lease counts as lost; `max(500 ms, TTL/10)` when absent.
    pub margin: Option<Duration>,
    /// Whether to wait while somebody else holds it.
    pub wait: bool,
    /// When to stop waiting.
    pub give_up: Time,
    /// How long to put up with a store that has not answered at all yet.
    pub patience: Duration,
    /// Take the lease from whoever has it.
    pub steal: bool,
}

/// A request to the store, which the driver carries out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Comes back with the answer; answers to older requests are ignored.
    pub id: u32,
    /// What to do.
    pub what: Do,
    /// How long the driver waits before it reports a failure; none for a watch.
    pub limit: Option<Duration>,
}

/// The kinds of request, each a method of [`crate::LeaseStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "each is a method of the trait, with its arguments"
)]
pub enum Do {
    Open(SessionId),
    KeepAlive(SessionId),
    Close(SessionId),
    Claim {
        session: SessionId,
        expect: u64,
        place: Place,
    },
    Enqueue(SessionId),
    Look {
        session: SessionId,
        ticket: Option<u64>,
    },
    Watch {
        target: Target,
        place: Option<SessionId>,
        after: u64,
    },
    Release(Token),
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is what the method of the trait gives")]
pub enum Answer {
    Opened(Duration),
    KeptAlive,
    Closed,
    Claimed(Claim),
    Seen(View),
    Changed(Change),
    Released,
    Failed(StoreError),
}

/// What the user is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum News {
    /// In the queue, or about to be: somebody else holds it.
    Waiting(View),
    /// Granted. [`Holder::deadline`] is set.
    #[expect(missing_docs, reason = "named for what they are")]
    Granted {
        token: Token,
        session: SessionId,
        ttl: Duration,
    },
    /// It was held, and is no more. The end of it: only giving back is left.
    Lost(Loss),
    /// It was never held, and won't be.
    Refused(Refusal),
    /// Given back, or given up; nothing is left to do.
    Ended,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Loss {
    /// No keep-alive was answered in time.
    #[error("no keep-alive was answered before the deadline")]
    Expired,
    /// The session has ended at the store: revoked, or run out there.
    #[error("its session has ended: revoked, or run out at the lease store")]
    Revoked,
    /// The lease's key was deleted: released by hand, or its session was revoked.
    #[error("its key was deleted: released by hand, or its session was revoked")]
    Deleted,
    /// Somebody else took it, with this token.
    #[error("it was taken over, with token {0}")]
    Taken(Token),
    /// The lease store is not the one that granted it.
    #[error("the lease store was restored or replaced")]
    StoreChanged,
}

impl Loss {
    /// One word, for metrics and `--result-file`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Deleted => "deleted",
            Self::Taken(_) => "taken",
            Self::StoreChanged => "store-changed",
        }
    }
}

/// Why there was no grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Somebody else holds it, or others wait.
    Busy(View),
    /// Still somebody else's when the waiting time was over; the last that was seen.
    TimedOut(Option<View>),
    /// The store refuses or never answered.
    Store(StoreError),
}

/// One slot for requests that must not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    /// The request under way.
    busy: Option<u32>,
    /// When it was sent.
    sent: Time,
    /// Nothing is sent before this.
    not_before: Time,
    /// Failures in a row.
    failures: u32,
}

impl Slot {
    fn ready(&self, now: Time) -> bool {
        self.busy.is_none() && now >= self.not_before
    }

    fn start(&mut self, id: u32, now: Time) {
        self.busy = Some(id);
        self.sent = now;
    }

    /// When to look at it next, if something is to be sent.
    fn wake(&self) -> Time {
        if self.busy.is_some() {
            Time::NEVER
        } else {
            self.not_before
        }
    }

    fn done(&mut self) {
        self.busy = None;
        self.failures = 0;
    }

    fn failed(&mut self, now: Time) {
        self.busy = None;
        let pause = RETRY_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(RETRY_MAX);
        self.failures += 1;
        self.not_before = now.after(pause);
    }

    /// Whatever is under way no longer matters.
    fn forget(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// A session is being opened.
    Opening,
    /// Trying to become the holder.
    Claiming {
        expect: u64,
        place: Place,
        ticket: Option<u64>,
    },
    /// Reading how things stand: after a claim without an answer (`ticket` absent), or as a waiter.
    Looking { ticket: Option<u64> },
    /// Taking a place in the queue.
    Queueing,
    /// In the queue, watching.
    Waiting {
        ticket: u64,
        target: Target,
        after: u64,
    },
    /// Held. `look` after a watch has failed.
    Held {
        token: Token,
        after: u64,
        look: bool,
    },
    /// Lost; the key may still be there.
    Lost { token: Token },
    /// Deleting the key, then closing the session.
    Releasing { token: Token },
    /// Nothing left but closing.
    Over,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    terms: Terms,
    state: State,
    /// The session is `base + attempt`: known before the store has answered.
    base: i64,
    attempt: u32,
    /// What counts of the time to live: the smaller of asked and granted; `None` before the opening is answered.
    ttl: Option<Duration>,
    /// When the last answered keep-alive (or the opening) was sent.
    alive_since: Time,
    started: Time,
    answered: bool,
    next_id: u32,
    main: Slot,
    beat: Slot,
    watch: Slot,
    closing: VecDeque<SessionId>,
    news: VecDeque<News>,
    last_view: Option<View>,
    last_error: Option<StoreError>,
}

impl Holder {
    /// Begins an acquisition now. `base` is random and positive: sessions are numbered from it.
    pub fn new(terms: Terms, base: i64, now: Time) -> Self {
        Self {
            terms,
            state: State::Opening,
            base,
            attempt: 0,
            ttl: None,
            alive_since: now,
            started: now,
            answered: false,
            next_id: 1,
            main: Slot::default(),
            beat: Slot::default(),
            watch: Slot::default(),
            closing: VecDeque::new(),
            news: VecDeque::new(),
            last_view: None,
            last_error: None,
        }
    }

    /// The session of the attempt under way.
    pub fn session(&self) -> SessionId {
        SessionId(self.base.saturating_add(i64::from(self.attempt)))
    }

    /// Until when the session surely lives, margin taken off: H2. [`Time::ZERO`] without a session.
    pub fn deadline(&self) -> Time {
        self.ttl.map_or(Time::ZERO, |ttl| {
            self.alive_since.after(ttl.saturating_sub(self.margin(ttl)))
        })
    }

    /// The time to live that counts, once a session is open.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    fn margin(&self, ttl: Duration) -> Duration {
        self.terms.margin.unwrap_or_else(|| default_margin(ttl))
    }

    /// The token, while held.
    pub fn held(&self) -> Option<Token> {
        match self.state {
            State::Held { token, .. } => Some(token),
            _ => None,
        }
    }

    /// The watch under way; any other is of no use any more.
    pub fn watching(&self) -> Option<u32> {
        self.watch.busy
    }

    /// The keep-alive under way.
    pub fn beating(&self) -> Option<u32> {
        self.beat.busy
    }

    /// Nothing to do and nothing to wait for any more.
    pub fn is_over(&self) -> bool {
        self.state == State::Over && self.news.is_empty() && self.closing.is_empty()
    }

    /// The next thing that the user should know.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// When to call [`Holder::poll_request`] again even if nothing comes in.
    pub fn wake(&self) -> Time {
        let give_up = self.terms.give_up;
        match self.state {
            State::Opening => self.main.wake().min(give_up),
            State::Claiming { .. } | State::Looking { .. } | State::Queueing => self
                .main
                .wake()
                .min(self.beat_due())
                .min(self.deadline())
                .min(give_up),
            State::Waiting { .. } => self
                .watch
                .wake()
                .min(self.beat_due())
                .min(self.deadline())
                .min(give_up),
            State::Held { look, .. } => {
                let slot = if look { &self.main } else { &self.watch };
                slot.wake().min(self.beat_due()).min(self.deadline())
            }
            State::Releasing { .. } => self.main.wake().min(self.surely_dead()),
            State::Lost { .. } | State::Over => Time::NEVER,
        }
    }

    /// The next request to send now. Call until `None`, after each event and at [`Holder::wake`].
    pub fn poll_request(&mut self, now: Time) -> Option<Request> {
        self.look_at_clock(now);
        if let Some(session) = self.closing.pop_front() {
            return Some(self.request(Do::Close(session), self.call_limit()));
        }
        if let Some(request) = self.poll_beat(now) {
            return Some(request);
        }
        let session = self.session();
        match self.state {
            State::Opening => self.poll_main(now, Do::Open(session)),
            State::Claiming { expect, place, .. } => self.poll_main(
                now,
                Do::Claim {
                    session,
                    expect,
                    place,
                },
            ),
            State::Looking { ticket } => self.poll_main(now, Do::Look { session, ticket }),
            State::Queueing => self.poll_main(now, Do::Enqueue(session)),
            State::Waiting { target, after, .. } => {
                self.poll_watch(now, target, Some(session), after)
            }
            State::Held { look: true, .. } => self.poll_main(
                now,
                Do::Look {
                    session,
                    ticket: None,
                },
            ),
            State::Held { after, .. } => self.poll_watch(now, Target::Lease, None, after),
            State::Releasing { token } => self.poll_main(now, Do::Release(token)),
            State::Lost { .. } | State::Over => None,
        }
    }

    /// The user gives the lease back, or stops waiting for it. Repeating it is harmless.
    pub fn give_back(&mut self) {
        match self.state {
            State::Held { token, .. } | State::Lost { token } => {
                // The keep-alive under way, too: what it says of the session must not start anything again.
                self.main.forget();
                self.beat.forget();
                self.watch.forget();
                self.state = State::Releasing { token };
            }
            State::Releasing { .. } | State::Over => {}
            _ => self.end(),
        }
    }

    /// An answer. `now` is the moment it came, not the moment it was sent.
    pub fn answer(&mut self, id: u32, answer: Answer, now: Time) {
        // First of all, as after a long sleep: an answer that came in time but is looked at too late finds the lease lost.
        self.look_at_clock(now);
        if !matches!(answer, Answer::Failed(StoreError::Unreachable(_))) {
            self.answered = true;
        }
        if self.main.busy == Some(id) {
            self.main_answer(answer, now);
        } else if self.beat.busy == Some(id) {
            self.beat_answer(answer, now);
        } else if self.watch.busy == Some(id) {
            self.watch_answer(answer, now);
        }
    }

    fn look_at_clock(&mut self, now: Time) {
        match self.state {
            State::Held { token, .. } if now >= self.deadline() => self.lose(token, Loss::Expired),
            // The key has gone with the session; deleting it is no longer worth trying.
            State::Releasing { .. } if now >= self.surely_dead() => self.end(),
            State::Held { .. } | State::Lost { .. } | State::Releasing { .. } | State::Over => {}
            _ if now >= self.terms.give_up => {
                let seen = self.last_view.take();
                let refusal = match self.last_error.take() {
                    Some(error) if seen.is_none() => Refusal::Store(error),
                    _ => Refusal::TimedOut(seen),
                };
                self.refuse(refusal);
            }
            // A waiter whose own session may have ended is never granted anything.
            State::Opening => {}
            _ if now >= self.deadline() => self.start_again(now),
            _ => {}
        }
    }

    /// From here on the session has ended at the store as well, whatever was lost on the way.
    fn surely_dead(&self) -> Time {
        self.alive_since
            .after(self.terms.ttl.max(self.ttl.unwrap_or_default()) * 2)
    }

    fn poll_main(&mut self, now: Time, what: Do) -> Option<Request> {
        if !self.main.ready(now) {
            return None;
        }
        let request = self.request(what, self.call_limit());
        self.main.start(request.id, now);
        Some(request)
    }

    fn poll_watch(
        &mut self,
        now: Time,
        target: Target,
        place: Option<SessionId>,
        after: u64,
    ) -> Option<Request> {
        if !self.watch.ready(now) {
            return None;
        }
        let request = self.request(
            Do::Watch {
                target,
                place,
                after,
            },
            None,
        );
        self.watch.start(request.id, now);
        Some(request)
    }

    fn poll_beat(&mut self, now: Time) -> Option<Request> {
        if !self.beats() || self.beat.busy.is_some() || now < self.beat_due() {
            return None;
        }
        let request = self.request(Do::KeepAlive(self.session()), self.call_limit());
        self.beat.start(request.id, now);
        Some(request)
    }

    fn beats(&self) -> bool {
        !matches!(
            self.state,
            State::Opening | State::Lost { .. } | State::Releasing { .. } | State::Over
        )
    }

    fn beat_due(&self) -> Time {
        match self.ttl {
            Some(ttl) if self.beat.busy.is_none() => self
                .alive_since
                .after(ttl / BEATS_PER_TTL)
                .max(self.beat.not_before),
            _ => Time::NEVER,
        }
    }

    fn request(&mut self, what: Do, limit: Option<Duration>) -> Request {
        let id = self.next_id;
        self.next_id += 1;
        Request { id, what, limit }
    }

    /// A request that hangs must not use up the time in which another endpoint could be asked.
    fn call_limit(&self) -> Option<Duration> {
        let ttl = self.ttl.unwrap_or(self.terms.ttl);
        Some((ttl / (BEATS_PER_TTL * 2)).clamp(CALL_MIN, CALL_MAX))
    }

    fn main_answer(&mut self, answer: Answer, now: Time) {
        if let Answer::Failed(error) = answer {
            return self.main_failed(error, now);
        }
        let sent = self.main.sent;
        self.main.done();
        match (self.state, answer) {
            (State::Opening, Answer::Opened(granted)) => self.opened(granted, sent),
            (State::Claiming { .. }, Answer::Claimed(Claim::Won(token))) => self.granted(token),
            (
                State::Claiming {
                    ticket: Some(ticket),
                    ..
                },
                Answer::Claimed(Claim::Refused(_)),
            ) => {
                self.state = State::Looking {
                    ticket: Some(ticket),
                };
            }
            (State::Claiming { .. }, Answer::Claimed(Claim::Refused(view))) => self.found(view),
            (State::Looking { ticket: None }, Answer::Seen(view)) => self.found(view),
            (State::Looking { .. } | State::Queueing, Answer::Seen(view)) => {
                self.in_queue(view, now)
            }
            (State::Held { token, .. }, Answer::Seen(view)) => self.held_still(token, &view),
            (State::Releasing { .. }, Answer::Released) => self.end(),
            // Not an answer to what was asked: the driver's fault.
            (state, answer) => debug_assert!(false, "{state:?} got {answer:?}"),
        }
    }

    fn main_failed(&mut self, error: StoreError, now: Time) {
        self.main.failed(now);
        self.last_error = Some(error.clone());
        match (self.state, error) {
            (State::Held { token, .. }, StoreError::Changed(_)) => {
                self.lose(token, Loss::StoreChanged)
            }
            // Retried until the deadline, or until the key has gone with the session.
            (State::Held { .. }, _) => {}
            (State::Releasing { .. }, StoreError::Unreachable(_)) => {}
            (State::Releasing { .. }, _) => self.end(),
            (_, error @ (StoreError::Denied(_) | StoreError::Changed(_))) => {
                self.refuse(Refusal::Store(error))
            }
            (_, error) if !self.answered && now >= self.started.after(self.terms.patience) => {
                self.refuse(Refusal::Store(error));
            }
            (_, StoreError::SessionGone) => self.start_again(now),
            // It may have been opened all the same: under a number that is not used again, and that is closed.
            (State::Opening, _) => self.start_again(now),
            // The claim may have been granted: a look tells.
            (State::Claiming { ticket, .. }, _) => self.state = State::Looking { ticket },
            _ => {}
        }
    }

    fn beat_answer(&mut self, answer: Answer, now: Time) {
        match answer {
            Answer::KeptAlive => {
                // Counted from the sending: the store may have counted from then.
                self.alive_since = self.alive_since.max(self.beat.sent);
                self.beat.done();
            }
            Answer::Failed(StoreError::SessionGone) => match self.state {
                State::Held { token, .. } => self.lose(token, Loss::Revoked),
                _ => self.start_again(now),
            },
            Answer::Failed(_) => {
                self.beat.failed(now);
                // Perhaps the connection is dead, and the watch on it silent.
                if let State::Held { token, after, .. } = self.state {
                    self.watch.forget();
                    self.state = State::Held {
                        token,
                        after,
                        look: true,
                    };
                }
            }
            answer => debug_assert!(false, "a keep-alive got {answer:?}"),
        }
    }

    fn watch_answer(&mut self, answer: Answer, now: Time) {
        match &answer {
            Answer::Failed(_) => self.watch.failed(now),
            _ => self.watch.done(),
        }
        match (self.state, answer) {
            (State::Held { token, .. }, Answer::Changed(Change::Deleted)) => {
                self.lose(token, Loss::Deleted)
            }
            (State::Held { token, after, .. }, Answer::Changed(Change::Written(other))) => {
                // The own grant, seen again, is no loss.
                if other > token {
                    self.lose(token, Loss::Taken(other));
                } else {
                    self.state = State::Held {
                        token,
                        after: after.max(other.get()),
                        look: false,
                    };
                }
            }
            (State::Held { token, .. }, Answer::Failed(StoreError::Changed(_))) => {
                self.lose(token, Loss::StoreChanged);
            }
            (State::Held { token, after, .. }, _) => {
                self.main.not_before = self.watch.not_before;
                self.state = State::Held {
                    token,
                    after,
                    look: true,
                };
            }
            (
                State::Waiting { .. },
                Answer::Failed(error @ (StoreError::Denied(_) | StoreError::Changed(_))),
            ) => {
                self.refuse(Refusal::Store(error));
            }
            (State::Waiting { .. }, Answer::Changed(Change::PlaceLost)) => self.start_again(now),
            // The one thing on the way from one holder to the next: claim at once, look later.
            (
                State::Waiting {
                    ticket,
                    target: Target::Lease,
                    ..
                },
                Answer::Changed(Change::Deleted),
            ) => {
                self.state = State::Claiming {
                    expect: 0,
                    place: Place::Queued,
                    ticket: Some(ticket),
                };
            }
            (State::Waiting { ticket, .. }, _) => {
                self.main.not_before = self.watch.not_before;
                self.state = State::Looking {
                    ticket: Some(ticket),
                };
            }
            _ => {}
        }
    }

    fn opened(&mut self, granted: Duration, sent: Time) {
        self.ttl = Some(granted.min(self.terms.ttl));
        self.alive_since = sent;
        let place = if self.terms.steal {
            Place::Any
        } else {
            Place::NobodyWaits
        };
        self.state = State::Claiming {
            expect: 0,
            place,
            ticket: None,
        };
    }

    fn granted(&mut self, token: Token) {
        self.main.forget();
        self.watch.forget();
        self.state = State::Held {
            token,
            after: token.get(),
            look: false,
        };
        let (session, ttl) = (self.session(), self.ttl.unwrap_or_default());
        self.news.push_back(News::Granted {
            token,
            session,
            ttl,
        });
    }

    /// How things stand, without a place in the queue.
    fn found(&mut self, view: View) {
        if let Some(token) = self.own_grant(&view) {
            return self.granted(token);
        }
        match view.holder {
            Some(seen) if self.terms.steal => self.claim(seen.token.get(), Place::Any, None),
            None if self.terms.steal => self.claim(0, Place::Any, None),
            None if view.ahead.is_none() => self.claim(0, Place::NobodyWaits, None),
            Some(Seen {
                token,
                session: None,
            }) if view.ahead.is_none() => {
                self.claim(token.get(), Place::NobodyWaits, None);
            }
            _ if !self.terms.wait => self.refuse(Refusal::Busy(view)),
            _ => {
                self.last_view = Some(view.clone());
                self.news.push_back(News::Waiting(view));
                self.state = State::Queueing;
            }
        }
    }

    /// How things stand, as a waiter.
    fn in_queue(&mut self, view: View, now: Time) {
        if let Some(token) = self.own_grant(&view) {
            return self.granted(token);
        }
        let Some(ticket) = view.ticket else {
            // The place goes only with the session.
            return self.start_again(now);
        };
        let after = view.revision;
        match (view.ahead, view.holder) {
            (Some(before), _) => {
                self.state = State::Waiting {
                    ticket,
                    target: Target::Waiter(before),
                    after,
                }
            }
            (None, None) => self.claim(0, Place::Queued, Some(ticket)),
            (
                None,
                Some(Seen {
                    token,
                    session: None,
                }),
            ) => self.claim(token.get(), Place::Queued, Some(ticket)),
            (None, Some(_)) => {
                self.state = State::Waiting {
                    ticket,
                    target: Target::Lease,
                    after,
                }
            }
        }
        self.last_view = Some(view);
    }

    /// The key hangs on our session: an earlier claim's reply was lost. One session per acquisition makes this certain.
    fn own_grant(&self, view: &View) -> Option<Token> {
        let seen = view.holder?;
        (seen.session == Some(self.session())).then_some(seen.token)
    }

    fn held_still(&mut self, token: Token, view: &View) {
        match view.holder {
            Some(seen) if seen.token == token => {
                self.state = State::Held {
                    token,
                    after: view.revision,
                    look: false,
                };
            }
            Some(seen) => self.lose(token, Loss::Taken(seen.token)),
            None => self.lose(token, Loss::Deleted),
        }
    }

    fn claim(&mut self, expect: u64, place: Place, ticket: Option<u64>) {
        self.state = State::Claiming {
            expect,
            place,
            ticket,
        };
    }

    fn lose(&mut self, token: Token, loss: Loss) {
        self.main.forget();
        self.beat.forget();
        self.watch.forget();
        self.state = State::Lost { token };
        self.news.push_back(News::Lost(loss));
    }

    /// A fresh session. The old one, and a claim on it that may still be on its way, must end: H4.
    fn start_again(&mut self, now: Time) {
        self.closing.push_back(self.session());
        self.attempt += 1;
        self.ttl = None;
        self.alive_since = now;
        self.beat.forget();
        self.watch.forget();
        self.main.busy = None;
        self.state = State::Opening;
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.news.push_back(News::Refused(refusal));
        self.end();
    }

    fn end(&mut self) {
        if self.state == State::Over {
            return;
        }
        self.closing.push_back(self.session());
        self.main.forget();
        self.beat.forget();
        self.watch.forget();
        self.state = State::Over;
        self.news.push_back(News::Ended);
    }
}

/// `max(500 ms, TTL/10)`: time enough to stop a job, and for clocks that run a little apart.
pub fn default_margin(ttl: Duration) -> Duration {
    (ttl / 10).max(MARGIN_MIN)
}
