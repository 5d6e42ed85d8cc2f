//! What a request holds once it was let through.

use super::{
    Cell, Session,
    inside::{Inside, WayBack},
};
use crate::upstream::Deadline;
use palisade_fence::{End, Superseded, Time, Token};
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// A request was admitted; nothing of it has been sent. No pass, no forwarding.
#[must_use = "a request that was let through is to be forwarded, or answered with a refusal"]
pub struct Pass {
    inside: Inside,
    cell: Arc<Cell>,
    token: Token,
    session: Option<Arc<Session>>,
}

impl Pass {
    pub(super) fn new(
        inside: Inside,
        cell: Arc<Cell>,
        token: Token,
        session: Option<Arc<Session>>,
    ) -> Self {
        cell.used.store(true, Relaxed);
        cell.requests.fetch_add(1, Relaxed);
        Self {
            inside,
            cell,
            token,
            session,
        }
    }

    /// Enters a write as in flight: call it right before the first byte leaves. Fails if a newer token has closed the
    /// scope meanwhile; then nothing of it may be sent.
    pub fn start(self) -> Result<Ticket, Superseded> {
        self.cell.lock().start(self.token)?;
        // In flight now, so it may leave: a reload looks at both.
        Ok(Ticket {
            way_back: self.inside.way_back(),
            cell: self.cell,
            token: self.token,
            session: self.session,
            ended: false,
        })
    }

    /// Waits until a newer token has closed the scope, and gives when.
    pub async fn superseded(&self) -> Superseded {
        closed_above(&self.cell, self.token).await;
        let highest = self.cell.lock().floor().unwrap_or(self.token);
        Superseded { highest }
    }
}

/// A write in flight. It must say how it ended; one that is dropped without a word is ambiguous.
#[must_use = "a write in flight must be ended: dropped, it is ambiguous and holds up the next handover"]
pub struct Ticket {
    way_back: WayBack,
    cell: Arc<Cell>,
    token: Token,
    session: Option<Arc<Session>>,
    ended: bool,
}

impl Ticket {
    /// The write has ended. Its connection must be closed already if that does not settle it: the settle time counts
    /// from now (A6).
    pub fn end(mut self, end: End) {
        if end.settled {
            self.ended = true;
            self.cell.settled(self.token);
        }
    }

    /// After this moment nothing of it may be sent: that of the session under which it was let through, and no later one.
    pub fn deadline(&self) -> Option<Arc<Deadline>> {
        self.session
            .as_ref()
            .map(|session| session.shared_deadline())
    }

    /// Whether that moment has passed.
    pub fn session_is_over(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.is_over())
    }

    /// Waits for that moment; for ever in a single proxy.
    pub async fn session_over(&self) {
        match &self.session {
            Some(session) => session.over().await,
            None => std::future::pending().await,
        }
    }

    /// The moment now, on the gate's clock; [`Time::ZERO`] once the gate is gone.
    pub fn now(&self) -> Time {
        self.way_back.gate().map_or(Time::ZERO, |gate| gate.now())
    }

    /// The scope's name.
    pub fn scope(&self) -> &str {
        &self.cell.name
    }

    /// The scope's floor: the token of this write, or a newer one.
    pub fn highest(&self) -> Token {
        self.cell.lock().floor().unwrap_or(self.token)
    }

    /// Waits until a newer token has closed the scope; gives the moment by which this write must be sent, or be cut.
    pub async fn cut_at(&self) -> Time {
        closed_above(&self.cell, self.token)
            .await
            .after(self.way_back.abort_after())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended
            && let Some(gate) = self.way_back.gate()
        {
            let until = gate.settles_at();
            tracing::warn!(scope = %self.cell.name, token = %self.token, "a write's outcome is unknown: the next handover waits until it is settled");
            metrics::counter!("palisade_ambiguous_total").increment(1);
            gate.event(&self.cell, |scope| scope.ambiguous(self.token, until));
        }
    }
}

async fn closed_above(cell: &Cell, token: Token) -> Time {
    loop {
        let mut closed = pin!(cell.closed.notified());
        closed.as_mut().enable();
        if let Some(closed_at) = cell.lock().closed_above(token) {
            return closed_at;
        }
        closed.await;
    }
}
