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

use crate::store::{Place, SessionId, StoreError, Target, View};
use palisade_fence::{Time, Token};
use slot::Slot;
use std::{collections::VecDeque, time::Duration};

pub use terms::{Answer, Do, Loss, News, Refusal, Request, Terms, default_margin};

mod answers;
#[cfg(test)]
mod model;
mod slot;
mod terms;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

/// Keep-alives go out three times in a time to live.
const BEATS_PER_TTL: u32 = 3;
/// The longest that a request may take before it counts as failed.
const CALL_MAX: Duration = Duration::from_secs(5);
/// The shortest such limit: a store may be slow for a moment even where the time to live is short.
const CALL_MIN: Duration = Duration::from_millis(300);

const _: () = assert!(
    BEATS_PER_TTL >= 2,
    "one lost keep-alive must not lose the lease"
);

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
}
