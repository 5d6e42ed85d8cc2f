//! Strict readers of single values. Each error says what would be right.

use palisade_lease::LeaseUrl;
use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

/// Why a value is wrong, and what to write.
pub(super) type Wrong = (String, String);

fn wrong<T>(message: impl Into<String>, remedy: impl Into<String>) -> Result<T, Wrong> {
    Err((message.into(), remedy.into()))
}

/// A duration: whole numbers with units, largest first and no blanks: `250ms`, `15s`, `1m30s`, `1h`.
pub(super) fn duration(text: &str) -> Result<Duration, Wrong> {
    let remedy = "Write whole numbers with units, such as \"250ms\", \"15s\" or \"1m30s\".";
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..]
            .bytes()
            .take_while(u8::is_ascii_alphabetic)
            .count();
        let unit: u64 = match &rest[digits..digits + letters] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            _ => return wrong(format!("{text:?} is no duration"), remedy),
        };
        let number = rest[..digits].parse::<u64>().ok();
        let Some(part) = number
            .filter(|_| unit < last_unit)
            .and_then(|n| n.checked_mul(unit))
        else {
            return wrong(format!("{text:?} is no duration"), remedy);
        };
        last_unit = unit;
        sum = sum.saturating_add(Duration::from_micros(part));
        rest = &rest[digits + letters..];
    }
    if text.is_empty() {
        return wrong("the duration is empty", remedy);
    }
    if sum > Duration::from_secs(30 * 24 * 3600) {
        return wrong(
            format!("{text:?} is above 30 days"),
            "Write a shorter duration.",
        );
    }
    Ok(sum)
}

/// A duration as it would be written.
pub fn show_duration(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".into();
    }
    let mut left = duration.as_micros();
    let mut shown = String::new();
    for (unit, name) in [
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ] {
        if left >= unit {
            shown.push_str(&format!("{}{name}", left / unit));
            left %= unit;
        }
    }
    shown
}

/// A size in bytes: `512`, `512B`, `64KiB`, `1MiB`, `1GiB`, or by thousands `64KB`, `1MB`, `1GB`.
pub(super) fn size(text: &str) -> Result<usize, Wrong> {
    let remedy = "Write a whole number with a unit, such as \"64KiB\" or \"1MiB\".";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit: usize = match &text[digits..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return wrong(format!("{text:?} is no size"), remedy),
    };
    match text[..digits]
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
    {
        Some(size) => Ok(size),
        None => wrong(format!("{text:?} is no size"), remedy),
    }
}

/// A size as it would be written.
pub fn show_size(size: usize) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if size >= unit && size.is_multiple_of(unit) {
            return format!("{}{name}", size / unit);
        }
    }
    format!("{size}B")
}

/// Where the proxy listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address and port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `IP:PORT` or `unix:PATH`.
pub(super) fn listen(text: &str) -> Result<Listen, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(text, path).map(Listen::Unix);
    }
    match text.parse() {
        Ok(address) => Ok(Listen::Tcp(address)),
        Err(_) => wrong(
            format!("{text:?} is no address to listen on"),
            "Write IP:PORT, such as \"127.0.0.1:8080\" or \"[::]:8080\", or \"unix:/path\".",
        ),
    }
}

/// Linux takes at most 107 bytes of path for a unix socket (unix(7)).
const UNIX_PATH_MAX: usize = 107;

fn unix_path(text: &str, path: &str) -> Result<PathBuf, Wrong> {
    if path.starts_with('/') && path.len() <= UNIX_PATH_MAX && !path.contains('\0') {
        Ok(path.into())
    } else {
        wrong(
            format!("{text:?} is no unix socket"),
            "Write \"unix:\" and an absolute path of at most 107 bytes.",
        )
    }
}

/// The datastore behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// Over TCP, with TLS or without.
    Tcp {
        /// A name or an address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether it is `https`.
        tls: bool,
    },
    /// Over the unix socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:PATH`. No path, no query, no user: they would change requests.
pub(super) fn upstream(text: &str) -> Result<Upstream, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(text, path).map(Upstream::Unix);
    }
    no_user(text)?;
    let remedy = "Write \"http://HOST:PORT\", \"https://HOST:PORT\" or \"unix:/path\", with nothing after the port.";
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return wrong(format!("{text:?} is no upstream"), remedy),
    };
    let port = if tls { 443 } else { 80 };
    match host_port(rest.strip_suffix('/').unwrap_or(rest), port) {
        Some((host, port)) => Ok(Upstream::Tcp { host, port, tls }),
        None => wrong(format!("{text:?} is no upstream"), remedy),
    }
}

/// A host and port, IPv6 in brackets. The host comes back without brackets.
fn host_port(text: &str, default: u16) -> Option<(String, u16)> {
    let authority: http::uri::Authority = text.parse().ok()?;
    let host = authority.host();
    // The port is read by hand: `Authority` takes an empty one.
    let port = match text.strip_prefix(host)?.strip_prefix(':') {
        None if text.len() == host.len() => default,
        None => return None,
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
    };
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let bracketed = plain.len() != host.len();
    let valid = if bracketed {
        plain.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        !plain.is_empty() && plain.chars().all(named)
    };
    valid.then(|| (plain.to_owned(), port))
}

/// The lease store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leases {
    /// None: the highest token seen wins, and whoever reaches the proxy is trusted to send a true one.
    HighestSeen,
    /// etcd at these endpoints, each `HOST:PORT`.
    Etcd {
        /// In the order of the URL.
        endpoints: Vec<String>,
        /// Whether it is `etcds`.
        tls: bool,
    },
    /// A sqlite file on this host.
    Sqlite(PathBuf),
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HighestSeen => f.write_str("(none: highest-seen)"),
            Self::Etcd { endpoints, tls } => {
                let scheme = if *tls { "etcds" } else { "etcd" };
                write!(f, "{scheme}://{}", endpoints.join(","))
            }
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

/// A URL with a user may have a password in it, which must not come out in an error.
fn no_user(text: &str) -> Result<(), Wrong> {
    match text.contains('@') {
        true => wrong(
            "the URL has a user in it",
            "Write it without, and say who you are by the settings for that.",
        ),
        false => Ok(()),
    }
}

/// `etcd://HOST:PORT,HOST:PORT`, `etcds://…` or `sqlite:/path`, as [`LeaseUrl`] has it.
pub(super) fn leases(text: &str) -> Result<Leases, Wrong> {
    no_user(text)?;
    match text.parse() {
        Ok(LeaseUrl::Etcd { endpoints, tls }) => Ok(Leases::Etcd { endpoints, tls }),
        // A relative path would count from wherever the proxy was started.
        Ok(LeaseUrl::Sqlite(path)) if path.is_absolute() => Ok(Leases::Sqlite(path)),
        Ok(LeaseUrl::Sqlite(_)) => wrong(
            format!("{text:?} is no absolute path"),
            "Write \"sqlite:\" and an absolute path.",
        ),
        Err(why) => wrong(
            format!("this is no lease store: {why}"),
            "Write \"etcd://HOST:PORT,HOST:PORT\", \"etcds://...\" for TLS, or \"sqlite:/path/leases.db\".",
        ),
    }
}

#[cfg(test)]
mod tests;
