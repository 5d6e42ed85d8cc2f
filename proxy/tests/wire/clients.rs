//! The clients that people have, with real datastores behind the proxy.

mod litmus;
mod s3;

use crate::support::{Palisade, put, upstream};
use palisade_loadtest::servers::{Process, free_port, wait_for};
use std::{
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Where `scripts/need.sh test` puts Python's packages.
fn venv() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let venv = own.ancestors().nth(3).unwrap().join("venv/bin");
    let there = venv.join("python").exists();
    if !there {
        let mut out = std::io::stderr();
        let _ = std::io::Write::write_all(
            &mut out,
            b"SKIPPED: no Python packages in target/venv; `scripts/need.sh test` installs them by pip\n",
        );
    }
    there.then_some(venv)
}

/// Starts a server on a port that was free, until something answers there.
fn serve(name: &str, command: impl Fn(u16) -> Command) -> (Process, SocketAddr) {
    for _ in 0..5 {
        let port = free_port().unwrap();
        let mut command = command(port);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = Process::start(name, &mut command).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let up = wait_for(name, || {
            if process.ended().is_some() {
                return Some(false);
            }
            TcpStream::connect(address).is_ok().then_some(true)
        });
        if up {
            return (process, address);
        }
    }
    panic!("{name} does not start");
}

/// Runs a script to a good end; what it printed.
fn script(program: impl AsRef<std::ffi::OsStr>, text: &str, arguments: &[&str]) -> String {
    let flag = if program.as_ref().to_string_lossy().ends_with("node") {
        "-e"
    } else {
        "-c"
    };
    let output = Command::new(&program)
        .args([flag, text])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{:?}: {}{}",
        program.as_ref(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn proxy_at_100(origin: &palisade_loadtest::origin::Origin) -> Palisade {
    let proxy = Palisade::start(&origin.url(), "");
    assert_eq!(put(proxy.address(), "/good", 100).status, 200);
    proxy
}

#[test]
fn python_requests_writes_streams_and_reads_refusals() {
    let Some(venv) = venv() else { return };
    let origin = upstream();
    let proxy = proxy_at_100(&origin);
    script(
        venv.join("python"),
        include_str!("clients/requests.py"),
        &[&format!("http://{}", proxy.address())],
    );
    let streamed = &origin.arrivals_at("/streamed")[0];
    assert_eq!((streamed.length, streamed.complete), (1_000_000, true));
    assert_eq!(streamed.field("transfer-encoding"), ["chunked"]);
    let whole = &origin.arrivals_at("/whole")[0];
    assert_eq!(whole.field("content-length"), ["1000000"]);
    assert!(origin.arrivals_at("/stale").is_empty());
}

#[test]
fn python_httpx_speaks_http2() {
    let Some(venv) = venv() else { return };
    let origin = upstream();
    let proxy = proxy_at_100(&origin);
    script(
        venv.join("python"),
        include_str!("clients/http2.py"),
        &[&format!("http://{}", proxy.address())],
    );
    assert_eq!(origin.arrivals_at("/x").len(), 20);
    assert!(origin.arrivals_at("/stale").is_empty());
}

#[test]
fn node_fetch_writes_and_reads_refusals() {
    if Command::new("node").arg("--version").output().is_err() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: no node here\n");
        return;
    }
    let origin = upstream();
    let proxy = proxy_at_100(&origin);
    script(
        "node",
        include_str!("clients/fetch.js"),
        &[&format!("http://{}", proxy.address())],
    );
    assert_eq!(origin.arrivals_at("/x")[0].length, 1_000_000);
    assert!(origin.arrivals_at("/stale").is_empty());
}
