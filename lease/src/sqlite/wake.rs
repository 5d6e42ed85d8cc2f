//! Waking those who wait, in other processes too. After each commit that may matter to a waiter, one byte is written to a
//! file beside the database; inotify tells of it. (The write-ahead log itself would tell too early: before the commit is
//! visible.)

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};
use tokio::sync::Notify;

/// How long to wait at most before looking again, should a wake-up have been missed: one whose writer was killed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same where inotify can't be had: the kernel allows a user 128 of them (`inotify(7)`, max_user_instances).
const LOOK_OFTEN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Wake {
    file: File,
    notify: Arc<Notify>,
    look_again: Duration,
}

impl Wake {
    pub(super) fn beside(database: &Path) -> io::Result<Self> {
        let mut path = database.as_os_str().to_owned();
        path.push("-wake");
        let path = PathBuf::from(path);
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)?;
        let notify = Arc::new(Notify::new());
        let look_again = match listen(&path, Arc::downgrade(&notify)) {
            Ok(()) => LOOK_AGAIN,
            Err(_) => LOOK_OFTEN,
        };
        Ok(Self {
            file,
            notify,
            look_again,
        })
    }

    /// Wakes everybody. Should it fail, they look by themselves, only later.
    pub(super) fn wake(&self) {
        let _ = self.file.write_all_at(b".", 0);
    }

    /// Resolves at the next wake-up after the call, or when it is time to look anyway.
    pub(super) fn next(&self) -> impl Future<Output = ()> + Send + 'static {
        // Made now, so that no wake-up between this call and the waiting is missed.
        let woken = self.notify.clone().notified_owned();
        let limit = self.look_again;
        async move {
            let _ = tokio::time::timeout(limit, woken).await;
        }
    }
}

/// Passes on each change of the file, in a thread of its own that ends with the store.
fn listen(path: &Path, notify: Weak<Notify>) -> io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?;
    let limit = PollTimeout::try_from(LOOK_AGAIN).unwrap_or(PollTimeout::MAX);
    thread::Builder::new()
        .name("lease-wake".to_owned())
        .spawn(move || {
            loop {
                let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
                let woken = poll(&mut fds, limit).is_ok_and(|count| count > 0);
                let Some(notify) = notify.upgrade() else {
                    return;
                };
                if woken && inotify.read_events().is_ok() {
                    notify.notify_waiters();
                }
            }
        })?;
    Ok(())
}
