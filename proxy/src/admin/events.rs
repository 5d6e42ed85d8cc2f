//! The status page's parts as they change: server-sent events (HTML Living Standard, section 9.2).

use super::{Admin, view::View};
use bytes::Bytes;
use http_body::{Body, Frame};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::mpsc;

/// How many may watch at once: each costs a look at all scopes in each period.
const STREAMS: usize = 32;
/// How often something is sent at most.
const PERIOD: Duration = Duration::from_secs(1);
/// In that many periods without a change something is sent all the same, so that a dead connection is noticed.
const SILENT: u32 = 15;
/// A reader that takes nothing for so long is given up.
const SLOW: Duration = Duration::from_secs(10);

/// A stream of events.
#[derive(Debug)]
pub(super) struct Events(mpsc::Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(cx);
        next.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

/// One of those that watch, as long as it lives.
struct Watcher(Arc<AtomicUsize>);

impl Watcher {
    fn new(watchers: &Arc<AtomicUsize>) -> Option<Self> {
        let watcher = Self(Arc::clone(watchers));
        (watchers.fetch_add(1, Relaxed) < STREAMS).then_some(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Begins to watch; `None`: too many do. Ends with the reader, when it is too slow, and when the proxy stops.
pub(super) fn watch(admin: &Arc<Admin>, view: View) -> Option<Events> {
    let watcher = Watcher::new(&admin.watchers)?;
    let (sender, events) = mpsc::channel(1);
    let admin = Arc::clone(admin);
    tokio::spawn(async move {
        let _watcher = watcher;
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = BTreeMap::new();
        let mut silent = 0;
        while !admin.stopping.load(Relaxed) {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            let parts = admin.parts(&view).await;
            let event = match changes(&mut last, parts) {
                Some(event) => event,
                None if silent < SILENT => {
                    silent += 1;
                    continue;
                }
                None => Bytes::from_static(b":\n\n"),
            };
            silent = 0;
            if sender.send_timeout(event, SLOW).await.is_err() {
                return;
            }
        }
    });
    Some(Events(events))
}

/// The parts that are not as they were, as one event.
fn changes(
    last: &mut BTreeMap<&'static str, String>,
    parts: Vec<(&'static str, String)>,
) -> Option<Bytes> {
    let mut changed = BTreeMap::new();
    for (id, html) in parts {
        if last.get(id) != Some(&html) {
            last.insert(id, html.clone());
            changed.insert(id, html);
        }
    }
    if changed.is_empty() {
        return None;
    }
    // JSON has no line break outside its strings, and none within them: one line of data.
    let json = serde_json::to_string(&changed).unwrap_or_default();
    Some(Bytes::from(format!("data: {json}\n\n")))
}
