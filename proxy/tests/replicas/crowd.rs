//! Many handovers, while replicas are stopped, paused and started again.

use crate::{
    setup::{etcd, join, replica, wait_joined, wait_see},
    stage::{applied, take},
};
use nix::sys::signal::Signal;
use palisade_lease::clock::boot;
use palisade_loadtest::{
    origin::Origin,
    servers::{GIVE_UP, wait_for},
};
use std::{
    collections::HashSet,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const HANDOVERS: usize = 200;

/// What a client was told.
struct Told {
    status: u16,
    outcome: String,
    /// The problem's name, or nothing.
    problem: String,
}

fn write(to: SocketAddr, target: &str, token: u64) -> io::Result<Told> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    let head = format!(
        "PUT {target} HTTP/1.1\r\nHost: db\r\nConnection: close\r\nX-Fence-Token: {token}\r\nContent-Length: 1\r\n\r\nx"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    let after = |name: &str| {
        let rest = answer.split_once(name)?.1;
        let end = rest.find(['\r', '"'])?;
        Some(rest[..end].trim().to_owned())
    };
    Ok(Told {
        status: status.ok_or(io::ErrorKind::UnexpectedEof)?,
        outcome: after("x-fence-outcome:").unwrap_or_default(),
        problem: after("urn:palisade:problem:").unwrap_or_default(),
    })
}

/// The tokens of what was applied never go back.
fn assert_in_order(origin: &Origin) {
    let applied = applied(origin);
    let back = applied.windows(2).find(|pair| pair[0] > pair[1]);
    assert_eq!(back, None, "an older token was applied after a newer one");
}

/// What was refused was not applied, and every refusal has a reason that this test can cause.
#[derive(Default)]
struct Refusals(Mutex<Vec<(String, String)>>);

impl Refusals {
    fn note(&self, target: &str, told: &Told) {
        if told.outcome == "refused" {
            let refused = (target.to_owned(), told.problem.clone());
            self.0.lock().unwrap().push(refused);
        }
    }

    fn check(&self, origin: &Origin) {
        let applied: HashSet<String> = origin.applied().into_iter().map(|a| a.target).collect();
        for (target, problem) in self.0.lock().unwrap().iter() {
            assert!(
                !applied.contains(target),
                "{target}: {problem}, and applied"
            );
            let possible = [
                "stale-token",
                "superseded",
                "not-holder",
                "session-expired",
                "handover-pending",
                "authority-unavailable",
            ];
            assert!(possible.contains(&&**problem), "{target}: {problem}");
        }
    }
}

/// 200 handovers. Each new holder writes by way of either replica; the old one goes on writing by way of the other, late as it is;
/// and at times one of them stands still, for less than a session or for longer.
#[test]
fn two_hundred_handovers_with_replicas_that_stand_still() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let mut a = replica(&origin, &etcd.url()).set("fence.settle", "1s");
    let mut b = replica(&origin, &etcd.url()).set("fence.settle", "1s");
    join(&mut a);
    join(&mut b);
    wait_see(&a, 2);
    wait_see(&b, 2);
    let addresses = [a.address(), b.address()];
    let refusals = Refusals::default();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for (round, replica) in [&a, &b].into_iter().cycle().enumerate() {
                let next = (round + 1) * 20;
                wait_for("the handovers to go on", || {
                    (over.load(SeqCst) || done.load(SeqCst) >= next).then_some(())
                });
                if over.load(SeqCst) {
                    return;
                }
                replica.signal(Signal::SIGSTOP);
                // One in four stands still for longer than its session lasts.
                let long = round % 4 == 3;
                thread::sleep(Duration::from_millis(if long { 5500 } else { 200 }));
                replica.signal(Signal::SIGCONT);
            }
        });
        let mut old = None;
        for handover in 0..HANDOVERS {
            let token = take(&etcd, "default");
            if let Some(old) = old.replace(token) {
                for (which, address) in addresses.into_iter().enumerate() {
                    let refusals = &refusals;
                    scope.spawn(move || {
                        let target = format!("/late/{handover}/{which}");
                        if let Ok(told) = write(address, &target, old) {
                            refusals.note(&target, &told);
                        }
                    });
                }
            }
            let mut attempt = 0;
            wait_for("the new holder's write", || {
                let target = format!("/new/{handover}/{attempt}");
                attempt += 1;
                let told = write(addresses[(handover + attempt) % 2], &target, token).unwrap();
                refusals.note(&target, &told);
                assert_ne!(told.status, 412, "the holder was refused: {}", told.problem);
                (told.status == 204).then_some(())
            });
            done.store(handover + 1, SeqCst);
        }
        over.store(true, SeqCst);
    });
    assert_in_order(&origin);
    refusals.check(&origin);
    let tokens: HashSet<u64> = applied(&origin).into_iter().collect();
    assert!(tokens.len() >= HANDOVERS);
}

/// Three replicas are stopped and started again one after the other, under load and with handovers. Every write of the current
/// holder is answered, by one replica or the next; none is lost; and since settling by time would take longer than any test, no
/// handover had to wait for a replica that left.
#[test]
fn a_rolling_restart_loses_no_write() {
    let Some(etcd) = etcd() else { return };
    let origin = Origin::tcp().unwrap();
    let mut replicas = [(); 3].map(|()| replica(&origin, &etcd.url()));
    replicas.iter_mut().for_each(join);
    wait_see(&replicas[0], 3);
    let addresses = Mutex::new(replicas.each_ref().map(|r| Some(r.address())));
    let token = AtomicU64::new(take(&etcd, "default"));
    let (over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let slowest = Mutex::new(Duration::ZERO);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (addresses, token, slowest) = (&addresses, &token, &slowest);
            let (over, written) = (&over, &written);
            scope.spawn(move || {
                let mut number = 0;
                while !over.load(SeqCst) {
                    number += 1;
                    let target = format!("/{writer}/{number}");
                    let begun = boot();
                    write_somewhere(addresses, token, &target, number);
                    written.fetch_add(1, SeqCst);
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = (*slowest).max(boot().since(begun));
                }
            });
        }
        for (which, replica) in replicas.iter_mut().enumerate() {
            let more = written.load(SeqCst) + 20;
            token.store(take(&etcd, "default"), SeqCst);
            wait_for("writes", || (written.load(SeqCst) >= more).then_some(()));
            addresses.lock().unwrap()[which] = None;
            assert!(replica.stop().success());
            token.store(take(&etcd, "default"), SeqCst);
            replica.start().unwrap();
            wait_joined(replica);
            addresses.lock().unwrap()[which] = Some(replica.address());
        }
        over.store(true, SeqCst);
    });
    assert_in_order(&origin);
    let applied = origin.applied();
    let distinct: HashSet<_> = applied.iter().map(|a| a.target.clone()).collect();
    assert_eq!(distinct.len(), applied.len(), "a write was applied twice");
    assert_eq!(applied.len(), written.load(SeqCst));
    println!(
        "{} writes, the slowest took {:?}",
        applied.len(),
        slowest.lock().unwrap()
    );
}

/// Writes as the current holder until it is answered.
fn write_somewhere(
    addresses: &Mutex<[Option<SocketAddr>; 3]>,
    token: &AtomicU64,
    target: &str,
    first: usize,
) {
    let mut attempt = first;
    wait_for("a write to be answered", || {
        attempt += 1;
        let to = addresses.lock().unwrap()[attempt % 3]?;
        let own = token.load(SeqCst);
        // One that has just been stopped takes no connection.
        let told = match write(to, target, own) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return None,
            told => told.unwrap_or_else(|error| panic!("{target}: lost: {error}")),
        };
        match told.status {
            204 => Some(()),
            // Refused: not forwarded, so it may be sent again. A newer grant may not have been told to this holder yet.
            412 | 503 if told.outcome == "refused" => None,
            status => panic!("{target}: {status} {} {}", told.outcome, told.problem),
        }
    })
}
