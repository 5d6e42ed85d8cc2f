//! Listening sockets: TCP, unix, or inherited from systemd.

use super::accept::{Accept, Listener, Peer};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Connections that the kernel may hold before they are accepted; `net.core.somaxconn` cuts it down.
pub(super) const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A unix socket. A file left behind by a process that is gone is replaced.
    Unix(PathBuf),
}

/// A socket that listens, with one end for each thread.
#[derive(Debug)]
pub struct Bound {
    ends: Vec<End>,
    /// Who passed it on has it, too, and gives it to whoever comes after us.
    inherited: bool,
}

#[derive(Debug)]
enum End {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl Bound {
    /// The address, with the real port. `None` for unix sockets.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.ends.first()? {
            End::Tcp(listener) => listener.local_addr().ok(),
            End::Unix(_) => None,
        }
    }

    /// The ends, for one thread each. To be turned into [`SocketListener`]s inside the threads' runtimes.
    pub(super) fn into_ends(self) -> impl Iterator<Item = UnregisteredListener> {
        let inherited = self.inherited;
        self.ends
            .into_iter()
            .map(move |end| UnregisteredListener { end, inherited })
    }
}

pub(super) struct UnregisteredListener {
    end: End,
    inherited: bool,
}

impl UnregisteredListener {
    /// Hands it to this thread's runtime.
    pub(super) fn register(self) -> io::Result<SocketListener> {
        let end = match self.end {
            End::Tcp(listener) => Registered::Tcp(TcpListener::from_std(listener)?),
            End::Unix(listener) => Registered::Unix(UnixListener::from_std(listener)?),
        };
        Ok(SocketListener {
            end,
            inherited: self.inherited,
        })
    }
}

/// Binds an address, for `threads` threads. Fails with `AddrInUse` when anybody else, another process of ours included, has it.
pub fn bind(listen: &Listen, threads: usize) -> io::Result<Bound> {
    match listen {
        Listen::Tcp(address) => bind_tcp(*address, threads),
        Listen::Unix(path) => bind_unix(path, threads),
    }
}

/// The first socket is bound *without* SO_REUSEPORT: that fails if anybody has the port, those who share it included. Only then it is set, before listening, so
/// that this socket is a member of the group like the others, and the others join. So the kernel spreads connections over the threads, and at no moment
/// could a second process have slipped in: its own first bind is without the option as well.
fn bind_tcp(address: SocketAddr, threads: usize) -> io::Result<Bound> {
    let first = tcp_socket(address)?;
    first.bind(&SockAddr::from(address))?;
    first.set_reuse_port(true)?;
    let address = first
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::other("not an internet address"))?;
    let mut sockets = vec![first];
    for _ in 1..threads {
        let next = tcp_socket(address)?;
        next.set_reuse_port(true)?;
        next.bind(&SockAddr::from(address))?;
        sockets.push(next);
    }
    for socket in &sockets {
        socket.listen(BACKLOG)?;
    }
    let ends = sockets.into_iter().map(|s| End::Tcp(s.into())).collect();
    Ok(Bound {
        ends,
        inherited: false,
    })
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for the TIME_WAIT of old connections; a listening socket still excludes others.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind_unix(path: &Path, threads: usize) -> io::Result<Bound> {
    let listener = match std::os::unix::net::UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            std::os::unix::net::UnixListener::bind(path)?
        }
        other => other?,
    };
    listener.set_nonblocking(true)?;
    duplicated(End::Unix(listener), threads)
}

/// A socket file that nobody listens behind.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// One descriptor for each thread, of one socket.
fn duplicated(end: End, threads: usize) -> io::Result<Bound> {
    let mut ends = Vec::with_capacity(threads);
    for _ in 1..threads {
        ends.push(match &end {
            End::Tcp(listener) => End::Tcp(listener.try_clone()?),
            End::Unix(listener) => End::Unix(listener.try_clone()?),
        });
    }
    ends.push(end);
    Ok(Bound {
        ends,
        inherited: false,
    })
}

/// The sockets that systemd passed (`LISTEN_FDS`, sd_listen_fds(3)); none if it passed none. Call once, early.
pub fn inherited(threads: usize) -> io::Result<Vec<Bound>> {
    let mut passed = listenfd::ListenFd::from_env();
    let mut bound = Vec::new();
    for index in 0..passed.len() {
        let end = match passed.take_tcp_listener(index) {
            Ok(Some(listener)) => End::Tcp(listener),
            _ => match passed.take_unix_listener(index)? {
                Some(listener) => End::Unix(listener),
                None => continue,
            },
        };
        match &end {
            End::Tcp(listener) => listener.set_nonblocking(true)?,
            End::Unix(listener) => listener.set_nonblocking(true)?,
        }
        bound.push(Bound {
            inherited: true,
            ..duplicated(end, threads)?
        });
    }
    Ok(bound)
}

/// One thread's end of a real socket.
#[derive(Debug)]
pub struct SocketListener {
    end: Registered,
    inherited: bool,
}

#[derive(Debug)]
enum Registered {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A client's connection over a real socket.
pub type SocketStream = crate::upstream::Socket;

impl Listener for SocketListener {
    type Stream = SocketStream;

    async fn accept(&mut self) -> io::Result<Accept<SocketStream>> {
        match &self.end {
            Registered::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                tcp_options(&stream);
                Ok(Accept {
                    stream: SocketStream::Tcp(stream),
                    peer: Peer::Tcp(peer),
                })
            }
            Registered::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accept {
                    peer: unix_peer(&stream),
                    stream: SocketStream::Unix(stream),
                })
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.inherited
    }
}

fn tcp_options(stream: &TcpStream) {
    // Fails only on a connection that is gone already, which reading will tell.
    let _ = stream.set_nodelay(true);
}

fn unix_peer(stream: &UnixStream) -> Peer {
    Peer::Unix(stream.peer_cred().ok().and_then(|cred| cred.pid()))
}
