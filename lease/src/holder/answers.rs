//! What the store's answers change.

use super::{Answer, Holder, Loss, News, Refusal, State};
use crate::store::{Change, Claim, Place, Seen, StoreError, Target, View};
use palisade_fence::{Time, Token};
use std::time::Duration;

impl Holder {
    pub(super) fn main_answer(&mut self, answer: Answer, now: Time) {
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

    pub(super) fn main_failed(&mut self, error: StoreError, now: Time) {
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

    pub(super) fn beat_answer(&mut self, answer: Answer, now: Time) {
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

    pub(super) fn watch_answer(&mut self, answer: Answer, now: Time) {
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

    pub(super) fn opened(&mut self, granted: Duration, sent: Time) {
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

    pub(super) fn granted(&mut self, token: Token) {
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
    pub(super) fn found(&mut self, view: View) {
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
    pub(super) fn in_queue(&mut self, view: View, now: Time) {
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
    pub(super) fn own_grant(&self, view: &View) -> Option<Token> {
        let seen = view.holder?;
        (seen.session == Some(self.session())).then_some(seen.token)
    }

    pub(super) fn held_still(&mut self, token: Token, view: &View) {
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

    pub(super) fn claim(&mut self, expect: u64, place: Place, ticket: Option<u64>) {
        self.state = State::Claiming {
            expect,
            place,
            ticket,
        };
    }

    pub(super) fn lose(&mut self, token: Token, loss: Loss) {
        self.main.forget();
        self.beat.forget();
        self.watch.forget();
        self.state = State::Lost { token };
        self.news.push_back(News::Lost(loss));
    }

    /// A fresh session. The old one, and a claim on it that may still be on its way, must end: H4.
    pub(super) fn start_again(&mut self, now: Time) {
        self.closing.push_back(self.session());
        self.attempt += 1;
        self.ttl = None;
        self.alive_since = now;
        self.beat.forget();
        self.watch.forget();
        self.main.busy = None;
        self.state = State::Opening;
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.news.push_back(News::Refused(refusal));
        self.end();
    }

    pub(super) fn end(&mut self) {
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
