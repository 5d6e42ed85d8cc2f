//! Relations among settings.

use std::time::Duration;

use super::{
    Leases, Replicas, Settings, Settle, Upstream,
    check::{Reader, is_any_port},
};

impl Reader<'_> {
    /// Checks what no value tells by itself.
    pub(super) fn relations(&mut self, settings: &Settings) {
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
