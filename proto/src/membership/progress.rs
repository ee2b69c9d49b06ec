//! How far the members are, as they last said.
//!
//! Kept beside the roll, and only once a member has published or subscribed: most of a large group's observers cost
//! nothing. What a peer claims here is shown and nothing else.
//! Requirements: `R-MEMBER-22`.

use alloc::vec::Vec;

use super::roll::Slot;
use crate::time::Instant;
use crate::wire::member::Progress;

/// How far a member is with all that it publishes and subscribes to in a group, as it said itself. In frames: a
/// frame is a datagram, and small messages share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberProgress {
    /// Frames that its publishers sent.
    pub sent: u64,
    /// Frames that its subscribers received, each once.
    pub received: u64,
    /// Frames that they miss for good.
    pub lost: u64,
    /// Frames that were received and that the application has not taken yet, or that come behind a gap. One that
    /// keeps at this is what holds a publisher back.
    pub waiting: u64,
    /// When it said so, by this node's clock.
    pub at: Instant,
}

impl MemberProgress {
    pub(super) fn new(said: Progress, at: Instant) -> Self {
        let Progress { sent, received, lost, waiting } = said;
        Self { sent, received, lost, waiting, at }
    }
}

/// What was last said, by the member's place in the roll.
#[derive(Debug, Default)]
pub(super) struct Said(Vec<Option<(Progress, u32)>>);

impl Said {
    /// A member said so, in this node's milliseconds.
    pub(super) fn note(&mut self, slot: Slot, progress: Progress, ms: u32) {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some((progress, ms));
    }

    /// Another member has the place.
    pub(super) fn forget(&mut self, slot: Slot) {
        if let Some(said) = self.0.get_mut(slot as usize) {
            *said = None;
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<(Progress, u32)> {
        self.0.get(slot as usize).copied().flatten()
    }
}
