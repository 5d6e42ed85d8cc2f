//! Leaves the stage standing for a person to play with (`KEEP=1`), and takes it down later.

use crate::{
    say,
    story::{Ending, LEASE},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};
use palisade_examples::{stage::Stage, tree::Stat};
use palisade_loadtest::servers::{program, wait_for};
use serde_json::{Value, json};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The file in the stage's folder that says what to end and remove.
const RECORD: &str = "kept.json";

/// Lets everything run, and says where it is and what to try.
pub(crate) fn keep(mut stage: Stage, ending: &Ending) -> io::Result<()> {
    let processes: Vec<Value> = stage
        .processes()
        .into_iter()
        .filter_map(|pid| Some(json!([pid.as_raw(), Stat::of(pid)?.started])))
        .collect();
    let report = stage.proxy.url("report.txt");
    addresses(&stage);

    say::heading("Three lines to try");
    let put = |what: &str, token: Option<u64>| {
        let header = token.map_or(String::new(), |token| {
            format!(" -H 'X-Fence-Token: {token}'")
        });
        say::plain(&format!("  curl -i -X PUT -d '{what}'{header} {report}"));
    };
    put("from A", Some(ending.stale));
    put("from B", Some(ending.newest));
    put("from nobody", None);

    say::heading("To become the next worker, with a lease and a token of your own");
    say::plain(&format!(
        "  {} run {LEASE} --leases {} -- \\\n    sh -c 'curl -i -X PUT -d \"from me\" -H \"X-Fence-Token: $FENCE_TOKEN\" {report}'",
        program("palisade-lease").display(),
        stage.leases.url(),
    ));

    let folder = stage.folder().to_owned();
    let folders = stage.leave();
    let record = json!({ "processes": processes, "folders": folders });
    fs::write(folder.join(RECORD), record.to_string())?;
    say::heading("To end it all: make clean-demo");
    Ok(())
}

fn addresses(stage: &Stage) {
    say::heading("Everything is left running");
    let admin = format!("http://{}/metrics", stage.proxy.admin);
    say::fact(
        "palisade",
        &format!("http://{}", stage.proxy.front),
        "the fence",
    );
    say::fact("", &admin, "what it counts");
    say::fact(
        "",
        &stage.proxy.config.display().to_string(),
        "its settings",
    );
    say::fact("datastore", &stage.fenced.address, "behind the fence");
    say::fact(
        "",
        &format!("http://{}", stage.bare.address),
        "the bare one",
    );
    say::fact(stage.leases.name(), &stage.leases.url(), "the leases");
    say::fact("logs", &stage.folder().display().to_string(), "");
}

/// Ends what earlier runs of this user left running, and removes their folders.
pub(crate) fn clean() -> io::Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        let path = entry.path().join(RECORD);
        let ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with("palisade-demo-");
        // A file of somebody else must not tell us what to kill and what to remove.
        if ours && fs::metadata(&path).is_ok_and(|meta| meta.uid() == Uid::current().as_raw()) {
            take_down(&path)?;
            count += 1;
        }
    }
    say::plain(&format!("Demos ended and removed: {count}"));
    Ok(())
}

fn take_down(record: &Path) -> io::Result<()> {
    let record: Value = serde_json::from_slice(&fs::read(record)?)?;
    for process in record["processes"].as_array().into_iter().flatten() {
        let (Some(pid), Some(started)) = (process[0].as_i64(), process[1].as_u64()) else {
            continue;
        };
        end(Pid::from_raw(pid as i32), started);
    }
    for folder in record["folders"].as_array().into_iter().flatten() {
        if let Some(folder) = folder.as_str().map(PathBuf::from) {
            let _ = fs::remove_dir_all(folder);
        }
    }
    Ok(())
}

/// Ends the process that had this id and start time, and no other that has the id by now.
fn end(pid: Pid, started: u64) {
    // A process whose first thread has ended holds its sockets until the last one has.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let ended = |stat: Stat| stat.state == 'Z' && threads() <= 1;
    let alive = || Stat::of(pid).is_some_and(|stat| stat.started == started && !ended(stat));
    if alive() {
        let _ = kill(pid, Signal::SIGKILL);
        wait_for("a server's end", || (!alive()).then_some(()));
    }
}
