//! The report of a bench.

use super::{
    Page, ReportError,
    chart::{Frame, anchored, picture},
    palette::{AXIS, GOAL, Ink, SERIES, TEXT},
};
use crate::bench::{
    bars,
    record::{Measured, Record},
};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

/// Writes it.
///
/// # Errors
/// If there is nothing in it, or a picture can't be drawn.
pub fn report(record: &Record) -> Result<String, ReportError> {
    if record.rows.is_empty() {
        return Err(ReportError::Empty("the bench has no rows"));
    }
    let mut page = Page::new("Bench: what a request costs");
    page.paragraph(&format!(
        "{}, on {}, load average {:.1} when it began.",
        record.date, record.machine, record.load_average
    ));
    page.verbatim(&record.command);
    let proxies = proxies(record);
    page.heading("Processor time for a request");
    page.paragraph(
        "User and kernel time of all threads of the proxy, by the kernel's own account, divided by the requests: the median of the \
         rounds, and from the least to the most of them. What else runs on the machine changes the times; ratios within one round \
         change less.",
    );
    let signs: Vec<_> = proxies
        .iter()
        .enumerate()
        .map(|(number, proxy)| (ink(number).class, "▬", *proxy))
        .chain([(GOAL.class, "┃", "at most here for Palisade: its goal")])
        .collect();
    page.legend(&signs);
    let loads = loads(record);
    page.picture(
        &cpu(record, &loads, &proxies)?,
        "Processor time for a request, in microseconds: less is better.",
    );
    page.table(
        &[
            "work",
            "connections",
            "Palisade to",
            "ratio",
            "least to most",
            "goal",
            "",
        ],
        &ratios(record),
    );
    page.heading("Latency");
    page.paragraph(
        "How long requests took, by percentile. In a closed loop (as fast as they are answered) a slow proxy is also asked less \
         often; at a fixed rate each request counts from when it was due.",
    );
    page.legend(&signs[..proxies.len()]);
    for load in &loads {
        page.picture(
            &latency(record, load, &proxies)?,
            &format!(
                "{}: latency in microseconds at each percentile.",
                load.name()
            ),
        );
    }
    page.heading("Figures");
    page.table(
        &[
            "work",
            "connections",
            "proxy",
            "CPU us",
            "requests/s",
            "p50 us",
            "p99 us",
            "MiB",
            "system calls",
            "failed",
        ],
        &record.rows.iter().map(figures).collect::<Vec<_>>(),
    );
    Ok(page.finish())
}

/// A load, as it tells rows apart.
#[derive(Clone, Debug, PartialEq)]
struct Load {
    work: String,
    connections: usize,
    rate: Option<f64>,
}

impl Load {
    fn of(row: &Measured) -> Self {
        Self {
            work: row.work.clone(),
            connections: row.connections,
            rate: row.rate,
        }
    }

    fn name(&self) -> String {
        let pace = self
            .rate
            .map_or(String::new(), |rate| format!(", {rate:.0} a second"));
        format!("{} x {}{pace}", self.work, self.connections)
    }
}

fn loads(record: &Record) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for row in &record.rows {
        let load = Load::of(row);
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

fn proxies(record: &Record) -> Vec<&str> {
    let mut proxies: Vec<&str> = Vec::new();
    for row in &record.rows {
        if !proxies.contains(&row.proxy.as_str()) {
            proxies.push(&row.proxy);
        }
    }
    proxies
}

fn ink(number: usize) -> Ink {
    SERIES[number % SERIES.len()]
}

fn row<'a>(record: &'a Record, load: &Load, proxy: &str) -> Option<&'a Measured> {
    record
        .rows
        .iter()
        .find(|row| row.proxy == proxy && Load::of(row) == *load)
}

fn figures(row: &Measured) -> Vec<String> {
    let middle = |of: fn(&crate::bench::Figures) -> f64| row.spread(of).0;
    let failed: u64 = row.rounds.iter().map(|round| round.failed).sum();
    vec![
        row.work.clone(),
        row.connections.to_string(),
        row.proxy.clone(),
        format!("{:.1}", middle(|f| f.cpu)),
        format!("{:.0}", middle(|f| f.rate)),
        format!("{:.0}", middle(|f| f.p50)),
        format!("{:.0}", middle(|f| f.p99)),
        format!("{:.1}", middle(|f| f.memory as f64 / 1_048_576.0)),
        row.syscalls.map_or(String::new(), |n| format!("{n:.2}")),
        failed.to_string(),
    ]
}

fn ratios(record: &Record) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for other in record.rows.iter().filter(|row| row.proxy != "palisade") {
        let Some(own) = row(record, &Load::of(other), "palisade") else {
            continue;
        };
        let (middle, least, most) = own.ratio(other, |figures| figures.cpu);
        let goal = bars::cpu(&other.work, &other.proxy);
        rows.push(vec![
            other.work.clone(),
            other.connections.to_string(),
            other.proxy.clone(),
            format!("{middle:.2}"),
            format!("{least:.2} to {most:.2}"),
            goal.map_or(String::new(), |goal| format!("{goal:.2}")),
            goal.map_or(String::new(), |goal| {
                // As it is printed: nobody reads a third digit here.
                if (middle * 100.0).round() <= (goal * 100.0).round() {
                    "kept"
                } else {
                    "missed"
                }
                .to_owned()
            }),
        ]);
    }
    rows
}

/// Bars that lie, a group for each load, each on a scale of its own: a GET and a megabyte have none in common.
fn cpu(record: &Record, loads: &[Load], proxies: &[&str]) -> Result<String, ReportError> {
    let group = 44 + 20 * proxies.len() as u32;
    picture(group * loads.len() as u32, |canvas| {
        for (area, load) in canvas.split_evenly((loads.len(), 1)).iter().zip(loads) {
            let rows: Vec<_> = proxies
                .iter()
                .enumerate()
                .filter_map(|(number, proxy)| Some((number, row(record, load, proxy)?)))
                .collect();
            let most = rows
                .iter()
                .map(|(_, row)| row.spread(|figures| figures.cpu).2)
                .fold(1.0_f64, f64::max);
            let count = rows.len() as f64;
            let frame = Frame {
                title: "",
                x: "",
                left: 170,
                x_ticks: 8,
                y_ticks: 0,
            };
            let mut chart = frame.draw(
                area,
                0.0..most * 1.08,
                0.0..count,
                &|micros: &f64| format!("{micros:.0} us"),
                &|_: &f64| String::new(),
            )?;
            let name = anchored(13, TEXT, HPos::Right, VPos::Center);
            let (x, y) = chart.backend_coord(&(0.0, count / 2.0));
            let (left, top) = canvas_offset(area);
            area.draw(&Text::new(load.name(), (x - left - 10, y - top), name))?;
            for (place, (number, row)) in rows.iter().enumerate() {
                let y = count - place as f64;
                let (middle, least, most) = row.spread(|figures| figures.cpu);
                let color = ink(*number).color();
                chart.draw_series(std::iter::once(Rectangle::new(
                    [(0.0, y - 0.82), (middle, y - 0.18)],
                    color.filled(),
                )))?;
                chart.draw_series(std::iter::once(PathElement::new(
                    vec![(least, y - 0.5), (most, y - 0.5)],
                    ShapeStyle::from(AXIS.color()).stroke_width(2),
                )))?;
                if row.proxy == "palisade"
                    && let Some(goal) = goal(record, load)
                {
                    chart.draw_series(std::iter::once(PathElement::new(
                        vec![(goal, y - 0.98), (goal, y - 0.02)],
                        ShapeStyle::from(GOAL.color()).stroke_width(4),
                    )))?;
                }
            }
        }
        Ok(())
    })
}

/// Where the strictest goal of a load lies, in microseconds of this run.
fn goal(record: &Record, load: &Load) -> Option<f64> {
    let goals = record.rows.iter().filter(|row| Load::of(row) == *load);
    goals
        .filter_map(|row| {
            let ratio = bars::cpu(&row.work, &row.proxy)?;
            Some(ratio * row.spread(|figures| figures.cpu).0)
        })
        .min_by(f64::total_cmp)
}

/// Where an area begins in its picture.
fn canvas_offset(area: &super::chart::Canvas<'_>) -> (i32, i32) {
    area.get_base_pixel()
}

fn latency(record: &Record, load: &Load, proxies: &[&str]) -> Result<String, ReportError> {
    let rows: Vec<_> = proxies
        .iter()
        .enumerate()
        .filter_map(|(number, proxy)| Some((number, row(record, load, proxy)?)))
        .collect();
    // As far as there are samples for: the last quantile of few is the largest of them all.
    let nines = |quantile: f64| -(1.0 - quantile).log10();
    let last = 4.0;
    let points = |row: &Measured| -> Vec<(f64, f64)> {
        row.latency
            .iter()
            .filter(|(quantile, micros)| nines(*quantile) <= last + 0.01 && *micros > 0.0)
            .map(|(quantile, micros)| (nines(*quantile), *micros))
            .collect()
    };
    let all: Vec<f64> = rows
        .iter()
        .flat_map(|(_, row)| points(row))
        .map(|(_, micros)| micros)
        .collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min).min(1e6);
    let most = all.iter().copied().fold(1.0, f64::max);
    let percent = |nines: &f64| {
        let whole = (nines - nines.round()).abs() < 0.01;
        match nines.round() as i64 {
            0 if whole => "0 %".to_owned(),
            1 if whole => "90 %".to_owned(),
            2 if whole => "99 %".to_owned(),
            3 if whole => "99.9 %".to_owned(),
            4 if whole => "99.99 %".to_owned(),
            _ => String::new(),
        }
    };
    let title = load.name();
    picture(270, |canvas| {
        let frame = Frame {
            title: &title,
            x: "percentile",
            left: 80,
            x_ticks: 5,
            y_ticks: 6,
        };
        let mut chart = frame.draw(
            canvas,
            0.0..last,
            (least * 0.8..most * 1.2).log_scale(),
            &percent,
            &|micros: &f64| {
                if *micros < 10_000.0 {
                    format!("{micros:.0} us")
                } else {
                    format!("{:.0} ms", micros / 1e3)
                }
            },
        )?;
        for (number, row) in &rows {
            let color = ink(*number).color();
            chart.draw_series(LineSeries::new(
                points(row),
                ShapeStyle::from(color).stroke_width(2),
            ))?;
            // The proxies are told apart by sign, too.
            let marks = points(row);
            if number % 2 == 0 {
                chart.draw_series(
                    marks
                        .into_iter()
                        .map(|at| Circle::new(at, 3, color.filled())),
                )?;
            } else {
                chart.draw_series(
                    marks
                        .into_iter()
                        .map(|at| TriangleMarker::new(at, 5, color.filled())),
                )?;
            }
        }
        Ok(())
    })
}
