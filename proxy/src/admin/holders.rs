//! Who holds the lease of a scope, beside how the scope stands.

use crate::{
    authority::{Holder, Holders},
    gate::ScopeView,
};
use serde::Serialize;
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};

/// However many look, and however often, the lease store is asked this often at most.
const FRESH: Duration = Duration::from_secs(1);

/// Asks the lease store who holds what.
pub type HoldersTask =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Holders, String>> + Send>> + Send + Sync>;

/// What was heard last of the holders.
pub struct Known {
    ask: HoldersTask,
    last: Mutex<Option<(Instant, Arc<Holders>)>>,
}

impl Known {
    /// Nothing yet.
    pub fn new(ask: HoldersTask) -> Self {
        Self {
            ask,
            last: Mutex::new(None),
        }
    }

    /// Who holds what; nobody where the lease store can't be asked, which readiness tells.
    pub(super) async fn get(&self) -> Arc<Holders> {
        let mut last = self.last.lock().await;
        if let Some((at, holders)) = &*last
            && at.elapsed() < FRESH
        {
            return holders.clone();
        }
        let holders = Arc::new((self.ask)().await.unwrap_or_default());
        *last = Some((Instant::now(), holders.clone()));
        holders
    }
}

/// A scope with the holder of its lease, as `/scopes` has it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Held {
    #[serde(flatten)]
    pub(super) view: ScopeView,
    /// The token of the lease's current grant. The floor follows it with the watch, or with the holder's first request.
    pub(super) granted: Option<u64>,
    /// What the holder calls itself.
    pub(super) holder: Option<String>,
    /// The holder's host.
    pub(super) host: Option<String>,
    /// Since when it holds the lease, by its own wall clock.
    pub(super) acquired_at: Option<String>,
}

impl Held {
    pub(super) fn new(view: ScopeView, holders: &Holders) -> Self {
        let holder = holders.get(&view.scope);
        let said = |field: fn(&Holder) -> &String| {
            holder.map(field).filter(|text| !text.is_empty()).cloned()
        };
        Self {
            granted: holder.map(|holder| holder.token),
            holder: said(|holder| &holder.record.holder),
            host: said(|holder| &holder.record.host),
            acquired_at: said(|holder| &holder.record.acquired_at),
            view,
        }
    }
}
