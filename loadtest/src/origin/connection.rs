//! One connection of the origin: its own reading of HTTP/1.1, and the steps.

use super::{
    Shared, Step, locked,
    log::{Arrival, Ended},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

#[derive(Debug)]
pub(super) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// A FIN.
    fn finish(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// After the FIN whatever still comes is read away, so that the kernel does not make a reset of the close.
    fn read_away(mut self) {
        let limit = Some(Duration::from_secs(5));
        let _ = match &self {
            Self::Tcp(stream) => stream.set_read_timeout(limit),
            Self::Unix(stream) => stream.set_read_timeout(limit),
        };
        let mut rest = [0; 16 * 1024];
        while self.read(&mut rest).is_ok_and(|n| n > 0) {}
    }

    /// Closes with unread bytes or none: as it comes, but with a reset where `SO_LINGER` 0 makes one.
    fn reset(self) {
        if let Self::Tcp(stream) = &self {
            let linger = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            let _ =
                nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger);
        }
    }
}

/// How a request's body is framed (RFC 9112, section 6.3).
#[derive(Clone, Copy)]
enum Framing {
    Length(u64),
    Chunked,
}

struct Connection<'a> {
    shared: &'a Shared,
    number: usize,
    /// `None` once the origin has closed it.
    wire: Option<Wire>,
    /// Read but not used yet.
    buffer: Vec<u8>,
}

pub(super) fn serve(shared: &Shared, wire: Wire, number: usize) {
    let mut connection = Connection {
        shared,
        number,
        wire: Some(wire),
        buffer: Vec::new(),
    };
    while connection.request().is_some() {}
    if let Some(wire) = connection.wire.take() {
        // A request that can't be read.
        wire.finish();
        connection.end(Ended::ByOrigin);
        wire.read_away();
    }
}

impl Connection<'_> {
    /// One request from head to last step. `None`: no further one on this connection.
    fn request(&mut self) -> Option<()> {
        let head = self.head()?;
        let arrival = parse(head, self.number)?;
        let framing = framing(&arrival);
        let target = arrival.target.clone();
        let index = locked(&self.shared.log).arrived(arrival);
        let mut body = Reader::new(framing);
        self.feed(index, &mut body, 0);
        for step in self.shared.steps(&target) {
            self.step(step, index, &mut body);
        }
        self.wire.as_ref()?;
        // What the steps left unread belongs to this request all the same.
        self.feed(index, &mut body, usize::MAX);
        body.done().then_some(())
    }

    fn step(&mut self, step: Step, index: usize, body: &mut Reader) {
        match step {
            Step::ReadBody => self.feed(index, body, usize::MAX),
            Step::ReadSome(bytes) => self.feed(index, body, bytes),
            Step::Apply => {
                let mut log = locked(&self.shared.log);
                if log.arrivals[index].complete {
                    log.apply(index);
                }
            }
            Step::ApplyAnyway => locked(&self.shared.log).apply(index),
            Step::Await(sign) => sign.wait(),
            Step::Pause(time) => thread::sleep(time),
            Step::Answer(status, body) => self.answer(status, &[], &body),
            Step::AnswerWith(status, fields, body) => self.answer(status, &fields, &body),
            Step::AnswerNaturally => self.answer_naturally(index),
            Step::Raw(bytes) => self.write(&bytes),
            Step::Close => {
                if let Some(wire) = self.wire.take() {
                    wire.finish();
                    // In a thread of its own: further steps must not wait for the client.
                    thread::spawn(move || wire.read_away());
                }
                // Only now: who sees this may rely on the FIN.
                self.end(Ended::ByOrigin);
            }
            Step::Reset => {
                self.wire.take().into_iter().for_each(Wire::reset);
                self.end(Ended::ByOrigin);
            }
        }
    }

    fn answer_naturally(&mut self, index: usize) {
        let (method, value) = {
            let log = locked(&self.shared.log);
            let arrival = &log.arrivals[index];
            let value = log.values.get(&arrival.target).cloned();
            (arrival.method.clone(), value)
        };
        match (method.as_str(), value) {
            ("GET", Some(value)) => self.answer(200, &[], &value),
            ("GET", None) => self.answer(404, &[], b""),
            ("HEAD", value) => {
                let length = value.as_ref().map_or(0, Vec::len);
                let status = if value.is_some() { 200 } else { 404 };
                self.write(
                    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n").as_bytes(),
                );
            }
            _ => self.write(b"HTTP/1.1 204 X\r\n\r\n"),
        }
    }

    fn answer(&mut self, status: u16, fields: &[String], body: &[u8]) {
        let mut answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        for field in fields {
            answer.push_str(field);
            answer.push_str("\r\n");
        }
        answer.push_str("\r\n");
        // One write, so that a client sees head and body together.
        let mut answer = answer.into_bytes();
        answer.extend_from_slice(body);
        self.write(&answer);
    }

    /// A client that is gone is noticed when reading.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(wire) = &mut self.wire {
            let _ = wire.write_all(bytes);
        }
    }

    fn head(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                return Some(std::mem::replace(&mut self.buffer, rest));
            }
            let in_head = !self.buffer.is_empty();
            self.read(in_head)?;
        }
    }

    /// Gives the body's reader what there is, and reads more until it has had `at_least` bytes in all or is done.
    fn feed(&mut self, index: usize, body: &mut Reader, at_least: usize) {
        loop {
            {
                let mut log = locked(&self.shared.log);
                let arrival = &mut log.arrivals[index];
                body.take(&mut self.buffer, arrival);
                arrival.complete = body.done();
            }
            if body.done() || body.used >= at_least || self.read(true).is_none() {
                return;
            }
        }
    }

    fn read(&mut self, in_request: bool) -> Option<()> {
        let mut part = [0; 16 * 1024];
        match self.wire.as_mut()?.read(&mut part) {
            Ok(0) => self.end(if in_request {
                Ended::CutShort
            } else {
                Ended::Closed
            }),
            Err(_) => self.end(Ended::Reset),
            Ok(length) => {
                self.buffer.extend_from_slice(&part[..length]);
                return Some(());
            }
        }
        // A client that has only half closed may still be answered, so the connection is kept for the steps.
        None
    }

    fn end(&self, how: Ended) {
        locked(&self.shared.log).ended(self.number, how);
    }
}

fn parse(head: Vec<u8>, connection: usize) -> Option<Arrival> {
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let fields = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    Some(Arrival {
        order: 0,
        connection,
        head,
        method,
        target,
        fields,
        wire: Vec::new(),
        body: Vec::new(),
        length: 0,
        hash: 0xcbf2_9ce4_8422_2325,
        complete: false,
    })
}

fn framing(arrival: &Arrival) -> Framing {
    if !arrival.field("transfer-encoding").is_empty() {
        return Framing::Chunked;
    }
    let length = arrival.field("content-length");
    Framing::Length(length.first().and_then(|l| l.parse().ok()).unwrap_or(0))
}

/// Reads a body piece by piece.
struct Reader {
    /// Bytes on the wire so far.
    used: usize,
    left: u64,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Data,
    ChunkLine,
    ChunkData,
    ChunkEnd,
    Trailers,
    Done,
}

impl Reader {
    fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(0) => Self {
                used: 0,
                left: 0,
                state: State::Done,
            },
            Framing::Length(left) => Self {
                used: 0,
                left,
                state: State::Data,
            },
            Framing::Chunked => Self {
                used: 0,
                left: 0,
                state: State::ChunkLine,
            },
        }
    }

    fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes what it can from the buffer's front.
    fn take(&mut self, buffer: &mut Vec<u8>, arrival: &mut Arrival) {
        let mut used = 0;
        while let Some(length) = self.piece(&buffer[used..], arrival) {
            arrival.add_wire(&buffer[used..used + length]);
            used += length;
        }
        buffer.drain(..used);
        self.used += used;
    }

    /// The length of the next piece, having taken it in. `None`: done, or more bytes are needed.
    fn piece(&mut self, bytes: &[u8], arrival: &mut Arrival) -> Option<usize> {
        match self.state {
            State::Done => None,
            State::Data | State::ChunkData => {
                let length = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                if length == 0 {
                    return None;
                }
                arrival.add_body(&bytes[..length]);
                self.left -= length as u64;
                if self.left == 0 {
                    self.state = match self.state {
                        State::Data => State::Done,
                        _ => State::ChunkEnd,
                    };
                }
                Some(length)
            }
            State::ChunkLine => {
                let end = find(bytes, b"\r\n")?;
                let line = String::from_utf8_lossy(&bytes[..end]);
                let size = line.split(';').next().unwrap_or_default().trim();
                // A line that is no size never completes the body.
                self.left = u64::from_str_radix(size, 16).ok()?;
                self.state = match self.left {
                    0 => State::Trailers,
                    _ => State::ChunkData,
                };
                Some(end + 2)
            }
            State::ChunkEnd => {
                let end = find(bytes, b"\r\n")?;
                self.state = State::ChunkLine;
                Some(end + 2)
            }
            State::Trailers => {
                let end = find(bytes, b"\r\n")?;
                if end == 0 {
                    self.state = State::Done;
                }
                Some(end + 2)
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
