//! A client that is nothing but a socket: it can stop in mid-request, vanish, or be asked whether it has been answered.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::socket::{setsockopt, sockopt::Linger};
use palisade_loadtest::{proxy::Palisade, servers::GIVE_UP};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};
use tokio::task::JoinSet;

/// A request to be sent, on a connection of its own.
pub(crate) struct Call {
    method: &'static str,
    target: String,
    fields: Vec<String>,
    body: Vec<u8>,
}

/// A write with this token.
pub(crate) fn put(target: &str, token: u64, body: &str) -> Call {
    Call::new("PUT", target)
        .field(&format!("X-Fence-Token: {token}"))
        .field(&format!("Content-Length: {}", body.len()))
        .body(body.as_bytes())
}

/// A read without a token.
pub(crate) fn get(target: &str) -> Call {
    Call::new("GET", target)
}

impl Call {
    pub(crate) fn new(method: &'static str, target: &str) -> Self {
        Self {
            method,
            target: target.to_owned(),
            fields: Vec::new(),
            body: Vec::new(),
        }
    }

    /// With one more header line.
    pub(crate) fn field(mut self, line: &str) -> Self {
        self.fields.push(line.to_owned());
        self
    }

    /// With this token.
    pub(crate) fn token(self, token: u64) -> Self {
        self.field(&format!("X-Fence-Token: {token}"))
    }

    /// With these bytes after the head, as they are.
    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_owned();
        self
    }

    /// Sends it and does not wait for the answer.
    pub(crate) fn begin(self, to: &Palisade) -> Open {
        let mut stream = TcpStream::connect(to.address()).unwrap();
        stream.set_read_timeout(Some(GIVE_UP)).unwrap();
        let mut request = format!(
            "{} {} HTTP/1.1\r\nHost: db\r\nConnection: close\r\n",
            self.method, self.target
        );
        for field in &self.fields {
            request.push_str(field);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(&self.body);
        stream.write_all(&request).unwrap();
        Open(stream)
    }

    /// Sends it and waits for the answer.
    pub(crate) fn send(self, to: &Palisade) -> Answer {
        self.begin(to).answer()
    }
}

/// A request under way.
pub(crate) struct Open(TcpStream);

impl Open {
    /// Sends more of the body. One that the proxy does not read any more is no failure.
    pub(crate) fn more(&mut self, body: &[u8]) -> bool {
        self.0.write_all(body).is_ok()
    }

    /// Whether the first byte of an answer has come, or the end of the connection.
    pub(crate) fn is_answered(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let peeked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits for the answer.
    pub(crate) fn answer(mut self) -> Answer {
        let mut raw = Vec::new();
        // What came before a reset still counts.
        let _ = self.0.read_to_end(&mut raw);
        Answer::parse(&raw)
    }

    /// Reads to the end and keeps nothing; how many bytes that were.
    pub(crate) fn count(&mut self) -> u64 {
        let mut bytes = vec![0; 1 << 20];
        let mut count = 0;
        while let Ok(read @ 1..) = self.0.read(&mut bytes) {
            count += read as u64;
        }
        count
    }

    /// Waits until the other end has closed without a word.
    pub(crate) fn wait_gone(mut self) {
        let mut raw = Vec::new();
        let _ = self.0.read_to_end(&mut raw);
        assert_eq!(String::from_utf8_lossy(&raw), "");
    }

    /// Vanishes with a reset, as the client of a process that was killed with unread bytes does.
    pub(crate) fn vanish(self) {
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&self.0, Linger, &linger).unwrap();
    }
}

/// A client that speaks HTTP/2 without being asked (RFC 9113, section 3.3).
pub(crate) struct Http2 {
    runtime: tokio::runtime::Runtime,
    sender: http2::SendRequest<Full<Bytes>>,
}

/// A stream; reset when dropped.
pub(crate) struct Stream(#[expect(dead_code, reason = "held for its drop")] JoinSet<()>);

impl Http2 {
    pub(crate) fn connect(to: &Palisade) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(to.address()).await.unwrap();
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    pub(crate) fn put(&mut self, target: &str, token: u64) -> Stream {
        let request = http::Request::put(format!("http://db{target}"))
            .header("x-fence-token", token)
            .body(Full::from("old"))
            .unwrap();
        let answer = self.sender.send_request(request);
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async move { drop(answer.await) }, self.runtime.handle());
        Stream(tasks)
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn parse(raw: &[u8]) -> Self {
        let raw = String::from_utf8_lossy(raw);
        let (head, body) = raw.split_once("\r\n\r\n").unwrap_or((&raw, ""));
        Self {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .unwrap_or_else(|| panic!("no answer: {raw:?}")),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// A field's value.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// `X-Fence-Outcome`; every answer has it.
    pub(crate) fn outcome(&self) -> &str {
        self.field("x-fence-outcome")
            .unwrap_or_else(|| panic!("no outcome: {self:?}"))
    }

    /// It was answered by upstream, with this status.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) {
        assert_eq!(
            (self.status, self.outcome()),
            (status, "answered"),
            "{self:?}"
        );
    }

    /// It was refused with this problem.
    #[track_caller]
    pub(crate) fn is_refused(&self, status: u16, problem: &str) {
        assert_eq!(
            (self.status, self.outcome()),
            (status, "refused"),
            "{self:?}"
        );
        self.names(problem);
    }

    /// Nobody knows what became of it.
    #[track_caller]
    pub(crate) fn is_unknown(&self, status: u16) {
        assert_eq!(
            (self.status, self.outcome()),
            (status, "unknown"),
            "{self:?}"
        );
        self.names("outcome-unknown");
    }

    #[track_caller]
    fn names(&self, problem: &str) {
        let named = format!("\"urn:palisade:problem:{problem}\"");
        assert!(self.body.contains(&named), "not {problem}: {self:?}");
    }
}
