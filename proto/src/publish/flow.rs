//! Flow control: which subscribers a publisher waits for, and how far it may go.
//!
//! Each subscriber's status says up to where it has everything (`next`) and where its room ends
//! (`edge`). A policy makes two numbers of them: the first sequence that must not be sent yet, and the
//! first that must stay retained. Requirements: `R-FLOW-1` to `R-FLOW-5`.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::table::{Change, Receiver, Table};
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
    /// A reliable subscription of this node, which takes its own messages, has no room.
    Own,
}

/// The table of subscribers and what follows from it.
#[derive(Debug)]
pub(crate) struct Flow {
    policy: FlowPolicy,
    pub(crate) table: Table,
    /// Frames that are retained: no subscriber can be further behind than that.
    window: u64,
    /// Recomputed only when the last subscriber at a mark moved: with thousands of them, not at every
    /// status.
    cached: Option<Marks>,
    /// When [`Flow::held`] looks again.
    look_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    /// The first sequence that must not be sent.
    limit: Sequence,
    /// Subscribers whose room ends there.
    at_limit: usize,
    /// The first sequence that must stay retained.
    confirmed: Sequence,
    /// Subscribers that lack it.
    at_confirmed: usize,
}

const FREE: Sequence = Sequence(u64::MAX);

/// How exactly the grace is kept.
const LOOK: Duration = Duration::from_millis(5);

impl Flow {
    pub(crate) fn new(policy: FlowPolicy, max_receivers: usize, window: usize) -> Self {
        Self {
            policy,
            table: Table::new(max_receivers),
            window: window.max(1) as u64,
            cached: None,
            look_at: Instant::ZERO,
        }
    }

    /// Takes a status. `oldest` is the oldest retained frame, `head` the first not yet sent.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        from: PeerAddr,
        status: &Status,
        oldest: Sequence,
        head: Sequence,
    ) -> Change {
        let change = self.table.update(now, from, status, (oldest, head, self.window));
        match &change {
            Change::Moved { next, edge, same_kind: true } => self.step(status.node, *next, *edge),
            Change::Stale | Change::Spoofed | Change::Full => {}
            _ => self.cached = None,
        }
        change
    }

    /// Keeps the marks when one subscriber went on from `next` and `edge`.
    fn step(&mut self, node: u128, next: Sequence, edge: Sequence) {
        let Some(marks) = &mut self.cached else { return };
        let Some(r) = self.table.receivers().get(&NodeId(node)) else { return };
        if !is_waited_for(self.policy, r) {
            return;
        }
        if let FlowPolicy::Quorum(_) = self.policy {
            self.cached = None;
            return;
        }
        shift(&mut marks.limit, &mut marks.at_limit, edge, r.edge);
        shift(&mut marks.confirmed, &mut marks.at_confirmed, next, r.next);
        if marks.at_limit == 0 || marks.at_confirmed == 0 {
            self.cached = None;
        }
    }

    /// Removes one subscriber that was not heard of for `timeout`.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> Option<(NodeId, Receiver)> {
        let gone = self.table.expire(now, timeout)?;
        self.cached = None;
        Some(gone)
    }

    /// Removes a subscriber soon, unless it is heard of.
    pub(crate) fn part_soon(&mut self, now: Instant, node: NodeId, incarnation: u64) {
        self.table.part_soon(now, node, incarnation);
    }

    /// Removes a subscriber that is no member any more.
    pub(crate) fn part(&mut self, node: NodeId, incarnation: u64) -> Option<Receiver> {
        let gone = self.table.part(node, incarnation)?;
        self.cached = None;
        Some(gone)
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
        let limit = self.marks().limit;
        if head < limit {
            return None;
        }
        if let FlowPolicy::Quorum(want) = self.policy
            && self.waited_for().count() < want
        {
            return Some(Hold::Quorum { have: self.waited_for().count(), want });
        }
        let (node, r) =
            self.waited_for().filter(|(_, r)| r.edge <= limit).max_by_key(|(_, r)| {
                // Of several, the one that is furthest behind.
                (head.since(r.next), r.edge)
            })?;
        Some(Hold::Subscriber {
            node: *node,
            name: r.name.clone(),
            behind: head.since(r.next),
            headroom: r.headroom,
        })
    }

    /// Notes that the publisher stands still before `head`, and lets go whoever has held it for
    /// `grace` without a step. A quorum lets nobody go: that would only make it smaller.
    pub(crate) fn held(
        &mut self,
        now: Instant,
        head: Sequence,
        grace: Duration,
    ) -> Option<(NodeId, Duration)> {
        if now < self.look_at || matches!(self.policy, FlowPolicy::Quorum(_)) {
            return None;
        }
        let policy = self.policy;
        for (node, r) in self.table.receivers_mut() {
            let holds = is_waited_for(policy, r) && r.edge <= head;
            match (holds, r.held_since) {
                (false, _) => r.held_since = None,
                (true, None) => r.held_since = Some(now),
                (true, Some(since)) if now.saturating_since(since) >= grace => {
                    r.released = true;
                    r.held_since = None;
                    self.cached = None;
                    return Some((*node, now.saturating_since(since)));
                }
                (true, Some(_)) => {}
            }
        }
        self.look_at = now + LOOK;
        None
    }

    /// Live reliable subscribers that do not have everything before `end`.
    pub(crate) fn lacking(&self, end: Sequence) -> impl Iterator<Item = &Receiver> {
        let lacks = move |r: &&Receiver| r.reliable && (r.next < end || r.lost > 0);
        self.table.receivers().values().filter(lacks)
    }

    /// Whether all live subscribers that are waited for have everything, and know that it is all.
    pub(crate) fn all_ended(&self) -> bool {
        self.table.receivers().values().all(|r| r.ended || r.released || !r.reliable)
    }

    fn waited_for(&self) -> impl Iterator<Item = (&NodeId, &Receiver)> {
        self.table.receivers().iter().filter(|(_, r)| is_waited_for(self.policy, r))
    }

    fn marks(&mut self) -> Marks {
        if let Some(marks) = self.cached {
            return marks;
        }
        let mut marks = Marks { limit: FREE, at_limit: 1, confirmed: FREE, at_confirmed: 1 };
        match self.policy {
            FlowPolicy::Unlimited => {}
            FlowPolicy::Slowest | FlowPolicy::Tagged(_) => {
                for (_, r) in self.waited_for() {
                    shift(&mut marks.limit, &mut marks.at_limit, FREE, r.edge);
                    shift(&mut marks.confirmed, &mut marks.at_confirmed, FREE, r.next);
                }
            }
            FlowPolicy::Quorum(want) => {
                let (limit, confirmed) = self.quorum(want.max(1));
                marks = Marks { limit, confirmed, ..marks };
            }
        }
        self.cached = Some(marks);
        marks
    }

    /// The edge and progress that `want` subscribers have reached.
    fn quorum(&self, want: usize) -> (Sequence, Sequence) {
        let mut edges: Vec<_> = self.waited_for().map(|(_, r)| r.edge).collect();
        let mut nexts: Vec<_> = self.waited_for().map(|(_, r)| r.next).collect();
        if edges.len() < want {
            return (Sequence(0), Sequence(0));
        }
        let nth = |of: &mut [Sequence]| *of.select_nth_unstable_by(want - 1, |a, b| b.cmp(a)).1;
        (nth(&mut edges), nth(&mut nexts))
    }
}

/// Keeps the least of many numbers, `least`, and how many have it, when one goes from `before` to `after`.
fn shift(least: &mut Sequence, have_it: &mut usize, before: Sequence, after: Sequence) {
    if after < *least {
        (*least, *have_it) = (after, 1);
        return;
    }
    if before != after {
        *have_it += usize::from(after == *least);
        *have_it -= usize::from(before == *least && *have_it > 0);
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

    /// R-FLOW-1, R-FLOW-2.
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
    fn kept_marks_are_those_that_are_computed_anew() {
        let mut rng = fastrand::Rng::with_seed(5);
        for policy in [FlowPolicy::Slowest, FlowPolicy::Tagged(2), FlowPolicy::Quorum(3)] {
            let mut f = flow(policy, &[]);
            let mut at = [0u64; 6];
            for n in 0..5_000u64 {
                let who = rng.usize(..at.len());
                at[who] += rng.u64(..3);
                let edge = at[who] + rng.u64(..4);
                let mut s = status(who as u128 + 1, at[who], edge);
                s.tag = Some(rng.u32(1..=2));
                s.at = n;
                s.leaving = rng.u32(..50) == 0;
                f.update(Instant::ZERO, addr(who as u32), &s, Sequence(0), Sequence(u64::MAX));
                let kept = (f.limit(), f.confirmed());
                f.cached = None;
                assert_eq!(kept, (f.limit(), f.confirmed()), "{policy:?} step {n}");
            }
        }
    }

    /// R-FLOW-3.
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
        let mut f = flow(FlowPolicy::Quorum(2), &THREE);
        assert!(matches!(f.hold(Sequence(50)), Some(Hold::Subscriber { node: NodeId(1), .. })));
    }

    /// R-FLOW-4.
    #[test]
    fn a_joiner_behind_the_window_holds_nobody_back() {
        let mut f = flow(FlowPolicy::Slowest, &THREE);
        let late = status(4, 5, 6);
        f.update(Instant::ZERO, addr(4), &late, Sequence(10), Sequence(100));
        assert_eq!(f.limit(), Sequence(40));
    }

    /// R-FLOW-5.
    #[test]
    fn one_that_stays_behind_is_let_go_after_the_grace() {
        let mut f = flow(FlowPolicy::Slowest, &THREE);
        let grace = Duration::from_secs(1);
        let t = Instant::from_millis;
        assert_eq!(f.held(t(0), Sequence(40), grace), None);
        assert_eq!(f.held(t(999), Sequence(40), grace), None);
        assert_eq!(
            f.held(t(1004), Sequence(40), grace),
            Some((NodeId(2), t(1004).saturating_since(t(0))))
        );
        assert_eq!(f.limit(), Sequence(50));
        // Back within the window, it is waited for again.
        f.update(t(1005), addr(2), &status(2, 100, 120), Sequence(10), Sequence(100));
        assert!(!f.table.receivers()[&NodeId(2)].released);
        assert_eq!(f.limit(), Sequence(50));
    }

    #[test]
    fn a_quorum_lets_nobody_go() {
        let mut f = flow(FlowPolicy::Quorum(2), &THREE);
        for ms in [0, 10_000] {
            assert_eq!(
                f.held(Instant::from_millis(ms), Sequence(60), Duration::from_secs(1)),
                None
            );
        }
    }
}
