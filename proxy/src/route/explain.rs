//! Why a request falls where it falls, for `palisade route METHOD TARGET`.

use http::{HeaderMap, Method};
use std::fmt;

use super::{Class, Kind, RouteTable, path::Reading, query, split_query};
use crate::refusal::Refusal;

/// What happens to a request without a token, and why.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What was looked at, in its order, one line each.
    pub steps: Vec<String>,
    /// The class, or the refusal.
    pub verdict: Result<Class, Refusal>,
}

impl RouteTable {
    /// Explains one request. The verdict is [`RouteTable::classify`]'s own.
    pub fn explain(&self, method: &Method, target: &str, fields: &HeaderMap) -> Explanation {
        let mut steps = Vec::new();
        match &self.single {
            Some(scope) => steps.push(format!(
                "there are no routes: everything falls in {scope:?}"
            )),
            None => self.explain_routes(method, target, &mut steps),
        }
        Explanation {
            steps,
            verdict: self.classify(method, target, fields),
        }
    }

    fn explain_routes(&self, method: &Method, target: &str, steps: &mut Vec<String>) {
        let (raw, query) = split_query(target);
        let reading = Reading::of(raw);
        let path = match &reading {
            Ok(reading) => reading.spelled(),
            Err(_) => raw,
        };
        if path != raw {
            steps.push(format!("the path is compared as {path:?}"));
        }
        match &reading {
            Ok(reading) => steps.extend(reading.ambiguity().map(|why| format!("ambiguous: {why}"))),
            Err(why) => steps.push(format!("ambiguous: {why}")),
        }
        for (at, route) in self.routes.iter().enumerate() {
            let step = match query::holds(&route.rule.query, query) {
                _ if route.pattern.captures(path).is_none() => "the path does not match",
                _ if !route.takes_method(method) => {
                    "the path matches, the method is not among its methods"
                }
                Ok(true) => "matches",
                Ok(false) => "the path matches, its conditions on the query are not met",
                Err(_) => "the path matches, its conditions on the query could be read in two ways",
            };
            steps.push(format!("{}. {}: {step}", at + 1, route.rule));
            if step == "matches" {
                return;
            }
        }
        steps.push("no route matches".into());
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        match &self.verdict {
            Ok(Class {
                kind: Kind::Read,
                scope: None,
            }) => f.write_str("=> a read in no scope: it passes, without a token only"),
            Ok(Class {
                kind: Kind::Read,
                scope: Some(scope),
            }) => {
                write!(
                    f,
                    "=> a read in the scope {scope:?}: it passes without a token, and is fenced with one"
                )
            }
            Ok(Class {
                kind: Kind::Write,
                scope,
            }) => {
                write!(
                    f,
                    "=> a write in the scope {:?}: it needs the token of that lease",
                    scope.as_deref().unwrap_or_default()
                )
            }
            Err(refusal) => write!(
                f,
                "=> refused, {} {}: {}",
                refusal.status().as_u16(),
                refusal.problem.name(),
                refusal.detail
            ),
        }
    }
}
