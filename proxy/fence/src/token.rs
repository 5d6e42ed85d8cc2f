//! The fencing token, and the only parser of one.

use core::{fmt, num::NonZeroU64};

/// A fencing token: the etcd `mod_revision` of a lease key at the grant, so every grant's token is larger than
/// every earlier one's.
///
/// Between 1 and 2^63 - 1: etcd's revisions are signed 64-bit integers, and 0 is "no such key"
/// (etcd API reference, `KeyValue.mod_revision`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

/// Why some text is no token. The text itself is not kept: it may be anything, of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedToken {
    /// Nothing there.
    Empty,
    /// More than 19 digits: larger than any 63-bit number even before reading it.
    TooLong,
    /// Something other than the ASCII digits 0 to 9.
    NotDigits,
    /// Zero, which etcd uses for "no such key".
    Zero,
    /// 2^63 or above.
    TooLarge,
}

impl Token {
    /// The smallest token, 1.
    pub const MIN: Self = Self(NonZeroU64::MIN);
    /// The largest token, 2^63 - 1.
    pub const MAX: Self = match NonZeroU64::new(i64::MAX as u64) {
        Some(max) => Self(max),
        None => Self::MIN,
    };
    /// The most digits that a token may be written with, leading zeros included.
    pub const MAX_DIGITS: usize = 19;

    /// The token with this number, if it is one: 1 to 2^63 - 1.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(token) if number <= i64::MAX as u64 => Some(Self(token)),
            _ => None,
        }
    }

    /// The token with the number of an etcd revision; `None` for 0 (no such key) and for what no revision can be.
    pub const fn from_revision(revision: i64) -> Option<Self> {
        if revision > 0 {
            Self::new(revision as u64)
        } else {
            None
        }
    }

    /// Reads a token as it stands in a header: 1 to 19 ASCII digits, leading zeros allowed, and nothing else. No sign,
    /// no blank, no other script's digits: two readers must never see two numbers (unlike `str::parse`, which takes
    /// `+7`).
    pub const fn parse(text: &[u8]) -> Result<Self, MalformedToken> {
        if text.is_empty() {
            return Err(MalformedToken::Empty);
        }
        if text.len() > Self::MAX_DIGITS {
            return Err(MalformedToken::TooLong);
        }
        let mut number: u64 = 0;
        let mut at = 0;
        while at < text.len() {
            let digit = text[at].wrapping_sub(b'0');
            if digit > 9 {
                return Err(MalformedToken::NotDigits);
            }
            // 19 digits are below 10^19 < 2^64: no overflow.
            number = number * 10 + digit as u64;
            at += 1;
        }
        match Self::new(number) {
            Some(token) => Ok(token),
            None if number == 0 => Err(MalformedToken::Zero),
            None => Err(MalformedToken::TooLarge),
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as an etcd revision.
    pub const fn revision(self) -> i64 {
        self.0.get() as i64
    }
}

// 19 digits never overflow the 64-bit number that they are read into.
const _: () = assert!(9_999_999_999_999_999_999 < u64::MAX as u128);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for MalformedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the token is empty",
            Self::TooLong => "the token has more than 19 digits",
            Self::NotDigits => "the token has something other than the digits 0 to 9 in it",
            Self::Zero => "the token is 0, and tokens begin at 1",
            Self::TooLarge => "the token is above 9223372036854775807, the largest that there is",
        })
    }
}

impl core::error::Error for MalformedToken {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{MalformedToken::*, *};
    use proptest::prelude::*;
    use std::{format, string::ToString, vec::Vec};

    #[test]
    fn edges() {
        assert_eq!(Token::parse(b"1"), Ok(Token::MIN));
        assert_eq!(Token::parse(b"9223372036854775807"), Ok(Token::MAX));
        assert_eq!(
            Token::parse(b"0000000000000000100").map(Token::get),
            Ok(100)
        );
        for (text, why) in [
            (&b""[..], Empty),
            (b"0", Zero),
            (b"0000000000000000000", Zero),
            (b"00000000000000000001", TooLong),
            (b"9223372036854775808", TooLarge),
            (b"9999999999999999999", TooLarge),
            (b"+7", NotDigits),
            (b"-7", NotDigits),
            (b" 7", NotDigits),
            (b"7 ", NotDigits),
            (b"7,7", NotDigits),
            (b"0x7", NotDigits),
            (b"7\0", NotDigits),
            ("\u{ff17}".as_bytes(), NotDigits),
        ] {
            assert_eq!(Token::parse(text), Err(why), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn reads_back_what_it_prints(number in 1..=i64::MAX as u64, zeros in 0usize..19) {
            let printed = Token::new(number).unwrap().to_string();
            prop_assert_eq!(Token::parse(printed.as_bytes()), Ok(Token::new(number).unwrap()));
            let padded = format!("{}{printed}", "0".repeat(zeros));
            prop_assert_eq!(Token::parse(padded.as_bytes()).is_ok(), padded.len() <= 19);
        }

        /// Against a second, slower reading of the same rule.
        #[test]
        fn agrees_with_a_plain_reading(text in proptest::collection::vec(
            prop_oneof![8 => b'0'..=b'9', 1 => any::<u8>()], 0..24)) {
            let text: Vec<u8> = text;
            let plain = core::str::from_utf8(&text).ok()
                .filter(|t| (1..=19).contains(&t.len()) && t.chars().all(|c| c.is_ascii_digit()))
                .and_then(|t| t.parse::<i64>().ok())
                .filter(|n| *n > 0);
            prop_assert_eq!(Token::parse(&text).ok().map(Token::revision), plain);
        }
    }
}
