//! The parts of the page that change.

use super::{
    super::{
        holders::Held,
        view::{Found, View},
    },
    escape,
};
use crate::refusal::Recent;
use palisade_fence::Time;
use std::{fmt::Write, time::Duration};

/// Refusals that are listed.
const LISTED: usize = 30;

/// What there is to know of the proxy as a whole.
pub(in super::super) struct Facts {
    /// Why it is not ready; empty: it is.
    pub(in super::super) reasons: Vec<String>,
    /// Name and value, in the order in which they are shown.
    pub(in super::super) rows: Vec<(&'static str, String)>,
}

/// Each part with the `id` of its element.
pub(in super::super) fn parts(
    view: &View,
    facts: &Facts,
    scopes: &[Held],
    refusals: &[Recent],
    now: Time,
) -> Vec<(&'static str, String)> {
    let found = view.of_all(scopes);
    vec![
        ("ready", ready(&facts.reasons)),
        ("facts", list(&facts.rows)),
        ("found", count(&found, scopes.len())),
        ("rows", rows(&found, refusals, now)),
        ("pages", pages(view, &found)),
        ("refusals", last(refusals, now)),
    ]
}

fn ready(reasons: &[String]) -> String {
    if reasons.is_empty() {
        return "<p class=\"good\">Ready.</p>".to_owned();
    }
    let mut html = "<p class=\"bad\">Not ready:</p><ul class=\"bad\">".to_owned();
    for reason in reasons {
        let _ = write!(html, "<li>{}</li>", escape(reason));
    }
    html.push_str("</ul>");
    html
}

fn list(rows: &[(&'static str, String)]) -> String {
    let mut html = String::new();
    for (name, value) in rows {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    html
}

fn count(found: &Found<'_>, all: usize) -> String {
    let first = found.rows.len();
    if first == found.found && first == all {
        return format!("{all} in memory");
    }
    format!(
        "{} of {all} in memory, page {} of {}",
        found.found, found.page, found.pages
    )
}

fn rows(found: &Found<'_>, refusals: &[Recent], now: Time) -> String {
    if found.rows.is_empty() {
        return "<tr><td colspan=\"9\">None. A scope is here once a request has named it.</td></tr>".to_owned();
    }
    let mut html = String::new();
    for held in &found.rows {
        let scope = &held.view;
        let number = |number: u64| {
            if number == 0 {
                "-".to_owned()
            } else {
                number.to_string()
            }
        };
        let text = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), escape);
        let state = match (scope.open, scope.opens_in) {
            (true, _) => "<span class=\"good\">open</span>".to_owned(),
            (false, Some(wait)) => format!(
                "<span class=\"late\">raise under way, opens in {}</span>",
                age(wait)
            ),
            (false, None) => "<span class=\"late\">raise under way</span>".to_owned(),
        };
        let refused = refusals
            .iter()
            .find(|refusal| refusal.scope.as_deref() == Some(&*scope.scope));
        let refused = match refused {
            Some(last) => format!(
                "{}, last {} ago: {}",
                scope.refused,
                age(now.since(last.at)),
                last.problem.name()
            ),
            None => number(scope.refused),
        };
        let _ = write!(
            html,
            "<tr><th scope=\"row\" data-is=\"scope\">{}</th>",
            escape(&scope.scope)
        );
        let holder = match (held.holder.as_deref(), held.host.as_deref()) {
            (Some(holder), Some(host)) => format!(
                "{} <span class=\"aside\">on {}</span>",
                escape(holder),
                escape(host)
            ),
            (holder, host) => text(holder.or(host)),
        };
        for (is, class, cell) in [
            (
                "floor",
                "number",
                scope
                    .floor
                    .map_or_else(|| "none".to_owned(), |floor| floor.to_string()),
            ),
            ("state", "", state),
            (
                "since",
                "number",
                scope.since.map_or_else(|| "-".to_owned(), age),
            ),
            ("holder", "", holder),
            ("in flight", "number", number(scope.in_flight.into())),
            ("waiting", "number", number(scope.waiting as u64)),
            ("settling", "number", number(scope.settling.into())),
            ("refused", "", refused),
        ] {
            let _ = write!(html, "<td class=\"{class}\" data-is=\"{is}\">{cell}</td>");
        }
        html.push_str("</tr>");
    }
    html
}

fn pages(view: &View, found: &Found<'_>) -> String {
    if found.pages == 1 {
        return String::new();
    }
    let mut html = String::new();
    let mut link = |page: usize, words: &str, is: bool| {
        let query = escape(&view.query(page));
        // What can't be followed is no link, so that the keyboard passes over it.
        let _ = if is {
            write!(html, "<a href=\"?{query}\">{words}</a> ")
        } else {
            write!(html, "<span aria-disabled=\"true\">{words}</span> ")
        };
    };
    link(1, "First", found.page > 1);
    link(found.page.saturating_sub(1), "Previous", found.page > 1);
    link(found.page + 1, "Next", found.page < found.pages);
    link(found.pages, "Last", found.page < found.pages);
    html
}

fn last(refusals: &[Recent], now: Time) -> String {
    if refusals.is_empty() {
        return "<tr><td colspan=\"5\">None since the start.</td></tr>".to_owned();
    }
    let mut html = String::new();
    for refusal in refusals.iter().take(LISTED) {
        let _ = write!(
            html,
            "<tr><td data-is=\"ago\" class=\"number\">{}</td><td data-is=\"reason\" title=\"{}\">{}</td><td data-is=\"status\">{}</td>\
             <td data-is=\"scope\">{}</td><td data-is=\"token\" class=\"number\">{}</td></tr>",
            age(now.since(refusal.at)),
            escape(refusal.problem.title()),
            refusal.problem.name(),
            refusal.status,
            refusal
                .scope
                .as_deref()
                .map_or_else(|| "-".to_owned(), escape),
            refusal
                .token
                .map_or_else(|| "-".to_owned(), |token| token.to_string()),
        );
    }
    html
}

/// A duration, as coarse as one reads it: what stays the same need not be sent again.
pub(in super::super) fn age(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
