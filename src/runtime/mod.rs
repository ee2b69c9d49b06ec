//! Drives an engine in real time: by a thread, or by the application.
//!
//! One lock guards the engine, and whoever holds it runs a [turn](crate::engine::Engine::turn). With
//! [`Progress::Thread`] that is mostly the progress thread, but an application thread that publishes
//! on an idle link runs the turn itself, and one that waits for messages [drives](Runtime::drive) the
//! node meanwhile: no hand-off, no second wake-up. While somebody is awake, application threads only
//! leave a mark that is seen before anybody sleeps.

mod clock;
mod fork;
#[cfg(test)]
mod interleavings;
mod poller;
mod seat;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use qcast_proto::time::Instant;

use clock::Clock;
pub(crate) use clock::{incarnation, instant, system_rng};
use fork::Birth;
pub use fork::ForkedChild;
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
    waker: mio::Waker,
    clock: Clock,
    birth: Birth,
    progress: Progress,
    /// With a progress thread: whoever drives runs, or was woken.
    awake: AtomicBool,
    /// There is work that nobody has seen yet. It is taken back only by who runs a turn next.
    pending: AtomicBool,
    /// Until when whoever drives sleeps, in nanoseconds of the clock; 0 while it runs.
    sleeps_until: AtomicU64,
    /// When an application thread last ran a turn.
    inline_at: AtomicU64,
    /// Turns that brought something for a subscriber.
    arrivals: AtomicU64,
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
            birth: Birth::here(),
            progress,
            awake: AtomicBool::new(progress == Progress::Thread),
            pending: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            inline_at: AtomicU64::new(0),
            arrivals: AtomicU64::new(0),
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

    /// An error in a forked child. Every call of the application comes here first.
    pub(crate) fn check(&self) -> Result<(), ForkedChild> {
        self.birth.check()
    }

    /// Looks at the engine; `None` in a forked child, where its lock may never come free.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.check().ok()?;
        Some(look(&mut self.engine.lock()))
    }

    /// The engine, for something short. Call [`Runtime::kick`] afterwards if there is work for it.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// Something was left for the engine: sees that somebody does it soon, on this thread if the link
    /// is idle.
    pub(crate) fn kick(&self) {
        if self.check().is_err() {
            return;
        }
        self.pending.store(true, Ordering::SeqCst);
        if self.awake.load(Ordering::SeqCst) {
            return;
        }
        let now = self.clock.now();
        let last = Instant::from_nanos(self.inline_at.load(Ordering::Relaxed));
        if now.saturating_since(last) >= INLINE_PAUSE && self.try_turn(now) {
            return;
        }
        self.wake();
    }

    /// Runs a turn on this thread, unless another thread is in one. Says whether it did.
    pub(crate) fn try_turn(&self, now: Instant) -> bool {
        let Some(engine) = self.engine.try_lock() else { return false };
        self.pending.store(false, Ordering::SeqCst);
        let turn = self.turn_of(engine, now);
        self.inline_at.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        let sleeps_until = self.sleeps_until.load(Ordering::SeqCst);
        // Whoever drives is about to sleep for as long as its own last turn said: it looks again.
        let outdated = sleeps_until == 0;
        let earlier = turn.next.is_some_and(|next| next.as_nanos() < sleeps_until);
        // What came may be what it sleeps for, and is no longer there to wake it.
        let taken = turn.handed && (self.seat.is_taken() || self.progress == Progress::Manual);
        if turn.more || outdated || earlier || taken || self.pending.load(Ordering::SeqCst) {
            self.wake();
        }
        true
    }

    /// Runs a turn on this thread before it returns.
    pub(crate) fn turn_now(&self) {
        self.turn();
        self.wake();
    }

    /// Sees that somebody runs a turn soon: whoever drives, now or after its sleep.
    pub(crate) fn wake(&self) {
        // Who is awake may be past its last turn: it looks for this mark before it sleeps.
        self.pending.store(true, Ordering::SeqCst);
        match self.progress {
            Progress::Thread if !self.awake.swap(true, Ordering::SeqCst) => self.summon(),
            Progress::Manual if self.sleeps_until.load(Ordering::SeqCst) != 0 => self.summon(),
            _ => {}
        }
    }

    /// Ends a sleep in the poller, and calls the progress thread if nobody else drives.
    fn summon(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the progress thread could not be woken");
        }
        self.seat.call_thread();
    }

    /// Runs a turn, and if there was nothing to do, waits for `timeout` at most until there is, and runs
    /// a turn for that.
    pub(crate) fn poll(&self, timeout: Duration) -> io::Result<()> {
        if self.progress == Progress::Thread {
            return self.watch(timeout);
        }
        let turn = self.turn();
        if turn.more || turn.handed || timeout.is_zero() {
            return Ok(());
        }
        let Some(mut poller) = self.poller.try_lock() else {
            // Another thread sleeps in it, and runs the turn: what it brings may be for this one.
            drop(self.poller.try_lock_for(timeout));
            return Ok(());
        };
        self.doze(&mut poller, turn.next, timeout, &mut || false)?;
        drop(poller);
        self.turn();
        Ok(())
    }

    /// Waits until something has come for a subscriber, while the progress thread, or this one, drives.
    fn watch(&self, timeout: Duration) -> io::Result<()> {
        let seen = self.arrivals.load(Ordering::SeqCst);
        self.try_turn(self.now());
        let deadline = instant() + timeout;
        let mut came = || self.arrivals.load(Ordering::SeqCst) != seen;
        if self.drive(Some(deadline), &mut came)? == Driven::Occupied {
            let left = deadline.saturating_duration_since(instant());
            std::thread::sleep(left.min(seat::PATIENCE));
        }
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
        let now = self.now();
        self.awake.store(false, Ordering::SeqCst);
        // The progress thread looks by then.
        self.sleeps_until.store((now + seat::PATIENCE).as_nanos(), Ordering::SeqCst);
        self.seat.leave(now);
        // What was left for this thread after its last turn has nobody else to see it; and who called
        // while the seat was still taken did not reach the progress thread.
        let called = self.awake.swap(false, Ordering::SeqCst);
        if called || self.pending.load(Ordering::SeqCst) || self.seat.others_wait() {
            self.awake.store(true, Ordering::SeqCst);
            self.summon();
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
                // The progress thread has it: before it sleeps it finds the seat taken, and stands by.
                self.wake();
                self.poller.lock()
            }
        };
        self.awake.store(true, Ordering::SeqCst);
        self.sleeps_until.store(0, Ordering::SeqCst);
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
            let mut found = false;
            self.step(&mut poller, left, &mut || {
                found = found || done();
                found
            })?;
            if found {
                return Ok(Driven::Done);
            }
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
        self.turn_of(self.engine.lock(), now)
    }

    /// A turn, and then, without the lock, whatever it has to wake: a waker is the application's code.
    fn turn_of(&self, mut engine: MutexGuard<'_, Engine>, now: Instant) -> Turn {
        let turn = engine.turn(now);
        let wakers = engine.take_wakers();
        drop(engine);
        if turn.handed {
            self.arrivals.fetch_add(1, Ordering::SeqCst);
        }
        wakers.into_iter().for_each(Waker::wake);
        turn
    }

    /// One turn, and if there is nothing more to do, and not `enough`, a sleep.
    fn step(
        &self,
        poller: &mut Poller,
        at_most: Duration,
        enough: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        self.sleeps_until.store(0, Ordering::SeqCst);
        let turn = self.turn();
        if turn.more || self.pending.load(Ordering::SeqCst) || enough() {
            return Ok(());
        }
        self.doze(poller, turn.next, at_most, enough)
    }

    /// Sleeps after a turn that said `next`. First the sleep is announced, then everything is looked at
    /// once more that came before the announcement: who comes after it sees it, and wakes.
    fn doze(
        &self,
        poller: &mut Poller,
        next: Option<Instant>,
        at_most: Duration,
        enough: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let until = next.unwrap_or(Instant::from_nanos(u64::MAX));
        self.sleeps_until.store(until.as_nanos().max(1), Ordering::SeqCst);
        self.awake.store(false, Ordering::SeqCst);
        let slept = if self.pending.load(Ordering::SeqCst) || enough() {
            Ok(())
        } else {
            self.sleep(poller, next, at_most)
        };
        self.awake.store(self.progress == Progress::Thread, Ordering::SeqCst);
        self.sleeps_until.store(0, Ordering::SeqCst);
        slept
    }

    fn sleep(
        &self,
        poller: &mut Poller,
        next: Option<Instant>,
        at_most: Duration,
    ) -> io::Result<()> {
        poller.watch(self.engine.lock().sources())?;
        let until = next.map_or(at_most, |next| next.saturating_since(self.now()).min(at_most));
        if until.is_zero() { Ok(()) } else { poller.sleep(Some(until)) }
    }

    fn run(&self) {
        self.seat.is_for(std::thread::current());
        let ended = || self.stop.load(Ordering::SeqCst) && self.engine.lock().is_idle();
        while !ended() {
            self.stand_by();
            let mut poller = self.poller.lock();
            if self.seat.is_taken() {
                // An application thread had it, and comes again.
                continue;
            }
            let mut enough = || self.seat.is_taken() || ended();
            if let Err(error) = self.step(&mut poller, MAX_SLEEP, &mut enough) {
                tracing::error!(%error, "polling failed; the progress thread ends");
                self.failed.store(true, Ordering::SeqCst);
                let wakers = self.engine.lock().close_outlets();
                wakers.into_iter().for_each(Waker::wake);
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
