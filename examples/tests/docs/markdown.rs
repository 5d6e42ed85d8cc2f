//! As much of Markdown as our pages use: fenced blocks with the comment before them, links, headings.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A page of the README, the book, or another Markdown file of the project.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) blocks: Vec<Block>,
    /// Everything outside of blocks and of code spans.
    prose: String,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) language: String,
    /// What the comment before it says, without `<!--` and `-->`.
    pub(crate) comment: Option<String>,
    pub(crate) text: String,
}

/// The project's top folder.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a workspace")
        .to_owned()
}

/// All pages that people read.
pub(crate) fn pages() -> Vec<Page> {
    let top = top();
    let mut paths = Vec::new();
    for folder in [".", "examples", "docs/src", "docs/src/decisions"] {
        let entries = fs::read_dir(top.join(folder)).expect("a folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).expect("readable");
        let (blocks, prose) = take_apart(&text);
        Self {
            path,
            blocks,
            prose,
        }
    }

    /// Its name from the project's top.
    pub(crate) fn name(&self) -> String {
        let below = self.path.strip_prefix(top()).unwrap_or(&self.path);
        let name = below.display().to_string();
        name.trim_start_matches("./").to_owned()
    }

    /// The targets of its links.
    pub(crate) fn links(&self) -> Vec<&str> {
        let rest = self.prose.split("](").skip(1);
        rest.filter_map(|rest| Some(rest.split_once(')')?.0))
            .collect()
    }

    /// What its headings are called in links (GitHub's and mdBook's rule).
    pub(crate) fn anchors(&self) -> Vec<String> {
        let headings = self.prose.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| {
                let words = line.trim_start_matches('#').trim().to_lowercase();
                let kept = words
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                kept.map(|c| if c == ' ' { '-' } else { c }).collect()
            })
            .collect()
    }
}

fn take_apart(text: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose) = (Vec::new(), String::new());
    let mut comment = None;
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(mut block) = open.take() {
            if line.starts_with("```") {
                blocks.push(block);
            } else {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
        } else if let Some(language) = line.strip_prefix("```") {
            open = Some(Block {
                line: number + 1,
                language: language.trim().to_owned(),
                comment: comment.take(),
                text: String::new(),
            });
        } else {
            comment = line
                .strip_prefix("<!-- ")
                .and_then(|rest| rest.strip_suffix(" -->"))
                .map(str::to_owned);
            let outside_code = line.split('`').step_by(2);
            prose.extend(outside_code);
            prose.push('\n');
        }
    }
    assert!(open.is_none(), "a block is never closed");
    (blocks, prose)
}

#[test]
fn a_page_is_taken_apart() {
    let text = "# One & two\n\nSee [x](a.md) and `[no](b.md)`.\n\n<!-- run -->\n```console\n$ true\n```\n```toml\na = 1\n```\n";
    let (blocks, prose) = take_apart(text);
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].comment.as_deref(), Some("run"));
    assert_eq!(blocks[0].text, "$ true\n");
    assert_eq!((blocks[1].comment.as_deref(), blocks[1].line), (None, 9));
    let page = Page {
        path: PathBuf::new(),
        blocks,
        prose,
    };
    assert_eq!(page.links(), ["a.md"]);
    assert_eq!(page.anchors(), ["one--two"]);
}
