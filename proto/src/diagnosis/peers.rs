//! What other nodes said of their groups.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{DiagnosisCounters, DiagnosisEvent, MAX_PERIOD, Noticed, PathDifference};
use crate::addr::{NodeId, PeerAddr};
use crate::node::GroupId;
use crate::time::Instant;
use crate::wire::notice::{Checks, GroupEntry, GroupNotice};

/// Nodes that are remembered.
pub(super) const MAX_PEERS: usize = 4096;

/// Groups of one node that are remembered.
pub(super) const MAX_GROUPS_OF_PEER: usize = 64;

/// Groups of all nodes together.
pub(super) const MAX_ENTRIES: usize = 8192;

/// A node is forgotten after so many of its periods: two notices in a row may be lost.
const PERIODS: f64 = 3.5;

/// A period that a node claims is taken as this at least.
const LEAST_PERIOD: Duration = Duration::from_secs(1);

/// All nodes that were heard, by identity and life.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_life: BTreeMap<(NodeId, u64), Peer>,
    entries: usize,
    /// How many are in each group with each key.
    members: BTreeMap<(String, u8), u32>,
    /// When to look for those that fell silent.
    look: Option<Instant>,
}

#[derive(Debug)]
struct Peer {
    name: String,
    address: PeerAddr,
    heard: Instant,
    period: Duration,
    groups: BTreeMap<(String, u8), Entry>,
    /// Its clock when it last left a group: what it said before does not bring that back.
    left_at: u64,
    /// Groups that it left after a difference was reported.
    left_told: BTreeSet<String>,
}

#[derive(Debug)]
struct Entry {
    at: u64,
    checks: Checks,
    heard: Instant,
    /// The difference of the key was reported.
    key_told: bool,
    /// Differences of the path that were reported.
    path_told: BTreeSet<PathDifference>,
}

impl Peer {
    fn noticed(&self, node: NodeId) -> Noticed {
        Noticed { node, name: self.name.clone(), address: self.address }
    }

    /// Until when something that was heard at `heard` counts.
    fn until(&self, heard: Instant) -> Instant {
        heard + self.period.mul_f64(PERIODS)
    }
}

impl Peers {
    /// How many nodes are known.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.by_life.len()).unwrap_or(u32::MAX)
    }

    /// Members of a group with a key, without this node.
    pub(super) fn members(&self, name: &str, key: u8) -> u32 {
        self.members.get(&(String::from(name), key)).copied().unwrap_or(0)
    }

    fn count(&mut self, key: (String, u8)) {
        self.entries += 1;
        *self.members.entry(key).or_default() += 1;
    }

    fn discount(&mut self, key: &(String, u8)) {
        self.entries -= 1;
        if let Some(members) = self.members.get_mut(key) {
            *members -= 1;
            if *members == 0 {
                self.members.remove(key);
            }
        }
    }

    /// The lives of nodes that are in a group.
    pub(super) fn members_of(&self, name: &str) -> Vec<(NodeId, u64)> {
        let is_in = |p: &Peer| p.groups.keys().any(|(n, _)| n == name);
        self.by_life.iter().filter(|(_, p)| is_in(p)).map(|(life, _)| *life).collect()
    }

    /// All groups of all nodes.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, Checks, Noticed)> {
        self.by_life.iter().flat_map(|((node, _), peer)| {
            peer.groups.iter().map(|((name, _), e)| (name.as_str(), e.checks, peer.noticed(*node)))
        })
    }

    /// Takes what a notice says. `own` tells which groups this node is in: they go before others when there
    /// is no room for all. `None` if nothing of it counts.
    /// Requirements: `R-CONTROLGROUP-4`, `R-CONTROLGROUP-5`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        from: PeerAddr,
        notice: &GroupNotice,
        own: impl Fn(&str) -> bool,
        counters: &mut DiagnosisCounters,
    ) -> Option<(NodeId, u64)> {
        let life = (NodeId(notice.node), notice.incarnation);
        let period = Duration::from_millis(notice.period_ms.into()).clamp(LEAST_PERIOD, MAX_PERIOD);
        if let Some(known) = self.by_life.get(&life) {
            let silent = now.saturating_since(known.heard);
            if known.address != from && silent < known.period.mul_f64(1.5) {
                // One node speaks from one place; it may have moved if that is silent.
                counters.spoofed += 1;
                return None;
            }
        } else {
            if notice.groups.iter().all(|g| g.left) {
                // Nothing to remember: but whoever asks is answered.
                return notice.asks.then_some(life);
            }
            if self.by_life.len() >= MAX_PEERS && !self.make_room(notice, &own) {
                counters.refused += 1;
                return None;
            }
            self.restarted(life);
        }
        let peer = self.by_life.entry(life).or_insert_with(|| Peer {
            name: String::new(),
            address: from,
            heard: now,
            period,
            groups: BTreeMap::new(),
            left_at: 0,
            left_told: BTreeSet::new(),
        });
        (peer.address, peer.heard, peer.period) = (from, now, period);
        if peer.name != notice.name {
            peer.name.clone_from(&notice.name);
        }
        for entry in notice.groups.iter() {
            let room = self.entries < MAX_ENTRIES || own(&entry.name);
            let Some(peer) = self.by_life.get_mut(&life) else { break };
            match peer.put(now, notice.at, entry, room) {
                Put::Known => {}
                Put::Added => self.count((entry.name.clone(), entry.checks.key)),
                Put::Removed => self.discount(&(entry.name.clone(), entry.checks.key)),
                Put::Stale => counters.stale += 1,
                Put::Refused => counters.refused += 1,
            }
        }
        self.look.get_or_insert(now + LEAST_PERIOD);
        Some(life)
    }

    /// Gives the place of a node that shares no group with this one to one that does.
    fn make_room(&mut self, notice: &GroupNotice, own: &impl Fn(&str) -> bool) -> bool {
        if !notice.groups.iter().any(|g| own(&g.name)) {
            return false;
        }
        let other = |p: &Peer| !p.groups.keys().any(|(name, _)| own(name));
        let Some(life) = self.by_life.iter().find(|(_, p)| other(p)).map(|(life, _)| *life) else {
            return false;
        };
        self.remove(life);
        true
    }

    /// A later life of a node is there: earlier ones are over, unless they are heard again soon.
    fn restarted(&mut self, (node, incarnation): (NodeId, u64)) {
        for (_, earlier) in self.by_life.range_mut((node, 0)..(node, incarnation)) {
            earlier.period = earlier.period.mul_f64(1.5 / PERIODS);
        }
    }

    fn remove(&mut self, life: (NodeId, u64)) -> Option<Peer> {
        let peer = self.by_life.remove(&life)?;
        peer.groups.keys().for_each(|key| self.discount(key));
        Some(peer)
    }

    /// Compares a node's word on a group with this node's own groups of that name, and reports what is new.
    /// Says whether the node differs in a way that it should hear of.
    /// Requirements: `R-KEY-2`, `R-KEY-4`, `R-KEY-5`.
    pub(super) fn compare(
        &mut self,
        life: (NodeId, u64),
        name: &str,
        ours: &[(GroupId, Checks)],
        events: &mut VecDeque<DiagnosisEvent>,
    ) -> bool {
        let Some(peer) = self.by_life.get_mut(&life) else { return false };
        let member = peer.noticed(life.0);
        if peer.left_told.remove(name)
            && let Some((group, _)) = ours.first()
        {
            let (group, name, member) = (*group, name.into(), member.clone());
            events.push_back(DiagnosisEvent::Corrected { group, name, member });
        }
        let of_name = |(key, _): &(&(String, u8), &mut Entry)| key.0 == name;
        let mut theirs: Vec<&mut Entry> =
            peer.groups.iter_mut().filter(of_name).map(|(_, entry)| entry).collect();
        let same = |entry: &Entry| ours.iter().find(|(_, o)| o.key == entry.checks.key).copied();
        let agrees = theirs.iter().any(|entry| same(entry).is_some());
        let mut differs = false;
        for entry in &mut theirs {
            let matching = same(entry);
            let Some((group, own)) = matching.or_else(|| ours.first().copied()) else { continue };
            let had_told = entry.has_told();
            let wrong = entry.checks.key != own.key && !agrees;
            if wrong && !entry.key_told {
                differs = true;
                events.push_back(DiagnosisEvent::KeyMismatch {
                    group,
                    name: name.into(),
                    members: alloc::vec![member.clone()],
                    theirs: entry.checks.key,
                    ours: own.key,
                });
            }
            entry.key_told = wrong;
            let found = differences(&entry.checks, &own);
            for what in found.iter().filter(|what| !entry.path_told.contains(what)) {
                differs = true;
                let (name, member, what) = (name.into(), member.clone(), *what);
                events.push_back(DiagnosisEvent::PathMismatch { group, name, member, what });
            }
            entry.path_told = found;
            if had_told && !entry.has_told() {
                let (name, member) = (name.into(), member.clone());
                events.push_back(DiagnosisEvent::Corrected { group, name, member });
            }
        }
        differs
    }

    /// Nothing that was told of a group counts any more: this node has left it.
    pub(super) fn forget_told(&mut self, name: &str) {
        for peer in self.by_life.values_mut() {
            for (_, entry) in peer.groups.iter_mut().filter(|((n, _), _)| n == name) {
                entry.key_told = false;
                entry.path_told.clear();
            }
        }
    }

    pub(super) fn forgive(&mut self, pause: Duration) {
        for peer in self.by_life.values_mut() {
            peer.heard += pause;
            peer.groups.values_mut().for_each(|entry| entry.heard += pause);
        }
    }

    /// When to look for those that fell silent.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.look
    }

    /// Forgets who fell silent. Those that differed are reported as corrected: they differ no longer.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        own: &[(GroupId, String)],
        events: &mut VecDeque<DiagnosisEvent>,
    ) {
        if self.look.is_none_or(|look| look > now) {
            return;
        }
        let silent = |p: &Peer| p.until(p.heard) <= now;
        let lives: Vec<_> =
            self.by_life.iter().filter(|(_, p)| silent(p)).map(|(l, _)| *l).collect();
        for life in lives {
            let Some(peer) = self.remove(life) else { continue };
            for ((name, _), entry) in &peer.groups {
                let ours = own.iter().find(|(_, n)| n == name);
                if let Some((group, _)) = ours.filter(|_| entry.has_told()) {
                    let (group, name, member) = (*group, name.clone(), peer.noticed(life.0));
                    events.push_back(DiagnosisEvent::Corrected { group, name, member });
                }
            }
        }
        let mut over = Vec::new();
        for peer in self.by_life.values_mut() {
            let period = peer.period.mul_f64(PERIODS);
            peer.groups.retain(|key, entry| {
                let kept = entry.heard + period > now;
                if !kept {
                    over.push(key.clone());
                }
                kept
            });
        }
        over.iter().for_each(|key| self.discount(key));
        let soonest = self.by_life.values().map(|p| p.until(p.heard)).min();
        self.look = soonest.map(|at| at.max(now + LEAST_PERIOD));
    }
}

/// In what a member's path differs.
fn differences(theirs: &Checks, ours: &Checks) -> BTreeSet<PathDifference> {
    let mut found = BTreeSet::new();
    if theirs.partition != ours.partition {
        found.insert(PathDifference::Partition { theirs: theirs.partition, ours: ours.partition });
    }
    if theirs.address != ours.address {
        found.insert(PathDifference::Address { theirs: theirs.address, ours: ours.address });
    }
    if theirs.mtu != ours.mtu {
        found.insert(PathDifference::Mtu { theirs: theirs.mtu, ours: ours.mtu });
    }
    found
}

impl Entry {
    fn has_told(&self) -> bool {
        self.key_told || !self.path_told.is_empty()
    }
}

/// What became of an entry of a notice.
enum Put {
    Known,
    Added,
    Removed,
    Stale,
    Refused,
}

impl Peer {
    fn put(&mut self, now: Instant, at: u64, entry: &GroupEntry, room: bool) -> Put {
        let key = (entry.name.clone(), entry.checks.key);
        if let Some(known) = self.groups.get_mut(&key) {
            if at < known.at {
                return Put::Stale;
            }
            if entry.left {
                self.left_at = self.left_at.max(at);
                if self.groups.remove(&key).is_some_and(|known| known.has_told()) {
                    self.left_told.insert(key.0);
                }
                return Put::Removed;
            }
            (known.at, known.checks, known.heard) = (at, entry.checks, now);
            return Put::Known;
        }
        if entry.left {
            return Put::Known;
        }
        if at < self.left_at {
            return Put::Stale;
        }
        if self.groups.len() >= MAX_GROUPS_OF_PEER || !room {
            return Put::Refused;
        }
        let checks = entry.checks;
        let path_told = BTreeSet::new();
        self.groups.insert(key, Entry { at, checks, heard: now, key_told: false, path_told });
        Put::Added
    }
}
