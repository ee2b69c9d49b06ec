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
    /// Of all receivers.
    share: f64,
    since: Instant,
    missing: u64,
    asked: u64,
}

/// Distinct frames that must have been asked for before a new estimate is made of them.
const SAMPLE: u64 = 8;

/// Fewer than this, on average, are one: nobody needs to wait for others.
const ALONE: f64 = 1.5;

/// From so many on a repair goes to the group at once.
const MANY: u32 = 3;

/// However few lose the same frame now, all may lose the next: with one in so many expected to, that
/// would be some hundred requests and not all of them.
const FLOOR: u32 = 512;

impl Company {
    /// Until something is known all may lose the same frame.
    pub(crate) fn new(now: Instant) -> Self {
        Self { share: 1.0, since: now, missing: 0, asked: 0 }
    }

    /// Subscribers have missed `missing` frames so far, all together, and have asked for `asked` distinct
    /// ones. Each has spoken within `round`.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        round: Duration,
        receivers: u32,
        missing: u64,
        asked: u64,
    ) {
        let frames = asked - self.asked;
        if frames < SAMPLE || now.saturating_since(self.since) < round * 2 || receivers == 0 {
            return;
        }
        let losers = (missing - self.missing) as f64 / frames as f64;
        let share = (losers / f64::from(receivers)).clamp(0.0, 1.0);
        // More company is believed at once, less of it slowly.
        self.share = share.max((self.share + share) / 2.0);
        (self.since, self.missing, self.asked) = (now, missing, asked);
    }

    /// How many of so many `receivers` to expect, 1 at least.
    pub(crate) fn losers(&self, receivers: u32) -> u32 {
        let mean = self.share * f64::from(receivers);
        let likely = if mean < ALONE { 1 } else { (mean * 2.0) as u32 };
        likely.max(receivers / FLOOR).clamp(1, receivers.max(1))
    }

    /// Whether a repair goes to the group without waiting for a second request.
    pub(crate) fn is_many(&self, receivers: u32) -> bool {
        (self.share * f64::from(receivers)) as u32 >= MANY
    }
}
