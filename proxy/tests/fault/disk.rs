//! Disks that are full, and disks that fail.

use crate::{
    client::put,
    stage::{applied, proxy},
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use palisade_loadtest::origin::Origin;
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// A small file system of its own; `None` where this user may not mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = mount(
            Some("tmpfs"),
            folder.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options.as_str()),
        );
        match mounted {
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

/// Kafka took writes that it could not keep. Here the disk below the state folder is full: the new holder is refused, nothing of
/// its is forwarded, the old one stays out, and once there is room the new holder goes on without a restart.
#[test]
fn f10_a_full_disk_refuses_and_recovers() {
    let Some(disk) = Small::mount("4m") else {
        return;
    };
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin).state_at(&disk.0.path().join("state"));
    proxy.start().unwrap();
    let mut token = 33;
    put("/x", token, "old").send(&proxy).is(204);
    let filler = disk.fill();
    // The log has some room left in what it holds already, and gets it back each time when it can be moved.
    let mut refused = 0;
    while refused < 3 {
        token += 1;
        let target = format!("/{token}");
        let answer = put(&target, token, "new").send(&proxy);
        if answer.status != 204 {
            answer.is_refused(503, "storage-unavailable");
            assert_eq!(origin.arrivals_at(&target).len(), 0);
            put("/x", token - 1, "late")
                .send(&proxy)
                .is_refused(412, "stale-token");
            refused += 1;
        }
        assert!(token < 10_000, "the disk never filled");
    }

    let target = format!("/{token}");
    fs::remove_file(filler).unwrap();
    put(&target, token, "new").send(&proxy).is(204);
    put("/x", token - 1, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    proxy.kill();
    proxy.change("fence.settle", "100ms");
    proxy.start().unwrap();
    put("/x", token - 1, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    put(&target, token, "new").send(&proxy).is(204);
    assert!(applied(&origin).is_sorted());
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

/// A sync that failed may say "done" the next time, of what is lost. So the process ends; nothing of the new holder's was forwarded,
/// and a start on a disk that works goes on from what is there.
#[test]
fn f10_a_failed_sync_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    let origin = Origin::tcp().unwrap();
    let mut proxy = proxy(&origin)
        .set("fence.settle", "100ms")
        .env("LD_PRELOAD", failing_sync(folder.path()))
        .env("BROKEN_SYNC", &broken);
    proxy.start().unwrap();
    put("/x", 33, "old").send(&proxy).is(204);
    File::create(&broken).unwrap();
    let new = put("/x", 34, "new").begin(&proxy);
    assert_eq!(proxy.wait().code(), Some(74));
    assert!(proxy.has_logged("a sync failed"));
    new.wait_gone();
    assert_eq!(applied(&origin), [33]);

    fs::remove_file(&broken).unwrap();
    proxy.start().unwrap();
    put("/x", 34, "new").send(&proxy).is(204);
    put("/x", 33, "late")
        .send(&proxy)
        .is_refused(412, "stale-token");
    assert_eq!(applied(&origin), [33, 34]);
}
