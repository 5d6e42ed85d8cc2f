//! A TCP relay on loopback between a client and a server, which can hold back what passes, with the sockets left open, or
//! cut everything: a network that fails the way networks do.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    There,
    /// From the server to the client.
    Back,
}

/// A relay; ends with everything that it carries when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held_there: bool,
    held_back: bool,
    refusing: bool,
    over: bool,
    /// Counts the cuts: a connection from before one is over.
    cuts: u64,
    connections: Vec<TcpStream>,
    /// How many there were.
    opened: u64,
    /// What marks a connection when its client says it.
    mark: Vec<u8>,
    /// Connections that are marked.
    marked: BTreeSet<u64>,
    hold_marked: bool,
    /// How long each piece takes in each direction.
    delay: Duration,
}

impl Relay {
    /// Begins to relay to a server.
    pub fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.lock().over {
                    return;
                }
                if let Ok(client) = client {
                    // One that fails is a connection that fails: what a relay is for.
                    let _ = accepting.carry(client, server);
                }
            }
        });
        Ok(Self { address, shared })
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes in this direction; the sockets stay open, and nothing is lost.
    pub fn hold(&self, way: Way) {
        self.shared.change(|state| match way {
            Way::There => state.held_there = true,
            Way::Back => state.held_back = true,
        });
    }

    /// Both directions.
    pub fn hold_all(&self) {
        self.hold(Way::There);
        self.hold(Way::Back);
    }

    /// Lets everything pass again, what was held first.
    pub fn let_go(&self) {
        self.shared.change(|state| {
            state.held_there = false;
            state.held_back = false;
            state.refusing = false;
            state.hold_marked = false;
            state.delay = Duration::ZERO;
        });
    }

    /// Marks every connection on which the client says this from now on, so that those that serve one purpose can be held.
    pub fn mark(&self, words: &[u8]) {
        self.shared.change(|state| state.mark = words.to_owned());
    }

    /// From now on nothing passes on connections that are marked, nor on one that becomes so: what marks it is held back.
    pub fn hold_marked(&self) {
        self.shared.change(|state| state.hold_marked = true);
    }

    /// From now on each piece takes so long, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.shared.change(|state| state.delay = delay);
    }

    /// Closes every connection; what was held is lost. New ones are taken.
    pub fn cut(&self) {
        self.shared.change(State::cut);
    }

    /// Closes every connection, and each new one at once, until [`Relay::let_go`].
    pub fn cut_and_refuse(&self) {
        self.shared.change(|state| {
            state.refusing = true;
            state.cut();
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.over = true;
            state.cut();
        });
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn cut(&mut self) {
        self.cuts += 1;
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn is_held(&self, way: Way, connection: u64) -> bool {
        let all = match way {
            Way::There => self.held_there,
            Way::Back => self.held_back,
        };
        all || (self.hold_marked && self.marked.contains(&connection))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn carry(self: &Arc<Self>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        if self.lock().refusing {
            return Ok(());
        }
        let server = TcpStream::connect(server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let own = {
            let mut state = self.lock();
            state
                .connections
                .extend([client.try_clone()?, server.try_clone()?]);
            let number = state.opened;
            state.opened += 1;
            Own {
                number,
                cuts: state.cuts,
            }
        };
        self.pump(client.try_clone()?, server.try_clone()?, Way::There, own);
        self.pump(server, client, Way::Back, own);
        Ok(())
    }

    /// Copies in one direction, in a thread of its own.
    fn pump(self: &Arc<Self>, mut from: TcpStream, mut to: TcpStream, way: Way, own: Own) {
        let shared = self.clone();
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(count) = from.read(&mut buffer) {
                if !shared.may_pass(way, own, &buffer[..count])
                    || count == 0
                    || to.write_all(&buffer[..count]).is_err()
                {
                    break;
                }
            }
            // The end of a stream waits like its bytes; after a cut both are closed already.
            let _ = to.shutdown(Shutdown::Write);
        });
    }

    /// Waits while this direction is held; whether the connection is still there then.
    fn may_pass(&self, way: Way, own: Own, piece: &[u8]) -> bool {
        let mut state = self.lock();
        let says = |mark: &[u8]| piece.windows(mark.len()).any(|part| part == mark);
        if way == Way::There && !state.mark.is_empty() && says(&state.mark) {
            state.marked.insert(own.number);
        }
        while state.is_held(way, own.number) && state.cuts == own.cuts {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (delay, there) = (state.delay, state.cuts == own.cuts);
        drop(state);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        there
    }
}

/// What a connection is known by.
#[derive(Clone, Copy)]
struct Own {
    number: u64,
    cuts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A server that says everything twice.
    fn twice() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        let said = [&buffer[..count], &buffer[..count]].concat();
                        stream.write_all(&said).unwrap();
                    }
                });
            }
        });
        address
    }

    fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn holds_and_cuts() {
        let relay = Relay::to(twice()).unwrap();
        let mut client = TcpStream::connect(relay.address()).unwrap();
        client.write_all(b"a").unwrap();
        assert_eq!(read(&mut client, 2), b"aa");
        relay.hold(Way::Back);
        client.write_all(b"b").unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(client.read(&mut [0; 1]).is_err(), "nothing comes back");
        relay.let_go();
        client.set_read_timeout(None).unwrap();
        assert_eq!(read(&mut client, 2), b"bb");
        relay.hold_all();
        client.write_all(b"c").unwrap();
        relay.cut();
        relay.let_go();
        assert!(
            matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)),
            "what was held is lost"
        );
        let mut client = TcpStream::connect(relay.address()).unwrap();
        client.write_all(b"d").unwrap();
        assert_eq!(read(&mut client, 2), b"dd");
        relay.cut_and_refuse();
        let mut refused = TcpStream::connect(relay.address()).unwrap();
        assert!(matches!(refused.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
}
