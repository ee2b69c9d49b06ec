//! How a group is left: publishers close, the other members are told, and what was said leaves the device.
//!
//! Each step waits for the one before, and the last two no longer than they are worth: whoever leaves a dead link must
//! get away from it too. Requirements: `R-MEMBER-4`.

use std::collections::BTreeMap;

use qcast_proto::node::GroupId;
use qcast_proto::time::{Duration, Instant};

use super::Engine;
use super::drain::Drain;

/// Groups that are being left, and how far that is.
pub(super) type Leaving = BTreeMap<GroupId, Step>;

/// How far a group is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its publishers are still closing.
    Closing,
    /// The other members are being told, until this time at the latest.
    Parting(Instant),
    /// What was said is leaving the queue, until this time at the latest.
    Draining(Instant),
}

/// A farewell that could not be said within this time is not said.
const FAREWELL: Duration = Duration::from_millis(250);

/// How long last words may take to leave the queue.
const DRAIN: Duration = Duration::from_millis(50);

impl Engine {
    /// Leaves a group, step by step.
    pub(crate) fn leave(&mut self, group: GroupId) {
        self.node.notice_leave(group);
        self.leaving.entry(group).or_insert(Step::Closing);
    }

    /// Takes the steps that are due.
    pub(super) fn leave_groups(&mut self, now: Instant) {
        let mut left = Vec::new();
        for (id, step) in &mut self.leaving {
            let Some(g) = self.groups.get_mut(id) else {
                left.push(*id);
                continue;
            };
            if *step == Step::Closing
                && self.publishers.values().all(|p| p.group != *id)
                && g.queue.is_empty()
            {
                self.node.part(now, *id);
                *step = Step::Parting(now + FAREWELL);
            }
            if let Step::Parting(deadline) = *step
                && (self.node.has_parted(*id) || g.attached.is_none() || deadline <= now)
            {
                g.drains += 1;
                g.drain = if g.drain == Drain::No { Drain::Draining } else { g.drain };
                *step = Step::Draining(now + DRAIN);
            }
            if let Step::Draining(deadline) = *step
                && (g.drain == Drain::Drained || g.attached.is_none() || deadline <= now)
            {
                left.push(*id);
            }
        }
        for id in left {
            self.leaving.remove(&id);
            self.leave_group(id);
        }
    }

    pub(super) fn next_leave(&self) -> Option<Instant> {
        let deadlines = self.leaving.values().filter_map(|step| match step {
            Step::Closing => None,
            Step::Parting(deadline) | Step::Draining(deadline) => Some(*deadline),
        });
        deadlines.min()
    }
}
