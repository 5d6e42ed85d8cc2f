//! What is counted and logged of each request, from its head to the end of its response.

use super::{Live, OutBody, Shared};
use crate::{
    refusal::{Outcome, Problem, Refusal},
    route::{Class, Kind},
    server::{ClientInfo, Peer},
    upstream::Connect,
};
use bytes::Bytes;
use http::{Method, Response, StatusCode, request};
use http_body_util::BodyExt;
use palisade_fence::{Time, Token};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// The target of these lines, for whoever writes them out.
pub(crate) const ACCESS_LOG: &str = "palisade::access";

/// Whether there is an access line per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// A line each, at the end of its response.
    On,
    /// None.
    Off,
}

/// How a request has ended so far.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Its client went away before there was a response. `started`: something of it may have been sent.
    ClientGone {
        started: bool,
    },
    Answered,
    Problem(Problem),
}

/// One request, counted while it is under way; its metrics and its access line are written when this is dropped.
pub(super) struct Exchange {
    shared: Arc<Shared>,
    begun: Time,
    kind: Kind,
    end: End,
    status: Option<StatusCode>,
    line: Option<Box<Line>>,
}

/// What only the access line needs. No query, no field's value, no body: they may carry secrets.
struct Line {
    method: Method,
    path: String,
    version: http::Version,
    client: Peer,
    scope: Option<Arc<str>>,
    token: Option<Token>,
    highest: Option<Token>,
    bytes: usize,
}

impl Exchange {
    pub(super) fn begin(
        shared: &Arc<Shared>,
        live: &Live,
        parts: &request::Parts,
        client: &ClientInfo,
    ) -> Self {
        let line = (live.access == AccessLog::On).then(|| {
            Box::new(Line {
                method: parts.method.clone(),
                path: parts.uri.path().to_owned(),
                version: parts.version,
                client: client.peer,
                scope: None,
                token: None,
                highest: None,
                bytes: 0,
            })
        });
        // Until it is judged; a refusal may come before.
        let kind = if parts.method.is_safe() {
            Kind::Read
        } else {
            Kind::Write
        };
        shared.in_flight.fetch_add(1, Relaxed);
        shared.metrics.begun(kind);
        let end = End::ClientGone { started: false };
        Self {
            shared: Arc::clone(shared),
            begun: shared.gate.now(),
            kind,
            end,
            status: None,
            line,
        }
    }

    /// When its head had come.
    pub(super) fn begun(&self) -> Time {
        self.begun
    }

    pub(super) fn judged(&mut self, class: &Class, token: Option<Token>) {
        if class.kind != self.kind {
            self.shared.metrics.turned(self.kind, class.kind);
            self.kind = class.kind;
        }
        if let Some(line) = &mut self.line {
            line.scope.clone_from(&class.scope);
            line.token = token;
        }
    }

    /// From here on something of it may be sent.
    pub(super) fn started(&mut self) {
        self.end = End::ClientGone { started: true };
    }

    pub(super) fn relayed(&mut self, bytes: usize) {
        if let Some(line) = &mut self.line {
            line.bytes += bytes;
        }
    }

    /// Upstream's own answer goes to the client.
    pub(super) fn answered<C: Connect>(
        mut self,
        response: Response<OutBody<C>>,
    ) -> Response<OutBody<C>> {
        self.end = End::Answered;
        self.status = Some(response.status());
        response.map(|body| body.with(self))
    }

    /// A problem goes to the client.
    pub(super) fn refused<C: Connect>(mut self, refusal: Refusal) -> Response<OutBody<C>> {
        self.end = End::Problem(refusal.problem);
        self.shared.refusals.note(self.shared.gate.now(), &refusal);
        self.status = Some(refusal.status());
        if let Some(line) = &mut self.line {
            line.highest = refusal.highest;
            line.scope = line.scope.take().or_else(|| refusal.scope.clone());
            line.token = line.token.or(refusal.token);
        }
        refusal
            .into_response()
            .map(|body| OutBody::read(in_memory(body), true).with(self))
    }
}

fn in_memory(body: http_body_util::Full<Bytes>) -> Bytes {
    // A `Full` is there at once.
    let collected = body.collect();
    let mut collected = std::pin::pin!(collected);
    match collected
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    {
        std::task::Poll::Ready(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let took = self.shared.gate.now().since(self.begun);
        self.shared.in_flight.fetch_sub(1, Relaxed);
        let (outcome, reason) = match self.end {
            End::Answered => (Outcome::Answered, "answered"),
            End::Problem(problem) => (problem.outcome(), problem.name()),
            End::ClientGone { started: true } => (Outcome::Unknown, "client-gone"),
            End::ClientGone { started: false } => (Outcome::Refused, "client-gone"),
        };
        match self.end {
            End::Answered => self.shared.metrics.ended(self.kind, None, took),
            End::Problem(problem) => self.shared.metrics.ended(self.kind, Some(problem), took),
            End::ClientGone { started } => {
                self.shared.metrics.client_gone(self.kind, started, took)
            }
        }
        if let Some(line) = &self.line {
            line.write(self.kind, outcome, reason, self.status, took.as_secs_f64());
        }
    }
}

impl Line {
    fn write(
        &self,
        kind: Kind,
        outcome: Outcome,
        reason: &str,
        status: Option<StatusCode>,
        seconds: f64,
    ) {
        tracing::info!(
            target: ACCESS_LOG,
            client = %self.client,
            version = ?self.version,
            method = %self.method,
            path = self.path,
            kind = kind.as_str(),
            scope = self.scope.as_deref(),
            token = self.token.map(Token::get),
            highest = self.highest.map(Token::get),
            outcome = outcome.as_str(),
            reason,
            status = status.map(|status| status.as_u16()),
            bytes = self.bytes,
            seconds,
        );
    }
}
