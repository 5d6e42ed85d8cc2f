//! One suite for both backends, and for etcd 3.4 and 3.5: what the algorithm relies on, and what users see of it.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod common;

use common::{Place, queued, until};
use palisade_lease::{
    AcquireError, LeaseName, LeaseOptions, LeaseStore, Loss, StoreError,
    record::Record,
    store::{Change, Claim, Event, Place as Where, SessionId, Target, View},
};
use std::{sync::Arc, time::Duration};

on_all!(
    tokens_grow,
    the_second_waits_and_gets_a_larger_token,
    first_come_first_served,
    a_try_does_not_overtake_the_queue,
    nothing_is_done_on_an_ended_session,
    a_claim_depends_on_the_revision,
    a_place_in_the_queue_is_taken_once,
    an_ended_waiter_is_passed_over,
    a_watch_misses_nothing,
    a_watch_tells_of_the_own_place,
    an_old_release_frees_nothing,
    a_revoked_lease_is_lost_at_once,
    a_stolen_lease_is_lost_at_once,
    a_dead_holder_is_followed,
    waiting_ends_in_time,
    a_dropped_lease_is_given_back,
    status_and_list_tell_who,
    a_release_by_hand_is_a_loss,
    events_are_told_in_order,
    a_stamp_carries_the_token_until_the_loss,
    names_are_apart,
);

const TTL: Duration = Duration::from_secs(5);

fn name(text: &str) -> LeaseName {
    text.parse().unwrap()
}

fn options() -> LeaseOptions {
    LeaseOptions::with_ttl(TTL)
}

fn record(holder: &str) -> Record {
    Record::of_this_process(Some(holder), TTL)
}

/// A session of its own number.
async fn session(store: &Arc<dyn LeaseStore>) -> SessionId {
    let session = SessionId(fastrand::i64(1..i64::MAX));
    store.open(session, TTL).await.unwrap();
    session
}

async fn enqueue(store: &Arc<dyn LeaseStore>, lease: &str, session: SessionId) -> View {
    store
        .enqueue(&name(lease), session, &record("waiter"))
        .await
        .unwrap()
}

async fn claim(
    store: &Arc<dyn LeaseStore>,
    lease: &str,
    session: SessionId,
    expect: u64,
    place: Where,
) -> Claim {
    store
        .claim(&name(lease), session, expect, place, &record("holder"))
        .await
        .unwrap()
}

fn won(claim: &Claim) -> palisade_lease::FencingToken {
    match claim {
        Claim::Won(token) => *token,
        Claim::Refused(view) => panic!("refused: {view:?}"),
    }
}

async fn tokens_grow(place: &Place) {
    let store = place.open();
    let mut last = 0;
    for _ in 0..20 {
        let lease = store.acquire("a", options()).await.unwrap();
        assert!(lease.token().get() > last);
        assert!(lease.is_valid());
        assert!(lease.remaining() <= TTL - Duration::from_millis(500));
        last = lease.token().get();
        lease.release().await;
    }
    // Another process goes on where this one stopped.
    assert!(
        place
            .open()
            .acquire("b", options())
            .await
            .unwrap()
            .token()
            .get()
            > last
    );
}

/// L19: two tasks of one process are two holders.
async fn the_second_waits_and_gets_a_larger_token(place: &Place) {
    let store = place.open();
    let first = store.acquire("a", options()).await.unwrap();
    let second = tokio::spawn({
        let store = store.clone();
        async move { store.acquire("a", options()).await.unwrap() }
    });
    queued(&store, "a", 1).await;
    assert!(!second.is_finished());
    let token = first.token();
    first.release().await;
    assert!(second.await.unwrap().token() > token);
}

async fn first_come_first_served(place: &Place) {
    let store = place.open();
    let first = store.acquire("a", options()).await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..8 {
        let (own, sender) = (place.open(), sender.clone());
        tokio::spawn(async move {
            let lease = own.acquire("a", options()).await.unwrap();
            sender.send((number, lease.token())).unwrap();
            lease.release().await;
        });
        queued(&store, "a", number + 1).await;
    }
    let mut last = first.token();
    first.release().await;
    for number in 0..8 {
        let (who, token) = order.recv().await.unwrap();
        assert_eq!(who, number);
        assert!(token > last);
        last = token;
    }
}

async fn a_try_does_not_overtake_the_queue(place: &Place) {
    let store = place.open();
    let waiter = session(&store).await;
    enqueue(&store, "a", waiter).await;
    // Free, but somebody waits.
    match store.try_acquire("a", options()).await {
        Err(AcquireError::Held(held)) => assert_eq!((held.token, held.waited), (None, false)),
        other => panic!("{other:?}"),
    }
    let trier = session(&store).await;
    assert!(matches!(
        claim(&store, "a", trier, 0, Where::NobodyWaits).await,
        Claim::Refused(_)
    ));
    won(&claim(&store, "a", waiter, 0, Where::Queued).await);
}

/// L12: no token on a dead session.
async fn nothing_is_done_on_an_ended_session(place: &Place) {
    let store = place.open();
    let ended = session(&store).await;
    enqueue(&store, "a", ended).await;
    store.close(ended).await.unwrap();
    store.close(ended).await.unwrap();
    assert_eq!(store.keep_alive(ended).await, Err(StoreError::SessionGone));
    let (lease, who) = (name("a"), record("x"));
    // With the place gone the condition fails first; without the condition the session is what is missing.
    let queued = store.claim(&lease, ended, 0, Where::Queued, &who).await;
    assert!(
        matches!(queued, Ok(Claim::Refused(_)) | Err(StoreError::SessionGone)),
        "{queued:?}"
    );
    for at in [Where::NobodyWaits, Where::Any] {
        assert_eq!(
            store.claim(&lease, ended, 0, at, &who).await,
            Err(StoreError::SessionGone)
        );
    }
    assert_eq!(
        store.enqueue(&lease, ended, &who).await,
        Err(StoreError::SessionGone)
    );
    assert_eq!(store.look(&lease, ended, None).await.unwrap().holder, None);
}

async fn a_claim_depends_on_the_revision(place: &Place) {
    let store = place.open();
    let (one, two) = (session(&store).await, session(&store).await);
    let first = won(&claim(&store, "a", one, 0, Where::NobodyWaits).await);
    // A claim whose reply was lost, once more (L9): refused, and the view says that it is one's own.
    match claim(&store, "a", one, 0, Where::NobodyWaits).await {
        Claim::Refused(view) => {
            let seen = view.holder.unwrap();
            assert_eq!((seen.token, seen.session), (first, Some(one)));
            assert_eq!(view.record.unwrap().holder, "holder");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        claim(&store, "a", two, first.get() + 1, Where::Any).await,
        Claim::Refused(_)
    ));
    let second = won(&claim(&store, "a", two, first.get(), Where::Any).await);
    assert!(second > first);
    // The old holder's session going takes nothing with it.
    store.close(one).await.unwrap();
    assert_eq!(
        store
            .look(&name("a"), two, None)
            .await
            .unwrap()
            .holder
            .unwrap()
            .token,
        second
    );
}

async fn a_place_in_the_queue_is_taken_once(place: &Place) {
    let store = place.open();
    let (one, two, three) = (
        session(&store).await,
        session(&store).await,
        session(&store).await,
    );
    let first = enqueue(&store, "a", one).await;
    let second = enqueue(&store, "a", two).await;
    let third = enqueue(&store, "a", three).await;
    assert_eq!(
        (first.ahead, second.ahead, third.ahead),
        (None, Some(one), Some(two))
    );
    assert!(first.ticket < second.ticket && second.ticket < third.ticket);
    // Once more, as after a lost reply.
    let again = enqueue(&store, "a", two).await;
    assert_eq!((again.ticket, again.ahead), (second.ticket, Some(one)));
    let looked = store.look(&name("a"), three, third.ticket).await.unwrap();
    assert_eq!((looked.ticket, looked.ahead), (third.ticket, Some(two)));
    assert!(looked.revision >= again.revision);
}

async fn an_ended_waiter_is_passed_over(place: &Place) {
    let store = place.open();
    let (one, two, three) = (
        session(&store).await,
        session(&store).await,
        session(&store).await,
    );
    for waiter in [one, two, three] {
        enqueue(&store, "a", waiter).await;
    }
    store.close(two).await.unwrap();
    let looked = store.look(&name("a"), three, None).await.unwrap();
    assert_eq!(looked.ahead, Some(one));
    won(&claim(&store, "a", one, 0, Where::Queued).await);
    let looked = store.look(&name("a"), three, looked.ticket).await.unwrap();
    assert_eq!(
        (looked.ahead, looked.holder.unwrap().session),
        (None, Some(one))
    );
}

/// L13: what happens between the read and the start of the watch is told by the watch.
async fn a_watch_misses_nothing(place: &Place) {
    let (store, lease) = (place.open(), name("a"));
    for _ in 0..20 {
        let (holder, waiter, last) = (
            session(&store).await,
            session(&store).await,
            session(&store).await,
        );
        let token = won(&claim(&store, "a", holder, 0, Where::NobodyWaits).await);
        let view = enqueue(&store, "a", waiter).await;
        let behind = enqueue(&store, "a", last).await;
        assert!(store.release(&lease, token).await.unwrap());
        let seen = store
            .changed(&lease, Target::Lease, Some(waiter), view.revision)
            .await;
        assert_eq!(seen, Ok(Change::Deleted));
        won(&claim(&store, "a", waiter, 0, Where::Queued).await);
        let seen = store
            .changed(&lease, Target::Waiter(waiter), Some(last), behind.revision)
            .await;
        assert_eq!(seen, Ok(Change::Deleted));
        for done in [holder, waiter, last] {
            store.close(done).await.unwrap();
        }
    }
}

/// L11: a waiter whose session ends is told.
async fn a_watch_tells_of_the_own_place(place: &Place) {
    let (store, lease) = (place.open(), name("a"));
    let (holder, waiter) = (session(&store).await, session(&store).await);
    won(&claim(&store, "a", holder, 0, Where::NobodyWaits).await);
    let view = enqueue(&store, "a", waiter).await;
    let watch = tokio::spawn({
        let (store, lease) = (place.open(), lease.clone());
        async move {
            store
                .changed(&lease, Target::Lease, Some(waiter), view.revision)
                .await
        }
    });
    tokio::task::yield_now().await;
    store.close(waiter).await.unwrap();
    assert_eq!(watch.await.unwrap(), Ok(Change::PlaceLost));
}

/// L16.
async fn an_old_release_frees_nothing(place: &Place) {
    let store = place.open();
    let old = store.acquire("a", options()).await.unwrap();
    let token = old.token();
    old.release().await;
    let new = store.acquire("a", options()).await.unwrap();
    assert!(!store.release(&name("a"), token).await.unwrap());
    assert!(!store.release(&name("b"), token).await.unwrap());
    assert_eq!(
        store
            .status(&name("a"))
            .await
            .unwrap()
            .holder
            .unwrap()
            .token,
        new.token()
    );
    assert!(new.is_valid());
}

async fn a_revoked_lease_is_lost_at_once(place: &Place) {
    let store = place.open();
    let lease = store.acquire("a", options()).await.unwrap();
    let token = lease.token();
    store.close(lease.session()).await.unwrap();
    let loss = lease.lost().await;
    assert!(matches!(loss, Loss::Deleted | Loss::Revoked), "{loss:?}");
    assert!(!lease.is_valid());
    assert_eq!(lease.remaining(), Duration::ZERO);
    // The same store goes on, with a new token.
    assert!(store.acquire("a", options()).await.unwrap().token() > token);
}

async fn a_stolen_lease_is_lost_at_once(place: &Place) {
    let store = place.open();
    let lease = store.acquire("a", options()).await.unwrap();
    let waiting = tokio::spawn({
        let store = place.open();
        async move { store.acquire("a", options()).await.unwrap() }
    });
    queued(&store, "a", 1).await;
    let thief = place.open();
    let stolen = thief
        .acquire(
            "a",
            LeaseOptions {
                steal: true,
                ..options()
            },
        )
        .await
        .unwrap();
    assert_eq!(lease.lost().await, Loss::Taken(stolen.token()));
    // Giving back what is lost does not harm the thief, who leaves to the waiter.
    lease.release().await;
    assert!(stolen.is_valid());
    let token = stolen.token();
    stolen.release().await;
    assert!(waiting.await.unwrap().token() > token);
}

/// A holder that no longer keeps its session alive; not before the time to live is over, and not long after.
async fn a_dead_holder_is_followed(place: &Place) {
    let store = place.open();
    let ttl = Duration::from_secs(2);
    let dead = SessionId(fastrand::i64(1..i64::MAX));
    let sent = palisade_lease::clock::boot();
    store.open(dead, ttl).await.unwrap();
    won(&claim(&store, "a", dead, 0, Where::NobodyWaits).await);
    let lease = store
        .acquire("a", LeaseOptions::with_ttl(ttl))
        .await
        .unwrap();
    assert!(palisade_lease::clock::boot().since(sent) >= ttl);
    lease.release().await;
}

async fn waiting_ends_in_time(place: &Place) {
    let store = place.open();
    let lease = store
        .acquire(
            "a",
            LeaseOptions {
                holder: Some("me".to_owned()),
                ..options()
            },
        )
        .await
        .unwrap();
    let wait = Some(Duration::from_millis(100));
    match store.acquire("a", LeaseOptions { wait, ..options() }).await {
        Err(AcquireError::Held(held)) => {
            assert_eq!((held.token, held.waited), (Some(lease.token()), true));
            assert_eq!(held.by.unwrap().holder, "me");
        }
        other => panic!("{other:?}"),
    }
    // It has left the queue.
    queued(&store, "a", 0).await;
    match store.try_acquire("a", options()).await {
        Err(AcquireError::Held(held)) => assert!(!held.waited),
        other => panic!("{other:?}"),
    }
}

async fn a_dropped_lease_is_given_back(place: &Place) {
    let store = place.open();
    let lease = store.acquire("a", options()).await.unwrap();
    let (token, gone) = (lease.token(), lease.session());
    drop(lease);
    assert!(store.acquire("a", options()).await.unwrap().token() > token);
    until("the session to be closed", || async {
        store.keep_alive(gone).await.err()
    })
    .await;
}

async fn status_and_list_tell_who(place: &Place) {
    let store = place.open();
    assert!(store.list("").await.unwrap().is_empty());
    let holder = Some("billing on host 7".to_owned());
    let lease = store
        .acquire(
            "x/a",
            LeaseOptions {
                holder,
                ..options()
            },
        )
        .await
        .unwrap();
    let _other = store.acquire("y", options()).await.unwrap();
    let waiter = session(&store).await;
    enqueue(&store, "x/a", waiter).await;
    let status = store.status(&name("x/a")).await.unwrap();
    assert_eq!(status.holder.unwrap().token, lease.token());
    assert_eq!(status.record.as_ref(), Some(lease.record()));
    assert_eq!(status.record.unwrap().holder, "billing on host 7");
    assert!(status.remaining.unwrap() <= TTL);
    assert_eq!(status.waiters.len(), 1);
    let names = |prefix: &'static str| {
        let store = store.clone();
        async move {
            let all = store.list(prefix).await.unwrap();
            all.into_iter()
                .map(|status| status.name.to_string())
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(names("").await, ["x/a", "y"]);
    assert_eq!(names("x/").await, ["x/a"]);
    assert_eq!(names("z").await, [""; 0]);
    assert_eq!(store.status(&name("z")).await.unwrap().holder, None);
}

async fn a_release_by_hand_is_a_loss(place: &Place) {
    let store = place.open();
    let lease = store.acquire("a", options()).await.unwrap();
    assert!(store.release(&name("a"), lease.token()).await.unwrap());
    assert_eq!(lease.lost().await, Loss::Deleted);
}

async fn events_are_told_in_order(place: &Place) {
    let (store, lease) = (place.open(), name("a"));
    let watching = place.open();
    let start = watching
        .look(&lease, SessionId(1), None)
        .await
        .unwrap()
        .revision;
    let mut after = start;
    for _ in 0..3 {
        let held = store.acquire("a", options()).await.unwrap();
        let (event, revision) = watching.next_event(&lease, after).await.unwrap();
        assert_eq!(
            event,
            Event::Granted(held.token(), Some(held.record().clone()))
        );
        held.release().await;
        let (event, next) = watching.next_event(&lease, revision).await.unwrap();
        assert!(matches!(event, Event::Freed(_)), "{event:?}");
        assert!(next > after);
        after = next;
    }
}

async fn a_stamp_carries_the_token_until_the_loss(place: &Place) {
    let store = place.open();
    let lease = store.acquire("a", options()).await.unwrap();
    let mut headers = http::HeaderMap::new();
    headers.append("x-fence-token", "1".parse().unwrap());
    lease.stamp(&mut headers).unwrap();
    let all: Vec<_> = headers.get_all("X-Fence-Token").iter().collect();
    assert_eq!(all, [lease.token().to_string().as_str()]);
    store.close(lease.session()).await.unwrap();
    lease.lost().await;
    let mut headers = http::HeaderMap::new();
    let lost = lease.stamp(&mut headers).unwrap_err();
    assert_eq!(lost.token, lease.token());
    assert!(headers.is_empty());
}

/// `a` and `a/b` have queues of their own.
async fn names_are_apart(place: &Place) {
    let store = place.open();
    let (one, two) = (session(&store).await, session(&store).await);
    let first = enqueue(&store, "a", one).await;
    let second = enqueue(&store, "a/b", two).await;
    assert_eq!((first.ahead, second.ahead), (None, None));
    won(&claim(&store, "a", one, 0, Where::Queued).await);
    won(&claim(&store, "a/b", two, 0, Where::Queued).await);
}
