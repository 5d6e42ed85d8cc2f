//! The report: one HTML file that needs nothing else, with pictures in SVG. It works without scripts, in light and dark, on paper
//! and on a phone.

pub mod bench;
pub mod chaos;
mod chart;
mod palette;
mod timeline;

pub use timeline::Timeline;

use std::{borrow::Cow, fmt::Write};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A picture could not be drawn.
    #[error("a picture could not be drawn: {0}")]
    Draw(String),
    /// There is nothing to show.
    #[error("nothing to show: {0}")]
    Empty(&'static str),
}

impl<E: std::error::Error + Send + Sync> From<plotters::drawing::DrawingAreaErrorKind<E>>
    for ReportError
{
    fn from(error: plotters::drawing::DrawingAreaErrorKind<E>) -> Self {
        Self::Draw(error.to_string())
    }
}

/// A page that is being written.
pub(crate) struct Page {
    title: String,
    body: String,
}

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        Self {
            title: escape(title).into_owned(),
            body: String::new(),
        }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        self.push(&format!("<h2>{}</h2>\n", escape(text)));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.push(&format!("<p>{}</p>\n", escape(text)));
    }

    /// A line that stands out: how it ended, or what is missing.
    pub(crate) fn verdict(&mut self, good: bool, text: &str) {
        let class = if good { "good" } else { "bad" };
        self.push(&format!(
            "<p class=\"verdict {class}\">{}</p>\n",
            escape(text)
        ));
    }

    /// Text as it is, line by line.
    pub(crate) fn verbatim(&mut self, text: &str) {
        self.push(&format!("<pre>{}</pre>\n", escape(text)));
    }

    /// A picture, and what it shows in words.
    pub(crate) fn picture(&mut self, svg: &str, shows: &str) {
        let shows = escape(shows);
        let svg = svg.replacen(
            "<svg ",
            &format!("<svg role=\"img\" aria-label=\"{shows}\" "),
            1,
        );
        self.push(&format!(
            "<figure><div class=\"wide\">{svg}</div><figcaption>{shows}</figcaption></figure>\n"
        ));
    }

    /// Signs and colours, and what they mean: pairs of a class of the style and words.
    pub(crate) fn legend(&mut self, entries: &[(&str, &str, &str)]) {
        self.push("<ul class=\"legend\">");
        for (class, sign, means) in entries {
            let means = escape(means);
            self.push(&format!(
                "<li><span class=\"{class}\" aria-hidden=\"true\">{sign}</span> {means}</li>"
            ));
        }
        self.push("</ul>\n");
    }

    /// A table; what looks like a number stands to the right.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.push("<div class=\"wide\"><table><thead><tr>");
        for cell in head {
            self.push(&format!("<th scope=\"col\">{}</th>", escape(cell)));
        }
        self.push("</tr></thead><tbody>\n");
        for row in rows {
            self.push("<tr>");
            for cell in row {
                let number = cell.starts_with(|c: char| c.is_ascii_digit());
                let class = if number { " class=\"number\"" } else { "" };
                self.push(&format!("<td{class}>{}</td>", escape(cell)));
            }
            self.push("</tr>\n");
        }
        self.push("</tbody></table></div>\n");
    }

    fn push(&mut self, html: &str) {
        self.body.push_str(html);
    }

    /// The whole file.
    pub(crate) fn finish(self) -> String {
        let Self { title, body } = self;
        let mut page = String::with_capacity(body.len() + 8_000);
        page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        // Nothing is fetched and no script runs, whatever the names in a history may be.
        page.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n");
        let style = include_str!("html/style.css");
        let _ = write!(
            page,
            "<title>{title}</title>\n<style>\n{style}\n{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n",
            palette::style()
        );
        page
    }
}

/// Text, so that it is text.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['<', '>', '&', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}
