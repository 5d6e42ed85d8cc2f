//! What has gone wrong for others with leases (`L` numbers: the list of incidents), through the library, on real etcd.
//! Those about jobs are in `jobs/`; L13, L16 and L19 are in the conformance suite for both backends.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod common;

use common::{lossy::Lossy, queued, runs, until};
use palisade_fence::Time;
use palisade_lease::{
    LeaseName, LeaseOptions, LeaseStore, Loss,
    clock::{Clock, boot},
    settled,
    store::SessionId,
};
use palisade_loadtest::{
    relay::{Relay, Way},
    servers::{Etcd, exchange},
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

/// etcd's own minimum at its defaults.
const SHORT: Duration = Duration::from_secs(2);

/// One of these tests at a time: some look at everything that this process has under way.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn store_at(address: std::net::SocketAddr) -> Arc<dyn LeaseStore> {
    palisade_lease::open(&format!("etcd://{address}").parse().unwrap()).unwrap()
}

fn options(ttl: Duration) -> LeaseOptions {
    LeaseOptions::with_ttl(ttl)
}

fn leases_left(etcd: &Etcd) -> usize {
    let list = etcd.ctl(&["lease", "list"]);
    list.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// L1, library: cut off from etcd with the sockets left open. Whenever the successor is granted, the old holder knows
/// that its lease is over.
#[tokio::test]
async fn l1_a_cut_off_holder_knows_it_before_its_successor_starts() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    for run in 0..runs(2) {
        let relay = Relay::to(etcd.address()).unwrap();
        let name = format!("a{run}");
        let holder = store_at(relay.address())
            .acquire(&name, options(SHORT))
            .await
            .unwrap();
        let successor = tokio::spawn({
            let (store, name) = (store_at(etcd.address()), name.clone());
            async move { store.acquire(&name, options(SHORT)).await.unwrap() }
        });
        queued(&store_at(etcd.address()), &name, 1).await;
        relay.hold_all();
        let successor = successor.await.unwrap();
        assert!(!holder.is_valid());
        assert_eq!(holder.lost().await, Loss::Expired);
        assert!(successor.token() > holder.token());
        drop(relay);
        successor.release().await;
    }
}

/// A clock that a test lets jump.
#[derive(Default)]
struct Jumping(AtomicU64);

impl Clock for Jumping {
    fn now(&self) -> Time {
        boot().after(Duration::from_nanos(self.0.load(Relaxed)))
    }
}

/// L7.
#[tokio::test]
async fn l7_a_clock_that_jumps_over_the_ttl_ends_the_lease_at_once() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let clock = Arc::new(Jumping::default());
    let asked = LeaseOptions {
        clock: clock.clone(),
        ..options(Duration::from_secs(10))
    };
    let lease = store_at(etcd.address()).acquire("a", asked).await.unwrap();
    assert!(lease.is_valid());
    clock.0.store(11_000_000_000, Relaxed);
    assert!(!lease.is_valid());
    assert_eq!(lease.loss(), Some(Loss::Expired));
    assert!(lease.stamp(&mut http::HeaderMap::new()).is_err());
    assert_eq!(lease.remaining(), Duration::ZERO);
}

/// L8: requests go out, and no answer comes.
#[tokio::test]
async fn l8_a_keep_alive_that_never_answers_does_not_hold_up_the_deadline() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let relay = Relay::to(etcd.address()).unwrap();
    let lease = store_at(relay.address())
        .acquire("a", options(SHORT))
        .await
        .unwrap();
    relay.hold(Way::Back);
    assert_eq!(lease.lost().await, Loss::Expired);
    assert_eq!(lease.remaining(), Duration::ZERO);
}

/// L9: the claim was carried out, its reply lost.
#[tokio::test]
async fn l9_a_claim_whose_reply_was_lost_is_found_again() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let lossy = Lossy::over(store_at(etcd.address()), 1);
    let store: Arc<dyn LeaseStore> = lossy.clone();
    let lease = store.acquire("a", options(SHORT)).await.unwrap();
    // One look, and no second claim: the token of the first.
    assert_eq!(
        (lossy.claims.load(Relaxed), lossy.looks.load(Relaxed)),
        (1, 1)
    );
    let key = etcd.ctl(&["get", "/palisade/leases/a", "-w", "fields"]);
    assert!(
        key.contains(&format!("\"ModRevision\" : {}\n", lease.token())),
        "{key}"
    );
    assert!(key.contains("\"Version\" : 1\n"), "written once: {key}");
    // The same for one who has waited.
    let lossy = Lossy::over(store_at(etcd.address()), 0);
    let waiting: Arc<dyn LeaseStore> = lossy.clone();
    let next = tokio::spawn(async move { waiting.acquire("a", options(SHORT)).await.unwrap() });
    queued(&store, "a", 1).await;
    lossy.lose_claims.store(1, Relaxed);
    lease.release().await;
    let next = next.await.unwrap();
    let key = etcd.ctl(&["get", "/palisade/leases/a", "-w", "fields"]);
    assert!(
        key.contains(&format!("\"ModRevision\" : {}\n", next.token())),
        "{key}"
    );
}

/// L10.
#[tokio::test]
async fn l10_fifty_waiters_that_leave_at_once_leave_nothing() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    let lease = store
        .acquire("a", options(Duration::from_secs(30)))
        .await
        .unwrap();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.acquire("a", options(Duration::from_secs(30))).await })
        })
        .collect();
    queued(&store, "a", 50).await;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    lease.release().await;
    let started = boot();
    let lease = store
        .acquire("a", options(Duration::from_secs(30)))
        .await
        .unwrap();
    println!("granted {:?} after the release", boot().since(started));
    lease.release().await;
    settled().await;
    assert_eq!(leases_left(&etcd), 0);
    assert_eq!(
        etcd.ctl(&["get", "--prefix", "/palisade/", "--keys-only"])
            .trim(),
        ""
    );
}

/// L11.
#[tokio::test]
async fn l11_a_waiter_whose_session_was_revoked_queues_again() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    let lease = store
        .acquire("a", options(Duration::from_secs(30)))
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .acquire("a", options(Duration::from_secs(30)))
                .await
                .unwrap()
        }
    });
    queued(&store, "a", 1).await;
    let places = || etcd.ctl(&["get", "--prefix", "/palisade/waiters/", "--keys-only"]);
    let place = places();
    let session = place.trim().rsplit('/').next().unwrap();
    etcd.ctl(&["lease", "revoke", session]);
    let started = boot();
    until("another place in the queue", || async {
        let now = places();
        (now != place && !now.trim().is_empty()).then_some(())
    })
    .await;
    println!("in the queue again after {:?}", boot().since(started));
    let token = lease.token();
    lease.release().await;
    assert!(waiting.await.unwrap().token() > token);
}

/// L14, a single etcd: killed and started again within the time to live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l14_a_restarted_etcd_loses_no_lease() {
    let _alone = ALONE.lock().await;
    let mut etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    let lease = store
        .acquire("a", options(Duration::from_secs(10)))
        .await
        .unwrap();
    let before = lease.standing().borrow().deadline;
    etcd.kill();
    etcd.start_again().unwrap();
    // The heartbeat goes on by itself.
    let mut standing = lease.standing();
    standing
        .wait_for(|now| now.deadline > before || now.loss.is_some())
        .await
        .unwrap();
    assert!(lease.is_valid(), "{:?}", lease.loss());
    // So does the watch: a release by hand is noticed.
    let name: LeaseName = "a".parse().unwrap();
    let token = lease.token();
    assert_eq!(
        store.status(&name).await.unwrap().holder.unwrap().token,
        token
    );
    assert!(store.release(&name, token).await.unwrap());
    assert_eq!(lease.lost().await, Loss::Deleted);
}

/// L15: 10,000 cycles in `make lease-soak`, a few hundred otherwise.
#[tokio::test]
async fn l15_many_cycles_leave_nothing() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    store
        .acquire("a", options(SHORT))
        .await
        .unwrap()
        .release()
        .await;
    let (tasks_before, descriptors_before) = (tasks(), descriptors());
    for _ in 0..runs(3) * 100 {
        store
            .acquire("a", options(SHORT))
            .await
            .unwrap()
            .release()
            .await;
    }
    assert_eq!(leases_left(&etcd), 0);
    assert!(
        tasks() <= tasks_before + 5,
        "{} tasks, before {tasks_before}",
        tasks()
    );
    assert!(
        descriptors() <= descriptors_before + 5,
        "{}, before {descriptors_before}",
        descriptors()
    );
}

/// L17: dropped after its first poll, its second, and so on.
#[tokio::test]
async fn l17_an_acquire_dropped_at_any_await_leaves_nothing() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    for polls in 1.. {
        let mut left = polls;
        let granted = {
            let mut acquire = pin!(store.acquire("a", options(Duration::from_secs(30))));
            poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(None);
                }
                left -= 1;
                acquire.as_mut().poll(context).map(Some)
            })
            .await
        };
        let done = granted.is_some();
        drop(granted);
        settled().await;
        assert_eq!(leases_left(&etcd), 0, "dropped after {polls} polls");
        if done {
            break;
        }
    }
    // Driven by the task, the acquisition may be anywhere when its future goes: also by time.
    for delay in 0..30 {
        let limit = Duration::from_micros(delay * 200);
        let _ =
            tokio::time::timeout(limit, store.acquire("a", options(Duration::from_secs(30)))).await;
        settled().await;
        assert_eq!(leases_left(&etcd), 0, "dropped after {limit:?}");
    }
}

/// L18: etcd raises what is below its minimum. What etcd granted is shown; the holder goes by the smaller.
#[tokio::test]
async fn l18_a_raised_ttl_is_shown_and_the_smaller_counts() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let store = store_at(etcd.address());
    let granted = store
        .open(SessionId(77), Duration::from_secs(1))
        .await
        .unwrap();
    assert!(granted > Duration::from_secs(1), "{granted:?}");
    let asked = LeaseOptions {
        margin: Some(Duration::from_millis(300)),
        ..options(Duration::from_secs(1))
    };
    let lease = store.acquire("a", asked).await.unwrap();
    assert_eq!(lease.ttl(), Duration::from_secs(1));
    assert!(lease.remaining() <= Duration::from_millis(700));
}

/// Two endpoints, one of them dead or mute: the lease is kept through the other.
#[tokio::test]
async fn another_endpoint_is_tried_when_one_is_mute() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let (mute, dead) = (
        Relay::to(etcd.address()).unwrap(),
        Relay::to(etcd.address()).unwrap(),
    );
    dead.cut_and_refuse();
    let url = format!(
        "etcd://{},{},{}",
        dead.address(),
        mute.address(),
        etcd.address()
    );
    let store = palisade_lease::open(&url.parse().unwrap()).unwrap();
    let lease = store
        .acquire("a", options(Duration::from_secs(5)))
        .await
        .unwrap();
    mute.hold_all();
    let mut standing = lease.standing();
    for _ in 0..3 {
        let before = standing.borrow_and_update().deadline;
        standing
            .wait_for(|now| now.deadline > before || now.loss.is_some())
            .await
            .unwrap();
        assert!(lease.is_valid(), "{:?}", lease.loss());
    }
}

/// A compacted history is read anew, not waited for.
#[tokio::test]
async fn a_waiter_survives_compaction() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    let relay = Relay::to(etcd.address()).unwrap();
    let store = store_at(etcd.address());
    let lease = store
        .acquire("a", options(Duration::from_secs(30)))
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let store = store_at(relay.address());
        async move {
            store
                .acquire("a", options(Duration::from_secs(30)))
                .await
                .unwrap()
        }
    });
    queued(&store, "a", 1).await;
    relay.cut_and_refuse();
    for number in 0..20 {
        etcd.ctl(&["put", "x", &number.to_string()]);
    }
    let revision = store
        .look(&"a".parse().unwrap(), SessionId(1), None)
        .await
        .unwrap()
        .revision;
    etcd.ctl(&["compaction", &revision.to_string()]);
    relay.let_go();
    let token = lease.token();
    lease.release().await;
    assert!(waiting.await.unwrap().token() > token);
}

/// etcd replaced by another one, at the same address: nothing is granted any more, and what was held is lost.
#[tokio::test]
async fn a_replaced_etcd_is_noticed() {
    let _alone = ALONE.lock().await;
    let (first, other) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    let url = format!("etcd://{},{}", first.address(), other.address());
    let store = palisade_lease::open(&url.parse().unwrap()).unwrap();
    let lease = store
        .acquire("a", options(Duration::from_secs(5)))
        .await
        .unwrap();
    drop(first);
    let loss = lease.lost().await;
    assert!(
        matches!(loss, Loss::StoreChanged | Loss::Revoked),
        "{loss:?}"
    );
    assert!(
        store
            .acquire("b", options(Duration::from_secs(5)))
            .await
            .is_err()
    );
}

/// With a user and password; a change of users makes etcd refuse the token in hand, which is then renewed.
#[tokio::test]
async fn a_user_with_a_password_keeps_its_lease_while_users_change() {
    let _alone = ALONE.lock().await;
    let etcd = Etcd::start().unwrap();
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["role", "add", "root"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["auth", "enable"]);
    let address = etcd.address().to_string();
    let with = |password: &str| {
        let options = palisade_lease::etcd::EtcdOptions {
            endpoints: vec![address.clone()],
            user: Some("root".to_owned()),
            password: Some(password.to_owned()),
            ..Default::default()
        };
        Arc::new(palisade_lease::etcd::EtcdStore::new(options)) as Arc<dyn LeaseStore>
    };
    let store = with("secret");
    let lease = store
        .acquire("a", options(Duration::from_secs(5)))
        .await
        .unwrap();
    etcd.ctl(&["--user", "root:secret", "user", "add", "other:x"]);
    let mut standing = lease.standing();
    for _ in 0..2 {
        let before = standing.borrow_and_update().deadline;
        standing
            .wait_for(|now| now.deadline > before || now.loss.is_some())
            .await
            .unwrap();
        assert!(lease.is_valid(), "{:?}", lease.loss());
    }
    let patience = Duration::from_secs(1);
    let refused = with("wrong")
        .acquire(
            "b",
            LeaseOptions {
                patience,
                ..options(SHORT)
            },
        )
        .await;
    assert!(refused.is_err());
}

/// Handover among many waiters costs etcd a constant number of requests, from its own count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_costs_the_same_for_few_and_for_many() {
    let _alone = ALONE.lock().await;
    let mut costs = Vec::new();
    for waiters in [4, 40] {
        let etcd = Etcd::start().unwrap();
        let store = store_at(etcd.address());
        let first = store
            .acquire("a", options(Duration::from_secs(120)))
            .await
            .unwrap();
        let held = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..waiters)
            .map(|_| {
                let (store, held) = (store.clone(), held.clone());
                tokio::spawn(async move {
                    let lease = store
                        .acquire("a", options(Duration::from_secs(120)))
                        .await
                        .unwrap();
                    held.lock().unwrap().push(lease.token());
                    lease.release().await;
                })
            })
            .collect();
        queued(&store, "a", waiters).await;
        let before = requests(&etcd);
        first.release().await;
        for task in tasks {
            task.await.unwrap();
        }
        let each = (requests(&etcd) - before) / waiters as f64;
        println!("{waiters} waiters: {each:.2} requests for each handover");
        costs.push(each);
        let held = held.lock().unwrap();
        assert_eq!(held.len(), waiters);
    }
    assert!((costs[0] - costs[1]).abs() < 1.5, "{costs:?}");
}

/// Requests that etcd has begun to answer, streams included.
fn requests(etcd: &Etcd) -> f64 {
    let metrics = exchange(etcd.address(), b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let counts = metrics.lines().filter(|line| {
        line.starts_with("grpc_server_started_total") && !line.contains("Maintenance")
    });
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}
