//! Who holds which lease, for people who look. Nothing is decided by it: grants are verified by reads of their own.

use super::connect::{EtcdOptions, Failure, Link, within};
use etcd_client::GetOptions;
use palisade_lease::record::Record;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// Leases told of at once at most: somebody looks at this.
const MOST: i64 = 10_000;
/// Somebody waits for it.
const LIMIT: Duration = Duration::from_secs(2);

/// A lease's current grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its token.
    pub token: u64,
    /// What its holder wrote of itself; empty where that is not to be read.
    pub record: Record,
}

/// By the lease's name, which is the scope's.
pub type Holders = HashMap<Arc<str>, Holder>;

/// Reads them all from etcd.
pub(super) async fn read(options: &EtcdOptions, link: &mut Link) -> Result<Holders, Failure> {
    let prefix = options.leases();
    let read = async {
        let client = link.client().await?;
        let range = GetOptions::new().with_prefix().with_limit(MOST);
        within(LIMIT, client.get(prefix.clone(), Some(range))).await
    };
    let answer = tokio::time::timeout(LIMIT, read)
        .await
        .unwrap_or(Err(Failure::Late(LIMIT)));
    let answer = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            link.rotate();
            return Err(failure);
        }
    };
    let held = answer.kvs().iter().filter(|key| key.lease() != 0);
    Ok(held
        .filter_map(|key| {
            let name = key.key_str().ok()?.strip_prefix(&prefix)?;
            let holder = Holder {
                token: u64::try_from(key.mod_revision()).ok()?,
                record: Record::from_json(key.value()).unwrap_or_default(),
            };
            Some((Arc::from(name), holder))
        })
        .collect())
}
