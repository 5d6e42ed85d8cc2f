//! What holds for all targets and all tables.

use super::*;
use proptest::prelude::*;

/// Decodes every escape, as most datastores do; a broken one stays.
fn decoded(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, path::hex_pair(after)) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = &after[2..];
            }
            (byte, _) => out.push(*byte),
        }
    }
    out
}

/// Writes decoded bytes as a target again; `/` and what stands for itself stay.
fn encoded(path: &[u8]) -> String {
    let plain = |byte: u8| {
        byte == b'/' || byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
    };
    path.iter()
        .map(|byte| match plain(*byte) {
            true => char::from(*byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// Other ways to read a path than ours, each seen in some server.
fn other_readings(path: &str) -> Vec<String> {
    let once = decoded(path.as_bytes());
    let twice = decoded(&once);
    let unix: Vec<u8> = once
        .iter()
        .map(|byte| if *byte == b'\\' { b'/' } else { *byte })
        .collect();
    let text = String::from_utf8_lossy(&once).into_owned();
    let merged = format!(
        "/{}",
        text.split('/')
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/")
    );
    let bare: Vec<_> = text
        .split('/')
        .map(|part| part.split(';').next().unwrap_or_default())
        .collect();
    let mut resolved: Vec<&str> = Vec::new();
    for part in text.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    let cut = text.split('\0').next().unwrap_or_default().to_owned();
    let resolved = format!("/{}", resolved.join("/"));
    let mut all = vec![encoded(&once), encoded(&twice), encoded(&unix)];
    // A slash at the end is kept or not; both lie in the same scope or in none.
    all.extend([bare.join("/"), resolved, cut].map(|path| encoded(path.as_bytes())));
    if !path.ends_with('/') {
        all.push(encoded(merged.as_bytes()));
    }
    all
}

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab]{1,2}", 1 => "\\{[x-z]\\}", 1 => "a\\{[x-z]\\}"]
}

fn pattern() -> impl Strategy<Value = String> {
    (
        prop::collection::vec(segment(), 1..4),
        prop_oneof![Just(""), Just("/"), Just("/{*w}")],
    )
        .prop_map(|(segments, end)| format!("/{}{end}", segments.join("/")))
}

proptest! {
    /// `covers` and `common` say of patterns what is true of the paths.
    #[test]
    fn relations_of_patterns_hold_for_paths(one in pattern(), other in pattern(), path in "/[ab]{0,2}(/[ab]{0,2}){0,3}") {
        let (Ok(one), Ok(other)) = (Pattern::parse(&one), Pattern::parse(&other)) else {
            return Ok(());
        };
        let (in_one, in_other) = (one.captures(&path).is_some(), other.captures(&path).is_some());
        if one.covers(&other) {
            prop_assert!(in_one || !in_other);
        }
        let in_common = one.common(&other).is_some_and(|common| common.captures(&path).is_some());
        prop_assert_eq!(in_common, in_one && in_other);
    }

    /// In a table that loads, the first route that matches is the most specific that matches.
    #[test]
    fn the_first_is_the_most_specific(paths in prop::collection::vec(pattern(), 1..5), path in "/[ab]{0,2}(/[ab]{0,2}){0,3}") {
        let rules = paths.iter().enumerate().map(|(at, path)| rule(path, &format!("s{at}"))).collect();
        let Ok(table) = RouteTable::new(rules) else {
            return Ok(());
        };
        let matching: Vec<_> = table.routes.iter().filter(|route| route.pattern.captures(&path).is_some()).collect();
        for later in matching.iter().skip(1) {
            prop_assert!(later.pattern.covers(&matching[0].pattern), "{} {}", matching[0].rule, later.rule);
        }
    }

    /// Whoever reads a target that passes in another way comes to the same scope.
    #[test]
    fn other_readers_come_to_the_same_scope(
        parts in prop::collection::vec(prop_oneof![
            Just("a"), Just("b"), Just("/"), Just("."), Just(".."), Just("%2e"), Just("%2F"), Just("%5c"), Just("\\"),
            Just(";"), Just("%3b"), Just("%25"), Just("2e"), Just("2f"),
            Just("61"), Just("%00"), Just("%61"), Just("%62"), Just("x"),
            Just("%20"), Just("%C3%A9"),
        ], 1..10),
    ) {
        let table = table([rule("/a/{*r}", "a"), rule("/b/{*r}", "b"), rule("/x/{u}", "t/{u}"), rule("/{t}/{*r}", "r/{t}")]);
        let target = format!("/{}", parts.concat());
        let scope = put(&table, &target);
        if scope.starts_with("write:") {
            for other in other_readings(&target) {
                prop_assert_eq!(put(&table, &other), scope.clone(), "{} and {}", target, other);
            }
        }
    }

    /// No target makes the classification panic, and a scope that comes out is a lease's name.
    #[test]
    fn any_target_is_classified(target in "/([a-c%./;\\\\?&=2eE5fF0]|é|\u{1}){0,16}") {
        let table = table([
            with_query(opaque("/{b}", "q/{b}"), "a", "b"),
            opaque("/{b}", "{b}"),
            rule("/a/{*r}", "t/{r}"),
            opaque("/{b}/{*k}", "{k}"),
        ]);
        if let Ok(Class { scope, .. }) = table.classify(&Method::PUT, &target, &HeaderMap::new()) {
            prop_assert_eq!(check_scope_name(&scope.unwrap()), Ok(()));
        }
    }

    /// A tree's scope is the same however unreserved characters are written.
    #[test]
    fn escapes_of_unreserved_characters_change_nothing(name in "[a-zA-Z0-9~_-]{1,8}", escape in prop::collection::vec(any::<bool>(), 8)) {
        let table = table([rule("/{t}/{*r}", "{t}")]);
        let spelled: String = name.chars().zip(escape).map(|(c, escape)| match escape {
            true => format!("%{:02x}", c as u32),
            false => c.to_string(),
        }).collect();
        prop_assert_eq!(put(&table, &format!("/{spelled}/x")), format!("write:{name}"));
    }
}
