//! When each member is looked at next.
//!
//! A group of a thousand renews a thousand members a second, and hardly ever is one silent. So hearing a
//! member only notes the time; each is looked at when it *would* be silent for too long had nothing come
//! since the last look, about once in three of its intervals. The members due in one tick form a list through
//! their entries: no memory beside them.

use super::roll::Entry;

/// The length of a tick in milliseconds.
pub(super) const TICK_MS: u64 = 50;

/// Ticks of one turn of the wheel. What is due later is looked at early, and put back.
const TICKS: usize = 512;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Wheel {
    heads: [u32; TICKS],
    /// The next tick that was not looked at.
    at: u64,
    /// No tick before this has anybody.
    empty_before: u64,
    members: usize,
}

impl Wheel {
    pub(super) fn new(now_ms: u64) -> Self {
        let at = now_ms / TICK_MS;
        Self { heads: [NONE; TICKS], at, empty_before: at, members: 0 }
    }

    /// Has a member looked at when `due_ms` is over.
    pub(super) fn add(&mut self, entries: &mut [Entry], slot: u32, due_ms: u64) {
        let tick = (due_ms / TICK_MS + 1).clamp(self.at, self.at + TICKS as u64 - 1);
        let head = &mut self.heads[tick as usize % TICKS];
        entries[slot as usize].next = *head;
        *head = slot;
        self.members += 1;
        self.empty_before = self.empty_before.min(tick);
    }

    /// The first member of the earliest tick that has begun by now, with those of the same tick behind it.
    /// Each has to be added again, or to be freed.
    pub(super) fn take(&mut self, now_ms: u64) -> Option<u32> {
        let tick = now_ms / TICK_MS;
        if self.at + TICKS as u64 <= tick {
            // It slept for more than a turn of the wheel: all are due, in the order of their ticks.
            self.at = tick + 1 - TICKS as u64;
        }
        self.at = self.at.max(self.empty_before.min(tick + 1));
        while self.at <= tick {
            let head = core::mem::replace(&mut self.heads[self.at as usize % TICKS], NONE);
            if head != NONE {
                return Some(head);
            }
            self.at += 1;
        }
        self.empty_before = self.empty_before.max(self.at);
        None
    }

    /// The member behind one that was taken.
    pub(super) fn behind(&mut self, entry: &Entry) -> Option<u32> {
        self.members -= 1;
        (entry.next != NONE).then_some(entry.next)
    }

    /// When the next member is due, in milliseconds.
    pub(super) fn next_ms(&self) -> Option<u64> {
        if self.members == 0 {
            return None;
        }
        let from = self.at.max(self.empty_before);
        let ticks = from..self.at + TICKS as u64;
        ticks.into_iter().find(|t| self.heads[*t as usize % TICKS] != NONE).map(|t| t * TICK_MS)
    }
}
