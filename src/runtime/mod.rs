//! Drives an engine in real time: by a thread, or by the application.
//!
//! One lock guards the engine, and whoever holds it runs a [turn](crate::engine::Engine::turn). With
//! [`Progress::Thread`] that is mostly the progress thread, but an application thread that publishes
//! on an idle link runs the turn itself, and one that waits for messages [drives](Runtime::drive) the
//! node meanwhile: no hand-off, no second wake-up. While somebody is awake, application threads only
//! leave a mark that is seen before anybody sleeps.

mod clock;
mod poller;
mod seat;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use parking_lot::{Mutex, MutexGuard};
use qcast_proto::time::Instant;

use clock::Clock;
pub(crate) use clock::{incarnation, instant, system_rng};
use poller::Poller;
use seat::Seat;

use crate::device::DeviceError;
use crate::engine::{Engine, Turn};

/// Who drives a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// A thread of the node's own.
    #[default]
    Thread,
    /// The application, by calling [`Node::poll`](crate::Node::poll) often: for those who busy-poll.
    Manual,
}

/// An engine with its clock and whatever wakes it.
pub(crate) struct Runtime {
    engine: Mutex<Engine>,
    poller: Mutex<Poller>,
    waker: Waker,
    clock: Clock,
    progress: Progress,
    /// The progress thread runs, or was woken.
    awake: AtomicBool,
    /// There is work that nobody has seen yet.
    pending: AtomicBool,
    /// Until when the progress thread sleeps, in nanoseconds of the clock.
    sleeps_until: AtomicU64,
    /// When an application thread last ran a turn.
    inline_at: AtomicU64,
    seat: Seat,
    stop: AtomicBool,
    /// The progress thread has ended on an error.
    failed: AtomicBool,
}

/// After a turn on an application thread, the next one within this time is left to the progress thread:
/// by the time it is up, more messages fill its frames. A message that comes later finds an idle link
/// and is sent at once.
const INLINE_PAUSE: Duration = Duration::from_micros(50);

/// The longest sleep, so that a missed wake-up cannot last.
const MAX_SLEEP: Duration = Duration::from_millis(500);

impl Runtime {
    /// Starts the engine that `build` makes. The second part is the progress thread, if there is one.
    pub(crate) fn start(
        progress: Progress,
        build: impl FnOnce(Instant) -> Result<Engine, DeviceError>,
    ) -> Result<(Arc<Self>, Option<JoinHandle<()>>), StartError> {
        let clock = Clock::start();
        let (poller, waker) = Poller::new().map_err(StartError::Poll)?;
        let mut engine = build(clock.now())?;
        engine.journal_mut().measure_by(move || clock.now(), incarnation());
        let runtime = Arc::new(Self {
            engine: Mutex::new(engine),
            poller: Mutex::new(poller),
            waker,
            clock,
            progress,
            awake: AtomicBool::new(progress == Progress::Thread),
            pending: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            inline_at: AtomicU64::new(0),
            seat: Seat::default(),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let thread = match progress {
            Progress::Manual => None,
            Progress::Thread => {
                let runtime = Arc::clone(&runtime);
                let thread = std::thread::Builder::new().name("qcast".into());
                Some(thread.spawn(move || runtime.run()).map_err(StartError::Thread)?)
            }
        };
        Ok((runtime, thread))
    }

    /// The time on the node's clock.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// The engine, for something short. Call [`Runtime::kick`] afterwards if there is work for it.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// Something was left for the engine: sees that somebody does it soon, on this thread if the link
    /// is idle.
    pub(crate) fn kick(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.awake.load(Ordering::SeqCst) {
            return;
        }
        let now = self.clock.now();
        let last = Instant::from_nanos(self.inline_at.load(Ordering::Relaxed));
        if now.saturating_since(last) >= INLINE_PAUSE && self.try_turn(now) {
            return;
        }
        if self.progress == Progress::Thread {
            self.wake();
        }
    }

    /// Runs a turn on this thread, unless another thread is in one. Says whether it did.
    pub(crate) fn try_turn(&self, now: Instant) -> bool {
        let Some(mut engine) = self.engine.try_lock() else { return false };
        self.pending.store(false, Ordering::SeqCst);
        let turn = engine.turn(now);
        drop(engine);
        self.inline_at.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        let sleeps_until = self.sleeps_until.load(Ordering::SeqCst);
        if sleeps_until == 0 {
            // The progress thread is about to sleep for as long as its own last turn said: it looks again.
            self.pending.store(true, Ordering::SeqCst);
        }
        let earlier = turn.next.is_some_and(|next| next.as_nanos() < sleeps_until);
        if turn.more || earlier || self.pending.load(Ordering::SeqCst) {
            self.wake();
        }
        true
    }

    /// Runs a turn on this thread before it returns, for last words.
    pub(crate) fn turn_now(&self) {
        self.turn();
        self.wake();
    }

    /// Sees that somebody runs a turn soon: whoever sleeps in the poller, or the thread that stands by.
    pub(crate) fn wake(&self) {
        if self.progress == Progress::Thread && self.awake.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the progress thread could not be woken");
        }
        self.seat.call_thread();
    }

    /// Drives the node with [`Progress::Manual`]: runs a turn, and if there was nothing to do, sleeps for
    /// `timeout` at most until there is, and runs a turn for that.
    pub(crate) fn poll(&self, timeout: Duration) -> io::Result<()> {
        let turn = self.turn();
        if turn.more || timeout.is_zero() || self.pending.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.sleep(&mut self.poller.lock(), turn.next, timeout)?;
        self.turn();
        Ok(())
    }

    /// Drives the node on this thread, instead of the progress thread, until `done` says so or the
    /// deadline has come: what arrives then reaches the application with no hand-off between threads.
    pub(crate) fn drive(
        &self,
        deadline: Option<std::time::Instant>,
        done: &mut dyn FnMut() -> bool,
    ) -> io::Result<Driven> {
        if !self.seat.claim() {
            return Ok(Driven::Occupied);
        }
        let driven = self.drive_seated(deadline, done);
        self.awake.store(false, Ordering::SeqCst);
        self.seat.leave(self.now());
        // What was left for this thread after its last turn has nobody else to see it.
        if self.pending.load(Ordering::SeqCst) || self.seat.others_wait() {
            self.wake();
        }
        driven
    }

    fn drive_seated(
        &self,
        deadline: Option<std::time::Instant>,
        done: &mut dyn FnMut() -> bool,
    ) -> io::Result<Driven> {
        let mut poller = match self.poller.try_lock() {
            Some(poller) => poller,
            None => {
                // The progress thread sleeps in it: it finds the seat taken and stands by.
                self.pending.store(true, Ordering::SeqCst);
                self.wake();
                self.poller.lock()
            }
        };
        self.awake.store(true, Ordering::SeqCst);
        loop {
            if done() {
                return Ok(Driven::Done);
            }
            let left = match deadline {
                None => MAX_SLEEP,
                Some(at) => at.saturating_duration_since(instant()).min(MAX_SLEEP),
            };
            if left.is_zero() {
                return Ok(Driven::TimedOut);
            }
            self.step(&mut poller, left)?;
        }
    }

    /// Whether the progress thread has ended on an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Asks the thread to stop once everything that is being closed is closed.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.awake.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Where application threads and the progress thread agree on who drives.
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    fn turn(&self) -> Turn {
        self.pending.store(false, Ordering::SeqCst);
        let now = self.clock.now();
        self.engine.lock().turn(now)
    }

    fn sleep(
        &self,
        poller: &mut Poller,
        next: Option<Instant>,
        at_most: Duration,
    ) -> io::Result<()> {
        poller.watch(self.engine.lock().device().sources())?;
        let until = next.map_or(at_most, |next| next.saturating_since(self.now()).min(at_most));
        if until.is_zero() { Ok(()) } else { poller.sleep(Some(until)) }
    }

    /// One turn, and if there is nothing more to do a sleep.
    fn step(&self, poller: &mut Poller, at_most: Duration) -> io::Result<()> {
        let turn = self.turn();
        if turn.more || self.pending.load(Ordering::SeqCst) {
            return Ok(());
        }
        let until = turn.next.unwrap_or(Instant::from_nanos(u64::MAX));
        self.sleeps_until.store(until.as_nanos(), Ordering::SeqCst);
        self.awake.store(false, Ordering::SeqCst);
        // Work that was left before "awake" was taken back has nobody else to do it.
        let slept = if self.pending.load(Ordering::SeqCst) {
            Ok(())
        } else {
            self.sleep(poller, turn.next, at_most)
        };
        self.awake.store(true, Ordering::SeqCst);
        self.sleeps_until.store(0, Ordering::SeqCst);
        slept
    }

    fn run(&self) {
        self.seat.is_for(std::thread::current());
        while !(self.stop.load(Ordering::SeqCst) && self.engine.lock().is_idle()) {
            self.stand_by();
            if let Err(error) = self.step(&mut self.poller.lock(), MAX_SLEEP) {
                tracing::error!(%error, "polling failed; the progress thread ends");
                self.failed.store(true, Ordering::SeqCst);
                self.engine.lock().close_outlets();
                return;
            }
        }
    }

    /// Waits while an application thread drives the node, or did a moment ago.
    fn stand_by(&self) {
        let mut watch = seat::Watch::default();
        while !self.stop.load(Ordering::SeqCst)
            && self.seat.is_kept(self.now(), self.awake.load(Ordering::SeqCst))
        {
            self.seat.park(&mut watch);
        }
    }
}

/// How a drive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    /// What was waited for is there.
    Done,
    /// The deadline came first.
    TimedOut,
    /// Another application thread drives the node.
    Occupied,
}

/// Why a node could not be started. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StartError {
    #[error("the poll could not be made")]
    Poll(#[source] io::Error),
    #[error("the progress thread could not be started")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Device(#[from] DeviceError),
}
