//! One stream of a publisher: what it does on each input, and what it sends next.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::company::Company;
use super::config::PublisherConfig;
use super::flow::{Flow, Hold};
use super::repair::Repairs;
use super::report::{Closed, PublisherEvent, PublisherStats};
use super::table::{Change, Receiver};
use super::window::{Earlier, Window};
use crate::addr::{NodeId, PeerAddr, Sequence, SessionId, StreamId};
use crate::rtt::{GroupRtt, SMALL_GROUP};
use crate::time::Instant;
use crate::wire::control::{Gone, Heartbeat, Nak, Released, Status};

/// What a stream wants to send.
#[derive(Debug)]
pub(crate) enum Outgoing<T> {
    /// A frame of the window, to the group or to one subscriber.
    Frame { sequence: Sequence, to: Option<PeerAddr>, frame: T, again: bool },
    /// A heartbeat to the group.
    Heartbeat(Heartbeat),
    /// A description, to the group or to one subscriber.
    Announce(Option<PeerAddr>, Heartbeat, bool),
    /// "No longer retained", to one subscriber.
    Gone(PeerAddr, Gone),
    /// "No longer waited for", to one subscriber.
    Released(PeerAddr, Released),
}

/// One stream of a publisher. See the [module](super).
#[derive(Debug)]
pub struct PublishStream<T> {
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(crate) config: PublisherConfig,
    pub(crate) born: Instant,
    window: Window<T>,
    flow: Flow,
    repairs: Repairs,
    rtt: GroupRtt,
    company: Company,
    freed: Vec<T>,
    events: VecDeque<PublisherEvent>,
    /// Answers that wait to be sent; bounded by [`MAX_REPLIES`].
    replies: VecDeque<Outgoing<T>>,
    heartbeat: HeartbeatTimer,
    announce: Option<AnnounceTimer>,
    ready: bool,
    closing: Option<Closing>,
    /// Names of subscribers that were lost while it closed, and lacked something.
    parted: Vec<String>,
    /// Frames sent in the current run: repairs and new frames take turns in runs, because a run of
    /// equal frames to one destination is cheap on every device.
    run: u32,
    in_repairs: bool,
    /// Subscribers that are expected, until those that are there have spoken.
    expected: u32,
    stats: PublisherStats,
}

#[derive(Clone, Copy, Debug)]
struct HeartbeatTimer {
    due: Instant,
    interval: Duration,
    last: Instant,
}

#[derive(Clone, Copy, Debug)]
struct AnnounceTimer {
    due: Instant,
    interval: Duration,
    /// How often it is repeated though the publisher is ready.
    more: u32,
}

impl AnnounceTimer {
    fn at(due: Instant) -> Self {
        Self { due, interval: ANNOUNCE_INTERVAL, more: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Closing {
    deadline: Instant,
    heartbeats: u32,
    done: bool,
}

/// Answers to peers that may wait at once: more come from a flood, and asking again is cheap.
/// Requirements: `R-BOUND-3`.
const MAX_REPLIES: usize = 64;

/// How long a repair waits at most, in a small group, for others who lost the same frame.
const SMALL_GROUP_MERGE: Duration = Duration::from_micros(100);

/// Frames of one kind before the other gets its turn.
const RUN: u32 = 32;

/// A busy publisher sends a heartbeat this often, so that the round trip stays measured.
const BUSY_HEARTBEAT: Duration = Duration::from_millis(50);

/// A first announcement is repeated so soon while the publisher is not ready, and then ever more slowly,
/// up to the other: a join takes some ten milliseconds to reach all switches.
/// Requirements: `R-READY-2`.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(20);
const MAX_ANNOUNCE_INTERVAL: Duration = Duration::from_millis(250);

/// A new address is announced so often: subscribers believe it once the old one has been silent.
const READDRESS_ANNOUNCES: u32 = 30;
const READDRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A publisher that is held back, or closes, sends a heartbeat at least this often: whoever holds it is
/// asked often enough to be found dead soon.
const HELD_HEARTBEAT: Duration = Duration::from_millis(20);

/// Answers to the question for a description that go one by one; more are answered by one to all.
const UNICAST_ANNOUNCES: usize = 4;

/// How long a new publisher expects the subscribers that its group's members are: statuses take that long.
const EXPECTING: Duration = Duration::from_secs(1);

/// A closing stream says so at least this often, for subscribers that are not waited for.
const END_HEARTBEATS: u32 = 3;

/// The time between those when no subscriber is known: nothing else keeps the stream.
const END_TO_NOBODY: Duration = Duration::from_millis(10);

impl<T> PublishStream<T> {
    pub(crate) fn new(
        now: Instant,
        session: SessionId,
        stream: StreamId,
        config: PublisherConfig,
    ) -> Self {
        let config = config.bounded();
        let interval = config.heartbeat_min;
        Self {
            session,
            stream,
            born: now,
            window: Window::new(config.window),
            flow: Flow::new(config.policy, config.max_receivers, config.window),
            config,
            repairs: Repairs::default(),
            rtt: GroupRtt::default(),
            company: Company::new(),
            freed: Vec::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            heartbeat: HeartbeatTimer { due: now + interval, interval, last: now },
            announce: Some(AnnounceTimer::at(now)),
            ready: false,
            closing: None,
            parted: Vec::new(),
            run: 0,
            in_repairs: false,
            expected: 0,
            stats: PublisherStats::default(),
        }
    }

    /// How many frames [`PublishStream::publish`] would take now.
    pub(crate) fn room(&mut self) -> usize {
        let confirmed = self.flow.confirmed();
        self.window.room(confirmed)
    }

    /// Queues the next frame. The caller has asked for room.
    pub(crate) fn publish(&mut self, frame: T) {
        self.window.push(frame);
        self.trim();
    }

    /// Lets go what is beyond the window's capacity and needed no more.
    fn trim(&mut self) {
        let confirmed = self.flow.confirmed();
        while let Some(old) = self.window.trim(confirmed) {
            self.freed.push(old);
        }
    }

    /// Gives back frames that are no longer retained.
    pub(crate) fn take_freed(&mut self, out: &mut Vec<T>) {
        out.append(&mut self.freed);
    }

    pub(crate) fn handle_sent(&mut self, sequence: Sequence, frame: T) {
        if let Some(frame) = self.window.put_back(sequence, frame) {
            self.freed.push(frame);
        }
        self.trim();
    }

    /// This node is reached elsewhere now.
    /// Requirements: `R-MOVE-1`.
    pub(crate) fn readdress(&mut self, now: Instant) {
        self.announce = Some(AnnounceTimer {
            due: now,
            interval: READDRESS_INTERVAL,
            more: READDRESS_ANNOUNCES,
        });
    }

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

    /// Starts to close: what was published is sent, and retained until subscribers have it or
    /// [`PublisherConfig::linger`] is over. Then [`PublisherEvent::Closed`].
    pub(crate) fn close(&mut self, now: Instant) {
        if self.closing.is_none() {
            let deadline = now + self.config.linger;
            self.closing = Some(Closing { deadline, heartbeats: 0, done: false });
            self.heartbeat.interval = self.config.heartbeat_min;
            self.heartbeat.due = now;
        }
    }

    pub(crate) fn forgive(&mut self, now: Instant, pause: Duration) {
        self.flow.table.forgive(now, pause);
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

    /// What to send next. Ask again until it is `None`, after every input and timeout. Without a control
    /// frame (`can_control`) only frames of the window can be sent; without room for own messages
    /// (`may_send_new`) only those that were sent before.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        can_control: bool,
        may_send_new: bool,
    ) -> Option<Outgoing<T>> {
        if self.is_closed() {
            return None;
        }
        if !can_control {
            return self.poll_frame(now, may_send_new);
        }
        if let Some(reply) = self.replies.pop_front() {
            return Some(reply);
        }
        if self.announce.is_some_and(|timer| timer.due <= now) {
            self.announce = self.announce.and_then(|timer| self.announce_again(now, timer));
            return Some(Outgoing::Announce(None, self.beat(now), true));
        }
        if let Some(frame) = self.poll_frame(now, may_send_new) {
            return Some(frame);
        }
        if self.heartbeat.due <= now {
            return Some(Outgoing::Heartbeat(self.take_heartbeat(now)));
        }
        None
    }

    fn announce_again(&self, now: Instant, timer: AnnounceTimer) -> Option<AnnounceTimer> {
        let AnnounceTimer { interval, more, .. } = timer;
        if more > 0 {
            return Some(AnnounceTimer { due: now + interval, interval, more: more - 1 });
        }
        let slower = (interval * 2).min(MAX_ANNOUNCE_INTERVAL);
        (!self.ready).then(|| AnnounceTimer { due: now + interval, interval: slower, more })
    }

    /// A frame: repairs and new ones in turn, in runs.
    fn poll_frame(&mut self, now: Instant, may_send_new: bool) -> Option<Outgoing<T>> {
        if self.run >= RUN {
            self.run = 0;
            self.in_repairs = !self.in_repairs;
        }
        self.run += 1;
        for _ in 0..2 {
            let next = if self.in_repairs {
                self.poll_repair(now)
            } else if may_send_new {
                self.poll_new(now)
            } else {
                None
            };
            if next.is_some() {
                return next;
            }
            self.in_repairs = !self.in_repairs;
            self.run = 1;
        }
        None
    }

    fn poll_repair(&mut self, now: Instant) -> Option<Outgoing<T>> {
        if self.repairs.is_empty() {
            return None;
        }
        let (sequence, to, frame) = self.repairs.take(now, &mut self.window)?;
        self.stats.repairs += 1;
        self.stats.multicast_repairs += u64::from(to.is_none());
        Some(Outgoing::Frame { sequence, to, frame, again: true })
    }

    fn poll_new(&mut self, now: Instant) -> Option<Outgoing<T>> {
        if self.window.queued() == 0 || self.window.head() >= self.flow.limit() {
            return None;
        }
        let (sequence, frame) = self.window.take_new()?;
        self.stats.frames += 1;
        self.heartbeat.interval = self.config.heartbeat_min;
        self.heartbeat.due =
            (now + self.config.heartbeat_min).min(self.heartbeat.last + BUSY_HEARTBEAT);
        Some(Outgoing::Frame { sequence, to: None, frame, again: false })
    }

    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        self.stats.bytes += bytes as u64;
    }

    pub(crate) fn poll_event(&mut self) -> Option<PublisherEvent> {
        self.events.pop_front()
    }

    /// When [`PublishStream::handle_timeout`] or [`PublishStream::poll_transmit`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed() {
            return None;
        }
        let closing = self.closing.map(|c| c.deadline);
        [
            Some(self.heartbeat.due),
            self.announce.map(|timer| timer.due),
            self.repairs.next_due(&self.window),
            self.flow.table.next_expiry(),
            closing,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether frames wait that flow control does not let go.
    fn is_held(&mut self) -> bool {
        if self.window.queued() > 0 {
            self.window.head() >= self.flow.limit()
        } else {
            self.room() == 0
        }
    }

    /// Why the publisher stands still, if it does.
    pub(crate) fn hold(&mut self) -> Option<Hold> {
        let at = if self.window.queued() > 0 { self.window.head() } else { self.window.end() };
        self.flow.hold(at)
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = (NodeId, &Receiver)> {
        self.flow.table.receivers().iter().map(|(node, r)| (*node, r))
    }

    pub(crate) fn receiver(&self, node: NodeId) -> Option<&Receiver> {
        self.flow.table.receivers().get(&node)
    }

    /// New frames sent.
    pub(crate) fn frames(&self) -> u64 {
        self.stats.frames
    }

    pub(crate) fn stats(&mut self) -> PublisherStats {
        let head = self.window.head();
        PublisherStats {
            receivers: self.flow.table.count(),
            rtt: self.rtt.get(),
            confirmed: self.flow.confirmed().min(head),
            head,
            retained: self.window.len(),
            ..self.stats.clone()
        }
    }

    /// Whether everything published has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.window.queued() == 0
    }

    fn is_closed(&self) -> bool {
        self.closing.is_some_and(|c| c.done)
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

    /// Requirements: `R-HEARTBEAT-4`, `R-HEARTBEAT-5`.
    fn take_heartbeat(&mut self, now: Instant) -> Heartbeat {
        let held = self.is_held();
        let max = if self.closing.is_some() && self.flow.table.receivers().is_empty() {
            END_TO_NOBODY
        } else if held || self.closing.is_some() {
            // In large groups each may answer less often.
            let spacing = crate::subscribe::status_spacing(self.group_size());
            (spacing / 4).clamp(HELD_HEARTBEAT, self.config.heartbeat_max.max(HELD_HEARTBEAT))
        } else {
            self.config.heartbeat_max
        };
        self.heartbeat.last = now;
        // Whoever was idle until now, and is held, does not wait for as long as the idle do.
        let interval = self.heartbeat.interval.min(max);
        self.heartbeat.due = now + interval;
        self.heartbeat.interval = (interval * 2).min(max);
        self.stats.heartbeats += 1;
        if self.window.queued() == 0
            && let Some(closing) = &mut self.closing
        {
            closing.heartbeats += 1;
        }
        self.beat(now)
    }

    fn beat(&mut self, now: Instant) -> Heartbeat {
        let wanted = self.is_held() || self.closing.is_some();
        Heartbeat {
            next: self.window.head().0,
            oldest: self.window.base().0,
            stamp: micros(now),
            rtt_us: u32::try_from(self.rtt.get().as_micros()).unwrap_or(u32::MAX),
            receivers: self.group_size(),
            losers: self.company.losers(self.group_size()),
            window: u32::try_from(self.config.window).unwrap_or(u32::MAX),
            wanted,
            end: self.closing.is_some() && self.window.queued() == 0,
        }
    }

    fn reply(&mut self, reply: Outgoing<T>) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(reply);
        }
    }

    /// Live subscribers that want repairs, or as many as are expected.
    fn group_size(&self) -> u32 {
        u32::try_from(self.flow.table.reliable()).unwrap_or(u32::MAX).max(self.expected)
    }

    fn receiver_timeout(&self) -> Duration {
        let interval = crate::subscribe::status_interval(self.flow.table.count() as u32);
        self.config.receiver_timeout.max(interval * 8)
    }
}

/// A clock that wraps after 71 minutes: enough for a round trip.
fn micros(now: Instant) -> u32 {
    (now.as_micros() & u64::from(u32::MAX)) as u32
}
