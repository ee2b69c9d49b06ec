//! Time as a value: nanoseconds since an origin that the caller chose.

use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A point in time, in nanoseconds since the caller's own origin.
///
/// The runtime counts from the start of the process, a simulation from zero. Two nodes never
/// compare their instants: what crosses the wire is a duration or an opaque echo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

/// 64 bits of nanoseconds are 584 years: a longer duration means "never" to every caller.
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Instant::from_micros(5);
        assert_eq!((t + Duration::from_nanos(1)).as_nanos(), 5_001);
        assert_eq!(t - Duration::MAX, Instant::ZERO);
        assert_eq!((t + Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(Instant::ZERO.saturating_since(t), Duration::ZERO);
        assert_eq!(t.saturating_since(Instant::from_micros(2)), Duration::from_micros(3));
    }
}
