//! Acquiring, keeping and giving back, through the library.
use palisade_lease::{LeaseOptions, LeaseUrl};
use palisade_loadtest::servers::Etcd;

#[tokio::test]
async fn taken_and_given_back() {
    let etcd = Etcd::start().unwrap();
    let url: LeaseUrl = etcd.url().parse().unwrap();
    let store = palisade_lease::open(&url).unwrap();
    let lease = store.acquire("a", LeaseOptions::default()).await.unwrap();
    eprintln!("granted {lease:?}");
    lease.release().await;
    eprintln!("released");
}
