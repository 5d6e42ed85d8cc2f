//! The book's pictures are what their descriptions say.

use crate::markdown::{pages, top};
use std::process::Command;

#[test]
fn every_picture_is_as_drawn() {
    let script = top().join("docs/pictures/draw.py");
    let output = Command::new("python3")
        .arg(script)
        .arg("--check")
        .output()
        .expect("python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// A picture says in words what it shows, for those who can't see it.
#[test]
fn every_picture_has_words() {
    for page in pages() {
        let text = std::fs::read_to_string(&page.path).expect("the page");
        for part in text.split("![").skip(1) {
            let words = part.split("](").next().unwrap_or_default();
            assert!(words.trim().len() > 10, "{}: ![{words}]", page.name());
        }
    }
}
