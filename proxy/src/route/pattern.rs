//! Patterns of paths, and templates of scopes that are filled from them.

use std::{cell::RefCell, sync::Arc};

use super::{check_scope_name, path::Reading};

/// The most captures of one pattern.
pub(super) const MAX_CAPTURES: usize = 8;

/// A path with captures.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    pub(super) segments: Vec<Segment>,
    /// The names, in the order in which they stand.
    pub(super) names: Vec<String>,
}

/// What stands between two slashes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Segment {
    /// These bytes.
    Literal(String),
    /// These bytes and at least one more, captured.
    Capture(String),
    /// At least one byte, slashes too, to the end; captured.
    Rest,
}

/// What a path's captures hold, in the order of the pattern's names; never empty.
#[derive(Default)]
pub(super) struct Captures<'p> {
    values: [&'p str; MAX_CAPTURES],
    len: usize,
}

impl<'p> Captures<'p> {
    fn push(&mut self, value: &'p str) {
        self.values[self.len] = value;
        self.len += 1;
    }
}

impl Pattern {
    /// Reads a pattern. Fails with what is wrong and what to do.
    pub(super) fn parse(text: &str) -> Result<Self, (String, String)> {
        let Some(path) = text.strip_prefix('/') else {
            return Err((
                format!("{text:?} does not begin with a slash"),
                "Write it as \"/tenants/{tenant}/{*rest}\".".into(),
            ));
        };
        let mut pattern = Self {
            segments: Vec::new(),
            names: Vec::new(),
        };
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let segment = pattern.segment(part, last)?;
            pattern.segments.push(segment);
        }
        if pattern.names.len() > MAX_CAPTURES {
            return Err((
                "there are more than 8 captures".into(),
                "Capture only what the scope needs.".into(),
            ));
        }
        Ok(pattern)
    }

    fn segment(&mut self, part: &str, last: bool) -> Result<Segment, (String, String)> {
        let Some((before, rest)) = part.split_once('{') else {
            return literal(part, last).map(Segment::Literal);
        };
        let Some(name) = rest
            .strip_suffix('}')
            .filter(|name| !name.contains(['{', '}']))
        else {
            return Err((
                format!("{part:?} has braces that don't close its end"),
                "A capture is {name} at the end of a segment, or {*name} at the end of the path."
                    .into(),
            ));
        };
        let (all, name) = match name.strip_prefix('*') {
            Some(name) => (true, name),
            None => (false, name),
        };
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(named) {
            return Err((
                format!("{part:?} captures without a name"),
                "Name it with letters, digits and `_`.".into(),
            ));
        }
        if self.names.iter().any(|known| known == name) {
            return Err((
                format!("{name} is captured twice"),
                "Give each capture a name of its own.".into(),
            ));
        }
        self.names.push(name.to_owned());
        match all {
            true if !last || !before.is_empty() => Err((
                format!("{part:?} is not a whole segment at the end"),
                "{*name} stands alone after the last slash.".into(),
            )),
            true => Ok(Segment::Rest),
            false => Ok(Segment::Capture(match before {
                "" => String::new(),
                before => literal(before, false)?,
            })),
        }
    }

    /// What the captures hold, if a path in its one spelling matches.
    pub(super) fn captures<'p>(&self, path: &'p str) -> Option<Captures<'p>> {
        let mut captures = Captures::default();
        let mut rest = Some(path.strip_prefix('/')?);
        for segment in &self.segments {
            let left = rest?;
            let (part, next) = match left.split_once('/') {
                Some((part, next)) => (part, Some(next)),
                None => (left, None),
            };
            rest = next;
            match segment {
                Segment::Literal(literal) if literal == part => {}
                Segment::Literal(_) => return None,
                Segment::Capture(before) => captures.push(
                    part.strip_prefix(before.as_str())
                        .filter(|value| !value.is_empty())?,
                ),
                Segment::Rest => {
                    captures.push(Some(left).filter(|value| !value.is_empty())?);
                    rest = None;
                }
            }
        }
        rest.is_none().then_some(captures)
    }

    /// Whether every path that `other` matches is matched here too.
    pub(super) fn covers(&self, other: &Self) -> bool {
        fn segments(ours: &[Segment], theirs: &[Segment]) -> bool {
            match (ours, theirs) {
                ([], []) => true,
                ([Segment::Rest], theirs) => !is_empty(theirs),
                ([ours, rest @ ..], [theirs, others @ ..]) => {
                    ours.covers(theirs) && segments(rest, others)
                }
                _ => false,
            }
        }
        segments(&self.segments, &other.segments)
    }

    /// A pattern of the paths that both match, if there are any.
    pub(super) fn common(&self, other: &Self) -> Option<Self> {
        fn segments(ours: &[Segment], theirs: &[Segment], to: &mut Vec<Segment>) -> bool {
            match (ours, theirs) {
                ([], []) => true,
                ([Segment::Rest], rest) | (rest, [Segment::Rest]) => {
                    to.extend(rest.iter().cloned());
                    !is_empty(rest)
                }
                ([ours, rest @ ..], [theirs, others @ ..]) => match ours.common(theirs) {
                    Some(segment) => {
                        to.push(segment);
                        segments(rest, others, to)
                    }
                    None => false,
                },
                _ => false,
            }
        }
        let mut common = Vec::new();
        segments(&self.segments, &other.segments, &mut common).then_some(Self {
            segments: common,
            names: Vec::new(),
        })
    }
}

/// Whether this is the end after a last slash: what `{*name}` does not match.
fn is_empty(segments: &[Segment]) -> bool {
    match segments {
        [] => true,
        [Segment::Literal(literal)] => literal.is_empty(),
        _ => false,
    }
}

impl Segment {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(ours), Self::Literal(theirs)) => ours == theirs,
            (Self::Capture(ours), Self::Literal(theirs)) => {
                theirs.len() > ours.len() && theirs.starts_with(ours)
            }
            (Self::Capture(ours), Self::Capture(theirs)) => theirs.starts_with(ours),
            _ => false,
        }
    }

    fn common(&self, other: &Self) -> Option<Self> {
        match (self.covers(other), other.covers(self)) {
            (true, _) => Some(other.clone()),
            (_, true) => Some(self.clone()),
            _ => None,
        }
    }
}

fn literal(part: &str, last: bool) -> Result<String, (String, String)> {
    let wrong = |why: String| (why, "Write the path as upstream reads it.".to_owned());
    if part.contains('}') {
        return Err(wrong(format!(
            "{part:?} has a closing brace without an opening one"
        )));
    }
    if part.contains(['?', '#']) {
        return Err((
            format!("{part:?} is more than a path"),
            "Write conditions on the query as query = { name = \"*\" }.".into(),
        ));
    }
    if part.is_empty() {
        return match last {
            true => Ok(String::new()),
            false => Err(wrong("there is an empty segment (`//`)".into())),
        };
    }
    let reading = Reading::of(part).map_err(|why| wrong(why.trim_end_matches('.').to_owned()))?;
    match reading.ambiguity() {
        Some(why) => Err(wrong(why.trim_end_matches('.').to_owned())),
        None => Ok(reading.spelled().to_owned()),
    }
}

/// A scope's name with captures in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Template {
    /// The same for all.
    Fixed(Arc<str>),
    /// Literal texts and captures by their number.
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Capture(usize),
}

impl Template {
    /// Reads a template with the names of a pattern's captures. Fails with what is wrong and what to do.
    pub(super) fn parse(text: &str, names: &[String]) -> Result<Self, (String, String)> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err((
                    format!("{text:?} has a brace that does not close"),
                    "Write captures as {name}.".into(),
                ));
            };
            let name = name.strip_prefix('*').unwrap_or(name);
            let Some(number) = names.iter().position(|known| known == name) else {
                return Err((
                    format!("the path captures no {name:?}"),
                    match names {
                        [] => "The path has no captures; write a fixed name.".into(),
                        names => format!("The path captures {}.", names.join(", ")),
                    },
                ));
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Capture(number));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        // With something in each capture it must be a lease's name.
        let example: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Capture(_) => "x",
            })
            .collect();
        if let Err(why) = check_scope_name(&example) {
            return Err((
                format!("{text:?} makes no scope's name: {why}"),
                "Write a lease's name, such as \"ingest/{tenant}\".".into(),
            ));
        }
        Ok(match parts.as_slice() {
            [Part::Text(text)] => Self::Fixed(text.as_str().into()),
            _ => Self::Parts(parts),
        })
    }

    /// The scope's name; `None` if what was captured makes no name.
    pub(super) fn fill(&self, captures: &Captures<'_>) -> Option<Arc<str>> {
        thread_local! {
            static NAME: RefCell<String> = const { RefCell::new(String::new()) };
        }
        match self {
            Self::Fixed(name) => Some(name.clone()),
            Self::Parts(parts) => NAME.with_borrow_mut(|name| {
                name.clear();
                for part in parts {
                    name.push_str(match part {
                        Part::Text(text) => text,
                        Part::Capture(number) => captures.values[*number],
                    });
                }
                check_scope_name(name).is_ok().then(|| name.as_str().into())
            }),
        }
    }
}
