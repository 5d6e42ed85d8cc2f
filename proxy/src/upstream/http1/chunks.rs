//! The chunked coding of an answer (RFC 9112, section 7.1), read strictly: a line that ends in a bare LF, or a size with anything in
//! front of it, is where two parsers may come to differ.

use super::framing::piece;
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};

/// The most bytes of one line of sizes and extensions.
const LINE: usize = 4 * 1024;
/// The most bytes of all extensions of one body, which say nothing that anybody reads; and of its trailers.
const EXTRA: usize = 16 * 1024;

/// A decoder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    at: At,
    extra: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum At {
    /// Before a line with a chunk's size.
    #[default]
    Size,
    /// Within a chunk that has this many bytes left.
    Data(u64),
    /// Before the end of line that follows a chunk.
    Crlf,
    /// Behind the last chunk: trailers, which are dropped, and an empty line.
    Trailers,
    Ended,
}

impl Chunks {
    pub(super) fn is_ended(&self) -> bool {
        self.at == At::Ended
    }

    /// The next piece of content. `None` and not ended: more has to be read first.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, &'static str> {
        loop {
            match &mut self.at {
                At::Size => {
                    let Some(line) = line(input, LINE, "a chunk's size is too long")? else {
                        return Ok(None);
                    };
                    let (size, extension) = size(&line)?;
                    self.spend(extension, "the chunks' extensions are too long")?;
                    self.at = if size == 0 {
                        At::Trailers
                    } else {
                        At::Data(size)
                    };
                }
                At::Data(left) => {
                    let data = piece(input, left);
                    if *left == 0 {
                        self.at = At::Crlf;
                    }
                    return Ok(data);
                }
                At::Crlf => {
                    if input.len() < 2 {
                        return Ok(None);
                    }
                    if &input.split_to(2)[..] != b"\r\n" {
                        return Err("a chunk is longer than its size");
                    }
                    self.at = At::Size;
                }
                At::Trailers => {
                    let Some(line) = line(input, EXTRA, "the trailers are too long")? else {
                        return Ok(None);
                    };
                    self.spend(line.len(), "the trailers are too long")?;
                    if line.is_empty() {
                        self.at = At::Ended;
                    } else if !is_field(&line) {
                        return Err("a trailer is no field");
                    }
                }
                At::Ended => return Ok(None),
            }
        }
    }

    fn spend(&mut self, bytes: usize, why: &'static str) -> Result<(), &'static str> {
        self.extra += bytes;
        if self.extra > EXTRA { Err(why) } else { Ok(()) }
    }
}

/// The next line without its end, if it is all there.
fn line(
    input: &mut BytesMut,
    most: usize,
    why: &'static str,
) -> Result<Option<BytesMut>, &'static str> {
    let Some(end) = input.iter().take(most).position(|byte| *byte == b'\n') else {
        return if input.len() < most {
            Ok(None)
        } else {
            Err(why)
        };
    };
    let mut line = input.split_to(end + 1);
    line.truncate(end);
    if line.last() != Some(&b'\r') {
        return Err("a line of the chunked coding ends in a bare LF");
    }
    line.truncate(end - 1);
    if line.contains(&b'\r') {
        return Err("a bare CR within the chunked coding");
    }
    Ok(Some(line))
}

/// Whether a line is `name: value`. It is dropped, but what is none may be the start of another answer to another parser.
fn is_field(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return false;
    };
    let (name, value) = line.split_at(colon);
    HeaderName::from_bytes(name).is_ok() && HeaderValue::from_bytes(&value[1..]).is_ok()
}

/// A chunk's size, and how long its extension is.
fn size(line: &[u8]) -> Result<(u64, usize), &'static str> {
    let digits = line
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())
        .unwrap_or(line.len());
    let (number, extension) = line.split_at(digits);
    // 16 digits are all that 64 bits hold.
    if number.is_empty() || number.len() > 16 {
        return Err("a chunk's size is no number");
    }
    // Blanks before the extension are for those who must bear with them (section 7.1.1).
    let rest = extension.iter().find(|byte| !b" \t".contains(byte));
    if rest.is_some_and(|byte| *byte != b';') {
        return Err("a chunk's size is no number");
    }
    let size = str::from_utf8(number)
        .ok()
        .and_then(|number| u64::from_str_radix(number, 16).ok())
        .ok_or("a chunk's size is no number")?;
    Ok((size, extension.len()))
}
