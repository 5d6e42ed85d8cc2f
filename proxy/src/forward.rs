//! A request's way: judged by its head, past the gate, its body read, to upstream, and the answer back.
//!
//! Invariants of absence: no write is sent twice; nothing of a write leaves without a [`Ticket`](crate::gate::Ticket); no response leaves without
//! `X-Fence-Outcome`.

mod access;
mod body;
mod survive;
mod upload;
mod write;

pub(crate) use access::ACCESS_LOG;
pub use access::AccessLog;
pub use body::{OutBody, UpBody};

use crate::{
    gate::{Closed, Gate, Pass},
    headers::{self, Forwarding, Origin},
    metrics::RequestMetrics,
    refusal::{self, Problem, Refusal},
    route::{Class, Judged, Kind, RouteTable},
    server::{ClientBody, ClientInfo, DrainLimits, Handler, Peer, Stream, refuse_body},
    tap::{Heads, Tap},
    upstream::{AnswerError, Connect, ConnectError, Pool},
};
use access::Exchange;
use arc_swap::ArcSwap;
use http::{HeaderValue, Method, Request, Response, Uri, Version, header, request};
use http_body::Body as _;
use palisade_fence::{Refused, Superseded, Token, Unreadable};
use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio_util::task::TaskTracker;
use upload::Upload;

/// What the threads of one proxy share.
pub struct Shared {
    /// The gate.
    pub gate: Arc<Gate>,
    /// What may change by a reload.
    pub live: ArcSwap<Live>,
    /// Requests under way.
    pub in_flight: AtomicUsize,
    /// The most bytes of a request's head.
    pub header_bytes: usize,
    /// Counters and histograms.
    pub metrics: RequestMetrics,
    /// The last refusals, for the status page.
    pub refusals: Arc<refusal::Refusals>,
}

/// Settings that a reload may change while requests are under way.
pub struct Live {
    /// The number of the route table.
    pub table: u64,
    /// Which request falls in which scope.
    pub routes: Arc<RouteTable>,
    /// Which fields tell upstream where a request came from.
    pub forwarding: Forwarding,
    /// Bodies up to this many bytes are read whole before anything is sent.
    pub buffer_body: usize,
    /// Requests under way at once.
    pub in_flight: usize,
    /// From a request's head to the head of its response.
    pub request_timeout: Option<Duration>,
    /// An answer later than this after the last byte disproves A6.
    pub settle: Option<Duration>,
    /// Whether there is a line per request.
    pub access: AccessLog,
}

/// One thread's forwarder.
pub struct Forwarder<C: Connect> {
    shared: Arc<Shared>,
    pool: Pool<C, UpBody>,
    /// Writes whose clients have gone.
    survivors: TaskTracker,
}

/// A request that may go on.
struct Admitted {
    live: Arc<Live>,
    class: Class,
    token: Option<Token>,
    pass: Option<Pass>,
}

impl<C: Connect> Forwarder<C> {
    /// With connections of its own to upstream.
    pub fn new(shared: Arc<Shared>, pool: Pool<C, UpBody>) -> Self {
        Self {
            shared,
            pool,
            survivors: TaskTracker::new(),
        }
    }

    /// The connections to upstream.
    pub fn pool(&self) -> &Pool<C, UpBody> {
        &self.pool
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<ClientBody>,
        client: Rc<ClientInfo>,
        tap: Option<Heads>,
    ) -> Response<OutBody<C>> {
        let (parts, body) = request.into_parts();
        let live = self.shared.live.load_full();
        let mut exchange = Exchange::begin(&self.shared, &live, &parts, &client);
        let mut upload = Upload::new(body, live.buffer_body);
        let is_head = parts.method == Method::HEAD;
        let result = match self.admit(&parts, tap.as_ref(), &mut exchange).await {
            Ok(admitted) => {
                self.forward(parts, &mut upload, &client, admitted, &mut exchange)
                    .await
            }
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(response) => exchange.answered(response),
            Err(refusal) => {
                let mut response = exchange.refused(refusal);
                if is_head {
                    response = without_content(response);
                }
                if let Some(body) = upload.into_unread() {
                    let limits = DrainLimits {
                        keep_alive: live.buffer_body as u64,
                        ..DrainLimits::default()
                    };
                    refuse_body(&mut response, body, limits);
                }
                response
            }
        }
    }

    /// Judges the head and takes the request past the gate, under one and the same route table.
    async fn admit(
        &self,
        parts: &request::Parts,
        tap: Option<&Heads>,
        exchange: &mut Exchange,
    ) -> Result<Admitted, Refusal> {
        if let Some(tap) = tap {
            tap.next(&parts.method, &parts.uri)?;
        }
        loop {
            let live = self.shared.live.load_full();
            let Judged { class, token } = live.routes.judge(parts)?;
            exchange.judged(&class, token);
            if self.shared.in_flight.load(Relaxed) > live.in_flight {
                return Err(Refusal::from(Problem::Overloaded).in_scope(class.scope));
            }
            let (Some(scope), Some(token)) = (&class.scope, token) else {
                return Ok(Admitted {
                    live,
                    class,
                    token,
                    pass: None,
                });
            };
            match self.pass(&live, scope, token, class.kind, exchange).await {
                Ok(pass) => {
                    return Ok(Admitted {
                        live,
                        token: Some(token),
                        pass: Some(pass),
                        class,
                    });
                }
                Err(Closed::Reloaded) => tokio::task::yield_now().await,
                Err(why) => {
                    return Err(closed(why).in_scope(class.scope).with_token(Some(token)));
                }
            }
        }
    }

    async fn pass(
        &self,
        live: &Live,
        scope: &Arc<str>,
        token: Token,
        kind: Kind,
        exchange: &Exchange,
    ) -> Result<Pass, Closed> {
        let gate = &self.shared.gate;
        let passed = gate
            .pass(scope, token, kind == Kind::Write, live.table)
            .await;
        self.shared
            .metrics
            .gate(passed.is_ok(), gate.now().since(exchange.begun()));
        passed
    }

    async fn forward(
        &self,
        parts: request::Parts,
        upload: &mut Upload,
        client: &ClientInfo,
        admitted: Admitted,
        exchange: &mut Exchange,
    ) -> Result<Response<OutBody<C>>, Refusal> {
        let Admitted {
            live,
            class,
            token,
            pass,
        } = admitted;
        let refine = |refusal: Refusal| refusal.in_scope(class.scope.clone()).with_token(token);
        self.read_body(upload, pass.as_ref())
            .await
            .map_err(refine)?;
        let request = to_upstream(&live, parts, client, upload.take());
        match (class.kind, pass) {
            (Kind::Write, Some(pass)) => self
                .write(&live, request, pass, exchange)
                .await
                .map_err(refine),
            // A write without a scope or a token has been refused by now.
            _ => self.read(&live, request).await.map_err(refine),
        }
    }

    /// Reads a small body whole, unless a newer token closes the scope meanwhile.
    async fn read_body(&self, upload: &mut Upload, pass: Option<&Pass>) -> Result<(), Refusal> {
        if upload.is_ready() {
            return Ok(());
        }
        let Some(pass) = pass else {
            return upload.fill().await;
        };
        tokio::select! {
            biased;
            filled = upload.fill() => filled,
            Superseded { highest } = pass.superseded() => Err(superseded(highest)),
        }
    }

    async fn read(
        &self,
        live: &Live,
        mut request: Request<UpBody>,
    ) -> Result<Response<OutBody<C>>, Refusal> {
        // Only a read without a body can be sent once more.
        let again = request.body().is_empty().then(|| copy_of(&request));
        let mut conn = self
            .pool
            .checkout()
            .await
            .map_err(|error| unreachable(&error))?;
        let started = self.shared.gate.now();
        let mut again = again;
        loop {
            let sending = conn.send(request, None);
            let outcome = match live.request_timeout {
                Some(limit) => match tokio::time::timeout(limit, sending).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Err(Refusal::timed_out()),
                },
                None => sending.await,
            };
            match (outcome.read_may_be_retried(), again.take()) {
                (true, Some(copy)) => {
                    request = copy;
                    conn = self
                        .pool
                        .fresh()
                        .await
                        .map_err(|error| unreachable(&error))?;
                }
                _ => {
                    let response = outcome
                        .answer
                        .map_err(|error| no_answer(outcome.sent, &error))?;
                    self.shared
                        .metrics
                        .upstream(Kind::Read, self.shared.gate.now().since(started));
                    return Ok(self.relay(live, response.map(OutBody::relayed)));
                }
            }
        }
    }

    /// Upstream's response, made fit for the client.
    fn relay(&self, live: &Live, mut response: Response<OutBody<C>>) -> Response<OutBody<C>> {
        let version = response.version();
        let fields = response.headers_mut();
        headers::strip_response(fields);
        live.forwarding.add_via(fields, version);
        fields.insert(headers::OUTCOME, refusal::Outcome::Answered.value());
        *response.version_mut() = Version::HTTP_11;
        response
    }
}

impl<C: Connect> Handler for Forwarder<C> {
    type Body = OutBody<C>;
    type Tapped<S: Stream> = Tap<S>;
    type Tap = Heads;

    fn tap<S: Stream>(&self, io: S) -> (Tap<S>, Heads) {
        Tap::new(io, self.shared.header_bytes)
    }

    fn handle(
        self: Rc<Self>,
        request: Request<ClientBody>,
        client: Rc<ClientInfo>,
        tap: Option<Heads>,
    ) -> impl Future<Output = Response<OutBody<C>>> {
        self.answer(request, client, tap)
    }

    async fn finished(&self) {
        self.survivors.close();
        self.survivors.wait().await;
    }
}

/// The answer to HEAD (RFC 9110, section 9.3.2). Over HTTP/2 hyper would send its content all the same.
fn without_content<C: Connect>(mut response: Response<OutBody<C>>) -> Response<OutBody<C>> {
    if let Some(length) = response.body().size_hint().exact() {
        let length = HeaderValue::from(length);
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length);
    }
    response.map(OutBody::emptied)
}

/// The request as upstream gets it: path and query, host and end-to-end fields byte for byte as they came.
fn to_upstream(
    live: &Live,
    mut parts: request::Parts,
    client: &ClientInfo,
    body: UpBody,
) -> Request<UpBody> {
    let host = headers::host(&parts.uri, &parts.headers);
    headers::strip_request(&mut parts.headers);
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers);
    }
    let origin = Origin {
        client: match client.peer {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix(_) => None,
        },
        tls: client.tls.is_some(),
        version: parts.version,
        host: host.as_ref(),
        known: &client.known,
    };
    live.forwarding.add_to_request(&mut parts.headers, &origin);
    if let Some(host) = host
        && !parts.headers.contains_key(header::HOST)
    {
        parts.headers.insert(header::HOST, host);
    }
    if let Some(length) = body.length() {
        // A body that is there in whole, and a length that the client told, are told on. A request that had none and has
        // no body keeps having none.
        let told = parts.headers.get(header::CONTENT_LENGTH);
        if !told.is_some_and(|told| headers::is_length(told, length))
            && (length > 0 || told.is_some())
        {
            parts
                .headers
                .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    if parts.uri.scheme().is_some() || parts.uri.authority().is_some() {
        parts.uri = match parts.uri.path_and_query() {
            Some(target) => Uri::from(target.clone()),
            None => parts.uri,
        };
    }
    parts.version = Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    Request::from_parts(parts, body)
}

fn copy_of(request: &Request<UpBody>) -> Request<UpBody> {
    let mut copy = Request::new(UpBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// What the gate said, as the client is told.
fn closed(why: Closed) -> Refusal {
    match why {
        Closed::HandoverPending => Problem::HandoverPending.into(),
        Closed::Overloaded => Problem::Overloaded.into(),
        Closed::ShuttingDown => Problem::ShuttingDown.into(),
        Closed::SessionExpired => Problem::SessionExpired.into(),
        // It is looked at again instead; should that ever end, this is what it waits for.
        Closed::Reloaded => Problem::HandoverPending.into(),
        Closed::Refused(refused) => match refused {
            Refused::Stale { highest } => {
                Refusal::new(Problem::StaleToken).with_highest(Some(highest))
            }
            Refused::Superseded { highest } => superseded(highest),
            Refused::NotHolder { highest } => {
                Refusal::new(Problem::NotHolder).with_highest(highest)
            }
            Refused::Unreadable(Unreadable::Unavailable) => Problem::AuthorityUnavailable.into(),
            Refused::Unreadable(Unreadable::Changed) => Problem::AuthorityChanged.into(),
            Refused::Storage => Problem::StorageUnavailable.into(),
        },
    }
}

fn superseded(highest: Token) -> Refusal {
    Refusal::new(Problem::Superseded).with_highest(Some(highest))
}

/// No connection: nothing was sent.
fn unreachable(error: &ConnectError) -> Refusal {
    tracing::warn!(%error, "upstream can't be reached");
    Problem::UpstreamUnreachable.into()
}

/// A request without a final response.
fn no_answer(sent: palisade_fence::Sent, error: &AnswerError) -> Refusal {
    if sent == palisade_fence::Sent::Nothing {
        tracing::warn!(%error, "upstream can't be reached");
        return Problem::UpstreamUnreachable.into();
    }
    tracing::warn!(%error, ?sent, "no answer from upstream");
    match error {
        AnswerError::Timeout => Refusal::timed_out(),
        _ => Refusal::with_detail(
            Problem::OutcomeUnknown,
            format!(
                "{}. {}",
                capitalized(&error.to_string()),
                Problem::OutcomeUnknown.advice()
            ),
        ),
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters).collect())
        .unwrap_or_default()
}
