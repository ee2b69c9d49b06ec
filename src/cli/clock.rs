//! The clock of the command line: pacing, progress and deadlines that a user asked for.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What time it is.
#[expect(
    clippy::disallowed_methods,
    reason = "commands time what a user watches; the protocol gets its time from the runtime"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time of the wall's clock since 1970: for events that are compared between processes.
#[expect(
    clippy::disallowed_methods,
    reason = "what is told is dated by the clock that others read too; nothing is decided by it"
)]
pub(crate) fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time of day (UTC) with milliseconds.
pub(crate) fn time_of_day(unix: Duration) -> String {
    let seconds = unix.as_secs() % 86400;
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{:03}", seconds % 60, unix.subsec_millis())
}

/// Something that is due again and again, and skips what was missed.
#[derive(Debug)]
pub(crate) struct Every {
    interval: Duration,
    due: Instant,
}

impl Every {
    /// First due after one interval.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, due: now() + interval }
    }

    /// Whether it is due; if so, it is due again after one more interval.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = now();
        if now < self.due {
            return false;
        }
        self.due = now + self.interval;
        true
    }
}

/// Keeps to a rate: says when the next one may go.
#[derive(Debug)]
pub(crate) struct Pace {
    start: Instant,
    per_second: f64,
    gone: u64,
}

impl Pace {
    /// `per_second` of them from now on.
    pub(crate) fn new(per_second: f64) -> Self {
        Self { start: now(), per_second, gone: 0 }
    }

    /// When the next one is due. Counted from the start, so that the average holds.
    pub(crate) fn next(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.gone as f64 / self.per_second)
    }

    /// One has gone.
    pub(crate) fn step(&mut self) {
        self.gone += 1;
    }
}
