//! What the tests of this crate share.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

pub mod lossy;

use palisade_lease::{LeaseStore, LeaseUrl};
use palisade_loadtest::servers::{Etcd, newer_etcd, program};
use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

/// A place for leases, of either kind, with nothing in it.
pub enum Place {
    Etcd(Box<Etcd>),
    Sqlite(TempDir),
}

impl Place {
    pub fn etcd() -> Self {
        Self::Etcd(Box::new(Etcd::start().unwrap()))
    }

    /// An etcd 3.5, beside Debian 12's 3.4, or `None` where there is none to be had.
    pub fn newer_etcd() -> Option<Self> {
        match newer_etcd() {
            Ok(programs) => {
                let etcd = Etcd::start_of(Some(&programs), &[]).unwrap();
                Some(Self::Etcd(Box::new(etcd)))
            }
            Err(why) => {
                println!("skipped: no etcd 3.5 to be had: {why}");
                None
            }
        }
    }

    pub fn sqlite() -> Self {
        Self::Sqlite(TempDir::with_prefix("palisade-leases-").unwrap())
    }

    pub fn url(&self) -> String {
        match self {
            Self::Etcd(etcd) => etcd.url(),
            Self::Sqlite(folder) => format!("sqlite:{}/leases.db", folder.path().display()),
        }
    }

    /// A store of one's own, as another process would have it.
    pub fn open(&self) -> Arc<dyn LeaseStore> {
        palisade_lease::open(&self.url().parse::<LeaseUrl>().unwrap()).unwrap()
    }

    /// `palisade-lease` with these leases.
    pub fn command(&self, arguments: &[&str]) -> Command {
        command(&self.url(), arguments)
    }
}

/// `palisade-lease` with the leases of this URL.
pub fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("palisade-lease"));
    command
        .env("PALISADE_LEASES", url)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// The same test on etcd, on a newer etcd and on a file.
#[macro_export]
macro_rules! on_all {
    ($($name:ident),* $(,)?) => {
        mod on_etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&super::common::Place::etcd()).await;
            })*
        }
        mod on_newer_etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                // Fetching it may take a while, once: not on a thread that drives tasks.
                let place = tokio::task::spawn_blocking(super::common::Place::newer_etcd);
                if let Some(place) = place.await.unwrap() {
                    super::$name(&place).await;
                }
            })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&super::common::Place::sqlite()).await;
            })*
        }
    };
}

/// Waits for a condition; a test that waits for ever says for what.
pub async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let started = palisade_lease::clock::boot();
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        let waited = palisade_lease::clock::boot().since(started);
        assert!(
            waited < palisade_loadtest::servers::GIVE_UP,
            "gave up waiting for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until this many stand in the queue.
pub async fn queued(store: &Arc<dyn LeaseStore>, name: &str, count: usize) {
    let name = name.parse().unwrap();
    until(&format!("{count} waiters"), || async {
        (store.status(&name).await.unwrap().waiters.len() == count).then_some(())
    })
    .await;
}

/// How often to repeat what must never fail; `PALISADE_RUNS` says how often at length.
pub fn runs(short: usize) -> usize {
    std::env::var("PALISADE_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(short)
}
