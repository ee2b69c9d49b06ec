//! What a node keeps of each member, and how it lies in memory.
//!
//! Hearing a member again is most of what a node does in a large group, and each time another member's entry is looked
//! at that the processor has not seen for long. So an entry is half a line of the processor's caches and never lies
//! across two; entries lie in blocks that stay where they are, for a roll that grows to thousands is not to be
//! copied again and again.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::{MemberInfo, MemberState};

/// A member, small.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Entry {
    pub(super) info: Arc<MemberInfo>,
    /// Its clock when it last spoke.
    pub(super) at: u64,
    /// When it was last heard, and last heard through the group, in this node's milliseconds.
    pub(super) heard: u32,
    pub(super) heard_in_group: u32,
    pub(super) proof: Proof,
    /// How long it promised to be silent at most.
    pub(super) interval_ms: u16,
    /// `None` if it is no member any more, and waits for the wheel to bring its place back.
    pub(super) state: Option<MemberState>,
    /// Probes since it was last heard.
    pub(super) tries: u8,
}

impl Entry {
    pub(super) fn is_live(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.state == Some(MemberState::Suspect)
    }
}

/// Whether a member ever answered: how long its last answer took, or how often it was asked in vain since it joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proof(u32);

/// Set in a [`Proof`] that is an answer.
const ANSWERED: u32 = 1 << 31;

impl Proof {
    /// It was not asked yet.
    pub(super) const NONE: Self = Self(0);

    /// It answered after so many microseconds.
    pub(super) fn answer(rtt_us: u32) -> Self {
        Self(ANSWERED | rtt_us.min(ANSWERED - 1))
    }

    /// How long its last answer took in microseconds, if it ever answered.
    pub(super) fn rtt_us(self) -> Option<u32> {
        (self.0 & ANSWERED != 0).then_some(self.0 & !ANSWERED)
    }

    /// How often it was asked in vain, if it never answered.
    pub(super) fn in_vain(self) -> Option<u32> {
        (self.0 & ANSWERED == 0).then_some(self.0)
    }

    /// It was asked in vain once more.
    pub(super) fn ask_again(&mut self) {
        if let Some(times) = self.in_vain() {
            self.0 = (times + 1).min(ANSWERED - 1);
        }
    }
}

/// The entries of a roll, by their slots.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// All but the last are full.
    blocks: Vec<Vec<Entry>>,
}

/// Entries of a block: a power of two.
const BLOCK: usize = 1024;

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Entry> {
        self.blocks.get(slot / BLOCK)?.get(slot % BLOCK)
    }

    pub(super) fn push(&mut self, entry: Entry) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(entry),
            _ => {
                // There may be ten thousand rolls in a simulation: none has more room than it needs.
                self.blocks.reserve_exact(1);
                self.blocks.push(alloc::vec![entry]);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.blocks.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.blocks.iter_mut().flatten()
    }
}

impl Index<usize> for Entries {
    type Output = Entry;

    fn index(&self, slot: usize) -> &Entry {
        &self.blocks[slot / BLOCK][slot % BLOCK]
    }
}

impl IndexMut<usize> for Entries {
    fn index_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.blocks[slot / BLOCK][slot % BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-MEMBER-15.
    #[test]
    fn an_entry_is_half_a_line_of_the_caches() {
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (32, 32));
    }

    #[test]
    fn a_proof_is_an_answer_or_the_questions_before_it() {
        let mut proof = Proof::NONE;
        assert_eq!((proof.rtt_us(), proof.in_vain()), (None, Some(0)));
        proof.ask_again();
        assert_eq!((proof.rtt_us(), proof.in_vain()), (None, Some(1)));
        proof = Proof::answer(7);
        proof.ask_again();
        assert_eq!((proof.rtt_us(), proof.in_vain()), (Some(7), None));
        assert_eq!(Proof::answer(u32::MAX).rtt_us(), Some(ANSWERED - 1));
        assert_eq!(Proof::answer(0).rtt_us(), Some(0));
    }
}
