//! How many subscribers lose the same frame.
//!
//! Requests are spread so that of many losers few ask before the repair is there. Spread for the whole
//! group, requests of the ten that lost a frame among ten thousand all come late, and all together; spread for
//! ten, they come early and few. Subscribers say how much they miss and requests say which
//! frames: the ratio is the number that matters.

use core::time::Duration;

use crate::time::Instant;

/// The publisher's estimate of how many lose the same frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Company {
    /// Of all receivers, once it is known.
    share: Option<f64>,
    missing: u64,
    asked: u64,
    /// When the subscribers will have told what they miss of the frames asked for so far, and how many
    /// those are.
    ripe: Option<(Instant, u64)>,
}

/// Distinct frames that must have been asked for before an estimate is made of them.
const SAMPLE: u64 = 8;

/// Fewer than this, on average, are one: nobody needs to wait for others.
const ALONE: f64 = 1.5;

/// From so many on a repair goes to the group at once.
const MANY: f64 = 3.0;

/// However few lose the same frame now, all may lose the next: with one in so many expected to, a few in a
/// hundred of them ask, and not all.
const FLOOR: u32 = 512;

/// Of groups larger than this not all are expected to lose the first frame that is lost.
const SMALL: u32 = 128;

impl Company {
    pub(crate) fn new() -> Self {
        Self { share: None, missing: 0, asked: 0, ripe: None }
    }

    /// Subscribers have missed `missing` frames so far, all together, and have asked for `asked` distinct
    /// ones. Each speaks once in `round` at least: requests come first, and an estimate that does not wait
    /// for all would take a loss of all for one of few.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        round: Duration,
        receivers: u32,
        missing: u64,
        asked: u64,
    ) {
        let Some((at, frames)) = self.ripe else {
            let frames = asked - self.asked;
            self.ripe = (frames >= SAMPLE).then(|| (now + round * 2, frames));
            return;
        };
        if now < at || receivers == 0 {
            return;
        }
        let losers = (missing - self.missing) as f64 / frames as f64;
        let share = (losers / f64::from(receivers)).clamp(0.0, 1.0);
        // More company is believed at once, less of it by the number of frames that tell.
        let weight = frames as f64 / (frames + SAMPLE) as f64;
        let kept = self.share.map_or(share, |old| old + (share - old) * weight);
        self.share = Some(share.max(kept));
        (self.missing, self.asked, self.ripe) = (missing, asked, None);
    }

    /// How many of so many `receivers` to expect, 1 at least.
    pub(crate) fn losers(&self, receivers: u32) -> u32 {
        let likely = match self.share {
            None => receivers.min(SMALL).max(receivers.isqrt()),
            Some(share) => {
                let mean = share * f64::from(receivers);
                if mean < ALONE { 1 } else { (mean * 2.0) as u32 }
            }
        };
        likely.max(receivers / FLOOR).clamp(1, receivers.max(1))
    }

    /// Whether a repair goes to the group without waiting for a second request.
    pub(crate) fn is_many(&self, receivers: u32) -> bool {
        match self.share {
            // To take a loss for a shared one costs a repair that nobody else needs; to take a shared one
            // for another's own, as many requests as come in a round trip.
            None => receivers > crate::rtt::SMALL_GROUP,
            Some(share) => share * f64::from(receivers) >= MANY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(250);

    fn after(receivers: u32, missing: u64, asked: u64) -> Company {
        let mut company = Company::new();
        // Requests come before the statuses that tell how many miss a frame.
        company.observe(Instant::ZERO, ROUND, receivers, 1, asked);
        company.observe(Instant::from_millis(499), ROUND, receivers, missing / 2, asked);
        company.observe(Instant::from_millis(500), ROUND, receivers, missing, asked);
        company
    }

    /// R-REPAIR-5.
    #[test]
    fn losses_of_few_and_losses_of_all_are_told_apart() {
        for (receivers, missing, asked, losers, many) in [
            (10_000, 10_000, 1000, 20, true),
            (10_000, 10_000, 1, 128, true),
            (100, 10_000, 1, 100, true),
            (10_000, 10_000_000, 1000, 10_000, true),
            (10_000, 1000, 1000, 19, false),
            (3, 1050, 1000, 1, false),
            (3, 3000, 1000, 3, true),
            (1, 10, 10, 1, false),
            (0, 10, 10, 1, false),
        ] {
            let company = after(receivers, missing, asked);
            let told = (company.losers(receivers), company.is_many(receivers));
            assert_eq!(told, (losers, many), "{missing} of {receivers} in {asked} frames");
        }
    }

    /// R-REPAIR-5.
    #[test]
    fn more_company_is_believed_at_once() {
        let mut company = after(1000, 1000, 1000);
        assert_eq!(company.losers(1000), 1);
        let mut observe = |ms, missing, asked| {
            company.observe(Instant::from_millis(ms), ROUND, 1000, missing, asked);
            company.losers(1000)
        };
        observe(1000, 1000, 1008);
        assert_eq!(observe(1500, 1000 + 8 * 1000, 1008), 1000);
        observe(1500, 9000, 1016);
        assert!((500..1010).contains(&observe(2000, 9008, 1016)));
        // Too soon, and too few.
        observe(2100, 9100, 1200);
        assert!(observe(2200, 9100, 1200) >= 500);
        assert!(observe(9000, 200_000, 1020) >= 500);
    }
}
