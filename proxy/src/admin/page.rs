//! A plain page for a person: what the scopes are doing now.

use super::{Answer, holders::Held};
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::Full;
use std::fmt::Write;

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
<meta http-equiv=refresh content=5><title>Palisade</title><style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;\
margin:2rem auto;max-width:60rem;padding:0 1rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;\
border-bottom:1px solid #8884}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}</style><h1>Palisade</h1>";

pub(super) fn page(scopes: &[Held], reasons: &[String]) -> Answer {
    let mut page = String::from(HEAD);
    if reasons.is_empty() {
        page.push_str("<p>Ready.</p>");
    } else {
        page.push_str("<p>Not ready:</p><ul>");
        reasons.iter().for_each(|reason| {
            let _ = write!(page, "<li>{}</li>", escape(reason));
        });
        page.push_str("</ul>");
    }
    page.push_str(
        "<table><thead><tr><th>Scope<th class=n>Floor<th>State<th>Holder<th>Host<th class=n>In flight<th class=n>Settling\
         <th class=n>Waiting<th class=n>Refused</thead><tbody>",
    );
    for held in scopes {
        let scope = &held.view;
        let _ = write!(
            page,
            "<tr><td>{}<td class=n>{}<td>{}<td>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}",
            escape(&scope.scope),
            scope
                .floor
                .map_or_else(|| "none".to_owned(), |floor| floor.to_string()),
            if scope.open {
                "open"
            } else {
                "raise under way"
            },
            escape(held.holder.as_deref().unwrap_or("-")),
            escape(held.host.as_deref().unwrap_or("-")),
            scope.in_flight,
            scope.settling,
            scope.waiting,
            scope.refused,
        );
    }
    page.push_str("</tbody></table></html>\n");
    let mut response = Response::new(Full::new(Bytes::from(page)));
    let format = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
