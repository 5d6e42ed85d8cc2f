//! What the tests play on.

use palisade_loadtest::{
    origin::{Origin, Sign, Step},
    proxy::Palisade,
    servers::{Etcd, GIVE_UP, wait_for},
};
use rusqlite::OptionalExtension;

/// A settle time that no test outlives: a handover that needs it does not come about.
pub(crate) const NEVER: &str = "1h";

/// A proxy without a lease store in front of a recording upstream. Settles by answers only, unless told otherwise.
pub(crate) fn proxy(origin: &Origin) -> Palisade {
    Palisade::new(&origin.url())
        .unwrap()
        .set("fence.settle", NEVER)
}

/// The same, running.
pub(crate) fn stage() -> (Origin, Palisade) {
    stage_with(|proxy| proxy)
}

/// The same with other settings.
pub(crate) fn stage_with(settings: impl FnOnce(Palisade) -> Palisade) -> (Origin, Palisade) {
    let origin = Origin::tcp().unwrap();
    let mut proxy = settings(proxy(&origin));
    proxy.start().unwrap();
    (origin, proxy)
}

/// A request is read whole, and then nothing happens until the sign; then it is applied and answered.
pub(crate) fn hold(sign: &Sign) -> Vec<Step> {
    vec![
        Step::ReadBody,
        Step::Await(sign.clone()),
        Step::Apply,
        Step::AnswerNaturally,
    ]
}

/// The tokens of what was applied, in order.
pub(crate) fn applied(origin: &Origin) -> Vec<u64> {
    let token = |applied: palisade_loadtest::origin::Applied| applied.token?.parse().ok();
    origin.applied().into_iter().filter_map(token).collect()
}

/// Waits until a request waits for the raise to this floor.
pub(crate) fn wait_waiting(proxy: &Palisade, scope: &str, floor: u64) {
    proxy.wait_scope(scope, "a request that waits for the raise", |scope| {
        scope.floor == Some(floor) && scope.waiting > 0 && !scope.open
    });
}

/// What stands on the proxy's disk for a scope: its floor, and whether that is recorded as opened.
pub(crate) fn stored(proxy: &Palisade, scope: &str) -> Option<(u64, bool)> {
    let db = rusqlite::Connection::open(proxy.state().join("state.db")).unwrap();
    db.query_row(
        "SELECT floor, opened FROM floors WHERE scope = ?1",
        [scope],
        |row| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?)),
    )
    .optional()
    .unwrap()
}

/// Waits until that stands there.
pub(crate) fn wait_stored(proxy: &Palisade, scope: &str, floor: u64, opened: bool) {
    wait_for("the floor on disk", || {
        (stored(proxy, scope) == Some((floor, opened))).then_some(())
    });
}

/// The disk as it is now: as long as this lives, nothing that the proxy writes gets there.
pub(crate) struct Frozen(rusqlite::Connection);

impl Frozen {
    pub(crate) fn freeze(proxy: &Palisade) -> Self {
        let db = rusqlite::Connection::open(proxy.state().join("state.db")).unwrap();
        db.busy_timeout(GIVE_UP).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(db)
    }

    pub(crate) fn thaw(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

/// Puts a lease key as a worker's grant does, on an etcd lease of its own; gives the token.
pub(crate) fn take(etcd: &Etcd, name: &str) -> u64 {
    put_key(etcd, &format!("leases/{name}"))
}

/// Puts a key below the prefix on an etcd lease, and gives its `mod_revision`.
pub(crate) fn put_key(etcd: &Etcd, name: &str) -> u64 {
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let put = etcd.ctl(&[
        "put",
        &format!("/palisade/{name}"),
        "{}",
        "--lease",
        lease,
        "-w",
        "json",
    ]);
    let put: serde_json::Value = serde_json::from_str(&put).unwrap();
    put["header"]["revision"].as_u64().unwrap()
}
