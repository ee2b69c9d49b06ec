//! What a member hears.
//!
//! Words count only for the node whose they are, from the address that it names.

use alloc::sync::Arc;

use super::departed::End;
use super::entry::{Entry, Proof};
use super::roll::Slot;
use super::speak::{Said, promised_ms};
use super::state::Sign;
use super::{
    Beacon, Hint, MemberEvent, MemberInfo, MemberState, Membership, Word, names_its_sender,
};
use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;
use crate::wire::member::Probe;

/// An answer that took longer says nothing.
const MAX_RTT_US: u32 = 10_000_000;

/// Nodes that do not hear this one, remembered at once: more say nothing more.
pub(super) const MAX_UNHEARD_BY: usize = 32;

impl Membership {
    /// Takes a word that came from this address, through the group or not. Says whether there is anything to
    /// be asked for: a member that was only heard again gives nothing to tell or to send, and is most of what comes.
    /// Requirements: `R-MEMBER-1`.
    pub fn handle(&mut self, now: Instant, from: PeerAddr, in_group: bool, word: &Word) -> bool {
        self.handle_at(now, from, in_group, word, Hint::NONE)
    }

    /// The same as [`handle`](Self::handle), of a node that was [looked up](Self::look_up) before.
    pub fn handle_at(
        &mut self,
        now: Instant,
        from: PeerAddr,
        in_group: bool,
        word: &Word,
        hint: Hint,
    ) -> bool {
        self.now = now;
        if self.leaving_left.is_some() {
            return false;
        }
        self.stirred = false;
        match word {
            Word::Beacon(beacon) => self.hear_beacon(now, from, in_group, beacon, hint),
            Word::Probe(probe) => self.hear_probe(now, from, probe),
            Word::Roster(roster) => self.hear_roster(now, from, roster),
            Word::Digest(digest) => self.hear_digest(now, from, digest),
        }
        self.stirred
    }

    fn hear_beacon(
        &mut self,
        now: Instant,
        from: PeerAddr,
        in_group: bool,
        b: &Beacon,
        hint: Hint,
    ) {
        if !names_its_sender(b.info.as_ref(), from) {
            self.counters.spoofed += 1;
            return;
        }
        if b.node == self.own.node {
            return self.meet_double(now, from, b);
        }
        let Some(slot) = self.roll.find_at(hint, b.node) else {
            return self.meet(now, from, in_group, b);
        };
        let e = &mut self.roll.entries[slot as usize];
        if e.info.address != from {
            return self.meet_rival(now, slot, from, b);
        }
        if b.incarnation > e.info.incarnation && !b.leaving {
            return self.succeed(now, slot, b);
        }
        if b.incarnation < e.info.incarnation || b.at <= e.at {
            self.counters.stale += 1;
            return;
        }
        e.at = b.at;
        if b.leaving {
            return self.part_with(now, slot);
        }
        e.interval_ms = promised_ms(b.interval_ms);
        if let Some(echo) = b.echo {
            let rtt = (now.as_micros() as u32).wrapping_sub(echo);
            if rtt <= MAX_RTT_US {
                e.proof = Proof::answer(rtt.max(1));
                self.answered = now;
            }
        }
        if let Some(info) = &b.info
            && !Arc::ptr_eq(info, &e.info)
            && **info != *e.info
        {
            self.update(slot, info.clone());
        }
        if let Some(progress) = b.progress {
            self.progress.note(slot, progress, self.ms(now) as u32);
        }
        self.renew(slot, now, in_group);
        if in_group {
            self.compare(now, from, b);
        }
    }

    pub(super) fn update(&mut self, slot: Slot, info: Arc<MemberInfo>) {
        self.roll.replace_info(slot, info.clone());
        self.tell(MemberEvent::Updated(info));
    }

    /// A member was heard at this moment.
    /// Requirements: `R-MEMBER-7`.
    pub(super) fn renew(&mut self, slot: Slot, at: Instant, in_group: bool) {
        let ms = self.ms(at) as u32;
        let e = &mut self.roll.entries[slot as usize];
        (e.heard, e.tries) = (ms, 0);
        if in_group {
            e.heard_in_group = ms;
            self.heard_in_group = self.heard_in_group.max(at);
        }
        let sign = if in_group { Sign::Heard } else { Sign::Answered };
        // Most of the time there is nothing to tell.
        if self.roll.entries[slot as usize].state != Some(MemberState::Alive) {
            self.sign(slot, sign);
        }
    }

    /// A beacon of a node that is no member.
    /// Requirements: `R-MEMBER-5`, `R-MEMBER-6`.
    fn meet(&mut self, now: Instant, from: PeerAddr, in_group: bool, b: &Beacon) {
        if b.leaving {
            return;
        }
        if self.departed.refuses(now, b.node, (b.incarnation, b.at)) {
            self.counters.stale += 1;
            return;
        }
        let Some(info) = &b.info else { return self.introduce(now, b.node, from) };
        if self.admit(now, b, info) {
            if in_group {
                self.heard_in_group = now;
            }
            self.welcome(now, b.fresh && in_group);
        }
    }

    /// Makes a node a member. It says everything of itself.
    /// Requirements: `R-MEMBER-15`.
    pub(super) fn admit(&mut self, now: Instant, b: &Beacon, info: &Arc<MemberInfo>) -> bool {
        self.candidates.forget(info.address);
        if !self.roll.has_room(self.config.max_members.saturating_sub(1))
            || self.roll.on_host(info.address.gid) >= self.config.max_per_host
        {
            self.counters.refused += 1;
            return false;
        }
        let ms = self.ms(now);
        let interval_ms = promised_ms(b.interval_ms);
        self.hint = (self.hint.0.max((b.members as usize).min(self.config.max_members)), now);
        let slot = self.roll.add(Entry {
            info: info.clone(),
            at: b.at,
            heard: ms as u32,
            heard_in_group: ms as u32,
            proof: Proof::NONE,
            interval_ms,
            state: Some(MemberState::Alive),
            tries: 0,
        });
        match b.progress {
            Some(progress) => self.progress.note(slot, progress, ms as u32),
            None => self.progress.forget(slot),
        }
        // Not all members look at a new one at the same moment.
        let look = ms + self.rng.u64(u64::from(interval_ms) / 4..=u64::from(interval_ms) * 2);
        self.wheel.add(slot, look);
        self.tell(MemberEvent::Joined(info.clone()));
        true
    }

    /// Another life of a member takes its place: the old one left, and then the new one joins.
    /// Requirements: `R-MEMBER-6`.
    pub(super) fn succeed(&mut self, now: Instant, slot: Slot, b: &Beacon) {
        let Some(info) = &b.info else {
            let e = &self.roll.entries[slot as usize];
            return self.introduce(now, b.node, e.info.address);
        };
        self.part_with(now, slot);
        self.admit(now, b, info);
        self.welcome(now, b.fresh);
    }

    /// A member left.
    pub(super) fn part_with(&mut self, now: Instant, slot: Slot) {
        let e = &self.roll.entries[slot as usize];
        let (node, word) = (e.info.node, (e.info.incarnation, e.at));
        self.departed.note(now, node, word, End::Left);
        self.sign(slot, Sign::Parted);
    }

    /// Answers even to strangers: they may not have been heard yet.
    /// Requirements: `R-MEMBER-8`.
    fn hear_probe(&mut self, now: Instant, from: PeerAddr, p: &Probe) {
        let asker = NodeId(p.node);
        if p.to != self.own.node.0 || asker == self.own.node {
            self.counters.stale += 1;
            return;
        }
        let slot = self.member_at(asker, from);
        if let Some(slot) = slot {
            self.renew(slot, now, false);
            if p.unheard {
                self.note_unheard_by(now, asker);
            }
            if p.suspect {
                self.refute(now);
            }
        }
        let detail = p.detail || slot.is_none();
        if slot.is_none() {
            // It is new, or has moved, and its beacons do not come.
            self.introduce(now, asker, from);
        }
        self.say(Said::Answer { to: from, echo: p.stamp, detail });
    }

    /// The member with this identity, if it is at this address.
    pub(super) fn member_at(&self, node: NodeId, from: PeerAddr) -> Option<Slot> {
        let slot = self.roll.find(node)?;
        (self.roll.entries[slot as usize].info.address == from).then_some(slot)
    }

    fn note_unheard_by(&mut self, now: Instant, node: NodeId) {
        let window = self.interval() * UNHEARD_WINDOW;
        if now.saturating_since(self.unheard_by.1) > window {
            self.unheard_by = (Default::default(), now);
        }
        if self.unheard_by.0.len() < MAX_UNHEARD_BY {
            self.unheard_by.0.insert(node);
        }
    }
}

/// Intervals within which enough members must say that they do not hear this one.
const UNHEARD_WINDOW: u32 = 8;
