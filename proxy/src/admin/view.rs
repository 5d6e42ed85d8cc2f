//! Which of the scopes somebody wants to see: search, filter, page. Done here and not in the browser: there may be many.

use super::holders::Held;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Scopes on a page, where nobody says otherwise; and at most.
const SIZE: usize = 50;
const MOST: usize = 1_000;

/// Which scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Show {
    /// All of them.
    #[default]
    All,
    /// Those where something is under way: a raise, writes, writes that settle, requests that wait.
    Busy,
    /// Those that refused something.
    Refused,
}

impl Show {
    pub(super) const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::All, "all", "all scopes"),
        (Self::Busy, "busy", "with something under way"),
        (Self::Refused, "refused", "that refused something"),
    ];

    fn shows(self, held: &Held) -> bool {
        let view = &held.view;
        match self {
            Self::All => true,
            Self::Busy => !view.open || view.in_flight > 0 || view.settling > 0 || view.waiting > 0,
            Self::Refused => view.refused > 0,
        }
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(show, ..)| *show == self)
            .map_or("all", |(_, name, _)| name)
    }
}

/// What a query asks for. What it does not understand is as if it were not there: the query comes from links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// A part of a scope's, holder's or host's name, in any case.
    pub(super) search: String,
    pub(super) show: Show,
    /// From 1.
    pub(super) page: usize,
    pub(super) size: usize,
}

impl Default for View {
    fn default() -> Self {
        Self {
            search: String::new(),
            show: Show::All,
            page: 1,
            size: SIZE,
        }
    }
}

/// A page of what was found.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) rows: Vec<&'a Held>,
    /// On all pages.
    pub(super) found: usize,
    pub(super) pages: usize,
    /// The one that this is: the last one, where a later one was asked for.
    pub(super) page: usize,
}

impl View {
    /// From a query as a form sends it.
    pub(super) fn of(query: Option<&str>) -> Self {
        let mut view = Self::default();
        for pair in query.unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy();
            match name {
                "search" => view.search = value.trim().to_owned(),
                "show" => {
                    let show = Show::ALL.iter().find(|(_, name, _)| *name == value);
                    view.show = show.map_or(Show::All, |(show, ..)| *show);
                }
                "page" => view.page = value.parse().unwrap_or(1).max(1),
                "size" => view.size = value.parse().unwrap_or(SIZE).clamp(1, MOST),
                _ => {}
            }
        }
        view
    }

    /// The query of another page of the same.
    pub(super) fn query(&self, page: usize) -> String {
        let mut query = Vec::new();
        if !self.search.is_empty() {
            let search = utf8_percent_encode(&self.search, NON_ALPHANUMERIC);
            query.push(format!("search={search}"));
        }
        if self.show != Show::All {
            query.push(format!("show={}", self.show.name()));
        }
        if self.size != SIZE {
            query.push(format!("size={}", self.size));
        }
        query.push(format!("page={page}"));
        query.join("&")
    }

    /// Looks through all scopes, which are in order.
    pub(super) fn of_all<'a>(&self, scopes: &'a [Held]) -> Found<'a> {
        let search = self.search.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&search);
        let matches = |held: &&Held| {
            let named = || {
                has(&held.view.scope)
                    || held.holder.as_deref().is_some_and(has)
                    || held.host.as_deref().is_some_and(has)
            };
            self.show.shows(held) && (search.is_empty() || named())
        };
        let all: Vec<&Held> = scopes.iter().filter(matches).collect();
        let pages = all.len().div_ceil(self.size).max(1);
        let page = self.page.min(pages);
        let rows = all.iter().skip((page - 1) * self.size).take(self.size);
        Found {
            rows: rows.copied().collect(),
            found: all.len(),
            pages,
            page,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{authority::Holders, gate::ScopeView};

    fn scopes(count: usize) -> Vec<Held> {
        let scope = |number: usize| ScopeView {
            scope: format!("jobs/{number:05}").into(),
            floor: Some(number as u64),
            open: number != 7,
            since: None,
            in_flight: 0,
            settling: 0,
            waiting: 0,
            requests: 0,
            refused: u64::from(number == 9),
            opens_in: None,
        };
        (0..count)
            .map(|number| Held::new(scope(number), &Holders::default()))
            .collect()
    }

    fn names(view: &str, scopes: &[Held]) -> Vec<String> {
        let found = View::of(Some(view)).of_all(scopes);
        found
            .rows
            .iter()
            .map(|held| held.view.scope.to_string())
            .collect()
    }

    #[test]
    fn search_filter_and_page() {
        let scopes = scopes(10_000);
        assert_eq!(names("search=S%2F0123", &scopes).len(), 10);
        assert_eq!(names("search=jobs%2F09999", &scopes), ["jobs/09999"]);
        assert_eq!(names("search=nobody", &scopes), [""; 0]);
        assert_eq!(names("show=busy", &scopes), ["jobs/00007"]);
        assert_eq!(names("show=refused&search=0000", &scopes), ["jobs/00009"]);
        assert_eq!(names("page=2&size=3", &scopes)[0], "jobs/00003");
        let last = View::of(Some("page=99999")).of_all(&scopes);
        assert_eq!(
            (last.page, last.pages, last.rows.len(), last.found),
            (200, 200, 50, 10_000)
        );
        let none = View::of(None).of_all(&[]);
        assert_eq!((none.page, none.pages, none.found), (1, 1, 0));
    }

    #[test]
    fn nonsense_is_as_if_it_were_not_there() {
        for query in ["page=0", "page=-1&size=x", "=&&=", "show=%ff", "size="] {
            assert_eq!(View::of(Some(query)), View::default(), "{query}");
        }
    }

    #[test]
    fn the_query_of_another_page_says_the_same() {
        let view = View {
            search: "a&b=c+d \"é".to_owned(),
            show: Show::Busy,
            page: 4,
            size: 7,
        };
        assert_eq!(View::of(Some(&view.query(4))), view);
    }
}
