//! From what was typed to [`Settings`]: each value read by its kind, then the relations among them.

use http::Method;
use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    ConfigError, ConfigErrors, Etcd, Fence, Given, Leases, Limits, Listen, Log, LogFormat,
    MetricScopes, Place, Raw, Replicas, RouteGiven, Settings, Settle, Tls, Typed, Upstream,
    UpstreamTls,
    keys::{self, Key},
    value::{self, Wrong},
};
use crate::{
    headers::Forwarding,
    route::{self, Paths, RouteTable, Rule},
};

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

struct Reader<'a> {
    typed: &'a Typed,
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
}

/// Reading one value. After an error the default, or an empty value, stands in: nobody sees it.
impl Reader<'_> {
    fn given(&self, name: &str) -> Option<&Given> {
        self.typed.values.get(name)
    }

    fn place(&self, name: &str) -> Place {
        self.given(name)
            .map_or(Place::Default, |given| given.place.clone())
    }

    fn error(&mut self, name: &str, message: impl Into<String>, remedy: impl Into<String>) {
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

    fn text(&mut self, name: &str) -> String {
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

fn is_any_port(listen: &Listen) -> bool {
    matches!(listen, Listen::Tcp(address) if address.port() == 0)
}

/// Routes.
impl Reader<'_> {
    fn routes(&mut self) -> Arc<RouteTable> {
        let scope = self.text("scope");
        if let Err(why) = route::check_scope_name(&scope) {
            self.error(
                "scope",
                format!("{scope:?} is no scope's name: {why}"),
                "Write a lease's name.",
            );
            return RouteTable::single("default").into();
        }
        if self.typed.routes.is_empty() {
            return RouteTable::single(&scope).into();
        }
        if self.given("scope").is_some() {
            self.warnings
                .push("scope is not used: there are routes".into());
        }
        let rules = self
            .typed
            .routes
            .iter()
            .map(|given| self.rule(given))
            .collect();
        match RouteTable::new(rules) {
            Ok(table) => table.into(),
            Err(error) => {
                let given = &self.typed.routes[error.rule];
                let place = given
                    .keys
                    .get(error.key)
                    .map_or(&given.place, |key| &key.place);
                self.errors.push(ConfigError {
                    place: place.clone(),
                    key: format!("route.{}", error.key),
                    message: error.message,
                    remedy: error.remedy,
                });
                RouteTable::single("default").into()
            }
        }
    }

    fn rule(&mut self, given: &RouteGiven) -> Rule {
        let mut route = RouteReader {
            given,
            errors: &mut self.errors,
        };
        Rule {
            path: route.text("path").unwrap_or_default(),
            scope: route.text("scope"),
            paths: match route.text("paths").as_deref() {
                None | Some("tree") => Paths::Tree,
                Some("opaque") => Paths::Opaque,
                Some(_) => {
                    route.error(
                        "paths",
                        "this is no way to read paths",
                        "Write \"tree\" or \"opaque\".",
                    );
                    Paths::Tree
                }
            },
            methods: route.methods("methods"),
            reads: route.methods("reads"),
            writes: route.methods("writes"),
            query: route.query(),
            deny: route.deny(),
            place: given.place.to_string(),
        }
    }
}

struct RouteReader<'a> {
    given: &'a RouteGiven,
    errors: &'a mut Vec<ConfigError>,
}

impl RouteReader<'_> {
    fn error(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        let place = self
            .given
            .keys
            .get(key)
            .map_or(&self.given.place, |given| &given.place);
        self.errors.push(ConfigError {
            place: place.clone(),
            key: format!("route.{key}"),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match &self.given.keys.get(key)?.value {
            Raw::Text(text) => Some(text.clone()),
            _ => {
                self.error(key, "the value is no string", "Write it in quotes.");
                None
            }
        }
    }

    fn methods(&mut self, key: &str) -> Vec<Method> {
        let names = match self.given.keys.get(key).map(|given| &given.value) {
            None => return Vec::new(),
            Some(Raw::List(names)) => names.clone(),
            Some(_) => {
                self.error(
                    key,
                    "the value is no list",
                    "Write a list of methods, such as [\"POST\"].",
                );
                return Vec::new();
            }
        };
        let mut methods = Vec::new();
        for name in names {
            match Method::from_bytes(name.as_bytes()) {
                Ok(method) if !name.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                    methods.push(method);
                }
                _ => self.error(
                    key,
                    format!("{name:?} is no method"),
                    "Methods are words in capitals, such as \"POST\" (RFC 9110, section 9.1).",
                ),
            }
        }
        methods
    }

    fn query(&mut self) -> Vec<(String, String)> {
        match self.given.keys.get("query").map(|given| &given.value) {
            None => Vec::new(),
            Some(Raw::Table(pairs)) => pairs.clone(),
            Some(_) => {
                self.error(
                    "query",
                    "the value is no table",
                    "Write conditions, such as { delete = \"*\" }.",
                );
                Vec::new()
            }
        }
    }

    fn deny(&mut self) -> bool {
        match self.given.keys.get("deny").map(|given| &given.value) {
            None => false,
            Some(Raw::Switch(deny)) => *deny,
            Some(_) => {
                self.error(
                    "deny",
                    "the value is neither true nor false",
                    "Write true or false.",
                );
                false
            }
        }
    }
}

/// Relations among settings.
impl Reader<'_> {
    fn relations(&mut self, settings: &Settings) {
        self.pairs();
        self.times(settings);
        self.stores(settings);
        let tls = matches!(settings.upstream, Upstream::Tcp { tls: true, .. });
        let unused = [
            "upstream_tls.ca",
            "upstream_tls.cert",
            "upstream_tls.key",
            "upstream_tls.server_name",
        ]
        .into_iter()
        .find(|name| self.given(name).is_some() && !tls);
        if let Some(name) = unused {
            self.error(
                name,
                "upstream is not reached over TLS",
                "Write an https:// upstream, or remove the section [upstream_tls].",
            );
        }
        if tls && self.given("upstream_tls.ca").is_none() {
            self.error(
                "upstream_tls.ca",
                "nothing says which authorities to trust for upstream's certificate",
                "Write upstream_tls.ca = \"FILE\", such as \"/etc/ssl/certs/ca-certificates.crt\" for the system's.",
            );
        }
        if let Some(admin) = &settings.admin
            && settings.listen.contains(admin)
            && !is_any_port(admin)
        {
            self.error(
                "admin",
                "clients are listened for on the same address",
                "Write another port, or admin = \"off\".",
            );
        }
    }

    /// Settings that come in twos.
    fn pairs(&mut self) {
        for (one, other) in [
            ("tls.cert", "tls.key"),
            ("upstream_tls.cert", "upstream_tls.key"),
            ("etcd.cert", "etcd.key"),
            ("etcd.user", "etcd.password_file"),
        ] {
            for (given, missing) in [(one, other), (other, one)] {
                if self.given(given).is_some() && self.given(missing).is_none() {
                    self.error(
                        given,
                        format!("it stands without {missing}"),
                        format!("Write {missing} too, or remove it."),
                    );
                }
            }
        }
    }

    fn times(&mut self, settings: &Settings) {
        let fence = &settings.fence;
        if fence.abort_after > fence.drain_timeout {
            self.error(
                "fence.abort_after",
                "it is above fence.drain_timeout, so that no handover with a slow upload could end in time",
                "Write a shorter time, or a longer fence.drain_timeout.",
            );
        }
        if let Settle::After(settle) = fence.settle
            && settle > fence.drain_timeout
        {
            self.warnings.push(
                "fence.settle is above fence.drain_timeout: after an ambiguous write, requests get handover-pending and \
                 must come again"
                    .into(),
            );
        }
        let limits = &settings.limits;
        if limits
            .request_timeout
            .is_some_and(|whole| whole < limits.header_timeout)
        {
            self.error(
                "limits.request_timeout",
                "it is below limits.header_timeout",
                "Write a longer time, or off.",
            );
        }
    }

    fn stores(&mut self, settings: &Settings) {
        let etcd = match &settings.leases {
            Leases::Etcd { tls, .. } => Some(*tls),
            _ => None,
        };
        if let (Some(_), None) = (&settings.replicas, etcd) {
            self.error(
                "replicas.group",
                "replicas need etcd, and leases names none",
                "Write leases = \"etcd://HOST:PORT\", or remove the section [replicas].",
            );
        }
        let in_etcd = |name: &&str| name.starts_with("etcd.");
        let named: Vec<_> = self.typed.values.keys().copied().filter(in_etcd).collect();
        if let (None, Some(name)) = (etcd, named.first()) {
            self.error(
                name,
                "leases names no etcd",
                "Write leases = \"etcd://HOST:PORT\", or remove the section [etcd].",
            );
        }
        let files = ["etcd.ca", "etcd.cert", "etcd.key"];
        if let (Some(false), Some(name)) =
            (etcd, files.iter().find(|name| self.given(name).is_some()))
        {
            self.error(
                name,
                "etcd is not reached over TLS",
                "Write leases = \"etcds://HOST:PORT\".",
            );
        }
        if let Some(replicas) = &settings.replicas {
            self.session(replicas);
        }
    }

    /// etcd counts leases in seconds, and the margin before the deadline must leave something (design, section 6).
    fn session(&mut self, replicas: &Replicas) {
        let ttl = replicas.session_ttl;
        if ttl.subsec_nanos() != 0 || ttl < Duration::from_secs(5) {
            self.error(
                "replicas.session_ttl",
                "it is below 5 s, or has a part of a second",
                "Write whole seconds, at least \"5s\".",
            );
        }
    }
}
