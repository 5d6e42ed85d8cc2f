//! `palisade-lease`: runs jobs under leases with fencing tokens.

mod announce;
mod cli;
mod job;
mod outcome;
mod run;
mod serve_metrics;
mod show;
mod signals;
mod supervise;
mod tree;
mod wire;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use outcome::{Outcome, USAGE};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: the supervisor and the job's first moments are this same program.
    if let Some(code) = supervise::hidden(std::env::args_os()) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    // One thread: the parent-death signal of the supervisor is about the thread that started it (`prctl(2)`).
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(command(cli.command));
            // Nothing that still runs may hold up the end.
            runtime.shutdown_background();
            code
        }
        Err(error) => Outcome::System(error.to_string()).finish(),
    }
}

async fn command(command: Command) -> ExitCode {
    let (store, name, json) = match command {
        Command::Run(options) => return run::run(*options).await,
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Cli::command(),
                "palisade-lease",
                &mut std::io::stdout(),
            );
            return ExitCode::SUCCESS;
        }
        Command::Man { dir } => {
            return match clap_mangen::generate_to(Cli::command(), &dir) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => Outcome::System(format!("{}: {error}", dir.display())).finish(),
            };
        }
        Command::List {
            store,
            prefix,
            json,
        } => {
            return match store.open() {
                Ok(store) => show::list(store, &prefix, json).await,
                Err(reason) => show::usage(&reason),
            };
        }
        Command::Release {
            store,
            name,
            token,
            json,
        } => {
            return match store.open() {
                Ok(store) => show::release(store, &name, token, json).await,
                Err(reason) => show::usage(&reason),
            };
        }
        Command::Status { store, name, json } => (store, name, (json, false)),
        Command::Watch { store, name, json } => (store, name, (json, true)),
    };
    match (store.open(), json) {
        (Ok(store), (json, false)) => show::status(store, &name, json).await,
        (Ok(store), (json, true)) => show::watch(store, &name, json).await,
        (Err(reason), _) => show::usage(&reason),
    }
}
