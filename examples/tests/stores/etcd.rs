//! etcd's JSON gateway, by curl.

use crate::support::{Fenced, assert_good, assert_stale, curl, header};
use palisade_loadtest::servers::Etcd;

/// curl, with etcd's own JSON gateway as the datastore: another etcd than that of the leases.
#[tokio::test(flavor = "multi_thread")]
async fn etcd_by_its_gateway() {
    let store = Etcd::start().unwrap();
    let fenced = Fenced::new(store.address(), "etcd-gateway.toml", "etcd").await;
    // `a`, and `first`, `second`, `late`, in base64.
    let put = |token: u64, value: &str| {
        let message = format!("{{\"key\":\"YQ==\",\"value\":\"{value}\"}}");
        let url = fenced.url("/v3/kv/put");
        curl(&["-X", "POST", "-d", &message, "-H", &header(token), &url])
    };
    let old = fenced.old.token().get();
    assert_good(&put(old, "Zmlyc3Q="));
    let new = fenced.next().await;
    assert_good(&put(new.token().get(), "c2Vjb25k"));
    assert_stale(&put(old, "bGF0ZQ=="));
    // A question needs no token.
    let url = fenced.url("/v3/kv/range");
    let read = curl(&["-X", "POST", "-d", "{\"key\":\"YQ==\"}", &url]);
    assert!(read.1.contains("c2Vjb25k"), "{read:?}");
    assert_eq!(
        store.ctl(&["get", "a", "--print-value-only"]).trim(),
        "second"
    );
}
