//! An operator's new epoch: the store that is there counts from now on, once its revisions are above all that were seen.

use super::{
    connect::{EtcdOptions, Failure, Link, identity, within},
    members::Member,
    trust::{Doubt, Trust},
};
use crate::state::{Identity, NewEpoch, State, StateError};
use etcd_client::Client;
use palisade_fence::Token;
use tokio::{sync::oneshot, task::JoinSet};

/// Puts that are on their way at once while the store's revision is pushed.
const AT_ONCE: u64 = 64;

/// A new epoch that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochBegun {
    /// Every smaller token is refused in every scope.
    pub floor: Token,
    /// The store's revision then.
    pub revision: u64,
    /// How many puts it took to push the revision there.
    pub pushed: u64,
}

/// Why no new epoch began. Nothing that was refused before is admitted; asking again is harmless.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochError {
    /// The store's revision is too far behind to be pushed.
    #[error(
        "the lease store is at revision {revision}, and {highest} was seen before: tokens from before and after would mix. \
         Restore it anew with `etcdutl snapshot restore --bump-revision {needed} --mark-compacted`, or let its revision \
         be pushed with `palisade new-epoch --advance {needed}`"
    )]
    Behind {
        /// The store's revision.
        revision: u64,
        /// The highest ever seen.
        highest: u64,
        /// How many revisions are missing.
        needed: u64,
    },
    /// The store did not answer.
    #[error("the lease store can't be asked: {0}")]
    Unavailable(String),
    /// The epoch could not be made durable.
    #[error("{0}")]
    State(#[from] StateError),
}

impl From<Failure> for EpochError {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(failure.to_string())
    }
}

pub(super) async fn begin(
    options: &EtcdOptions,
    link: &mut Link,
    (state, trust, member): (&State, &Trust, Option<&Member>),
    advance: u64,
) -> Result<EpochBegun, EpochError> {
    let client = link.client().await?;
    let now = within(options.timeout, client.get(options.epoch(), None)).await?;
    let before = identity(now.header())?;
    let highest = highest(state, trust);
    let needed = (highest + 1).saturating_sub(before.revision);
    if needed > advance {
        return Err(EpochError::Behind {
            revision: before.revision,
            highest,
            needed,
        });
    }
    // At least once, so that the key tells of every epoch.
    let (identity, pushed) = push(options, client, before, highest).await?;
    let floor = Token::new(highest + 1).unwrap_or(Token::MAX);
    durable(
        state,
        NewEpoch {
            floor,
            identity: Some(identity),
        },
    )
    .await?;
    if let Some(member) = member {
        member
            .take_over(client)
            .await
            .map_err(|doubt| match doubt {
                Doubt::Failed(failure) => failure.into(),
                Doubt::Changed => EpochError::Unavailable("it changed again".to_owned()),
            })?;
    }
    trust.renew(identity, floor);
    Ok(EpochBegun {
        floor,
        revision: identity.revision,
        pushed,
    })
}

/// The highest revision of the lease store that was ever seen.
pub(super) fn highest(state: &State, trust: &Trust) -> u64 {
    [trust.known(), state.identity()]
        .into_iter()
        .flatten()
        .map(|known| known.revision)
        .max()
        .unwrap_or(0)
}

/// Puts the epoch's key until the store's revision is above the highest that was ever seen. Each put is one revision.
async fn push(
    options: &EtcdOptions,
    client: &Client,
    mut at: Identity,
    highest: u64,
) -> Result<(Identity, u64), Failure> {
    let mut pushed = 0;
    while pushed == 0 || at.revision <= highest {
        let missing = (highest + 1).saturating_sub(at.revision).clamp(1, AT_ONCE);
        let mut puts = JoinSet::new();
        for _ in 0..missing {
            let (mut client, key, timeout) = (client.clone(), options.epoch(), options.timeout);
            let value = format!("{{\"after\":{highest}}}");
            puts.spawn(async move { within(timeout, client.put(key, value, None)).await });
        }
        while let Some(put) = puts.join_next().await {
            let put = put.map_err(|error| Failure::Other(error.to_string()))??;
            let seen = identity(put.header())?;
            if seen.cluster_id != at.cluster_id {
                return Err(Failure::Other(
                    "the endpoints are of two clusters".to_owned(),
                ));
            }
            at.revision = at.revision.max(seen.revision);
            pushed += 1;
        }
    }
    Ok((at, pushed))
}

pub(super) async fn durable(state: &State, epoch: NewEpoch) -> Result<(), EpochError> {
    let (send, receive) = oneshot::channel();
    let done = move |result| {
        let _ = send.send(result);
    };
    state.new_epoch(epoch, Box::new(done));
    let ended = || StateError("the state is closed".into());
    Ok(receive.await.map_err(|_| ended())??)
}
