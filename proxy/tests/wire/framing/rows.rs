//! The rows.

/// One input.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What it stands on.
    pub(super) rule: &'static str,
    pub(super) request: Vec<u8>,
    pub(super) want: Want,
}

/// What must come of it.
pub(super) enum Want {
    /// This status and problem, and nothing at upstream. No problem: bytes that are no request, and a bare answer.
    Refused(u16, Option<&'static str>),
    /// One request at upstream, with this target, body and line in its head.
    Saw {
        target: &'static str,
        body: &'static str,
        line: &'static str,
    },
}

const BARE: Want = Want::Refused(400, None);
const BAD: Want = Want::Refused(400, Some("bad-request"));
const MISSING: Want = Want::Refused(428, Some("missing-token"));
const TOKEN: Want = Want::Refused(400, Some("malformed-token"));
const TUNNEL: Want = Want::Refused(405, Some("method-refused"));
const EXPECTS: Want = Want::Refused(417, Some("expectation-failed"));

const fn saw(target: &'static str, body: &'static str, line: &'static str) -> Want {
    Want::Saw { target, body, line }
}

/// A write whose body is known to be `abc`, however it was framed.
const ABC: Want = saw("/x", "abc", "\r\ncontent-length: 3\r\n");

/// Bytes written as Latin-1.
fn latin1(text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| u8::try_from(c as u32).unwrap())
        .collect()
}

fn raw(name: &'static str, rule: &'static str, request: &str, want: Want) -> Row {
    Row {
        name,
        rule,
        request: latin1(request),
        want,
    }
}

/// A write with the current token and these further lines.
fn put(name: &'static str, rule: &'static str, lines: &str, body: &str, want: Want) -> Row {
    let request = format!("PUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\n{lines}\r\n{body}");
    raw(name, rule, &request, want)
}

/// A write of `abc` with these further lines.
fn abc(name: &'static str, rule: &'static str, lines: &str, want: Want) -> Row {
    put(
        name,
        rule,
        &format!("Content-Length: 3\r\n{lines}"),
        "abc",
        want,
    )
}

/// A write in chunks.
fn chunks(name: &'static str, rule: &'static str, body: &str, want: Want) -> Row {
    put(name, rule, "Transfer-Encoding: chunked\r\n", body, want)
}

/// A write to this target.
fn target(name: &'static str, rule: &'static str, target: &str, want: Want) -> Row {
    let request = format!(
        "PUT {target} HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc"
    );
    raw(name, rule, &request, want)
}

/// A write with this Host line, or several.
fn host(name: &'static str, rule: &'static str, lines: &str, want: Want) -> Row {
    let request =
        format!("PUT /x HTTP/1.1\r\n{lines}X-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc");
    raw(name, rule, &request, want)
}

pub(super) fn rows() -> Vec<Row> {
    [
        lengths(),
        codings(),
        chunked(),
        lines(),
        versions(),
        hosts(),
        targets(),
        methods(),
        hops(),
        tokens(),
        sizes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[rustfmt::skip]
fn lengths() -> Vec<Row> {
    const R: &str = "RFC 9110 8.6";
    vec![
        put("length", R, "Content-Length: 3\r\n", "abc", ABC),
        put("length-0", "RFC 9110 8.6", "Content-Length: 0\r\n", "", saw("/x", "", "\r\ncontent-length: 0\r\n")),
        put("length-none", "RFC 9112 6.3", "", "", saw("/x", "", "x-fence-token: 100")),
        put("length-leading-zeros", R, "Content-Length: 0003\r\n", "abc", ABC),
        put("length-blanks-around", "RFC 9112 5.1", "Content-Length:  \t3\t \r\n", "abc", ABC),
        put("length-no-blank", "RFC 9112 5.1", "Content-Length:3\r\n", "abc", ABC),
        put("length-twice-equal", R, "Content-Length: 3\r\nContent-Length: 3\r\n", "abc", BAD),
        put("length-twice-different", "RFC 9112 6.3", "Content-Length: 3\r\nContent-Length: 2\r\n", "abc", BARE),
        put("length-list", R, "Content-Length: 3, 3\r\n", "abc", BARE),
        put("length-plus", R, "Content-Length: +3\r\n", "abc", BARE),
        put("length-minus", R, "Content-Length: -1\r\n", "abc", BARE),
        put("length-empty", R, "Content-Length: \r\n", "abc", BARE),
        put("length-hex", R, "Content-Length: 0x3\r\n", "abc", BARE),
        put("length-two-words", R, "Content-Length: 3 3\r\n", "abc", BARE),
        put("length-semicolon", R, "Content-Length: 3;a\r\n", "abc", BARE),
        put("length-over-64-bits", R, "Content-Length: 18446744073709551619\r\n", "abc", BARE),
        put("length-fold", "RFC 9112 5.2", "Content-Length:\r\n 3\r\n", "abc", BARE),
        put("length-blank-before-colon", "RFC 9112 5.1", "Content-Length : 3\r\n", "abc", BARE),
        put("length-vertical-tab", "RFC 9110 5.5", "Content-Length: \x0b3\r\n", "abc", BARE),
        put("length-body-cut", "RFC 9112 8", "Content-Length: 9\r\n", "abc", BAD),
        put("length-more-than-said", "RFC 9112 9.2", "Content-Length: 3\r\n", "abcXYZ", ABC),
    ]
}

#[rustfmt::skip]
fn codings() -> Vec<Row> {
    const R: &str = "RFC 9112 6.1";
    const BODY: &str = "3\r\nabc\r\n0\r\n\r\n";
    let te = |name, value: &str, want| put(name, R, &format!("Transfer-Encoding: {value}\r\n"), BODY, want);
    vec![
        te("coding-chunked", "chunked", ABC),
        te("coding-any-case", "CHUNKED", ABC),
        te("coding-tab-after", "chunked\t", ABC),
        put("coding-twice", R, "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", BODY, BAD),
        put("coding-twice-other-first", R, "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", BODY, BAD),
        put("coding-twice-other-last", R, "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", BODY, BARE),
        te("coding-list-of-two", "chunked, chunked", BAD),
        te("coding-gzip-too", "gzip, chunked", BAD),
        te("coding-empty-first", ",chunked", BAD),
        te("coding-identity-first", "identity, chunked", BAD),
        te("coding-empty-last", "chunked,", BARE),
        te("coding-identity-last", "chunked, identity", BARE),
        te("coding-parameter", "chunked;q=1", BARE),
        te("coding-quoted", "\"chunked\"", BARE),
        te("coding-unknown", "xchunked", BARE),
        te("coding-identity", "identity", BARE),
        te("coding-empty", "", BARE),
        te("coding-vertical-tab", "\x0bchunked", BARE),
        te("coding-high-byte", "chunked\u{ff}", BARE),
        put("coding-fold", "RFC 9112 5.2", "Transfer-Encoding:\r\n chunked\r\n", BODY, BARE),
        put("coding-blank-before-colon", "RFC 9112 5.1", "Transfer-Encoding : chunked\r\n", BODY, BARE),
        put("coding-after-length", "RFC 9112 6.3", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", BODY, BAD),
        put("coding-before-length", "RFC 9112 6.3", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", BODY, BAD),
        put("coding-tab-after-with-length", "RFC 9112 6.3", "Transfer-Encoding: chunked\t\r\nContent-Length: 3\r\n", BODY, BAD),
        // The connection ends there: nobody knows where a next request would begin.
        put("coding-and-length-then-another", "RFC 9112 6.3", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nPUT /y HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 0\r\n\r\n", BAD),
        raw("coding-in-1.0", R, "PUT /x HTTP/1.0\r\nHost: db\r\nX-Fence-Token: 100\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", BARE),
    ]
}

#[rustfmt::skip]
fn chunked() -> Vec<Row> {
    const R: &str = "RFC 9112 7.1";
    vec![
        chunks("chunks-two", R, "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n", saw("/x", "abcdef", "content-length: 6")),
        chunks("chunks-none", R, "0\r\n\r\n", saw("/x", "", "x-fence-token: 100")),
        chunks("chunk-upper-hex", R, "A\r\n0123456789\r\n0\r\n\r\n", saw("/x", "0123456789", "content-length: 10")),
        chunks("chunk-lower-hex", R, "a\r\n0123456789\r\n0\r\n\r\n", saw("/x", "0123456789", "content-length: 10")),
        chunks("chunk-extension", "RFC 9112 7.1.1", "3;a=b\r\nabc\r\n0\r\n\r\n", ABC),
        chunks("chunk-extension-quoted", "RFC 9112 7.1.1", "3;a=\"b;c\"\r\nabc\r\n0\r\n\r\n", ABC),
        chunks("chunk-size-padded", R, "00000000000000003\r\nabc\r\n0\r\n\r\n", ABC),
        chunks("chunk-blank-after-size", "RFC 9112 7.1.1", "3 \r\nabc\r\n0\r\n\r\n", ABC),
        chunks("chunk-blank-before-size", R, " 3\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-extension-bare-lf", "RFC 9112 7.1.1", "3;a\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-line-bare-lf", "RFC 9112 2.2", "3\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-line-bare-cr", "RFC 9112 2.2", "3\rabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-data-bare-lf", "RFC 9112 2.2", "3\r\nabc\n0\r\n\r\n", BAD),
        chunks("chunk-0x", R, "0x3\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-plus", R, "+3\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-minus", R, "-3\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-underscore", R, "0_3\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-overflow", R, "FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-size-empty", R, "\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-size-nul", R, "3\0\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-data-end-xx", R, "3\r\nabcXX0\r\n\r\n", BAD),
        chunks("chunk-data-too-long", R, "2\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunk-data-too-short", R, "4\r\nabc\r\n0\r\n\r\n", BAD),
        chunks("chunks-without-last", "RFC 9112 8", "3\r\nabc\r\n", BAD),
        chunks("chunks-without-end", "RFC 9112 8", "3\r\nabc\r\n0\r\n", BAD),
        chunks("chunk-extensions-too-long", "RFC 9112 7.1.1", &format!("3;{}\r\nabc\r\n0\r\n\r\n", "a".repeat(20_000)), BAD),
        chunks("trailer", "RFC 9110 6.5.1", "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", ABC),
        chunks("trailer-with-another-token", "RFC 9110 6.5.1", "3\r\nabc\r\n0\r\nX-Fence-Token: 101\r\n\r\n", ABC),
        raw("trailer-with-the-only-token", "RFC 9110 6.5.1", "PUT /x HTTP/1.1\r\nHost: db\r\nTransfer-Encoding: chunked\r\nTrailer: X-Fence-Token\r\n\r\n3\r\nabc\r\n0\r\nX-Fence-Token: 100\r\n\r\n", MISSING),
        put("trailer-announced", "RFC 9110 6.6.2", "Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", ABC),
        chunks("trailer-no-field", "RFC 9112 7.1.2", "3\r\nabc\r\n0\r\nnonsense\r\n\r\n", BAD),
    ]
}

#[rustfmt::skip]
fn lines() -> Vec<Row> {
    const R: &str = "RFC 9112 5.1";
    vec![
        // A recipient may take a bare LF for a line's end; what goes up has CR LF.
        raw("bare-lf-lines", "RFC 9112 2.2", "PUT /x HTTP/1.1\nHost: db\nX-Fence-Token: 100\nContent-Length: 3\n\nabc", ABC),
        raw("empty-line-first", "RFC 9112 2.2", "\r\nPUT /x HTTP/1.1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc", ABC),
        raw("blank-line-first", "RFC 9112 2.2", "PUT /x HTTP/1.1\r\n X-Y: 1\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc", BARE),
        abc("bare-cr-in-value", "RFC 9110 5.5", "X-Y: a\rb\r\n", BARE),
        abc("nul-in-value", "RFC 9110 5.5", "X-Y: a\0b\r\n", BARE),
        abc("control-in-value", "RFC 9110 5.5", "X-Y: a\x01b\r\n", BARE),
        abc("delete-in-value", "RFC 9110 5.5", "X-Y: a\x7fb\r\n", BARE),
        abc("high-bytes-in-value", "RFC 9110 5.5", "X-Y: a\u{e9}\u{ff}\r\n", ABC),
        abc("fold", "RFC 9112 5.2", "X-Y: a\r\n b\r\n", BARE),
        abc("fold-by-tab", "RFC 9112 5.2", "X-Y: a\r\n\tb\r\n", BARE),
        abc("name-empty", R, ": x\r\n", BARE),
        abc("name-without-colon", R, "X-Y\r\n", BARE),
        abc("name-with-blank", R, "X Y: 1\r\n", BARE),
        abc("name-with-bracket", R, "X(Y: 1\r\n", BARE),
        abc("name-with-high-byte", R, "X\u{e9}: 1\r\n", BARE),
        abc("value-empty", "RFC 9110 5.5", "X-Y:\r\n", saw("/x", "abc", "\r\nx-y:")),
        abc("value-repeated-keeps-lines", "RFC 9110 5.3", "X-Y: 1\r\nX-Y: 2\r\n", saw("/x", "abc", "\r\nx-y: 1\r\nx-y: 2\r\n")),
    ]
}

#[rustfmt::skip]
fn versions() -> Vec<Row> {
    const R: &str = "RFC 9112 2.3";
    let with = |name, rule, line: &str, want| raw(name, rule, &format!("{line}\r\nHost: db\r\nX-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc"), want);
    vec![
        raw("version-0.9", R, "GET /x\r\n\r\n", BARE),
        with("version-1.0", R, "PUT /x HTTP/1.0", ABC),
        with("version-1.2", R, "PUT /x HTTP/1.2", BARE),
        with("version-2.0", R, "PUT /x HTTP/2.0", BARE),
        with("version-1.10", R, "PUT /x HTTP/1.10", BARE),
        with("version-lower-case", R, "PUT /x http/1.1", BARE),
        with("version-none", R, "PUT /x", BARE),
        with("line-two-blanks", "RFC 9112 3", "PUT  /x HTTP/1.1", BARE),
        with("line-tab", "RFC 9112 3", "PUT\t/x HTTP/1.1", BARE),
        with("line-blank-last", "RFC 9112 3", "PUT /x HTTP/1.1 ", BARE),
        with("line-blank-first", "RFC 9112 3", " PUT /x HTTP/1.1", BARE),
        with("line-no-target", "RFC 9112 3", "PUT HTTP/1.1", BARE),
        with("line-bare-cr", "RFC 9112 2.2", "PUT /x\r HTTP/1.1", BARE),
    ]
}

#[rustfmt::skip]
fn hosts() -> Vec<Row> {
    const R: &str = "RFC 9112 3.2";
    let absolute = |name, rule, uri: &str, lines: &str, want| raw(name, rule, &format!("PUT {uri} HTTP/1.1\r\n{lines}X-Fence-Token: 100\r\nContent-Length: 3\r\n\r\nabc"), want);
    vec![
        host("host-port", R, "Host: Db.Example:8080\r\n", saw("/x", "abc", "\r\nhost: db.example:8080\r\n")),
        host("host-ipv6", R, "Host: [::1]:80\r\n", saw("/x", "abc", "\r\nhost: [::1]:80\r\n")),
        host("host-none", R, "", BAD),
        host("host-empty", R, "Host:\r\n", BAD),
        host("host-twice-equal", R, "Host: db\r\nHost: db\r\n", BAD),
        host("host-twice-different", R, "Host: db\r\nHost: evil\r\n", BAD),
        host("host-list", R, "Host: db, evil\r\n", BAD),
        host("host-user", "RFC 9110 4.2.4", "Host: u:p@db\r\n", BAD),
        host("host-path", R, "Host: db/x\r\n", BAD),
        absolute("absolute", "RFC 9112 3.2.2", "http://db/x", "Host: db\r\n", ABC),
        absolute("absolute-own-port", "RFC 9110 4.2.3", "http://db:80/x", "Host: db\r\n", ABC),
        absolute("absolute-other-host", "RFC 9112 3.2.2", "http://evil/x", "Host: db\r\n", BAD),
        absolute("absolute-other-port", "RFC 9112 3.2.2", "http://db:81/x", "Host: db\r\n", BAD),
        absolute("absolute-user", "RFC 9110 4.2.4", "http://u:p@db/x", "Host: db\r\n", BAD),
        absolute("absolute-other-scheme", "RFC 9110 4.2", "ftp://db/x", "Host: db\r\n", BAD),
        absolute("absolute-without-host", R, "http://db/x", "", BAD),
        absolute("absolute-without-path", "RFC 9110 4.2.3", "http://db", "Host: db\r\n", saw("/", "abc", "content-length: 3")),
    ]
}

#[rustfmt::skip]
fn targets() -> Vec<Row> {
    const R: &str = "RFC 9112 3.2";
    const AS_SENT: &str = "RFC 9112 3.2.1";
    vec![
        target("fragment", R, "/x#y", BAD),
        target("fragment-empty", R, "/x#", BAD),
        target("fragment-in-query", R, "/x?a#b", BAD),
        target("asterisk-put", "RFC 9112 3.2.4", "*", BAD),
        raw("asterisk-options", "RFC 9112 3.2.4", "OPTIONS * HTTP/1.1\r\nHost: db\r\n\r\n", saw("*", "", "options * http/1.1\r\n")),
        target("no-slash", R, "x", BAD),
        target("blank-inside", R, "/x y", BARE),
        target("control-inside", R, "/x\x01y", BARE),
        target("at-sign", AS_SENT, "/@evil/", saw("/@evil/", "abc", "host: db")),
        target("two-slashes-first", AS_SENT, "//evil/", saw("//evil/", "abc", "host: db")),
        target("slash-encoded", AS_SENT, "/a%2Fb", saw("/a%2Fb", "abc", "")),
        target("slash-encoded-lower", AS_SENT, "/a%2fb", saw("/a%2fb", "abc", "")),
        target("encoded-twice", AS_SENT, "/a%252Fb", saw("/a%252Fb", "abc", "")),
        target("dots", AS_SENT, "/a/../b/./c", saw("/a/../b/./c", "abc", "")),
        target("dots-encoded", AS_SENT, "/a/%2e%2E/b", saw("/a/%2e%2E/b", "abc", "")),
        target("backslash", AS_SENT, "/a\\b", saw("/a\\b", "abc", "")),
        target("bad-escape", AS_SENT, "/a%zz", saw("/a%zz", "abc", "")),
        target("nul-encoded", AS_SENT, "/a%00", saw("/a%00", "abc", "")),
        target("letter-encoded", AS_SENT, "/%78", saw("/%78", "abc", "")),
        target("semicolon", AS_SENT, "/a;b=c/d", saw("/a;b=c/d", "abc", "")),
        target("query-as-sent", AS_SENT, "/x?a=%20&b=//..&&", saw("/x?a=%20&b=//..&&", "abc", "")),
        target("query-empty", AS_SENT, "/x?", saw("/x?", "abc", "")),
        target("quotes-and-braces", AS_SENT, "/a\"{b}|c", saw("/a\"{b}|c", "abc", "")),
    ]
}

#[rustfmt::skip]
fn methods() -> Vec<Row> {
    const R: &str = "RFC 9110 9.1";
    let bare = |name, rule, method: &str, want| raw(name, rule, &format!("{method} /x HTTP/1.1\r\nHost: db\r\nContent-Length: 3\r\n\r\nabc"), want);
    vec![
        bare("method-lower-case", R, "get", MISSING),
        bare("method-unknown", R, "FROBNICATE", MISSING),
        bare("method-bad-letter", R, "P(T", BARE),
        raw("method-connect", "RFC 9110 9.3.6", "CONNECT db:80 HTTP/1.1\r\nHost: db:80\r\n\r\n", TUNNEL),
        raw("method-connect-no-port", "RFC 9110 9.3.6", "CONNECT db HTTP/1.1\r\nHost: db\r\n\r\n", TUNNEL),
        bare("method-trace", "RFC 9110 9.3.8", "TRACE", TUNNEL),
        bare("get-with-body", "RFC 9110 9.3.1", "GET", ABC),
        bare("propfind-with-body", "RFC 4918 9.1", "PROPFIND", ABC),
        raw("override", R, "GET /x HTTP/1.1\r\nHost: db\r\nX-Method-Override: DELETE\r\n\r\n", MISSING),
        raw("override-underscore", R, "GET /x HTTP/1.1\r\nHost: db\r\nX_HTTP_Method: DELETE\r\n\r\n", MISSING),
        raw("preface-in-mid-connection", "RFC 9113 3.4", "GET /x HTTP/1.1\r\nHost: db\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", saw("/x", "", "get /x ")),
    ]
}

#[rustfmt::skip]
fn hops() -> Vec<Row> {
    const R: &str = "RFC 9110 7.6.1";
    let token = || saw("/x", "abc", "\r\nx-fence-token: 100\r\n");
    vec![
        abc("hop-names-the-token", R, "Connection: X-Fence-Token\r\n", token()),
        abc("hop-names-the-length", R, "Connection: Content-Length\r\n", ABC),
        abc("hop-names-the-host", R, "Connection: Host\r\n", saw("/x", "abc", "\r\nhost: db\r\n")),
        abc("hop-named-field", R, "Connection: X-Hop\r\nX-Hop: secret\r\n", ABC),
        abc("hop-first-line-empty", R, "Connection:\r\nConnection: x-hop\r\nX-Hop: secret\r\n", ABC),
        abc("hop-in-a-list", R, "Connection: close , X-HOP\r\nX-Hop: secret\r\n", ABC),
        abc("hop-keep-alive", R, "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n", ABC),
        abc("hop-te", R, "Connection: TE\r\nTE: trailers\r\n", ABC),
        abc("hop-upgrade", "RFC 9110 7.8", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", ABC),
        raw("upgrade-then-a-write", "RFC 9110 7.8", "GET /x HTTP/1.1\r\nHost: db\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\nPUT /y HTTP/1.1\r\nHost: db\r\nContent-Length: 3\r\n\r\nabc", saw("/x", "", "get /x ")),
        abc("via-appended", "RFC 9110 7.6.3", "Via: 1.0 first\r\n", saw("/x", "abc", "\r\nvia: 1.0 first\r\nvia: 1.1 palisade\r\n")),
        abc("forwarded-appended", "RFC 7239 4", "Forwarded: for=10.0.0.1\r\n", saw("/x", "abc", "\r\nforwarded: for=10.0.0.1\r\nforwarded: for=127.0.0.1;host=\"db\";proto=http\r\n")),
        abc("x-forwarded-for-appended", R, "X-Forwarded-For: 10.0.0.1\r\n", saw("/x", "abc", "\r\nx-forwarded-for: 10.0.0.1, 127.0.0.1\r\n")),
        abc("expect-unknown", "RFC 9110 10.1.1", "Expect: banana\r\n", EXPECTS),
        abc("expect-two", "RFC 9110 10.1.1", "Expect: 100-continue, banana\r\n", EXPECTS),
    ]
}

#[rustfmt::skip]
fn tokens() -> Vec<Row> {
    const R: &str = "RFC 9110 5.3";
    let with = |name, rule, lines: &str, want| raw(name, rule, &format!("PUT /x HTTP/1.1\r\nHost: db\r\n{lines}\r\nContent-Length: 3\r\n\r\nabc"), want);
    vec![
        with("token-any-case", "RFC 9110 5.1", "x-FENCE-token: 100", ABC),
        with("token-as-it-came", "RFC 9110 5.1", "X-Fence-Token: 0100", saw("/x", "abc", "\r\nx-fence-token: 0100\r\n")),
        with("token-blanks-around", "RFC 9112 5.1", "X-Fence-Token: \t 100 \t", ABC),
        with("token-no-break-space", "RFC 9110 5.5", "X-Fence-Token: \u{a0}100", TOKEN),
        with("token-nine-thousand-digits", R, &format!("X-Fence-Token: {}", "1".repeat(9000)), TOKEN),
        with("token-underscores", "RFC 9110 17.10", "X_Fence_Token: 100", BAD),
        with("token-underscore-too", "RFC 9110 17.10", "X-Fence-Token: 100\r\nX-Fence_Token: 101", BAD),
        with("scope-underscore", "RFC 9110 17.10", "X-Fence-Token: 100\r\nX_Fence_Scope: default", BAD),
        with("other-underscore", "RFC 9110 5.1", "X-Fence-Token: 100\r\nX_Y: 1", saw("/x", "abc", "\r\nx_y: 1\r\n")),
        with("token-in-the-query-only", R, "X-Other: 1", MISSING),
    ]
}

#[rustfmt::skip]
fn sizes() -> Vec<Row> {
    let many = |n: usize| (0..n).map(|i| format!("X-{i}: 1\r\n")).collect::<String>();
    vec![
        abc("fields-90", "RFC 6585 5", &many(90), ABC),
        abc("fields-too-many", "RFC 6585 5", &many(101), Want::Refused(431, None)),
        abc("field-30-KiB", "RFC 6585 5", &format!("X-Y: {}\r\n", "a".repeat(30 * 1024)), ABC),
        abc("head-too-large", "RFC 6585 5", &format!("X-Y: {}\r\n", "a".repeat(70 * 1024)), Want::Refused(431, None)),
        target("target-8-KiB", "RFC 9110 15.5.15", Box::leak(format!("/{}", "a".repeat(8192)).into_boxed_str()), saw(Box::leak(format!("/{}", "a".repeat(8192)).into_boxed_str()), "abc", "")),
        target("target-33-KiB", "RFC 9110 15.5.15", &format!("/{}", "a".repeat(33 * 1024)), Want::Refused(414, None)),
        target("target-too-long", "RFC 9110 15.5.15", &format!("/{}", "a".repeat(66_000)), Want::Refused(414, None)),
    ]
}
