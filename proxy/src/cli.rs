//! The command line: what can be asked, and the commands that need no running proxy.

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    config::{ConfigError, ConfigErrors, Settings, SettingsArgs, StateArgs},
    init::InitArgs,
    tls::{self, ServerTls},
};

/// Exit codes, in the one place.
pub mod exit {
    /// All is well.
    pub const OK: u8 = 0;
    /// A running proxy could not do what was asked, or there is none.
    pub const FAILED: u8 = 1;
    /// The command line is wrong (sysexits.h, `EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// The state folder can't be used (sysexits.h, `EX_IOERR`).
    pub const STATE: u8 = 74;
    /// No proxy answers on the control socket.
    pub const UNAVAILABLE: u8 = 69;
    /// The settings are wrong (sysexits.h, `EX_CONFIG`).
    pub const CONFIG: u8 = 78;
}

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "palisade",
    version,
    about = "A fencing proxy in front of datastores that have no fencing of their own"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts the proxy
    Run(SettingsArgs),
    /// Asks three questions, or takes flags, and writes a commented configuration
    Init(InitArgs),
    /// Checks the settings and prints what is in effect: exit 0, or 78 with place and remedy
    Check(SettingsArgs),
    /// Says in which scope a request falls, and why
    Route(RouteArgs),
    /// Lists the scopes of the running proxy
    Scopes(ScopesArgs),
    /// Settles the ambiguous writes of a scope, once you know that they can't be applied any more
    Settle(SettleArgs),
    /// Goes on with a lease store that was restored or replaced
    NewEpoch(NewEpochArgs),
    /// Says whether the running proxy is ready: exit 0, or 1 with the reasons, or 69 if there is none
    Health(StateArgs),
    /// Prints a completion script
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Writes the manual pages
    Man {
        /// The folder to write them to
        dir: PathBuf,
    },
}

/// `palisade route`.
#[derive(Debug, Args)]
pub struct RouteArgs {
    /// The method, such as PUT
    pub method: String,
    /// Path and query as a client sends them, or a whole URL
    pub target: String,
    /// A header field that counts, such as "Destination: /b/x"; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub fields: Vec<String>,
    /// The settings
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// `palisade scopes`.
#[derive(Debug, Args)]
pub struct ScopesArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Where the proxy is
    #[command(flatten)]
    pub state: StateArgs,
}

/// `palisade settle`.
#[derive(Debug, Args)]
pub struct SettleArgs {
    /// The scope's name
    pub scope: String,
    /// Where the proxy is
    #[command(flatten)]
    pub state: StateArgs,
}

/// `palisade new-epoch`.
#[derive(Debug, Args)]
pub struct NewEpochArgs {
    /// Do it without asking
    #[arg(long)]
    pub yes: bool,
    /// Push the store's revision up by at most this many puts, if it is below what was seen before
    #[arg(long, value_name = "N")]
    pub advance: Option<u64>,
    /// Where the proxy is
    #[command(flatten)]
    pub state: StateArgs,
}

impl Cli {
    /// Reads a command line. What `--help`, `--version` or an error has to say is printed; then the exit code comes
    /// back.
    pub fn read<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Result<Self, u8> {
        Self::try_parse_from(args).map_err(|error| {
            // Nobody is left to tell if the terminal is gone.
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => exit::OK,
                _ => exit::USAGE,
            }
        })
    }
}

/// `palisade check`: what is in effect, as TOML with the place of each value. Reads the files that the settings name,
/// as starting would.
pub fn check(args: &SettingsArgs) -> Result<String, ConfigErrors> {
    let (settings, shown) = Settings::show(&args.sources)?;
    let mut errors = Vec::new();
    let mut error = |key: &str, message: String| {
        errors.push(ConfigError {
            place: Settings::place(&args.sources, key),
            key: key.into(),
            message,
            remedy: "Check the file and its permissions.".into(),
        });
    };
    if let Some(Err(why)) = settings.tls.as_ref().map(ServerTls::load) {
        error("tls.cert", why.to_string());
    }
    if let Err(why) = tls::client_config(&settings.upstream_tls) {
        error("upstream_tls.ca", why.to_string());
    }
    if let Some(file) = &settings.etcd.password_file
        && let Err(why) = std::fs::read(file)
    {
        error("etcd.password_file", format!("{}: {why}", file.display()));
    }
    match errors.is_empty() {
        true => Ok(shown),
        false => Err(ConfigErrors(errors)),
    }
}

/// `palisade route`: the explanation, or what is wrong with the question and its exit code.
pub fn route(args: &RouteArgs) -> Result<String, (u8, String)> {
    let usage = |why: &str| (exit::USAGE, why.to_owned());
    let method = Method::from_bytes(args.method.as_bytes())
        .map_err(|_| usage("METHOD is no method, such as PUT"))?;
    let target = target(&args.target).ok_or_else(|| {
        usage("TARGET is neither a path nor an http(s) URL, or has a fragment (`#...`) in it")
    })?;
    let fields = fields(&args.fields).ok_or_else(|| usage("a header field is no NAME: VALUE"))?;
    let settings = Settings::load(&args.settings.sources)
        .map_err(|errors| (exit::CONFIG, errors.to_string()))?;
    let explanation = settings.routes.explain(&method, &target, &fields);
    let refused = matches!(method, Method::CONNECT | Method::TRACE);
    Ok(match refused {
        true => "=> refused, 405 method-refused: CONNECT and TRACE are never forwarded".to_owned(),
        false => explanation.to_string(),
    })
}

/// Path and query, byte for byte. A URL's scheme and host fall away.
fn target(given: &str) -> Option<String> {
    if given.contains('#') {
        return None;
    }
    if given == "*" || given.starts_with('/') {
        return Some(given.to_owned());
    }
    let uri: Uri = given.parse().ok()?;
    uri.scheme()?;
    uri.path_and_query().map(ToString::to_string)
}

fn fields(given: &[String]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    for line in given {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        fields.append(name, HeaderValue::from_str(value.trim()).ok()?);
    }
    Some(fields)
}

/// `palisade completions`.
pub fn completions(shell: Shell, to: &mut impl Write) {
    clap_complete::generate(
        shell,
        &mut <Cli as clap::CommandFactory>::command(),
        "palisade",
        to,
    );
}

/// `palisade man`.
///
/// # Errors
/// If they can't be written.
pub fn man(dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(<Cli as clap::CommandFactory>::command(), dir)
}

#[cfg(test)]
mod tests;
