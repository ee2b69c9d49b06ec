//! The real clock: the only place of the library that reads it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, SystemTime};

use qcast_proto::time::Instant;

/// Time since the node was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { origin: instant() }
    }

    /// The time.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the runtime is where the clock is read")]
pub(crate) fn instant() -> std::time::Instant {
    std::time::Instant::now()
}

/// Microseconds since 1970: a node's incarnation, which must grow from one life to the next.
#[expect(clippy::disallowed_methods, reason = "the runtime is where the clock is read")]
pub(crate) fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A generator that the system's own random keys seed.
pub(crate) fn system_rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(RandomState::new().hash_one(incarnation()))
}
