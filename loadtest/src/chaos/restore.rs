//! etcd goes back in time, and an operator does what the book says.

use super::run::Stage;
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

    /// Restores etcd with its revision pushed ahead: nobody has to do anything about Palisade.
    pub(super) fn restore_etcd_ahead(&mut self) -> io::Result<()> {
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
        // The jobs stand still until every proxy has looked: A1 leaves out what is overtaken before.
        self.signal_workers(Signal::SIGSTOP);
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

fn wait(what: &str, mut condition: impl FnMut() -> bool) -> io::Result<()> {
    let start = clock::boot();
    while !condition() {
        if clock::boot().since(start) >= GIVE_UP {
            return Err(io::Error::other(format!("gave up waiting for {what}")));
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}
