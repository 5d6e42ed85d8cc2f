//! The report: everything of a run is in it, and nothing of it but text is taken from a history.

#![allow(clippy::unwrap_used, reason = "test code")]

use palisade_loadtest::{
    bench::{
        Figures,
        record::{Measured, Record},
    },
    history::{self, Event, Kind, What},
    html::Timeline,
};
use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

fn run(file: &Path, report: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_palisade-loadtest"))
        .arg("report")
        .arg(file)
        .arg("-o")
        .arg(report)
        .output()
        .unwrap()
}

/// The report of a file with this text.
fn report(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (file, report) = (dir.path().join("in"), dir.path().join("out.html"));
    std::fs::write(&file, text).unwrap();
    let output = run(&file, &report);
    assert!(output.status.success(), "{output:?}");
    let html = std::fs::read_to_string(&report).unwrap();
    well_formed(&html);
    html
}

/// Each picture is read by a reader of XML, which is stricter than a browser.
fn well_formed(html: &str) {
    let mut python = Command::new("python3")
        .args(["-c", "import re, sys, xml.dom.minidom\nfor svg in re.findall('<svg .*?</svg>', sys.stdin.read(), re.S): xml.dom.minidom.parseString(svg)"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = python.stdin.take().unwrap();
    stdin.write_all(html.as_bytes()).unwrap();
    drop(stdin);
    assert!(python.wait().unwrap().success());
}

/// The tags of a kind with a colour, such as `fill="#0969DA"`.
fn shapes<'a>(html: &'a str, kind: &str, color: &str) -> Vec<&'a str> {
    let tags = html.split('<');
    tags.filter(|tag| tag.starts_with(kind) && tag.contains(color))
        .collect()
}

/// A number of a tag.
fn at(tag: &str, name: &str) -> i32 {
    let value = tag.split_once(&format!(" {name}=\"")).unwrap().1;
    value.split('"').next().unwrap().parse().unwrap()
}

const HOSTILE: &str = "<script>alert('x')</script>&\"";

fn start(scope: &str) -> What {
    What::Start {
        seed: 4711,
        proxy: "palisade".into(),
        recovers_within_ms: 60_000,
        scopes: vec![scope.into()],
        command: Some("palisade-loadtest chaos --seed 4711".into()),
    }
}

fn granted(scope: &str, token: u64) -> What {
    What::Granted {
        scope: scope.into(),
        token,
        process: token,
    }
}

fn invoke(scope: &str, id: u64, token: u64) -> What {
    What::Invoke {
        id,
        scope: scope.into(),
        token,
        kind: Kind::Write,
        process: token,
    }
}

fn applied(scope: &str, id: u64, token: u64, position: u64) -> What {
    What::Applied {
        id,
        scope: scope.into(),
        token,
        position,
        proxy: 1,
    }
}

/// One second apart.
fn text(events: Vec<What>) -> String {
    let events = events.into_iter().zip(0..);
    let events = events.map(|(what, second)| Event {
        at: second * 1_000_000_000,
        what,
    });
    let mut text = Vec::new();
    history::write(events.collect(), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Two holders, a refused write, one of unknown fate, a fault.
fn small(scope: &str) -> Vec<What> {
    let fault = |begins| What::Fault {
        name: "proxy-kill".into(),
        target: "proxy 1".into(),
        begins,
    };
    vec![
        start(scope),
        granted(scope, 70_001),
        invoke(scope, 1, 70_001),
        applied(scope, 1, 70_001, 1),
        What::Answered {
            id: 1,
            status: 204,
            seen: None,
        },
        fault(true),
        granted(scope, 70_009),
        invoke(scope, 2, 70_001),
        What::Refused {
            id: 2,
            status: 412,
            reason: "stale-token".into(),
        },
        fault(false),
        invoke(scope, 3, 70_009),
        applied(scope, 3, 70_009, 2),
        What::Unknown {
            id: 3,
            why: "timeout".into(),
        },
        What::Calm,
        invoke(scope, 4, 70_009),
        applied(scope, 4, 70_009, 3),
        What::Answered {
            id: 4,
            status: 204,
            seen: None,
        },
        What::End,
    ]
}

#[test]
fn leases_faults_writes_refusals_and_the_command_are_in_it() {
    let html = report(&text(small("s")));
    for what in [
        "No property was broken.",
        "palisade-loadtest chaos --seed 4711",
        "proxy-kill",
        "token 70001",
        "token 70009",
        "stale-token",
        "<td>seed</td><td class=\"number\">4711</td>",
        "<td>handovers</td><td class=\"number\">1</td>",
    ] {
        assert!(html.contains(what), "{what} is not in:\n{html}");
    }
    // Three applied, one refused, one unknown: by their colours, each shape of the picture once.
    assert_eq!(shapes(&html, "circle", "fill=\"#0969DA\"").len(), 3);
    assert_eq!(shapes(&html, "polygon", "fill=\"#8250DF\"").len(), 1);
    // A cross is two lines.
    assert_eq!(shapes(&html, "line", "stroke=\"#BC4C00\"").len(), 2);
    // The first lease from second 1 to 6, where the second begins; the fault from 5 to 9.
    let bar = |color: &str| {
        let bars = shapes(&html, "rect", &format!("fill=\"{color}\""));
        assert_eq!(bars.len(), 1, "{color}");
        (at(bars[0], "x"), at(bars[0], "width"))
    };
    let (first, second, fault) = (bar("#57606A"), bar("#E16F24"), bar("#9A6700"));
    assert!(
        (first.0 + first.1 - second.0).abs() <= 2,
        "{first:?} {second:?}"
    );
    assert!(
        (first.1 * 4 - fault.1 * 5).abs() <= 20,
        "{first:?} {fault:?}"
    );
    // Nobody has looked at a floor or begun an epoch; everything else was kept.
    assert_eq!(html.matches("<td>not looked at</td>").count(), 2);
    assert_eq!(html.matches(")</td><td class=\"number\">0</td>").count(), 8);
    let pictures = html.matches("<svg ").count();
    assert_eq!(
        html.matches("<svg role=\"img\" aria-label=\"").count(),
        pictures
    );
}

#[test]
fn a_violation_stands_out() {
    let mut events = small("s");
    // An older write after a newer one.
    events.insert(12, applied("s", 2, 70_001, 3));
    // Another scope, with nothing wrong in it.
    events.insert(13, granted("t", 70_010));
    let html = report(&text(events));
    assert!(
        html.contains("<p class=\"verdict bad\">2 violations.</p>"),
        "{html}"
    );
    assert!(html.contains("P1 (applied tokens never go back within a scope): write 2 with token"));
    let rings = shapes(&html, "circle", "stroke=\"#CF222E\"");
    assert_eq!(rings.len(), 2);
    let applied = shapes(&html, "circle", "fill=\"#0969DA\"");
    let place = |tag| (at(tag, "cx"), at(tag, "cy"));
    for ring in rings {
        assert!(
            applied.iter().any(|dot| place(dot) == place(ring)),
            "{ring} is around nothing"
        );
    }
}

#[test]
fn of_many_violations_the_first_are_told() {
    let mut events = vec![start("s"), granted("s", 5), granted("s", 9)];
    events.extend((1..=7).map(|id| invoke("s", id, 5)));
    events.extend([invoke("s", 8, 9), applied("s", 8, 9, 1)]);
    events.extend((1..=7).map(|id| applied("s", id, 5, id + 1)));
    events.push(What::End);
    let html = report(&text(events));
    assert!(html.contains("7 violations.</p>"), "{html}");
    assert_eq!(html.matches("<p>P1 (").count(), 5);
    assert!(html.contains("... and 2 more"), "{html}");
}

/// What matters in a longer run is shown once more from near.
#[test]
fn the_worst_moment_of_a_longer_run_is_shown_closer() {
    let mut events = vec![start("s"), granted("s", 5), granted("s", 9)];
    // One is refused in second 41.
    for id in 1..=30 {
        events.push(invoke("s", id, 9));
        events.push(if id == 20 {
            What::Refused {
                id,
                status: 503,
                reason: "storage-unavailable".into(),
            }
        } else {
            applied("s", id, 9, id)
        });
    }
    let crosses = |html: &str| shapes(html, "line", "stroke=\"#BC4C00\"").len();
    let html = report(&text(events.clone()));
    assert!(html.contains("<h2>12 seconds of it</h2>"), "{html}");
    assert!(html.contains("Where the most writes were refused"));
    assert_eq!(crosses(&html), 4, "once in each picture");
    // An older one is let in long before.
    events[14] = applied("s", 6, 5, 6);
    let html = report(&text(events));
    assert!(html.contains("Around the first violation."), "{html}");
    let rings = shapes(&html, "circle", "stroke=\"#CF222E\"").len();
    assert!(rings > 0 && rings.is_multiple_of(2), "{rings}");
    assert_eq!(crosses(&html), 2, "only in the first picture");
}

#[test]
fn names_are_text() {
    let html = report(&text(small(HOSTILE)));
    assert!(!html.contains("<script"));
    assert!(html.contains("&lt;script&gt;"));
    // Should one get through all the same, it is not run.
    assert!(html.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
}

#[test]
fn a_history_that_was_broken_off_is_shown_as_far_as_it_goes_and_says_so() {
    let whole = text(small("s"));
    let lines: Vec<&str> = whole.lines().collect();
    let without_end = lines[..lines.len() - 1].join("\n");
    assert!(report(&without_end).contains("its history has no end"));
    let half = &without_end[..without_end.len() - 20];
    let html = report(half);
    assert!(
        html.contains("can&#39;t be read to its end (line 17:"),
        "{html}"
    );
    assert!(html.contains("token 70009"));
    assert!(!report(&whole).contains("as far as it goes"));
}

#[test]
fn what_is_neither_history_nor_figures_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in");
    for text in ["", "{}", "hello"] {
        std::fs::write(&file, text).unwrap();
        let output = run(&file, &dir.path().join("out.html"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(74));
        assert!(said.contains("neither a history"), "{said}");
        assert!(said.contains("in: "), "{said}");
    }
    let output = run(
        Path::new("/nowhere/history.jsonl"),
        &dir.path().join("out.html"),
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("/nowhere/history.jsonl: No such file"),
        "{said}"
    );
}

#[test]
fn a_long_run_stays_light() {
    let mut events = vec![start("s")];
    for holder in 0..300 {
        events.push(granted("s", holder + 1));
        for write in 0..300 {
            let id = holder * 300 + write;
            events.push(invoke("s", id, holder + 1));
            events.push(applied("s", id, holder + 1, id + 1));
        }
    }
    let events = events.into_iter().zip(0..);
    let events = events.map(|(what, number)| {
        Ok((
            number + 1,
            Event {
                at: number * 3_000_000,
                what,
            },
        ))
    });
    let run = Timeline::read(events);
    let html = palisade_loadtest::html::chaos::report(&run).unwrap();
    assert!(html.len() < 3_000_000, "{} bytes", html.len());
}

fn measured(proxy: &str, cpu: f64) -> Measured {
    let figures = |cpu| Figures {
        cpu,
        rate: 10_000.0,
        p50: 100.0,
        p99: 200.0,
        failed: 0,
        memory: 12 << 20,
    };
    Measured {
        work: "put-1k".into(),
        connections: 16,
        rate: None,
        proxy: proxy.into(),
        rounds: vec![figures(cpu), figures(cpu * 1.1), figures(cpu * 0.9)],
        syscalls: Some(4.2),
        latency: vec![(0.0, 50.0), (0.5, 100.0), (0.99, 200.0), (1.0, 900.0)],
    }
}

#[test]
fn a_bench_shows_its_figures_and_which_goals_were_kept() {
    let record = |cpu| Record {
        date: "2026-12-01".into(),
        machine: "two cores".into(),
        load_average: 0.5,
        command: "palisade-loadtest bench --versus nginx".into(),
        rows: vec![
            measured("palisade", cpu),
            measured("nginx", 20.0),
            measured(HOSTILE, 30.0),
        ],
    };
    for (cpu, kept) in [(18.0, true), (18.2, false)] {
        let html = report(&serde_json::to_string_pretty(&record(cpu)).unwrap());
        for what in [
            "two cores",
            "palisade-loadtest bench --versus nginx",
            "put-1k x 16",
            "4.20",
            "99.9 %",
            "&lt;script&gt;",
        ] {
            assert!(html.contains(what), "{what} is not in:\n{html}");
        }
        assert_eq!(html.contains("<td>kept</td>"), kept, "{cpu}");
        assert_eq!(html.contains("<td>missed</td>"), !kept, "{cpu}");
        assert!(!html.contains("<script"));
        // Palisade's bar ends where its goal is, or goes past it.
        let own = shapes(&html, "rect", "fill=\"#0A3069\"");
        let goal = shapes(&html, "polyline", "stroke=\"#1A7F38\"");
        assert_eq!((own.len(), goal.len()), (1, 1));
        let goal: i32 = goal[0].split_once("points=\"").unwrap().1[..3]
            .parse()
            .unwrap();
        let past = at(own[0], "x") + at(own[0], "width") - goal;
        assert!(
            if kept {
                past.abs() <= 2
            } else {
                (3..20).contains(&past)
            },
            "{past}"
        );
        // Its latency: a line through the percentiles that there is a place for.
        let line = shapes(&html, "polyline", "stroke=\"#0A3069\"");
        assert_eq!(line.len(), 1);
        assert_eq!(line[0].matches(',').count(), 3, "{}", line[0]);
    }
    let empty = Record {
        rows: vec![],
        ..record(1.0)
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in");
    std::fs::write(&file, serde_json::to_string(&empty).unwrap()).unwrap();
    let output = run(&file, &dir.path().join("out.html"));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("no rows")
    );
}
