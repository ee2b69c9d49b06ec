//! The members that a node sees, itself not among them.
//!
//! A member takes some 40 bytes beside what it says of itself: its [`Entry`], and what the index and the
//! [wheel](super::wheel) keep of it. What members say of themselves a simulation of thousands of nodes shares between
//! them. A member is found by its node's identity in an open-addressed index, hashed with a key of
//! this node's own: nobody can choose identities that collide. A place of the index has 4 bytes: the
//! member's slot, and 16 bits of its hash, so that the search does not have to look at members that are not
//! meant. The index is never walked, so its order shows nowhere.
//! Requirements: `R-MEMBER-14`, `R-MEMBER-15`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;

use super::MemberInfo;
use super::entry::{Entries, Entry};
use crate::addr::{Gid, NodeId};
use crate::wire::member::BUCKETS;

/// Where a member is.
pub(super) type Slot = u32;

/// Where what a member keeps of another one probably is: from [`look_up`](super::Membership::look_up), for
/// [`handle_at`](super::Membership::handle_at). One that is wrong, or old, costs a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(Slot);

impl Hint {
    /// Nothing is known.
    pub const NONE: Self = Self(Slot::MAX);
}

#[derive(Debug)]
pub(super) struct Roll {
    pub(super) entries: Entries,
    free: Vec<Slot>,
    index: Vec<u32>,
    key: u64,
    count: usize,
    sums: [u32; BUCKETS],
    total: u32,
    /// Members by a hash of their GID: close enough to the number of a host's members to bound it.
    hosts: Vec<u16>,
}

/// A free place of the index. No slot is as great.
const EMPTY: u32 = u32::MAX;

/// Slots there can be: they have 16 bits in the index.
const MAX_SLOTS: usize = 0xffff;

/// Nodes that are looked for at once: about as many as a processor can wait for.
const AT_ONCE: usize = 32;

/// Hosts are counted in so many places.
const HOSTS: usize = 1024;

impl Roll {
    pub(super) fn new(key: u64) -> Self {
        Self {
            entries: Entries::default(),
            free: Vec::new(),
            index: Vec::new(),
            key: key | 1,
            count: 0,
            sums: [0; BUCKETS],
            total: 0,
            hosts: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The sums of the parts of the roll.
    pub(super) fn sums(&self) -> &[u32; BUCKETS] {
        &self.sums
    }

    /// The sum of all that were counted in.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// The member at a place, if there is one.
    pub(super) fn live(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot as usize).filter(|e| e.is_live())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.places().map(|(_, e)| e)
    }

    /// The members with their places.
    pub(super) fn places(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        (0..).zip(self.entries.iter()).filter(|(_, e)| e.is_live())
    }

    pub(super) fn find(&self, node: NodeId) -> Option<Slot> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hash(node);
        let mut at = hash as usize & (self.index.len() - 1);
        loop {
            let place = self.index[at];
            if place == EMPTY {
                return None;
            }
            let slot = place & 0xffff;
            if place >> 16 == mark(hash) && self.entries[slot as usize].info.node == node {
                return Some(slot);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Looks for many nodes at once, and says where each probably is. What is known of them is at hand then.
    pub(super) fn look_up(&self, nodes: impl Iterator<Item = NodeId>, hints: &mut Vec<Hint>) {
        if self.index.is_empty() {
            return hints.extend(nodes.map(|_| Hint::NONE));
        }
        let mut hashes = nodes.map(|node| self.hash(node)).peekable();
        while hashes.peek().is_some() {
            let (mut some, mut many) = ([0; AT_ONCE], 0);
            for (place, hash) in some.iter_mut().zip(&mut hashes) {
                *place = hash;
                many += 1;
            }
            self.look_up_some(&some[..many], hints);
        }
    }

    /// Three rounds, in none of which one look waits for another: the homes in the index, the slots, the entries.
    fn look_up_some(&self, hashes: &[u64], hints: &mut Vec<Hint>) {
        let homes = hashes.iter().map(|hash| self.index[*hash as usize & (self.index.len() - 1)]);
        black_box(homes.fold(0, |all, place| all ^ place));
        let first = hints.len();
        hints.extend(hashes.iter().map(|hash| self.probably(*hash).map_or(Hint::NONE, Hint)));
        self.fetch(hints[first..].iter().map(|hint| hint.0));
    }

    /// Looks at entries, all at once: they are at hand when they are looked at one by one.
    pub(super) fn fetch(&self, slots: impl Iterator<Item = Slot>) {
        let heard = slots.filter_map(|slot| Some(self.entries.get(slot as usize)?.heard));
        black_box(heard.fold(0, |all, ms| all ^ ms));
    }

    /// The slot of a node, which is probably where the hint says.
    pub(super) fn find_at(&self, hint: Hint, node: NodeId) -> Option<Slot> {
        match self.live(hint.0) {
            Some(e) if e.info.node == node => Some(hint.0),
            _ => self.find(node),
        }
    }

    /// The slot of a node with this hash, but that another's may end in the same bits.
    fn probably(&self, hash: u64) -> Option<Slot> {
        let mask = self.index.len() - 1;
        let places = (0..self.index.len()).map(|n| self.index[(hash as usize + n) & mask]);
        places
            .take_while(|place| *place != EMPTY)
            .find(|place| place >> 16 == mark(hash))
            .map(|place| place & 0xffff)
    }

    /// Whether there is a slot for one more. Those of members that left are free only when the wheel has come to
    /// them: nobody makes the roll grow by joining and leaving.
    pub(super) fn has_room(&self, max_members: usize) -> bool {
        self.count < max_members
            && (!self.free.is_empty() || self.entries.len() < (max_members * 2).min(MAX_SLOTS))
    }

    /// Members that may be on the host with this GID: not fewer than there are.
    pub(super) fn on_host(&self, gid: Gid) -> usize {
        self.hosts.get(self.host(gid)).map_or(0, |n| usize::from(*n))
    }

    /// Adds a member that is not there.
    pub(super) fn add(&mut self, entry: Entry) -> Slot {
        if (self.count + 1) * 4 > self.index.len() * 3 {
            self.grow();
        }
        if self.hosts.is_empty() {
            self.hosts.resize(HOSTS, 0);
        }
        let host = self.host(entry.info.address.gid);
        self.hosts[host] = self.hosts[host].saturating_add(1);
        self.count_in(&entry.info);
        self.count += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as Slot
            }
        };
        self.enter(slot);
        slot
    }

    /// Takes a member out. Its place is free when the wheel has come to it.
    pub(super) fn remove(&mut self, slot: Slot) {
        let entry = &self.entries[slot as usize];
        let (node, gid) = (entry.info.node, entry.info.address.gid);
        let host = self.host(gid);
        self.hosts[host] = self.hosts[host].saturating_sub(1);
        let mut at = self.home(node);
        while self.index[at] & 0xffff != slot {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.close_gap(at);
        let entry = &mut self.entries[slot as usize];
        entry.state = None;
        let info = entry.info.clone();
        self.count_out(&info);
        self.count -= 1;
    }

    /// The wheel has come to the place of one that is no member any more.
    pub(super) fn free(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// A member says something else of itself. Its identity stays.
    pub(super) fn replace_info(&mut self, slot: Slot, info: Arc<MemberInfo>) {
        let (old, new) = (self.entries[slot as usize].info.address.gid, info.address.gid);
        let (old, new) = (self.host(old), self.host(new));
        self.hosts[old] = self.hosts[old].saturating_sub(1);
        self.hosts[new] = self.hosts[new].saturating_add(1);
        self.entries[slot as usize].info = info;
    }

    pub(super) fn count_in(&mut self, info: &MemberInfo) {
        let sum = &mut self.sums[bucket(info.node)];
        *sum = sum.wrapping_add(share(info));
        self.total = self.total.wrapping_add(share(info));
    }

    pub(super) fn count_out(&mut self, info: &MemberInfo) {
        let sum = &mut self.sums[bucket(info.node)];
        *sum = sum.wrapping_sub(share(info));
        self.total = self.total.wrapping_sub(share(info));
    }

    fn hash(&self, node: NodeId) -> u64 {
        let [high, low] = halves(node.0);
        mix(low ^ mix(high ^ self.key))
    }

    fn home(&self, node: NodeId) -> usize {
        self.hash(node) as usize & (self.index.len() - 1)
    }

    fn host(&self, gid: Gid) -> usize {
        let [high, low] = halves(u128::from_be_bytes(gid.to_bytes()));
        mix(high ^ mix(low ^ self.key)) as usize % HOSTS
    }

    fn enter(&mut self, slot: Slot) {
        let hash = self.hash(self.entries[slot as usize].info.node);
        let mut at = hash as usize & (self.index.len() - 1);
        while self.index[at] != EMPTY {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = mark(hash) << 16 | slot;
    }

    /// Empties a place of the index, and moves up those that stand behind it for want of theirs.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let place = self.index[at];
            if place == EMPTY {
                break;
            }
            let home = self.home(self.entries[(place & 0xffff) as usize].info.node);
            // It may stand in the gap if its own place is not behind the gap.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.index[gap] = place;
                gap = at;
            }
        }
        self.index[gap] = EMPTY;
    }

    fn grow(&mut self) {
        let len = (self.index.len() * 2).max(16);
        let old = core::mem::replace(&mut self.index, alloc::vec![EMPTY; len]);
        old.into_iter()
            .filter(|place| *place != EMPTY)
            .for_each(|place| self.enter(place & 0xffff));
    }
}

/// The bits of a hash that the index keeps. Never all ones with a slot that is all ones.
fn mark(hash: u64) -> u32 {
    (hash >> 48) as u32
}

/// The part of a view that a member is in.
pub(super) fn bucket(node: NodeId) -> usize {
    let [high, low] = halves(node.0);
    (mix(low ^ mix(high)) >> 32) as usize % BUCKETS
}

/// What a member adds to the sum of its part.
fn share(info: &MemberInfo) -> u32 {
    let [high, low] = halves(info.node.0);
    mix(low ^ mix(high ^ mix(info.incarnation))) as u32
}

fn halves(n: u128) -> [u64; 2] {
    [(n >> 64) as u64, n as u64]
}

/// A mixing of 64 bits (the finaliser of SplitMix64, which is in the public domain).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{PeerAddr, Qpn};
    use crate::membership::entry::Proof;
    use crate::membership::{MemberState, Role};
    use alloc::collections::BTreeMap;
    use alloc::string::String;

    fn entry(node: u128) -> Entry {
        let gid = Gid::from_bytes((node % 7).to_be_bytes());
        let info = MemberInfo {
            node: NodeId(node),
            incarnation: 1,
            name: String::new(),
            host: String::new(),
            address: PeerAddr { gid, qpn: Qpn::new(1), udp_port: 1 },
            role: Role::Observer,
            metadata: Vec::new(),
        };
        Entry {
            info: Arc::new(info),
            at: 0,
            heard: 0,
            heard_in_group: 0,
            proof: Proof::NONE,
            interval_ms: 1000,
            state: Some(MemberState::Alive),
            tries: 0,
        }
    }

    /// R-MEMBER-14, R-MEMBER-15: the index against a map, with seeds.
    #[test]
    fn the_index_finds_what_a_map_finds() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut roll, mut map) = (Roll::new(rng.u64(..)), BTreeMap::new());
            for _ in 0..1000 {
                let node = rng.u128(..150);
                match map.remove(&node) {
                    Some(slot) => {
                        roll.remove(slot);
                        roll.free(slot);
                    }
                    None => {
                        map.insert(node, roll.add(entry(node)));
                    }
                }
                let probe = rng.u128(..150);
                assert_eq!(roll.find(NodeId(probe)), map.get(&probe).copied(), "seed {seed}");
                let mut hints = Vec::new();
                roll.look_up((0..probe).map(NodeId), &mut hints);
                assert_eq!(hints.len() as u128, probe);
                for (node, hint) in (0..).map(NodeId).zip(hints) {
                    assert!(hint != Hint::NONE || !map.contains_key(&node.0), "seed {seed}");
                    for hint in [hint, Hint(rng.u32(..200)), Hint::NONE] {
                        let found = roll.find_at(hint, node);
                        assert_eq!(found, map.get(&node.0).copied(), "seed {seed}");
                    }
                }
                assert_eq!(roll.count(), map.len());
            }
            for gid in 0..7u128 {
                let there = map.keys().filter(|n| **n % 7 == gid).count();
                assert!(roll.on_host(Gid::from_bytes(gid.to_be_bytes())) >= there);
            }
            // The sums depend on who is there, not on the way to it.
            let mut other = Roll::new(1);
            map.keys().rev().for_each(|node| {
                other.add(entry(*node));
            });
            assert_eq!(roll.sums(), other.sums());
        }
    }
}
