//! `--leases`: where the leases are.

use std::{fmt, path::PathBuf, str::FromStr};

/// Where the leases are. There is no default: a lease on a local file is no lease between hosts.
///
/// ```
/// use palisade_lease::LeaseUrl;
/// let url: LeaseUrl = "etcd://10.0.0.1:2379,10.0.0.2:2379".parse()?;
/// assert_eq!(url.to_string(), "etcd://10.0.0.1:2379,10.0.0.2:2379");
/// # Ok::<(), palisade_lease::BadUrl>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUrl {
    /// `etcd://host:port,host:port`, or `etcds://` for TLS.
    Etcd {
        /// `host:port`, at least one.
        endpoints: Vec<String>,
        /// Whether to speak TLS.
        tls: bool,
    },
    /// `sqlite:/path/leases.db`, for the processes of one host.
    Sqlite(PathBuf),
}

/// Why some text is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// Another scheme, or none.
    #[error("{0:?} is not etcd://host:port, etcds://host:port or sqlite:/path")]
    Scheme(String),
    /// An endpoint that is no `host` or `host:port`.
    #[error("{0:?} is not host:port")]
    Endpoint(String),
    /// `sqlite:` without a path.
    #[error("sqlite: needs the path of a file, e.g. sqlite:/var/lib/leases.db")]
    NoPath,
}

impl FromStr for LeaseUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("sqlite:") {
            // `sqlite:///path` as well, since other programs write it so.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(BadUrl::NoPath);
            }
            return Ok(Self::Sqlite(path.into()));
        }
        let (tls, list) = if let Some(list) = text.strip_prefix("etcds://") {
            (true, list)
        } else if let Some(list) = text.strip_prefix("etcd://") {
            (false, list)
        } else {
            return Err(BadUrl::Scheme(text.to_owned()));
        };
        let endpoints = list
            .split(',')
            .map(endpoint)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Etcd { endpoints, tls })
    }
}

impl LeaseUrl {
    /// The URL for what `ETCDCTL_ENDPOINTS` holds: `host:port` or `http(s)://host:port`, separated by commas.
    pub fn from_etcdctl_endpoints(list: &str) -> Result<Self, BadUrl> {
        let tls = list.split(',').any(|e| e.trim().starts_with("https://"));
        let endpoints = list
            .split(',')
            .map(|e| {
                let e = e.trim();
                let e = e
                    .strip_prefix("https://")
                    .or(e.strip_prefix("http://"))
                    .unwrap_or(e);
                endpoint(e)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Etcd { endpoints, tls })
    }
}

/// `host:port`, with etcd's client port where none is given.
fn endpoint(text: &str) -> Result<String, BadUrl> {
    let text = text.trim().trim_end_matches('/');
    let bad = || BadUrl::Endpoint(text.to_owned());
    let with_port = match text.rsplit_once(':') {
        // A colon inside brackets belongs to an IPv6 address.
        Some((host, port)) if !port.contains(']') => {
            port.parse::<u16>().map_err(|_| bad())?;
            (!host.is_empty()).then(|| text.to_owned())
        }
        _ if text.is_empty() => None,
        _ => Some(format!("{text}:2379")),
    };
    let with_port = with_port.ok_or_else(bad)?;
    let authority: http::uri::Authority = with_port.parse().map_err(|_| bad())?;
    // A user in the URL would end up in logs and process lists; there are options for it.
    if with_port.contains('@') || authority.host().is_empty() {
        return Err(bad());
    }
    Ok(with_port)
}

impl fmt::Display for LeaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd { endpoints, tls } => {
                let scheme = if *tls { "etcds" } else { "etcd" };
                write!(f, "{scheme}://{}", endpoints.join(","))
            }
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, prints) in [
            ("etcd://127.0.0.1:2379", "etcd://127.0.0.1:2379"),
            (
                "etcd://a,b:1 , [::1]:3,[::1]",
                "etcd://a:2379,b:1,[::1]:3,[::1]:2379",
            ),
            ("etcds://a:1/", "etcds://a:1"),
            ("sqlite:/x/l.db", "sqlite:/x/l.db"),
            ("sqlite:///x/l.db", "sqlite:/x/l.db"),
            ("sqlite:l.db", "sqlite:l.db"),
        ] {
            let url: LeaseUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), prints);
        }
        for bad in [
            "",
            "a:1",
            "http://a:1",
            "etcd://",
            "etcd://a:1,",
            "etcd://:1",
            "etcd://a:x",
            "etcd://u:p@a:1",
            "etcd://a b:1",
            "sqlite:",
            "sqlite://",
        ] {
            assert!(bad.parse::<LeaseUrl>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn etcdctl_endpoints() {
        let url = LeaseUrl::from_etcdctl_endpoints("https://a:1, https://b:2").unwrap();
        assert_eq!(url.to_string(), "etcds://a:1,b:2");
        let url = LeaseUrl::from_etcdctl_endpoints("127.0.0.1:2379").unwrap();
        assert_eq!(url.to_string(), "etcd://127.0.0.1:2379");
    }
}
