//! What there is to know of the proxy as a whole.

use super::{
    Admin,
    page::{Facts, age},
};
use crate::gate::Place;
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, UNIX_EPOCH},
};

impl Admin {
    /// For the status page. Asks upstream for a connection, as readiness does.
    pub(super) async fn facts(&self) -> Facts {
        let mut rows = vec![
            ("Version", env!("CARGO_PKG_VERSION").to_owned()),
            ("Running for", age(self.gate.now().since(self.started))),
            ("Upstream", self.upstream.to_string()),
            ("Lease store", self.lease_store_in_words()),
        ];
        if let Some(place) = self.gate.place() {
            rows.push(("Replicas", replicas(place)));
        }
        if let Some(tls) = &self.certificate {
            rows.push(("Certificate", certificate(tls.expiry())));
        }
        rows.extend([
            (
                "Connections",
                self.connections.open.load(Relaxed).to_string(),
            ),
            (
                "Requests waiting for a raise",
                self.gate.waiting().to_string(),
            ),
        ]);
        Facts {
            reasons: self.reasons().await,
            rows,
        }
    }

    fn lease_store_in_words(&self) -> String {
        let Some(probe) = &self.lease_store else {
            return "none: the highest token seen is the floor".to_owned();
        };
        let health = probe();
        match (health.changed, health.away) {
            (Some(why), _) => format!("not trusted: {why}"),
            (None, Some(why)) => format!("can't be asked: {why}"),
            (None, None) if self.gate.frozen() => "not trusted".to_owned(),
            (None, None) => "up, and trusted".to_owned(),
        }
    }
}

fn replicas(place: &Place) -> String {
    match place.away() {
        Some(why) => format!("not joined: {why}"),
        None => format!(
            "{} in the group, this one's session has {} left",
            place.present(),
            age(place.remaining())
        ),
    }
}

fn certificate(expiry: Option<i64>) -> String {
    let Some(expiry) = expiry else {
        return "its end can't be read".to_owned();
    };
    let end = UNIX_EPOCH + Duration::from_secs(u64::try_from(expiry).unwrap_or(0));
    match end.duration_since(palisade_lease::clock::wall()) {
        Ok(left) => format!("good for {}", age(left)),
        Err(_) => "has run out".to_owned(),
    }
}
