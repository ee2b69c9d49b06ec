//! Why a member hears nothing: what nodes tell each other of their groups, and what follows from it.
//!
//! A datagram with another queue key is dropped by the receiving queue pair, and nobody is told. So each
//! node says on the control group, whose key everybody has, which groups it is in, each with a few check
//! values of what all members must agree in. Who hears that a member of one of its own groups differs
//! reports it, and answers, so that the other learns it too: both sides know within moments, by name.
//!
//! A node speaks a few times when it joins, and then so rarely that all of them together send about
//! [`NOTICES_PER_SECOND`], whatever their number.
//! Requirements: `R-KEY-1` to `R-KEY-5`.

mod check;
mod gather;
mod own;
mod peers;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{NodeId, PeerAddr};
use crate::node::GroupId;
use crate::time::Instant;
use crate::wire::notice::{Checks, GroupNotice};

pub use check::key_check;
use gather::Gathered;
use own::{Own, Parted};
use peers::Peers;

/// Notices that all nodes together send in a second when nothing happens.
pub const NOTICES_PER_SECOND: u32 = 50;

/// The least time between the notices of a node when nothing happens.
pub const MIN_PERIOD: Duration = Duration::from_secs(4);

/// The most.
pub const MAX_PERIOD: Duration = Duration::from_secs(600);

/// A member of a group, as far as its notices say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// Its identity.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Where its word came from.
    pub address: PeerAddr,
}

/// What is found out about the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiagnosisEvent {
    /// Members have another queue key: they do not hear this node, nor it them.
    KeyMismatch {
        /// This node's group.
        group: GroupId,
        /// Its name.
        name: String,
        /// Who differs, and was not told of before: one at least, and all with one key that were found within a moment.
        members: Vec<Noticed>,
        /// The check value of their key.
        theirs: u8,
        /// The check value of this node's.
        ours: u8,
    },
    /// A member differs in how the group is reached.
    PathMismatch {
        /// This node's group.
        group: GroupId,
        /// Its name.
        name: String,
        /// Who differs.
        member: Noticed,
        /// In what.
        what: PathDifference,
    },
    /// A member that differed has this node's key and path now, or is gone.
    Corrected {
        /// This node's group.
        group: GroupId,
        /// Its name.
        name: String,
        /// Who differed.
        member: Noticed,
    },
    /// Another node uses this one's identity.
    IdentityConflict {
        /// The other.
        other: Noticed,
    },
}

/// In what the way to a group differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PathDifference {
    /// The partition: check values of the PKeys.
    Partition {
        /// The member's.
        theirs: u8,
        /// This node's.
        ours: u8,
    },
    /// The group's multicast address: check values.
    Address {
        /// The member's.
        theirs: u8,
        /// This node's.
        ours: u8,
    },
    /// The greatest payload of a datagram in bytes: what the one with the greater sends may not reach the other.
    Mtu {
        /// The member's.
        theirs: u32,
        /// This node's.
        ours: u32,
    },
}

/// What was dropped or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiagnosisCounters {
    /// Notices taken.
    pub notices: u64,
    /// Entries older than what is known.
    pub stale: u64,
    /// Notices in another node's name.
    pub spoofed: u64,
    /// Nodes, or groups of a node, beyond the bounds.
    pub refused: u64,
    /// Notices sent.
    pub sent: u64,
}

/// A group that somebody is in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenGroup {
    /// Its name.
    pub name: String,
    /// What its members agree in.
    pub checks: Checks,
    /// Who is in it, this node not included.
    pub members: Vec<Noticed>,
    /// Whether this node is.
    pub own: bool,
}

/// What a node knows of others' groups, and what it tells of its own.
#[derive(Debug, Default)]
pub struct Diagnosis {
    own: BTreeMap<GroupId, Own>,
    parted: VecDeque<Parted>,
    peers: Peers,
    /// When others are asked next, and how often still.
    ask: Option<(Instant, u8)>,
    conflict: Option<(PeerAddr, Instant)>,
    conflict_told: bool,
    gathered: Gathered,
    events: VecDeque<DiagnosisEvent>,
    counters: DiagnosisCounters,
}

/// Who this node is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) node: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) name: &'a str,
}

impl Identity<'_> {
    pub(crate) fn life(&self) -> (NodeId, u64) {
        (self.node, self.incarnation)
    }
}

/// A question for everybody's groups is repeated so often.
const ASKS: u8 = 3;

/// After the first, and twice as long each.
const ASK_AGAIN: Duration = Duration::from_millis(150);

/// Least time between two notices that were provoked, for each node known: nobody can make a group of nodes
/// send more than 500 a second.
const PROVOKED: Duration = Duration::from_millis(2);

/// The least of that.
const LEAST_GAP: Duration = Duration::from_millis(50);

/// Groups that were left and are still told of.
const MAX_PARTED: usize = 64;

/// A word of an earlier life of this node's may come late; one that still comes after this time is another's.
const LATE: Duration = Duration::from_secs(1);

impl Diagnosis {
    /// This node has joined a group.
    /// Requirements: `R-KEY-2`.
    pub(crate) fn join(&mut self, now: Instant, id: GroupId, name: &str, checks: Checks) {
        self.own.insert(id, Own::new(now, name.into(), checks));
        for peer in self.peers.members_of(name) {
            self.examine(now, peer, name, None);
        }
    }

    /// What a group's members must agree in has changed (the port's MTU, for example).
    pub(crate) fn set_mtu(&mut self, now: Instant, id: GroupId, mtu: u32) {
        let Some(own) = self.own.get_mut(&id).filter(|own| own.checks.mtu != mtu) else { return };
        own.checks.mtu = mtu;
        own.speak(now);
    }

    /// This node leaves a group.
    pub(crate) fn leave(&mut self, now: Instant, id: GroupId) {
        let Some(own) = self.own.remove(&id) else { return };
        self.gathered.leave(id);
        if self.own.values().all(|other| other.name != own.name) {
            self.peers.forget_told(&own.name);
        }
        if self.parted.len() < MAX_PARTED {
            self.parted.push_back(Parted::new(now, own));
        }
    }

    /// The control group is joined: whatever was said before was not heard.
    pub(crate) fn start(&mut self, now: Instant) {
        self.own.values_mut().for_each(|own| own.speak(now));
        if self.ask.is_some() {
            self.ask = Some((now, ASKS));
        }
    }

    /// Asks all nodes which groups they are in.
    pub(crate) fn ask(&mut self, now: Instant) {
        self.ask = Some((now, ASKS));
    }

    /// This node slept: others did not fall silent.
    pub(crate) fn forgive(&mut self, pause: Duration) {
        self.peers.forgive(pause);
    }

    /// The groups that others, and this node, are in.
    pub(crate) fn seen(&self) -> Vec<SeenGroup> {
        let mut groups: BTreeMap<(&str, Checks), SeenGroup> = BTreeMap::new();
        let seen = |name: &str, checks| SeenGroup {
            name: name.into(),
            checks,
            members: Vec::new(),
            own: false,
        };
        for (name, checks, member) in self.peers.entries() {
            let group = groups.entry((name, checks)).or_insert_with(|| seen(name, checks));
            group.members.push(member);
        }
        for own in self.own.values() {
            let (name, checks) = (own.name.as_str(), own.checks);
            groups.entry((name, checks)).or_insert_with(|| seen(name, checks)).own = true;
        }
        groups.into_values().collect()
    }

    /// What was dropped and refused.
    pub(crate) fn counters(&self) -> DiagnosisCounters {
        self.counters
    }

    /// Takes a node's notice, checked to be sound.
    /// Requirements: `R-KEY-2`, `R-KEY-3`, `R-CONTROLGROUP-4`, `R-CONTROLGROUP-5`.
    pub(crate) fn handle_notice(
        &mut self,
        now: Instant,
        from: PeerAddr,
        notice: &GroupNotice,
        us: Identity<'_>,
        rng: &mut fastrand::Rng,
    ) {
        if notice.node == us.node.0 {
            self.handle_namesake(now, from, notice, us);
            return;
        }
        let own = |name: &str| self.own.values().any(|own| own.name == name);
        let Some(peer) = self.peers.take(now, from, notice, own, &mut self.counters) else {
            return;
        };
        self.counters.notices += 1;
        let gap = self.gap();
        if notice.asks {
            let within = gap.max(LEAST_GAP * 2);
            self.own.values_mut().for_each(|own| own.hasten(now, gap, within, 1, rng));
        }
        for entry in notice.groups.iter().filter(|entry| !entry.left) {
            for own in self.own.values_mut().filter(|own| own.name == entry.name) {
                if own.is_answering() && entry.checks.key == own.checks.key {
                    own.heard(now, self.peers.members(&own.name, own.checks.key));
                }
            }
        }
        for entry in notice.groups.iter() {
            self.examine(now, peer, &entry.name, Some(rng));
        }
    }

    /// A notice with this node's identity that is not this node's.
    /// Requirements: `R-CONTROLGROUP-6`.
    fn handle_namesake(
        &mut self,
        now: Instant,
        from: PeerAddr,
        notice: &GroupNotice,
        us: Identity<'_>,
    ) {
        self.counters.spoofed += 1;
        let first = match self.conflict {
            Some((address, first)) if address == from => first,
            _ => {
                self.conflict = Some((from, now));
                now
            }
        };
        // An earlier life's last words may come late.
        let alive = notice.incarnation >= us.incarnation || now.saturating_since(first) >= LATE;
        if alive && !self.conflict_told {
            self.conflict_told = true;
            let other = Noticed { node: us.node, name: notice.name.clone(), address: from };
            self.events.push_back(DiagnosisEvent::IdentityConflict { other });
        }
    }

    /// Compares what a peer says of a group with this node's own, and reports what is new. With a generator it
    /// answers, too.
    fn examine(
        &mut self,
        now: Instant,
        peer: (NodeId, u64),
        name: &str,
        rng: Option<&mut fastrand::Rng>,
    ) {
        let ours: Vec<(GroupId, Checks)> = self
            .own
            .iter()
            .filter(|(_, o)| o.name == name)
            .map(|(id, o)| (*id, o.checks))
            .collect();
        if ours.is_empty() {
            return;
        }
        let mut found = VecDeque::new();
        let differs = self.peers.compare(peer, name, &ours, &mut found);
        for event in found {
            self.gathered.take(now, event, &mut self.events);
        }
        if !differs {
            return;
        }
        let gap = self.gap();
        if let Some(rng) = rng {
            for own in self.own.values_mut().filter(|own| own.name == name) {
                own.answer(now, gap, rng);
            }
        }
    }

    /// The least time between two notices that others provoke.
    fn gap(&self) -> Duration {
        (PROVOKED * self.peers.len()).max(LEAST_GAP)
    }

    /// The time between two notices when nothing happens.
    fn period(&self) -> Duration {
        let all = self.peers.len() + 1;
        (Duration::from_secs(1) / NOTICES_PER_SECOND * all).clamp(MIN_PERIOD, MAX_PERIOD)
    }

    /// What is to be said now, if anything.
    pub(crate) fn poll_notice(
        &mut self,
        now: Instant,
        us: Identity<'_>,
        rng: &mut fastrand::Rng,
    ) -> Option<GroupNotice> {
        if self.due()? > now {
            return None;
        }
        let period = self.period();
        let asks = self.ask.is_some_and(|(at, _)| at <= now);
        if asks {
            self.ask = self.ask.and_then(|(_, left)| {
                let again = ASK_AGAIN * 2u32.pow(u32::from(ASKS.saturating_sub(left)));
                (left > 1).then(|| (now + again, left - 1))
            });
        }
        let mut notice = GroupNotice {
            node: us.node.0,
            incarnation: us.incarnation,
            at: now.as_micros(),
            name: us.name.into(),
            period_ms: u32::try_from(period.as_millis()).unwrap_or(u32::MAX),
            asks,
            groups: Default::default(),
        };
        own::fill(&mut notice, now, period, &mut self.own, &mut self.parted, &self.peers, rng);
        self.counters.sent += 1;
        Some(notice)
    }

    fn due(&self) -> Option<Instant> {
        let own = self.own.values().map(|own| own.next);
        let parted = self.parted.iter().map(|parted| parted.next);
        own.chain(parted).chain(self.ask.map(|(at, _)| at)).min()
    }

    /// When there is something to say, to tell, or somebody to forget.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.due(), self.peers.poll_timeout(), self.gathered.poll_timeout()];
        due.into_iter().flatten().min()
    }

    /// Tells of keys that differ, and forgets who fell silent.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.gathered.handle_timeout(now, &mut self.events);
        let own: Vec<(GroupId, String)> =
            self.own.iter().map(|(id, own)| (*id, own.name.clone())).collect();
        let mut over = VecDeque::new();
        self.peers.expire(now, &own, &mut over);
        for event in over {
            self.gathered.take(now, event, &mut self.events);
        }
    }

    /// What was found out.
    pub(crate) fn poll_event(&mut self) -> Option<DiagnosisEvent> {
        self.events.pop_front()
    }
}
