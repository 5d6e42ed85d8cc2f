//! The recording upstream: a small datastore that writes down, byte for byte, what reached it and, separately, what it applied.
//!
//! Plain threads and plain sockets with a parser of its own, so that a test sees what was on the wire and not what an HTTP library made of
//! it, and so that it can misbehave at every step. What it does with a request is a list of [`Step`]s.

mod connection;
mod log;

pub use log::{Applied, Arrival, Ended};

use crate::servers::{GIVE_UP, wait_for};
use connection::Wire;
use log::Log;
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// One thing that the origin does with a request, after it has read the head.
#[derive(Clone, Debug)]
pub enum Step {
    /// Read the body to its end. Goes on when the client stops before that; then the arrival is not complete.
    ReadBody,
    /// Read at least this many bytes of the body (as sent, chunk lines included), or what comes before its end.
    ReadSome(usize),
    /// Do what the request asks for, and write that down. Only what arrived complete is applied, as a careful datastore would.
    Apply,
    /// The same even if the body is not complete, as a careless one would.
    ApplyAnyway,
    /// Wait until the test gives the sign.
    Await(Sign),
    /// Wait this long. For load, not for tests.
    Pause(Duration),
    /// Answer with this status and body, and a `Content-Length`.
    Answer(u16, Vec<u8>),
    /// The same with more header lines, each without its line end.
    AnswerWith(u16, Vec<String>, Vec<u8>),
    /// Answer as a datastore does: 200 and the value for a read, 404 without one, 204 for a write.
    AnswerNaturally,
    /// Send these bytes as they are.
    Raw(Vec<u8>),
    /// Close with a FIN. Further steps go on without a connection.
    Close,
    /// Close with a reset, where there is such a thing (TCP).
    Reset,
}

/// What happens to a request when nothing else was said.
pub fn naturally() -> Vec<Step> {
    vec![Step::ReadBody, Step::Apply, Step::AnswerNaturally]
}

/// Something that the origin waits for and the test gives.
#[derive(Clone, Debug, Default)]
pub struct Sign(Arc<(Mutex<SignState>, Condvar)>);

#[derive(Debug, Default)]
struct SignState {
    given: bool,
    reached: usize,
}

impl Sign {
    /// Not given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everyone pass who waits for it, or will.
    pub fn give(&self) {
        locked(&self.0.0).given = true;
        self.0.1.notify_all();
    }

    /// How many requests have come to it.
    pub fn reached(&self) -> usize {
        locked(&self.0.0).reached
    }

    /// Waits until a request has come to it.
    ///
    /// # Panics
    /// If none comes within [`GIVE_UP`].
    pub fn wait_reached(&self) {
        wait_for("a request to reach the sign", || {
            (self.reached() > 0).then_some(())
        });
    }

    fn wait(&self) {
        let (lock, condition) = &*self.0;
        let mut state = locked(lock);
        state.reached += 1;
        // The bound is for tests that have failed: their threads must not stay for ever.
        let _ = condition.wait_timeout_while(state, GIVE_UP * 2, |state| !state.given);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running origin. It stops accepting when dropped.
#[derive(Debug)]
pub struct Origin {
    shared: Arc<Shared>,
    place: Place,
    /// Its listener's thread.
    accepting: Option<thread::JoinHandle<()>>,
}

#[derive(Clone, Debug)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    script: Mutex<Script>,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Script {
    /// By target: what is done with the next requests, in turn.
    once: HashMap<String, VecDeque<Vec<Step>>>,
    always: HashMap<String, Vec<Step>>,
    otherwise: Vec<Step>,
}

impl Origin {
    /// On a free loopback port.
    pub fn tcp() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let place = Place::Tcp(listener.local_addr()?);
        Ok(Self::new(place, move || {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(Wire::Tcp(stream))
        }))
    }

    /// On a unix socket.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        Ok(Self::new(Place::Unix(path.to_owned()), move || {
            Ok(Wire::Unix(listener.accept()?.0))
        }))
    }

    fn new(place: Place, next: impl FnMut() -> io::Result<Wire> + Send + 'static) -> Self {
        let script = Script {
            once: HashMap::new(),
            always: HashMap::new(),
            otherwise: naturally(),
        };
        let shared = Arc::new(Shared {
            log: Mutex::default(),
            script: Mutex::new(script),
            stopped: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        Self {
            shared,
            place,
            accepting: Some(thread::spawn(move || accept(&accepting, next))),
        }
    }

    /// Its address; for TCP.
    ///
    /// # Panics
    /// For a unix socket.
    pub fn address(&self) -> SocketAddr {
        match &self.place {
            Place::Tcp(address) => *address,
            Place::Unix(path) => panic!("{} has no address", path.display()),
        }
    }

    /// As the proxy's `upstream` wants it.
    pub fn url(&self) -> String {
        match &self.place {
            Place::Tcp(address) => format!("http://{address}"),
            Place::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// What is done with the next request for this target. Called again it says what is done with the one after that.
    pub fn once(&self, target: &str, steps: Vec<Step>) {
        let mut script = locked(&self.shared.script);
        script
            .once
            .entry(target.to_owned())
            .or_default()
            .push_back(steps);
    }

    /// What is done with all requests for this target.
    pub fn always(&self, target: &str, steps: Vec<Step>) {
        let mut script = locked(&self.shared.script);
        script.always.insert(target.to_owned(), steps);
    }

    /// What is done with all other requests; [`naturally`] at first.
    pub fn otherwise(&self, steps: Vec<Step>) {
        locked(&self.shared.script).otherwise = steps;
    }

    /// All requests whose head came, in that order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        locked(&self.shared.log).arrivals.clone()
    }

    /// Those for one target.
    pub fn arrivals_at(&self, target: &str) -> Vec<Arrival> {
        let mut arrivals = self.arrivals();
        arrivals.retain(|arrival| arrival.target == target);
        arrivals
    }

    /// Waits for that many requests for a target.
    ///
    /// # Panics
    /// If they don't come within [`GIVE_UP`].
    pub fn wait_arrivals(&self, target: &str, count: usize) -> Vec<Arrival> {
        wait_for(&format!("{count} requests for {target}"), || {
            let arrivals = self.arrivals_at(target);
            (arrivals.len() >= count).then_some(arrivals)
        })
    }

    /// All that was applied, in that order.
    pub fn applied(&self) -> Vec<Applied> {
        locked(&self.shared.log).applied.clone()
    }

    /// The value that a target has now.
    pub fn value(&self, target: &str) -> Option<Vec<u8>> {
        locked(&self.shared.log).values.get(target).cloned()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        locked(&self.shared.log).connections.len()
    }

    /// How a connection ended, if it has; the first one accepted is number 0.
    pub fn ended(&self, connection: usize) -> Option<Ended> {
        locked(&self.shared.log)
            .connections
            .get(connection)
            .copied()?
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread.
        match &self.place {
            Place::Tcp(address) => drop(TcpStream::connect(address)),
            Place::Unix(path) => drop(UnixStream::connect(path)),
        }
        // With it goes the listener: nobody is let in after this.
        self.accepting.take().map(thread::JoinHandle::join);
    }
}

fn accept(shared: &Arc<Shared>, mut next: impl FnMut() -> io::Result<Wire>) {
    loop {
        let accepted = next();
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        // A client that was gone before it was accepted is no reason to stop.
        let Ok(wire) = accepted else { continue };
        let number = locked(&shared.log).connected();
        let shared = shared.clone();
        thread::spawn(move || connection::serve(&shared, wire, number));
    }
}

impl Shared {
    fn steps(&self, target: &str) -> Vec<Step> {
        let mut script = locked(&self.script);
        let once = script.once.get_mut(target).and_then(VecDeque::pop_front);
        once.or_else(|| script.always.get(target).cloned())
            .unwrap_or_else(|| script.otherwise.clone())
    }
}

#[cfg(test)]
mod tests;
