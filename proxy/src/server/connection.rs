//! One client's connection: TLS, HTTP/1.1 or HTTP/2, timers, the end.

use super::{
    Handler, ServerConfig, Stage, Stream,
    accept::{Peer, changed},
    body::{ClientBody, DrainLimits, refuse_body},
    quiet::Quiet,
    watched::{Activity, Busy, BusyBody, Prefixed, Waiting, Watched},
};
use crate::{
    headers::Known,
    refusal::{Problem, Refusal},
};
use bytes::BytesMut;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

/// How an HTTP/2 client with prior knowledge begins (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a connection that was just made may take to ask for something when the server is on its way down.
const FIRST_WORDS: Duration = Duration::from_secs(3);
/// For what still has to be written to a client whose request can't be read, and for reading what it still sends.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LAST_BYTES: u64 = 1 << 20;
/// What hyper reads at once, at most: a body of 64 KiB together with its head. In two parts it would cost a read and a copy more.
const READ: usize = 80 * 1024;
/// RFC 9110, section 15.5.15. hyper answers 431, since it does not know how far into a head its limit was reached.
const TOO_LONG: &[u8] =
    b"HTTP/1.1 414 URI Too Long\r\nConnection: close\r\nContent-Length: 0\r\nX-Fence-Outcome: refused\r\n\r\n";

/// Who sends the requests of a connection.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The other end.
    pub peer: Peer,
    /// `None` without TLS.
    pub tls: Option<TlsInfo>,
    /// What its forwarding fields say.
    pub known: Known,
}

/// What is known of a client by TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    /// The name it asked for (SNI).
    pub server_name: Option<String>,
    /// Whether it showed a certificate (verified by `client_ca`).
    pub certificate: bool,
}

pub(super) async fn serve<S: Stream, H: Handler>(
    stream: S,
    mut client: ClientInfo,
    handler: Rc<H>,
    config: Rc<ServerConfig>,
    stage: watch::Receiver<Stage>,
) {
    let begun = Instant::now();
    let tls = match client.peer {
        Peer::Tcp(_) => config.tls.as_ref(),
        Peer::Unix(_) => None,
    };
    // In boxes: a connection that says nothing yet then takes no room for what it may become.
    let Some(tls) = tls else {
        return Box::pin(plain(stream, begun, client, handler, config, stage)).await;
    };
    let handshake = Box::pin(TlsAcceptor::from(tls.load_full()).accept(stream));
    let stream = match tokio::time::timeout(config.tls_handshake_timeout, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::debug!(%error, peer = ?client.peer, "TLS handshake failed");
        }
        Err(_) => return tracing::debug!(peer = ?client.peer, "TLS handshake took too long"),
    };
    let session = stream.get_ref().1;
    client.tls = Some(TlsInfo {
        server_name: session.server_name().map(str::to_owned),
        certificate: session.peer_certificates().is_some(),
    });
    match session.alpn_protocol() {
        Some(b"h2") => Box::pin(over_http2(stream, client, handler, config, stage)).await,
        Some(_) => {
            Box::pin(over_http1(
                stream,
                Instant::now(),
                client,
                handler,
                config,
                stage,
            ))
            .await;
        }
        None => {
            Box::pin(plain(
                stream,
                Instant::now(),
                client,
                handler,
                config,
                stage,
            ))
            .await;
        }
    }
}

/// Without ALPN the first bytes tell which protocol it is.
async fn plain<S: Stream, H: Handler>(
    mut stream: S,
    begun: Instant,
    client: ClientInfo,
    handler: Rc<H>,
    config: Rc<ServerConfig>,
    mut stage: watch::Receiver<Stage>,
) {
    let mut read = BytesMut::with_capacity(PREFACE.len());
    tokio::select! {
        biased;
        // What has begun slowly goes on below, and is answered there.
        _ = tokio::time::timeout_at(begun + config.header_timeout, beginning(&mut stream, &mut read)) => {}
        // It was taken, so nobody else will answer it: its first request may be on its way.
        () = async {
            draining(&mut stage).await;
            tokio::time::sleep(FIRST_WORDS).await;
        } => return,
    }
    if read.is_empty() {
        return;
    }
    let prefix = read.freeze();
    let http2 = prefix == PREFACE;
    let io = Prefixed { prefix, io: stream };
    if http2 {
        Box::pin(over_http2(io, client, handler, config, stage)).await;
    } else {
        Box::pin(over_http1(io, begun, client, handler, config, stage)).await;
    }
}

/// Reads until it is clear whether this is HTTP/2, or to the end of the connection.
async fn beginning<S: Stream>(stream: &mut S, read: &mut BytesMut) {
    while PREFACE.starts_with(read) && read.len() < PREFACE.len() {
        let rest = PREFACE.len() - read.len();
        let mut part = [0; PREFACE.len()];
        match stream.read(&mut part[..rest]).await {
            Ok(length) if length > 0 => read.extend_from_slice(&part[..length]),
            _ => return,
        }
    }
}

async fn over_http1<S: Stream, H: Handler>(
    io: S,
    begun: Instant,
    client: ClientInfo,
    handler: Rc<H>,
    config: Rc<ServerConfig>,
    mut stage: watch::Receiver<Stage>,
) {
    let head_limit = config.header_bytes.max(8192);
    let activity = Activity::new(begun, head_limit);
    let (io, tap) = handler.tap(Watched {
        io,
        activity: activity.clone(),
    });
    let exchange = Rc::new(Exchange {
        handler,
        client: Rc::new(client),
        tap: Some(tap),
        activity: activity.clone(),
        config: config.clone(),
    });
    let service = service_fn(move |request| answer(exchange.clone(), exchange.wrap(request)));
    let mut conn = http1::Builder::new()
        .half_close(true)
        .timer(TokioTimer::new())
        // The timers are our own: hyper's closes without a 408, and takes a pause between requests for a slow head.
        .header_read_timeout(None)
        .max_headers(config.header_count)
        .max_header_size(head_limit)
        .max_buf_size(head_limit.max(READ))
        .serve_connection(TokioIo::new(io), service);
    let mut graceful = false;
    // When the server is on its way down, and nothing was asked for: until then that may come.
    let mut first_words: Option<Instant> = None;
    let looked_at = stage.clone();
    let (mut drains, mut drains_quietly) = (pin!(draining(&mut stage)), Quiet::default());
    let mut timer = pin!(tokio::time::sleep_until(http1_due(&activity, &config)));
    let mut timer_quietly = Quiet::default();
    let words: Vec<u8> = loop {
        let event = poll_fn(|cx| {
            // First, so that an answer that is ready now says that it is the last one.
            if !graceful && first_words.is_none() {
                let moved = looked_at.has_changed().unwrap_or(true);
                if drains_quietly.poll(drains.as_mut(), moved, cx).is_ready() {
                    return Poll::Ready(Event::Drains);
                }
            }
            let polled = Pin::new(&mut conn).poll(cx);
            // hyper waits for the rest of it, and nobody will wake it.
            if activity.line_is_too_long() {
                return Poll::Ready(Event::LineTooLong);
            }
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(Event::Ended(ended));
            }
            if first_words.is_some() && activity.was_asked() {
                return Poll::Ready(Event::Asked);
            }
            let due = timer.is_elapsed();
            timer_quietly
                .poll(timer.as_mut(), due, cx)
                .map(|()| Event::Due)
        });
        match event.await {
            // hyper closes a connection at once on which nothing was read yet.
            Event::Drains if !activity.was_asked() => {
                let until = Instant::now() + FIRST_WORDS;
                first_words = Some(until);
                // hyper may have written the answer before it hears that there is no other.
                activity.end_after_answer();
                let due = timer.deadline().min(until);
                timer.as_mut().reset(due);
                timer_quietly.forget();
            }
            Event::Drains | Event::Asked => {
                (graceful, first_words) = (true, None);
                Pin::new(&mut conn).graceful_shutdown();
            }
            Event::LineTooLong => break TOO_LONG.to_vec(),
            // hyper has said why.
            Event::Ended(Err(error)) if error.is_parse() => break Vec::new(),
            Event::Ended(_) => return,
            Event::Due => {
                let now = Instant::now();
                if first_words.is_some_and(|until| until <= now) {
                    return;
                }
                match activity.waiting() {
                    _ if activity
                        .blocked_since()
                        .is_some_and(|since| since + config.response_idle_timeout <= now) =>
                    {
                        return;
                    }
                    Waiting::Idle(since) if since + config.keepalive_idle <= now => return,
                    Waiting::Head(since) if since + config.header_timeout <= now => {
                        break problem(Problem::RequestTimeout);
                    }
                    _ => {}
                }
                let due = http1_due(&activity, &config);
                let due = first_words.map_or(due, |until| due.min(until));
                timer.as_mut().reset(due);
                timer_quietly.forget();
            }
        }
    };
    activity.reads_no_more_requests();
    let io = conn.into_parts().io.into_inner();
    let _ = tokio::time::timeout(LAST_WORDS, last_words(io, &words)).await;
}

/// What a connection of HTTP/1.1 is woken for.
enum Event {
    /// The server is on its way down.
    Drains,
    /// Since then its first request has come.
    Asked,
    /// A request line is longer than it may be.
    LineTooLong,
    /// hyper is done with it.
    Ended(hyper::Result<()>),
    /// A limit may have passed.
    Due,
}

/// A problem as bytes, for a connection that hyper does not answer on, or not any more.
fn problem(problem: Problem) -> Vec<u8> {
    let refusal = Refusal::from(problem);
    let status = refusal.status();
    let (parts, body) = refusal.into_response().into_parts();
    let mut bytes = format!("HTTP/1.1 {status}\r\nconnection: close\r\n").into_bytes();
    for (name, value) in &parts.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    let body = body.into_inner().unwrap_or_default();
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Tells a client that there are too many. Over TLS only a handshake could, and that is what there is no room for.
pub(super) async fn turn_away(io: impl Stream) {
    let words = problem(Problem::Overloaded);
    let _ = tokio::time::timeout(LAST_WORDS, last_words(io, &words)).await;
}

/// Says something and closes in stages (RFC 9112, section 9.6): with unread bytes the kernel would make a reset of it, and the client
/// might not get to read the answer.
async fn last_words(mut io: impl Stream, words: &[u8]) -> std::io::Result<()> {
    io.write_all(words).await?;
    io.shutdown().await?;
    tokio::io::copy(&mut io.take(LAST_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

/// When to look at the connection again. Often earlier than anything can be overdue, so that no timer has to be moved for each request;
/// never later than the shorter limit after now, since what the connection waits for may change meanwhile.
fn http1_due(activity: &Activity, config: &ServerConfig) -> Instant {
    let shortest = config
        .header_timeout
        .min(config.keepalive_idle)
        .min(config.response_idle_timeout);
    let latest = Instant::now() + shortest;
    match activity.waiting() {
        Waiting::Idle(since) => latest.min(since + config.keepalive_idle),
        Waiting::Head(since) => latest.min(since + config.header_timeout),
        Waiting::No => latest,
    }
}

async fn over_http2<S: Stream, H: Handler>(
    io: S,
    client: ClientInfo,
    handler: Rc<H>,
    config: Rc<ServerConfig>,
    mut stage: watch::Receiver<Stage>,
) {
    let activity = Activity::new(Instant::now(), usize::MAX);
    let exchange = Rc::new(Exchange {
        handler,
        client: Rc::new(client),
        tap: None,
        activity: activity.clone(),
        config: config.clone(),
    });
    let service = service_fn(move |request| answer(exchange.clone(), exchange.wrap(request)));
    let header_bytes = u32::try_from(config.header_bytes).unwrap_or(u32::MAX);
    let conn = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.h2_streams)
        .max_pending_accept_reset_streams(config.h2_resets)
        .max_local_error_reset_streams(config.h2_resets.max(100))
        .max_header_list_size(header_bytes)
        .keep_alive_interval(config.keepalive_idle)
        .serve_connection(TokioIo::new(io), service);
    let mut conn = pin!(conn);
    let mut graceful = false;
    loop {
        let due = activity.idle_since().unwrap_or_else(Instant::now) + config.keepalive_idle;
        tokio::select! {
            biased;
            () = draining(&mut stage), if !graceful => {
                graceful = true;
                conn.as_mut().graceful_shutdown();
            }
            _ = conn.as_mut() => return,
            () = tokio::time::sleep_until(due), if !graceful => {
                let idle = activity.idle_since();
                if idle.is_some_and(|since| since + config.keepalive_idle <= Instant::now()) {
                    graceful = true;
                    conn.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// What the requests of a connection have in common.
struct Exchange<H: Handler> {
    handler: Rc<H>,
    client: Rc<ClientInfo>,
    tap: Option<H::Tap>,
    activity: Rc<Activity>,
    config: Rc<ServerConfig>,
}

impl<H: Handler> Exchange<H> {
    fn wrap(&self, request: Request<Incoming>) -> Request<ClientBody> {
        let uploading = Busy::new(&self.activity);
        ClientBody::wrap(request, self.config.body_idle_timeout, uploading)
    }
}

async fn answer<H: Handler>(
    exchange: Rc<Exchange<H>>,
    request: Request<ClientBody>,
) -> Result<Response<BusyBody<H::Body>>, Infallible> {
    let busy = Busy::new(&exchange.activity);
    if target_length(request.uri()) > exchange.config.target_bytes {
        // RFC 9110, section 15.5.15.
        return Ok(too_large(StatusCode::URI_TOO_LONG, request, busy));
    }
    if request.headers().len() > exchange.config.header_count {
        // RFC 6585, section 5. Over HTTP/1.1 hyper has counted them already.
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Ok(too_large(status, request, busy));
    }
    let (client, tap) = (exchange.client.clone(), exchange.tap.clone());
    let mut response = exchange.handler.clone().handle(request, client, tap).await;
    if exchange.activity.ends_after_answer() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response.map(|body| BusyBody {
        body: Some(body),
        _busy: busy,
    }))
}

fn target_length(uri: &Uri) -> usize {
    uri.path_and_query()
        .map_or(0, |target| target.as_str().len())
}

/// A bare refusal of a head that is too large in one way or another.
fn too_large<B>(
    status: StatusCode,
    request: Request<ClientBody>,
    busy: Busy,
) -> Response<BusyBody<B>> {
    let mut response = Response::new(BusyBody {
        body: None,
        _busy: busy,
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("x-fence-outcome", HeaderValue::from_static("refused"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    if request.version() < Version::HTTP_2 {
        // The tap still holds this head, so that a next request would be compared with it.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    refuse_body(&mut response, request.into_body(), DrainLimits::default());
    response
}

/// Resolves when the server is on its way down.
async fn draining(stage: &mut watch::Receiver<Stage>) {
    while *stage.borrow_and_update() == Stage::Serving {
        changed(stage).await;
    }
}

/// HTTP/2 runs each request as a task of the same thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}
