//! One stream of a publisher: what it does on each input, and what it sends next.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::company::Company;
use super::flow::{Flow, FlowChange, FlowPolicy, Hold, Receiver};
use super::repair::Repairs;
use super::window::Window;
use crate::addr::{NodeId, PeerAddr, Sequence, SessionId, StreamId};
use crate::rtt::GroupRtt;
use crate::time::Instant;
use crate::wire::control::{Gone, Heartbeat, Nak, Released, Status};

/// How a publisher behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The stream's name; subscribers choose by it.
    pub topic: String,
    /// Frames retained for repairs and history. Memory: this many path MTUs.
    pub window: usize,
    /// Whom the publisher waits for.
    pub policy: FlowPolicy,
    /// How long one subscriber may hold the publisher back without a step before it is let go.
    pub grace: Duration,
    /// How long a silent subscriber counts as alive. In large groups, where each speaks less often, it
    /// is at least eight of its intervals.
    pub receiver_timeout: Duration,
    /// How long a closing publisher waits for subscribers to have everything.
    pub linger: Duration,
    /// The first heartbeat after a frame; the next ones come after twice as long each, up to
    /// [`PublisherConfig::heartbeat_max`].
    pub heartbeat_min: Duration,
    /// The idle heartbeat.
    pub heartbeat_max: Duration,
    /// Subscribers that the publisher keeps apart; those above it are served but not waited for.
    pub max_receivers: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            topic: String::new(),
            window: 1024,
            policy: FlowPolicy::Slowest,
            grace: Duration::from_secs(10),
            receiver_timeout: Duration::from_secs(2),
            linger: Duration::from_secs(5),
            heartbeat_min: Duration::from_millis(2),
            heartbeat_max: Duration::from_millis(250),
            max_receivers: 1 << 14,
        }
    }
}

/// What happened to a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublisherEvent {
    /// The join was seen to work: an echo came back through the group, or a subscriber spoke.
    Ready,
    /// A subscriber is there.
    SubscriberJoined {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber left.
    SubscriberLeft {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber was not heard of any more.
    SubscriberLost {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber stayed behind, is no longer waited for, and was told.
    SubscriberReleased {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
        /// How long it held the publisher back.
        waited: Duration,
    },
    /// The stream is closed.
    Closed(Closed),
}

/// How a publisher's stream ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Names of subscribers that did not confirm everything while the publisher lingered.
    pub unconfirmed: Vec<String>,
}

/// A publisher's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherStats {
    /// New frames sent.
    pub frames: u64,
    /// Bytes of new frames.
    pub bytes: u64,
    /// NAK datagrams received.
    pub naks: u64,
    /// Distinct frames that were asked for.
    pub frames_asked: u64,
    /// Frames sent again, by unicast or multicast.
    pub repairs: u64,
    /// Of those, by multicast.
    pub multicast_repairs: u64,
    /// Requests that a repair on its way made needless.
    pub damped: u64,
    /// Requests for frames that are no longer retained.
    pub gone: u64,
    /// Statuses received.
    pub statuses: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Live subscribers.
    pub receivers: usize,
    /// The round trip to the slower subscribers.
    pub rtt: Duration,
    /// Everything before this is confirmed by all that are waited for.
    pub confirmed: Sequence,
    /// The first sequence not sent yet.
    pub head: Sequence,
}

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
    announce: Option<Instant>,
    ready: bool,
    closing: Option<Closing>,
    /// Frames sent in the current run: repairs and new frames take turns in runs, because a run of
    /// equal frames to one destination is cheap on every device.
    run: u32,
    in_repairs: bool,
    stats: PublisherStats,
}

#[derive(Clone, Copy, Debug)]
struct HeartbeatTimer {
    due: Instant,
    interval: Duration,
    last: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Closing {
    deadline: Instant,
    heartbeats: u32,
    done: bool,
}

/// Answers to peers that may wait at once: more come from a flood, and asking again is cheap.
const MAX_REPLIES: usize = 64;

/// How long a repair waits at most, in a small group, for others who lost the same frame.
const SMALL_GROUP_MERGE: Duration = Duration::from_micros(100);

/// Frames of one kind before the other gets its turn.
const RUN: u32 = 32;

/// A busy publisher sends a heartbeat this often, so that the round trip stays measured.
const BUSY_HEARTBEAT: Duration = Duration::from_millis(50);

/// A first announcement is repeated this often until the publisher is ready.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(20);

/// A publisher that stands still, or closes, asks for statuses this often at most.
const HELD_HEARTBEAT: Duration = Duration::from_millis(20);

/// A closing stream says so at least this often, for subscribers that are not waited for.
const END_HEARTBEATS: u32 = 3;

impl<T> PublishStream<T> {
    pub(crate) fn new(
        now: Instant,
        session: SessionId,
        stream: StreamId,
        config: PublisherConfig,
    ) -> Self {
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
            company: Company::new(now),
            freed: Vec::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            heartbeat: HeartbeatTimer { due: now + interval, interval, last: now },
            announce: Some(now),
            ready: false,
            closing: None,
            run: 0,
            in_repairs: false,
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
        if let Some(old) = self.window.push(frame) {
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
    }

    /// This node is reached elsewhere now.
    pub(crate) fn readdress(&mut self, now: Instant) {
        self.announce = Some(now);
    }

    /// One's own frame came back through the group: the join works.
    pub(crate) fn handle_echo(&mut self) {
        if !self.ready {
            self.ready = true;
            self.events.push_back(PublisherEvent::Ready);
        }
    }

    pub(crate) fn handle_query(&mut self, now: Instant, from: PeerAddr) {
        let waiting = self.replies.iter().filter(|r| matches!(r, Outgoing::Announce(..))).count();
        if waiting >= 4 {
            // Many ask: one answer to all.
            self.replies.retain(|r| !matches!(r, Outgoing::Announce(..)));
            self.announce = Some(now);
        } else if self.announce.is_none_or(|at| at > now) {
            let beat = self.beat(now);
            self.reply(Outgoing::Announce(Some(from), beat, false));
        }
    }

    pub(crate) fn handle_status(&mut self, now: Instant, from: PeerAddr, status: &Status) {
        self.stats.statuses += 1;
        if let Some(echo) = status.echo {
            let sent = micros(now).wrapping_sub(echo).wrapping_sub(status.held_us);
            // A sample beyond a minute is a clock that wrapped or a peer that lies.
            if sent < 60_000_000 {
                self.rtt.sample(Duration::from_micros(u64::from(sent)));
            }
        }
        let node = NodeId(status.node);
        let name = self.flow.receivers().get(&node).map(|r| r.name.clone());
        let (base, head) = (self.window.base(), self.window.head());
        match self.flow.update(now, from, status, base, head) {
            FlowChange::Joined => {
                self.handle_echo();
                let name = status.name.clone();
                self.events.push_back(PublisherEvent::SubscriberJoined { node, name });
            }
            FlowChange::Left => {
                let name = name.unwrap_or_default();
                self.events.push_back(PublisherEvent::SubscriberLeft { node, name });
            }
            FlowChange::Moved | FlowChange::Refused => {}
        }
        let receivers = self.group_size();
        let (round, missing) = (crate::subscribe::status_interval(receivers), self.flow.missing());
        self.company.observe(now, round, receivers, missing, self.stats.frames_asked);
    }

    pub(crate) fn handle_nak(&mut self, now: Instant, from: PeerAddr, nak: &Nak) {
        self.stats.naks += 1;
        self.flow.note_nak(now, from);
        let rtt = self.rtt.get();
        let many = !nak.local && self.company.is_many(self.group_size());
        let merge = match self.flow.count() {
            _ if nak.local || many => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            // All who lost it ask at once.
            n if n <= crate::rtt::SMALL_GROUP as usize => (rtt / 4).min(SMALL_GROUP_MERGE),
            _ => rtt / 2,
        };
        let asker = (!many).then_some(from);
        let (base, head) = (self.window.base(), self.window.head());
        let mut gone = false;
        for (first, count) in nak.ranges() {
            gone |= Sequence(first) < base;
            let last = Sequence(first).plus(u64::from(count)).min(head);
            let mut at = Sequence(first).max(base);
            while at < last {
                if self.window.is_damped(at, now, rtt, from) {
                    self.stats.damped += 1;
                } else {
                    let first = self.repairs.want(now, at, asker, merge);
                    self.stats.frames_asked += u64::from(first && !self.window.was_repaired(at));
                }
                at = at.next();
            }
        }
        if gone {
            self.stats.gone += 1;
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

    pub(crate) fn forgive(&mut self, pause: Duration) {
        self.flow.forgive(pause);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let timeout = self.receiver_timeout();
        while let Some((node, r)) = self.flow.expire(now, timeout) {
            self.events.push_back(PublisherEvent::SubscriberLost { node, name: r.name });
        }
        let head = self.window.head();
        if self.is_held()
            && let Some((node, waited)) = self.flow.held(now, head, self.config.grace)
        {
            let (name, address) = self
                .flow
                .receivers()
                .get(&node)
                .map(|r| (r.name.clone(), r.address))
                .expect("it was found in the table just now");
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.reply(Outgoing::Released(address, Released { node: node.0, waited_ms }));
            self.events.push_back(PublisherEvent::SubscriberReleased { node, name, waited });
        }
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
        if self.announce.is_some_and(|at| at <= now) {
            self.announce = (!self.ready).then(|| now + ANNOUNCE_INTERVAL);
            return Some(Outgoing::Announce(None, self.beat(now), true));
        }
        if let Some(frame) = self.poll_frame(now, may_send_new) {
            return Some(frame);
        }
        if self.heartbeat_due() <= now {
            return Some(Outgoing::Heartbeat(self.take_heartbeat(now)));
        }
        None
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
            Some(self.heartbeat_due()),
            self.announce,
            self.repairs.next_due(&self.window),
            self.flow.next_expiry(self.receiver_timeout()),
            closing,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether frames wait that flow control does not let go.
    fn is_held(&mut self) -> bool {
        self.window.queued() > 0 && self.window.head() >= self.flow.limit()
            || self.window.room(self.flow.confirmed()) == 0
    }

    /// Why the publisher stands still, if it does.
    pub(crate) fn hold(&mut self) -> Option<Hold> {
        let at = if self.window.queued() > 0 { self.window.head() } else { self.window.end() };
        self.flow.hold(at)
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = (NodeId, &Receiver)> {
        self.flow.receivers().iter().map(|(node, r)| (*node, r))
    }

    pub(crate) fn stats(&mut self) -> PublisherStats {
        let head = self.window.head();
        PublisherStats {
            receivers: self.flow.count(),
            rtt: self.rtt.get(),
            confirmed: self.flow.confirmed().min(head),
            head,
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

    fn check_closed(&mut self, now: Instant) {
        let head = self.window.head();
        let sent = self.window.queued() == 0;
        let Some(closing) = &mut self.closing else { return };
        if closing.done {
            return;
        }
        let confirmed = sent && self.flow.unconfirmed(head).next().is_none();
        if (confirmed && closing.heartbeats >= END_HEARTBEATS) || now >= closing.deadline {
            closing.done = true;
            let head = self.window.end();
            let unconfirmed = self.flow.unconfirmed(head).map(|r| r.name.clone()).collect();
            self.events.push_back(PublisherEvent::Closed(Closed { unconfirmed }));
        }
    }

    fn heartbeat_due(&self) -> Instant {
        self.heartbeat.due
    }

    fn take_heartbeat(&mut self, now: Instant) -> Heartbeat {
        let held = self.is_held();
        let max = if held || self.closing.is_some() {
            // Whoever holds the publisher back is asked often enough to be found dead soon; in large
            // groups each may answer less often.
            let spacing = crate::subscribe::status_spacing(self.group_size());
            (spacing / 4).clamp(HELD_HEARTBEAT, self.config.heartbeat_max.max(HELD_HEARTBEAT))
        } else {
            self.config.heartbeat_max
        };
        self.heartbeat.last = now;
        self.heartbeat.due = now + self.heartbeat.interval;
        self.heartbeat.interval = (self.heartbeat.interval * 2).min(max);
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
            wanted,
            end: self.closing.is_some() && self.window.queued() == 0,
        }
    }

    fn reply(&mut self, reply: Outgoing<T>) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(reply);
        }
    }

    /// Live subscribers that want repairs.
    fn group_size(&self) -> u32 {
        u32::try_from(self.flow.reliable()).unwrap_or(u32::MAX)
    }

    fn receiver_timeout(&self) -> Duration {
        let interval = crate::subscribe::status_interval(self.flow.count() as u32);
        self.config.receiver_timeout.max(interval * 8)
    }
}

/// A clock that wraps after 71 minutes: enough for a round trip.
fn micros(now: Instant) -> u32 {
    (now.as_micros() & u64::from(u32::MAX)) as u32
}
