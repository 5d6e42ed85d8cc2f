//! Which etcd is there: older ones had faults in leases and in progress notices (etcd-io/etcd#15220, #15247).

use crate::authority::connect::{EtcdOptions, Failure, Link, within};
use etcd_client::Client;
use std::{sync::Arc, time::Duration};

const OLDEST: [u32; 3] = [3, 5, 13];

/// Whether a group may rely on this member of etcd.
pub(super) async fn check(client: &mut Client, limit: Duration) -> Result<(), Failure> {
    let status = within(limit, client.status()).await?;
    let version = status.version();
    if new_enough(version) {
        Ok(())
    } else {
        Err(Failure::Other(too_old(version)))
    }
}

/// Refuses etcd members that are too old, at the start; those that don't answer are looked at when they do.
pub(crate) async fn check_all(options: EtcdOptions) -> Result<(), String> {
    let options = Arc::new(options);
    let mut link = Link::new(options.clone());
    for _ in &options.endpoints {
        let endpoint = link.endpoint().to_owned();
        let status = match link.client().await {
            Ok(client) => within(options.timeout, client.status()).await,
            Err(failure) => Err(failure),
        };
        match status {
            Ok(status) if !new_enough(status.version()) => {
                return Err(format!("{endpoint}: {}", too_old(status.version())));
            }
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!("etcd's version could not be looked at: {endpoint}: {failure}");
            }
        }
        link.rotate();
    }
    Ok(())
}

fn too_old(version: &str) -> String {
    let [major, minor, patch] = OLDEST;
    format!(
        "etcd {version} is too old for several replicas, they need {major}.{minor}.{patch} or newer. Upgrade etcd, or remove \
         the section [replicas] and run one proxy"
    )
}

/// Pre-releases count as the release before them.
fn new_enough(version: &str) -> bool {
    let (numbers, pre) = version
        .split_once('-')
        .map_or((version, false), |(numbers, _)| (numbers, true));
    let mut parsed = numbers.split('.').map(str::parse::<u32>);
    let mut next = || parsed.next().and_then(Result::ok);
    match (next(), next(), next()) {
        (Some(major), Some(minor), Some(patch)) => {
            let version = [major, minor, patch];
            version > OLDEST || (version == OLDEST && !pre)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::new_enough;

    #[test]
    fn versions() {
        for version in ["3.5.13", "3.5.16", "3.6.0", "3.6.0-rc.1", "4.0.0", "3.10.0"] {
            assert!(new_enough(version), "{version}");
        }
        for version in [
            "3.4.30",
            "3.5.12",
            "3.5.13-rc.0",
            "3.5.9",
            "2.3.8",
            "",
            "not a version",
            "3.5",
        ] {
            assert!(!new_enough(version), "{version}");
        }
    }
}
