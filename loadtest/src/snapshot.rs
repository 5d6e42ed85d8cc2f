//! etcd's data from a snapshot, by etcd's own tool.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

/// A member to be, as `--initial-cluster` and its companions have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// All members: `name=url,…`.
    pub(crate) cluster: &'a str,
    /// Its own URL among them.
    pub(crate) peer: &'a str,
    /// Its data folder; whatever is in it goes.
    pub(crate) data: &'a Path,
}

/// Whether revisions can be pushed ahead at a restore (`--bump-revision`, etcd 3.5): where there is `etcdutl`.
pub(crate) fn can_bump(program: impl Fn(&str) -> PathBuf) -> bool {
    let output = Command::new(program("etcdutl")).arg("version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Puts into a member's data folder what the snapshot has: with `etcdutl`, or with the `etcdctl` of etcd 3.4.
///
/// # Errors
/// With what the tool said.
pub(crate) fn restore(
    program: impl Fn(&str) -> PathBuf,
    snapshot: &Path,
    member: Member<'_>,
    arguments: &[&str],
) -> io::Result<()> {
    if member.data.exists() {
        std::fs::remove_dir_all(member.data)?;
    }
    let tool = if can_bump(&program) {
        "etcdutl"
    } else {
        "etcdctl"
    };
    let output = Command::new(program(tool))
        .env("ETCDCTL_API", "3")
        .args(["snapshot", "restore"])
        .arg(snapshot)
        .arg("--data-dir")
        .arg(member.data)
        .args(["--name", member.name])
        .args(["--initial-cluster", member.cluster])
        .args(["--initial-advertise-peer-urls", member.peer])
        .args(arguments)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{tool} snapshot restore: {said}")))
}
