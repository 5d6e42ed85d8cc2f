//! The one parser of a token against a plain reading of the same rule (1 to 19 ASCII digits, value 1 to 2^63 - 1).
//!
//! `cargo +nightly fuzz run token`
#![no_main]

use libfuzzer_sys::fuzz_target;
use palisade_fence::Token;

fn plainly(text: &[u8]) -> Option<u64> {
    let digits = (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(text)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()?;
    (1..1 << 63).contains(&number).then_some(number)
}

fuzz_target!(|text: &[u8]| {
    let parsed = Token::parse(text).ok();
    assert_eq!(parsed.map(Token::get), plainly(text));
    if let Some(token) = parsed {
        assert_eq!(Token::parse(token.to_string().as_bytes()), Ok(token));
    }
});
