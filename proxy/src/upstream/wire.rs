//! What is known about one request's way to the socket, and the switch that stops it. Shared between threads: the
//! gate of another thread may cut a request that this one sends.

use palisade_fence::Time;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Waker,
};

pub use palisade_fence::Sent;

const FRESH: u8 = 0;
const SENDING: u8 = 1;
const COMPLETE: u8 = 2;
const CUT_BEFORE: u8 = 3;
const CUT_MID: u8 = 4;

/// One request's state. `phase` only moves from FRESH to SENDING to COMPLETE, or from either of the first two to a cut;
/// "nothing sent" and "start sending" are therefore one atomic change (design.md, section 4, drain).
#[derive(Debug)]
pub(super) struct Wire {
    phase: AtomicU8,
    written: AtomicU64,
    last_write: AtomicU64,
    /// Set when nothing more may be written although the request isn't cut: its answer came early, or the socket takes
    /// no more. What upstream has said already can still be read.
    held: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Wire {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            phase: AtomicU8::new(FRESH),
            written: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
            held: AtomicBool::new(false),
            waker: Mutex::new(None),
        })
    }

    /// To be asked right before each write to the socket. False: it was cut.
    pub(super) fn may_write(&self) -> bool {
        match self.phase.load(Ordering::Acquire) {
            FRESH => self.change(FRESH, SENDING),
            SENDING => true,
            _ => false,
        }
    }

    pub(super) fn wrote(&self, bytes: usize, now: Time) {
        self.last_write.store(now.as_nanos(), Ordering::Relaxed);
        self.written.fetch_add(bytes as u64, Ordering::Release);
    }

    /// The last byte is in the socket.
    pub(super) fn complete(&self) {
        let _ = self.change(SENDING, COMPLETE);
    }

    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn is_cut(&self) -> bool {
        matches!(self.phase.load(Ordering::Acquire), CUT_BEFORE | CUT_MID)
    }

    /// As the thread that sends knows it: a write that was begun but of which the socket took nothing is nothing.
    pub(super) fn sent(&self) -> Sent {
        match self.phase.load(Ordering::Acquire) {
            COMPLETE => Sent::Completely,
            _ if self.written.load(Ordering::Acquire) == 0 => Sent::Nothing,
            _ => Sent::Partly,
        }
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn last_write(&self) -> Option<Time> {
        (self.written() > 0).then(|| Time::from_nanos(self.last_write.load(Ordering::Relaxed)))
    }

    /// Who is to be woken by a cut.
    pub(super) fn register(&self, waker: &Waker) {
        let mut slot = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(old) if old.will_wake(waker) => {}
            _ => *slot = Some(waker.clone()),
        }
    }

    pub(super) fn cut(&self) -> Sent {
        loop {
            match self.phase.load(Ordering::Acquire) {
                FRESH if !self.change(FRESH, CUT_BEFORE) => continue,
                SENDING if !self.change(SENDING, CUT_MID) => continue,
                _ => break,
            }
        }
        let waker = self
            .waker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(waker) = waker {
            waker.wake();
        }
        seen_from_outside(self.phase.load(Ordering::Acquire))
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// From another thread a write that was begun may be in the kernel this very moment: it counts as sent in part.
fn seen_from_outside(phase: u8) -> Sent {
    match phase {
        FRESH | CUT_BEFORE => Sent::Nothing,
        COMPLETE => Sent::Completely,
        _ => Sent::Partly,
    }
}

/// Stops a request that is being sent. Cheap to clone, usable from any thread, harmless when it comes late.
#[derive(Clone, Debug)]
pub struct Cutter(pub(super) Arc<Wire>);

impl Cutter {
    /// No byte is written from here on, and the connection is closed (with a reset over TCP, so that what the kernel still held
    /// is discarded). The answer says what the cut met:
    /// - [`Sent::Nothing`]: nothing was sent, and nothing ever will be.
    /// - [`Sent::Partly`]: it was being sent; the one who sends reports precisely. (A write that was just beginning counts as this.)
    /// - [`Sent::Completely`]: too late, nothing was changed; the answer is still being waited for.
    pub fn cut(&self) -> Sent {
        self.0.cut()
    }

    /// How far it has come. [`Sent::Partly`] from the moment the first write to the socket begins.
    pub fn sent(&self) -> Sent {
        seen_from_outside(self.0.phase.load(Ordering::Acquire))
    }

    /// When the socket last took bytes of it; `None` before the first.
    pub fn last_write(&self) -> Option<Time> {
        self.0.last_write()
    }
}

/// A moment on the boot-time clock after which no byte may be written: a replica's deadline (design.md, section 6). Checked
/// below HTTP and TLS, right before each write to the socket. Shared by all threads and moved on as keep-alives are answered.
#[derive(Debug)]
pub struct Deadline(AtomicU64);

impl Deadline {
    /// Starts at this moment; [`Time::NEVER`] for none, [`Time::ZERO`] for "passed".
    pub const fn new(at: Time) -> Self {
        Self(AtomicU64::new(at.as_nanos()))
    }

    /// Moves it.
    pub fn set(&self, at: Time) {
        self.0.store(at.as_nanos(), Ordering::Release);
    }

    /// Where it is.
    pub fn get(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Acquire))
    }
}
