//! Whether the parser saw the target that stands on the wire.

use http::Uri;

/// Whether a raw target, without a fragment, is what was parsed (RFC 9112, section 3.2: the four forms).
pub(super) fn same(raw: &[u8], uri: &Uri) -> bool {
    let path = uri
        .path_and_query()
        .map_or(&b""[..], |path| path.as_str().as_bytes());
    let Some(authority) = uri.authority() else {
        return raw == path;
    };
    let authority = authority.as_str().as_bytes();
    let Some(scheme) = uri.scheme_str() else {
        return raw == authority;
    };
    let Some(rest) = strip_ignoring_case(raw, scheme.as_bytes())
        .and_then(|rest| rest.strip_prefix(b"://"))
        .and_then(|rest| rest.strip_prefix(authority))
    else {
        return false;
    };
    // An absolute form without a path stands for the root (RFC 9110, section 4.2.3).
    rest == path || (rest.is_empty() && path == b"/")
}

/// Schemes are the same in any case (RFC 3986, section 3.1).
fn strip_ignoring_case<'a>(raw: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = raw.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}
