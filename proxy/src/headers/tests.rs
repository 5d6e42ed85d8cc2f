use super::*;
use http::StatusCode;

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    fields
}

fn check(method: &str, uri: &str, lines: &[(&str, &str)]) -> Result<(), &'static str> {
    check_version(Version::HTTP_11, method, uri, lines)
}

fn check_version(
    version: Version,
    method: &str,
    uri: &str,
    lines: &[(&str, &str)],
) -> Result<(), &'static str> {
    let method = method.parse().unwrap();
    let fields = fields(lines);
    let seen = Seen::of(&fields);
    check_request(version, &method, &uri.parse().unwrap(), &fields, &seen)
        .map_err(|refusal| refusal.problem.name())
}

#[test]
fn a_token_is_one_line() {
    assert_eq!(token(&fields(&[])), Ok(None));
    let ok = token(&fields(&[("X-Fence-Token", "0100")])).unwrap();
    assert_eq!(ok, Token::new(100));
    for lines in [
        // RFC 9110, section 5.3: a field that is no list must not stand twice.
        &[("x-fence-token", "7"), ("X-Fence-Token", "7")][..],
        &[("x-fence-token", "7"), ("x-fence-token", "8")],
        &[("x-fence-token", "")],
        &[("x-fence-token", "7, 8")],
        &[("x-fence-token", "+7")],
        // RFC 9113, section 8.2.1: blanks at either end are malformed; over HTTP/2 they come as far as this.
        &[("x-fence-token", " 7")],
        &[("x-fence-token", "7 ")],
        &[("x-fence-token", "7\t")],
        &[("x-fence-token", "\u{a0}7")],
        &[("x-fence-token", "9223372036854775808")],
    ] {
        let refusal = token(&fields(lines)).unwrap_err();
        assert_eq!(refusal.problem, Problem::MalformedToken, "{lines:?}");
        assert_eq!(refusal.status(), StatusCode::BAD_REQUEST);
    }
}

/// RFC 9110, section 17.10: what CGI-like readers make of `_`.
#[test]
fn names_that_turn_into_ours() {
    for name in [
        "x_fence_token",
        "X-Fence_Token",
        "x_fence-scope",
        "x-fence_anything",
        "X_FENCE_OUTCOME",
    ] {
        let lines = [("host", "db"), (name, "1")];
        assert_eq!(check("GET", "/", &lines), Err("bad-request"), "{name}");
    }
    for name in [
        "x-fence-token",
        "x_fencer",
        "my_x_fence_token",
        "x_fence",
        "a_b",
    ] {
        let lines = [("host", "db"), (name, "1")];
        assert_eq!(check("GET", "/", &lines), Ok(()), "{name}");
    }
}

/// RFC 9112, section 6.1: hyper takes every one of the refused codings, and passes them on.
#[test]
fn transfer_codings() {
    for refused in [
        &[("transfer-encoding", "chunked, chunked")][..],
        &[("transfer-encoding", "gzip, chunked")],
        &[("transfer-encoding", ",chunked")],
        &[("transfer-encoding", "chunked,")],
        &[("transfer-encoding", "identity")],
        &[("transfer-encoding", "chunked;q=1")],
        &[
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "chunked"),
        ],
        &[("transfer-encoding", "chunked"), ("content-length", "3")],
        &[("content-length", "3"), ("content-length", "3")],
    ] {
        let mut lines = vec![("host", "db")];
        lines.extend(refused);
        assert_eq!(
            check("PUT", "/x", &lines),
            Err("bad-request"),
            "{refused:?}"
        );
    }
    for fine in [
        &[("transfer-encoding", "chunked")][..],
        &[("transfer-encoding", "Chunked")],
        &[("content-length", "3")],
        &[],
    ] {
        let mut lines = vec![("host", "db")];
        lines.extend(fine);
        assert_eq!(check("PUT", "/x", &lines), Ok(()), "{fine:?}");
    }
}

/// RFC 9112, sections 3.2 and 3.2.2; RFC 9110, section 4.2.4.
#[test]
fn hosts() {
    let one = [("host", "db:9000")];
    assert_eq!(check("GET", "/", &one), Ok(()));
    assert_eq!(check("GET", "/", &[("host", "[::1]:80")]), Ok(()));
    assert_eq!(check("GET", "/", &[]), Err("bad-request"));
    assert_eq!(check("GET", "/", &[("host", "")]), Err("bad-request"));
    assert_eq!(check("GET", "/", &[("host", "u@db")]), Err("bad-request"));
    assert_eq!(check("GET", "/", &[("host", "db/x")]), Err("bad-request"));
    assert_eq!(check("GET", "/", &[("host", "db, db")]), Err("bad-request"));
    assert_eq!(
        check("GET", "/", &[("host", "db"), ("host", "db")]),
        Err("bad-request")
    );
    // Absolute form.
    assert_eq!(check("GET", "http://db:9000/x", &one), Ok(()));
    assert_eq!(check("GET", "http://DB:9000/x", &one), Ok(()));
    assert_eq!(check("GET", "http://db:80/", &[("host", "db")]), Ok(()));
    assert_eq!(check("GET", "http://evil/x", &one), Err("bad-request"));
    assert_eq!(check("GET", "http://db/x", &one), Err("bad-request"));
    assert_eq!(
        check("GET", "http://u:p@db:9000/x", &one),
        Err("bad-request")
    );
    assert_eq!(check("GET", "http://db/x", &[]), Err("bad-request"));
    assert_eq!(check("GET", "ftp://db:9000/x", &one), Err("bad-request"));
}

/// RFC 9113, section 8.3.1: `:authority` stands for Host, and must not contradict it.
#[test]
fn hosts_over_http2() {
    let check = |uri, lines: &[_]| check_version(Version::HTTP_2, "GET", uri, lines);
    assert_eq!(check("http://db/x", &[]), Ok(()));
    assert_eq!(check("https://db/x", &[("host", "db:443")]), Ok(()));
    assert_eq!(check("/x", &[("host", "db")]), Ok(()));
    assert_eq!(check("/x", &[]), Err("bad-request"));
    assert_eq!(
        check("http://db/x", &[("host", "other")]),
        Err("bad-request")
    );
    assert_eq!(check("http://u@db/x", &[]), Err("bad-request"));
}

/// RFC 9112, section 3.2.4; RFC 9110, sections 9.3.6 and 9.3.8.
#[test]
fn targets_and_methods() {
    let host = [("host", "db")];
    assert_eq!(check("OPTIONS", "*", &host), Ok(()));
    assert_eq!(check("PUT", "*", &host), Err("bad-request"));
    assert_eq!(check("GET", "*", &host), Err("bad-request"));
    assert_eq!(check("PUT", "db:80", &host), Err("bad-request"));
    assert_eq!(check("CONNECT", "db:80", &host), Err("method-refused"));
    assert_eq!(check("TRACE", "/", &host), Err("method-refused"));
}

/// RFC 9110, section 10.1.1.
#[test]
fn expectations() {
    for (value, wanted) in [
        ("100-continue", Ok(())),
        ("100-Continue", Ok(())),
        ("banana", Err("expectation-failed")),
        ("100-continue, banana", Err("expectation-failed")),
        ("", Err("expectation-failed")),
    ] {
        let lines = [("host", "db"), ("expect", value)];
        assert_eq!(check("PUT", "/", &lines), wanted, "{value:?}");
    }
}

#[test]
fn method_overrides() {
    for name in [
        "X-HTTP-Method-Override",
        "x-http-method",
        "X-Method-Override",
        "X_HTTP_Method_Override",
        "x-method_override",
    ] {
        assert!(
            Seen::of(&fields(&[(name, "GET")])).overrides_method(),
            "{name}"
        );
    }
    let others = fields(&[("x-http-methods", "PUT"), ("a_b", "")]);
    assert!(!Seen::of(&others).overrides_method());
}

/// RFC 9110, section 7.6.1: also what any line of Connection names, but never what upstream must see.
#[test]
fn hop_by_hop_goes() {
    let mut request = fields(&[
        ("host", "db"),
        ("connection", ""),
        ("connection", "close, X-Private , x-other"),
        (
            "connection",
            "X-Fence-Token, Host, content-length, Upgrade, Destination",
        ),
        ("x-private", "1"),
        ("x-private", "2"),
        ("x-other", "1"),
        ("x-fence-token", "7"),
        ("content-length", "2"),
        ("destination", "/b"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers"),
        ("trailer", "x-fence-token"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("proxy-authorization", "Basic x"),
        ("expect", "100-continue"),
        ("cookie", "a"),
        ("cookie", "b"),
    ]);
    strip_request(&mut request);
    let left = fields(&[
        ("host", "db"),
        ("x-fence-token", "7"),
        ("content-length", "2"),
        ("destination", "/b"),
        ("cookie", "a"),
        ("cookie", "b"),
    ]);
    assert_eq!(request, left);
}

#[test]
fn responses_keep_lines_and_lose_what_is_ours_to_say() {
    let mut response = fields(&[
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("connection", "X-Secret"),
        ("x-secret", "1"),
        ("keep-alive", "timeout=5"),
        ("x-fence-outcome", "answered"),
        ("x-fence-highest", "9"),
        ("x-fence-highest", "10"),
        ("x_fence_token", "9"),
        ("x-fence-new", "9"),
        ("etag", "\"x\""),
    ]);
    strip_response(&mut response);
    let left = fields(&[
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("etag", "\"x\""),
    ]);
    assert_eq!(response, left);
}

const ALL: Forwarding = Forwarding {
    via: true,
    forwarded: true,
    x_forwarded: true,
};

/// RFC 9110, section 7.6.3; RFC 7239, section 4.
#[test]
fn where_a_request_came_from() {
    let host = HeaderValue::from_static("db:9000");
    let from = Origin {
        client: Some("2001:db8::1".parse().unwrap()),
        tls: true,
        version: Version::HTTP_2,
        host: Some(&host),
        known: &Known::default(),
    };
    let mut request = fields(&[
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
        ("via", "1.0 front"),
    ]);
    ALL.add_to_request(&mut request, &from);
    let want = fields(&[
        ("x-forwarded-for", "10.0.0.1, 2001:db8::1"),
        ("x-forwarded-host", "db:9000"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=10.0.0.1"),
        (
            "forwarded",
            "for=\"[2001:db8::1]\";host=\"db:9000\";proto=https",
        ),
        ("via", "1.0 front"),
        ("via", "2 palisade"),
    ]);
    assert_eq!(request, want);

    let nothing = Forwarding {
        via: false,
        forwarded: false,
        x_forwarded: false,
    };
    let mut untouched = fields(&[]);
    nothing.add_to_request(&mut untouched, &from);
    assert!(untouched.is_empty());
}

#[test]
fn a_unix_client_has_no_address() {
    let from = Origin {
        client: None,
        tls: false,
        version: Version::HTTP_11,
        host: None,
        known: &Known::default(),
    };
    let mut request = HeaderMap::new();
    ALL.add_to_request(&mut request, &from);
    assert_eq!(request["forwarded"], "for=unknown;proto=http");
    assert!(!request.contains_key("x-forwarded-for"));
}

/// S3 signatures cover Host: it goes on byte for byte.
#[test]
fn host_goes_on_as_it_came() {
    let uri: Uri = "/x".parse().unwrap();
    assert_eq!(
        host(&uri, &fields(&[("host", "DB:9000")])).unwrap(),
        "DB:9000"
    );
    let uri: Uri = "http://db:80/x".parse().unwrap();
    assert_eq!(host(&uri, &fields(&[])).unwrap(), "db:80");
}
