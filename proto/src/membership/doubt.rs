//! Members that are silent, and a node's doubts about its own hearing.
//!
//! All spans are multiples of the interval that the member itself promised: nobody needs to know how large the
//! group is where the other sits.

use alloc::vec::Vec;
use core::time::Duration;

use super::departed::End;
use super::hear::MAX_UNHEARD_BY;
use super::roll::Slot;
use super::state::Sign;
use super::{Heard, MemberInfo, Membership};
use crate::time::Instant;

/// Hundredths of a promised interval after which a silent member is asked quietly, and after which it is
/// suspected. Beacons come after 0.8 to 1 of an interval: two lost in a row hardly ever reach the
/// first, three always do.
const QUIET: u32 = 285;
const SUSPECT: u32 = 305;

/// Intervals after which a member that answers counts as not heard through the group: six beacons lost in a row.
const UNHEARD: u32 = 6;

/// The time between two questions before, and while, a member is suspected.
const QUIET_PAUSE_MS: u64 = 100;
const SUSPECT_PAUSE_MS: core::ops::RangeInclusive<u64> = 150..=200;

/// A suspect fails only after so many questions: time alone proves nothing if this node could not ask.
const MIN_TRIES: u8 = 6;

/// Questions to a member that never answered, and the time between them.
const PROOFS: u32 = 8;
const PROOF_PAUSE_MS: u64 = 400;

/// In larger groups members are not asked for a proof of life: it would be N² questions.
const PROOF_GROUP: usize = 1024;

/// This node asks for another join at most so often.
const REJOIN_PAUSE: Duration = Duration::from_secs(30);

/// Milliseconds without a word through the group after which a member is not heard there.
pub(super) fn unheard_after(interval_ms: u16) -> u32 {
    u32::from(interval_ms) * UNHEARD
}

impl Membership {
    /// Looks at those that are due.
    pub(super) fn look_around(
        &mut self,
        now: Instant,
        signs: &mut dyn FnMut(&MemberInfo) -> Option<Heard>,
    ) {
        let ms = self.ms(now);
        let mut due = Vec::new();
        while self.wheel.take(ms, &mut due) {
            self.roll.fetch(due.iter().copied());
            for slot in due.drain(..) {
                match self.look(now, slot, signs) {
                    Some(due) => self.wheel.add(slot, due),
                    None => self.roll.free(slot),
                }
            }
        }
    }

    /// Looks at one, and says when to look again; `None` if it is no member any more.
    /// Requirements: `R-MEMBER-8`, `R-MEMBER-9`, `R-MEMBER-11`.
    fn look(
        &mut self,
        now: Instant,
        slot: Slot,
        signs: &mut dyn FnMut(&MemberInfo) -> Option<Heard>,
    ) -> Option<u64> {
        let ms = self.ms(now);
        let now_ms = ms as u32;
        let quiet_after = |interval_ms: u16| u32::from(interval_ms) * QUIET / 100;
        let mut e = self.roll.live(slot)?;
        if now_ms.wrapping_sub(e.heard) >= quiet_after(e.interval_ms)
            && let Some(heard) = signs(&e.info.clone())
        {
            // Both in whole milliseconds: a sign that is known already must not look newer by a part of one.
            let newer = (self.ms(heard.at) as u32).wrapping_sub(e.heard);
            if newer > 0 && newer <= now_ms.wrapping_sub(e.heard) {
                self.renew(slot, heard.at, heard.in_group);
            }
            e = self.roll.live(slot)?;
        }
        let silent = now_ms.wrapping_sub(e.heard);
        let unheard = now_ms.wrapping_sub(e.heard_in_group);
        let interval = e.interval_ms;
        let suspect_after = u32::from(interval) * SUSPECT / 100;
        let fail_after = suspect_after + self.config.patience.as_millis() as u32;
        if e.is_suspect() {
            if silent >= fail_after && e.tries >= MIN_TRIES {
                self.departed.note(now, e.info.node, (e.info.incarnation, e.at), End::Failed);
                self.sign(slot, Sign::Unanswered);
                return None;
            }
            self.probe(slot);
            return Some(ms + self.rng.u64(SUSPECT_PAUSE_MS));
        }
        if silent >= suspect_after && e.tries > 0 {
            self.sign(slot, Sign::Silent);
            self.probe(slot);
            return Some(ms + self.rng.u64(SUSPECT_PAUSE_MS));
        }
        if silent >= quiet_after(interval) {
            self.probe(slot);
            return Some(ms + QUIET_PAUSE_MS);
        }
        if self.count() <= PROOF_GROUP && e.proof.rtt_us().is_none() {
            return self.ask_for_proof(now, slot);
        }
        if unheard >= unheard_after(interval) {
            self.sign(slot, Sign::Unheard);
        }
        Some(ms + u64::from(quiet_after(interval) - silent))
    }

    /// It speaks, and never answered: it may be somebody's invention.
    /// Requirements: `R-MEMBER-16`.
    fn ask_for_proof(&mut self, now: Instant, slot: Slot) -> Option<u64> {
        let e = &mut self.roll.entries[slot as usize];
        // Only if it spoke since the last question: one that sleeps does neither.
        let spoke = e.tries == 0;
        if !spoke || e.proof.in_vain().is_none_or(|times| times < PROOFS) {
            if spoke {
                e.proof.ask_again();
            }
            self.probe(slot);
            return Some(self.ms(now) + PROOF_PAUSE_MS);
        }
        self.departed.note(now, e.info.node, (e.info.incarnation, e.at), End::Barred);
        self.sign(slot, Sign::Silent);
        self.sign(slot, Sign::Unanswered);
        None
    }

    /// Whether multicast reaches this node, and the others from it.
    /// Requirements: `R-MEMBER-12`.
    pub(super) fn check_hearing(&mut self, now: Instant) {
        let others = self.roll.count();
        if others == 0 || now < self.rejoin.not_before {
            return;
        }
        let long = self.interval() * UNHEARD;
        let deaf = now.saturating_since(self.heard_in_group) > long
            && now.saturating_since(self.answered) < long;
        let mute = self.unheard_by.0.len() >= (others / 2 + 1).min(MAX_UNHEARD_BY);
        if deaf || mute {
            self.rejoin.wanted = true;
            self.rejoin.not_before = now + REJOIN_PAUSE;
            self.unheard_by.0.clear();
        }
    }
}
