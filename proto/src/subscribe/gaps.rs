//! Missing frames: when a gap is a loss, when to ask, and when to give up.
//!
//! Requirements: `R-NAK-1` to `R-NAK-8`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
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
    /// Nothing is due before this: looking at every missing frame at every turn would be slow.
    soon: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Lack {
    found: Instant,
    due: Instant,
    /// The time between the last request and the next.
    pause: Duration,
    asks: u32,
    /// The NAK that it was last asked for in.
    nak: u64,
    /// Repairs that came though they were asked for after this frame.
    overtaken: u32,
    /// How often a request was put off because somebody else's was heard, since the last one.
    put_off: u32,
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

impl GroupTiming {
    /// Nobody else asks for what was lost here alone.
    fn backoff(&self, rng: &mut fastrand::Rng) -> Duration {
        nak_backoff(rng, self.rtt * BACKOFF_RTTS, if self.local { 1 } else { self.losers })
    }
}

/// A frame that was asked for this often and did not come is given up: with the delays doubling up to
/// [`MAX_RETRY`] that is some four seconds.
const MAX_ASKS: u32 = 40;

/// Frames that one repair can show to be asked for in vain: those that hold delivery up come first.
const MAX_OVERTAKEN: usize = 64;

/// Requests for a frame before their delay doubles: where every fifth datagram is lost, both ways, one
/// frame in a thousand is asked for as often, and all after it wait.
const STEADY_ASKS: u32 = 4;

/// The longest delay between two requests for a frame.
const MAX_RETRY: Duration = Duration::from_millis(100);

/// The shortest delay between two requests for a frame: a thread's wake-up on a busy host.
const MIN_RETRY: Duration = Duration::from_millis(1);

/// A request is put off at most so often for others' requests: a peer that never stops asking, or only
/// pretends to, keeps nobody from asking.
const MAX_PUT_OFF: u32 = 4;

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// The frames from `first` up to `end` were skipped. They count as lost after about a round trip, or
    /// once [`Gaps::confirm`] says that two later frames have come. A heartbeat shows the same gap to all
    /// at once, so the request waits for a back-off too (`R-NAK-2`).
    pub(crate) fn add(
        &mut self,
        now: Instant,
        first: Sequence,
        end: Sequence,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) {
        if first >= end {
            return;
        }
        let due = now + timing.rtt + timing.backoff(rng);
        self.note_due(due);
        let local = timing.local;
        let lack = Lack {
            found: now,
            due,
            pause: Duration::ZERO,
            asks: 0,
            nak: 0,
            overtaken: 0,
            put_off: 0,
            local,
        };
        for at in first.0..end.0 {
            self.missing.insert(Sequence(at), lack);
        }
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
        let mut cycle = None;
        for (_, lack) in self.missing.range_mut(from..end) {
            if lack.asks > 0 {
                continue;
            }
            lack.due = *cycle.get_or_insert_with(|| {
                // All gaps found during one back-off go in one NAK.
                if self.cycle <= now {
                    self.cycle = now + timing.backoff(rng);
                }
                self.cycle
            });
        }
        if let Some(due) = cycle {
            self.note_due(due);
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
    /// overtaken: after two such repairs the request or the repair was lost, and waiting longer is vain
    /// (`R-NAK-8`).
    fn overtake(&mut self, now: Instant, sequence: Sequence, nak: u64) {
        for (_, lack) in self.missing.range_mut(..sequence).take(MAX_OVERTAKEN) {
            if lack.asks == 0 || lack.nak > nak {
                continue;
            }
            lack.overtaken += 1;
            if lack.overtaken == 2 {
                lack.due = now;
                self.soon = self.soon.min(now);
            }
        }
    }

    /// Takes the missing frames before `end` out, lowest first: they are lost.
    pub(crate) fn lose_before(&mut self, end: Sequence) -> impl Iterator<Item = Sequence> {
        let keep = self.missing.split_off(&end);
        core::mem::replace(&mut self.missing, keep).into_keys()
    }

    /// Takes out, lowest first, what was asked for often enough, and with it what nearly was: one gap
    /// shall be one loss (`R-NAK-5`).
    pub(crate) fn give_up(&mut self, now: Instant) -> Vec<Sequence> {
        if now < self.soon {
            return Vec::new();
        }
        if !self.missing.values().any(|l| l.asks >= MAX_ASKS && l.due <= now) {
            return Vec::new();
        }
        let over = |l: &Lack| l.asks >= MAX_ASKS * 3 / 4;
        let lost: Vec<_> = self.missing.iter().filter(|(_, l)| over(l)).map(|(s, _)| *s).collect();
        for sequence in &lost {
            self.missing.remove(sequence);
        }
        lost
    }

    /// Somebody else asked the publisher for these frames: wait for that repair (`R-NAK-4`).
    pub(crate) fn suppress(&mut self, now: Instant, nak: &Nak, timing: GroupTiming) -> u64 {
        let until = now + timing.rtt * 2;
        let mut suppressed = 0;
        for (first, count) in nak.ranges() {
            let range = Sequence(first)..Sequence(first).plus(u64::from(count));
            for (_, lack) in self.missing.range_mut(range) {
                if lack.due < until && lack.put_off < MAX_PUT_OFF {
                    lack.due = until;
                    lack.put_off += 1;
                    suppressed += 1;
                }
            }
        }
        suppressed
    }

    /// The NAK that is due, if one is: everything that is missing and due by now. Ask until it is `None`.
    pub(crate) fn poll_nak(
        &mut self,
        now: Instant,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) -> Option<Nak> {
        if self.missing.is_empty() || now < self.soon {
            return None;
        }
        let due = |l: &Lack, by| l.due <= by && l.asks < MAX_ASKS;
        if !self.missing.values().any(|l| due(l, now)) {
            self.soon = self.missing.values().map(|l| l.due).min().unwrap_or(now);
            return None;
        }
        // What was asked for before, and would be again soon, travels in the same NAK.
        let listed = |l: &&Lack| due(l, now + l.pause / 4);
        let local = self.missing.values().filter(listed).all(|l| l.local);
        let listed = self.missing.iter().filter(|(_, l)| listed(l)).map(|(s, _)| s.0);
        let nak = Nak::of(listed, local)?;
        let backoff = nak_backoff(rng, timing.rtt * BACKOFF_RTTS, timing.receivers);
        let pause = timing.rtt * 3 + backoff + MIN_RETRY;
        self.naks += 1;
        for (first, count) in nak.ranges() {
            let range = Sequence(first)..Sequence(first).plus(u64::from(count));
            for (_, lack) in self.missing.range_mut(range) {
                lack.nak = self.naks;
                lack.overtaken = 0;
                let doublings = lack.asks.saturating_sub(STEADY_ASKS).min(6);
                lack.pause = (pause * (1 << doublings)).min(MAX_RETRY.max(pause));
                lack.due = now + lack.pause;
                lack.asks += 1;
                lack.put_off = 0;
            }
        }
        Some(nak)
    }

    /// Nothing is due before this.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.missing.is_empty()).then_some(self.soon)
    }

    /// Forgets all, and regards frames before `from` as settled.
    pub(crate) fn reset(&mut self, from: Sequence) {
        self.missing.clear();
        self.unconfirmed = from;
    }

    fn note_due(&mut self, due: Instant) {
        self.soon = if self.missing.is_empty() { due } else { self.soon.min(due) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: GroupTiming =
        GroupTiming { rtt: Duration::from_micros(100), losers: 1, receivers: 1, local: false };

    fn add(g: &mut Gaps, now: Instant, at: u64, timing: GroupTiming, rng: &mut fastrand::Rng) {
        g.add(now, Sequence(at), Sequence(at + 1), timing, rng);
    }

    fn asked(nak: Option<Nak>) -> Vec<u64> {
        nak.iter()
            .flat_map(|n| n.ranges().flat_map(|(s, c)| s..s + u64::from(c)).collect::<Vec<_>>())
            .collect()
    }

    /// Case 98, R-NAK-1: 1 comes before 0, and 0 within a round trip.
    #[test]
    fn a_swap_of_neighbours_is_no_loss() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        add(&mut g, Instant::ZERO, 0, TIMING, &mut rng);
        g.confirm(Instant::ZERO, Sequence(1), TIMING, &mut rng);
        assert_eq!(g.poll_nak(Instant::from_micros(99), TIMING, &mut rng), None);
        assert!(matches!(g.found(Instant::from_micros(99), Sequence(0)), Some((_, false))));
        assert_eq!(g.next_due(), None);
    }

    /// R-NAK-1.
    #[test]
    fn two_later_frames_or_a_round_trip_make_a_loss() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        add(&mut g, Instant::ZERO, 3, TIMING, &mut rng);
        add(&mut g, Instant::ZERO, 5, TIMING, &mut rng);
        g.confirm(Instant::ZERO, Sequence(6), TIMING, &mut rng);
        assert_eq!(asked(g.poll_nak(Instant::ZERO, TIMING, &mut rng)), [3]);
        assert_eq!(asked(g.poll_nak(Instant::ZERO, TIMING, &mut rng)), []);
        assert_eq!(g.next_due(), Some(Instant::from_micros(100)));
        assert_eq!(asked(g.poll_nak(Instant::from_micros(100), TIMING, &mut rng)), [5]);
    }

    /// Case 99, R-NAK-5.
    #[test]
    fn requests_are_repeated_ever_more_slowly_and_then_given_up() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        g.add(Instant::ZERO, Sequence(0), Sequence(2), TIMING, &mut rng);
        let mut asks = 0;
        let lost = loop {
            let now = g.next_due().unwrap();
            let lost = g.give_up(now);
            if !lost.is_empty() {
                assert!(now > Instant::from_millis(1000), "{now:?}");
                break lost;
            }
            asks += u32::from(g.poll_nak(now, TIMING, &mut rng).is_some());
        };
        assert_eq!((lost, asks), ([0, 1].map(Sequence).to_vec(), MAX_ASKS));
        assert!(g.is_empty());
    }

    /// R-NAK-2, R-NAK-4, R-NAK-6.
    #[test]
    fn in_a_group_the_request_waits_and_a_heard_one_suppresses_it() {
        let mut rng = fastrand::Rng::with_seed(7);
        let timing = GroupTiming { losers: 100, receivers: 100, ..TIMING };
        let mut g = Gaps::default();
        add(&mut g, Instant::ZERO, 0, timing, &mut rng);
        g.confirm(Instant::ZERO, Sequence(9), timing, &mut rng);
        let due = g.next_due().unwrap();
        assert!(due > Instant::ZERO && due <= Instant::from_micros(400));
        let heard = Nak::of([0].into_iter(), false).unwrap();
        assert_eq!(g.suppress(due, &heard, timing), 1);
        assert_eq!(g.poll_nak(due, timing, &mut rng), None);
        // A loss of one's own is asked for at once.
        let local = GroupTiming { local: true, ..timing };
        add(&mut g, due, 20, local, &mut rng);
        g.confirm(due, Sequence(30), local, &mut rng);
        assert!(g.poll_nak(due, timing, &mut rng).unwrap().local);
    }

    /// R-NAK-4: others' requests do not silence one for ever.
    #[test]
    fn endless_requests_of_others_put_off_only_so_often() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut g = Gaps::default();
        add(&mut g, Instant::ZERO, 0, TIMING, &mut rng);
        let heard = Nak::of([0].into_iter(), false).unwrap();
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            g.suppress(now, &heard, TIMING);
            now += TIMING.rtt;
        }
        assert!(g.poll_nak(now, TIMING, &mut rng).is_some());
    }

    /// R-NAK-2: all learn of a lost last frame from the same heartbeat.
    #[test]
    fn a_gap_that_all_see_at_once_is_not_asked_for_by_all_at_once() {
        let timing = GroupTiming { losers: 100, receivers: 100, ..TIMING };
        let mut dues: Vec<_> = (0..100)
            .map(|seed| {
                let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(seed));
                add(&mut g, Instant::ZERO, 0, timing, &mut rng);
                g.next_due().unwrap()
            })
            .collect();
        dues.sort();
        assert!(dues[0] >= Instant::ZERO + TIMING.rtt);
        let soon = dues.iter().filter(|d| d.saturating_since(dues[0]) < TIMING.rtt).count();
        assert!(soon < 30, "{soon}");
    }

    /// R-NAK-8.
    #[test]
    fn a_request_that_later_repairs_overtake_is_repeated_at_once() {
        let (mut g, mut rng) = (Gaps::default(), fastrand::Rng::with_seed(1));
        for s in [0, 10, 20] {
            add(&mut g, Instant::ZERO, s, TIMING, &mut rng);
        }
        g.confirm(Instant::ZERO, Sequence(30), TIMING, &mut rng);
        assert_eq!(asked(g.poll_nak(Instant::ZERO, TIMING, &mut rng)), [0, 10, 20]);
        assert_eq!(g.poll_nak(Instant::ZERO, TIMING, &mut rng), None);
        let now = Instant::from_micros(150);
        g.found(now, Sequence(10));
        assert_eq!(g.poll_nak(now, TIMING, &mut rng), None, "one may be reordered");
        g.found(now, Sequence(20));
        assert_eq!(asked(g.poll_nak(now, TIMING, &mut rng)), [0]);
    }
}
