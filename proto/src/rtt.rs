//! Round-trip time of a group, and the back-off that is measured in it.

use core::time::Duration;

/// What is assumed before the first measurement: a busy host's wake-up, or a fabric with slack.
pub const INITIAL_RTT: Duration = Duration::from_micros(500);

/// The least that is ever used: below it timers cost more than they gain.
pub const MIN_RTT: Duration = Duration::from_micros(50);

/// The most that is ever used, so that one absurd sample cannot stall repairs.
pub const MAX_RTT: Duration = Duration::from_millis(500);

/// A sample counts as at most so many times the estimate: a true change shows in a few samples.
const MAX_STEP: u32 = 4;

/// Back-off is drawn from `K` round trips: with the true group size that keeps NAKs below about ten a
/// loss up to a thousand losers (RFC 5401 advises 4 where repairs are sent by multicast).
pub const BACKOFF_RTTS: u32 = 4;

/// Groups up to this size ask without a back-off: suppression could save no more than a few requests
/// for a loss, and a subscriber that lost a frame alone would wait for nothing.
pub const SMALL_GROUP: u32 = 8;

/// A publisher's estimate of the round trip to its slower subscribers.
///
/// It follows larger samples faster than smaller ones, so that timers suit the far ones.
#[derive(Clone, Copy, Debug)]
pub struct GroupRtt {
    estimate: Duration,
    measured: bool,
}

impl Default for GroupRtt {
    fn default() -> Self {
        Self { estimate: INITIAL_RTT, measured: false }
    }
}

impl GroupRtt {
    /// Takes a sample.
    /// Requirements: `R-RTT-1`.
    pub fn sample(&mut self, rtt: Duration) {
        let rtt = rtt.clamp(MIN_RTT, MAX_RTT);
        self.estimate = if !self.measured {
            rtt
        } else if rtt > self.estimate {
            // One sample of a host that slept must not stall everybody's repairs.
            (self.estimate * 3 + rtt.min(self.estimate * MAX_STEP)) / 4
        } else {
            (self.estimate * 7 + rtt) / 8
        };
        self.measured = true;
    }

    /// The estimate.
    pub fn get(&self) -> Duration {
        self.estimate
    }
}

/// A delay before a NAK: truncated exponential over `max`, as RFC 5401 has it, for a group of
/// `group` likely losers of it. In a [small group](SMALL_GROUP) it is zero.
///
/// Most draws lie near `max` and few near zero, so that of many losers few speak before the first
/// repair reaches the others.
pub fn nak_backoff(rng: &mut fastrand::Rng, max: Duration, group: u32) -> Duration {
    if group <= SMALL_GROUP {
        return Duration::ZERO;
    }
    let lambda = ln(f64::from(group)) + 1.0;
    let e = exp(lambda);
    let u = rng.f64() * (e - 1.0) + 1.0;
    max.mul_f64((ln(u) / lambda).clamp(0.0, 1.0))
}

/// Natural logarithm of `x` ≥ 1, to about 1e-7: `core` has none.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as f64 - 1023.0;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // ln(m) = 2 artanh((m - 1) / (m + 1)), and the argument is at most 1/3.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let t2 = t * t;
    let series =
        t * (1.0 + t2 * (1.0 / 3.0 + t2 * (0.2 + t2 * (1.0 / 7.0 + t2 / 9.0 + t2 * t2 / 11.0))));
    exponent * core::f64::consts::LN_2 + 2.0 * series
}

/// e^x for small positive `x`.
fn exp(x: f64) -> f64 {
    let halvings = 6;
    let y = x / f64::from(1 << halvings);
    let mut sum = 1.0;
    let mut term = 1.0;
    for n in 1..12 {
        term *= y / f64::from(n);
        sum += term;
    }
    for _ in 0..halvings {
        sum *= sum;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_good_enough() {
        for x in [1.0f64, 1.5, 2.0, 3.0, 10.0, 1e4, 1e9] {
            assert!((ln(x) - x.ln()).abs() < 1e-5, "ln {x}");
        }
        for x in [0.0f64, 1.0, 3.3, 10.2, 20.0] {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-9, "exp {x}");
        }
    }

    #[test]
    fn backoff_lies_in_its_range_and_mostly_late() {
        let mut rng = fastrand::Rng::with_seed(1);
        let max = Duration::from_micros(400);
        let draws: std::vec::Vec<_> = (0..1000).map(|_| nak_backoff(&mut rng, max, 1000)).collect();
        assert!(draws.iter().all(|d| *d <= max));
        let late = draws.iter().filter(|d| **d > max / 2).count();
        assert!(late > 900, "{late}");
        assert_eq!(nak_backoff(&mut rng, max, SMALL_GROUP), Duration::ZERO);
        assert_ne!(nak_backoff(&mut rng, max, SMALL_GROUP + 1), Duration::ZERO);
    }

    /// R-RTT-1.
    #[test]
    fn the_estimate_follows_the_far_ones() {
        let mut rtt = GroupRtt::default();
        rtt.sample(Duration::from_micros(100));
        assert_eq!(rtt.get(), Duration::from_micros(100));
        rtt.sample(Duration::from_micros(300));
        assert_eq!(rtt.get(), Duration::from_micros(150));
        rtt.sample(Duration::ZERO);
        assert!(rtt.get() > Duration::from_micros(130));
        let before = rtt.get();
        rtt.sample(Duration::from_secs(3600));
        assert!(rtt.get() <= before * 3);
        for _ in 0..20 {
            rtt.sample(Duration::from_secs(3600));
        }
        assert!(rtt.get() > MAX_RTT * 9 / 10 && rtt.get() <= MAX_RTT);
    }
}
