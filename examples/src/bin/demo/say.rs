//! The demo's words, one printed line a call. Colours only on a terminal, and not where `NO_COLOR` is set.
#![expect(
    clippy::print_stdout,
    reason = "the story on standard output is what this program is for"
)]

use palisade_examples::worker::Answer;
use std::io::{IsTerminal, Write, stdout};

/// How a piece of text is to look: ANSI "select graphic rendition" numbers.
#[derive(Clone, Copy)]
enum Look {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
}

fn paint(look: Look, text: &str) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some() || !stdout().is_terminal();
    if plain {
        return text.to_owned();
    }
    format!("\x1b[{}m{text}\x1b[0m", look as u8)
}

fn line(text: &str) {
    println!("{text}");
    // The story is watched while it happens, through a pipe too.
    let _ = stdout().flush();
}

/// A heading, with an empty line before it.
pub(crate) fn heading(text: &str) {
    line(&format!("\n{}\n", paint(Look::Bold, text)));
}

/// A name and what it is.
pub(crate) fn fact(name: &str, what: &str, remark: &str) {
    line(&format!(
        "  {name:<10} {what:<44} {}",
        paint(Look::Dim, remark)
    ));
}

/// Something that a worker does, or that is done to it.
pub(crate) fn step(who: &str, what: &str) {
    line(&format!("  {}  {what}", paint(Look::Bold, who)));
}

/// More about the step before.
pub(crate) fn remark(text: &str) {
    line(&format!("     {}", paint(Look::Dim, text)));
}

/// A write and what came of it.
pub(crate) fn write(who: &str, text: &str, token: u64, answer: &Answer) {
    let status = answer.response.lines().next().unwrap_or_default();
    let status = status
        .split_once(' ')
        .map_or(status, |(_version, status)| status);
    let look = if answer.status < 300 {
        Look::Green
    } else {
        Look::Red
    };
    step(
        who,
        &format!(
            "PUT report.txt  {:<22}  X-Fence-Token: {token:<4} ->  {}",
            format!("\"{text}\""),
            paint(look, status)
        ),
    );
}

/// The headers and the problem document of a refusal.
pub(crate) fn refusal(answer: &Answer) {
    for name in ["Content-Type", "X-Fence-Outcome", "X-Fence-Highest"] {
        if let Some(value) = answer.header(name) {
            remark(&format!("| {name}: {value}"));
        }
    }
    let Ok(serde_json::Value::Object(problem)) = serde_json::from_str(answer.body()) else {
        return remark(&format!("| {}", answer.body().trim()));
    };
    remark("| {");
    // In the order in which a person reads, not the alphabet's.
    let first = ["type", "title", "status", "detail", "scope", "token"];
    let named = first
        .iter()
        .filter_map(|&name| Some((name, problem.get(name)?)));
    let others = problem
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .filter(|(name, _)| !first.contains(name));
    let members: Vec<String> = named
        .chain(others)
        .map(|(name, value)| format!("|   \"{name}\": {value}"))
        .collect();
    let last = members.len().saturating_sub(1);
    for (index, member) in members.iter().enumerate() {
        remark(&format!("{member}{}", if index < last { "," } else { "" }));
    }
    remark("| }");
}

/// How a story ended, in green or red by whether this is a good end for the one who wrote it.
pub(crate) fn ending(text: &str, good: bool) {
    let look = if good { Look::Green } else { Look::Red };
    line(&format!("\n  {}", paint(look, text)));
}

/// Words as they are.
pub(crate) fn plain(text: &str) {
    line(text);
}
