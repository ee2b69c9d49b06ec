//! Flow control: which subscribers a publisher waits for, and how far it may go.
//!
//! Each subscriber's status says up to where it has everything (`next`) and where its room ends
//! (`edge`). A policy makes two numbers of them: the first sequence that must not be sent yet, and the
//! first that must stay retained. Requirements: `R-FLOW-1` to `R-FLOW-5`.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::time::Duration;

use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::time::Instant;
use crate::wire::control::Status;

/// Whom a publisher waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowPolicy {
    /// The slowest live subscriber: nobody loses anything as long as it is alive.
    #[default]
    Slowest,
    /// The `n` that are furthest ahead: with fewer than `n` the publisher is held back.
    Quorum(usize),
    /// The slowest of those that carry this tag; the others take what they can.
    Tagged(u32),
    /// Nobody: repairs reach as far back as the window does.
    Unlimited,
}

/// A subscriber as the publisher knows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: PeerAddr,
    /// Everything before this has been received there.
    pub next: Sequence,
    /// It has no room for this and later frames.
    pub edge: Sequence,
    /// When it was last heard of.
    pub heard: Instant,
    /// Receives posted to its SRQ when it last spoke.
    pub headroom: u32,
    /// Its tag.
    pub tag: Option<u32>,
    /// Whether it wants repairs.
    pub reliable: bool,
    /// Whether it is no longer waited for, because it stayed behind.
    pub released: bool,
    /// NAKs from it.
    pub naks: u64,
    /// Frames that it has missed so far.
    pub missing: u64,
    /// When the publisher first stood still because of it, with no step since.
    held_since: Option<Instant>,
}

/// What a status changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowChange {
    /// A subscriber that was not known.
    Joined,
    /// A known one.
    Moved,
    /// It left.
    Left,
    /// It was refused: the table is full.
    Refused,
}

/// Why a publisher may not send on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// A subscriber has no room.
    Subscriber {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
        /// Frames that it is behind.
        behind: u64,
        /// Receives posted to its SRQ when it last spoke: near 0, it is its receive queue that is dry.
        headroom: u32,
    },
    /// Fewer subscribers than the quorum are there.
    Quorum {
        /// Live subscribers.
        have: usize,
        /// The quorum.
        want: usize,
    },
}

/// The table of subscribers and what follows from it.
#[derive(Debug)]
pub(crate) struct Flow {
    policy: FlowPolicy,
    receivers: BTreeMap<NodeId, Receiver>,
    /// Who speaks from where: NAKs do not say whose they are.
    by_address: BTreeMap<PeerAddr, NodeId>,
    reliable: usize,
    /// Frames that subscribers have missed since they were first heard, all together.
    missing: u64,
    /// No receiver was last heard of before this: looked up anew only when it is long ago.
    heard_since: Instant,
    max_receivers: usize,
    /// Frames that are retained: no subscriber can be further behind than that.
    window: u64,
    /// Recomputed when needed: with thousands of subscribers not at every status.
    cached: Option<Marks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    /// The first sequence that must not be sent.
    limit: Sequence,
    /// The first sequence that must stay retained.
    confirmed: Sequence,
    holder: Option<NodeId>,
}

const FREE: Sequence = Sequence(u64::MAX);

impl Flow {
    pub(crate) fn new(policy: FlowPolicy, max_receivers: usize, window: usize) -> Self {
        let window = window as u64;
        Self {
            policy,
            receivers: BTreeMap::new(),
            by_address: BTreeMap::new(),
            reliable: 0,
            missing: 0,
            heard_since: Instant::ZERO,
            max_receivers,
            window,
            cached: None,
        }
    }

    pub(crate) fn receivers(&self) -> &BTreeMap<NodeId, Receiver> {
        &self.receivers
    }

    pub(crate) fn count(&self) -> usize {
        self.receivers.len()
    }

    /// Live subscribers that want repairs: the group size of NAK back-off.
    pub(crate) fn reliable(&self) -> usize {
        self.reliable
    }

    /// Frames that subscribers have missed, all together.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Takes a status. `oldest` is the oldest retained frame, `head` the first not yet sent: a
    /// subscriber cannot have more than was sent.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        from: PeerAddr,
        status: &Status,
        oldest: Sequence,
        head: Sequence,
    ) -> FlowChange {
        let node = NodeId(status.node);
        if status.leaving {
            return match self.remove(node) {
                Some(_) => FlowChange::Left,
                None => FlowChange::Moved,
            };
        }
        let next = Sequence(status.next).min(head);
        let edge = Sequence(status.edge).max(next).min(next.plus(self.window));
        if let Some(r) = self.receivers.get_mut(&node) {
            // A late status must not take back what a newer one said; an edge may shrink.
            let advanced = next > r.next;
            if next >= r.next {
                r.edge = edge;
                r.next = next;
            }
            r.heard = now;
            r.headroom = status.headroom;
            // Nobody can miss more than there is.
            self.missing += status.missing.saturating_sub(r.missing).min(self.window);
            r.missing = r.missing.max(status.missing);
            self.reliable = self.reliable + usize::from(status.reliable) - usize::from(r.reliable);
            r.reliable = status.reliable;
            if r.address != from {
                self.by_address.remove(&r.address);
                self.by_address.insert(from, node);
                r.address = from;
            }
            if advanced {
                r.held_since = None;
            }
            // Readmitted once it is within what the others still have to confirm.
            if r.released && r.next >= oldest && r.edge >= head {
                r.released = false;
            }
            self.cached = None;
            return FlowChange::Moved;
        }
        if self.receivers.len() >= self.max_receivers {
            return FlowChange::Refused;
        }
        let receiver = Receiver {
            name: status.name.clone(),
            address: from,
            next,
            edge,
            heard: now,
            headroom: status.headroom,
            tag: status.tag,
            reliable: status.reliable,
            // A joiner that is behind the window could never catch up; it must not hold others back.
            released: next < oldest,
            naks: 0,
            missing: status.missing,
            held_since: None,
        };
        if self.receivers.is_empty() {
            self.heard_since = now;
        }
        self.receivers.insert(node, receiver);
        self.by_address.insert(from, node);
        self.reliable += usize::from(status.reliable);
        self.cached = None;
        FlowChange::Joined
    }

    /// Counts a NAK of a subscriber, if it is known.
    pub(crate) fn note_nak(&mut self, now: Instant, from: PeerAddr) {
        let node = self.by_address.get(&from);
        if let Some(r) = node.and_then(|node| self.receivers.get_mut(node)) {
            r.naks += 1;
            r.heard = now;
        }
    }

    /// The first sequence that must not be sent.
    pub(crate) fn limit(&mut self) -> Sequence {
        self.marks().limit
    }

    /// The first sequence that must stay retained for subscribers that are waited for.
    pub(crate) fn confirmed(&mut self) -> Sequence {
        self.marks().confirmed
    }

    /// Whom the publisher waits for, if it may not send `head`.
    pub(crate) fn hold(&mut self, head: Sequence) -> Option<Hold> {
        let marks = self.marks();
        if head < marks.limit {
            return None;
        }
        if let FlowPolicy::Quorum(want) = self.policy
            && self.waited_for().count() < want
        {
            return Some(Hold::Quorum { have: self.waited_for().count(), want });
        }
        let node = marks.holder?;
        let r = self.receivers.get(&node)?;
        Some(Hold::Subscriber {
            node,
            name: r.name.clone(),
            behind: head.since(r.next),
            headroom: r.headroom,
        })
    }

    /// Notes that the publisher stands still before `head`, and lets go whoever has held it for
    /// `grace` without a step.
    pub(crate) fn held(
        &mut self,
        now: Instant,
        head: Sequence,
        grace: Duration,
    ) -> Option<(NodeId, Duration)> {
        let policy = self.policy;
        let mut released = None;
        for (node, r) in &mut self.receivers {
            let holds = is_waited_for(policy, r) && r.edge <= head;
            match (holds, r.held_since) {
                (false, _) => r.held_since = None,
                (true, None) => r.held_since = Some(now),
                (true, Some(since)) if now.saturating_since(since) >= grace => {
                    r.released = true;
                    r.held_since = None;
                    released = Some((*node, now.saturating_since(since)));
                    self.cached = None;
                    break;
                }
                (true, Some(_)) => {}
            }
        }
        released
    }

    /// Removes one subscriber that was not heard of for `timeout`.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> Option<(NodeId, Receiver)> {
        if now.saturating_since(self.heard_since) < timeout {
            return None;
        }
        let mut earliest = now;
        for (node, r) in &self.receivers {
            if now.saturating_since(r.heard) >= timeout {
                let node = *node;
                return self.remove(node).map(|r| (node, r));
            }
            earliest = earliest.min(r.heard);
        }
        self.heard_since = earliest;
        None
    }

    /// Moves every "last heard" on by `pause`: it was this node that slept.
    pub(crate) fn forgive(&mut self, pause: Duration) {
        for r in self.receivers.values_mut() {
            r.heard += pause;
            r.held_since = r.held_since.map(|t| t + pause);
        }
    }

    /// A time before which no subscriber will have been silent for `timeout`. It may come early: then
    /// [`Flow::expire`] finds nobody and the next one is later.
    pub(crate) fn next_expiry(&self, timeout: Duration) -> Option<Instant> {
        (!self.receivers.is_empty()).then(|| self.heard_since + timeout)
    }

    /// Live reliable subscribers that do not have everything before `head`.
    pub(crate) fn unconfirmed(&self, head: Sequence) -> impl Iterator<Item = &Receiver> {
        self.receivers.values().filter(move |r| r.reliable && !r.released && r.next < head)
    }

    fn remove(&mut self, node: NodeId) -> Option<Receiver> {
        let r = self.receivers.remove(&node)?;
        self.by_address.remove(&r.address);
        self.reliable -= usize::from(r.reliable);
        self.cached = None;
        Some(r)
    }

    fn waited_for(&self) -> impl Iterator<Item = (&NodeId, &Receiver)> {
        self.receivers.iter().filter(|(_, r)| is_waited_for(self.policy, r))
    }

    fn marks(&mut self) -> Marks {
        if let Some(marks) = self.cached {
            return marks;
        }
        let free = Marks { limit: FREE, confirmed: FREE, holder: None };
        let marks = match self.policy {
            FlowPolicy::Unlimited => free,
            FlowPolicy::Slowest | FlowPolicy::Tagged(_) => {
                self.waited_for().fold(free, |m, (node, r)| Marks {
                    confirmed: m.confirmed.min(r.next),
                    limit: m.limit.min(r.edge),
                    holder: if r.edge < m.limit { Some(*node) } else { m.holder },
                })
            }
            FlowPolicy::Quorum(want) => self.quorum(want.max(1)),
        };
        self.cached = Some(marks);
        marks
    }

    fn quorum(&self, want: usize) -> Marks {
        let mut edges: alloc::vec::Vec<_> =
            self.waited_for().map(|(node, r)| (r.edge, r.next, *node)).collect();
        if edges.len() < want {
            return Marks { limit: Sequence(0), confirmed: Sequence(0), holder: None };
        }
        edges.sort_unstable_by(|a, b| b.cmp(a));
        let (limit, _, node) = edges[want - 1];
        edges.sort_unstable_by_key(|e| core::cmp::Reverse(e.1));
        Marks { limit, confirmed: edges[want - 1].1, holder: Some(node) }
    }
}

fn is_waited_for(policy: FlowPolicy, r: &Receiver) -> bool {
    let tagged = match policy {
        FlowPolicy::Tagged(tag) => r.tag == Some(tag),
        FlowPolicy::Unlimited => false,
        _ => true,
    };
    tagged && r.reliable && !r.released
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, Qpn};

    fn addr(n: u32) -> PeerAddr {
        PeerAddr { gid: Gid::default(), qpn: Qpn::new(n), udp_port: 4791 }
    }

    fn status(node: u128, next: u64, edge: u64) -> Status {
        Status { node, next, edge, reliable: true, tag: Some(node as u32), ..Status::default() }
    }

    fn flow(policy: FlowPolicy, of: &[(u128, u64, u64)]) -> Flow {
        let mut flow = Flow::new(policy, 16, 1000);
        for &(node, next, edge) in of {
            let s = status(node, next, edge);
            flow.update(Instant::ZERO, addr(node as u32), &s, Sequence(0), Sequence(100));
        }
        flow
    }

    const THREE: [(u128, u64, u64); 3] = [(1, 10, 50), (2, 20, 40), (3, 30, 60)];

    #[test]
    fn each_policy_has_its_limit() {
        for (policy, limit, confirmed) in [
            (FlowPolicy::Slowest, 40, 10),
            (FlowPolicy::Quorum(1), 60, 30),
            (FlowPolicy::Quorum(2), 50, 20),
            (FlowPolicy::Quorum(4), 0, 0),
            (FlowPolicy::Tagged(3), 60, 30),
            (FlowPolicy::Tagged(9), u64::MAX, u64::MAX),
            (FlowPolicy::Unlimited, u64::MAX, u64::MAX),
        ] {
            let mut flow = flow(policy, &THREE);
            assert_eq!(flow.limit(), Sequence(limit), "{policy:?}");
            assert_eq!(flow.confirmed(), Sequence(confirmed), "{policy:?}");
        }
    }

    #[test]
    fn a_hold_names_the_subscriber_or_the_quorum() {
        let mut f = flow(FlowPolicy::Slowest, &THREE);
        assert_eq!(f.hold(Sequence(39)), None);
        assert!(matches!(
            f.hold(Sequence(40)),
            Some(Hold::Subscriber { node: NodeId(2), behind: 20, .. })
        ));
        let mut f = flow(FlowPolicy::Quorum(4), &THREE);
        assert_eq!(f.hold(Sequence(0)), Some(Hold::Quorum { have: 3, want: 4 }));
    }

    #[test]
    fn a_joiner_behind_the_window_holds_nobody_back() {
        let mut f = flow(FlowPolicy::Slowest, &THREE);
        let late = status(4, 5, 6);
        f.update(Instant::ZERO, addr(4), &late, Sequence(10), Sequence(100));
        assert_eq!(f.limit(), Sequence(40));
    }

    #[test]
    fn an_old_status_takes_nothing_back() {
        let mut f = flow(FlowPolicy::Slowest, &[(1, 10, 50)]);
        f.update(Instant::ZERO, addr(1), &status(1, 5, 9), Sequence(0), Sequence(100));
        assert_eq!(f.limit(), Sequence(50));
        // More than was sent cannot have been received.
        f.update(Instant::ZERO, addr(1), &status(1, u64::MAX, 9), Sequence(0), Sequence(100));
        assert_eq!(f.confirmed(), Sequence(100));
    }

    #[test]
    fn one_that_stays_behind_is_let_go_after_the_grace() {
        let mut f = flow(FlowPolicy::Slowest, &THREE);
        let grace = Duration::from_secs(1);
        let t = Instant::from_millis;
        assert_eq!(f.held(t(0), Sequence(40), grace), None);
        assert_eq!(f.held(t(999), Sequence(40), grace), None);
        assert_eq!(f.held(t(1000), Sequence(40), grace), Some((NodeId(2), grace)));
        assert_eq!(f.limit(), Sequence(50));
        // Back within the window, it is waited for again.
        f.update(t(1001), addr(2), &status(2, 100, 120), Sequence(10), Sequence(100));
        assert!(!f.receivers()[&NodeId(2)].released);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut f = Flow::new(FlowPolicy::Slowest, 2, 8);
        for n in 0..3 {
            let s = status(n, 0, 9);
            let change = f.update(Instant::ZERO, addr(0), &s, Sequence(0), Sequence(0));
            assert_eq!(change == FlowChange::Refused, n == 2);
        }
    }
}
