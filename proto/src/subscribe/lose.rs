//! Frames that will not come: what is given up, why, and what subscriptions are told of it.
//!
//! Requirements: `R-LOSS-1`, `R-LOSS-2`, `R-DELIVER-3`, `R-DELIVER-5`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::attachment::Run;
use super::gaps::GroupTiming;
use super::stream::{ReceiveStream, Slot};
use super::{LossCause, Reliability};
use crate::addr::Sequence;
use crate::buf::RxFrame;
use crate::node::Event;
use crate::time::Instant;

/// Frames that fell out of the publisher's window so often in a row show that repairs are too slow for
/// it: then the oldest ones are let go to reach the live edge.
const MAX_FALLS: u32 = 4;

/// The most frames of a last message that are asked for, of those that a header claims: the largest
/// message at the path MTU of 1024.
const MAX_CATCH: usize = 1 << 15;

impl<R: RxFrame> ReceiveStream<R> {
    pub(super) fn tell_lost(
        &mut self,
        run: Option<Run>,
        to: Reliability,
        out: &mut VecDeque<Event<R>>,
    ) {
        let Some(run) = run else { return };
        for a in self.attached.iter_mut().filter(|a| a.reliability == to) {
            a.tell_lost(self.key, run, out);
        }
    }

    /// The publisher no longer retains frames before `oldest`.
    /// Requirements: `R-LOSS-2`.
    pub(super) fn lose_unretained(
        &mut self,
        now: Instant,
        oldest: Sequence,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        let before = self.stats.lost;
        self.lose_before(oldest, LossCause::NotRetained, out);
        let half = self.capacity as u64 / 2;
        if self.end.since(self.next) <= half {
            self.fell_behind = 0;
        } else if self.stats.lost > before {
            self.fell_behind += 1;
            if self.fell_behind >= MAX_FALLS {
                self.fell_behind = 0;
                self.lose_before(Sequence(self.end.0 - half), LossCause::Overrun, out);
            }
        }
        self.extend(now, self.end, timing, rng);
    }

    /// Gives up every missing frame before `end`, heard of or not.
    pub(super) fn lose_before(
        &mut self,
        end: Sequence,
        cause: LossCause,
        out: &mut VecDeque<Event<R>>,
    ) {
        let lost: Vec<Sequence> = self.gaps.lose_before(end).collect();
        if !self.repairs_wanted {
            if !lost.is_empty() {
                self.caught = self.end;
            }
            return;
        }
        let mut unordered = self.mark_lost(&lost, cause, out);
        let mut ordered = self.advance_to_gap(out);
        let known = self.known();
        if end > known {
            // All that had a slot was before `end`, so the ring is empty.
            let unheard = Run { first: known, last: Sequence(end.0 - 1), cause };
            let count = end.since(known);
            self.stats.missing = self.stats.missing.saturating_add(count);
            self.stats.lost = self.stats.lost.saturating_add(count);
            for a in &mut self.attached {
                a.lose(unheard.first, unheard.last);
            }
            let before = Run::merge(&mut unordered, unheard);
            self.tell_lost(before, Reliability::Unordered, out);
            let before = Run::merge(&mut ordered, unheard);
            self.tell_lost(before, Reliability::Ordered, out);
            self.next = end;
            self.ring.clear();
            self.end = self.end.max(end);
            self.gaps.reset(end);
        }
        self.tell_lost(unordered, Reliability::Unordered, out);
        self.tell_lost(ordered, Reliability::Ordered, out);
    }

    /// Gives up what was asked for often enough.
    pub(super) fn give_up(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        let lost = self.gaps.give_up(now);
        if lost.is_empty() {
            return;
        }
        if !self.repairs_wanted {
            self.caught = self.end;
            return;
        }
        let run = self.mark_lost(&lost, LossCause::Unrepaired, out);
        self.tell_lost(run, Reliability::Unordered, out);
        self.advance(out);
    }

    /// Marks frames of the ring, given in rising order, as lost. Tells unordered subscriptions of all
    /// runs but the last, which it gives back.
    fn mark_lost(
        &mut self,
        lost: &[Sequence],
        cause: LossCause,
        out: &mut VecDeque<Event<R>>,
    ) -> Option<Run> {
        let mut run = None;
        for at in lost {
            self.stats.lost = self.stats.lost.saturating_add(1);
            if *at >= self.next
                && let Some(slot) = self.ring.get_mut(at.since(self.next) as usize)
            {
                *slot = Slot::Lost(cause);
            }
            for a in &mut self.attached {
                a.lose(*at, *at);
            }
            let before = Run::merge(&mut run, Run::of(*at, cause));
            self.tell_lost(before, Reliability::Unordered, out);
        }
        run
    }

    /// Tells best-effort subscriptions what they missed at the end of the stream.
    pub(super) fn report_tail(&mut self, end: Sequence, out: &mut VecDeque<Event<R>>) {
        for a in &mut self.attached {
            if a.reliability == Reliability::BestEffort && !a.waits {
                a.skip_to(self.key, end, LossCause::Fabric, out);
            }
        }
    }

    /// Asks for what a latest-only subscription lacks of the last message: the newest value must not stay
    /// lost on a quiet stream (`R-DELIVER-5`). Nothing before `oldest` is retained.
    pub(super) fn catch_latest(
        &mut self,
        now: Instant,
        oldest: Sequence,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) {
        let Some(newest) = self.end.0.checked_sub(1).map(Sequence) else { return };
        if !self.gaps.is_empty() || self.caught >= self.end {
            return;
        }
        let latest = self.attached.iter().filter(|a| a.reliability == Reliability::Latest);
        let mut lacks: Vec<Sequence> = latest
            .filter(|a| !a.waits)
            .flat_map(|a| a.lacks_of_newest(newest, MAX_CATCH))
            .collect();
        lacks.sort_unstable();
        let too_many = lacks.len() > MAX_CATCH;
        if too_many || lacks.first().is_none_or(|first| *first < oldest) {
            self.caught = self.end;
            return;
        }
        self.next = self.next.max(self.end);
        self.gaps.reset(lacks[0]);
        for at in lacks {
            self.gaps.add(now, at, at.next(), timing, rng);
        }
    }
}
