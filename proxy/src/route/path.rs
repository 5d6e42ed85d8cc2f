//! A path in one spelling, and what makes it ambiguous.

use std::borrow::Cow;

/// A path that was read.
pub(super) struct Reading<'a> {
    spelled: Cow<'a, str>,
    ambiguity: Option<&'static str>,
}

const BAD_ESCAPE: &str =
    "A % in the path is not followed by two hexadecimal digits. Escape it as %25.";
const NUL: &str = "The path has a NUL or another control character in it.";
const SLASH: &str =
    "The path has an encoded slash or a backslash in it, which some read as a slash.";
const TWICE: &str = "The path has an escape within an escape, which some decode twice.";
const DOTS: &str =
    "The path has a `.` or `..` segment, which some resolve. Send the path that it resolves to.";
const EMPTY: &str = "The path has an empty segment (`//`), which some merge.";
const PARAMETER: &str =
    "The path has a `;` in it, escaped or not, which some take for the end of the segment.";

impl<'a> Reading<'a> {
    /// Reads a path; fails for broken escapes.
    pub(super) fn of(raw: &'a str) -> Result<Self, &'static str> {
        let plain = raw.bytes().all(is_plain);
        let (spelled, in_escapes) = match plain {
            true => (Cow::Borrowed(raw), None),
            false => {
                let (spelled, ambiguity) = spell(raw)?;
                (Cow::Owned(spelled), ambiguity)
            }
        };
        let ambiguity = in_escapes.or_else(|| in_segments(&spelled));
        Ok(Self { spelled, ambiguity })
    }

    /// The one spelling.
    pub(super) fn spelled(&self) -> &str {
        &self.spelled
    }

    /// What two readers could see differently, if anything.
    pub(super) const fn ambiguity(&self) -> Option<&'static str> {
        self.ambiguity
    }
}

/// Bytes that stand for themselves in a path (RFC 3986, section 3.3: `pchar`, but for escapes).
const fn is_pchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

const fn is_plain(byte: u8) -> bool {
    is_pchar(byte) || byte == b'/'
}

/// Decodes what may stand as it is, and escapes in capitals what may not.
fn spell(raw: &str) -> Result<(String, Option<&'static str>), &'static str> {
    let mut spelled = String::with_capacity(raw.len() + 8);
    let mut ambiguity = None;
    let mut bytes = raw.as_bytes();
    while let [byte, rest @ ..] = bytes {
        bytes = rest;
        let (byte, escaped) = match byte {
            b'%' => {
                let Some(byte) = hex_pair(rest) else {
                    return Err(BAD_ESCAPE);
                };
                bytes = &rest[2..];
                (byte, true)
            }
            byte => (*byte, false),
        };
        if is_pchar(byte) || (byte == b'/' && !escaped) {
            spelled.push(char::from(byte));
            continue;
        }
        ambiguity = ambiguity.or(match byte {
            b'/' | b'\\' => Some(SLASH),
            0..=0x1f | 0x7f => Some(NUL),
            _ => None,
        });
        push_escape(&mut spelled, byte);
    }
    let ambiguity = ambiguity.or_else(|| has_escape_within(&spelled).then_some(TWICE));
    Ok((spelled, ambiguity))
}

/// Whether a second decoding would find an escape, and so perhaps another name. By then the digits stand for
/// themselves, whether they were escaped or not.
fn has_escape_within(spelled: &str) -> bool {
    let after = |(at, percent): (usize, &str)| hex_pair(&spelled.as_bytes()[at + percent.len()..]);
    spelled
        .match_indices("%25")
        .any(|found| after(found).is_some())
}

fn push_escape(to: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    to.push('%');
    to.push(char::from(DIGITS[usize::from(byte >> 4)]));
    to.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// The byte that two hexadecimal digits stand for, if there are two.
pub(super) fn hex_pair(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    // Two digits are below 256.
    Some((digit(0)? * 16 + digit(1)?) as u8)
}

/// Dot segments, empty segments and parameters. What was escaped of them is decoded by then.
fn in_segments(spelled: &str) -> Option<&'static str> {
    let mut segments = spelled
        .strip_prefix('/')
        .unwrap_or(spelled)
        .split('/')
        .peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." | ".." => return Some(DOTS),
            // A slash at the end is a name of its own to some datastores, and to none a double slash.
            "" if segments.peek().is_some() => return Some(EMPTY),
            _ => {}
        }
    }
    spelled.contains(';').then_some(PARAMETER)
}
