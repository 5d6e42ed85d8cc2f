//! Watching one key in etcd. A stream that ends or fails is not reopened here: whoever waits looks again first.

use super::{connect::Endpoints, identity::Identity};
use crate::{
    record::Record,
    store::{Change, Event, StoreError},
};
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use palisade_fence::Token;

/// The first change of `key` after a revision, or the end of `place`.
pub(super) async fn first_change(
    endpoints: &Endpoints,
    identity: &Identity,
    key: &str,
    place: Option<&str>,
    after: i64,
) -> Result<Change, StoreError> {
    let (mut stream, at) = open(endpoints, key, after).await?;
    if let Some(place) = place {
        let options = WatchOptions::new().with_start_revision(after + 1);
        if let Err(error) = stream.watch(place, Some(options)).await {
            return Err(endpoints.failed(at, error).await.error);
        }
    }
    loop {
        let Some(message) = next(endpoints, at, &mut stream, identity).await? else {
            return Ok(Change::Unknown);
        };
        if let Some(change) = change_in(&message, key) {
            return Ok(change);
        }
    }
}

/// The first of a message's events that is a change of the key or the end of the place: there is no third key watched.
fn change_in(message: &WatchResponse, key: &str) -> Option<Change> {
    message.events().iter().find_map(|event| {
        let kv = event.kv()?;
        match (event.event_type(), kv.key() == key.as_bytes()) {
            (EventType::Delete, true) => Some(Change::Deleted),
            (EventType::Put, true) => Token::from_revision(kv.mod_revision()).map(Change::Written),
            (EventType::Delete, false) => Some(Change::PlaceLost),
            (EventType::Put, false) => None,
        }
    })
}

/// The next grant or end of the lease with this key, and the revision to go on from.
pub(super) async fn next_event(
    endpoints: &Endpoints,
    identity: &Identity,
    key: &str,
    after: i64,
) -> Result<(Event, u64), StoreError> {
    let (mut stream, at) = open(endpoints, key, after).await?;
    loop {
        let Some(message) = next(endpoints, at, &mut stream, identity).await? else {
            return Err(StoreError::Unreachable(
                "the history that was asked for is compacted".to_owned(),
            ));
        };
        let event = message.events().iter().find_map(|event| {
            let kv = event.kv()?;
            let revision = Token::from_revision(kv.mod_revision())?;
            Some(match event.event_type() {
                EventType::Put => (
                    Event::Granted(revision, Record::from_json(kv.value())),
                    revision.get(),
                ),
                EventType::Delete => (Event::Freed(revision.get()), revision.get()),
            })
        });
        if let Some(event) = event {
            return Ok(event);
        }
    }
}

async fn open(
    endpoints: &Endpoints,
    key: &str,
    after: i64,
) -> Result<(WatchStream, usize), StoreError> {
    let (mut client, at) = endpoints.client().await?;
    let options = WatchOptions::new().with_start_revision(after + 1);
    match client.watch(key, Some(options)).await {
        Ok(stream) => Ok((stream, at)),
        Err(error) => Err(endpoints.failed(at, error).await.error),
    }
}

/// The next message; `None` when the revisions asked for are compacted. An ended stream is an error: it would say `None`
/// for ever.
async fn next(
    endpoints: &Endpoints,
    at: usize,
    stream: &mut WatchStream,
    identity: &Identity,
) -> Result<Option<WatchResponse>, StoreError> {
    let message = match stream.message().await {
        Ok(Some(message)) => message,
        Ok(None) => return Err(StoreError::Unreachable("the watch ended".to_owned())),
        Err(error) => return Err(endpoints.failed(at, error).await.error),
    };
    identity.check_cluster(message.header())?;
    if message.compact_revision() > 0 {
        return Ok(None);
    }
    if message.canceled() {
        return Err(StoreError::Unreachable(format!(
            "the watch was cancelled: {}",
            message.cancel_reason()
        )));
    }
    Ok(Some(message))
}
