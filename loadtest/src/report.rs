//! What the program prints.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what this is for"
)]

use palisade_loadtest::{
    bench::{
        Kind, Row,
        bars::{self, Bar, Goal},
        flood::{self, Side},
        growth,
    },
    chaos::Chaos,
    check::{Property, Verdict},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, stderr},
    path::Path,
    time::Duration,
};

/// An error with its causes.
pub(crate) fn error(error: &dyn Error) {
    eprint!("palisade-loadtest: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        eprint!(": {inner}");
        cause = inner.source();
    }
    eprintln!();
}

/// What is about to be run, so that it can be run again.
pub(crate) fn begin(chaos: &Chaos) {
    println!(
        "seed {}, {:?} of faults, {} scopes with {} workers each, before the datastore: {}",
        chaos.seed, chaos.time, chaos.scopes, chaos.workers, chaos.proxy
    );
    for (fault, why) in chaos.applicable().1 {
        println!("left out: {fault}, since {why}");
    }
}

/// How far a run is, between 0 and 1, and what has just happened. Only for a terminal.
pub(crate) fn progress(done: f64, event: &str) {
    if stderr().is_terminal() {
        let bar = "#".repeat((done * 40.0) as usize);
        eprint!("\r[{bar:<40}] {event:<28}");
    }
}

/// Makes way for what is printed next.
pub(crate) fn progress_ends() {
    if stderr().is_terminal() {
        eprint!("\r{:<72}\r", "");
    }
}

/// What came of checking a history: each property, and the first violations with their lines.
pub(crate) fn verdict(verdict: &Verdict, history: &Path, show: usize) -> io::Result<()> {
    let counts = &verdict.counts;
    println!(
        "{} requests ({} answered, {} refused, {} unknown), {} writes applied, {} handovers, {} faults, \
         {} looks at floors of {} proxies",
        counts.requests,
        counts.answered,
        counts.refused,
        counts.unknown,
        counts.applied,
        counts.handovers,
        counts.faults,
        counts.floors,
        counts.proxies
    );
    let lines = lines(verdict, history, show)?;
    for violation in verdict.violations.iter().take(show) {
        println!("\n{}\n  {}", violation.property, violation.says);
        for number in &violation.lines {
            let text = lines.get(number).map_or("", String::as_str);
            println!("  {number:>8}: {text}");
        }
    }
    if verdict.violations.len() > show {
        println!("\n... and {} more", verdict.violations.len() - show);
    }
    println!("\n{:<68} violations  per 1,000 handovers", "property");
    for property in Property::ALL {
        let Some(broken) = verdict.broken(property) else {
            println!("{:<68} not looked at", property.to_string());
            continue;
        };
        println!(
            "{:<68} {broken:>10}  {:>19.1}",
            property.to_string(),
            per_thousand(broken, counts.handovers)
        );
    }
    Ok(())
}

/// The figures of a bench, medians of all rounds, as a table of Markdown.
pub(crate) fn bench(rows: &[Row]) {
    println!(
        "| work | connections | proxy | CPU us/request | Palisade's / its (least to most) | requests/s | p50 us | p99 us | MiB | syscalls | failed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let same = |other: &&Row| {
            other.kind == Kind::Palisade
                && other.load.work == row.load.work
                && other.load.connections == row.load.connections
        };
        let own = rows
            .iter()
            .find(same)
            .filter(|_| row.kind != Kind::Palisade);
        let ratio = own.map_or(String::new(), |own| {
            let (middle, least, most) = own.ratio(row, |figures| figures.cpu);
            format!("{middle:.2} ({least:.2} to {most:.2})")
        });
        let syscalls = row
            .syscalls
            .map_or(String::new(), |calls| format!("{:.2}", calls.all));
        println!(
            "| {} | {} | {} | {:.1} | {ratio} | {:.0} | {:.0} | {:.0} | {:.1} | {syscalls} | {} |",
            row.load.work,
            row.load.connections,
            row.kind,
            row.median(|f| f.cpu),
            row.median(|f| f.rate),
            row.median(|f| f.p50),
            row.median(|f| f.p99),
            row.median(|f| f.memory as f64 / 1_048_576.0),
            row.rounds.iter().map(|f| f.failed).sum::<u64>(),
        );
    }
}

/// How long handovers took, in nanoseconds.
pub(crate) fn handovers(times: &hdrhistogram::Histogram<u64>) {
    println!(
        "{} handovers, from the release to the answer of the next holder's first write",
        times.len()
    );
    for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1.0)] {
        let millis = times.value_at_quantile(quantile) as f64 / 1e6;
        println!("{name:<5} {millis:>8.2} ms");
    }
    bars(&bars::handovers(times));
}

/// The goals, and whether they were kept.
pub(crate) fn bars(bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    println!("\n| goal | bar | found | |\n|---|---|---|---|");
    for bar in bars {
        let goal = match bar.goal {
            Goal::AtMost(most) => format!("at most {most:.2}"),
            Goal::AtLeast(least) => format!("at least {least:.2}"),
        };
        let verdict = if bar.is_kept() { "kept" } else { "**missed**" };
        println!("| {} | {goal} | {:.2} | {verdict} |", bar.what, bar.found);
    }
}

/// How long it took until all scopes of a storm were open, in each round.
pub(crate) fn storm(scopes: usize, times: &[Duration]) {
    println!("{scopes} scopes handed over at once, until all first writes were answered");
    for (round, time) in (1..).zip(times) {
        let each = time.as_secs_f64() * 1e6 / scopes as f64;
        println!(
            "round {round:<3} {:>7.2} s, {each:.0} us a scope",
            time.as_secs_f64()
        );
    }
    bars(&bars::storm(scopes, times));
}

/// What grew with what.
pub(crate) fn growth(rows: &[growth::Row]) {
    println!(
        "| with | CPU us/request | of the first | requests/s | MiB | MiB of state |\n|---|---|---|---|---|---|"
    );
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    for row in rows {
        println!(
            "| {} | {:.1} | {:.2} | {:.0} | {:.1} | {:.2} |",
            row.what,
            row.cpu,
            row.ratio,
            row.rate,
            mib(row.memory),
            mib(row.state)
        );
    }
}

/// What a flood of refused tokens did, a line each.
pub(crate) fn flood(sides: &[Side]) {
    println!(
        "| flood | refused/s | not 412 | holder's writes | failed | p50 us | p99 us | etcd reads/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for side in sides {
        let micros = |quantile| side.holder.value_at_quantile(quantile) as f64 / 1e3;
        println!(
            "| {} | {:.0} | {} | {} | {} | {:.0} | {:.0} | {:.1} |",
            match side.kind {
                flood::Kind::Stale => "stale",
                flood::Kind::Garbage => "from nowhere",
            },
            side.rate,
            side.others,
            side.holder.len(),
            side.failed,
            micros(0.5),
            micros(0.99),
            side.reads,
        );
    }
}

/// Several runs beside each other, as a table of Markdown.
pub(crate) fn table(verdicts: &[Verdict]) {
    println!(
        "| before the datastore | handovers | P1 | P6 | P4 and P5 | all others | P1 per 1,000 handovers |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for verdict in verdicts {
        let of = |property| verdict.broken(property).unwrap_or(0);
        let (order, reads) = (of(Property::Order), of(Property::ReadSeesAll));
        let twice = of(Property::AppliedOnce) + of(Property::UnknownAtMostOnce);
        let others = verdict.violations.len() - order - reads - twice;
        let handovers = verdict.counts.handovers;
        println!(
            "| {} | {handovers} | {order} | {reads} | {twice} | {others} | {:.0} |",
            verdict.proxy,
            per_thousand(order, handovers)
        );
    }
}

/// Violations per 1,000 handovers.
fn per_thousand(violations: usize, handovers: u64) -> f64 {
    violations as f64 * 1000.0 / handovers.max(1) as f64
}

/// The lines that the violations to be shown speak of.
fn lines(verdict: &Verdict, history: &Path, show: usize) -> io::Result<BTreeMap<u64, String>> {
    let shown = verdict.violations.iter().take(show);
    let wanted: BTreeSet<u64> = shown.flat_map(|v| v.lines.iter().copied()).collect();
    let mut lines = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(lines);
    }
    for (number, line) in (1..).zip(BufReader::new(File::open(history)?).lines()) {
        if wanted.contains(&number) {
            lines.insert(number, line?);
        }
    }
    Ok(lines)
}
