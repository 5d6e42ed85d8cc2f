//! The page "Problems" has a section for each problem of the proxy, with its status, outcome and title.

use crate::markdown::top;
use palisade::refusal::Problem;
use std::fs;

#[test]
fn every_problem_is_explained() {
    let page = fs::read_to_string(top().join("docs/src/problems.md")).expect("the page");
    let sections: Vec<(&str, &str)> = page
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .collect();
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    let own: Vec<&str> = Problem::ALL.iter().map(|problem| problem.name()).collect();
    assert_eq!(names, own, "sections in the order of `Problem::ALL`");
    for (problem, (name, text)) in Problem::ALL.into_iter().zip(sections) {
        let first = text.trim_start().lines().next().unwrap_or_default();
        let status = match problem {
            Problem::OutcomeUnknown => "502 or 504".to_owned(),
            _ => problem.status().as_str().to_owned(),
        };
        let again = match problem.retry_after() {
            Some(_) => ", with `Retry-After`",
            None => "",
        };
        let wanted = format!(
            "**{}.** {status}, outcome `{}`{again}.",
            problem.title(),
            problem.outcome().as_str()
        );
        assert_eq!(first, wanted, "{name}");
        for kind in ["Cause", "Client", "Operator"] {
            let line = text.lines().find(|l| l.starts_with(&format!("- {kind}: ")));
            assert!(line.is_some(), "{name} has no `- {kind}: `");
        }
    }
}
