//! The signals that are meant for the job.

use nix::sys::signal::Signal;
use std::io;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Signals that ask for an end.
const END: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];
/// Signals that the job may know something to do with.
const PASS: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGCONT,
];

/// Receives them all, in order of arrival.
pub(crate) struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// From here on none of them has its usual effect.
    pub(crate) fn catch() -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for number in END.into_iter().chain(PASS) {
            let mut stream = signal(SignalKind::from_raw(number as i32))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(number).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    /// The next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next that asks for an end, or that would have ended the program by default.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if asks_for_end(signal) || signal == Signal::SIGHUP {
                return signal;
            }
        }
    }
}

/// Whether the job is killed if it does not end after this signal.
pub(crate) fn asks_for_end(signal: Signal) -> bool {
    END.contains(&signal)
}
