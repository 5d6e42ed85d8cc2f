//! Three members of etcd, whose leader is killed again and again: the lease is kept through all of it (L14).
//! `make lease-soak` is the long version.

#![allow(clippy::unwrap_used, reason = "a test that can not go on has failed")]

mod common;

use common::runs;
use palisade_lease::LeaseOptions;
use palisade_loadtest::cluster::Cluster;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l14_a_lease_outlives_its_leaders() {
    let kills = runs(2);
    // What a leader's death and the election take, at the rhythm of the report; in the short version as soon as may be.
    let long = kills > 10;
    let pause = Duration::from_secs(if long { 15 } else { 1 });
    // The report's 5 s are asked of the long version, on a machine that does nothing else: an election may take as long where
    // there is much to do.
    let ttl = Duration::from_secs(if long { 5 } else { 20 });
    let mut etcd = Cluster::start().unwrap();
    let store = palisade_lease::open(&etcd.url().parse().unwrap()).unwrap();
    let lease = store
        .acquire("a", LeaseOptions::with_ttl(ttl))
        .await
        .unwrap();
    let token = lease.token();
    for kill in 0..kills {
        let killing = tokio::task::spawn_blocking(move || {
            let leader = etcd.leader();
            etcd.kill(leader);
            // The two that are left choose another one.
            etcd.leader();
            (etcd, leader)
        });
        let (cluster, dead) = killing.await.unwrap();
        etcd = cluster;
        // Kept by the new leader.
        let mut standing = lease.standing();
        let before = standing.borrow_and_update().deadline;
        standing
            .wait_for(|now| now.deadline > before || now.loss.is_some())
            .await
            .unwrap();
        assert!(lease.is_valid(), "kill {kill}: {:?}", lease.loss());
        etcd.run(dead).unwrap();
        etcd = tokio::task::spawn_blocking(move || {
            etcd.wait_healthy(dead);
            etcd
        })
        .await
        .unwrap();
        // The rhythm of the kills, not a wait for anything.
        tokio::time::sleep(pause).await;
    }
    assert!(lease.is_valid(), "{:?}", lease.loss());
    let status = store.status(lease.name()).await.unwrap();
    assert_eq!(status.holder.unwrap().token, token);
    lease.release().await;
}
