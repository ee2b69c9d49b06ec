//! When each member is looked at next.
//!
//! A group of a thousand renews a thousand members a second, and hardly ever is one silent. So hearing a
//! member only notes the time; each is looked at when it *would* be silent for too long had nothing come
//! since the last look, about once in three of its intervals. The members due in one tick are a list of small
//! batches, some four bytes for each member.

use alloc::vec::Vec;

use super::roll::Slot;

/// The length of a tick in milliseconds.
pub(super) const TICK_MS: u64 = 50;

/// Ticks of one turn of the wheel. What is due later is looked at early, and put back.
const TICKS: usize = 512;

/// Members of a batch: with them it is half a line of the processor's caches.
const BATCH: usize = 15;

/// Some members of a tick. A slot has 16 bits, and there are no more batches than slots.
#[derive(Debug)]
#[repr(align(32))]
struct Batch {
    slots: [u16; BATCH],
    /// The next batch of the same tick, which is full, or the next that is free.
    next: u16,
}

/// The members of a tick: all batches but the first are full.
#[derive(Clone, Copy, Debug)]
struct Tick {
    first: u16,
    /// Members of the first batch; none if there is no batch. It stands here so that adding a member has nothing to wait
    /// for.
    len: u16,
}

/// The end of a list.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct Wheel {
    ticks: [Tick; TICKS],
    batches: Vec<Batch>,
    free: u16,
    /// The next tick that was not looked at.
    at: u64,
    /// No tick before this has anybody.
    empty_before: u64,
    members: usize,
}

impl Wheel {
    pub(super) fn new(now_ms: u64) -> Self {
        let at = now_ms / TICK_MS;
        Self {
            ticks: [Tick { first: NONE, len: 0 }; TICKS],
            batches: Vec::new(),
            free: NONE,
            at,
            empty_before: at,
            members: 0,
        }
    }

    /// Has a member looked at when `due_ms` is over.
    pub(super) fn add(&mut self, slot: Slot, due_ms: u64) {
        let tick = (due_ms / TICK_MS + 1).clamp(self.at, self.at + TICKS as u64 - 1);
        self.members += 1;
        self.empty_before = self.empty_before.min(tick);
        let Tick { first, len } = self.ticks[tick as usize % TICKS];
        let (mut at, mut len) = (first, usize::from(len));
        if len == 0 || len == BATCH {
            (at, len) = (self.batch(first), 0);
        }
        self.batches[usize::from(at)].slots[len] = slot as u16;
        self.ticks[tick as usize % TICKS] = Tick { first: at, len: len as u16 + 1 };
    }

    /// An empty batch before this one.
    fn batch(&mut self, next: u16) -> u16 {
        if let Some(free) = self.batches.get_mut(usize::from(self.free)) {
            let behind = core::mem::replace(&mut free.next, next);
            return core::mem::replace(&mut self.free, behind);
        }
        if self.batches.len() == self.batches.capacity() {
            // By an eighth, not by the double: there may be ten thousand wheels in a simulation.
            self.batches.reserve_exact(self.batches.len() / 8 + 1);
        }
        self.batches.push(Batch { slots: [0; BATCH], next });
        (self.batches.len() - 1) as u16
    }

    /// Moves the members of the earliest tick that has begun by now to `due`, and says whether there was any.
    /// Each has to be added again, or to be freed.
    pub(super) fn take(&mut self, now_ms: u64, due: &mut Vec<Slot>) -> bool {
        let tick = now_ms / TICK_MS;
        if self.at + TICKS as u64 <= tick {
            // It slept for more than a turn of the wheel: all are due, in the order of their ticks.
            self.at = tick + 1 - TICKS as u64;
        }
        self.at = self.at.max(self.empty_before.min(tick + 1));
        while self.at <= tick {
            let none = Tick { first: NONE, len: 0 };
            let members = core::mem::replace(&mut self.ticks[self.at as usize % TICKS], none);
            if members.len > 0 {
                self.empty(members, due);
                return true;
            }
            self.at += 1;
        }
        self.empty_before = self.empty_before.max(self.at);
        false
    }

    /// Moves the members of a tick to `due`; its batches are free then.
    fn empty(&mut self, tick: Tick, due: &mut Vec<Slot>) {
        let (mut at, mut len) = (tick.first, usize::from(tick.len));
        while let Some(batch) = self.batches.get_mut(usize::from(at)) {
            due.extend(batch.slots[..len].iter().map(|slot| Slot::from(*slot)));
            self.members -= len;
            let next = core::mem::replace(&mut batch.next, self.free);
            self.free = at;
            (at, len) = (next, BATCH);
        }
    }

    /// When the next member is due, in milliseconds.
    pub(super) fn next_ms(&self) -> Option<u64> {
        if self.members == 0 {
            return None;
        }
        let from = self.at.max(self.empty_before);
        let ticks = from..self.at + TICKS as u64;
        ticks.into_iter().find(|t| self.ticks[*t as usize % TICKS].len > 0).map(|t| t * TICK_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    /// The wheel against a map, with seeds: nobody is looked at before the time, nor is anybody forgotten; and the
    /// memory that was used is used again.
    #[test]
    fn all_are_looked_at_when_they_are_due() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut wheel, mut map) = (Wheel::new(0), BTreeMap::new());
            let mut now = 0;
            for slot in 0..1000 {
                let due = rng.u64(..20_000);
                wheel.add(slot, due);
                map.insert(slot, due);
            }
            for _ in 0..500 {
                now += rng.u64(..200);
                let mut due = Vec::new();
                while wheel.take(now, &mut due) {}
                due.sort_unstable();
                let is_due = |at: u64| (at / TICK_MS + 1) * TICK_MS <= now;
                let expected: Vec<Slot> =
                    map.iter().filter(|(_, at)| is_due(**at)).map(|(slot, _)| *slot).collect();
                assert_eq!(due, expected, "seed {seed}");
                for slot in due {
                    map.remove(&slot);
                    if rng.u8(..8) > 0 {
                        let due = now + rng.u64(..20_000);
                        wheel.add(slot, due);
                        map.insert(slot, due);
                    }
                }
                assert_eq!(wheel.members, map.len(), "seed {seed}");
                let first = map.values().map(|at| (at / TICK_MS + 1) * TICK_MS).min();
                assert_eq!(wheel.next_ms(), first, "seed {seed}");
            }
            let most = 1000 / BATCH + TICKS;
            assert!(wheel.batches.len() <= most, "seed {seed}: {}", wheel.batches.len());
        }
    }
}
