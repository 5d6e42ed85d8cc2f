//! Out of file descriptors. In a file of its own: the limit is the whole process's.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use palisade_lease::clock::boot;
use palisade_loadtest::servers::wait_for;
use server_support::{answer, connect, patient, serve};
use std::{io::Write, sync::atomic::Ordering};

#[test]
fn a_shortage_of_descriptors_neither_spins_nor_kills() {
    let server = serve(patient());
    let counts = server.running.counts();
    let mut held = connect(server.address);
    let get = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    held.write_all(get).unwrap();
    answer(&mut held);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    // Room for the clients' ends, but not for the server's.
    setrlimit(Resource::RLIMIT_NOFILE, open + 3, hard).unwrap();
    let mut clients = Vec::new();
    while let Ok(client) = std::net::TcpStream::connect(server.address) {
        clients.push(client);
        assert!(clients.len() < 10);
    }
    wait_for("a failed accept", || {
        (counts.accept_errors.load(Ordering::Relaxed) > 0).then_some(())
    });
    let (failed, start) = (counts.accept_errors.load(Ordering::Relaxed), boot());
    // The one who is connected is served all the while, and failing goes on at a bounded pace.
    wait_for("five more failures", || {
        held.write_all(get).unwrap();
        assert!(answer(&mut held).ends_with("done"));
        (counts.accept_errors.load(Ordering::Relaxed) >= failed + 5).then_some(())
    });
    // Two threads with a pause of 100 ms after each failure: so many failures at most, however slow the machine is.
    let failures = counts.accept_errors.load(Ordering::Relaxed) - failed;
    let pauses = boot().since(start).as_millis() as u64 / 100;
    assert!(
        failures <= 2 * (pauses + 1),
        "{failures} in {pauses} pauses"
    );
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(1024), hard).unwrap();
    for client in &mut clients {
        client.write_all(get).unwrap();
        assert!(answer(client).ends_with("done"));
    }
}
