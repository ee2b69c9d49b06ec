//! How two views that differ for long come to agree.
//!
//! Every beacon carries the sum of the view. While members come and go sums differ for a moment, and
//! nobody minds. A node whose view has not changed for two intervals and that heard a few other sums in a row is
//! probably the one that is wrong: it sends the last of those peers the sums of 64 parts of its view; the peer
//! answers with the members of a part that differs, and gets those of the other side in return. Who
//! is introduced in this way is asked, and becomes a member when it answers. Nobody is removed: those that are
//! dead will be found silent.
//! Requirements: `R-MEMBER-19`.

use alloc::vec::Vec;

use super::roll::bucket;
use super::speak::Said;
use super::{Beacon, Membership};
use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;
use crate::wire::member::{BUCKETS, Digest, Entry, MAX_ENTRIES, Roster};

/// Beacons in a row with another sum, where there are so many members.
const DISAGREED: u8 = 4;

/// Rosters of one answer.
const MAX_ROSTERS: usize = 4;

impl Membership {
    /// Compares a member's view with this node's, by its sum.
    pub(super) fn compare(&mut self, now: Instant, from: PeerAddr, b: &Beacon) {
        if b.sum == self.sum() && b.members as usize == self.count() {
            self.disagreed = 0;
            return;
        }
        self.disagreed = self.disagreed.saturating_add(1);
        let enough = usize::from(self.disagreed) >= self.roll.count().min(DISAGREED.into());
        if !enough {
            return;
        }
        let interval = self.interval();
        let settled = now.saturating_since(self.changed) >= interval * 2;
        if settled && now.saturating_since(self.compared) >= interval {
            self.compared = now;
            self.counters.digests += 1;
            self.say(Said::Digest { to: from });
        }
    }

    pub(super) fn hear_digest(&mut self, now: Instant, from: PeerAddr, digest: &Digest) {
        let Some(slot) = self.member_at(NodeId(digest.node), from) else { return };
        self.renew(slot, now, false);
        let ours = self.roll.sums();
        let differs = |at: &usize| digest.sums.get(*at).is_some_and(|sum| *sum != ours[*at]);
        let first = self.rng.usize(..BUCKETS);
        let part = (0..BUCKETS).map(|at| (first + at) % BUCKETS).find(differs);
        if let Some(part) = part {
            self.send_part(from, part, true);
        }
    }

    pub(super) fn hear_roster(&mut self, now: Instant, from: PeerAddr, roster: &Roster) {
        let Some(slot) = self.member_at(NodeId(roster.node), from) else { return };
        self.renew(slot, now, false);
        for entry in &roster.entries {
            let node = NodeId(entry.node);
            let is_known = self.roll.find(node).is_some()
                || node == self.own.node
                || self.departed.knows(now, node, entry.incarnation);
            if !is_known {
                self.introduce(now, node, entry.address.into());
            }
        }
        if roster.ask && usize::from(roster.bucket) < BUCKETS {
            self.send_part(from, roster.bucket.into(), false);
        }
    }

    /// Sends the members of a part of the view, or as many as may be at once.
    fn send_part(&mut self, to: PeerAddr, part: usize, ask: bool) {
        let entry = |info: &super::MemberInfo| Entry {
            node: info.node.0,
            incarnation: info.incarnation,
            address: info.address.into(),
        };
        let others = self.roll.iter().map(|e| &e.info);
        let mut entries: Vec<Entry> = others
            .chain([&self.own])
            .filter(|info| bucket(info.node) == part)
            .map(|info| entry(info))
            .collect();
        if entries.len() > MAX_ENTRIES * MAX_ROSTERS {
            self.rng.shuffle(&mut entries);
            entries.truncate(MAX_ENTRIES * MAX_ROSTERS);
        }
        let node = self.own.node.0;
        let bucket = part as u8;
        let mut rosters: Vec<Roster> = entries
            .chunks(MAX_ENTRIES)
            .map(|some| Roster { node, bucket, ask: false, entries: some.to_vec() })
            .collect();
        if rosters.is_empty() {
            rosters.push(Roster { node, bucket, ask: false, entries: Vec::new() });
        }
        if let Some(last) = rosters.last_mut() {
            last.ask = ask;
        }
        for roster in rosters {
            self.say(Said::Roster { to, roster });
        }
    }
}
