//! Who drives: the progress thread, or an application thread that waits for messages anyway.
//!
//! An application thread takes the seat for as long as it waits. Giving it back with a wake-up for every
//! message would cost what driving saves, so the progress thread looks now and then instead: it takes
//! over when nobody has driven for a millisecond.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use qcast_proto::time::Instant;

/// The driver's seat.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    taken: AtomicBool,
    /// Drives so far: the progress thread sees by it whether the seat changes hands.
    drives: AtomicU64,
    /// When it was last left, in nanoseconds of the node's clock.
    left_at: AtomicU64,
    /// Application threads that wait without driving.
    others: AtomicUsize,
    thread: OnceLock<Thread>,
}

/// How long the progress thread waits for the next application thread before it drives itself. A
/// socket's buffer holds what comes meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);

/// The longest time between two looks while one thread drives on and on.
const MAX_WATCH: Duration = Duration::from_millis(8);

/// How closely the progress thread watches the seat.
#[derive(Debug)]
pub(super) struct Watch {
    seen: u64,
    pause: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self { seen: u64::MAX, pause: PATIENCE }
    }
}

impl Seat {
    /// Names the progress thread.
    pub(super) fn is_for(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Takes the seat, unless it is taken.
    pub(super) fn claim(&self) -> bool {
        !self.taken.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    pub(super) fn leave(&self, now: Instant) {
        self.left_at.store(now.as_nanos(), Ordering::SeqCst);
        self.drives.fetch_add(1, Ordering::SeqCst);
        self.taken.store(false, Ordering::SeqCst);
    }

    /// Whether the progress thread has to stay away. `called` is whether somebody wants a turn now.
    pub(super) fn is_kept(&self, now: Instant, called: bool) -> bool {
        if self.taken.load(Ordering::SeqCst) {
            return true;
        }
        let left_at = self.left_at.load(Ordering::SeqCst);
        let recent = left_at != 0 && now.saturating_since(Instant::from_nanos(left_at)) < PATIENCE;
        recent && !called
    }

    /// Waits for a while, or until [`Seat::call_thread`].
    pub(super) fn park(&self, watch: &mut Watch) {
        let drives = self.drives.load(Ordering::SeqCst);
        watch.pause =
            if drives == watch.seen { (watch.pause * 2).min(MAX_WATCH) } else { PATIENCE };
        watch.seen = drives;
        std::thread::park_timeout(watch.pause);
    }

    /// Calls the progress thread if it stands by and nobody drives.
    pub(super) fn call_thread(&self) {
        if !self.taken.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Runs `wait` as one of those that wait without driving; `None` if nobody drives any more.
    ///
    /// Who leaves the seat looks for those that wait after it has left; this looks for the seat after it
    /// said that it waits. One of the two sees the other.
    pub(crate) fn wait_beside<T>(&self, wait: impl FnOnce() -> T) -> Option<T> {
        self.others.fetch_add(1, Ordering::SeqCst);
        let waited = self.is_taken().then(wait);
        self.others.fetch_sub(1, Ordering::SeqCst);
        waited
    }

    pub(super) fn others_wait(&self) -> bool {
        self.others.load(Ordering::SeqCst) > 0
    }
}
