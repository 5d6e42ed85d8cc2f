//! From a request's head to what the gate must know: read or write, and in which scope. Pure.
//!
//! Routes are tried in the order of the file and the first that matches wins. The check at load makes sure that the
//! most specific route is also the first, so that nobody who reads the file by the other rule is misled.
//!
//! The path is compared in one spelling: escapes of characters that may stand in a path segment are decoded, all
//! others are written in capitals (RFC 3986, sections 2.3 and 6.2.2). Upstream gets the bytes as they came.

use http::{HeaderMap, HeaderName, Method, request};
use palisade_fence::Token;
use std::{fmt, sync::Arc};

use crate::{
    headers::{self, Seen},
    refusal::{Problem, Refusal},
};

mod check;
mod explain;
mod path;
mod pattern;
mod query;

pub use explain::Explanation;
/// A scope has the name of its lease: one check for both.
pub use palisade_lease::name::check as check_scope_name;

use path::Reading;
use pattern::{Captures, Pattern, Template};

const DESTINATION: HeaderName = HeaderName::from_static("destination");

/// Whether a request may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Passes without a token; with one it is fenced (design, G3).
    Read,
    /// Needs a token.
    Write,
}

impl Kind {
    /// The label `kind` of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a request is to the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Read or write.
    pub kind: Kind,
    /// The scope that it falls in. A write always has one.
    pub scope: Option<Arc<str>>,
}

/// A head that may go to the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Read or write, and where.
    pub class: Class,
    /// The token. A write always has one; a read that has one has a scope.
    pub token: Option<Token>,
}

/// How the datastore reads paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// As a tree of names: targets that could be read as two paths are refused.
    Tree,
    /// Any bytes are a key: object stores.
    Opaque,
}

/// One route as the settings have it, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Literal segments, `{name}` for one segment or the end of one, `{*name}` for all that is left.
    pub path: String,
    /// The scope, with captures of the path in braces. Every route has one, but for those that deny.
    pub scope: Option<String>,
    /// How the datastore reads paths here.
    pub paths: Paths,
    /// Only these methods; empty: all.
    pub methods: Vec<Method>,
    /// Methods that are reads here.
    pub reads: Vec<Method>,
    /// Methods that are writes here.
    pub writes: Vec<Method>,
    /// Conditions on the query, all to be met: `""` the parameter is there without a value, `"*"` with any, else with
    /// this one.
    pub query: Vec<(String, String)>,
    /// Refuse whatever matches.
    pub deny: bool,
    /// Where it stands, for explanations.
    pub place: String,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            path: String::new(),
            scope: None,
            paths: Paths::Tree,
            methods: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            query: Vec::new(),
            deny: false,
            place: String::new(),
        }
    }
}

/// Why routes can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {}, {key}: {message}. {remedy}", rule + 1)]
pub struct RouteError {
    /// Which rule, from 0.
    pub rule: usize,
    /// Which of its keys.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// The checked routes.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteTable {
    /// The one scope when there are no routes.
    single: Option<Arc<str>>,
    routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq)]
struct Route {
    rule: Rule,
    pattern: Pattern,
    /// `None` only where the rule denies.
    scope: Option<Template>,
}

impl RouteTable {
    /// Everything falls in one scope, and no path is looked at.
    pub fn single(scope: &str) -> Self {
        Self {
            single: Some(scope.into()),
            routes: Vec::new(),
        }
    }

    /// Checks routes. With none at all, no write has a scope.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RouteError> {
        let routes = check::routes(rules)?;
        Ok(Self {
            single: None,
            routes,
        })
    }

    /// Everything that can be said of a head without state: what hyper lets through and a fence must not, the token,
    /// the class, and whether a token is missing.
    ///
    /// For HTTP/1.1 the tap has compared the raw target by then: a fragment is gone from `parts.uri`.
    pub fn judge(&self, parts: &request::Parts) -> Result<Judged, Refusal> {
        let seen = Seen::of(&parts.headers);
        headers::check_request(
            parts.version,
            &parts.method,
            &parts.uri,
            &parts.headers,
            &seen,
        )?;
        let token = match seen.has_token() {
            true => headers::token(&parts.headers)?,
            false => None,
        };
        let target = parts
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let class = self
            .classify_seen(&parts.method, target, &parts.headers, &seen)
            .map_err(|refusal| refusal.with_token(token))?;
        if class.kind == Kind::Write && token.is_none() {
            return Err(Refusal::new(Problem::MissingToken).in_scope(class.scope));
        }
        Ok(Judged { class, token })
    }

    /// The class of a request. `target` is path and query, byte for byte as they came.
    ///
    /// Refuses ambiguous targets, denied ones, writes and fenced reads without a scope, a scope that the client
    /// contradicts, and a `Destination` in another scope.
    pub fn classify(
        &self,
        method: &Method,
        target: &str,
        fields: &HeaderMap,
    ) -> Result<Class, Refusal> {
        self.classify_seen(method, target, fields, &Seen::of(fields))
    }

    fn classify_seen(
        &self,
        method: &Method,
        target: &str,
        fields: &HeaderMap,
        seen: &Seen,
    ) -> Result<Class, Refusal> {
        let overridden = seen.overrides_method();
        let class = match &self.single {
            Some(scope) => Class {
                kind: kind(method, overridden, None),
                scope: Some(scope.clone()),
            },
            None => self.by_route(method, overridden, target, fields)?,
        };
        if seen.has_scope() {
            compare_scope(&class, fields)?;
        }
        Ok(class)
    }

    fn by_route(
        &self,
        method: &Method,
        overridden: bool,
        target: &str,
        fields: &HeaderMap,
    ) -> Result<Class, Refusal> {
        let place = self.locate(method, target)?;
        let kind = kind(method, overridden, place.route.map(|route| &route.rule));
        if kind == Kind::Write && place.scope.is_none() {
            return Err(Problem::NoScope.into());
        }
        if place.scope.is_none() && fields.contains_key(headers::TOKEN) {
            return Err(Refusal::with_detail(
                Problem::NoScope,
                "No route maps this read to a scope, so its token can't be looked at. Send it without, or add a route.",
            ));
        }
        if kind == Kind::Write {
            self.check_destination(method, target, fields, &place)?;
        }
        Ok(Class {
            kind,
            scope: place.scope,
        })
    }

    /// Where a target falls. A target that could be read as two paths falls nowhere, unless its route is opaque.
    fn locate(&self, method: &Method, target: &str) -> Result<Located<'_>, Refusal> {
        if target == "*" {
            return Ok(Located::NOWHERE);
        }
        let (raw, query) = split_query(target);
        let reading = Reading::of(raw);
        let path = match &reading {
            // Nothing can be said of a broken escape but that it is not the same to all.
            Err(_) => raw,
            Ok(reading) => reading.spelled(),
        };
        for route in &self.routes {
            if !route.takes_method(method) {
                continue;
            }
            let Some(captures) = route.pattern.captures(path) else {
                continue;
            };
            if !query::holds(&route.rule.query, query)? {
                continue;
            }
            if let (Some(why), Paths::Tree) = (ambiguity(&reading), route.rule.paths) {
                return Err(Refusal::with_detail(Problem::AmbiguousPath, why));
            }
            return route.located(&captures);
        }
        match ambiguity(&reading) {
            Some(why) => Err(Refusal::with_detail(Problem::AmbiguousPath, why)),
            None => Ok(Located::NOWHERE),
        }
    }

    /// RFC 4918, sections 9.8 and 9.9: COPY and MOVE write where `Destination` says. Any write with that field is
    /// checked: an overridden method may be one of them.
    fn check_destination(
        &self,
        method: &Method,
        target: &str,
        fields: &HeaderMap,
        source: &Located<'_>,
    ) -> Result<(), Refusal> {
        let mut lines = fields.get_all(DESTINATION).iter();
        let Some(line) = lines.next() else {
            return Ok(());
        };
        let destination = line.to_str().ok().filter(|_| lines.next().is_none());
        let Some(destination) = destination.and_then(|text| resolve(text, target)) else {
            return Err(Refusal::with_detail(
                Problem::BadRequest,
                "Send one Destination field: an http(s) URI or a path, without fragment and blanks.",
            ));
        };
        let across = || Refusal::new(Problem::CrossesScopes).in_scope(source.scope.clone());
        let there = match self.locate(method, &destination) {
            Ok(there) => there,
            // A denied destination is out of this scope as well.
            Err(refusal) if refusal.problem == Problem::NoScope => return Err(across()),
            Err(refusal) => return Err(refusal),
        };
        match there.scope == source.scope {
            true => Ok(()),
            false => Err(across()),
        }
    }
}

/// Where a target falls.
struct Located<'a> {
    route: Option<&'a Route>,
    scope: Option<Arc<str>>,
}

impl Located<'_> {
    const NOWHERE: Self = Self {
        route: None,
        scope: None,
    };
}

impl Route {
    fn takes_method(&self, method: &Method) -> bool {
        self.rule.methods.is_empty() || self.rule.methods.contains(method)
    }

    fn located(&self, captures: &Captures<'_>) -> Result<Located<'_>, Refusal> {
        let Some(scope) = self.scope.as_ref().filter(|_| !self.rule.deny) else {
            return Err(Refusal::with_detail(
                Problem::NoScope,
                "A route denies this request. `palisade route METHOD TARGET` explains.",
            ));
        };
        match scope.fill(captures) {
            Some(scope) => Ok(Located {
                route: Some(self),
                scope: Some(scope),
            }),
            None => Err(Refusal::with_detail(
                Problem::NoScope,
                "The scope's name that the target gives is no lease's name: above 512 bytes, or with an empty, `.` or \
                 `..` segment.",
            )),
        }
    }
}

fn ambiguity(reading: &Result<Reading<'_>, &'static str>) -> Option<&'static str> {
    match reading {
        Ok(reading) => reading.ambiguity(),
        Err(why) => Some(why),
    }
}

/// Path and query. The first `?` parts them (RFC 3986, section 3.4).
fn split_query(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// Methods are case-sensitive (RFC 9110, section 9.1), and one that nobody knows is a write.
fn kind(method: &Method, overridden: bool, rule: Option<&Rule>) -> Kind {
    if overridden {
        return Kind::Write;
    }
    if let Some(rule) = rule {
        // What a GET changes, some datastores change on HEAD too.
        let writes = |method| rule.writes.contains(method);
        if writes(method) || (method == Method::HEAD && writes(&Method::GET)) {
            return Kind::Write;
        }
        if rule.reads.contains(method) {
            return Kind::Read;
        }
    }
    match method.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "PROPFIND" | "REPORT" | "SEARCH" => Kind::Read,
        _ => Kind::Write,
    }
}

fn compare_scope(class: &Class, fields: &HeaderMap) -> Result<(), Refusal> {
    let scope = class.scope.as_deref().unwrap_or_default().as_bytes();
    let same = |line: &http::HeaderValue| line.as_bytes() == scope;
    if fields.get_all(headers::SCOPE).iter().all(same) {
        return Ok(());
    }
    Err(Refusal::new(Problem::ScopeMismatch).in_scope(class.scope.clone()))
}

/// The path and query of a `Destination`: an absolute URI's, an absolute path, or a path beside the target's
/// (RFC 3986, section 5.3; CouchDB's COPY names a document like that). The host is not looked at: datastores differ in
/// whether they do.
fn resolve(destination: &str, target: &str) -> Option<String> {
    let blank = |byte: u8| byte <= b' ' || byte == 0x7f || byte == b'#';
    if destination.is_empty() || destination.bytes().any(blank) {
        return None;
    }
    let scheme_end = destination
        .find("://")
        .filter(|at| !destination[..*at].contains(['/', '?']));
    if let Some(at) = scheme_end {
        let http = ["http", "https"]
            .iter()
            .any(|scheme| destination[..at].eq_ignore_ascii_case(scheme));
        let rest = &destination[at + 3..];
        let path = rest.find(['/', '?', '\\']).map_or("", |at| &rest[at..]);
        return http.then(|| match path.starts_with(['/', '\\']) {
            true => path.to_owned(),
            false => format!("/{path}"),
        });
    }
    if destination.starts_with(['/', '\\']) {
        return Some(destination.to_owned());
    }
    let (path, _) = split_query(target);
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    Some(format!("{folder}{destination}"))
}

impl fmt::Display for RouteTable {
    /// One line for each route, in the order in which they are tried.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scope) = &self.single {
            return write!(
                f,
                "# routes: none; every request falls in the scope {scope:?}"
            );
        }
        write!(f, "# routes, the first that matches wins:")?;
        for (at, route) in self.routes.iter().enumerate() {
            write!(f, "\n#   {}. {}", at + 1, route.rule)?;
        }
        write!(
            f,
            "\n#   anything else: reads without a token pass, all other requests are refused"
        )
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |methods: &[Method]| {
            methods
                .iter()
                .map(Method::as_str)
                .collect::<Vec<_>>()
                .join(" ")
        };
        if !self.methods.is_empty() {
            write!(f, "{} ", words(&self.methods))?;
        }
        f.write_str(&self.path)?;
        for (at, (name, value)) in self.query.iter().enumerate() {
            f.write_str(if at == 0 { "?" } else { "&" })?;
            match value.as_str() {
                "" => f.write_str(name)?,
                value => write!(f, "{name}={value}")?,
            }
        }
        match &self.scope {
            Some(scope) if !self.deny => write!(f, " -> scope {scope:?}")?,
            _ => f.write_str(" -> denied")?,
        }
        if self.paths == Paths::Opaque {
            f.write_str(", opaque")?;
        }
        if !self.reads.is_empty() {
            write!(f, ", reads: {}", words(&self.reads))?;
        }
        if !self.writes.is_empty() {
            write!(f, ", writes: {}", words(&self.writes))?;
        }
        write!(f, "  ({})", self.place)
    }
}

#[cfg(test)]
mod tests;
