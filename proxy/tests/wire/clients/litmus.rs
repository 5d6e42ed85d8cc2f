//! litmus, the WebDAV suite: through the proxy as directly.

use super::{serve, venv};
use crate::support::{Palisade, find};
use palisade_loadtest::servers::program;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
};

/// A hop that gives each request a token, and leaves every other byte as it is.
fn hop(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            thread::spawn(move || {
                let proxy = TcpStream::connect(to).unwrap();
                let (mut from, mut back) =
                    (proxy.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
                let _ = stamp(client, &proxy);
                let _ = proxy.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn stamp(mut client: TcpStream, mut proxy: &TcpStream) -> std::io::Result<()> {
    let (mut buffer, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        while find(&buffer, b"\r\n\r\n").is_none() {
            match client.read(&mut part)? {
                0 => return Ok(()),
                length => buffer.extend_from_slice(&part[..length]),
            }
        }
        let end = find(&buffer, b"\r\n\r\n").unwrap() + 4;
        let mut head: Vec<u8> = buffer.drain(..end).collect();
        let line = find(&head, b"\r\n").unwrap() + 2;
        head.splice(line..line, b"X-Fence-Token: 1\r\n".iter().copied());
        proxy.write_all(&head)?;
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let mut left: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        while left > 0 {
            if buffer.is_empty() {
                let length = client.read(&mut part)?;
                if length == 0 {
                    return Ok(());
                }
                buffer.extend_from_slice(&part[..length]);
            }
            let piece: Vec<u8> = buffer.drain(..left.min(buffer.len())).collect();
            proxy.write_all(&piece)?;
            left -= piece.len();
        }
    }
}

/// The result of each test, and the warnings.
fn litmus(address: SocketAddr) -> (BTreeMap<String, String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("litmus")
        .current_dir(folder.path())
        .args(["--keep-going", &format!("http://{address}/")])
        .output()
        .expect("litmus (scripts/need.sh test)");
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    let (mut results, mut warnings, mut suite) = (BTreeMap::new(), Vec::new(), String::new());
    let mut last = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("-> running `") {
            suite = name.trim_end_matches("':").to_owned();
        } else if line.contains("WARNING:") {
            warnings.push(line.trim().to_owned());
        }
        // `12. name........ result`; after a warning the result stands on a line of its own.
        let Some((start, result)) = line.rsplit_once(". ") else {
            continue;
        };
        if let Some((number, name)) = start.trim().split_once(". ") {
            last = format!("{suite} {:>2} {}", number, name.trim_end_matches('.'));
        }
        if ["pass", "FAIL", "SKIP"]
            .iter()
            .any(|word| result.starts_with(word))
        {
            results.insert(last.clone(), result[..4].to_owned());
        }
    }
    (results, warnings)
}

/// The same passes, no new warning.
fn compare(store: SocketAddr, at_least: usize) {
    let proxy = Palisade::start(&format!("http://{store}"), "");
    let (direct, warned) = litmus(store);
    let (through, warned_through) = litmus(hop(proxy.address()));
    let passed = |results: &BTreeMap<String, String>| {
        let passed: Vec<String> = results
            .iter()
            .filter(|(_, r)| *r == "pass")
            .map(|(n, _)| n.clone())
            .collect();
        passed
    };
    assert!(passed(&direct).len() >= at_least, "{direct:#?}");
    let lost: Vec<_> = passed(&direct)
        .into_iter()
        .filter(|name| through.get(name).is_none_or(|r| r != "pass"))
        .collect();
    assert!(lost.is_empty(), "not passed through the proxy: {lost:?}");
    let new: Vec<_> = warned_through
        .iter()
        .filter(|warning| !warned.contains(warning))
        .collect();
    assert!(new.is_empty(), "{new:?}");
    // A fragment in a target is refused, whatever the store makes of it (RFC 9112, section 3.2).
    assert!(
        !warned_through.iter().any(|w| w.contains("fragment")),
        "{warned_through:?}"
    );
}

#[test]
fn a_folder_by_webdav_passes_as_it_does_directly() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, address) = serve("webdav", |port| {
        let mut command = Command::new(program("webdav"));
        command.arg(format!("127.0.0.1:{port}")).arg(folder.path());
        command
    });
    compare(address, 60);
}

/// A store with locks and properties.
#[test]
fn wsgidav_passes_as_it_does_directly() {
    let Some(venv) = venv() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (_store, address) = serve("wsgidav", |port| {
        let mut command = Command::new(venv.join("wsgidav"));
        command
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--auth",
                "anonymous",
                "--root",
            ])
            .arg(folder.path());
        command
    });
    compare(address, 80);
}
