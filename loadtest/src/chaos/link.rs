//! A TCP relay that fails in the ways in which networks fail.

use socket2::SockRef;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// How a link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All passes.
    Pass,
    /// Nothing passes; the sockets stay open, and nothing is lost.
    Hold,
    /// What the server says is lost. The connections are reset when the mode ends.
    Eat,
    /// The clients' connections end, the server's stay open until the mode ends.
    HalfOpen,
    /// Each connection is reset after so many bytes from the client.
    CutAfter(usize),
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    /// Counts the cuts: a connection from before one is over.
    cuts: u64,
}

/// A link to a server. It lives as long as the runtime it was made in.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    state: watch::Sender<State>,
}

impl Link {
    /// Begins to relay.
    ///
    /// # Errors
    /// If there is no port for it.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let target = Arc::new(Mutex::new(server));
        let state = watch::Sender::new(State {
            mode: Mode::Pass,
            cuts: 0,
        });
        let (to, states) = (target.clone(), state.clone());
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    // Out of descriptors: some will be free again.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let server = *to.lock().unwrap_or_else(PoisonError::into_inner);
                tokio::spawn(carry(client, server, states.subscribe()));
            }
        });
        Ok(Self {
            address,
            target,
            state,
        })
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections lead from now on.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Resets every connection.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// From now on it behaves like this.
    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| {
            // Bytes are missing in the middle of these streams.
            if matches!(state.mode, Mode::Eat | Mode::HalfOpen) {
                state.cuts += 1;
            }
            state.mode = mode;
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

async fn carry(client: TcpStream, server: SocketAddr, state: watch::Receiver<State>) {
    let cuts = state.borrow().cuts;
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        // Whatever ends is reset unless it was shut down before.
        let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let there = pump(
        client_in,
        Out(Some(server_out)),
        Way::There,
        state.clone(),
        cuts,
    );
    let back = pump(server_in, Out(Some(client_out)), Way::Back, state, cuts);
    // Once one direction is cut, so is the other: both ends are dropped here.
    let both = async { tokio::try_join!(there, back) };
    let _ = both.await;
}

/// The connection is over.
struct Cut;

/// A writing half that ends without a FIN, unless it was shut down: the connection is to be reset.
struct Out(Option<OwnedWriteHalf>);

impl Drop for Out {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(OwnedWriteHalf::forget);
    }
}

impl Out {
    async fn write_all(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        let half = self.0.as_mut().ok_or(Cut)?;
        half.write_all(bytes).await.map_err(|_| Cut)
    }

    async fn finish(&mut self) {
        if let Some(half) = &mut self.0 {
            let _ = half.shutdown().await;
        }
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: Out,
    way: Way,
    mut state: watch::Receiver<State>,
    cuts: u64,
) -> Result<(), Cut> {
    let mut buffer = vec![0; 16 * 1024];
    let mut carried = 0;
    loop {
        let now = *state.borrow_and_update();
        if now.cuts != cuts {
            return Err(Cut);
        }
        match now.mode {
            Mode::Hold => {
                state.changed().await.map_err(|_| Cut)?;
                continue;
            }
            Mode::HalfOpen => {
                // The client's half goes, the server's is kept.
                match way {
                    Way::There => drop(from),
                    Way::Back => drop(to),
                }
                let _ = state.changed().await;
                return Err(Cut);
            }
            _ => {}
        }
        let count = tokio::select! {
            biased;
            changed = state.changed() => {
                changed.map_err(|_| Cut)?;
                continue;
            }
            read = from.read(&mut buffer) => read.map_err(|_| Cut)?,
        };
        if count == 0 {
            to.finish().await;
            return Ok(());
        }
        if way == Way::Back && state.borrow().mode == Mode::Eat {
            continue;
        }
        let mut pass = count;
        if let (Way::There, Mode::CutAfter(limit)) = (way, now.mode) {
            pass = count.min(limit.saturating_sub(carried));
        }
        carried += pass;
        to.write_all(&buffer[..pass]).await?;
        if pass < count {
            return Err(Cut);
        }
    }
}
