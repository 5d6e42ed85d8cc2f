//! Follows the bytes of one connection. Pure: bytes in, heads and a phase out.

use std::collections::VecDeque;

use super::Phase;

/// A follower of HTTP/1.1 requests.
#[derive(Debug)]
pub(super) struct Follower {
    state: State,
    /// The line under way, as far as earlier reads brought it.
    line: Vec<u8>,
    head: HeadSoFar,
    max_head: usize,
    heads: u64,
    waiting: VecDeque<Waiting>,
    /// Methods and targets of the waiting heads, one after the other; from `taken` on.
    texts: Vec<u8>,
    taken: usize,
}

/// A complete head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) method: &'a [u8],
    pub(super) target: &'a [u8],
    /// More than one `Content-Length`, or one beside `Transfer-Encoding` (RFC 9112, section 6.3).
    pub(super) doubtful_framing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    method: usize,
    target: usize,
    doubtful_framing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a request line; empty lines are skipped (RFC 9112, section 2.2).
    Start,
    Fields,
    /// So many bytes of body are left; never 0.
    Length(u64),
    Chunked(Chunk),
    Http2,
    Lost,
}

/// Within a chunked body (RFC 9112, section 7.1), byte for byte as hyper reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// Whether there was a digit, and the size so far.
    Size(bool, u64),
    SizeBlank(u64),
    Extension(u64),
    SizeLf(u64),
    /// So many bytes are left; never 0.
    Data(u64),
    DataCr,
    DataLf,
    LineStart,
    Trailer,
    TrailerLf,
    EndLf,
}

#[derive(Debug, Default)]
struct HeadSoFar {
    bytes: usize,
    method: usize,
    target: usize,
    lengths: u32,
    length: u64,
    chunked: bool,
}

/// The most memory that an idle connection's buffers keep from a large head.
const KEEP: usize = 4096;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

impl Follower {
    pub(super) fn new(max_head: usize) -> Self {
        Self {
            state: State::Start,
            line: Vec::new(),
            head: HeadSoFar::default(),
            max_head,
            heads: 0,
            waiting: VecDeque::new(),
            texts: Vec::new(),
            taken: 0,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Start if self.line.is_empty() => Phase::Idle,
            State::Start | State::Fields => Phase::Head,
            State::Length(_) | State::Chunked(_) => Phase::Body,
            State::Http2 => Phase::Http2,
            State::Lost => Phase::Lost,
        }
    }

    /// Complete heads so far.
    #[cfg(test)]
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// The oldest head that nobody has taken.
    pub(super) fn head(&self) -> Option<Head<'_>> {
        let waiting = self.waiting.front()?;
        let texts = &self.texts[self.taken..];
        Some(Head {
            method: &texts[..waiting.method],
            target: &texts[waiting.method..waiting.method + waiting.target],
            doubtful_framing: waiting.doubtful_framing,
        })
    }

    /// Forgets the oldest head.
    pub(super) fn pop_head(&mut self) {
        if let Some(waiting) = self.waiting.pop_front() {
            self.taken += waiting.method + waiting.target;
            self.tidy();
        }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.texts.capacity() + self.line.capacity()
    }

    /// Keeps the texts from growing: with nothing waiting and no head under way they are empty.
    fn tidy(&mut self) {
        if self.taken == self.texts.len() {
            self.texts.clear();
            self.texts.shrink_to(KEEP);
            self.taken = 0;
        } else if self.taken > self.texts.len() / 2 && self.taken > 4096 {
            self.texts.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Follows what was read, however it is split.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Start | State::Fields => self.line_bytes(bytes),
                State::Length(left) => {
                    let (left, rest) = skip(left, bytes);
                    self.state = match left {
                        0 => State::Start,
                        left => State::Length(left),
                    };
                    rest
                }
                State::Chunked(chunk) => self.chunk_bytes(chunk, bytes),
                State::Http2 | State::Lost => return,
            };
        }
    }

    /// Takes bytes up to the end of a line of the head.
    fn line_bytes<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let taken = end.map_or(bytes.len(), |end| end + 1);
        self.head.bytes += taken;
        if self.head.bytes > self.max_head {
            self.state = State::Lost;
            return &[];
        }
        let (part, rest) = bytes.split_at(taken);
        if end.is_none() {
            self.line.extend_from_slice(part);
        } else if self.line.is_empty() {
            self.whole_line(part);
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(part);
            self.whole_line(&line);
            line.clear();
            line.shrink_to(KEEP);
            self.line = line;
        }
        rest
    }

    /// A line with its end: LF, or CR LF (RFC 9112, section 2.2).
    fn whole_line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.state {
            State::Fields if line.is_empty() => self.head_complete(),
            State::Fields => self.field(line),
            _ if line.is_empty() => {}
            _ => self.request_line(line),
        }
    }

    /// RFC 9112, section 3: method, target and version, parted by single blanks.
    fn request_line(&mut self, line: &[u8]) {
        if self.heads == 0 && line == HTTP2_PREFACE {
            self.state = State::Http2;
            return;
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(_version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            self.state = State::Lost;
            return;
        };
        self.texts.extend_from_slice(method);
        self.texts.extend_from_slice(target);
        self.head = HeadSoFar {
            bytes: self.head.bytes,
            method: method.len(),
            target: target.len(),
            ..HeadSoFar::default()
        };
        self.state = State::Fields;
    }

    /// Only the two fields that frame a body are of interest, and their names' lengths tell where the colon must be.
    fn field(&mut self, line: &[u8]) {
        if let Some(value) = value_of(line, b"content-length") {
            self.head.lengths += 1;
            match decimal(value) {
                Some(length) => self.head.length = length,
                // hyper refuses it, or, beside Transfer-Encoding, does not look at it.
                None => self.head.lengths += 1,
            }
        } else if value_of(line, b"transfer-encoding").is_some() {
            // hyper accepts a request with this field only if it is chunked in the end.
            self.head.chunked = true;
        }
    }

    fn head_complete(&mut self) {
        let head = std::mem::take(&mut self.head);
        self.heads += 1;
        self.waiting.push_back(Waiting {
            method: head.method,
            target: head.target,
            doubtful_framing: head.lengths > 1 || (head.lengths > 0 && head.chunked),
        });
        self.state = match (head.chunked, head.length) {
            (true, _) => State::Chunked(Chunk::Size(false, 0)),
            (false, 0) => State::Start,
            (false, length) => State::Length(length),
        };
    }

    fn chunk_bytes<'b>(&mut self, chunk: Chunk, bytes: &'b [u8]) -> &'b [u8] {
        if let Chunk::Data(left) = chunk {
            let (left, rest) = skip(left, bytes);
            self.state = State::Chunked(match left {
                0 => Chunk::DataCr,
                left => Chunk::Data(left),
            });
            return rest;
        }
        let Some((byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        self.state = match (chunk, byte) {
            (Chunk::EndLf, b'\n') => State::Start,
            _ => chunk.step(*byte).map_or(State::Lost, State::Chunked),
        };
        rest
    }
}

impl Chunk {
    /// The state after one byte of framing; `None` where hyper gives up.
    fn step(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size(digits, size), byte) => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) => {
                    let size = size.checked_mul(16)?.checked_add(digit.into())?;
                    Self::Size(true, size)
                }
                _ if !digits => return None,
                (_, b' ' | b'\t') => Self::SizeBlank(size),
                (_, b';') => Self::Extension(size),
                (_, b'\r') => Self::SizeLf(size),
                _ => return None,
            },
            (Self::SizeBlank(size), b' ' | b'\t') => Self::SizeBlank(size),
            (Self::SizeBlank(size), b';') => Self::Extension(size),
            (Self::SizeBlank(size) | Self::Extension(size), b'\r') => Self::SizeLf(size),
            (Self::Extension(_), b'\n') => return None,
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::SizeLf(0), b'\n') => Self::LineStart,
            (Self::SizeLf(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::Size(false, 0),
            (Self::LineStart, b'\r') => Self::EndLf,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::LineStart | Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::LineStart,
            _ => return None,
        })
    }
}

/// Passes over up to so many bytes: what is left of the number, and of the bytes.
fn skip(left: u64, bytes: &[u8]) -> (u64, &[u8]) {
    let taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    (left - taken as u64, &bytes[taken..])
}

fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}
