//! Wall clocks that jump: libfaketime before programs that are started, with the time that a file says. Their other clocks are the
//! machine's. etcd is a Go program, which asks the kernel by itself: its clock can't be made to jump this way.

use nix::unistd::Pid;
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// A wall clock that several programs may share.
#[derive(Clone, Debug)]
pub(super) struct WallClock {
    library: &'static str,
    file: PathBuf,
    users: Arc<Users>,
}

/// Processes that have gone by it. libfaketime leaves two files of each in memory that did not end by itself.
#[derive(Debug, Default)]
struct Users(Mutex<Vec<Pid>>);

impl Drop for Users {
    fn drop(&mut self) {
        let users = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pid in users {
            for name in ["faketime_shm_", "sem.faketime_sem_"] {
                let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
            }
        }
    }
}

impl WallClock {
    /// One that is right, with its file here; `None` without libfaketime.
    pub(super) fn new(file: &Path) -> io::Result<Option<Self>> {
        let Some(library) = library() else {
            return Ok(None);
        };
        let clock = Self {
            library,
            file: file.to_owned(),
            users: Arc::default(),
        };
        clock.set(0)?;
        Ok(Some(clock))
    }

    /// By so many seconds it is ahead from now on.
    pub(super) fn set(&self, ahead: i64) -> io::Result<()> {
        // Put in place at once: it is read all the time.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{ahead:+}"))?;
        fs::rename(next, &self.file)
    }

    /// This process goes by it.
    pub(super) fn used_by(&self, process: Pid) {
        let mut users = self.users.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.push(process);
    }

    /// What a program has to be started with.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let on = || OsString::from("1");
        [
            ("LD_PRELOAD", OsString::from(self.library)),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone().into()),
            ("FAKETIME_NO_CACHE", on()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", on()),
            ("DONT_FAKE_MONOTONIC", on()),
            ("NO_FAKE_STAT", on()),
        ]
        .into_iter()
    }
}

/// libfaketime, as the dynamic linker is told of it; Debian's package `faketime` has it.
pub(super) fn library() -> Option<&'static str> {
    static LIBRARY: OnceLock<Option<String>> = OnceLock::new();
    let found = LIBRARY.get_or_init(|| {
        let shown = Command::new("faketime")
            .args(["-f", "+1h", "printenv", "LD_PRELOAD"])
            .output()
            .ok()?;
        let name = String::from_utf8(shown.stdout).ok()?.trim().to_owned();
        (shown.status.success() && !name.is_empty()).then_some(name)
    });
    found.as_deref()
}
