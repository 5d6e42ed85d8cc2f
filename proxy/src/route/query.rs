//! Conditions on the query.

use super::path::hex_pair;
use crate::refusal::{Problem, Refusal};

/// Whether all conditions hold. Refuses a query that two parsers could answer differently.
pub(super) fn holds(conditions: &[(String, String)], query: Option<&str>) -> Result<bool, Refusal> {
    for (name, value) in conditions {
        if !one_holds(name, value, query)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn one_holds(name: &str, value: &str, query: Option<&str>) -> Result<bool, Refusal> {
    let Some(query) = query else {
        return Ok(false);
    };
    let holds = among(query.split('&'), name, value);
    // Some parsers part parameters at `;` as well (HTML 4.01, appendix B.2.2).
    if query.contains(';') && among(query.split(['&', ';']), name, value) != holds {
        return Err(ambiguous());
    }
    holds.ok_or_else(ambiguous)
}

fn ambiguous() -> Refusal {
    Refusal::with_detail(
        Problem::AmbiguousPath,
        "The query has a parameter that decides the scope, and parsers would read it differently: repeated with \
         another value, or behind a `;`.",
    )
}

/// Whether a condition holds; `None` when one line of the same parameter says yes and another no.
fn among<'q>(pairs: impl Iterator<Item = &'q str>, name: &str, value: &str) -> Option<bool> {
    let mut found = None;
    for pair in pairs {
        let (got_name, got_value) = pair.split_once('=').unwrap_or((pair, ""));
        if !decodes_to(got_name, name) {
            continue;
        }
        let holds = value == "*" || decodes_to(got_value, value);
        if found.is_some_and(|earlier| earlier != holds) {
            return None;
        }
        found = Some(holds);
    }
    Some(found.unwrap_or(false))
}

/// Whether an escaped text stands for this one (`+` is a blank, as in forms). A broken escape stands for itself.
fn decodes_to(escaped: &str, plain: &str) -> bool {
    let mut escaped = escaped.as_bytes();
    let mut plain = plain.bytes();
    while let [byte, rest @ ..] = escaped {
        escaped = rest;
        let byte = match byte {
            b'+' => b' ',
            b'%' => match hex_pair(rest) {
                Some(byte) => {
                    escaped = &rest[2..];
                    byte
                }
                None => b'%',
            },
            byte => *byte,
        };
        if plain.next() != Some(byte) {
            return false;
        }
    }
    plain.next().is_none()
}
