use super::*;
use http::HeaderValue;

mod properties;

fn rule(path: &str, scope: &str) -> Rule {
    Rule {
        path: path.into(),
        scope: (!scope.is_empty()).then(|| scope.into()),
        place: "here".into(),
        ..Rule::default()
    }
}

fn opaque(path: &str, scope: &str) -> Rule {
    Rule {
        paths: Paths::Opaque,
        ..rule(path, scope)
    }
}

fn denied(path: &str) -> Rule {
    Rule {
        deny: true,
        ..rule(path, "")
    }
}

fn with_query(rule: Rule, name: &str, value: &str) -> Rule {
    Rule {
        query: vec![(name.into(), value.into())],
        ..rule
    }
}

fn table(rules: impl IntoIterator<Item = Rule>) -> RouteTable {
    RouteTable::new(rules.into_iter().collect()).unwrap()
}

fn load_error(rules: impl IntoIterator<Item = Rule>) -> RouteError {
    RouteTable::new(rules.into_iter().collect()).unwrap_err()
}

fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(*name, HeaderValue::from_str(value).unwrap());
    }
    fields
}

/// The scope of a write, `read` of a read without one, or the refusal's name.
fn falls(table: &RouteTable, method: &str, target: &str, lines: &[(&'static str, &str)]) -> String {
    let method = method.parse().unwrap();
    match table.classify(&method, target, &fields(lines)) {
        Ok(Class { kind, scope }) => match scope {
            Some(scope) => format!("{}:{scope}", kind.as_str()),
            None => kind.as_str().into(),
        },
        Err(refusal) => format!("!{}", refusal.problem.name()),
    }
}

fn put(table: &RouteTable, target: &str) -> String {
    falls(table, "PUT", target, &[])
}

fn two() -> RouteTable {
    table([rule("/a/{*rest}", "a"), rule("/b/{*rest}", "b")])
}

#[test]
fn without_routes_everything_is_one_scope() {
    let one = RouteTable::single("default");
    assert_eq!(put(&one, "/a/../%zz;//"), "write:default");
    assert_eq!(falls(&one, "GET", "/x", &[]), "read:default");
    assert_eq!(falls(&one, "OPTIONS", "*", &[]), "read:default");
    let elsewhere = [("destination", "http://other/x")];
    assert_eq!(falls(&one, "MOVE", "/x", &elsewhere), "write:default");
}

/// RFC 9110, section 9.1: methods are case-sensitive, and what nobody knows may change anything.
#[test]
fn kinds() {
    let one = RouteTable::single("s");
    for read in ["GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "SEARCH"] {
        assert_eq!(falls(&one, read, "/", &[]), "read:s");
    }
    for write in [
        "PUT",
        "POST",
        "PATCH",
        "DELETE",
        "MKCOL",
        "LOCK",
        "get",
        "FROBNICATE",
        "QUERY",
    ] {
        assert_eq!(falls(&one, write, "/", &[]), "write:s");
    }
    for name in [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
    ] {
        assert_eq!(falls(&one, "GET", "/", &[(name, "GET")]), "write:s");
    }
}

#[test]
fn routes_say_what_reads_and_writes_are() {
    let search = Rule {
        reads: vec![Method::POST],
        writes: vec![Method::GET],
        ..rule("/{index}/_search", "{index}")
    };
    let table = table([search, rule("/{index}/{*rest}", "{index}")]);
    assert_eq!(falls(&table, "POST", "/i/_search", &[]), "read:i");
    assert_eq!(falls(&table, "POST", "/i/x", &[]), "write:i");
    assert_eq!(falls(&table, "GET", "/i/_search", &[]), "write:i");
    assert_eq!(falls(&table, "HEAD", "/i/_search", &[]), "write:i");
    let overridden = [("x-http-method", "DELETE")];
    assert_eq!(falls(&table, "POST", "/i/_search", &overridden), "write:i");
}

/// RFC 3986, section 6.2.2: targets that two parsers could read as different paths.
#[test]
fn ambiguous_targets_are_refused() {
    let table = two();
    for target in [
        "/a/../b/x",
        "/a/./x",
        "/a/..",
        "/a/.",
        "/a/%2e%2e/b/x",
        "/a/%2E/x",
        "/a/..;/b/x",
        "/a/x;v=1",
        "/a/x%3bv=1",
        "/a/%2561",
        "/a/%25%36%31",
        "/a%2f..%2fb/x",
        "/a/x%2Fy",
        "/a/x%5cy",
        "/a/..\\b/x",
        "//b/x",
        "/a//x",
        "/a/x//",
        "/a/x%00",
        "/a/x%0d%0a",
        "/a/%7f",
        "/a/%zz",
        "/a/%",
        "/a/%4",
        "/a/%252e%252e/b",
        "/a/x%252Fy",
        "/a/%255c",
        "/c/../a/x",
    ] {
        for method in ["PUT", "GET"] {
            let got = falls(&table, method, target, &[]);
            assert_eq!(got, "!ambiguous-path", "{method} {target}");
        }
    }
    for (target, scope) in [
        ("/a/x", "write:a"),
        ("/a/x/", "write:a"),
        ("/a/.hidden", "write:a"),
        ("/a/...", "write:a"),
        ("/a/x..y", "write:a"),
        ("/a/%20%C3%A9", "write:a"),
        ("/a/%25x", "write:a"),
        ("/a/100%25", "write:a"),
        ("/a/x?to=/b/../%zz;//", "write:a"),
        ("/%62/x", "write:b"),
        ("/a/é", "write:a"),
        ("/a", "!no-scope"),
        ("/a/", "!no-scope"),
        ("/c/x", "!no-scope"),
        ("/A/x", "!no-scope"),
        ("/", "!no-scope"),
        ("/ab/x", "!no-scope"),
    ] {
        assert_eq!(put(&table, target), scope, "{target}");
    }
}

/// One resource, one scope: RFC 3986, sections 2.3 and 6.2.2.1.
#[test]
fn spellings_of_one_name_make_one_scope() {
    let table = table([opaque("/{bucket}/{*key}", "s3/{bucket}")]);
    for target in [
        "/bkt/x",
        "/%62kt/x",
        "/%62%6B%74/x",
        "/bkt//lead",
        "/bkt/../x",
        "/bkt/a%2Fb",
    ] {
        assert_eq!(put(&table, target), "write:s3/bkt", "{target}");
    }
    for target in ["/caf%c3%a9/x", "/caf%C3%A9/x", "/café/x"] {
        assert_eq!(put(&table, target), "write:s3/caf%C3%A9", "{target}");
    }
    assert_eq!(put(&table, "/a%24b/x"), put(&table, "/a$b/x"));
    // A name that no lease could have.
    assert_eq!(put(&table, "/%2e%2e/x"), "!no-scope");
    assert_eq!(put(&table, "/../x"), "!no-scope");
    // No bucket at all.
    assert_eq!(put(&table, "//x"), "!ambiguous-path");
    let long = format!("/{}/x", "b".repeat(600));
    assert_eq!(put(&table, &long), "!no-scope");
}

#[test]
fn captures_fill_scopes() {
    let table = table([
        rule("/t/{tenant}/log-{day}/{*rest}", "ingest/{tenant}/{day}"),
        rule("/t/{tenant}/{*rest}", "ingest/{tenant}"),
        rule("/o/{*key}", "{key}"),
    ]);
    assert_eq!(put(&table, "/t/x/log-7/y"), "write:ingest/x/7");
    assert_eq!(put(&table, "/t/x/log-/y"), "write:ingest/x");
    assert_eq!(put(&table, "/o/p/q"), "write:p/q");
    assert_eq!(put(&table, "/o/p/"), "!no-scope");
}

#[test]
fn conditions_on_the_query() {
    let table = table([
        Rule {
            deny: true,
            scope: None,
            ..with_query(opaque("/{bucket}", ""), "delete", "*")
        },
        with_query(opaque("/{bucket}", "acl/{bucket}"), "acl", ""),
        with_query(opaque("/{bucket}", "two/{bucket}"), "list-type", "2"),
        opaque("/{bucket}", "{bucket}"),
    ]);
    for (target, got) in [
        ("/b", "write:b"),
        ("/b?", "write:b"),
        ("/b?delete", "!no-scope"),
        ("/b?delete=", "!no-scope"),
        ("/b?x=1&delete=1", "!no-scope"),
        ("/b?%64elete", "!no-scope"),
        ("/b?Delete", "write:b"),
        ("/b?deleted", "write:b"),
        ("/b?acl", "write:acl/b"),
        ("/b?acl=", "write:acl/b"),
        ("/b?acl=1", "write:b"),
        ("/b?list-type=2", "write:two/b"),
        ("/b?list-type=%32", "write:two/b"),
        ("/b?list-type=1", "write:b"),
        // First or last? Parameters apart at `;` or not?
        ("/b?list-type=2&list-type=1", "!ambiguous-path"),
        ("/b?list-type=2&list-type=2", "write:two/b"),
        ("/b?x=1;delete", "!ambiguous-path"),
        ("/b?x=1;y", "write:b"),
    ] {
        assert_eq!(put(&table, target), got, "{target}");
    }
}

#[test]
fn conditions_on_the_method() {
    let only_post = Rule {
        methods: vec![Method::POST],
        ..rule("/{db}/_bulk", "bulk")
    };
    let table = table([only_post, rule("/{db}/{*rest}", "{db}")]);
    assert_eq!(falls(&table, "POST", "/d/_bulk", &[]), "write:bulk");
    assert_eq!(falls(&table, "PUT", "/d/_bulk", &[]), "write:d");
}

#[test]
fn reads_without_a_route() {
    let table = table([rule("/a/{*rest}", "a"), denied("/secret")]);
    assert_eq!(falls(&table, "GET", "/c", &[]), "read");
    assert_eq!(falls(&table, "OPTIONS", "*", &[]), "read");
    assert_eq!(
        falls(&table, "GET", "/c", &[("x-fence-token", "7")]),
        "!no-scope"
    );
    assert_eq!(falls(&table, "GET", "/secret", &[]), "!no-scope");
    assert_eq!(
        falls(&table, "GET", "/a/x", &[("x-fence-token", "7")]),
        "read:a"
    );
}

#[test]
fn what_the_client_believes_is_compared() {
    let table = two();
    assert_eq!(
        falls(&table, "PUT", "/a/x", &[("x-fence-scope", "a")]),
        "write:a"
    );
    assert_eq!(
        falls(&table, "PUT", "/a/x", &[("x-fence-scope", "b")]),
        "!scope-mismatch"
    );
    let both = [("x-fence-scope", "a"), ("x-fence-scope", "b")];
    assert_eq!(falls(&table, "PUT", "/a/x", &both), "!scope-mismatch");
    assert_eq!(
        falls(&table, "GET", "/c", &[("x-fence-scope", "a")]),
        "!scope-mismatch"
    );
}

/// RFC 4918, section 10.3: Destination is an absolute URI or an absolute path.
#[test]
fn destinations() {
    let table = table([
        rule("/a/{*rest}", "a"),
        rule("/b/{*rest}", "b"),
        denied("/no/{*rest}"),
        opaque("/o/{bucket}/{*key}", "o/{bucket}"),
    ]);
    for (source, destination, got) in [
        ("/a/x", "/a/y", "write:a"),
        ("/a/x", "http://db/a/y", "write:a"),
        ("/a/x", "HTTPS://other:1/a/y?q", "write:a"),
        ("/a/x", "y?rev=1", "write:a"),
        ("/a/x", "/b/y", "!crosses-scopes"),
        ("/a/x", "http://db/b/y", "!crosses-scopes"),
        ("/a/x", "/%62/y", "!crosses-scopes"),
        ("/a/x", "/c/y", "!crosses-scopes"),
        ("/a/x", "/no/y", "!crosses-scopes"),
        ("/a/x", "http://db", "!crosses-scopes"),
        ("/a/x", "../b/y", "!ambiguous-path"),
        ("/a/x", "/a/../b/y", "!ambiguous-path"),
        ("/a/x", "//b/y", "!ambiguous-path"),
        ("/a/x", "\\b\\y", "!ambiguous-path"),
        ("/a/x", "http://db\\b/y", "!ambiguous-path"),
        ("/a/x", "ftp://db/a/y", "!bad-request"),
        ("/a/x", "/a/y#z", "!bad-request"),
        ("/a/x", "/a/y z", "!bad-request"),
        ("/a/x", "", "!bad-request"),
        ("/o/k/x", "/o/k/../y", "write:o/k"),
        ("/o/k/x", "/o/l/y", "!crosses-scopes"),
    ] {
        for method in ["MOVE", "COPY"] {
            let got_here = falls(&table, method, source, &[("destination", destination)]);
            assert_eq!(got_here, got, "{method} {source} to {destination}");
        }
    }
    let two = [("destination", "/a/y"), ("destination", "/a/y")];
    assert_eq!(falls(&table, "MOVE", "/a/x", &two), "!bad-request");
    assert_eq!(
        falls(&table, "GET", "/a/x", &[("destination", "/b/y")]),
        "read:a"
    );
    // A method in disguise.
    let disguised = [("x-http-method", "MOVE"), ("destination", "/b/y")];
    assert_eq!(falls(&table, "POST", "/a/x", &disguised), "!crosses-scopes");
}

#[test]
fn a_head_is_judged_as_a_whole() {
    let table = two();
    let judge = |method: &str, target: &str, lines: &[(&'static str, &str)]| {
        let mut request = http::Request::builder().method(method).uri(target);
        *request.headers_mut().unwrap() = fields(lines);
        table.judge(&request.body(()).unwrap().into_parts().0)
    };
    let judged = judge("PUT", "/a/x", &[("host", "db"), ("x-fence-token", "7")]).unwrap();
    assert_eq!(judged.token, Token::new(7));
    assert_eq!(judged.class.scope.as_deref(), Some("a"));
    let refusal = judge("PUT", "/a/x", &[("host", "db")]).unwrap_err();
    assert_eq!(refusal.problem, Problem::MissingToken);
    assert_eq!(refusal.scope.as_deref(), Some("a"));
    let refusal = judge("PUT", "/c", &[("host", "db"), ("x-fence-token", "7")]).unwrap_err();
    assert_eq!(refusal.problem, Problem::NoScope);
    assert_eq!(refusal.token, Token::new(7));
    let refusal = judge("GET", "/a/x", &[("host", "db"), ("x-fence-token", "x")]).unwrap_err();
    assert_eq!(refusal.problem, Problem::MalformedToken);
    assert!(judge("GET", "/c", &[("host", "db")]).is_ok());
}

#[test]
fn faults_of_one_rule() {
    for (rule, key, part) in [
        (rule("", "a"), "path", "no path"),
        (rule("a", "a"), "path", "slash"),
        (rule("/{}", "a"), "path", "without a name"),
        (rule("/{*}", "a"), "path", "without a name"),
        (rule("/{a}/{a}", "{a}"), "path", "twice"),
        (rule("/{*a}/b", "{a}"), "path", "at the end"),
        (rule("/x{*a}", "{a}"), "path", "at the end"),
        (rule("/{a}b", "{a}"), "path", "braces"),
        (rule("/{a", "a"), "path", "braces"),
        (rule("/a}", "a"), "path", "brace"),
        (rule("/a//b", "a"), "path", "empty segment"),
        (rule("/a/../b", "a"), "path", "segment"),
        (rule("/a%2fb", "a"), "path", "slash"),
        (rule("/%zz", "a"), "path", "hexadecimal"),
        (rule("/a?b", "a"), "path", "query"),
        (rule("/a", ""), "scope", "no scope"),
        (rule("/{a}", "{b}"), "scope", "captures no"),
        (rule("/{a}", "x/{a"), "scope", "brace"),
        (rule("/{a}", "x//{a}"), "scope", "empty"),
        (rule("/{a}", "/{a}"), "scope", "empty"),
        (
            Rule {
                reads: vec![Method::PUT],
                writes: vec![Method::PUT],
                ..rule("/a", "a")
            },
            "reads",
            "a read and a write",
        ),
        (with_query(rule("/a", "a"), "", "*"), "query", "no name"),
    ] {
        let error = load_error([rule]);
        assert_eq!(error.key, key, "{error}");
        let text = error.to_string();
        assert!(text.contains(part), "{part:?} is not in {text:?}");
        assert!(!error.remedy.is_empty());
    }
    let mut empty = rule("/a", "");
    empty.scope = Some(String::new());
    assert_eq!(load_error([empty]).key, "scope");
}

/// Who reads by the order and who reads by what is most specific must see the same.
#[test]
fn overlaps() {
    let get = |rule| Rule {
        methods: vec![Method::GET],
        ..rule
    };
    let put = |rule| Rule {
        methods: vec![Method::PUT],
        ..rule
    };
    for (rules, part) in [
        (
            vec![rule("/a/{*r}", "a"), rule("/a/x", "b")],
            "never reached",
        ),
        (
            vec![rule("/{x}", "{x}"), rule("/{y}", "b")],
            "never reached",
        ),
        (
            vec![rule("/{x}", "{x}"), with_query(rule("/{x}", "b"), "q", "*")],
            "never reached",
        ),
        (
            vec![with_query(rule("/{x}", "c"), "q", "*"), rule("/a", "b")],
            "more specific",
        ),
        (
            vec![get(rule("/{x}", "c")), rule("/a", "b")],
            "more specific",
        ),
        (vec![rule("/{x}/b", "c"), rule("/a/{y}", "b")], "neither"),
        (
            vec![
                rule("/a-{x}", "{x}"),
                rule("/{y}", "{y}"),
                rule("/a-b{z}", "b"),
            ],
            "never reached",
        ),
        (vec![rule("/%62", "b"), rule("/b", "c")], "never reached"),
    ] {
        let error = load_error(rules);
        assert!(error.message.contains(part), "{error}");
    }
    for rules in [
        vec![rule("/a/x", "b"), rule("/a/{*r}", "a")],
        vec![rule("/a/b", "d"), rule("/{x}/b", "c"), rule("/a/{y}", "b")],
        vec![rule("/{x}/b", "c"), rule("/a/{y}", "c")],
        vec![with_query(rule("/{x}", "b"), "q", "*"), rule("/{x}", "{x}")],
        vec![
            with_query(rule("/{x}", "b"), "q", "*"),
            with_query(rule("/{x}", "c"), "p", "*"),
            rule("/{x}", "{x}"),
        ],
        vec![get(rule("/{x}/b", "c")), put(rule("/a/{y}", "b"))],
        vec![
            Rule {
                deny: true,
                ..with_query(rule("/{*x}", ""), "q", "*")
            },
            rule("/a", "b"),
        ],
        vec![rule("/a/", "b"), rule("/a/{*r}", "c"), rule("/a", "b")],
        vec![rule("/{x}", "{x}"), rule("/{x}/{y}", "{x}")],
    ] {
        let paths: Vec<_> = rules.iter().map(|rule| rule.path.clone()).collect();
        assert!(RouteTable::new(rules).is_ok(), "{paths:?}");
    }
}

#[test]
fn explanations() {
    let table = table([
        Rule {
            deny: true,
            scope: None,
            ..with_query(opaque("/{bucket}", ""), "delete", "*")
        },
        opaque("/{bucket}/{*key}", "s3/{bucket}"),
    ]);
    let explain = |method: Method, target| {
        table
            .explain(&method, target, &HeaderMap::new())
            .to_string()
    };
    let text = explain(Method::PUT, "/%62kt/a%2fb");
    assert!(text.contains("compared as \"/bkt/a%2Fb\""), "{text}");
    assert!(text.contains("1. /{bucket}?delete=* -> denied"), "{text}");
    assert!(
        text.contains("2. /{bucket}/{*key} -> scope \"s3/{bucket}\", opaque  (here): matches"),
        "{text}"
    );
    assert!(
        text.ends_with("=> a write in the scope \"s3/bkt\": it needs the token of that lease"),
        "{text}"
    );
    let text = explain(Method::POST, "/b?delete");
    assert!(text.contains("=> refused, 403 no-scope"), "{text}");
    let text = explain(Method::GET, "/");
    assert!(
        text.contains("no route matches\n=> a read in no scope"),
        "{text}"
    );
}
