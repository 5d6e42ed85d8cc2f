//! Where an answer's body ends (RFC 9112, section 6.3).

use super::{Failed, chunks::Chunks};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, Version, header};
use http_body::SizeHint;

/// What is still to come of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Nothing.
    Ended,
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunks),
    /// All until the connection ends: can't be told from a cut (rule 8).
    UntilClose,
}

impl Framing {
    /// The next piece, if some of it is there. `None` and not ended: more has to be read first.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, &'static str> {
        match self {
            Self::Ended => Ok(None),
            Self::Length(left) => {
                let data = piece(input, left);
                if *left == 0 {
                    *self = Self::Ended;
                }
                Ok(data)
            }
            Self::Chunked(chunks) => {
                let data = chunks.take(input)?;
                if chunks.is_ended() {
                    *self = Self::Ended;
                }
                Ok(data)
            }
            Self::UntilClose if input.is_empty() => Ok(None),
            Self::UntilClose => Ok(Some(input.split().freeze())),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Ended => SizeHint::with_exact(0),
            Self::Length(left) => SizeHint::with_exact(*left),
            Self::Chunked(_) | Self::UntilClose => SizeHint::new(),
        }
    }
}

/// As much of the next `left` bytes as is there.
pub(super) fn piece(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let there = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    *left -= there as u64;
    (there > 0).then(|| input.split_to(there).freeze())
}

/// How the body of a final answer ends.
pub(super) fn of(answer: &Response<()>, to_head: bool) -> Result<Framing, Failed> {
    let fields = answer.headers();
    let coded = fields.contains_key(header::TRANSFER_ENCODING);
    if coded && fields.contains_key(header::CONTENT_LENGTH) {
        // Rule 3: may be an attempt at response splitting.
        return Err(Failed::Invalid("both Content-Length and Transfer-Encoding"));
    }
    if coded && answer.version() == Version::HTTP_10 {
        // Section 6.1: its framing is faulty.
        return Err(Failed::Invalid("Transfer-Encoding in HTTP/1.0"));
    }
    let length = if coded { None } else { length(fields)? };
    // Rule 1.
    if to_head
        || matches!(
            answer.status(),
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        )
    {
        return Ok(Framing::Ended);
    }
    if coded {
        // Nobody was asked for another coding (`TE` is not sent on), and what is not decoded would be relayed as if it were.
        return if is_chunked(fields) {
            Ok(Framing::Chunked(Chunks::default()))
        } else {
            Err(Failed::Invalid("a transfer coding other than chunked"))
        };
    }
    Ok(match length {
        Some(0) => Framing::Ended,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    })
}

fn is_chunked(fields: &HeaderMap) -> bool {
    let mut lines = fields.get_all(header::TRANSFER_ENCODING).iter();
    let only = lines
        .next()
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
    only && lines.next().is_none()
}

/// Rule 5: one number, said once or several times over.
fn length(fields: &HeaderMap) -> Result<Option<u64>, Failed> {
    let mut length = None;
    for value in fields.get_all(header::CONTENT_LENGTH) {
        for number in value.as_bytes().split(|byte| *byte == b',') {
            let number = digits(number.trim_ascii())
                .ok_or(Failed::Invalid("a Content-Length that is no number"))?;
            if length.is_some_and(|before| before != number) {
                return Err(Failed::Invalid("two values of Content-Length"));
            }
            length = Some(number);
        }
    }
    Ok(length)
}

fn digits(text: &[u8]) -> Option<u64> {
    // `parse` would let a sign pass.
    let plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    plain.then(|| str::from_utf8(text).ok()?.parse().ok())?
}

/// Whether the server means to go on with the connection (RFC 9112, section 9.3).
pub(super) fn keeps_alive(answer: &Response<()>) -> bool {
    let says = |what: &str| {
        answer
            .headers()
            .get_all(header::CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(what.as_bytes()))
    };
    if answer.version() == Version::HTTP_10 {
        says("keep-alive") && !says("close")
    } else {
        !says("close")
    }
}
