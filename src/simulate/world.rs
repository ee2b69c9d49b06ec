//! The clock and the queue: which node has its turn when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use qcast_proto::time::{Duration, Instant};

use super::judge::Violations;
use super::member::{Member, NEVER};
use crate::device::sim::Fabric;

/// All nodes on one fabric, and when each has its next turn.
///
/// A node has a turn when its port has something for it or its deadline is due, and then is busy for a
/// while. It stands in the queue once at most: a deadline that has moved on meanwhile is looked at when
/// the old one comes up.
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) members: Vec<Member>,
    pub(super) now: Instant,
    pub(super) wrong: Violations,
    pub(super) turns: u64,
    /// Messages delivered.
    pub(super) delivered: u64,
    /// When the last of them was.
    pub(super) delivered_at: Instant,
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    ready: Vec<usize>,
    turn: Duration,
}

impl World {
    pub(super) fn new(fabric: Fabric, turn: Duration) -> Self {
        Self {
            fabric,
            members: Vec::new(),
            now: Instant::ZERO,
            wrong: Violations::default(),
            turns: 0,
            delivered: 0,
            delivered_at: Instant::ZERO,
            queue: BinaryHeap::new(),
            ready: Vec::new(),
            turn,
        }
    }

    /// Gives a member a turn as soon as it is free.
    pub(super) fn wake(&mut self, index: usize) {
        self.schedule(index, self.now);
    }

    /// Stops a member's process, or lets it go on.
    pub(super) fn set_paused(&mut self, index: usize, paused: bool) {
        self.members[index].paused = paused;
        if paused {
            self.fabric.pause(index);
        } else {
            self.fabric.resume(index);
            self.wake(index);
        }
    }

    /// When something happens next.
    pub(super) fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, index))) = self.queue.peek() {
            if self.members[index].queued == at {
                break;
            }
            self.queue.pop();
        }
        let turn = self.queue.peek().map(|Reverse((at, _))| *at);
        [turn, self.fabric.next_event()].into_iter().flatten().min()
    }

    /// Moves the clock to `to` and lets everything happen that is due: at the fabric first, then at
    /// the nodes it gave something to, then at those whose deadline it is.
    pub(super) fn step_to(&mut self, to: Instant) {
        self.now = self.now.max(to);
        let mut ready = std::mem::take(&mut self.ready);
        self.fabric.step_to(self.now, &mut ready);
        for index in ready.drain(..) {
            if self.members[index].free_at <= self.now {
                self.run(index);
            } else {
                self.schedule(index, self.now);
            }
        }
        self.ready = ready;
        while let Some(&Reverse((at, index))) = self.queue.peek()
            && at <= self.now
        {
            self.queue.pop();
            let member = &mut self.members[index];
            if member.queued != at {
                continue;
            }
            member.queued = NEVER;
            if member.due > self.now {
                let due = member.due;
                self.enqueue(index, due);
            } else {
                self.run(index);
            }
        }
    }

    fn run(&mut self, index: usize) {
        let member = &mut self.members[index];
        if member.paused {
            member.due = NEVER;
            return;
        }
        let delivered = member.turn(self.now, self.turn, &mut self.wrong);
        let due = member.due;
        self.turns += 1;
        if delivered > 0 {
            self.delivered += delivered;
            self.delivered_at = self.now;
        }
        self.enqueue(index, due);
    }

    fn schedule(&mut self, index: usize, at: Instant) {
        let member = &mut self.members[index];
        member.due = member.due.min(at).max(member.free_at);
        let due = member.due;
        self.enqueue(index, due);
    }

    fn enqueue(&mut self, index: usize, at: Instant) {
        let member = &mut self.members[index];
        if at < member.queued {
            member.queued = at;
            self.queue.push(Reverse((at, index)));
        }
    }
}
