//! What the tests of the lease store's side share: a real etcd, what the authority says and reports, and a relay in
//! between that can be cut and held.
#![allow(
    dead_code,
    reason = "not every test program that shares this uses all of it"
)]

use palisade::{
    authority::{Authority, EtcdAuthority, EtcdOptions, Reading, Reports, Unreadable},
    state::{Options, State},
};
use palisade_fence::Token;
use palisade_loadtest::servers::{Etcd, get, wait_for};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use tokio::runtime::Runtime;

/// What was reported.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) granted: Mutex<Vec<(String, u64)>>,
    pub(crate) trusted: Mutex<Vec<bool>>,
    pub(crate) epochs: Mutex<Vec<u64>>,
}

impl Reports for Heard {
    fn granted(&self, scope: &str, token: Token) {
        self.granted
            .lock()
            .unwrap()
            .push((scope.to_owned(), token.get()));
    }

    fn trusted(&self, trusted: bool) {
        self.trusted.lock().unwrap().push(trusted);
    }

    fn new_epoch(&self, floor: Token) {
        assert_ne!(
            self.trusted.lock().unwrap().last(),
            Some(&true),
            "trusted before the scopes are closed"
        );
        self.epochs.lock().unwrap().push(floor.get());
    }
}

impl Heard {
    /// Waits until this grant is reported.
    pub(crate) fn wait_for(&self, scope: &str, token: u64) {
        let grant = (scope.to_owned(), token);
        wait_for(&format!("the report of {grant:?}"), || {
            self.granted.lock().unwrap().contains(&grant).then_some(())
        });
    }
}

/// An authority with all that it needs.
pub(crate) struct Asked {
    pub(crate) runtime: Runtime,
    pub(crate) authority: Arc<EtcdAuthority>,
    pub(crate) state: Arc<State>,
    pub(crate) heard: Arc<Heard>,
}

impl Asked {
    pub(crate) fn start(options: EtcdOptions, folder: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let state = Arc::new(
            State::open(
                folder,
                Options {
                    fatal: |why| panic!("{why}"),
                },
            )
            .unwrap(),
        );
        let heard = Arc::new(Heard::default());
        let authority =
            EtcdAuthority::start(runtime.handle(), options, state.clone(), heard.clone());
        Self {
            runtime,
            authority,
            state,
            heard,
        }
    }

    /// Asks; the answer comes through the channel.
    pub(crate) fn ask(&self, scope: &str) -> mpsc::Receiver<Result<Reading, Unreadable>> {
        let (send, receive) = mpsc::channel();
        self.authority.read(
            &Arc::from(scope),
            Box::new(move |answer| {
                let _ = send.send(answer);
            }),
        );
        receive
    }

    pub(crate) fn read(&self, scope: &str) -> Result<Reading, Unreadable> {
        self.ask(scope)
            .recv_timeout(Duration::from_secs(60))
            .expect("no answer at all")
    }

    /// The current grant; waits while the store is away.
    pub(crate) fn grant(&self, scope: &str) -> Option<u64> {
        let reading = wait_for("the store to answer", || self.read(scope).ok());
        reading.grant.map(Token::get)
    }

    pub(crate) fn wait_up(&self) {
        wait_for("the first answer", || {
            self.authority.health().up.then_some(())
        });
    }

    pub(crate) fn wait_watching(&self) {
        wait_for("the watch", || {
            self.authority.health().watching.then_some(())
        });
    }

    /// Waits until the store is not trusted, and that is reported, which comes after; gives the reason.
    pub(crate) fn wait_changed(&self) -> String {
        let why = wait_for("the freeze", || self.authority.health().changed);
        wait_for("its report", || {
            (self.heard.trusted.lock().unwrap().last() == Some(&false)).then_some(())
        });
        why.to_string()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.runtime.block_on(self.authority.stop());
    }
}

/// Another etcd's data, or an earlier copy, in place of its own.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

/// Plain text to one address, with no check of its own while a test counts.
pub(crate) fn options(address: SocketAddr) -> EtcdOptions {
    EtcdOptions::new([address.to_string()])
}

/// Takes a lease as a worker does: a key on an etcd lease. Gives its token.
pub(crate) fn take(etcd: &Etcd, name: &str) -> u64 {
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).unwrap();
    put(etcd, name, &["--lease", lease])
}

/// Puts a lease key, and gives its `mod_revision`.
pub(crate) fn put(etcd: &Etcd, name: &str, more: &[&str]) -> u64 {
    let key = format!("/palisade/leases/{name}");
    etcd.ctl(&[&["put", &key, "{}"], more].concat());
    revision(etcd, &key)
}

fn revision(etcd: &Etcd, key: &str) -> u64 {
    let fields = etcd.ctl(&["get", key, "-w", "fields"]);
    let line = fields
        .lines()
        .find_map(|line| line.strip_prefix("\"ModRevision\" : "));
    line.unwrap().parse().unwrap()
}

/// How many transactions etcd has answered since it started, by its own count.
pub(crate) fn transactions(etcd: &Etcd) -> u64 {
    let metrics = get(etcd.address(), "/metrics").unwrap();
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("grpc_server_handled_total{") && line.contains("\"Txn\""));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// A TCP relay that can be cut (connections are closed, new ones too) and held (answers wait).
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    way: Arc<Way>,
}

#[derive(Default)]
struct Way {
    cut: AtomicBool,
    held: Mutex<bool>,
    released: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let way = Arc::new(Way::default());
        let ours = way.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ours.cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else {
                    continue;
                };
                let mut open = ours.open.lock().unwrap();
                open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                drop(open);
                let (up, down) = (
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                );
                thread::spawn(move || copy(up.0, up.1, None));
                let way = ours.clone();
                thread::spawn(move || copy(down.0, down.1, Some(&way)));
            }
        });
        Self { address, way }
    }

    pub(crate) fn cut(&self) {
        self.way.cut.store(true, Ordering::SeqCst);
        for open in self.way.open.lock().unwrap().drain(..) {
            let _ = open.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.way.cut.store(false, Ordering::SeqCst);
    }

    pub(crate) fn hold(&self, hold: bool) {
        *self.way.held.lock().unwrap() = hold;
        self.way.released.notify_all();
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, way: Option<&Way>) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(way) = way {
            let held = way.held.lock().unwrap();
            drop(way.released.wait_while(held, |held| *held).unwrap());
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
