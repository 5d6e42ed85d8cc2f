//! Names in the text: a metric, a setting or a variable that a page speaks of exists.

use crate::markdown::{pages, top};
use palisade::config::keys::KEYS;
use std::{collections::BTreeSet, fs};

/// Crates' names look like metrics' names.
const CRATES: [&str; 4] = [
    "palisade_examples",
    "palisade_fence",
    "palisade_lease",
    "palisade_loadtest",
];

/// The words of each page, where `is_part` says what a word is made of.
fn words(is_part: impl Fn(char) -> bool) -> Vec<(String, String)> {
    let mut words = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page.path).expect("the page");
        words.extend(
            text.split(|c| !is_part(c))
                .filter(|word| !word.is_empty())
                .map(|word| (page.name(), word.to_owned())),
        );
    }
    words
}

/// The page "Reference" is compared with the programs by other tests.
fn reference() -> String {
    fs::read_to_string(top().join("docs/src/reference.md")).expect("the page")
}

#[test]
fn every_metric_that_a_page_names_exists() {
    let reference = reference();
    let metrics: BTreeSet<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `palisade_")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert!(metrics.len() > 20, "{metrics:?}");
    let mut seen = 0;
    for (page, word) in words(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        let Some(name) = word.strip_prefix("palisade_") else {
            continue;
        };
        // `palisade_…` stands for all of them.
        if name.is_empty() || CRATES.contains(&word.as_str()) {
            continue;
        }
        let plain = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(
            metrics.contains(name) || metrics.contains(plain),
            "{page}: there is no metric {word}"
        );
        seen += 1;
    }
    assert!(seen > 40, "{seen} names");
}

#[test]
fn every_setting_that_a_page_names_exists() {
    let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    let sections: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| Some(name.split_once('.')?.0))
        .collect();
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page.path).expect("the page");
        for span in text.split('`').skip(1).step_by(2) {
            let name = span.split([' ', '=']).next().unwrap_or_default();
            let Some((section, key)) = name.split_once('.') else {
                continue;
            };
            let is_key = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            // `tls.rs` is no setting, and `limits.` is all of them.
            if key.is_empty() {
                continue;
            }
            if sections.contains(section) && is_key && key != "rs" {
                assert!(
                    names.contains(name),
                    "{}: there is no setting {name}",
                    page.name()
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen} names");
}

#[test]
fn every_variable_that_a_page_names_exists() {
    let reference = reference();
    let settings: BTreeSet<String> = KEYS
        .iter()
        .map(|key| format!("PALISADE_{}", key.name.replace('.', "_").to_uppercase()))
        .collect();
    let mut seen = 0;
    for (page, word) in words(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
        // What only developers set is read by tests.
        if word.strip_prefix("PALISADE_").is_none_or(str::is_empty) || page == "DEVELOPERS.md" {
            continue;
        }
        assert!(
            settings.contains(&word) || reference.contains(&format!("{word}=]")),
            "{page}: there is no variable {word}"
        );
        seen += 1;
    }
    assert!(seen > 10, "{seen} names");
}
