//! Nodes that claim a member's identity from another address.
//!
//! It may have restarted or moved, somebody may have copied its configuration, or somebody lies. A claim is
//! believed at once only if it is of a later life on the same host. Any other waits: the member is asked at its
//! old address, and the claim must be repeated. If the member is silent the other takes its place; if both
//! live, that is a conflict, which is told, and the one of the later life counts, or of two with the
//! same the one with the greater address. So all members come to count the same one.
//! Requirements: `R-MEMBER-17`, `R-MEMBER-18`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::entry::Proof;
use super::roll::Slot;
use super::{Beacon, MemberEvent, MemberInfo, Membership};
use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Rivals(BTreeMap<NodeId, Rival>);

#[derive(Debug)]
struct Rival {
    address: PeerAddr,
    /// Its newest word.
    word: Beacon,
    info: Option<Arc<MemberInfo>>,
    /// Its clock when it was first heard, and when that was.
    first_at: u64,
    since: Instant,
    /// When the member is asked again, and whether the claim was settled.
    due: Instant,
    settled: bool,
}

/// Another node with this node's identity.
#[derive(Debug)]
pub(super) struct Double {
    address: PeerAddr,
    first_at: u64,
    since: Instant,
    told: bool,
}

/// Claims that are looked into at once.
const MAX: usize = 64;

/// How long a claim is looked into, the time between questions meanwhile, and how long the outcome stands.
const PATIENCE: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(250);
const STANDS: Duration = Duration::from_secs(30);

/// A word that came so long after another one of the same sender is not a late one.
const APART: Duration = Duration::from_millis(500);

impl Rivals {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|r| r.due).min()
    }

    pub(super) fn forgive(&mut self, pause: Duration) {
        for r in self.0.values_mut() {
            r.since += pause;
            r.due += pause;
        }
    }
}

impl Membership {
    /// A beacon of a member's node from another address.
    pub(super) fn meet_rival(&mut self, now: Instant, slot: Slot, from: PeerAddr, b: &Beacon) {
        let e = &self.roll.entries[slot as usize];
        if b.leaving || self.departed.refuses(now, b.node, (b.incarnation, b.at)) {
            self.counters.spoofed += u64::from(b.leaving);
            self.counters.stale += u64::from(!b.leaving);
            return;
        }
        let is_later = b.incarnation > e.info.incarnation;
        let at_hand = e.info.address.gid == from.gid || e.is_suspect();
        if is_later && at_hand && b.info.is_some() {
            self.rivals.0.remove(&b.node);
            return self.succeed(now, slot, b);
        }
        self.counters.stale += 1;
        if let Some(r) = self.rivals.0.get_mut(&b.node) {
            if r.address == from && b.at > r.word.at {
                r.word = b.clone();
                if let Some(info) = &b.info {
                    r.info = Some(info.clone());
                }
            }
            return;
        }
        if self.rivals.0.len() >= MAX {
            self.counters.refused += 1;
            return;
        }
        let rival = Rival {
            address: from,
            word: b.clone(),
            info: b.info.clone(),
            first_at: b.at,
            since: now,
            due: now,
            settled: false,
        };
        self.rivals.0.insert(b.node, rival);
        self.stirred = true;
    }

    /// Asks members about those that claim to be them, and decides what is due.
    pub(super) fn settle_rivals(&mut self, now: Instant) {
        if self.rivals.next().is_none_or(|due| due > now) {
            return;
        }
        let due: Vec<NodeId> =
            self.rivals.0.iter().filter(|(_, r)| r.due <= now).map(|(node, _)| *node).collect();
        for node in due {
            let (Some(slot), Some(r)) = (self.roll.find(node), self.rivals.0.get_mut(&node)) else {
                self.rivals.0.remove(&node);
                continue;
            };
            if r.settled {
                self.rivals.0.remove(&node);
                continue;
            }
            if now.saturating_since(r.since) < PATIENCE {
                r.due = now + PAUSE;
                let tries = self.roll.entries[slot as usize].tries;
                self.probe(slot);
                self.roll.entries[slot as usize].tries = tries;
                continue;
            }
            self.settle(now, slot, node);
        }
    }

    fn settle(&mut self, now: Instant, slot: Slot, node: NodeId) {
        let Some(mut r) = self.rivals.0.remove(&node) else { return };
        let e = &self.roll.entries[slot as usize];
        let info = e.info.clone();
        let lives = self.instant(e.heard) > r.since;
        let insists = r.word.at > r.first_at;
        if !insists || info.address == r.address {
            return;
        }
        let ours = (info.incarnation, info.address);
        let theirs = (r.word.incarnation, r.address);
        let counts = theirs > ours || (!lives && theirs.0 >= ours.0);
        let mut kept = info.clone();
        let mut other = r.address;
        if counts {
            let Some(new) = r.info.take() else {
                // It has not said who it is: it is asked, and may try again.
                return self.introduce(now, node, r.address);
            };
            (kept, other) = (new.clone(), info.address);
            r.address = other;
            if theirs.0 > ours.0 {
                let mut word = r.word.clone();
                word.info = Some(new);
                self.succeed(now, slot, &word);
            } else {
                let e = &mut self.roll.entries[slot as usize];
                (e.at, e.proof) = (r.word.at, Proof::NONE);
                self.update(slot, new);
                self.renew(slot, now, false);
            }
        }
        if lives {
            self.events.push_back((MemberEvent::Conflict { info: kept, other }, self.version));
            r.settled = true;
            r.due = now + STANDS;
            self.rivals.0.insert(node, r);
        }
    }

    /// A beacon with this node's own identity from another address. A late one of an earlier life comes once.
    pub(super) fn meet_double(&mut self, now: Instant, from: PeerAddr, b: &Beacon) {
        if from == self.own.address || b.leaving {
            return;
        }
        self.counters.stale += 1;
        let is_known = |d: &Double| {
            d.address == from
                && now.saturating_since(d.since) < if d.told { STANDS } else { PATIENCE * 4 }
        };
        let (info, version) = (self.own.clone(), self.version);
        match self.double.as_mut().filter(|d| is_known(d)) {
            Some(d) => {
                if !d.told && b.at > d.first_at && now.saturating_since(d.since) >= APART {
                    (d.told, d.since) = (true, now);
                    self.events.push_back((MemberEvent::Conflict { info, other: from }, version));
                    self.stirred = true;
                }
            }
            None => {
                let double = Double { address: from, first_at: b.at, since: now, told: false };
                self.double = Some(double);
            }
        }
    }
}
