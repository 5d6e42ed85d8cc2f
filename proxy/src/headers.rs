//! Header fields: reading ours, refusing what a fence must not pass on, and rewriting what goes to either side.
//!
//! Pure functions on [`HeaderMap`]. Nothing here allocates for each field; the common request allocates nothing.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header, uri::Authority};
use palisade_fence::Token;
use std::{
    cell::{OnceCell, RefCell},
    fmt::Write as _,
    net::IpAddr,
};

use crate::refusal::{Problem, Refusal};

mod seen;

pub use seen::Seen;

/// The fencing token of a request.
pub const TOKEN: HeaderName = HeaderName::from_static("x-fence-token");
/// The scope that the client believes it is in; only compared.
pub const SCOPE: HeaderName = HeaderName::from_static("x-fence-scope");
/// What became of the request: on every response.
pub const OUTCOME: HeaderName = HeaderName::from_static("x-fence-outcome");
/// The floor: on refusals for `stale-token` and `superseded`.
pub const HIGHEST: HeaderName = HeaderName::from_static("x-fence-highest");

const OURS: &[u8] = b"x-fence-";

/// Fields by which a client asks for another method than the one in the request line. Any of them makes a write.
pub const METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The token of a request: exactly one line that [`Token::parse`] takes, or none at all.
///
/// HTTP/1.1 parsers take blanks around a value away (RFC 9112, section 5.1). Over HTTP/2 a value that begins or ends
/// with one is malformed (RFC 9113, section 8.2.1), reaches us as it came, and is refused here.
pub fn token(fields: &HeaderMap) -> Result<Option<Token>, Refusal> {
    let mut lines = fields.get_all(TOKEN).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(Refusal::with_detail(
            Problem::MalformedToken,
            "There is more than one X-Fence-Token line. Send exactly one.",
        ));
    }
    match Token::parse(line.as_bytes()) {
        Ok(token) => Ok(Some(token)),
        Err(why) => Err(Refusal::with_detail(
            Problem::MalformedToken,
            format!("X-Fence-Token: {why}. Send 1 to 19 digits and nothing else."),
        )),
    }
}

/// Refuses the heads that hyper lets through and a fence must not: what two readers could see differently.
///
/// Covers methods that open a tunnel or echo, header names that turn into ours, framing, host and expectation.
pub fn check_request(
    version: Version,
    method: &Method,
    uri: &Uri,
    fields: &HeaderMap,
    seen: &Seen,
) -> Result<(), Refusal> {
    check_method(method)?;
    check_target(method, uri)?;
    check_names(seen)?;
    check_framing(fields, seen)?;
    check_host(version, uri, fields, seen)?;
    if seen.expects {
        check_expect(fields)?;
    }
    Ok(())
}

/// RFC 9110, sections 9.3.6 and 9.3.8: a tunnel would carry what nobody fences; TRACE echoes credentials.
fn check_method(method: &Method) -> Result<(), Refusal> {
    if method == Method::CONNECT || method == Method::TRACE {
        return Err(Problem::MethodRefused.into());
    }
    Ok(())
}

/// RFC 9112, section 3.2: origin form, absolute form of http(s), or `*` with OPTIONS.
fn check_target(method: &Method, uri: &Uri) -> Result<(), Refusal> {
    match uri.path() {
        "*" if method == Method::OPTIONS => {}
        path if path.starts_with('/') => {}
        _ => {
            return Err(bad(
                "The target must be a path, or `*` with OPTIONS (RFC 9112, section 3.2).",
            ));
        }
    }
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok(()),
        Some(_) => Err(bad("The target's scheme must be http or https.")),
    }
}

/// RFC 9110, section 17.10: upstreams that read `_` as `-` would take these for ours.
fn check_names(seen: &Seen) -> Result<(), Refusal> {
    if seen.turns_into_ours {
        return Err(bad(
            "A field's name turns into X-Fence-... once `_` is read as `-`. Write it with `-`.",
        ));
    }
    Ok(())
}

fn folds_to(name: &[u8], ours: &[u8]) -> bool {
    name.len() == ours.len()
        && name
            .iter()
            .zip(ours)
            .all(|(got, want)| got == want || (*got == b'_' && *want == b'-'))
}

/// RFC 9112, sections 6.1 and 6.3: one `Transfer-Encoding: chunked` or one `Content-Length`, never both.
fn check_framing(fields: &HeaderMap, seen: &Seen) -> Result<(), Refusal> {
    if seen.coded {
        let mut codings = fields.get_all(header::TRANSFER_ENCODING).iter();
        let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !codings.next().is_some_and(chunked) {
            return Err(bad(
                "The only transfer coding that is taken is a single `chunked`.",
            ));
        }
        if codings.next().is_some() {
            return Err(bad("There is more than one Transfer-Encoding line."));
        }
    }
    if seen.lengths > 1 || (seen.coded && seen.lengths > 0) {
        return Err(bad(
            "Content-Length stands twice, or beside Transfer-Encoding. Send one of them, once.",
        ));
    }
    Ok(())
}

/// RFC 9112, section 3.2, and RFC 9113, section 8.3.1: one host, told once or told alike.
fn check_host(version: Version, uri: &Uri, fields: &HeaderMap, seen: &Seen) -> Result<(), Refusal> {
    if seen.hosts > 1 {
        return Err(bad("There is more than one Host field."));
    }
    let host = fields.get(header::HOST);
    if let Some(host) = host {
        let valid = Authority::try_from(host.as_bytes())
            .is_ok_and(|host| !host.as_str().contains('@') && !host.host().is_empty());
        if !valid {
            return Err(bad("The Host field is no host with an optional port."));
        }
    }
    let Some(authority) = uri.authority() else {
        return match host {
            Some(_) => Ok(()),
            None => Err(bad("There is no Host field.")),
        };
    };
    if authority.as_str().contains('@') {
        return Err(bad(
            "The target's authority has user information in it (RFC 9110, section 4.2.4).",
        ));
    }
    match host {
        Some(host) if !same_host(authority.as_str(), host.as_bytes(), uri) => Err(bad(
            "The Host field and the target's authority name different hosts.",
        )),
        // RFC 9112, section 3.2: HTTP/1.1 wants the field even when the target has an authority.
        None if version < Version::HTTP_2 => Err(bad("There is no Host field.")),
        _ => Ok(()),
    }
}

/// Hosts are the same whatever the case, and whether or not the scheme's own port is written (RFC 9110, 4.2.3).
fn same_host(authority: &str, host: &[u8], uri: &Uri) -> bool {
    let port: &[u8] = match uri.scheme_str() {
        Some("https") => b":443",
        _ => b":80",
    };
    let bare = |host| <[u8]>::strip_suffix(host, port).unwrap_or(host);
    bare(authority.as_bytes()).eq_ignore_ascii_case(bare(host))
}

/// RFC 9110, section 10.1.1: an expectation that we don't know can't be met.
fn check_expect(fields: &HeaderMap) -> Result<(), Refusal> {
    let known = |line: &HeaderValue| line.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if fields.get_all(header::EXPECT).iter().all(known) {
        Ok(())
    } else {
        Err(Problem::ExpectationFailed.into())
    }
}

fn bad(detail: &'static str) -> Refusal {
    Refusal::with_detail(Problem::BadRequest, detail)
}

/// The `Host` that upstream gets: the target's authority where there is one (RFC 9112, section 3.2.2), else the
/// client's own line, byte for byte. `None` only for heads that [`check_request`] refuses.
pub fn host(uri: &Uri, fields: &HeaderMap) -> Option<HeaderValue> {
    match (fields.get(header::HOST), uri.authority()) {
        (Some(host), _) => Some(host.clone()),
        (None, Some(authority)) => HeaderValue::from_str(authority.as_str()).ok(),
        (None, None) => None,
    }
}

/// Takes away what concerns the client's connection only. `Upgrade` and trailers never go on; `Expect` has been
/// answered by then. `Content-Length` stays; the caller says how the body is framed.
pub fn strip_request(fields: &mut HeaderMap) {
    strip(fields, |name| {
        seen::is_hop_by_hop(name) || name == header::EXPECT
    });
}

/// Whether a `Content-Length` is this number, written as we would write it.
pub fn is_length(told: &HeaderValue, length: u64) -> bool {
    let told = told.as_bytes();
    let plain = !told.is_empty() && told.iter().all(u8::is_ascii_digit);
    let zeros = told.len() > 1 && told[0] == b'0';
    plain && !zeros && str::from_utf8(told).is_ok_and(|told| told.parse() == Ok(length))
}

/// Joins the `Cookie` lines of an HTTP/2 request, which may split them, into the one that HTTP/1.1 has (RFC 9113, section 8.2.3).
pub fn join_cookies(fields: &mut HeaderMap) {
    let lines: Vec<&[u8]> = fields
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.len() < 2 {
        return;
    }
    // Values joined by two plain characters are a value.
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        fields.insert(header::COOKIE, joined);
    }
}

/// Takes away what concerns upstream's connection only, and upstream's own `X-Fence-*`: those are ours to say.
pub fn strip_response(fields: &mut HeaderMap) {
    strip(fields, |name| seen::is_hop_by_hop(name) || is_ours(name));
}

/// Whether a field is ours, also when written with `_`.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= OURS.len() && folds_to(&name[..OURS.len()], OURS)
}

/// Removes the fields that `goes` says, and what `Connection` names.
fn strip(fields: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    if !fields.keys().any(&goes) {
        return;
    }
    // Collected first: a removal moves others. An empty one allocates nothing.
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|name| !is_common_option(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| !is_end_to_end(name))
        .collect();
    for name in &named {
        fields.remove(name);
    }
    while let Some(name) = fields.keys().find(|name| goes(name)).cloned() {
        fields.remove(name);
    }
}

/// Options that name no field, or one that goes anyway.
fn is_common_option(name: &[u8]) -> bool {
    [&b""[..], b"close", b"keep-alive", b"upgrade", b"te"]
        .iter()
        .any(|common| name.eq_ignore_ascii_case(common))
}

/// Fields that `Connection` must not name (RFC 9110, section 7.6.1): were they taken away, upstream would read
/// another request than the one that was fenced.
fn is_end_to_end(name: &HeaderName) -> bool {
    name.as_str().as_bytes().starts_with(OURS)
        || METHOD_OVERRIDES.contains(name)
        || [
            header::HOST,
            header::CONTENT_LENGTH,
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
            header::CONTENT_RANGE,
            header::RANGE,
            header::AUTHORIZATION,
            header::IF_MATCH,
            header::IF_NONE_MATCH,
            header::IF_MODIFIED_SINCE,
            header::IF_UNMODIFIED_SINCE,
            header::IF_RANGE,
            header::CACHE_CONTROL,
            HeaderName::from_static("destination"),
            HeaderName::from_static("overwrite"),
            HeaderName::from_static("depth"),
            HeaderName::from_static("if"),
        ]
        .contains(name)
}

/// Whether upstream frames its answer in two ways at once (RFC 9112, section 6.3): such an answer is not relayed.
pub fn contradicting_framing(fields: &HeaderMap) -> bool {
    fields.contains_key(header::TRANSFER_ENCODING) && fields.contains_key(header::CONTENT_LENGTH)
}

/// Which fields tell upstream where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// `Via` on requests and responses (RFC 9110, section 7.6.3).
    pub via: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// `X-Forwarded-For`, `-Host` and `-Proto`.
    pub x_forwarded: bool,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The client's address; `None` over a unix socket.
    pub client: Option<IpAddr>,
    /// Whether the client's connection is TLS.
    pub tls: bool,
    /// The version that the client spoke.
    pub version: Version,
    /// The host that the client asked for.
    pub host: Option<&'a HeaderValue>,
    /// What was written of this client before.
    pub known: &'a Known,
}

/// A client's address and its last `Forwarded` line as text: all requests of a connection have the one, and nearly all the other.
/// Writing them anew costs more than the token's check. One for each connection.
#[derive(Clone, Debug, Default)]
pub struct Known {
    address: OnceCell<Option<HeaderValue>>,
    forwarded: RefCell<Option<(HeaderValue, HeaderValue)>>,
}

impl Known {
    fn address(&self, client: IpAddr) -> Option<HeaderValue> {
        self.address
            .get_or_init(|| HeaderValue::try_from(client.to_string()).ok())
            .clone()
    }

    fn forwarded(&self, from: &Origin<'_>) -> Option<HeaderValue> {
        let Some(host) = from.host else {
            return forwarded_line(from);
        };
        let mut last = self.forwarded.borrow_mut();
        match &*last {
            Some((of, line)) if of == host => Some(line.clone()),
            _ => {
                let line = forwarded_line(from)?;
                *last = Some((host.clone(), line.clone()));
                Some(line)
            }
        }
    }
}

impl Forwarding {
    /// Adds the fields to a request on its way to upstream. Those that clients sent stay in front; nothing here ever
    /// trusts them.
    pub fn add_to_request(self, fields: &mut HeaderMap, from: &Origin<'_>) {
        self.add_via(fields, from.version);
        if self.forwarded
            && let Some(line) = from.known.forwarded(from)
        {
            fields.append(header::FORWARDED, line);
        }
        if self.x_forwarded {
            add_x_forwarded(fields, from);
        }
    }

    /// Adds `Via` to a message that came in with this version.
    pub fn add_via(self, fields: &mut HeaderMap, version: Version) {
        if self.via {
            fields.append(
                header::VIA,
                HeaderValue::from_static(match version {
                    Version::HTTP_10 => "1.0 palisade",
                    Version::HTTP_2 => "2 palisade",
                    _ => "1.1 palisade",
                }),
            );
        }
    }
}

fn add_x_forwarded(fields: &mut HeaderMap, from: &Origin<'_>) {
    if let Some(client) = from.client {
        let list = if fields.contains_key(X_FORWARDED_FOR) {
            let mut list = String::new();
            for earlier in fields.get_all(X_FORWARDED_FOR) {
                list.push_str(earlier.to_str().unwrap_or("unknown"));
                list.push_str(", ");
            }
            // Writing to a string can't fail.
            let _ = write!(list, "{client}");
            HeaderValue::try_from(list).ok()
        } else {
            from.known.address(client)
        };
        if let Some(list) = list {
            fields.insert(X_FORWARDED_FOR, list);
        }
    }
    let scheme = if from.tls { "https" } else { "http" };
    fields
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(scheme));
    if let Some(host) = from.host {
        fields
            .entry(X_FORWARDED_HOST)
            .or_insert_with(|| host.clone());
    }
}

/// RFC 7239, section 4. IPv6 addresses and hosts with a port must be quoted.
fn forwarded_line(from: &Origin<'_>) -> Option<HeaderValue> {
    let scheme = if from.tls { "https" } else { "http" };
    let mut line = String::with_capacity(64);
    // Writing to a string can't fail.
    let _ = match from.client {
        Some(IpAddr::V4(client)) => write!(line, "for={client}"),
        Some(IpAddr::V6(client)) => write!(line, "for=\"[{client}]\""),
        None => write!(line, "for=unknown"),
    };
    if let Some(host) = from.host.and_then(|host| host.to_str().ok())
        && !host.contains(['"', '\\'])
    {
        let _ = write!(line, ";host=\"{host}\"");
    }
    let _ = write!(line, ";proto={scheme}");
    HeaderValue::try_from(line).ok()
}

#[cfg(test)]
mod tests;
