//! `palisade init`: three questions, and a commented configuration that `palisade check` accepts.

use clap::Args;
use std::{
    fmt::Write as _,
    fs,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
};

use crate::{
    cli,
    config::{SettingsArgs, Sources},
};

/// `palisade init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The file to write
    #[arg(default_value = "palisade.toml")]
    pub file: PathBuf,
    /// The datastore: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// The lease store: etcd://HOST:PORT, etcds://HOST:PORT, sqlite:PATH, or none
    #[arg(long, value_name = "URL")]
    pub leases: Option<String>,
    /// One scope for the whole datastore
    #[arg(long, value_name = "NAME", conflicts_with = "routes")]
    pub scope: Option<String>,
    /// A scope for the paths below PATH, such as /reports=nightly/reports; may be repeated
    #[arg(long = "route", value_name = "PATH=SCOPE")]
    pub routes: Vec<String>,
    /// The folder that will hold the floors
    #[arg(long, value_name = "DIR", default_value = "/var/lib/palisade")]
    pub state: String,
    /// Write over a file that exists
    #[arg(long)]
    pub force: bool,
}

/// Why no file was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// There is nobody to ask.
    #[error(
        "{0} not given, and standard input is no terminal to ask at. Give --upstream, --leases, and --scope or --route"
    )]
    NobodyToAsk(&'static str),
    /// An answer that can't be read.
    #[error(
        "{0:?} is no PATH=SCOPE. Give a path that begins with / and a scope, such as /reports=nightly/reports"
    )]
    NoRoute(String),
    /// The file is there.
    #[error("{} exists. Give another name, or --force to write over it", .0.display())]
    Exists(PathBuf),
    /// The answers make no good configuration.
    #[error("nothing was written, for the answers make no good configuration:\n{0}")]
    Refused(String),
    /// The disk or the terminal.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, #[source] io::Error),
}

impl InitError {
    /// What the program ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NobodyToAsk(_) | Self::NoRoute(_) => cli::exit::USAGE,
            Self::Exists(_) | Self::Io(..) => cli::exit::FAILED,
            Self::Refused(_) => cli::exit::CONFIG,
        }
    }
}

/// Asks for what the flags leave open, checks the answers and writes the file.
///
/// `terminal` is where questions go and answers come from; without one, what is missing is an error.
pub fn init(
    args: &InitArgs,
    mut terminal: Option<(&mut dyn BufRead, &mut dyn Write)>,
) -> Result<(), InitError> {
    // Before the questions: nobody wants to answer for nothing.
    if !args.force && args.file.symlink_metadata().is_ok() {
        return Err(InitError::Exists(args.file.clone()));
    }
    let mut answer = |given: &Option<String>, flag, question, default| match given {
        Some(given) => Ok(given.trim().to_owned()),
        None => ask(&mut terminal, flag, question, default),
    };
    let upstream = answer(
        &args.upstream,
        "--upstream is",
        "Where is the datastore? (http://HOST:PORT, https://HOST:PORT or unix:PATH)",
        "http://127.0.0.1:9000",
    )?;
    let leases = answer(
        &args.leases,
        "--leases is",
        "Where are the leases? (etcd://HOST:PORT, sqlite:PATH, or none)",
        "etcd://127.0.0.1:2379",
    )?;
    let parts = if args.routes.is_empty() {
        answer(
            &args.scope,
            "--scope or --route is",
            "Which scope? (one NAME for the whole datastore, or PATH=SCOPE with spaces between)",
            "default",
        )?
    } else {
        args.routes.join(" ")
    };
    write_checked(args, &text(&upstream, &leases, &parts, &args.state)?)
}

fn ask(
    terminal: &mut Option<(&mut dyn BufRead, &mut dyn Write)>,
    flag: &'static str,
    question: &str,
    default: &str,
) -> Result<String, InitError> {
    let Some((input, output)) = terminal else {
        return Err(InitError::NobodyToAsk(flag));
    };
    let broken = |error| InitError::Io("terminal".into(), error);
    write!(output, "{question}\n  [{default}] ")
        .and_then(|()| output.flush())
        .map_err(broken)?;
    let mut line = String::new();
    match input.read_line(&mut line).map_err(broken)? {
        0 => Err(InitError::NobodyToAsk(flag)),
        _ => Ok(match line.trim() {
            "" => default.to_owned(),
            given => given.to_owned(),
        }),
    }
}

/// The configuration, with a comment for each setting.
fn text(upstream: &str, leases: &str, parts: &str, state: &str) -> Result<String, InitError> {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = String::from(
        "# Palisade's configuration. `palisade check --config FILE` says whether it is good.\n\n",
    );
    let mut set = |why: &str, key: &str, value: &str| {
        // Writing to a string can't fail.
        let _ = write!(text, "# {why}\n{key} = {value}\n\n");
    };
    set("Where clients connect.", "listen", "[\"127.0.0.1:8080\"]");
    set(
        "Metrics, health and the status page; for operators only.",
        "admin",
        "\"127.0.0.1:8081\"",
    );
    set(
        "The datastore. Nothing may write to it past the proxy.",
        "upstream",
        &quoted(upstream),
    );
    match leases {
        "none" | "" => text.push_str(
            "# No lease store: the highest token seen wins, and whoever reaches the proxy is trusted to send a true one.\n\
             # leases = \"etcd://127.0.0.1:2379\"\n\n",
        ),
        leases => set(
            "The lease store, where each new token is verified.",
            "leases",
            &quoted(leases),
        ),
    }
    let _ = write!(
        text,
        "# The folder that holds the floors. Losing it lets stale writers back in.\nstate = {}\n\n",
        quoted(state)
    );
    if parts.contains('=') {
        text.push_str("# Each part of the datastore under a lease of its own. `palisade route` shows where a request falls.\n");
        for part in parts.split_whitespace() {
            let (path, scope) = part
                .split_once('=')
                .filter(|(path, scope)| path.starts_with('/') && !scope.is_empty())
                .ok_or_else(|| InitError::NoRoute(part.to_owned()))?;
            for path in paths(path) {
                let _ = write!(
                    text,
                    "[[route]]\npath = {}\nscope = {}\n\n",
                    quoted(&path),
                    quoted(scope)
                );
            }
        }
    } else {
        let _ = write!(
            text,
            "# The whole datastore is one scope: the lease of this name may write.\nscope = {}\n",
            quoted(parts)
        );
    }
    Ok(format!("{}\n", text.trim_end()))
}

/// A path and all below it; a path that has a pattern in it stays as it is.
fn paths(path: &str) -> Vec<String> {
    match path.trim_end_matches('/') {
        _ if path.contains('{') => vec![path.to_owned()],
        "" => vec!["/".into(), "/{*rest}".into()],
        path => vec![path.to_owned(), format!("{path}/{{*rest}}")],
    }
}

/// What is written has passed the same check as `palisade check`, before any file of the user's is touched.
fn write_checked(args: &InitArgs, text: &str) -> Result<(), InitError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| InitError::Io(path, error)
    };
    let mut draft = args.file.clone().into_os_string();
    draft.push(format!(".{}.draft", std::process::id()));
    let draft = PathBuf::from(draft);
    fs::write(&draft, text).map_err(io(&draft))?;
    let checked = cli::check(&SettingsArgs {
        sources: Sources {
            file: Some(draft.clone()),
            ..Sources::default()
        },
    });
    let put = match checked {
        Err(errors) => {
            let shown = draft.display().to_string();
            Err(InitError::Refused(
                errors
                    .to_string()
                    .replace(&shown, &args.file.display().to_string()),
            ))
        }
        Ok(_) if args.force => fs::write(&args.file, text).map_err(io(&args.file)),
        // Whoever made the file in the meantime keeps it.
        Ok(_) => fs::File::create_new(&args.file)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => InitError::Exists(args.file.clone()),
                _ => InitError::Io(args.file.clone(), error),
            }),
    };
    // A draft left behind harms nothing.
    let _ = fs::remove_file(&draft);
    put
}
