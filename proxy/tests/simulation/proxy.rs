//! The proxy's host: the real server, forwarder, gate and pool, over simulated sockets.

use crate::{
    naive::Naive,
    world::{Disk, Line, SETTLE, Store, Subject, World, between, ms, watch},
};
use arc_swap::ArcSwap;
use fastrand::Rng;
use palisade::{
    authority::Authority,
    forward::{AccessLog, Forwarder, Live, Shared, UpBody},
    gate::{Gate, GateSettings, News, Settle},
    headers::Forwarding,
    metrics::RequestMetrics,
    route::RouteTable,
    server::{Accept, Counts, Handler, Listener, Peer, ServerConfig, Shutdown, serve},
    upstream::{Connect, Pool, PoolConfig},
};
use palisade_lease::clock::Clock;
use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::{JoinSet, spawn_local},
    time::sleep,
};
use turmoil::net::{TcpListener, TcpStream};

/// The proxy's threads: each has a listener and connections of its own, as in the program; here they take turns.
pub const THREADS: u16 = 2;
/// The port of the first one.
pub const PORT: u16 = 80;

struct Simulated(TcpListener);

impl Listener for Simulated {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<Accept<TcpStream>> {
        let (stream, peer) = self.0.accept().await?;
        Ok(Accept {
            stream,
            peer: Peer::Tcp(peer),
        })
    }
}

struct ToUpstream(Arc<World>);

/// A connection to upstream that notes when it was written to and when it ended: upstream keeps to A6 by that.
pub struct Noted {
    stream: RefCell<TcpStream>,
    line: Arc<Line>,
    world: Arc<World>,
}

impl Connect for ToUpstream {
    type Stream = Noted;

    async fn connect(&self) -> io::Result<Noted> {
        let stream = TcpStream::connect(("db", 80)).await?;
        let line = self.0.opened_line(stream.local_addr()?);
        Ok(Noted {
            stream: RefCell::new(stream),
            line,
            world: Arc::clone(&self.0),
        })
    }

    fn is_gone(stream: &Noted) -> bool {
        // An idle connection: nobody else waits for what comes.
        let mut stream = stream.stream.borrow_mut();
        let mut byte = [0];
        let looked = pin_peek(&mut stream, &mut byte);
        looked.is_ready()
    }
}

fn pin_peek(stream: &mut TcpStream, byte: &mut [u8]) -> Poll<io::Result<usize>> {
    let peek = std::pin::pin!(stream.peek(byte));
    peek.poll(&mut Context::from_waker(Waker::noop()))
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.line.ended(self.world.now());
    }
}

impl AsyncRead for Noted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().stream.get_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(this.stream.get_mut()).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = wrote {
            this.line.wrote(bytes, this.world.now());
        }
        wrote
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().stream.get_mut()).poll_shutdown(cx)
    }
}

/// One life of the proxy, from its start to its orderly end; a crash drops it.
pub async fn run(world: Arc<World>) -> turmoil::Result {
    let mut rng = world.rng();
    let disk = Disk::start(&world);
    let gate = gate(&world, &disk, &mut rng);
    spawn_local(watch(Arc::clone(&world), News(Arc::downgrade(&gate))));
    spawn_local(upkeep(Arc::clone(&disk), Arc::clone(&gate)));
    let shared = Arc::new(Shared {
        gate: Arc::clone(&gate),
        live: ArcSwap::from_pointee(live(&mut rng)),
        in_flight: AtomicUsize::new(0),
        header_bytes: 8192,
        metrics: RequestMetrics::new(),
        refusals: Arc::default(),
    });
    let config = ServerConfig {
        header_timeout: ms(400),
        keepalive_idle: ms(400),
        body_idle_timeout: ms(300),
        ..ServerConfig::default()
    };
    let pool_config = pool_config(&world, &mut rng);
    let pool = || Pool::new(ToUpstream(Arc::clone(&world)), pool_config.clone());
    let mut serving;
    if world.subject == Subject::Naive {
        serving = serve_all(|| Naive::new(Arc::clone(&world), pool()), config).await?;
    } else {
        serving = serve_all(|| Forwarder::new(Arc::clone(&shared), pool()), config).await?;
    }
    until_told(&world, &gate).await;
    serving.shutdown().await;
    disk.stop_clean(&gate.unsettled());
    world.stopped.store(true, SeqCst);
    // The process is gone; the end of its host closes what it had open.
    std::future::pending().await
}

async fn serve_all<H: Handler>(
    make: impl Fn() -> H,
    config: ServerConfig,
) -> io::Result<JoinSet<()>> {
    let stage = Shutdown::new(&config).stage();
    let (config, counts) = (Rc::new(config), Arc::new(Counts::default()));
    let mut serving = JoinSet::new();
    for thread in 0..THREADS {
        let listener = Simulated(TcpListener::bind(("0.0.0.0", PORT + thread)).await?);
        serving.spawn_local(serve(
            listener,
            Rc::new(make()),
            Rc::clone(&config),
            Arc::clone(&counts),
            stage.clone(),
        ));
    }
    Ok(serving)
}

fn gate(world: &Arc<World>, disk: &Arc<Disk>, rng: &mut Rng) -> Arc<Gate> {
    let settle = match world.subject {
        Subject::NoSettle => ms(0),
        _ => SETTLE,
    };
    let settings = GateSettings {
        settle: Settle::After(settle),
        abort_after: between(rng, 10, 150),
        drain_timeout: between(rng, 100, 1500),
        waiting: 100,
    };
    let store = match world.subject {
        Subject::Credulous => None,
        _ => Some(Arc::new(Store::new(world)) as Arc<dyn Authority>),
    };
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    Gate::new(Arc::clone(disk) as _, clock, settings, |_| store)
}

/// As in `palisade run`: idle scopes leave memory, and once `settle` has passed the leftovers are settled.
async fn upkeep(disk: Arc<Disk>, gate: Arc<Gate>) {
    let mut leftovers = true;
    loop {
        let left = gate.leftovers().until.since(gate.now());
        if leftovers && left.is_zero() {
            leftovers = false;
            disk.all_settled();
        }
        sleep(if leftovers { ms(70).min(left) } else { ms(70) }.max(ms(1))).await;
        gate.sweep();
    }
}

/// As at a SIGTERM. The stage of the shutdown is not moved on: tokio's `watch` wakes in an order of its own luck, and then a
/// seed would not give the same run twice.
async fn until_told(world: &World, gate: &Gate) {
    while !world.stop.load(SeqCst) {
        sleep(ms(5)).await;
    }
    gate.stop_waiting();
    sleep(ms(150)).await;
}

fn live(rng: &mut Rng) -> Live {
    Live {
        table: 0,
        routes: Arc::new(RouteTable::single(crate::world::SCOPE)),
        forwarding: Forwarding {
            via: true,
            forwarded: false,
            x_forwarded: false,
        },
        buffer_body: 256,
        in_flight: 1000,
        request_timeout: rng.bool().then(|| between(rng, 50, 500)),
        settle: Some(SETTLE),
        access: AccessLog::Off,
    }
}

fn pool_config(world: &Arc<World>, rng: &mut Rng) -> PoolConfig {
    PoolConfig {
        connect_timeout: between(rng, 30, 200),
        response_timeout: between(rng, 100, 600),
        idle_timeout: between(rng, 20, 200),
        max_idle: 4,
        max_buffer: 16 * 1024,
        tls: None,
        clock: Arc::clone(&world.clock) as Arc<dyn Clock>,
    }
}

/// The bodies' type, for whoever uses the pool directly.
pub type ToUpstreamPool<C> = Pool<C, UpBody>;
