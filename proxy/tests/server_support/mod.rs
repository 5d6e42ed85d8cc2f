//! What the tests of the server share.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code; each test file uses a part of it"
)]

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use palisade::server::{
    ClientBody, ClientInfo, DrainLimits, Handler, Listen, Running, ServerConfig, Stream, bind,
    drain_rest, refuse_body, start,
};
use palisade_loadtest::{origin::Sign, servers::GIVE_UP};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What the handlers of a test have seen; shared by all threads.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub fn add(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// The length of what `/large` answers.
pub const LARGE: usize = 100_000;

/// `/refuse` is refused without a look at its body, `/wait` waits for the sign, `/large` has a long answer, everything else is read to its end.
pub struct Test {
    pub thread: usize,
    pub seen: Seen,
    pub sign: Sign,
    pub gate: Arc<tokio::sync::Semaphore>,
}

impl Handler for Test {
    type Body = Full<Bytes>;
    type Tapped<S: Stream> = S;
    type Tap = ();

    fn tap<S: Stream>(&self, io: S) -> (S, ()) {
        (io, ())
    }

    async fn handle(
        self: Rc<Self>,
        request: Request<ClientBody>,
        _client: Rc<ClientInfo>,
        _tap: Option<()>,
    ) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        match path.as_str() {
            "/refuse" => {
                let mut response = Response::new(Full::from("refused"));
                *response.status_mut() = http::StatusCode::PRECONDITION_FAILED;
                refuse_body(&mut response, body, DrainLimits::default());
                self.seen.add("refused".into());
                response
            }
            "/wait" => {
                self.seen.add("waiting".into());
                let _permit = self.gate.acquire().await;
                self.seen.add("waited".into());
                Response::new(Full::from("waited"))
            }
            "/drop" => {
                drain_rest(body, DrainLimits::default());
                Response::new(Full::from("dropped"))
            }
            "/large" => Response::new(Full::from(vec![b'x'; LARGE])),
            "/thread" => Response::new(Full::from(self.thread.to_string())),
            _ => {
                let body = body.collect().await.map(|body| body.to_bytes());
                self.seen.add(match &body {
                    Ok(body) => format!("whole {}", body.len()),
                    Err(error) => format!("{error:?}"),
                });
                match body {
                    Ok(_) => Response::new(Full::from("done")),
                    Err(_) => Response::builder()
                        .status(408)
                        .body(Full::default())
                        .unwrap(),
                }
            }
        }
    }
}

pub struct Server {
    pub running: Running,
    pub address: SocketAddr,
    pub seen: Seen,
    pub gate: Arc<tokio::sync::Semaphore>,
}

pub fn serve(config: ServerConfig) -> Server {
    serve_on(
        vec![bind(&Listen::Tcp(([127, 0, 0, 1], 0).into()), 2).unwrap()],
        config,
    )
}

pub fn serve_on(bound: Vec<palisade::server::Bound>, config: ServerConfig) -> Server {
    let address = bound
        .iter()
        .find_map(palisade::server::Bound::address)
        .unwrap_or(([127, 0, 0, 1], 1).into());
    let seen = Seen::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (inner_seen, inner_gate) = (seen.clone(), gate.clone());
    let running = start(bound, 2, config, move |thread| {
        Rc::new(Test {
            thread,
            seen: inner_seen.clone(),
            sign: Sign::new(),
            gate: inner_gate.clone(),
        })
    })
    .unwrap();
    Server {
        running,
        address,
        seen,
        gate,
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.shutdown().stop();
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    stream
}

/// Sends bytes and reads to the end.
pub fn talk(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    rest(stream)
}

/// What still comes.
pub fn rest(stream: &mut impl Read) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// One answer's head and body with `Content-Length`; the connection stays open.
pub fn answer(stream: &mut impl Read) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "closed: {read:?}");
        read.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&read).to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8_lossy(&body)
}

/// Limits that only a test that has failed runs into.
pub fn patient() -> ServerConfig {
    ServerConfig {
        header_timeout: GIVE_UP,
        tls_handshake_timeout: GIVE_UP,
        keepalive_idle: GIVE_UP,
        body_idle_timeout: GIVE_UP,
        response_idle_timeout: GIVE_UP,
        shutdown_timeout: GIVE_UP,
        ..ServerConfig::default()
    }
}

pub const SHORT: Duration = Duration::from_millis(100);
