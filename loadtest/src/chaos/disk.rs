//! A disk that can be full: a small file system of its own in memory, for a proxy's state folder.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::geteuid,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};
use tempfile::TempDir;

/// Room for the state's log between two of its checkpoints, and some.
const SIZE: &str = "size=16m";
/// Says to the program that it runs in a namespace already.
const INSIDE: &str = "PALISADE_CHAOS_NAMESPACE";

/// It is gone once this is dropped.
#[derive(Debug)]
pub(super) struct Disk(TempDir);

impl Disk {
    /// Mounts an empty one.
    pub(super) fn mount() -> io::Result<Self> {
        let folder = TempDir::with_prefix("palisade-disk-")?;
        let flags = MsFlags::empty();
        mount(
            Some("tmpfs"),
            folder.path(),
            Some("tmpfs"),
            flags,
            Some(SIZE),
        )?;
        Ok(Self(folder))
    }

    /// A folder on it.
    pub(super) fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Takes all the room there is.
    pub(super) fn fill(&self) -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.filler())?;
        for size in [4096, 1] {
            while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
        }
        Ok(())
    }

    /// Gives it back.
    pub(super) fn make_room(&self) -> io::Result<()> {
        fs::remove_file(self.filler())
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// Whether this process may mount one.
pub(super) fn may_mount() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| Disk::mount().is_ok())
}

/// Becomes the same program in a user and mount namespace of its own, in which it may mount, where there is `unshare` (util-linux) and
/// the system lets this user do that. Comes back if not, or if there is no need.
pub fn enter_namespace() {
    if geteuid().is_root() || std::env::var_os(INSIDE).is_some() || may_mount() {
        return;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let quiet = |command: &mut Command| {
        command.arg("true").stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if let (true, Ok(own)) = (quiet(&mut unshare()), std::env::current_exe()) {
        let own: &Path = &own;
        // Only comes back if it fails: then the fault is left out.
        let _ = unshare()
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
    }
}
