//! The accept loop of one thread.

use super::{
    Handler, ServerConfig, Stream,
    connection::{self, ClientInfo},
};
use crate::headers::Known;
use std::{
    future::Future,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// How long accepting pauses when the process or the machine has no descriptors or memory left.
const PAUSE: Duration = Duration::from_millis(100);

/// How many connections above the limit are told that there are too many, rather than just closed.
const STANDING: usize = 64;

/// How many connections that wait in a socket are taken when accepting ends; the kernel holds no more.
const QUEUED: i32 = super::listen::BACKLOG;

/// Where connections come from. A trait, so that the same server runs over simulated sockets.
pub trait Listener: 'static {
    /// A connection.
    type Stream: Stream;
    /// The next one. Must lose nothing when dropped while it waits.
    fn accept(&mut self) -> impl Future<Output = io::Result<Accept<Self::Stream>>>;
    /// Whether somebody else has the socket, too, and takes what waits in it when we are gone.
    fn is_shared(&self) -> bool {
        false
    }
}

/// A connection just accepted.
#[derive(Debug)]
pub struct Accept<S> {
    /// The connection.
    pub stream: S,
    /// Who is at its other end.
    pub peer: Peer,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address.
    Tcp(SocketAddr),
    /// Over a unix socket: the process id, where the kernel tells it.
    Unix(Option<i32>),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Some(pid)) => write!(f, "unix:pid={pid}"),
            Self::Unix(None) => f.write_str("unix"),
        }
    }
}

/// How far the end of the server has come. Only moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Not begun, or in `drain_delay`.
    Serving,
    /// Nothing is accepted any more but what waits already; idle connections are closed, requests under way go on.
    Draining,
    /// Everything is dropped.
    Stopped,
}

/// Counted over all threads.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections open now.
    pub open: AtomicUsize,
    /// Connections that were closed at once, since there were too many.
    pub refused: AtomicU64,
    /// Failed accepts: no descriptors or no memory.
    pub accept_errors: AtomicU64,
}

/// A place among the allowed connections.
struct Seat(Arc<Counts>);

/// What becomes of a new connection.
enum Room {
    /// It is served.
    Seat(Seat),
    /// There is no room, and it is told so.
    Standing(Seat),
    /// Not even for that.
    None,
}

impl Room {
    fn look(counts: &Arc<Counts>, limit: usize) -> Self {
        let taken = counts.open.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(counts.clone());
        if taken < limit {
            return Self::Seat(seat);
        }
        counts.refused.fetch_add(1, Ordering::Relaxed);
        if taken < limit + STANDING {
            Self::Standing(seat)
        } else {
            Self::None
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves what comes over one listener, until the stage is [`Stage::Stopped`], or [`Stage::Draining`] and the last
/// connection has ended. Needs a `LocalSet`.
pub async fn serve<L: Listener, H: Handler>(
    mut listener: L,
    handler: Rc<H>,
    config: Rc<ServerConfig>,
    counts: Arc<Counts>,
    mut stage: watch::Receiver<Stage>,
) {
    let mut connections = JoinSet::new();
    while *stage.borrow_and_update() == Stage::Serving {
        tokio::select! {
            biased;
            _ = changed(&mut stage) => {}
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok(accept) => admit(accept, &mut connections, &handler, &config, &counts, &stage),
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    counts.accept_errors.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "accepting failed; trying again shortly");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
    if !listener.is_shared() {
        admit_queued(
            &mut listener,
            &mut connections,
            &handler,
            &config,
            &counts,
            &stage,
        )
        .await;
    }
    drop(listener);
    while *stage.borrow_and_update() < Stage::Stopped && !connections.is_empty() {
        tokio::select! {
            biased;
            _ = changed(&mut stage) => {}
            _ = connections.join_next() => {}
        }
    }
    connections.shutdown().await;
}

/// Serves a new connection, or turns it away.
fn admit<S: Stream, H: Handler>(
    accept: Accept<S>,
    connections: &mut JoinSet<()>,
    handler: &Rc<H>,
    config: &Rc<ServerConfig>,
    counts: &Arc<Counts>,
    stage: &watch::Receiver<Stage>,
) {
    let seat = match Room::look(counts, config.connections) {
        Room::Seat(seat) => seat,
        Room::Standing(seat) => {
            let tls = config.tls.is_some() && matches!(accept.peer, Peer::Tcp(_));
            if !tls {
                connections.spawn_local(async move {
                    connection::turn_away(accept.stream).await;
                    drop(seat);
                });
            }
            return;
        }
        Room::None => return,
    };
    let client = ClientInfo {
        peer: accept.peer,
        tls: None,
        known: Known::default(),
    };
    let serving = connection::serve(
        accept.stream,
        client,
        handler.clone(),
        config.clone(),
        stage.clone(),
    );
    connections.spawn_local(async move {
        serving.await;
        drop(seat);
    });
}

/// Takes what waits in the socket when accepting ends: for their clients these connections are made, and closing the
/// socket would reset them. Bounded, or those who keep coming would put off the end.
async fn admit_queued<L: Listener, H: Handler>(
    listener: &mut L,
    connections: &mut JoinSet<()>,
    handler: &Rc<H>,
    config: &Rc<ServerConfig>,
    counts: &Arc<Counts>,
    stage: &watch::Receiver<Stage>,
) {
    for _ in 0..QUEUED {
        // The runtime hears of what waits only when it looks, and lets nobody take more than so much in one go.
        tokio::task::yield_now().await;
        if *stage.borrow() == Stage::Stopped {
            return;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = std::future::ready(()) => return,
        };
        match accepted {
            Ok(accept) => admit(accept, connections, handler, config, counts, stage),
            Err(error) if is_the_peers(&error) => {}
            // No descriptors or no memory. Those that have been taken are served.
            Err(_) => return,
        }
    }
}

/// Resolves when the stage has moved on. Nobody left to move it counts as [`Stage::Serving`] for ever.
pub(super) async fn changed(stage: &mut watch::Receiver<Stage>) {
    if stage.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The connection was gone before it was accepted (accept(2)): nothing to do with us.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted,
        NetworkDown, NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | TimedOut
    )
}
