//! The report of a chaos run.

use super::{
    Page, ReportError, Timeline,
    chart::{Frame, LEFT, WIDTH, anchored, picture},
    palette::{APPLIED, BROKEN, FAULT, REFUSED, SERIES, TEXT, UNKNOWN},
    timeline::{Fate, Lane, Mark},
};
use crate::check::Property;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};
use std::{collections::BTreeSet, ops::Range};

/// Seconds of the closer look.
const CLOSE: f64 = 12.0;

/// Violations that are told in words.
const TOLD: usize = 5;

/// Writes it.
///
/// # Errors
/// If a picture can't be drawn.
pub fn report(run: &Timeline) -> Result<String, ReportError> {
    let proxy = if run.proxy.is_empty() {
        "a run"
    } else {
        &run.proxy
    };
    let mut page = Page::new(&format!("Chaos: {proxy}"));
    summary(run, &mut page);
    if run.scopes.is_empty() {
        checked(run, &mut page);
        return Ok(page.finish());
    }
    let whole = 0.0..run.end.max(1.0);
    page.heading("The whole run");
    legend(&mut page);
    pictures(run, &whole, &mut page)?;
    if run.end > 2.0 * CLOSE {
        let from = run.moment(CLOSE);
        page.heading(&format!("{CLOSE} seconds of it"));
        page.paragraph(if run.verdict.violations.is_empty() {
            "Where the most writes were refused or remained unknown."
        } else {
            "Around the first violation."
        });
        pictures(run, &(from..from + CLOSE), &mut page)?;
    }
    reasons(run, &mut page);
    checked(run, &mut page);
    Ok(page.finish())
}

fn summary(run: &Timeline, page: &mut Page) {
    let counts = &run.verdict.counts;
    let violations = run.verdict.violations.len();
    if let Some(damage) = &run.damage {
        page.verdict(
            false,
            &format!("The history can't be read to its end ({damage}): what follows is shown as far as it goes."),
        );
    } else if !run.ended {
        page.verdict(
            false,
            "The run was broken off: its history has no end. What follows is shown as far as it goes.",
        );
    }
    page.verdict(
        violations == 0,
        &match violations {
            0 => "No property was broken.".to_owned(),
            1 => "One violation.".to_owned(),
            n => format!("{n} violations."),
        },
    );
    for violation in run.verdict.violations.iter().take(TOLD) {
        page.paragraph(&format!("{}: {}", violation.property, violation.says));
    }
    if violations > TOLD {
        page.paragraph(&format!(
            "... and {} more, which `palisade-loadtest check --show {violations}` tells.",
            violations - TOLD
        ));
    }
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = Vec::new();
    if let Some(seed) = run.seed {
        rows.push(row("seed", seed.to_string()));
    }
    rows.extend([
        row("seconds", format!("{:.0}", run.end)),
        row("requests", counts.requests.to_string()),
        row("writes applied", counts.applied.to_string()),
        row("answered", counts.answered.to_string()),
        row("refused", counts.refused.to_string()),
        row("unknown", counts.unknown.to_string()),
        row("handovers", counts.handovers.to_string()),
        row("faults", counts.faults.to_string()),
        row("looks at floors", counts.floors.to_string()),
    ]);
    page.table(&["what", "how many"], &rows);
    if let Some(command) = &run.command {
        page.paragraph("The same plan of faults again:");
        page.verbatim(command);
    }
}

fn checked(run: &Timeline, page: &mut Page) {
    let rows: Vec<_> = Property::ALL
        .into_iter()
        .map(|property| {
            let broken = run.verdict.broken(property);
            let broken = broken.map_or("not looked at".to_owned(), |count| count.to_string());
            vec![property.to_string(), broken]
        })
        .collect();
    page.heading("What was checked");
    page.table(&["property", "violations"], &rows);
}

fn legend(page: &mut Page) {
    page.legend(&[
        (APPLIED.class, "●", "write applied by the datastore"),
        (REFUSED.class, "✕", "write refused"),
        (
            UNKNOWN.class,
            "▲",
            "write whose fate its worker does not know",
        ),
        (BROKEN.class, "◯", "violation"),
        (FAULT.class, "▬", "fault"),
        (
            SERIES[0].class,
            "▬",
            "lease held, until the next grant; a colour for each worker",
        ),
    ]);
    page.paragraph(
        "Each scope is a staircase: a step for each grant of its lease, from left to right in seconds, from bottom to top by token. \
         A write stands on the step of its token, so one below the highest step so far came late. Signs of one kind that fall on the \
         same point are drawn once; none is left out otherwise.",
    );
}

fn pictures(run: &Timeline, time: &Range<f64>, page: &mut Page) -> Result<(), ReportError> {
    if !run.faults.is_empty() {
        let svg = faults(run, time)?;
        page.picture(
            &svg,
            "The faults that there were, each from its beginning to its end.",
        );
    }
    let marks = run.marks();
    for (scope, lane) in &run.scopes {
        // One whose scope is not known concerns all.
        let here = |mark: &&Mark| mark.scope.as_ref().is_none_or(|other| other == scope);
        let marks: Vec<&Mark> = marks.iter().filter(here).collect();
        let svg = staircase(scope, lane, &marks, time)?;
        page.picture(
            &svg,
            &format!(
                "Scope {scope}: who held its lease when, and what became of the writes with each token."
            ),
        );
    }
    Ok(())
}

fn faults(run: &Timeline, time: &Range<f64>) -> Result<String, ReportError> {
    let seen = |from: f64, to: f64| to >= time.start && from <= time.end;
    let names: BTreeSet<&str> = run
        .faults
        .iter()
        .filter(|fault| seen(fault.from, fault.to.unwrap_or(run.end)))
        .map(|fault| fault.name.as_str())
        .collect();
    let names: Vec<&str> = names.into_iter().rev().collect();
    let rows = names.len().max(1);
    picture(56 + 17 * rows as u32, |canvas| {
        let frame = Frame {
            title: "Faults",
            x: "",
            left: LEFT,
            x_ticks: 12,
            y_ticks: 0,
        };
        let mut chart = frame.draw(
            canvas,
            time.clone(),
            0.0..rows as f64,
            &|seconds: &f64| format!("{seconds:.0} s"),
            &|_: &f64| String::new(),
        )?;
        let ink = FAULT.color();
        let bars = run.faults.iter().filter_map(|fault| {
            let to = fault.to.unwrap_or(run.end);
            let row = names.iter().position(|name| *name == fault.name)? as f64;
            // A kill has no length; it is still to be seen.
            let least = (time.end - time.start) / f64::from(WIDTH) * 2.0;
            let (from, to) = (fault.from.max(time.start), to.max(fault.from + least));
            seen(fault.from, to).then(|| {
                Rectangle::new(
                    [(from, row + 0.2), (to.min(time.end), row + 0.8)],
                    ink.filled(),
                )
            })
        });
        chart.draw_series(bars)?;
        let style = anchored(12, TEXT, HPos::Right, VPos::Center);
        for (row, name) in names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(time.start, row as f64 + 0.5));
            canvas.draw(&Text::new((*name).to_owned(), (x - 8, y), style.clone()))?;
        }
        Ok(())
    })
}

fn staircase(
    scope: &str,
    lane: &Lane,
    marks: &[&Mark],
    time: &Range<f64>,
) -> Result<String, ReportError> {
    let mut tokens: Vec<u64> = lane
        .grants
        .iter()
        .map(|grant| grant.token)
        .chain(lane.dots.iter().map(|dot| dot.token))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    let step = |token: u64| tokens.partition_point(|other| *other < token) as f64;
    let dots: Vec<_> = lane
        .dots
        .iter()
        .filter(|dot| time.contains(&dot.at))
        .collect();
    let shown = |from: f64, to: f64| to >= time.start && from <= time.end;
    let bars: Vec<_> = lane
        .grants
        .iter()
        .enumerate()
        .map(|(number, grant)| {
            let next = lane.grants.get(number + 1);
            (grant, next.map_or(f64::INFINITY, |next| next.at))
        })
        .filter(|(grant, to)| shown(grant.at, *to))
        .collect();
    let steps = dots
        .iter()
        .map(|dot| step(dot.token))
        .chain(bars.iter().map(|(grant, _)| step(grant.token)));
    let (low, high) = steps.fold((f64::INFINITY, 0.0_f64), |(low, high), step| {
        (low.min(step), high.max(step))
    });
    let low = if low.is_finite() { low } else { 0.0 };
    let height = (90.0 + 16.0 * (high - low + 1.0)).clamp(170.0, 420.0) as u32;
    picture(height, |canvas| {
        let frame = Frame {
            title: scope,
            x: "seconds",
            left: LEFT,
            x_ticks: 12,
            y_ticks: 8,
        };
        let label = |value: &f64| {
            let index = value.round();
            let whole = (value - index).abs() < 0.01 && index >= 0.0;
            let token = whole.then(|| tokens.get(index as usize)).flatten();
            token.map_or(String::new(), |token| format!("token {token}"))
        };
        let mut chart = frame.draw(
            canvas,
            time.clone(),
            low - 0.7..high + 0.7,
            &|seconds: &f64| format!("{seconds:.0}"),
            &label,
        )?;
        chart.draw_series(bars.iter().map(|(grant, to)| {
            let color = SERIES[grant.process as usize % SERIES.len()].color();
            let (from, to) = (grant.at.max(time.start), to.min(time.end));
            let y = step(grant.token);
            Rectangle::new([(from, y - 0.4), (to, y + 0.4)], color.mix(0.3).filled())
        }))?;
        for fate in [Fate::Applied, Fate::Unknown, Fate::Refused] {
            let mut drawn = BTreeSet::new();
            let points: Vec<_> = dots
                .iter()
                .filter(|dot| dot.fate == fate)
                .map(|dot| (dot.at, step(dot.token)))
                .filter(|at| drawn.insert(chart.backend_coord(at)))
                .collect();
            // By shape, and by colour as well.
            let points = points.into_iter();
            match fate {
                Fate::Applied => {
                    let filled = APPLIED.color().filled();
                    chart.draw_series(points.map(|at| Circle::new(at, 2, filled)))?;
                }
                Fate::Refused => {
                    let stroke = ShapeStyle::from(REFUSED.color()).stroke_width(2);
                    chart.draw_series(points.map(|at| Cross::new(at, 4, stroke)))?;
                }
                Fate::Unknown => {
                    let filled = UNKNOWN.color().filled();
                    chart.draw_series(points.map(|at| TriangleMarker::new(at, 5, filled)))?;
                }
            }
        }
        for mark in marks.iter().filter(|mark| time.contains(&mark.at)) {
            let at = (mark.at, mark.token.map_or(high, step));
            let ring = ShapeStyle::from(BROKEN.color()).stroke_width(3);
            chart.draw_series(std::iter::once(
                EmptyElement::at(at)
                    + Circle::new((0, 0), 9, ring)
                    + Text::new(
                        mark.says.clone(),
                        (12, -6),
                        anchored(13, BROKEN, HPos::Left, VPos::Top),
                    ),
            ))?;
        }
        Ok(())
    })
}

fn reasons(run: &Timeline, page: &mut Page) {
    page.heading("Refusals");
    let rows: Vec<_> = run
        .reasons
        .iter()
        .map(|((reason, status), (writes, reads))| {
            vec![
                reason.clone(),
                status.to_string(),
                writes.to_string(),
                reads.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        page.paragraph("None.");
    } else {
        page.table(&["reason", "status", "writes", "reads"], &rows);
    }
}
