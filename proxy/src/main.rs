//! The program `palisade`. Everything it does stands in the library; this reads the command line and gives exit codes.

use http::Method;
use palisade::{
    admin::{self, ControlError},
    cli::{self, Cli, Command, exit},
    config::{self, StateArgs},
    init::{self, InitArgs},
    run,
};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    let code = match Cli::read(std::env::args_os()) {
        Ok(cli) => command(cli.command),
        Err(code) => code,
    };
    ExitCode::from(code)
}

fn command(command: Command) -> u8 {
    match command {
        Command::Run(args) => match run::run(&args.sources) {
            Ok(()) => exit::OK,
            Err(error) => fail(error.exit_code(), &error.to_string()),
        },
        Command::Init(args) => init(&args),
        Command::Check(args) => match cli::check(&args) {
            Ok(shown) => print(&shown),
            Err(errors) => fail(exit::CONFIG, &errors.to_string()),
        },
        Command::Route(args) => match cli::route(&args) {
            Ok(shown) => print(&shown),
            Err((code, why)) => fail(code, &why),
        },
        Command::Scopes(args) => scopes(&args.state, args.json),
        Command::Settle(args) => {
            let name: String = percent_encoding::utf8_percent_encode(
                &args.scope,
                percent_encoding::NON_ALPHANUMERIC,
            )
            .to_string();
            control(
                &args.state,
                Method::POST,
                &format!("/settle?scope={name}"),
                |answer| {
                    let settled = serde_json::from_str::<serde_json::Value>(answer)
                        .ok()
                        .and_then(|v| v["settled"].as_u64());
                    format!(
                        "{}: {} ambiguous writes settled\n",
                        args.scope,
                        settled.unwrap_or(0)
                    )
                },
            )
        }
        Command::NewEpoch(args) => new_epoch(&args),
        Command::Health(state) => control(&state, Method::GET, "/readyz", |_| "ready\n".to_owned()),
        Command::Completions { shell } => {
            cli::completions(shell, &mut std::io::stdout().lock());
            exit::OK
        }
        Command::Man { dir } => match cli::man(&dir) {
            Ok(()) => exit::OK,
            Err(error) => fail(exit::FAILED, &format!("{}: {error}", dir.display())),
        },
    }
}

/// Questions go to standard error, so that they are seen when standard output is a file.
fn init(args: &InitArgs) -> u8 {
    let stdin = std::io::stdin();
    let asked = stdin.is_terminal();
    let (mut input, mut output) = (stdin.lock(), std::io::stderr().lock());
    let terminal = asked.then_some((&mut input as _, &mut output as _));
    let written = init::init(args, terminal);
    drop(output);
    let file = args.file.display();
    match written {
        Ok(()) => print(&format!(
            "wrote {file}. Next: palisade check --config {file}\n"
        )),
        Err(error) => fail(error.exit_code(), &error.to_string()),
    }
}

fn scopes(state: &StateArgs, json: bool) -> u8 {
    control(state, Method::GET, "/scopes", |answer| {
        if json {
            answer.to_owned()
        } else {
            admin::table(answer)
        }
    })
}

const NEW_EPOCH: &str = "\
A new epoch trusts the lease store as it is now. Every token from before is refused for ever, in every scope; writes
that are under way count as unsettled. Do this only after a restore or a replacement of the lease store that you know of.
Type yes to go on: ";

fn new_epoch(args: &cli::NewEpochArgs) -> u8 {
    if !args.yes && !confirmed() {
        return fail(exit::FAILED, "nothing was changed");
    }
    let target = format!("/new-epoch?advance={}", args.advance.unwrap_or(0));
    control(&args.state, Method::POST, &target, |answer| {
        let said: serde_json::Value = serde_json::from_str(answer).unwrap_or_default();
        format!(
            "a new epoch has begun: tokens below {} are refused; the lease store is at revision {}\n",
            said["floor"], said["revision"]
        )
    })
}

/// Asks on a terminal; without one nobody can say yes.
fn confirmed() -> bool {
    let mut answer = String::new();
    let asked = write!(std::io::stderr().lock(), "{NEW_EPOCH}").is_ok();
    asked && std::io::stdin().read_line(&mut answer).is_ok() && answer.trim() == "yes"
}

/// Asks the running proxy and prints what it says.
fn control(state: &StateArgs, method: Method, target: &str, show: impl Fn(&str) -> String) -> u8 {
    let folder = match config::state_folder(&state.sources) {
        Ok(folder) => folder,
        Err(errors) => return fail(exit::CONFIG, &errors.to_string()),
    };
    match admin::ask(&folder, method, target) {
        Ok(answer) => print(&show(&answer)),
        Err(error @ ControlError::Away { .. }) => fail(exit::UNAVAILABLE, &error.to_string()),
        Err(error) => fail(exit::FAILED, &error.to_string()),
    }
}

fn print(text: &str) -> u8 {
    let mut stdout = std::io::stdout().lock();
    // A reader that has gone (`| head`) is no failure of ours.
    let _ = stdout
        .write_all(text.trim_end_matches('\n').as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
    exit::OK
}

fn fail(code: u8, why: &str) -> u8 {
    let _ = writeln!(std::io::stderr().lock(), "palisade: {}", why.trim_end());
    code
}
