//! etcd goes back in time, and an operator does what the book says.

use super::{run::Stage, target};
use crate::{history::What, servers::LOOK_AGAIN};
use nix::sys::signal::Signal;
use palisade_lease::clock;
use std::{io, path::PathBuf, thread, time::Duration};

/// How long a proxy may take to notice, and a new epoch to begin. Not a measure of anything: the run ends without a verdict.
const GIVE_UP: Duration = Duration::from_secs(60);

impl Stage {
    /// The file of the last snapshot.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.folder.path().join("snapshot.db")
    }

    /// Restores etcd with its revision pushed ahead: nobody has to do anything about Palisade. The snapshot may not know of a replica that
    /// has joined since; so etcd stays away until nothing of any can still be applied.
    pub(super) fn restore_etcd_ahead(&mut self) -> io::Result<()> {
        self.leases.end();
        if self.nodes.len() > 1 {
            thread::sleep(target::SESSION + target::MAX_PAUSE + self.settle);
        }
        self.leases.restore(&self.snapshot(), true)
    }

    /// One from before the push must not be restored next: numbers would be missing by the push.
    pub(super) fn snapshot_again(&self) -> io::Result<()> {
        wait("a snapshot", || {
            self.leases.snapshot(&self.snapshot()).is_ok()
        })
    }

    /// Restores etcd. Numbers would come again, so the proxies must freeze.
    pub(super) fn restore_etcd(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot();
        // A1 leaves out an etcd whose revision is past the old one before a proxy looks: the jobs stand still meanwhile, and every
        // proxy has seen a revision that is well ahead of the snapshot and what replicas put themselves.
        self.signal_workers(Signal::SIGSTOP);
        let mut pushed = 0;
        wait("etcd to take puts", || match self.leases.push_on() {
            Ok(revision) => {
                pushed = revision;
                true
            }
            Err(_) => false,
        })?;
        for (proxy, node) in (1..).zip(&self.nodes) {
            let what = format!("proxy {proxy} to see etcd's revision {pushed}");
            wait(&what, || node.target.has_watched(pushed))?;
        }
        self.leases.restore(&snapshot, false)?;
        for (proxy, node) in (1..).zip(&self.nodes) {
            if !node.target.has_epochs() {
                continue;
            }
            let what = format!("proxy {proxy} to notice that etcd has gone back");
            wait(&what, || node.target.is_frozen())?;
            self.recorder.record(What::Frozen { proxy });
        }
        self.signal_workers(Signal::SIGCONT);
        Ok(())
    }

    /// After some time with the jobs before frozen proxies a new epoch begins at each.
    pub(super) fn new_epoch(&mut self) -> io::Result<()> {
        for (proxy, node) in (1..).zip(&self.nodes) {
            if !node.target.has_epochs() {
                continue;
            }
            let mut begun = None;
            let what = format!("a new epoch to begin at proxy {proxy}");
            wait(&what, || {
                begun = node.target.new_epoch();
                begun.is_some()
            })?;
            begun
                .into_iter()
                .for_each(|floor| self.recorder.record(What::Epoch { proxy, floor }));
        }
        Ok(())
    }

    fn signal_workers(&self, signal: Signal) {
        self.workers
            .iter()
            .for_each(|(_, process)| process.signal(signal));
    }
}

/// Waits until it is so.
///
/// # Errors
/// If it does not come to that.
pub(super) fn wait(what: &str, mut condition: impl FnMut() -> bool) -> io::Result<()> {
    let start = clock::boot();
    while !condition() {
        if clock::boot().since(start) >= GIVE_UP {
            return Err(io::Error::other(format!("gave up waiting for {what}")));
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}
