//! Missing frames: when a gap is a loss, when to ask, and when to give up.
//!
//! Requirements: `R-NAK-1` to `R-NAK-6`.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::addr::Sequence;
use crate::rtt::{BACKOFF_RTTS, nak_backoff};
use crate::time::Instant;
use crate::wire::control::Nak;

/// The missing frames of one stream.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    missing: BTreeMap<Sequence, Lack>,
    /// Missing frames at or after this have not been followed by two later ones.
    unconfirmed: Sequence,
    /// The NAK that gaps found now will travel in.
    cycle: Instant,
    /// NAKs sent so far.
    naks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lack {
    found: Instant,
    due: Instant,
    asks: u32,
    /// The NAK that it was last asked for in.
    nak: u64,
    /// Repairs that came though they were asked for after this frame.
    overtaken: u32,
    local: bool,
}

/// What gap handling needs to know of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupTiming {
    pub(crate) rtt: Duration,
    /// Subscribers that are likely to have lost the same frame.
    pub(crate) losers: u32,
    /// Subscribers that may have.
    pub(crate) receivers: u32,
    /// Whether this node's own receive queue overflowed just now.
    pub(crate) local: bool,
}

/// A frame that was asked for this often and did not come is given up: with the delays doubling up to
/// [`MAX_RETRY`] that is some four seconds.
const MAX_ASKS: u32 = 40;

/// Frames that one repair can show to be asked for in vain: those that hold delivery up come first.
const MAX_OVERTAKEN: usize = 64;

/// The longest delay between two requests for a frame.
const MAX_RETRY: Duration = Duration::from_millis(100);

/// The shortest delay between two requests for a frame: a thread's wake-up on a busy host.
const MIN_RETRY: Duration = Duration::from_millis(1);

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// A frame was skipped. It counts as lost after about a round trip, or once
    /// [`Gaps::confirm`] says that two later frames have come.
    pub(crate) fn add(&mut self, now: Instant, sequence: Sequence, timing: GroupTiming) {
        let due = now + timing.rtt;
        let local = timing.local;
        let lack = Lack { found: now, due, asks: 0, nak: 0, overtaken: 0, local };
        self.missing.insert(sequence, lack);
    }

    /// `latest` has come, so frames two before it and earlier are lost: ask after a back-off.
    pub(crate) fn confirm(
        &mut self,
        now: Instant,
        latest: Sequence,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) {
        let end = Sequence(latest.0.saturating_sub(1));
        if end <= self.unconfirmed {
            return;
        }
        let from = core::mem::replace(&mut self.unconfirmed, end);
        let mut due = None;
        for (_, lack) in self.missing.range_mut(from..end) {
            if lack.asks > 0 {
                continue;
            }
            let due = *due.get_or_insert_with(|| {
                // All gaps found during one back-off go in one NAK.
                if self.cycle <= now {
                    let group = if timing.local { 1 } else { timing.losers };
                    self.cycle = now + nak_backoff(rng, timing.rtt * BACKOFF_RTTS, group);
                }
                self.cycle
            });
            lack.due = due;
        }
    }

    /// A missing frame has come. Gives how long it had been missing, and whether it had been asked for.
    pub(crate) fn found(&mut self, now: Instant, sequence: Sequence) -> Option<(Duration, bool)> {
        let lack = self.missing.remove(&sequence)?;
        if lack.asks > 0 {
            self.overtake(now, sequence, lack.nak);
        }
        Some((now.saturating_since(lack.found), lack.asks > 0))
    }

    /// A repair has come. Repairs are sent lowest first, so those that were asked for before it are
    /// overtaken: after two such repairs the request or the repair was lost, and waiting longer is vain.
    fn overtake(&mut self, now: Instant, sequence: Sequence, nak: u64) {
        for (_, lack) in self.missing.range_mut(..sequence).take(MAX_OVERTAKEN) {
            if lack.asks == 0 || lack.nak > nak {
                continue;
            }
            lack.overtaken += 1;
            if lack.overtaken == 2 {
                lack.due = now;
            }
        }
    }

    /// Takes the missing frames before `end` out, lowest first: they are lost.
    pub(crate) fn lose_before(&mut self, end: Sequence) -> impl Iterator<Item = Sequence> {
        let keep = self.missing.split_off(&end);
        core::mem::replace(&mut self.missing, keep).into_keys()
    }

    /// Takes one frame out that was asked for often enough.
    pub(crate) fn give_up(&mut self, now: Instant) -> Option<Sequence> {
        let sequence = *self
            .missing
            .iter()
            .find(|(_, l)| l.asks >= MAX_ASKS && l.due <= now)
            .map(|(s, _)| s)?;
        self.missing.remove(&sequence);
        Some(sequence)
    }

    /// Somebody else asked for these frames: wait for that repair.
    pub(crate) fn suppress(&mut self, now: Instant, nak: &Nak, timing: GroupTiming) -> u64 {
        let until = now + timing.rtt * 2;
        let mut suppressed = 0;
        for (first, count) in nak.ranges() {
            let range = Sequence(first)..Sequence(first).plus(u64::from(count));
            for (_, lack) in self.missing.range_mut(range) {
                if lack.due < until {
                    lack.due = until;
                    suppressed += 1;
                }
            }
        }
        suppressed
    }

    /// The NAK that is due, if one is: everything that is missing and due by now.
    pub(crate) fn poll_nak(
        &mut self,
        now: Instant,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) -> Option<Nak> {
        let due = |l: &Lack| l.due <= now && l.asks < MAX_ASKS;
        let local = self.missing.values().filter(|l| due(l)).all(|l| l.local);
        let listed = self.missing.iter().filter(|(_, l)| due(l)).map(|(s, _)| s.0);
        let nak = Nak::of(listed, local)?;
        let pause = timing.rtt * 3
            + nak_backoff(rng, timing.rtt * BACKOFF_RTTS, timing.receivers)
            + MIN_RETRY;
        self.naks += 1;
        for (first, count) in nak.ranges() {
            let range = Sequence(first)..Sequence(first).plus(u64::from(count));
            for (_, lack) in self.missing.range_mut(range) {
                lack.nak = self.naks;
                lack.overtaken = 0;
                lack.due = now + (pause * (1 << lack.asks.min(6))).min(MAX_RETRY.max(pause));
                lack.asks += 1;
            }
        }
        Some(nak)
    }

    /// When the next NAK is due, or a frame is to be given up.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.missing.values().map(|l| l.due).min()
    }

    /// Forgets all, and regards frames before `from` as settled.
    pub(crate) fn reset(&mut self, from: Sequence) {
        self.missing.clear();
        self.unconfirmed = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const TIMING: GroupTiming =
        GroupTiming { rtt: Duration::from_micros(100), losers: 1, receivers: 1, local: false };

    fn asked(nak: Option<Nak>) -> Vec<u64> {
        nak.iter()
            .flat_map(|n| n.ranges().flat_map(|(s, c)| s..s + u64::from(c)).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn a_swap_of_neighbours_is_no_loss() {
        // Case 98: 1 comes before 0, and 0 within a round trip.
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        g.add(Instant::ZERO, Sequence(0), TIMING);
        g.confirm(Instant::ZERO, Sequence(1), TIMING, &mut rng);
        assert_eq!(g.poll_nak(Instant::from_micros(99), TIMING, &mut rng), None);
        assert!(matches!(g.found(Instant::from_micros(99), Sequence(0)), Some((_, false))));
        assert_eq!(g.next_due(), None);
    }

    #[test]
    fn two_later_frames_or_a_round_trip_make_a_loss() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        g.add(Instant::ZERO, Sequence(3), TIMING);
        g.add(Instant::ZERO, Sequence(5), TIMING);
        g.confirm(Instant::ZERO, Sequence(6), TIMING, &mut rng);
        assert_eq!(asked(g.poll_nak(Instant::ZERO, TIMING, &mut rng)), [3]);
        assert_eq!(asked(g.poll_nak(Instant::from_micros(100), TIMING, &mut rng)), [5]);
    }

    #[test]
    fn requests_are_repeated_ever_more_slowly_and_then_given_up() {
        // Case 99.
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        g.add(Instant::ZERO, Sequence(0), TIMING);
        let mut asks = 0;
        let lost = loop {
            let now = g.next_due().unwrap();
            if let Some(lost) = g.give_up(now) {
                assert!(now > Instant::from_millis(1000), "{now:?}");
                break lost;
            }
            asks += u32::from(g.poll_nak(now, TIMING, &mut rng).is_some());
        };
        assert_eq!((lost, asks), (Sequence(0), MAX_ASKS));
    }

    #[test]
    fn a_request_that_later_repairs_overtake_is_repeated_at_once() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        for s in [0, 10, 20] {
            g.add(Instant::ZERO, Sequence(s), TIMING);
        }
        g.confirm(Instant::ZERO, Sequence(30), TIMING, &mut rng);
        assert_eq!(asked(g.poll_nak(Instant::ZERO, TIMING, &mut rng)), [0, 10, 20]);
        let now = Instant::from_micros(150);
        g.found(now, Sequence(10));
        assert_eq!(g.poll_nak(now, TIMING, &mut rng), None, "one may be reordered");
        g.found(now, Sequence(20));
        assert_eq!(asked(g.poll_nak(now, TIMING, &mut rng)), [0]);
    }

    #[test]
    fn in_a_group_the_request_waits_and_a_heard_one_suppresses_it() {
        let mut rng = fastrand::Rng::with_seed(7);
        let timing = GroupTiming { losers: 100, receivers: 100, ..TIMING };
        let mut g = Gaps::default();
        g.add(Instant::ZERO, Sequence(0), timing);
        g.confirm(Instant::ZERO, Sequence(9), timing, &mut rng);
        let due = g.next_due().unwrap();
        assert!(due > Instant::ZERO && due <= Instant::from_micros(400));
        let heard = Nak::of([0].into_iter(), false).unwrap();
        assert_eq!(g.suppress(due, &heard, timing), 1);
        assert_eq!(g.poll_nak(due, timing, &mut rng), None);
        // A loss of one's own is asked for at once.
        g.add(due, Sequence(20), GroupTiming { local: true, ..timing });
        g.confirm(due, Sequence(30), GroupTiming { local: true, ..timing }, &mut rng);
        assert!(g.poll_nak(due, timing, &mut rng).unwrap().local);
    }
}
