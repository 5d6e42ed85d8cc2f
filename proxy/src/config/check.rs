//! From what was typed to [`Settings`]: each value read by its kind, then the relations among them.

use std::{path::PathBuf, time::Duration};

use super::{
    ConfigError, ConfigErrors, Etcd, Fence, Given, Leases, Limits, Listen, Log, LogFormat,
    MetricScopes, Place, Raw, Replicas, Settings, Settle, Tls, Typed, Upstream, UpstreamTls,
    keys::{self, Key},
    value::{self, Wrong},
};
use crate::{headers::Forwarding, route};

/// Checks everything. Goes on after an error, so that all are told at once.
pub(super) fn settings(typed: &Typed, errors: Vec<ConfigError>) -> Result<Settings, ConfigErrors> {
    // A file that could not be read at all would make every other error a consequence.
    if errors.iter().any(|error| error.key.is_empty()) {
        return Err(ConfigErrors(errors));
    }
    let mut reader = Reader {
        typed,
        errors,
        warnings: Vec::new(),
    };
    let mut settings = reader.settings();
    reader.relations(&settings);
    if !reader.errors.is_empty() {
        return Err(ConfigErrors(reader.errors));
    }
    settings.warnings = reader.warnings;
    Ok(settings)
}

/// Checks the state folder only.
pub(super) fn state_folder(
    typed: &Typed,
    errors: Vec<ConfigError>,
) -> Result<PathBuf, ConfigErrors> {
    let mut reader = Reader {
        typed,
        errors,
        warnings: Vec::new(),
    };
    // Another key's error is not this command's business.
    reader.errors.retain(|error| error.key.is_empty());
    let folder = PathBuf::from(reader.text("state"));
    match reader.errors.is_empty() {
        true => Ok(folder),
        false => Err(ConfigErrors(reader.errors)),
    }
}

/// Reads settings one by one, and gathers what is wrong.
pub(super) struct Reader<'a> {
    pub(super) typed: &'a Typed,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
}

/// Reading one value. After an error the default, or an empty value, stands in: nobody sees it.
impl Reader<'_> {
    pub(super) fn given(&self, name: &str) -> Option<&Given> {
        self.typed.values.get(name)
    }

    fn place(&self, name: &str) -> Place {
        self.given(name)
            .map_or(Place::Default, |given| given.place.clone())
    }

    pub(super) fn error(
        &mut self,
        name: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.errors.push(ConfigError {
            place: self.place(name),
            key: name.into(),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// The text of a setting, or of its default.
    fn optional(&mut self, name: &str) -> Option<String> {
        let key = known(name);
        match self.given(name).map(|given| &given.value) {
            None => key.default.map(str::to_owned),
            Some(Raw::Text(text)) => Some(text.clone()),
            Some(Raw::Number(number)) => Some(number.to_string()),
            Some(Raw::Switch(switch)) => Some(switch.to_string()),
            Some(Raw::List(_) | Raw::Table(_)) => {
                self.error(
                    name,
                    "the value is a list or a table",
                    format!("Write one value: {}.", key.form),
                );
                key.default.map(str::to_owned)
            }
        }
    }

    pub(super) fn text(&mut self, name: &str) -> String {
        match self.optional(name) {
            Some(text) if !text.is_empty() => text,
            _ => {
                let form = known(name).form;
                self.error(
                    name,
                    "the value is missing",
                    format!("Write {name} = {form}."),
                );
                String::new()
            }
        }
    }

    fn read<T>(&mut self, name: &str, read: impl Fn(&str) -> Result<T, Wrong>) -> Option<T> {
        let text = self.text(name);
        if text.is_empty() {
            return None;
        }
        match read(&text) {
            Ok(value) => Some(value),
            Err((message, remedy)) => {
                self.error(name, message, remedy);
                None
            }
        }
    }

    fn duration(&mut self, name: &str) -> Duration {
        self.read(name, value::duration).unwrap_or_default()
    }

    fn positive(&mut self, name: &str) -> Duration {
        let duration = self.read(name, value::duration);
        if duration == Some(Duration::ZERO) {
            self.error(
                name,
                "the time is zero",
                "Write a time above zero, such as \"5s\".",
            );
        }
        duration.unwrap_or_default()
    }

    fn size(&mut self, name: &str, least: usize, most: usize) -> usize {
        let size = self.read(name, value::size).unwrap_or(least);
        if !(least..=most).contains(&size) {
            let (least, most) = (value::show_size(least), value::show_size(most));
            self.error(
                name,
                "the size is out of range",
                format!("Write a size from {least} to {most}."),
            );
        }
        size
    }

    fn count(&mut self, name: &str, least: u32, most: u32) -> u32 {
        let count = |text: &str| match text.parse::<u32>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count),
            _ => Err((
                format!("{text:?} is no number from {least} to {most}"),
                "Write a whole number in that range.".into(),
            )),
        };
        self.read(name, count).unwrap_or(least)
    }

    fn switch(&mut self, name: &str) -> bool {
        let switch = |text: &str| match text {
            "true" | "on" | "yes" => Ok(true),
            "false" | "off" | "no" => Ok(false),
            _ => Err((
                format!("{text:?} is neither true nor false"),
                "Write true or false.".into(),
            )),
        };
        self.read(name, switch).unwrap_or_default()
    }

    fn path(&mut self, name: &str) -> Option<PathBuf> {
        match self.optional(name) {
            Some(text) if text.is_empty() => {
                self.error(name, "the path is empty", "Write a path, or leave it out.");
                None
            }
            path => path.map(PathBuf::from),
        }
    }

    /// A list, or a text with commas.
    fn list(&mut self, name: &str) -> Vec<String> {
        match self.given(name).map(|given| &given.value) {
            Some(Raw::List(list)) => list.clone(),
            _ => self
                .text(name)
                .split(',')
                .map(|item| item.trim().to_owned())
                .filter(|item| !item.is_empty())
                .collect(),
        }
    }

    /// A name that becomes one segment of a key in etcd.
    fn segment(&mut self, name: &str) -> String {
        let segment = |text: &str| {
            if text.contains('/') || route::check_scope_name(text).is_err() {
                Err((
                    format!("{text:?} is no such name"),
                    "Write 1 to 512 bytes without slashes and control characters.".into(),
                ))
            } else {
                Ok(text.to_owned())
            }
        };
        self.read(name, segment).unwrap_or_default()
    }
}

fn known(name: &str) -> &'static Key {
    keys::find(name).expect("a key of the table")
}

/// Reading each section.
impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        Settings {
            name: self.segment("name"),
            listen: self.listen(),
            upstream: self.upstream(),
            admin: self.admin(),
            state: PathBuf::from(self.text("state")),
            leases: self.leases(),
            threads: self.count("threads", 0, 1024) as usize,
            routes: self.routes(),
            log: self.log(),
            forwarding: self.forwarding(),
            fence: self.fence(),
            etcd: self.etcd(),
            tls: self.tls(),
            upstream_tls: UpstreamTls {
                ca: self.path("upstream_tls.ca"),
                cert: self.path("upstream_tls.cert"),
                key: self.path("upstream_tls.key"),
                server_name: self.optional("upstream_tls.server_name"),
            },
            limits: self.limits(),
            metric_scopes: self.metric_scopes(),
            replicas: self.replicas(),
            warnings: Vec::new(),
        }
    }

    fn listen(&mut self) -> Vec<Listen> {
        let mut all = Vec::new();
        for text in self.list("listen") {
            match value::listen(&text) {
                Ok(listen) if all.contains(&listen) && !is_any_port(&listen) => {
                    self.error(
                        "listen",
                        format!("{text:?} stands twice"),
                        "Remove one of them.",
                    );
                }
                Ok(listen) => all.push(listen),
                Err((message, remedy)) => self.error("listen", message, remedy),
            }
        }
        if all.is_empty() && !self.errors.iter().any(|error| error.key == "listen") {
            self.error(
                "listen",
                "there is no address to listen on",
                "Write one, such as [\"127.0.0.1:8080\"].",
            );
        }
        all
    }

    fn upstream(&mut self) -> Upstream {
        if self.given("upstream").is_none() {
            self.error(
                "upstream",
                "there is no upstream",
                "Write upstream = \"http://HOST:PORT\", or give --upstream or PALISADE_UPSTREAM.",
            );
        } else if let Some(upstream) = self.read("upstream", value::upstream) {
            return upstream;
        }
        Upstream::Unix(PathBuf::new())
    }

    fn admin(&mut self) -> Option<Listen> {
        match self.text("admin").as_str() {
            "off" => None,
            _ => self.read("admin", value::listen),
        }
    }

    fn leases(&mut self) -> Leases {
        match self.given("leases") {
            None => Leases::HighestSeen,
            Some(_) => self
                .read("leases", value::leases)
                .unwrap_or(Leases::HighestSeen),
        }
    }

    fn log(&mut self) -> Log {
        let format = |text: &str| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err((
                format!("{text:?} is no format"),
                "Write text or json.".into(),
            )),
        };
        let level = |text: &str| {
            match text.parse::<tracing_subscriber::filter::Targets>() {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err((
                format!("{text:?} is no log level"),
                "Write error, warn, info, debug or trace, or directives such as info,palisade::gate=debug.".into(),
            )),
        }
        };
        Log {
            format: self.read("log_format", format).unwrap_or(LogFormat::Text),
            level: self.read("log_level", level).unwrap_or_default(),
            access: self.switch("access_log"),
        }
    }

    fn forwarding(&mut self) -> Forwarding {
        let fields = |text: &str| match text {
            "both" | "true" => Ok((true, true)),
            "forwarded" => Ok((true, false)),
            "x-forwarded" => Ok((false, true)),
            "off" | "false" => Ok((false, false)),
            _ => Err((
                format!("{text:?} is no choice"),
                "Write both, forwarded, x-forwarded or off.".into(),
            )),
        };
        let (forwarded, x_forwarded) = self.read("forwarded", fields).unwrap_or_default();
        Forwarding {
            via: self.switch("via"),
            forwarded,
            x_forwarded,
        }
    }

    fn fence(&mut self) -> Fence {
        let settle = match self.text("fence.settle").as_str() {
            "manual" => Settle::Manual,
            _ => Settle::After(self.positive("fence.settle")),
        };
        Fence {
            settle,
            abort_after: self.duration("fence.abort_after"),
            drain_timeout: self.positive("fence.drain_timeout"),
            buffer_body: self.size("fence.buffer_body", 0, 64 << 20),
        }
    }

    fn etcd(&mut self) -> Etcd {
        let prefix = self.text("etcd.prefix");
        if !prefix.ends_with('/') || prefix.chars().any(char::is_control) {
            self.error(
                "etcd.prefix",
                "the prefix does not end with a slash",
                "Write it as \"/palisade/\".",
            );
        }
        Etcd {
            user: self.optional("etcd.user"),
            password_file: self.path("etcd.password_file"),
            ca: self.path("etcd.ca"),
            cert: self.path("etcd.cert"),
            key: self.path("etcd.key"),
            prefix,
        }
    }

    fn tls(&mut self) -> Option<Tls> {
        let (cert, key) = (self.path("tls.cert"), self.path("tls.key"));
        let client_ca = self.path("tls.client_ca");
        match (cert, key) {
            (Some(cert), Some(key)) => Some(Tls {
                cert,
                key,
                client_ca,
            }),
            (None, None) => {
                if client_ca.is_some() {
                    self.error(
                        "tls.client_ca",
                        "client certificates are asked for, but there is no TLS",
                        "Write tls.cert and tls.key too.",
                    );
                }
                None
            }
            // The relation is checked with the other pairs.
            _ => None,
        }
    }

    fn limits(&mut self) -> Limits {
        let request_timeout = match self.text("limits.request_timeout").as_str() {
            "off" => None,
            _ => Some(self.positive("limits.request_timeout")),
        };
        Limits {
            connections: self.count("limits.connections", 1, 10_000_000) as usize,
            inflight: self.count("limits.inflight", 1, 10_000_000) as usize,
            waiting: self.count("limits.waiting", 0, 10_000_000) as usize,
            // hyper's buffer is at least 8 KiB.
            header_bytes: self.size("limits.header_bytes", 8 << 10, 16 << 20),
            header_count: self.count("limits.header_count", 8, 10_000) as usize,
            http2_streams: self.count("limits.http2_streams", 1, 1_000_000),
            header_timeout: self.positive("limits.header_timeout"),
            tls_handshake_timeout: self.positive("limits.tls_handshake_timeout"),
            body_idle_timeout: self.positive("limits.body_idle_timeout"),
            response_idle_timeout: self.positive("limits.response_idle_timeout"),
            keepalive_idle: self.positive("limits.keepalive_idle"),
            request_timeout,
            upstream_connect_timeout: self.positive("limits.upstream_connect_timeout"),
            upstream_response_timeout: self.positive("limits.upstream_response_timeout"),
            upstream_idle_timeout: self.duration("limits.upstream_idle_timeout"),
            drain_delay: self.duration("limits.drain_delay"),
            shutdown_timeout: self.duration("limits.shutdown_timeout"),
        }
    }

    fn metric_scopes(&mut self) -> MetricScopes {
        let list = self.list("metrics.scopes");
        match list.as_slice() {
            [number] if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                MetricScopes::Busiest(self.count("metrics.scopes", 0, 10_000) as usize)
            }
            _ => MetricScopes::Named(list),
        }
    }

    fn replicas(&mut self) -> Option<Replicas> {
        let any = ["group", "session_ttl", "max_pause"]
            .iter()
            .any(|key| self.given(&format!("replicas.{key}")).is_some());
        any.then(|| Replicas {
            group: self.segment("replicas.group"),
            session_ttl: self.positive("replicas.session_ttl"),
            max_pause: self.positive("replicas.max_pause"),
        })
    }
}

/// Port 0: the system chooses, so that two are two.
pub(super) fn is_any_port(listen: &Listen) -> bool {
    matches!(listen, Listen::Tcp(address) if address.port() == 0)
}
