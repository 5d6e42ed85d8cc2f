//! What is wrong with routes, found when they are loaded.

use super::{
    Paths, Route, RouteError, Rule,
    pattern::{Pattern, Template},
};

/// Checks each rule by itself, then each pair.
pub(super) fn routes(rules: Vec<Rule>) -> Result<Vec<Route>, RouteError> {
    let mut routes: Vec<Route> = Vec::with_capacity(rules.len());
    for (at, rule) in rules.into_iter().enumerate() {
        let route = route(at, rule)?;
        for earlier in 0..routes.len() {
            pair(&routes, earlier, at, &route)?;
        }
        routes.push(route);
    }
    Ok(routes)
}

fn route(at: usize, rule: Rule) -> Result<Route, RouteError> {
    let error = |key, (message, remedy)| RouteError {
        rule: at,
        key,
        message,
        remedy,
    };
    if rule.path.is_empty() {
        return Err(error(
            "path",
            (
                "the route has no path".into(),
                "Write path = \"/tenants/{tenant}/{*rest}\".".into(),
            ),
        ));
    }
    let pattern = Pattern::parse(&rule.path).map_err(|why| error("path", why))?;
    let scope = match &rule.scope {
        None if rule.deny => None,
        None => {
            return Err(error(
                "scope",
                (
                    "the route has no scope".into(),
                    "Write scope = \"NAME\", or deny = true.".into(),
                ),
            ));
        }
        Some(scope) => {
            Some(Template::parse(scope, &pattern.names).map_err(|why| error("scope", why))?)
        }
    };
    if let Some(method) = rule
        .reads
        .iter()
        .find(|method| rule.writes.contains(method))
    {
        return Err(error(
            "reads",
            (
                format!("{method} is a read and a write"),
                "Remove it from one of the lists.".into(),
            ),
        ));
    }
    if let Some((name, _)) = rule.query.iter().find(|(name, _)| name.is_empty()) {
        return Err(error(
            "query",
            (
                format!("the parameter {name:?} has no name"),
                "Write { name = \"*\" }.".into(),
            ),
        ));
    }
    Ok(Route {
        rule,
        pattern,
        scope,
    })
}

/// Refuses a pair that two readers could see differently: one goes by the order, the other by what is most specific.
fn pair(routes: &[Route], first: usize, at: usize, later: &Route) -> Result<(), RouteError> {
    let earlier = &routes[first];
    if never_same_method(&earlier.rule, &later.rule) || same_effect(&earlier.rule, &later.rule) {
        return Ok(());
    }
    let Some(common) = earlier.pattern.common(&later.pattern) else {
        return Ok(());
    };
    let error = |message: String, remedy: &str| RouteError {
        rule: at,
        key: "path",
        message,
        remedy: remedy.into(),
    };
    let before = format!("{} ({})", earlier.rule.path, earlier.rule.place);
    let covered = earlier.pattern.covers(&later.pattern);
    if covered && implies(&later.rule, &earlier.rule) {
        return Err(error(
            format!(
                "the route is never reached: {before} comes first and matches all that it matches"
            ),
            "Put the more specific route first, or remove one of them.",
        ));
    }
    // To refuse first is to refuse whatever the reader thinks of the rest.
    if earlier.rule.deny || later.pattern.covers(&earlier.pattern) {
        return Ok(());
    }
    if covered {
        return Err(error(
            format!(
                "the route is more specific than {before}, which comes first and takes some of its requests"
            ),
            "Put the more specific route first.",
        ));
    }
    let settled =
        |route: &Route| route.pattern.covers(&common) && implies(&later.rule, &route.rule);
    if routes[..first].iter().any(settled) {
        return Ok(());
    }
    Err(error(
        format!("some paths match both this route and {before}, and neither is more specific"),
        "Put a route for what both match before the two.",
    ))
}

fn never_same_method(one: &Rule, other: &Rule) -> bool {
    !one.methods.is_empty()
        && !other.methods.is_empty()
        && !one
            .methods
            .iter()
            .any(|method| other.methods.contains(method))
}

/// Whether whoever meets the conditions of `narrow` meets those of `wide`.
fn implies(narrow: &Rule, wide: &Rule) -> bool {
    let methods = wide.methods.is_empty()
        || (!narrow.methods.is_empty()
            && narrow
                .methods
                .iter()
                .all(|method| wide.methods.contains(method)));
    let met = |(name, value): &(String, String)| {
        narrow
            .query
            .iter()
            .any(|(given, with)| given == name && (value == "*" || value == with))
    };
    methods && wide.query.iter().all(met)
}

/// Whether it makes no difference which of the two matches.
fn same_effect(one: &Rule, other: &Rule) -> bool {
    if one.deny && other.deny {
        // An opaque route refuses with 403 what a tree refuses with 400: refused in any case.
        return one.path != other.path;
    }
    let fixed = |rule: &Rule| {
        rule.scope
            .as_ref()
            .is_some_and(|scope| !scope.contains('{'))
    };
    one.path != other.path
        && fixed(one)
        && one.deny == other.deny
        && one.scope == other.scope
        && one.reads == other.reads
        && one.writes == other.writes
        && matches!(
            (one.paths, other.paths),
            (Paths::Tree, Paths::Tree) | (Paths::Opaque, Paths::Opaque)
        )
}
