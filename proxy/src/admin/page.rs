//! The status page, for a person: what the proxy and its scopes are doing now. Rendered here, in parts that are sent again as they
//! change; a browser without scripts gets all of it too. Names of scopes and holders come from outside: they are text, and the
//! page's policy lets no script of theirs run.

mod parts;

use super::{
    Answer, bytes,
    view::{Show, View},
};
use http::{HeaderValue, StatusCode, header};
pub(super) use parts::{Facts, age, parts};
use std::fmt::Write;

/// What a browser may do with it: its own style and script, its own events, and nothing else (CSP Level 3).
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

/// The page with these parts.
pub(super) fn page(view: &View, parts: &[(&'static str, String)]) -> Answer {
    let part = |wanted: &str| {
        let found = parts.iter().find(|(id, _)| *id == wanted);
        found.map_or("", |(_, html)| html.as_str())
    };
    let mut options = String::new();
    for (show, name, words) in Show::ALL {
        let selected = if show == view.show { " selected" } else { "" };
        let _ = write!(
            options,
            "<option value=\"{name}\"{selected}>{words}</option>"
        );
    }
    let html = include_str!("page/page.html")
        .replace("{ready}", part("ready"))
        .replace("{facts}", part("facts"))
        .replace("{found}", part("found"))
        .replace("{rows}", part("rows"))
        .replace("{pages}", part("pages"))
        .replace("{refusals}", part("refusals"))
        .replace("{options}", &options)
        // Last, since what somebody typed may look like one of these.
        .replace("{search}", &escape(&view.search));
    let mut answer = asset("text/html; charset=utf-8", html);
    let fields = answer.headers_mut();
    fields.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    fields.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    answer
}

/// The page's style.
pub(super) fn style() -> Answer {
    asset(
        "text/css; charset=utf-8",
        include_str!("page/page.css").to_owned(),
    )
}

/// The page's script.
pub(super) fn script() -> Answer {
    asset(
        "text/javascript; charset=utf-8",
        include_str!("page/page.js").to_owned(),
    )
}

fn asset(format: &'static str, content: String) -> Answer {
    let mut answer = bytes(StatusCode::OK, format, content);
    let fields = answer.headers_mut();
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}

/// Text, so that it is text within an element and within quotes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Could change in which order the rest of a line is read (Unicode, bidirectional controls).
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                escaped.push('\u{fffd}')
            }
            c => escaped.push(c),
        }
    }
    escaped
}
