//! `palisade-loadtest`: attacks, checks and measures the fence.

mod document;
mod report;

use clap::{Args, Parser, Subcommand};
use palisade_loadtest::{
    bench::{
        self, Bench, Cores, Load, Pace, Work,
        growth::Growth,
        record::{Measured, Record},
    },
    chaos::{self, Chaos, Fault, fault::Faults, target, worker::Worker},
    check::{Checker, Verdict},
    history,
};
use std::{
    error::Error,
    fs::File,
    io::{BufReader, BufWriter},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Attacks, checks and measures the fence
#[derive(Debug, Parser)]
#[command(name = "palisade-loadtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attacks a proxy by a seed and checks what came of it: exit 1 on a violation
    Chaos(ChaosArgs),
    /// Measures what a request costs, beside other proxies
    Bench(BenchArgs),
    /// Checks a history: exit 1 if it breaks a property
    Check(CheckArgs),
    /// Writes an HTML report of a chaos run or of a bench
    Report(ReportArgs),
    /// Puts what came of several histories into a table
    Table(TableArgs),
    /// A worker of a chaos run
    #[command(hide = true)]
    Worker(Worker),
    /// The proxy that people write first
    #[command(hide = true)]
    Naive(NaiveArgs),
}

/// `palisade-loadtest chaos`.
#[derive(Debug, Args)]
struct ChaosArgs {
    /// How long there are faults
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Which faults come when: the same seed gives the same plan; by chance if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Names of faults or groups of them, with commas: all, none, worker, proxy, etcd, front, back, leases, store, ...
    #[arg(long, default_value = "all")]
    faults: Faults,
    /// What is attacked: palisade, no-barrier, naive, naive-durable, nginx, haproxy or none
    #[arg(long, default_value = "palisade")]
    proxy: target::Kind,
    /// Proxies: replicas of one group, if there are several (no-barrier: several that know nothing of each other)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    proxies: u8,
    /// Members that etcd has
    #[arg(long, default_value = "1", value_parser = ["1", "3"])]
    members: String,
    /// Scopes, each with a lease of its own; nginx and haproxy know only one
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    scopes: u64,
    /// Worker processes for each scope
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    workers: u64,
    /// How long the datastore may still apply a write that it has not answered
    #[arg(long, default_value = "1500ms", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// How soon after the faults each scope's holder has to succeed
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    recovers_within: Duration,
    /// Where the history goes
    #[arg(long, default_value = "history.jsonl")]
    history: PathBuf,
    /// Write an HTML report there, too
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How many violations are told in full
    #[arg(long, default_value_t = 3)]
    show: usize,
}

/// `palisade-loadtest bench`.
#[derive(Debug, Args)]
struct BenchArgs {
    /// What to compare with: nginx, haproxy, envoy, palisade-unix (a unix socket to the datastore), palisade-log (with its access log), direct (no proxy)
    #[arg(long, value_delimiter = ',')]
    versus: Vec<bench::Kind>,
    /// What the requests do: get, put-1k, put-64k, put-1024k, ...
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "get,put-1k,put-64k,put-1024k"
    )]
    work: Vec<Work>,
    /// Connections
    #[arg(long, value_delimiter = ',', default_value = "16")]
    connections: Vec<usize>,
    /// Requests a second, each counted from when it was due; as fast as they are answered if absent
    #[arg(long)]
    rate: Option<f64>,
    /// How long one run takes
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// How often everything is run, in an order by chance
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Count system calls too, with strace
    #[arg(long)]
    syscalls: bool,
    /// Everything on one core: what a proxy adds to the latency of one connection, without the time that waking up another core takes
    #[arg(long)]
    one_core: bool,
    /// Each proxy with two threads on two cores, which load and datastore share with it
    #[arg(long, conflicts_with = "one_core")]
    two_cores: bool,
    /// What the clients speak: http1, tls (HTTP/1.1 over TLS), h2 (HTTP/2 over TLS)
    #[arg(long, default_value = "http1", conflicts_with_all = ["handovers", "flood", "storm", "growth"])]
    protocol: bench::Protocol,
    /// Measure so many handovers instead: from the release to the answer of the next holder's first write
    #[arg(long, value_name = "N", conflicts_with_all = ["versus", "rate", "syscalls"])]
    handovers: Option<u64>,
    /// Measure a holder's writes beside so many refused requests a second instead: stale tokens, and tokens from nowhere
    #[arg(long, value_name = "RATE", conflicts_with_all = ["versus", "rate", "syscalls", "handovers"])]
    flood: Option<f64>,
    /// Hand so many scopes over at once instead, in each round: until the first writes of all new holders are answered
    #[arg(long, value_name = "SCOPES", conflicts_with_all = ["versus", "rate", "syscalls", "handovers", "flood"])]
    storm: Option<usize>,
    /// Show instead what a request costs with up to so many scopes, with 5,000 connections, and after an hour of handovers
    #[arg(long, value_name = "SCOPES", num_args = 0..=1, default_missing_value = "1000000",
          conflicts_with_all = ["versus", "rate", "syscalls", "handovers", "flood", "storm"])]
    growth: Option<usize>,
    /// Write the figures there, as JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["handovers", "flood", "storm", "growth"])]
    json: Option<PathBuf>,
    /// Write an HTML report there
    #[arg(long, value_name = "FILE", conflicts_with_all = ["handovers", "flood", "storm", "growth"])]
    report: Option<PathBuf>,
}

/// `palisade-loadtest check`.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The history, JSON lines as `chaos` writes them
    history: PathBuf,
    /// How many violations are told in full
    #[arg(long, default_value_t = 5)]
    show: usize,
}

/// `palisade-loadtest report`.
#[derive(Debug, Args)]
struct ReportArgs {
    /// A history, as `chaos` writes it, or figures, as `bench --json` writes them
    file: PathBuf,
    /// Where the report goes
    #[arg(short, long, default_value = "report.html")]
    output: PathBuf,
}

/// `palisade-loadtest table`.
#[derive(Debug, Args)]
struct TableArgs {
    /// Histories as `chaos` writes them
    #[arg(required = true)]
    histories: Vec<PathBuf>,
}

/// `palisade-loadtest naive`.
#[derive(Debug, Args)]
struct NaiveArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    upstream: SocketAddr,
    /// Keeps its marks there
    #[arg(long)]
    file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Chaos(args) => attack(args),
        Command::Bench(args) => measure(&args),
        Command::Check(args) => check(&args.history, args.show),
        Command::Report(args) => document::of_file(&args.file, &args.output),
        Command::Table(args) => table(&args.histories),
        Command::Worker(worker) => on_one_thread(worker.work()),
        Command::Naive(args) => {
            on_one_thread(chaos::naive::serve(args.listen, args.upstream, args.file))
        }
    };
    done.unwrap_or_else(|error| {
        report::error(&*error);
        // EX_IOERR of sysexits.h.
        ExitCode::from(74)
    })
}

type Done = Result<ExitCode, Box<dyn Error>>;

fn on_one_thread<E: Error + 'static>(work: impl Future<Output = Result<(), E>>) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)?;
    Ok(ExitCode::SUCCESS)
}

fn attack(args: ChaosArgs) -> Done {
    let chaos = Chaos {
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        time: args.time,
        faults: args.faults.0,
        proxy: args.proxy,
        proxies: args.proxies.into(),
        members: if args.members == "3" { 3 } else { 1 },
        workers: args.workers,
        scopes: args.scopes,
        settle: args.settle,
        recovers_within: args.recovers_within,
    };
    if chaos.faults.contains(&Fault::DiskFull) {
        chaos::enter_namespace();
    }
    report::begin(&chaos);
    let events = chaos::run(&chaos, report::progress)?;
    report::progress_ends();
    history::write(events, &mut BufWriter::new(File::create(&args.history)?))?;
    if let Some(output) = &args.report {
        document::of_file(&args.history, output)?;
    }
    check(&args.history, args.show)
}

fn measure(args: &BenchArgs) -> Done {
    if let Some(count) = args.handovers {
        report::handovers(&bench::handover::run(count)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(rate) = args.flood {
        report::flood(&bench::flood::run(rate, args.time, args.rounds)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(scopes) = args.storm {
        report::storm(scopes, &bench::storm::run(scopes, args.rounds)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(scopes) = args.growth {
        let growth = Growth {
            scopes,
            rounds: args.rounds,
            time: args.time,
            ..Growth::default()
        };
        let rows = bench::growth::run(growth, |what| report::progress(0.0, what))?;
        report::progress_ends();
        report::growth(&rows);
        return Ok(ExitCode::SUCCESS);
    }
    let mut loads = Vec::new();
    for &work in &args.work {
        loads.extend(args.connections.iter().map(|&connections| Load {
            work,
            connections,
            pace: args.rate.map_or(Pace::Closed, Pace::Open),
            time: args.time,
        }));
    }
    let mut subjects = vec![bench::Kind::Palisade];
    subjects.extend(&args.versus);
    let bench = Bench {
        subjects,
        loads,
        rounds: args.rounds,
        syscalls: args.syscalls,
        cores: match (args.one_core, args.two_cores) {
            (true, _) => Cores::One,
            (_, true) => Cores::Two,
            _ => Cores::Apart,
        },
        protocol: args.protocol,
    };
    let load_average = bench::record::load_average();
    let rows = bench::run(&bench, |round, load, kind| {
        let done = (round - 1) as f64 / bench.rounds as f64;
        report::progress(
            done,
            &format!("{} x {}: {kind}", load.work, load.connections),
        );
    })?;
    report::progress_ends();
    report::bench(&rows);
    report::bars(&bench::bars::judge(&bench, &rows));
    let record = Record {
        date: bench::record::today(),
        machine: bench::record::machine(),
        load_average,
        command: document::command(),
        rows: rows.iter().map(Measured::new).collect(),
    };
    if let Some(output) = &args.json {
        document::figures(&record, output)?;
    }
    if let Some(output) = &args.report {
        document::of_bench(&record, output)?;
    }
    let failed = rows
        .iter()
        .flat_map(|row| &row.rounds)
        .any(|round| round.failed > 0);
    Ok(ExitCode::from(u8::from(failed)))
}

fn check(path: &Path, show: usize) -> Done {
    let verdict = verdict(path)?;
    report::verdict(&verdict, path, show)?;
    Ok(ExitCode::from(u8::from(!verdict.violations.is_empty())))
}

fn table(histories: &[PathBuf]) -> Done {
    let verdicts: Result<Vec<_>, _> = histories.iter().map(|path| verdict(path)).collect();
    report::table(&verdicts?);
    Ok(ExitCode::SUCCESS)
}

fn verdict(path: &Path) -> Result<Verdict, Box<dyn Error>> {
    let mut checker = Checker::default();
    for event in history::read(BufReader::new(File::open(path)?)) {
        let (line, event) = event?;
        checker.event(line, &event);
    }
    Ok(checker.finish())
}
