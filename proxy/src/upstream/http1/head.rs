//! The two heads: a request's, written; an answer's, read.

use super::{Failed, NoHttp};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header,
    response::Parts,
};
use hyper::ext::ReasonPhrase;
use std::{mem::MaybeUninit, ops::Range};

/// How many field lines an answer may have.
const FIELDS: usize = 100;

/// Writes a request's head. `length`: of its body, where that is known; else it goes out in chunks.
pub(super) fn write<B>(request: &Request<B>, length: Option<u64>, to: &mut Vec<u8>) {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    to.extend_from_slice(request.method().as_str().as_bytes());
    to.push(b' ');
    to.extend_from_slice(target.as_bytes());
    to.extend_from_slice(b" HTTP/1.1\r\n");
    let mut told = false;
    for (name, value) in request.headers() {
        // How the body is framed is told by the body alone.
        if *name == header::CONTENT_LENGTH {
            told = true;
        } else if *name != header::TRANSFER_ENCODING {
            line(name.as_str(), value.as_bytes(), to);
        }
    }
    match length {
        None => line("transfer-encoding", b"chunked", to),
        // A request that had none and has no body keeps having none.
        Some(length) if told || length > 0 => {
            let mut digits = itoa::Buffer::new();
            line("content-length", digits.format(length).as_bytes(), to);
        }
        Some(_) => {}
    }
    to.extend_from_slice(b"\r\n");
}

fn line(name: &str, value: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

/// Where the fields of a head are, between the parse and the taking; kept so that a head costs no allocation for it.
#[derive(Default)]
pub(super) struct Fields(Vec<(HeaderName, Range<usize>)>);

/// Whether a head may end in `input`, of which the first `seen` bytes hold no whole one: parsing it anew with every byte that comes
/// would take the square of its length.
pub(super) fn may_be_whole(input: &[u8], seen: usize) -> bool {
    if seen == 0 {
        return !input.is_empty();
    }
    // The empty line may have begun before.
    let from = seen.saturating_sub(3);
    input[from..]
        .windows(2)
        .any(|two| two == b"\n\n" || two == b"\n\r")
}

/// Takes a head from the front of what was read, if all of it is there. `spare`: an empty map for its fields.
pub(super) fn take(
    input: &mut BytesMut,
    fields: &mut Fields,
    spare: &mut HeaderMap,
) -> Result<Option<Response<()>>, Failed> {
    let mut lines = [MaybeUninit::uninit(); FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let whole = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, input, &mut lines)
        .map_err(|error| Failed::NoHttp(error.into()))?;
    let httparse::Status::Complete(end) = whole else {
        return Ok(None);
    };
    let status = parsed
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(Failed::NoHttp(NoHttp::Other(
            "its status is no number from 100 to 999",
        )))?;
    let version = match parsed.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let reason = reason(status, parsed.reason);
    let start = input.as_ptr() as usize;
    fields.0.clear();
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| Failed::NoHttp(NoHttp::Other("a field's name is not valid")))?;
        // Within `input`, since that is what was parsed; an empty one may be anywhere.
        let from = (field.value.as_ptr() as usize).saturating_sub(start);
        let range = if field.value.is_empty() {
            0..0
        } else {
            from..from + field.value.len()
        };
        fields.0.push((name, range));
    }
    let bytes = input.split_to(end).freeze();
    let mut head = Response::new(()).into_parts().0;
    head.status = status;
    head.version = version;
    head.headers = std::mem::take(spare);
    head.headers.reserve(fields.0.len());
    fill(&mut head, &bytes, fields)?;
    if let Some(reason) = reason {
        head.extensions.insert(reason);
    }
    Ok(Some(Response::from_parts(head, ())))
}

fn fill(head: &mut Parts, bytes: &Bytes, fields: &mut Fields) -> Result<(), Failed> {
    for (name, range) in fields.0.drain(..) {
        let value = HeaderValue::from_maybe_shared(bytes.slice(range))
            .map_err(|_| Failed::NoHttp(NoHttp::Other("a field's value is not valid")))?;
        head.headers.append(name, value);
    }
    Ok(())
}

/// The words behind the status, where they are not the usual ones.
fn reason(status: StatusCode, said: Option<&str>) -> Option<ReasonPhrase> {
    let said = said?;
    if status.canonical_reason() == Some(said) {
        return None;
    }
    ReasonPhrase::try_from(said.as_bytes()).ok()
}
