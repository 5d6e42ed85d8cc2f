//! The state on disks that are full or fail.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped or measured is for whoever runs it"
)]

mod state_support;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use palisade::state::{Floors, Options, State};
use state_support::{CHILD, child, child_folder, close, open, token};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A small file system of its own; `None` where this user may not mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        match mount(
            Some("tmpfs"),
            folder.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options.as_str()),
        ) {
            Ok(()) => Some(Self(folder)),
            Err(nix::Error::EPERM | nix::Error::EACCES) => {
                println!("SKIPPED: mounting a tmpfs is not permitted here");
                None
            }
            Err(error) => panic!("mount: {error}"),
        }
    }

    /// Takes all the room there is, and gives the file that has it.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("filler");
        let mut file = File::create(&path).unwrap();
        for size in [4096, 1] {
            while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let Some(disk) = Small::mount("8m") else {
        return;
    };
    let folder = disk.0.path().join("state");
    let state = open(&folder);
    let mut floor = 0;
    for round in 0..3 {
        floor += 1;
        close(&state, "a", floor).unwrap();
        let filler = disk.fill();
        // The log has some room of its own left, and gets it back when it can be moved into the database.
        let (mut tries, mut refused) = (0, Vec::new());
        while refused.len() < 3 {
            let scope = format!("{round} {tries} {}", "x".repeat(2000));
            match close(&state, &scope, 1) {
                Ok(()) => refused.clear(),
                Err(error) => refused.push((scope, error)),
            }
            tries += 1;
            assert!(tries < 10_000, "the disk never filled");
        }
        for (scope, error) in &refused {
            assert!(error.to_string().contains("full"), "{error}");
            assert_eq!(state.load(scope).unwrap(), None, "refused, but there");
        }
        assert_eq!(state.load("a").unwrap().unwrap().floor, token(floor));
        fs::remove_file(filler).unwrap();
        close(&state, &refused[0].0, 1).unwrap();
        // More than one checkpoint is worth.
        for n in 0..1100 {
            floor += 1;
            close(&state, "a", floor).unwrap();
            if n == 500 {
                state.opened(&"a".into(), token(floor));
            }
        }
    }
    drop(state);
    assert_eq!(
        open(&folder).load("a").unwrap().unwrap().floor,
        token(floor)
    );
}

/// Without room the start itself is refused: it could not even note that it is unclean from now on.
#[test]
fn a_start_on_a_full_disk_says_so() {
    let Some(disk) = Small::mount("256k") else {
        return;
    };
    let folder = disk.0.path().join("state");
    let state = open(&folder);
    close(&state, "a", 5).unwrap();
    state.stop_clean(Vec::new()).unwrap();
    drop(state);
    let filler = disk.fill();
    let error = State::open(&folder, Options::default())
        .expect_err("no room")
        .to_string();
    assert!(error.contains("room"), "{error}");
    fs::remove_file(filler).unwrap();
    assert_eq!(open(&folder).load("a").unwrap().unwrap().floor, token(5));
}

/// Lets `fsync` and `fdatasync` fail with EIO while a file is there, as a dying disk does.
const FAILING_SYNC: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int broken(void) {
  const char *path = getenv("BROKEN_SYNC");
  return path && access(path, F_OK) == 0;
}
int fsync(int fd) {
  if (broken()) { errno = EIO; return -1; }
  return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd);
}
int fdatasync(int fd) {
  if (broken()) { errno = EIO; return -1; }
  return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"#;

fn failing_sync(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("sync.c"), folder.join("sync.so"));
    fs::write(&source, FAILING_SYNC).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(compiled.unwrap().success());
    library
}

/// In a child: one close on a good disk, one on a bad one, and one on the disk that seems good again.
#[test]
fn child_meets_a_failing_sync() {
    let Some(folder) = child_folder() else { return };
    let state = State::open(&folder.join("state"), Options::default()).unwrap();
    let marks: PathBuf = folder.join("acknowledged");
    let mark = |floor: u64| fs::create_dir_all(marks.join(floor.to_string())).unwrap();
    let broken = folder.join("broken");
    close(&state, "a", 1).unwrap();
    mark(1);
    File::create(&broken).unwrap();
    if close(&state, "a", 2).is_ok() {
        mark(2);
    }
    fs::remove_file(&broken).unwrap();
    if close(&state, "a", 3).is_ok() {
        mark(3);
    }
}

#[test]
fn a_failed_sync_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let library = failing_sync(folder.path());
    let status = child("child_meets_a_failing_sync", folder.path())
        .env("LD_PRELOAD", library)
        .env("BROKEN_SYNC", folder.path().join("broken"))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(74), "{CHILD}");
    let acknowledged: Vec<_> = fs::read_dir(folder.path().join("acknowledged"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(acknowledged.len(), 1, "{acknowledged:?}");
    let state = open(&folder.path().join("state"));
    assert!(state.started_unclean());
    assert!(state.load("a").unwrap().unwrap().floor >= token(1));
}
