//! Puts by etcd's JSON gateway: many in a row, for which a process each would take long.

use crate::servers::exchange;
use std::{io, net::SocketAddr};

/// Puts a key at the first of these members that takes it. Gives the revision.
///
/// # Errors
/// With the last member's answer.
pub(super) fn put(endpoints: &[SocketAddr], key: &str) -> io::Result<u64> {
    let body = format!(r#"{{"key":"{}","value":"eA=="}}"#, base64(key.as_bytes()));
    let mut answer = Ok(String::new());
    for address in endpoints {
        let request = format!(
            "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        answer = exchange(*address, request.as_bytes());
        let said = answer.as_deref().unwrap_or_default();
        let said = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let said: serde_json::Value = serde_json::from_str(said).unwrap_or_default();
        let revision = said["header"]["revision"].as_str();
        if let Some(revision) = revision.and_then(|revision| revision.parse().ok()) {
            return Ok(revision);
        }
    }
    Err(io::Error::other(format!("etcd took no put: {answer:?}")))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= three.len() {
                DIGITS[value] as char
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// Of RFC 4648, section 10.
    #[test]
    fn base64_is_as_in_its_rfc() {
        let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let encoded = vectors.map(|plain| base64(plain.as_bytes()));
        let wanted = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        assert_eq!(encoded, wanted);
    }
}
