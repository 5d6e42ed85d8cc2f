//! Looks at a proxy's floors again and again.

use super::Recorder;
use crate::{history::What, proxy::ScopeState, servers::get};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Scrapes in a thread of its own until dropped. One look begins after the one before has ended.
#[derive(Debug)]
pub(super) struct Scraper {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    admin: Mutex<Option<SocketAddr>>,
    over: AtomicBool,
}

impl Scraper {
    pub(super) fn start(recorder: Arc<Recorder>, proxy: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let looking = shared.clone();
        thread::spawn(move || {
            while !looking.over.load(Relaxed) {
                let admin = *looking.admin.lock().unwrap_or_else(PoisonError::into_inner);
                for state in admin.map(look).unwrap_or_default() {
                    let scope = state.scope.trim_start_matches("chaos/").to_owned();
                    if let Some(floor) = state.floor {
                        recorder.record(What::Floor {
                            scope,
                            floor,
                            proxy,
                            open: state.open,
                        });
                    }
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        Self { shared }
    }

    /// Where to look from now on.
    pub(super) fn at(&self, admin: Option<SocketAddr>) {
        *self
            .shared
            .admin
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = admin;
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
    }
}

/// The scopes; none of a proxy that is not there.
fn look(admin: SocketAddr) -> Vec<ScopeState> {
    let answer = get(admin, "/scopes").unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or_default()
}
