//! The tables of the book against the programs' own.

use crate::markdown::top;
use palisade::{
    config::keys::{KEYS, ROUTE_KEYS},
    headers,
    refusal::Problem,
};
use std::fs;

/// A page of the book, line by line.
fn lines(page: &str) -> Vec<String> {
    let text = fs::read_to_string(top().join("docs/src").join(page)).expect("the page");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_table_of_settings_is_the_programs_own() {
    let lines = lines("configuration.md");
    let start = lines
        .iter()
        .position(|line| line == "| setting | value | default | meaning |")
        .expect("the table");
    let rows: Vec<&str> = lines[start + 2..]
        .iter()
        .map(String::as_str)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let own: Vec<String> = KEYS
        .iter()
        .map(|key| {
            let default = key.default.map_or(String::new(), |d| format!("`{d}`"));
            let form = key.form.replace('|', "\\|");
            format!("| `{}` | {form} | {default} | {} |", key.name, key.help)
        })
        .collect();
    let wanted = own.join("\n");
    assert!(rows == own, "the table has to be:\n{wanted}");
}

#[test]
fn the_table_of_a_routes_keys_is_the_programs_own() {
    let lines = lines("configuration.md");
    let start = lines
        .iter()
        .position(|line| line == "| setting | meaning |")
        .expect("the table");
    let rows = lines[start + 2..]
        .iter()
        .take_while(|line| line.starts_with('|'));
    let shown: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(shown, ROUTE_KEYS);
}

/// A field of ours is named as the program spells it, and each is in the table.
#[test]
fn the_table_of_headers_is_the_programs_own() {
    let shown: Vec<String> = lines("protocol.md")
        .iter()
        .filter_map(|line| line.strip_prefix("| `X-Fence-")?.split([':', '`']).next())
        .map(|rest| format!("x-fence-{}", rest.to_lowercase()))
        .collect();
    let own = [
        headers::TOKEN,
        headers::SCOPE,
        headers::OUTCOME,
        headers::HIGHEST,
    ];
    assert_eq!(shown, own.map(|name| name.to_string()));
}

#[test]
fn the_table_of_refusals_is_the_programs_own() {
    let lines = lines("protocol.md");
    let start = lines
        .iter()
        .position(|line| line == "| name | status | when |")
        .expect("the table");
    let rows = lines[start + 2..]
        .iter()
        .take_while(|line| line.starts_with('|'));
    let rows: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    assert_eq!(rows.len(), Problem::ALL.len());
    for problem in Problem::ALL {
        let (_, status) = rows
            .iter()
            .find(|(name, _)| name == problem.name())
            .unwrap_or_else(|| panic!("`{}` is not in the table", problem.name()));
        assert!(
            status.starts_with(problem.status().as_str()),
            "{}: {status}",
            problem.name()
        );
        assert_eq!(
            status.contains("Retry-After"),
            problem.retry_after().is_some(),
            "{}: {status}",
            problem.name()
        );
    }
}
