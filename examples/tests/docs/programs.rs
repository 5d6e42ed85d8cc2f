//! The page "Reference" against the programs: what they print about themselves, and what they serve, is what it shows.
//!
//! What stands between `<!-- begin: WHAT -->` and `<!-- end -->` is made here. With `UPDATE_DOCS=1` in the environment the
//! page is written anew instead of compared.

use crate::markdown::top;
use nix::sys::signal::Signal;
use palisade_loadtest::servers::{Process, free_port, get, program, wait_for};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

const PAGE: &str = "docs/src/reference.md";

/// Replaces what stands in a part of the page, or compares it.
fn part(page: &str, what: &str, wanted: &str) -> String {
    let begin = format!("<!-- begin: {what} -->\n");
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{PAGE} has no part `{what}`"));
    let (shown, after) = rest
        .split_once("<!-- end -->")
        .unwrap_or_else(|| panic!("{PAGE}: `{what}` has no end"));
    if std::env::var_os("UPDATE_DOCS").is_none() {
        assert!(
            shown == wanted,
            "{PAGE}: `{what}` is not as the program has it. `UPDATE_DOCS=1 cargo test -p palisade-examples --test docs` \
             writes it anew. It has to be:\n{wanted}"
        );
    }
    format!("{before}{begin}{wanted}<!-- end -->{after}")
}

#[test]
fn commands_flags_and_metrics_are_the_programs_own() {
    let file = top().join(PAGE);
    let mut page = fs::read_to_string(&file).expect("the page");
    for name in ["palisade", "palisade-lease"] {
        page = part(&page, &format!("commands of {name}"), &commands(name));
    }
    page = part(&page, "metrics of palisade", &table(&of_the_proxy()));
    page = part(&page, "metrics of palisade-lease", &table(&of_a_job()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, page).expect("written");
    }
}

#[test]
fn exit_codes_are_the_programs_own() {
    let page = fs::read_to_string(top().join(PAGE)).expect("the page");
    for (heading, source, others) in [
        ("## Exit codes of palisade\n", "proxy/src/cli.rs", &[][..]),
        (
            "## Exit codes of palisade-lease\n",
            "lease/src/outcome.rs",
            // The job's own, of `flock -E`'s kind, of a shell's kind, and of `status`.
            &[0, 1, 75, 126, 127][..],
        ),
    ] {
        let (_, rest) = page.split_once(heading).expect("the heading");
        let rows = rest
            .lines()
            .skip_while(|line| !line.starts_with("| ---"))
            .skip(1)
            .take_while(|line| line.starts_with('|'));
        let shown: BTreeSet<u8> = rows
            .filter_map(|row| row.trim_matches('|').split('|').next()?.trim().parse().ok())
            .collect();
        let text = fs::read_to_string(top().join(source)).expect("the source");
        let constants = text.lines().filter(|line| line.contains("const "));
        let mut own: BTreeSet<u8> = constants
            .filter_map(|line| {
                let (_, value) = line.split_once(": u8 = ")?;
                value.trim_end_matches(';').parse().ok()
            })
            .collect();
        assert!(own.len() >= 4, "{source}: its exit codes have moved");
        own.extend(others);
        assert_eq!(shown, own, "{PAGE}: {heading}");
    }
}

/// What a program says about itself, command by command.
fn commands(name: &str) -> String {
    let whole = help(name, &[]);
    let names = whole
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // A description that goes on in the next line stands further to the right.
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|rest| !rest.starts_with(' '))
        })
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help");
    let mut text = block(name, &whole);
    for command in names {
        text.push_str(&block(
            &format!("{name} {command}"),
            &help(name, &[command]),
        ));
    }
    text
}

fn block(heading: &str, help: &str) -> String {
    // All settings stand in a table of their own.
    let help = match help.split_once("\nSettings:\n") {
        Some((before, rest)) if rest.contains("\nfence:\n") => {
            format!("{before}\nSettings: each of the page \"Configuration\" as a flag\n")
        }
        _ => help.to_owned(),
    };
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    format!(
        "\n### {heading}\n\n```text\n{}\n```\n\n",
        lines.join("\n").trim()
    )
}

fn help(name: &str, command: &[&str]) -> String {
    let output = Command::new(program(name))
        .args(command)
        .arg("-h")
        .env_clear()
        .output()
        .expect("the program");
    assert!(output.status.success(), "{name} {command:?} -h");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A metric as it is served: kind, labels, description.
#[derive(Default)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut text = "\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for (name, metric) in metrics {
        assert!(
            !metric.help.is_empty(),
            "{name} is served without a description"
        );
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        text.push_str(&format!(
            "| `{name}` | {} | {} | {} |\n",
            metric.kind,
            labels.join(", "),
            metric.help.replace('|', "\\|")
        ));
    }
    text.push('\n');
    text
}

/// Reads the text format of Prometheus, as far as it is ours.
fn read(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("palisade_")) {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            metrics.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{') {
            let plain = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|end| name.strip_suffix(end))
                .find(|plain| metrics.contains_key(*plain))
                .unwrap_or(name);
            let names = labels.split("=\"").filter_map(|part| {
                let start = part.rfind(['{', ',']).map_or(0, |at| at + 1);
                let name = &part[start..];
                let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                (is_name && !name.is_empty() && name != "le").then(|| name.to_owned())
            });
            metrics
                .entry(plain.to_owned())
                .or_default()
                .labels
                .extend(names);
        }
    }
    metrics
}

/// The metrics of a proxy that has seen one write.
fn of_the_proxy() -> BTreeMap<String, Metric> {
    let folder = TempDir::with_prefix("palisade-docs-").expect("a folder");
    let [listen, admin, upstream] = [(); 3].map(|()| local(free_port().expect("a port")));
    let mut command = Command::new(program("palisade"));
    command.args([
        "run",
        "--listen",
        &listen.to_string(),
        "--admin",
        &admin.to_string(),
        "--upstream",
        &format!("http://{upstream}"),
        "--state",
        &folder.path().join("state").display().to_string(),
    ]);
    let _proxy = Process::start("palisade", &mut command).expect("a proxy");
    wait_for("the proxy", || {
        get(admin, "/livez")
            .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
            .then_some(())
    });
    let answer = put(listen);
    assert!(answer.contains("upstream-unreachable"), "{answer}");
    wait_for("the scope's metrics", || {
        let text = get(admin, "/metrics").ok()?;
        text.contains("palisade_scope_floor{").then(|| read(&text))
    })
}

/// The metrics of a job under a lease.
fn of_a_job() -> BTreeMap<String, Metric> {
    let folder = TempDir::with_prefix("palisade-docs-").expect("a folder");
    let address = local(free_port().expect("a port"));
    let store = format!("sqlite:{}", folder.path().join("leases.db").display());
    let mut command = Command::new(program("palisade-lease"));
    command.args(["run", "docs", "--leases", &store, "--metrics"]);
    command
        .arg(address.to_string())
        .args(["--", "sleep", "600"]);
    let mut job = Process::start("palisade-lease", &mut command).expect("a job");
    let metrics = wait_for("the lease's metrics", || {
        let text = get(address, "/metrics").ok()?;
        text.contains("palisade_lease_held{lease=\"docs\"} 1")
            .then(|| read(&text))
    });
    job.signal(Signal::SIGTERM);
    job.wait();
    metrics
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn put(address: SocketAddr) -> String {
    let mut connection = TcpStream::connect(address).expect("a connection");
    let limit = Some(Duration::from_secs(60));
    connection.set_read_timeout(limit).expect("a limit");
    let request = "PUT /x HTTP/1.1\r\nHost: x\r\nX-Fence-Token: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn metrics_are_read_as_prometheus_reads_them() {
    let text = "# HELP palisade_a_seconds How long.\n# TYPE palisade_a_seconds histogram\n\
                palisade_a_seconds_bucket{kind=\"read\",le=\"1\"} 2\n# TYPE palisade_b gauge\npalisade_b 1\n";
    let metrics = read(text);
    let a = &metrics["palisade_a_seconds"];
    assert_eq!(
        (a.kind.as_str(), a.help.as_str()),
        ("histogram", "How long.")
    );
    assert_eq!(a.labels.iter().collect::<Vec<_>>(), ["kind"]);
    assert!(metrics["palisade_b"].help.is_empty());
}
