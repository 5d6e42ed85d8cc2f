//! `palisade-loadtest`: attacks, checks and measures the fence.

mod report;

use clap::{Args, Parser, Subcommand};
use palisade_loadtest::{check::Checker, history};
use std::{fs::File, io::BufReader, path::PathBuf, process::ExitCode};

/// Attacks, checks and measures the fence
#[derive(Debug, Parser)]
#[command(name = "palisade-loadtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks a history: exit 1 if it breaks a property
    Check(CheckArgs),
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

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Check(args) => check(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            report::error(&*error);
            ExitCode::from(74)
        }
    }
}

type Done = Result<ExitCode, Box<dyn std::error::Error>>;

fn check(args: &CheckArgs) -> Done {
    let mut checker = Checker::default();
    for event in history::read(BufReader::new(File::open(&args.history)?)) {
        let (line, event) = event?;
        checker.event(line, &event);
    }
    let verdict = checker.finish();
    report::verdict(&verdict, &args.history, args.show)?;
    Ok(ExitCode::from(u8::from(!verdict.violations.is_empty())))
}
