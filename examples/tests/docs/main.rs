//! README and book keep their word: each command runs, each configuration is good, each link leads somewhere. The page
//! "How it is known to work" says how a page marks its blocks.

mod markdown;
mod names;
mod pictures;
mod problems;
mod programs;
mod reference;
mod shell;

use markdown::{Block, Page, pages, top};
use palisade_loadtest::servers::program;
use shell::Shell;
use std::{fs, process::Command};
use tempfile::TempDir;

#[tokio::test]
async fn every_command_on_a_page_runs() {
    let mut run = 0;
    for page in pages() {
        if page.blocks.iter().any(is_run) {
            run += play(&page).await;
        }
    }
    assert!(
        run >= 5,
        "{run} blocks were run: are the comments still there?"
    );
}

/// Whether this block asks to be run.
fn is_run(block: &Block) -> bool {
    let comment = block.comment.as_deref().unwrap_or_default();
    comment == "run" || comment.starts_with("run ")
}

/// Runs a page's commands from top to bottom; gives how many blocks that were.
async fn play(page: &Page) -> usize {
    let mut shell = Shell::start().await;
    let mut run = 0;
    for block in &page.blocks {
        let place = format!("{}:{}", page.name(), block.line);
        let comment = block.comment.as_deref().unwrap_or_default();
        if let Some(name) = comment.strip_prefix("file: ") {
            shell.file(name, block);
        } else if let Some(until) = comment.strip_prefix("run in the background until ") {
            shell.run_in_background(&place, block, until);
            run += 1;
        } else if comment == "run" {
            shell.run(&place, block);
            run += 1;
        } else {
            assert!(!is_run(block), "{place}: no such way to run: {comment}");
        }
    }
    run
}

#[test]
fn every_block_of_commands_says_how_it_is_tested() {
    for page in pages() {
        for block in &page.blocks {
            let place = format!("{}:{}", page.name(), block.line);
            let comment = block.comment.as_deref().unwrap_or_default();
            let known = is_run(block) || comment.starts_with("not run: ");
            match block.language.as_str() {
                "console" => assert!(known, "{place}: no comment says how it is run"),
                "toml" | "text" | "json" => {}
                other => panic!("{place}: blocks of `{other}` are tested by nobody"),
            }
        }
    }
}

#[test]
fn every_configuration_passes_palisade_check() {
    let mut checked = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "toml") {
            let folder = TempDir::new().expect("a folder");
            let file = folder.path().join("palisade.toml");
            let swaps = shell::swaps(&folder, 2379, 9000);
            fs::write(&file, shell::swap(&swaps, &block.text)).expect("written");
            let output = Command::new(program("palisade"))
                .args(["check", "--config"])
                .arg(&file)
                .output()
                .expect("palisade");
            assert!(
                output.status.success(),
                "{}:{}: {}",
                page.name(),
                block.line,
                String::from_utf8_lossy(&output.stderr)
            );
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} configurations");
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    for page in &pages {
        for link in page.links() {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.path.parent().expect("a folder");
            let target = if file.is_empty() {
                page.path.clone()
            } else {
                folder.join(file)
            };
            let target = target
                .canonicalize()
                .unwrap_or_else(|error| panic!("{}: {link}: {error}", page.name()));
            let headings = pages
                .iter()
                .find(|page| page.path.canonicalize().is_ok_and(|path| path == target))
                .map(Page::anchors);
            assert!(
                anchor.is_empty() || headings.is_some_and(|h| h.iter().any(|h| h == anchor)),
                "{}: {link}: no such heading",
                page.name()
            );
        }
    }
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let pages = pages();
    let summary = pages
        .iter()
        .find(|page| page.name() == "docs/src/SUMMARY.md")
        .expect("a summary");
    let listed = summary.links();
    for page in &pages {
        let name = page.name();
        if let Some(name) = name.strip_prefix("docs/src/")
            && name != "SUMMARY.md"
        {
            assert!(listed.contains(&name), "{name} is not in SUMMARY.md");
        }
    }
}

/// A test is named as `file.rs::function`, from the project's top.
#[test]
fn every_test_that_a_page_names_exists() {
    for page in pages() {
        let text = fs::read_to_string(&page.path).expect("the page");
        let spans = text.split('`').skip(1).step_by(2);
        let tests = spans.filter_map(|span| span.split_once(".rs::"));
        for (file, function) in tests {
            let source = fs::read_to_string(top().join(format!("{file}.rs")))
                .unwrap_or_else(|error| panic!("{}: {file}.rs: {error}", page.name()));
            assert!(
                source.contains(&format!("fn {function}(")),
                "{}: {file}.rs has no {function}",
                page.name()
            );
        }
    }
}

#[test]
fn no_incident_is_forgotten() {
    let text = fs::read_to_string(top().join("docs/src/incidents.md")).expect("the page");
    for number in 1..=20 {
        for kind in ["L", "F"] {
            assert!(
                text.contains(&format!("\n| {kind}{number} |")),
                "{kind}{number}"
            );
        }
    }
}
