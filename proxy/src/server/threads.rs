//! The threads, and how they end.

use super::{
    Bound, Handler, ServerConfig,
    accept::{Counts, Stage, serve},
    listen::UnregisteredListener,
};
use std::{io, rc::Rc, sync::Arc, thread, time::Duration};
use tokio::{
    runtime,
    sync::watch,
    task::{JoinSet, LocalSet},
};

/// The server's threads.
#[derive(Debug)]
pub struct Running {
    threads: Vec<thread::JoinHandle<()>>,
    shutdown: Shutdown,
    counts: Arc<Counts>,
}

impl Running {
    /// To end it.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// What is counted over all threads.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Waits (blocking) until all threads have ended. False if one of them panicked.
    pub fn join(self) -> bool {
        let ended: Vec<_> = self.threads.into_iter().map(|t| t.join().is_ok()).collect();
        ended.into_iter().all(|well| well)
    }
}

/// Ends the server; cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    stage: Arc<watch::Sender<Stage>>,
    drain_delay: Duration,
    timeout: Duration,
}

impl Shutdown {
    /// For a server that is run by hand with [`serve`].
    pub fn new(config: &ServerConfig) -> Self {
        Self {
            stage: Arc::new(watch::Sender::new(Stage::Serving)),
            drain_delay: config.drain_delay,
            timeout: config.shutdown_timeout,
        }
    }

    /// How far it has come.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// The orderly end: accepts for `drain_delay` more, closes what is idle, lets requests under way finish within `shutdown_timeout`, then drops
    /// the rest. Resolves when the last of that has been ordered; the threads may have ended long before.
    pub async fn orderly(&self) {
        tokio::time::sleep(self.drain_delay).await;
        self.drain();
        tokio::time::sleep(self.timeout).await;
        self.stop();
    }

    /// Stops accepting.
    pub fn drain(&self) {
        self.advance(Stage::Draining);
    }

    /// Drops everything, at once.
    pub fn stop(&self) {
        self.advance(Stage::Stopped);
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let later = to > *stage;
            *stage = to.max(*stage);
            later
        });
    }
}

/// Starts `threads` threads that serve `bound`, each with the handler that `make` builds inside it (thread number, from 0). Tasks may be
/// spawned in `make` with `spawn_local`; they end with the thread.
pub fn start<H, M>(
    bound: Vec<Bound>,
    threads: usize,
    config: ServerConfig,
    make: M,
) -> io::Result<Running>
where
    H: Handler,
    M: Fn(usize) -> Rc<H> + Clone + Send + 'static,
{
    let shutdown = Shutdown::new(&config);
    let counts = Arc::new(Counts::default());
    let mut ends: Vec<_> = bound.into_iter().map(Bound::into_ends).collect();
    let mut running = Vec::with_capacity(threads);
    for number in 0..threads {
        let listeners: Vec<_> = ends.iter_mut().filter_map(Iterator::next).collect();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (make, config, counts) = (make.clone(), config.clone(), counts.clone());
        let stage = shutdown.stage();
        let body = move || {
            let local = LocalSet::new();
            local.block_on(
                &runtime,
                run(listeners, || make(number), config, counts, stage),
            );
        };
        let thread = thread::Builder::new()
            .name(format!("palisade-{number}"))
            .spawn(body)?;
        running.push(thread);
    }
    Ok(Running {
        threads: running,
        shutdown,
        counts,
    })
}

async fn run<H: Handler>(
    listeners: Vec<UnregisteredListener>,
    make: impl FnOnce() -> Rc<H>,
    config: ServerConfig,
    counts: Arc<Counts>,
    mut stage: watch::Receiver<Stage>,
) {
    let config = Rc::new(config);
    let handler = make();
    let mut serving = JoinSet::new();
    for listener in listeners {
        match listener.register() {
            Ok(listener) => {
                serving.spawn_local(serve(
                    listener,
                    handler.clone(),
                    config.clone(),
                    counts.clone(),
                    stage.clone(),
                ));
            }
            Err(error) => tracing::error!(%error, "a listening socket can't be used"),
        }
    }
    while serving.join_next().await.is_some() {}
    // What has outlived its client has as much time as the rest.
    tokio::select! {
        biased;
        () = handler.finished() => {}
        _ = stage.wait_for(|stage| *stage == Stage::Stopped) => {}
    }
}
