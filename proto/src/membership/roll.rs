//! The members that a node sees, itself not among them.
//!
//! An entry has 40 bytes beside what the member says of itself, which a simulation of thousands of nodes
//! shares between them. A member is found by its node's identity in an open-addressed index of 4-byte slots,
//! hashed with a key of this node's own: nobody can choose identities that collide. The index is never walked,
//! so its order shows nowhere.
//! Requirements: `R-MEMBER-14`, `R-MEMBER-15`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{MemberInfo, MemberState};
use crate::addr::{Gid, NodeId};
use crate::wire::member::BUCKETS;

/// A member, small.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) info: Arc<MemberInfo>,
    /// Its clock when it last spoke.
    pub(super) at: u64,
    /// When it was last heard, and last heard through the group, in this node's milliseconds.
    pub(super) heard: u32,
    pub(super) heard_in_group: u32,
    /// How long its last answer took in microseconds; 0 if it never answered.
    pub(super) rtt_us: u32,
    /// The next one in the wheel's list.
    pub(super) next: u32,
    /// How long it promised to be silent at most.
    pub(super) interval_ms: u16,
    pub(super) state: MemberState,
    /// Probes since it was last heard.
    pub(super) tries: u8,
    /// Probes since it joined, until it answers for the first time.
    pub(super) unanswered: u8,
    /// Whether it is a member; one that is not waits for the wheel to bring its place back.
    pub(super) live: bool,
}

/// Where a member is.
pub(super) type Slot = u32;

#[derive(Debug)]
pub(super) struct Roll {
    pub(super) entries: Vec<Entry>,
    free: Vec<Slot>,
    index: Vec<Slot>,
    key: u64,
    count: usize,
    sums: [u32; BUCKETS],
    total: u32,
    /// Members by a hash of their GID: close enough to the number of a host's members to bound it.
    hosts: Vec<u16>,
}

const EMPTY: Slot = Slot::MAX;

/// Hosts are counted in so many places.
const HOSTS: usize = 1024;

impl Roll {
    pub(super) fn new(key: u64) -> Self {
        Self {
            entries: Vec::new(),
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
        self.entries.get(slot as usize).filter(|e| e.live)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.live)
    }

    pub(super) fn find(&self, node: NodeId) -> Option<Slot> {
        if self.index.is_empty() {
            return None;
        }
        let mut at = self.home(node);
        loop {
            let slot = self.index[at];
            if slot == EMPTY {
                return None;
            }
            if self.entries[slot as usize].info.node == node {
                return Some(slot);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
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
                if self.entries.len() == self.entries.capacity() {
                    // By an eighth, not by the double: there may be ten thousand rolls in a simulation.
                    self.entries.reserve_exact(self.entries.len() / 8 + 8);
                }
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
        while self.index[at] != slot {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.close_gap(at);
        let entry = &mut self.entries[slot as usize];
        entry.live = false;
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

    fn home(&self, node: NodeId) -> usize {
        let folded = (node.0 as u64) ^ ((node.0 >> 64) as u64).rotate_left(32);
        (mix(folded ^ self.key) as usize) & (self.index.len() - 1)
    }

    fn host(&self, gid: Gid) -> usize {
        let [high, low] = halves(u128::from_be_bytes(gid.to_bytes()));
        mix(high ^ mix(low ^ self.key)) as usize % HOSTS
    }

    fn enter(&mut self, slot: Slot) {
        let mut at = self.home(self.entries[slot as usize].info.node);
        while self.index[at] != EMPTY {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = slot;
    }

    /// Empties a place of the index, and moves up those that stand behind it for want of theirs.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.index[at];
            if slot == EMPTY {
                break;
            }
            let home = self.home(self.entries[slot as usize].info.node);
            // It may stand in the gap if its own place is not behind the gap.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.index[gap] = slot;
                gap = at;
            }
        }
        self.index[gap] = EMPTY;
    }

    fn grow(&mut self) {
        let len = (self.index.len() * 2).max(16);
        let old = core::mem::replace(&mut self.index, alloc::vec![EMPTY; len]);
        old.into_iter().filter(|slot| *slot != EMPTY).for_each(|slot| self.enter(slot));
    }
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
    use crate::membership::Role;
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
            rtt_us: 0,
            next: 0,
            interval_ms: 1000,
            state: MemberState::Alive,
            tries: 0,
            unanswered: 0,
            live: true,
        }
    }

    /// R-MEMBER-15.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 40, "{}", size_of::<Entry>());
    }

    /// R-MEMBER-14, R-MEMBER-15: the index against a map, with seeds.
    #[test]
    fn the_index_finds_what_a_map_finds() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut roll, mut map) = (Roll::new(rng.u64(..)), BTreeMap::new());
            for _ in 0..2000 {
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
