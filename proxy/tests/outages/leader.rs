//! Three members whose leader is killed again and again, under load and with handovers. `make members` is the long version.

use crate::{
    client::put,
    stage::{applied, proxy},
};
use palisade_fence::Time;
use palisade_lease::{LeaseOptions, LeaseUrl, clock::boot};
use palisade_loadtest::{cluster::Cluster, origin::Origin, proxy::Palisade};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// A number from the environment, or the short version's.
fn number(name: &str, short: u64) -> u64 {
    std::env::var(name).map_or(short, |text| text.parse().unwrap())
}

/// What the workers saw.
#[derive(Default)]
struct Tally {
    holds: u64,
    writes: u64,
    /// The longest time for which a holder's writes were refused on end, while its lease was valid.
    refused: Duration,
}

/// Takes the lease, writes for a while, and hands it on.
async fn work(
    url: LeaseUrl,
    proxy: Arc<Palisade>,
    over: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
) {
    let store = palisade_lease::open(&url).unwrap();
    while !over.load(SeqCst) {
        let options = LeaseOptions {
            ttl: Duration::from_secs(5),
            wait: Some(Duration::from_secs(5)),
            ..LeaseOptions::default()
        };
        let Ok(lease) = store.acquire("default", options).await else {
            continue;
        };
        let begun = boot();
        let (mut writes, mut refused_since, mut longest) = (0, None::<Time>, Duration::ZERO);
        while lease.is_valid()
            && boot().since(begun) < Duration::from_millis(700)
            && !over.load(SeqCst)
        {
            let (token, to) = (lease.token().get(), proxy.clone());
            let answer = tokio::task::spawn_blocking(move || put("/x", token, "mine").send(&to));
            let status = answer.await.unwrap().status;
            if status == 204 {
                writes += 1;
                if let Some(since) = refused_since.take() {
                    longest = longest.max(boot().since(since));
                }
            } else if lease.is_valid() {
                let since = *refused_since.get_or_insert_with(boot);
                longest = longest.max(boot().since(since));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        {
            let mut tally = tally.lock().unwrap();
            tally.holds += 1;
            tally.writes += writes;
            tally.refused = tally.refused.max(longest);
        }
        lease.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed_again_and_again() {
    let kills = number("KILLS", 2);
    let every = Duration::from_secs(number("EVERY", 3));
    let mut etcd = Cluster::start().unwrap();
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("leases", etcd.url())
        .set("fence.settle", "1s");
    proxy.start().unwrap();
    let (proxy, over) = (Arc::new(proxy), Arc::new(AtomicBool::new(false)));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let url: LeaseUrl = etcd.url().parse().unwrap();
            tokio::spawn(work(url, proxy.clone(), over.clone(), tally.clone()))
        })
        .collect();
    let killing = tokio::task::spawn_blocking(move || {
        for _ in 0..kills {
            // The rhythm of the faults, not a wait for anything.
            std::thread::sleep(every / 2);
            let leader = etcd.leader();
            etcd.kill(leader);
            std::thread::sleep(every / 2);
            etcd.run(leader).unwrap();
            etcd.wait_healthy(leader);
        }
        etcd
    });
    let etcd = killing.await.unwrap();
    // After the last one somebody still gets in.
    let holds = tally.lock().unwrap().holds;
    let begun = boot();
    while tally.lock().unwrap().holds < holds + 2 {
        assert!(
            boot().since(begun) < Duration::from_secs(60),
            "nobody got in"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    over.store(true, SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    drop(etcd);
    let tally = tally.lock().unwrap();
    println!(
        "{kills} leaders killed, {} holds, {} writes, refused on end for {:?} at most",
        tally.holds, tally.writes, tally.refused
    );
    let tokens = applied(&origin);
    assert!(
        tokens.is_sorted(),
        "an older token was applied after a newer one"
    );
    assert!(tally.writes > 0 && tokens.len() as u64 >= tally.writes);
    // Times are judged in the long version only, on a machine that does nothing else.
    if std::env::var_os("KILLS").is_some() {
        assert!(
            tally.refused <= Duration::from_secs(5),
            "a holder was refused for {:?} on end",
            tally.refused
        );
    }
}
