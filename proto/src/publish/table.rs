//! The subscribers that a publisher knows: who they are, where, and since when they are silent.
//!
//! Words overtake each other and strangers lie, so a status counts only if it is newer than the one
//! before and comes from where the subscriber is. Requirements: `R-STATUS-1` to `R-STATUS-4`.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::time::Duration;

use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::time::Instant;
use crate::wire::control::Status;

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
    /// Whether it knows that the stream ended, and has all of it.
    pub ended: bool,
    /// Frames that it gave up.
    pub lost: u64,
    /// NAKs from it.
    pub naks: u64,
    /// Frames that it has missed so far.
    pub missing: u64,
    /// When the publisher first stood still because of it, with no step since.
    pub(super) held_since: Option<Instant>,
    /// It said to the group that it leaves: it is gone then, unless it is heard of.
    gone_at: Option<Instant>,
    stamp: Stamp,
}

/// Orders the statuses of a node: its life, and its own clock.
type Stamp = (u64, u64);

/// What a status changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A subscriber that was not known.
    Joined,
    /// A new life of a known one, whose name was this.
    Restarted(String),
    /// A known one, which was here.
    Moved { next: Sequence, edge: Sequence, same_kind: bool },
    /// It left; its name was this.
    Left(String),
    /// It was refused: the table is full.
    Full,
    /// It was overtaken by a newer one, or is from one that is not known.
    Stale,
    /// It came from somewhere else than its subscriber.
    Spoofed,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    receivers: BTreeMap<NodeId, Receiver>,
    by_address: BTreeMap<PeerAddr, NodeId>,
    /// Those that left, with their last word: an older one must not bring them back.
    departed: BTreeMap<NodeId, (Stamp, Instant)>,
    max: usize,
    /// How many want repairs.
    reliable: usize,
    /// Frames that subscribers have missed since they were first heard, all together.
    missing: u64,
    /// Nobody expires before this.
    check_at: Instant,
}

/// Departed subscribers that are remembered at once, and for how long: late words come within that.
const MAX_DEPARTED: usize = 64;
const DEPARTED: Duration = Duration::from_secs(5);

/// What a node said to this publisher before it left the group is here by then.
const PARTING: Duration = Duration::from_millis(100);

/// A subscriber that speaks from a new address is believed when the old one has been silent for so
/// many of its intervals: a stranger cannot take a live one's place.
const MOVE_INTERVALS: u32 = 3;

impl Table {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            receivers: BTreeMap::new(),
            by_address: BTreeMap::new(),
            departed: BTreeMap::new(),
            max,
            reliable: 0,
            missing: 0,
            check_at: Instant::ZERO,
        }
    }

    pub(crate) fn receivers(&self) -> &BTreeMap<NodeId, Receiver> {
        &self.receivers
    }

    pub(crate) fn receivers_mut(&mut self) -> impl Iterator<Item = (&NodeId, &mut Receiver)> {
        self.receivers.iter_mut()
    }

    pub(crate) fn count(&self) -> usize {
        self.receivers.len()
    }

    pub(crate) fn reliable(&self) -> usize {
        self.reliable
    }

    /// Frames that subscribers have missed, all together.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Takes a status. `oldest` is the oldest retained frame, `head` the first not yet sent, `window` how
    /// many can be retained: a subscriber cannot have more than was sent, nor be further behind.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        from: PeerAddr,
        status: &Status,
        (oldest, head, window): (Sequence, Sequence, u64),
    ) -> Change {
        let node = NodeId(status.node);
        let stamp = (status.incarnation, status.at);
        let interval = crate::subscribe::status_interval(self.count32());
        let next = Sequence(status.next).min(head);
        let edge = Sequence(status.edge).max(next).min(next.plus(window));
        let Some(r) = self.receivers.get_mut(&node) else {
            return self.admit(now, from, status, (oldest, next, edge));
        };
        if r.address != from && now.saturating_since(r.heard) < interval * MOVE_INTERVALS {
            return Change::Spoofed;
        }
        if stamp < r.stamp {
            return Change::Stale;
        }
        if status.leaving || stamp.0 > r.stamp.0 {
            let gone = self.remove(node).expect("it was found just now");
            if status.leaving {
                self.note_departed(now, node, stamp);
                return Change::Left(gone.name);
            }
            return match self.admit(now, from, status, (oldest, next, edge)) {
                Change::Joined => Change::Restarted(gone.name),
                other => other,
            };
        }
        let before = (r.next, r.edge);
        let same_kind = (r.reliable, r.tag) == (status.reliable, status.tag);
        if next > r.next {
            r.held_since = None;
        }
        // A subscriber never goes back; its room may shrink.
        r.next = r.next.max(next);
        r.edge = edge.max(r.next);
        (r.heard, r.gone_at) = (now, None);
        r.stamp = stamp;
        r.headroom = status.headroom;
        // Nobody can miss more than there is.
        self.missing += status.missing.saturating_sub(r.missing).min(window);
        r.missing = r.missing.max(status.missing);
        self.reliable -= usize::from(r.reliable);
        r.reliable = status.reliable;
        self.reliable += usize::from(r.reliable);
        r.tag = status.tag;
        r.ended = status.ended;
        r.lost = status.lost;
        if r.address != from {
            self.by_address.remove(&r.address);
            r.address = from;
            self.by_address.insert(from, node);
        }
        // Waited for again once it is within what is retained, and has room for what comes next.
        let readmitted = r.released && r.next >= oldest && r.edge > head;
        r.released &= !readmitted;
        let (next, edge) = before;
        Change::Moved { next, edge, same_kind: same_kind && !readmitted }
    }

    fn admit(
        &mut self,
        now: Instant,
        from: PeerAddr,
        status: &Status,
        (oldest, next, edge): (Sequence, Sequence, Sequence),
    ) -> Change {
        let node = NodeId(status.node);
        let stamp = (status.incarnation, status.at);
        let left = self.departed.get(&node);
        if status.leaving || left.is_some_and(|(last, _)| stamp <= *last) {
            return Change::Stale;
        }
        if self.receivers.len() >= self.max {
            return Change::Full;
        }
        self.departed.remove(&node);
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
            ended: status.ended,
            lost: status.lost,
            naks: 0,
            missing: status.missing,
            held_since: None,
            gone_at: None,
            stamp,
        };
        self.reliable += usize::from(receiver.reliable);
        self.by_address.insert(from, node);
        self.receivers.insert(node, receiver);
        Change::Joined
    }

    /// Counts a NAK of a subscriber.
    pub(crate) fn note_nak(&mut self, now: Instant, from: PeerAddr) {
        let node = self.by_address.get(&from);
        if let Some(r) = node.and_then(|n| self.receivers.get_mut(n)) {
            r.naks += 1;
            (r.heard, r.gone_at) = (now, None);
        }
    }

    /// Removes one subscriber that was not heard of for `timeout`.
    /// Requirements: `R-STATUS-9`.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> Option<(NodeId, Receiver)> {
        if now < self.check_at {
            return None;
        }
        let end = |r: &Receiver| r.gone_at.unwrap_or(r.heard + timeout);
        match self.receivers.iter().find(|(_, r)| end(r) <= now).map(|(node, _)| *node) {
            Some(node) => self.remove(node).map(|r| (node, r)),
            None => {
                // Whoever comes later is heard of later.
                let first = self.receivers.values().map(end).min();
                self.check_at = first.unwrap_or(now + timeout);
                None
            }
        }
    }

    /// Removes a subscriber that is no member of the group any more, unless it is there in a later life.
    /// Requirements: `R-MEMBER-20`.
    pub(crate) fn part(&mut self, node: NodeId, incarnation: u64) -> Option<Receiver> {
        let r = self.receivers.get(&node)?;
        if r.stamp.0 > incarnation { None } else { self.remove(node) }
    }

    /// Removes a subscriber that leaves the group, in a moment, unless it is heard of.
    /// Requirements: `R-MEMBER-20`.
    pub(crate) fn part_soon(&mut self, now: Instant, node: NodeId, incarnation: u64) {
        let Some(r) = self.receivers.get_mut(&node) else { return };
        if r.stamp.0 > incarnation {
            return;
        }
        r.gone_at.get_or_insert(now + PARTING);
        self.check_at = self.check_at.min(now + PARTING);
    }

    /// When [`Table::expire`] is to be asked next.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        (!self.receivers.is_empty()).then_some(self.check_at)
    }

    /// Moves every "last heard" on by `pause`: it was this node that slept.
    pub(crate) fn forgive(&mut self, now: Instant, pause: Duration) {
        for r in self.receivers.values_mut() {
            r.heard = (r.heard + pause).min(now);
            r.held_since = r.held_since.map(|t| (t + pause).min(now));
        }
    }

    fn remove(&mut self, node: NodeId) -> Option<Receiver> {
        let r = self.receivers.remove(&node)?;
        self.reliable -= usize::from(r.reliable);
        if self.by_address.get(&r.address) == Some(&node) {
            self.by_address.remove(&r.address);
        }
        Some(r)
    }

    fn note_departed(&mut self, now: Instant, node: NodeId, stamp: Stamp) {
        self.departed.retain(|_, (_, at)| now.saturating_since(*at) < DEPARTED);
        if self.departed.len() >= MAX_DEPARTED {
            self.departed.pop_first();
        }
        self.departed.insert(node, (stamp, now));
    }

    fn count32(&self) -> u32 {
        u32::try_from(self.receivers.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, Qpn};

    fn addr(n: u32) -> PeerAddr {
        PeerAddr { gid: Gid::default(), qpn: Qpn::new(n), udp_port: 4791 }
    }

    fn status(node: u128, at: u64, next: u64) -> Status {
        Status {
            node,
            at,
            next,
            edge: next.saturating_add(500),
            reliable: true,
            ..Status::default()
        }
    }

    fn update(table: &mut Table, now: Instant, from: u32, status: &Status) -> Change {
        table.update(now, addr(from), status, (Sequence(0), Sequence(100), 64))
    }

    const T: fn(u64) -> Instant = Instant::from_millis;

    /// R-STATUS-1.
    #[test]
    fn an_older_status_takes_nothing_back() {
        let mut t = Table::new(8);
        assert_eq!(update(&mut t, T(0), 1, &status(1, 5, 10)), Change::Joined);
        assert_eq!(update(&mut t, T(1), 1, &status(1, 4, 3)), Change::Stale);
        assert_eq!(t.receivers()[&NodeId(1)].next, Sequence(10));
        // R-STATUS-3: more than was sent cannot have been received, nor room beyond the window.
        update(&mut t, T(2), 1, &status(1, 6, u64::MAX));
        let r = &t.receivers()[&NodeId(1)];
        assert_eq!((r.next, r.edge), (Sequence(100), Sequence(164)));
    }

    /// Case 112, R-STATUS-1: a word that was overtaken by the farewell.
    #[test]
    fn a_late_status_does_not_bring_back_who_left() {
        let mut t = Table::new(8);
        update(&mut t, T(0), 1, &status(1, 5, 10));
        let bye = Status { leaving: true, ..status(1, 7, 12) };
        assert!(matches!(update(&mut t, T(1), 1, &bye), Change::Left(_)));
        assert_eq!(update(&mut t, T(2), 1, &status(1, 6, 11)), Change::Stale);
        assert_eq!(update(&mut t, T(2), 1, &bye), Change::Stale);
        // It may come back itself.
        assert_eq!(update(&mut t, T(3), 1, &status(1, 8, 12)), Change::Joined);
        assert_eq!((t.count(), t.reliable()), (1, 1));
    }

    /// Case 126, R-STATUS-2.
    #[test]
    fn nobody_speaks_for_a_live_subscriber() {
        let mut t = Table::new(8);
        update(&mut t, T(0), 1, &status(1, 5, 10));
        let bye = Status { leaving: true, ..status(1, 7, 12) };
        assert_eq!(update(&mut t, T(700), 2, &bye), Change::Spoofed);
        assert_eq!(t.count(), 1);
        // It has moved: the old address is silent.
        assert!(matches!(update(&mut t, T(750), 2, &status(1, 8, 12)), Change::Moved { .. }));
        t.note_nak(T(751), addr(1));
        t.note_nak(T(751), addr(2));
        assert_eq!(t.receivers()[&NodeId(1)].naks, 1);
    }

    #[test]
    fn a_new_life_begins_anew() {
        let mut t = Table::new(8);
        update(&mut t, T(0), 1, &status(1, 500, 90));
        let again = Status { incarnation: 1, ..status(1, 3, 20) };
        assert!(matches!(update(&mut t, T(1), 1, &again), Change::Restarted(_)));
        assert_eq!(t.receivers()[&NodeId(1)].next, Sequence(20));
        assert_eq!(update(&mut t, T(2), 1, &status(1, 501, 95)), Change::Stale);
    }

    /// R-STATUS-4.
    #[test]
    fn the_table_is_bounded() {
        let mut t = Table::new(2);
        for n in 0..3 {
            let change = update(&mut t, T(0), n, &status(u128::from(n), 0, 0));
            assert_eq!(change == Change::Full, n == 2);
        }
        for n in 0..1000u64 {
            let s = status(0, 2 * n, 0);
            update(&mut t, T(0), 0, &s);
            update(&mut t, T(0), 0, &Status { leaving: true, node: 0, at: 2 * n + 1, ..s });
        }
        assert!(t.departed.len() <= MAX_DEPARTED && t.by_address.len() == 1);
    }

    #[test]
    fn the_silent_expire_one_by_one() {
        let mut t = Table::new(8);
        let timeout = Duration::from_secs(2);
        for n in 1..=3 {
            update(&mut t, T(n), n as u32, &status(u128::from(n), 0, 0));
        }
        assert!(t.expire(T(1999), timeout).is_none());
        assert_eq!(t.next_expiry(), Some(T(2001)));
        update(&mut t, T(1999), 2, &status(2, 1, 1));
        assert_eq!(t.expire(T(2003), timeout).map(|(n, _)| n), Some(NodeId(1)));
        assert_eq!(t.expire(T(2003), timeout).map(|(n, _)| n), Some(NodeId(3)));
        assert!(t.expire(T(2003), timeout).is_none());
        // A sleeper forgives others, and does not look into the future.
        t.forgive(T(2500), Duration::from_secs(10));
        assert_eq!(t.receivers()[&NodeId(2)].heard, T(2500));
    }
}
