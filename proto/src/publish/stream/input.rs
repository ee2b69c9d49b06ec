//! What a stream does when something comes in, or time has passed.

use core::time::Duration;

use super::super::report::{Closed, PublisherEvent};
use super::super::table::{Change, Receiver};
use super::super::window::Earlier;
use super::{
    AnnounceTimer, Closing, END_HEARTBEATS, HELD_HEARTBEAT, Outgoing, PublishStream, micros,
};
use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::rtt::SMALL_GROUP;
use crate::time::Instant;
use crate::wire::control::{Gone, Nak, Released, Status};

/// How long a repair waits at most, in a small group, for others who lost the same frame.
const SMALL_GROUP_MERGE: Duration = Duration::from_micros(100);

/// Answers to the question for a description that go one by one; more are answered by one to all.
const UNICAST_ANNOUNCES: usize = 4;

/// How long a new publisher expects the subscribers that its group's members are: statuses take that long.
const EXPECTING: Duration = Duration::from_secs(1);

impl<T> PublishStream<T> {
    /// One's own frame came back through the group: the join works.
    /// Requirements: `R-READY-1`.
    pub(crate) fn handle_echo(&mut self) {
        if !self.ready {
            self.ready = true;
            self.events.push_back(PublisherEvent::Ready);
        }
    }

    /// Requirements: `R-JOIN-5`.
    pub(crate) fn handle_query(&mut self, now: Instant, from: PeerAddr) {
        let waiting = self.replies.iter().filter(|r| matches!(r, Outgoing::Announce(..))).count();
        if waiting >= UNICAST_ANNOUNCES {
            self.replies.retain(|r| !matches!(r, Outgoing::Announce(..)));
            let timer = self.announce.get_or_insert(AnnounceTimer::at(now));
            timer.due = timer.due.min(now);
        } else if self.announce.is_none_or(|timer| timer.due > now) {
            let beat = self.beat(now);
            self.reply(Outgoing::Announce(Some(from), beat, false));
        }
    }

    pub(crate) fn handle_status(&mut self, now: Instant, from: PeerAddr, status: &Status) {
        self.stats.statuses += 1;
        let node = NodeId(status.node);
        let (base, head) = (self.window.base(), self.window.head());
        let change = self.flow.update(now, from, status, base, head);
        match &change {
            Change::Joined => self.joined(node, status),
            Change::Restarted(before) => {
                let name = before.clone();
                self.events.push_back(PublisherEvent::SubscriberLost { node, name });
                self.joined(node, status);
            }
            Change::Left(name) => {
                let name = name.clone();
                self.events.push_back(PublisherEvent::SubscriberLeft { node, name });
            }
            Change::Moved { .. } => {}
            Change::Full => self.stats.refused += 1,
            Change::Stale => self.stats.stale += 1,
            Change::Spoofed => self.stats.spoofed += 1,
        }
        if !matches!(change, Change::Joined | Change::Restarted(_) | Change::Moved { .. }) {
            return;
        }
        if let Some(echo) = status.echo {
            let sent = micros(now).wrapping_sub(echo).wrapping_sub(status.held_us);
            // A sample beyond a minute is a clock that wrapped or a peer that lies.
            if sent < 60_000_000 {
                self.rtt.sample(Duration::from_micros(u64::from(sent)));
            }
        }
        let receivers = self.group_size();
        let round = crate::subscribe::status_interval(receivers);
        let (missing, asked) = (self.flow.table.missing(), self.stats.frames_asked);
        self.company.observe(now, round, receivers, missing, asked);
        self.trim();
    }

    fn joined(&mut self, node: NodeId, status: &Status) {
        self.handle_echo();
        let name = status.name.clone();
        self.events.push_back(PublisherEvent::SubscriberJoined { node, name });
    }

    /// Requirements: `R-REPAIR-1` to `R-REPAIR-5`.
    pub(crate) fn handle_nak(&mut self, now: Instant, from: PeerAddr, nak: &Nak) {
        self.stats.naks += 1;
        self.flow.table.note_nak(now, from);
        let rtt = self.rtt.get();
        let many = !nak.local && self.company.is_many(self.group_size());
        let merge = match self.flow.table.count() {
            _ if nak.local => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            // All who lost it ask at once.
            n if n <= SMALL_GROUP as usize => (rtt / 4).min(SMALL_GROUP_MERGE),
            _ => rtt / 2,
        };
        let (base, head) = (self.window.base(), self.window.head());
        let mut gone = false;
        for (first, count) in nak.ranges() {
            gone |= Sequence(first) < base;
            let last = Sequence(first).plus(u64::from(count)).min(head);
            let mut at = Sequence(first).max(base);
            while at < last {
                match self.window.earlier(at, now, rtt, from) {
                    Earlier::OnItsWay => self.stats.damped += 1,
                    Earlier::AskedByAnother if !nak.local => {
                        self.repairs.want_for_all(now, at);
                    }
                    earlier if many => {
                        let first = self.repairs.want_for_all(now, at);
                        self.stats.frames_asked += u64::from(first && earlier == Earlier::None);
                    }
                    earlier => {
                        let first = self.repairs.want(now, at, from, merge);
                        self.stats.frames_asked += u64::from(first && earlier == Earlier::None);
                    }
                }
                at = at.next();
            }
        }
        if gone {
            self.stats.gone += 1;
            let same = |r: &Outgoing<T>| matches!(r, Outgoing::Gone(to, _) if *to == from);
            self.replies.retain(|r| !same(r));
            self.reply(Outgoing::Gone(from, Gone { oldest: base.0 }));
        }
    }

    /// A node is no member of the group any more, in this life: nobody waits for it.
    /// Requirements: `R-MEMBER-20`.
    pub(crate) fn part(&mut self, now: Instant, node: NodeId, incarnation: u64) {
        if let Some(r) = self.flow.part(node, incarnation) {
            self.lose(node, r);
            self.trim();
            self.check_closed(now);
        }
    }

    /// A node said to the group that it leaves, in this life. What it said to this publisher before went another
    /// way, and may still come: a last status tells more than that it is gone.
    /// Requirements: `R-MEMBER-20`.
    pub(crate) fn part_soon(&mut self, now: Instant, node: NodeId, incarnation: u64) {
        self.flow.part_soon(now, node, incarnation);
    }

    fn lose(&mut self, node: NodeId, r: Receiver) {
        if self.closing.is_some() && r.reliable && r.next < self.window.end() {
            self.parted.push(r.name.clone());
        }
        self.events.push_back(PublisherEvent::SubscriberLost { node, name: r.name });
    }

    /// So many members subscribe: back-off is for as many until their statuses have told better.
    /// Requirements: `R-MEMBER-21`.
    pub(crate) fn expect(&mut self, subscribers: u32) {
        self.expected = subscribers;
    }

    pub(crate) fn forgive(&mut self, now: Instant, pause: Duration) {
        self.flow.table.forgive(now, pause);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let timeout = self.receiver_timeout();
        while let Some((node, r)) = self.flow.expire(now, timeout) {
            self.lose(node, r);
        }
        if now.saturating_since(self.born) >= EXPECTING {
            self.expected = 0;
        }
        let head = self.window.head();
        let held = self.is_held();
        if held && self.heartbeat.due > now + HELD_HEARTBEAT {
            self.heartbeat.interval = self.config.heartbeat_min;
            self.heartbeat.due = now + HELD_HEARTBEAT;
        }
        if held && let Some((node, waited)) = self.flow.held(now, head, self.config.grace) {
            let (name, address) = self
                .flow
                .table
                .receivers()
                .get(&node)
                .map(|r| (r.name.clone(), r.address))
                .expect("it was found in the table just now");
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.reply(Outgoing::Released(address, Released { node: node.0, waited_ms }));
            self.events.push_back(PublisherEvent::SubscriberReleased { node, name, waited });
        }
        self.trim();
        self.check_closed(now);
    }

    /// Closed once all live subscribers have everything and know that it is the end, and the end has been
    /// told a few times; or when the linger time is over. `R-CLOSE-1`, `R-CLOSE-2`.
    fn check_closed(&mut self, now: Instant) {
        let Some(Closing { deadline, heartbeats, done: false }) = self.closing else { return };
        let end = self.window.end();
        if now < deadline {
            let told = self.is_sent() && heartbeats >= END_HEARTBEATS;
            if !told || !self.flow.all_ended() {
                return;
            }
        }
        self.closing = Some(Closing { deadline, heartbeats, done: true });
        let mut unconfirmed = core::mem::take(&mut self.parted);
        unconfirmed.extend(self.flow.lacking(end).map(|r| r.name.clone()));
        self.events.push_back(PublisherEvent::Closed(Closed { unconfirmed }));
    }

    fn receiver_timeout(&self) -> Duration {
        let interval = crate::subscribe::status_interval(self.flow.table.count() as u32);
        self.config.receiver_timeout.max(interval * 8)
    }
}
