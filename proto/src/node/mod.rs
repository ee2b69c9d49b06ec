//! The top of the protocol: one node, its groups, publishers and subscribers.
//!
//! A [`Node`] is a value. The engine feeds it datagrams, sent frames and the time, and drains it:
//!
//! * after every `handle_*`, `publish`, `open_*` or `close_*`: [`Node::poll_transmit`] and
//!   [`Node::poll_event`] until each is `None`, then [`Node::poll_timeout`];
//! * when that time comes: [`Node::handle_timeout`].

mod control;
mod event;
mod group;
mod members;
mod transmit;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{Domain, GroupTag, NodeId, PeerAddr, Sequence, SessionId, StreamId};
use crate::buf::{RxFrame, TxFrame};
use crate::membership::{Membership, MembershipConfig};
use crate::publish::{Hold, PublishStream, PublisherConfig, PublisherStats, Receiver};
use crate::subscribe::stream::{ReceiveStream, Subscription};
use crate::subscribe::{StreamInfo, SubscriberConfig};
use crate::time::Instant;
use crate::wire::frame::{FrameHeader, FrameKind, sequence_of_checked};

pub use crate::subscribe::stream::StreamStats;
pub use control::{CONTROL_GROUP, control_qkey};
pub use event::{Event, FrameToken, GroupId, PublisherId, SubscriberId, To, Transmit};
use group::Group;
pub use group::GroupCounters;

/// Who a node is, and its bounds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Its identity.
    pub id: NodeId,
    /// Its life: a later one of the same identity has a greater number.
    pub incarnation: u64,
    /// The name that peers show.
    pub name: String,
    /// The host that it runs on, as members show it.
    pub host: String,
    /// The deployment that it belongs to.
    pub domain: Domain,
    /// Frames of a stream that a subscriber keeps while an earlier one is missing: beyond it a publisher is
    /// held back.
    pub receive_window: usize,
    /// Frames that may be on their way at once, all streams together: what the device holds before it is
    /// polled.
    pub backlog: usize,
    /// Streams that are followed in a group; more are refused and counted.
    pub max_streams: usize,
    /// Of those, streams of one peer.
    pub max_streams_per_peer: usize,
    /// Of those, streams of one peer that are not described yet.
    pub max_unknown_per_peer: usize,
    /// The pace and bounds of membership. Without it the node sends no beacons, has empty views, and
    /// learns nothing of others but by their streams.
    pub membership: Option<MembershipConfig>,
    /// Bytes that all streams together may keep: frames behind a gap, and pieces of messages that are not whole.
    pub max_kept: usize,
}

impl NodeConfig {
    /// A node with this identity and name and the default bounds, which takes no part in membership.
    pub fn new(id: NodeId, incarnation: u64, name: impl Into<String>) -> Self {
        Self {
            id,
            incarnation,
            name: name.into(),
            host: String::new(),
            domain: Domain(0),
            receive_window: 1024,
            backlog: usize::MAX,
            max_streams: 1024,
            max_streams_per_peer: 256,
            max_unknown_per_peer: 16,
            membership: None,
            max_kept: 256 << 20,
        }
    }
}

/// One node. See the [module](self).
#[derive(Debug)]
pub struct Node<T, R> {
    config: NodeConfig,
    rng: fastrand::Rng,
    groups: BTreeMap<GroupId, Group<T, R>>,
    next_id: u32,
    control: Vec<T>,
    control_group: control::Control,
    events: VecDeque<Event<R>>,
    /// Until when losses count as this node's own.
    local_loss_until: Instant,
    headroom: u32,
    last_turn: Instant,
    /// Which group is asked first for something to send, and how often in a row it was.
    turn: (GroupId, u32),
    /// Datagrams since it was last counted what streams keep.
    uncounted: usize,
}

/// What streams keep is counted after so many datagrams: it can have grown by as many path MTUs.
const COUNT_KEPT_EVERY: usize = 256;

/// After the device said that it dropped for want of a receive, gaps found within this time are taken for
/// that.
const LOCAL_LOSS: Duration = Duration::from_millis(5);

/// A node that had no turn for this long was asleep: peers are forgiven the pause.
const PAUSE: Duration = Duration::from_millis(500);

impl<T: TxFrame, R: RxFrame> Node<T, R> {
    /// A node that draws its random numbers from `seed`.
    pub fn new(now: Instant, config: NodeConfig, seed: u64) -> Self {
        Self {
            config,
            rng: fastrand::Rng::with_seed(seed),
            groups: BTreeMap::new(),
            next_id: 0,
            control: Vec::new(),
            control_group: control::Control::default(),
            events: VecDeque::new(),
            local_loss_until: Instant::ZERO,
            headroom: 0,
            last_turn: now,
            turn: (GroupId(0), 0),
            uncounted: 0,
        }
    }

    /// The node's own description.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Gives the node frames to put control bodies into. [`Node::handle_sent`] brings each back.
    pub fn supply(&mut self, frames: impl IntoIterator<Item = T>) {
        self.control.extend(frames);
    }

    /// Takes part in a group, in which this node is reached at `address`. It is a member from now on.
    /// Requirements: `R-ID-2`.
    pub fn join(&mut self, now: Instant, name: &str, address: PeerAddr) -> GroupId {
        let id = GroupId(self.id());
        let session = SessionId(self.rng.u64(..));
        let mut group = Group::new(id, GroupTag::of(name), address, session);
        if let Some(config) = self.config.membership.clone() {
            let own = members::own_info(&self.config, address);
            group.members = Some(Membership::new(now, own, config, self.rng.u64(..)));
        }
        self.groups.insert(id, group);
        id
    }

    /// This node is reached elsewhere now: subscribers and publishers are told.
    pub fn readdress(&mut self, now: Instant, group: GroupId, address: PeerAddr) {
        if self.control_group.is(group) {
            self.control_group.readdress(now, address);
        }
        if let Some(group) = self.groups.get_mut(&group) {
            group.readdress(now, address);
            group.readdress_member(now, &mut self.events);
        }
    }

    /// Leaves a group, with all that is open in it, at once. To part in good order, close publishers
    /// and subscribers first, and then [`part`](Self::part).
    pub fn leave(&mut self, group: GroupId) {
        self.control_group.leave(self.last_turn, group);
        self.groups.remove(&group);
    }

    /// Opens a stream. The header is what its [`Outbox`](crate::publish::Outbox) stamps on frames.
    pub fn open_publisher(
        &mut self,
        now: Instant,
        group: GroupId,
        config: PublisherConfig,
    ) -> Option<(PublisherId, FrameHeader)> {
        let id = PublisherId(self.id());
        let domain = self.config.domain;
        let g = self.groups.get_mut(&group)?;
        let stream = StreamId(g.next_stream);
        g.next_stream += 1;
        let header = FrameHeader {
            kind: FrameKind::Data,
            domain,
            group: g.tag,
            stream,
            session: g.session,
            sequence: Sequence(0),
        };
        let mut publisher = PublishStream::new(now, g.session, stream, config);
        publisher.expect(g.subscribing_members());
        g.publishers.insert(id, publisher);
        g.note_role(now, &mut self.events);
        Some((id, header))
    }

    /// Starts to close a stream: everything published is sent and retained until subscribers have it, or
    /// for the linger time. [`PublisherEvent::Closed`](crate::publish::PublisherEvent::Closed) follows.
    pub fn close_publisher(&mut self, now: Instant, publisher: PublisherId) {
        if let Some(p) = self.publisher(publisher) {
            p.close(now);
        }
    }

    /// Forgets a closed stream. Frames that the device still holds come back by
    /// [`Node::handle_sent`] and are dropped.
    pub fn remove_publisher(&mut self, publisher: PublisherId) {
        for g in self.groups.values_mut() {
            if let Some(p) = g.publishers.remove(&publisher) {
                g.sent += p.frames();
                g.own.forget_stream(p.stream);
                g.note_role(self.last_turn, &mut self.events);
            }
        }
    }

    /// How many frames [`Node::publish`] would take now.
    pub fn publisher_room(&mut self, publisher: PublisherId) -> usize {
        self.publisher(publisher).map_or(0, PublishStream::room)
    }

    /// Queues the next frame of a stream, as its outbox sealed it. Ask [`Node::publisher_room`] first.
    pub fn publish(&mut self, publisher: PublisherId, frame: T) {
        if let Some(p) = self.publisher(publisher) {
            p.publish(frame);
        }
    }

    /// Appends frames to `out` that are no longer retained.
    pub fn take_freed(&mut self, publisher: PublisherId, out: &mut Vec<T>) {
        if let Some(p) = self.publisher(publisher) {
            p.take_freed(out);
        }
    }

    /// Why a stream stands still, if it does.
    pub fn hold(&mut self, publisher: PublisherId) -> Option<Hold> {
        let g = self.groups.values_mut().find(|g| g.publishers.contains_key(&publisher))?;
        let own_room = g.own_room(publisher);
        let p = g.publishers.get_mut(&publisher)?;
        p.hold().or_else(|| (!own_room && !p.is_sent()).then_some(Hold::Own))
    }

    /// A stream's numbers.
    pub fn publisher_stats(&mut self, publisher: PublisherId) -> Option<PublisherStats> {
        self.publisher(publisher).map(PublishStream::stats)
    }

    /// Whether everything published was sent at least once.
    pub fn is_sent(&mut self, publisher: PublisherId) -> bool {
        self.publisher(publisher).is_none_or(|p| p.is_sent())
    }

    /// A stream's live subscribers.
    pub fn receivers(&mut self, publisher: PublisherId) -> Vec<(NodeId, Receiver)> {
        self.publisher(publisher)
            .map(|p| p.receivers().map(|(n, r)| (n, r.clone())).collect())
            .unwrap_or_default()
    }

    /// Opens a subscription. It has room for its whole queue until [`Node::set_room`] says otherwise.
    pub fn open_subscriber(
        &mut self,
        now: Instant,
        group: GroupId,
        config: SubscriberConfig,
    ) -> Option<SubscriberId> {
        let id = SubscriberId(self.id());
        let room = config.queue;
        let subscription = Subscription {
            id,
            config,
            opened: now,
            room,
            sharers: Default::default(),
            promised: 0,
        };
        let g = self.groups.get_mut(&group)?;
        g.open_subscriber(now, subscription, &mut self.events);
        g.note_role(now, &mut self.events);
        Some(id)
    }

    /// Closes a subscription; publishers are told.
    pub fn close_subscriber(&mut self, now: Instant, subscriber: SubscriberId) {
        for g in self.groups.values_mut() {
            g.close_subscriber(now, subscriber, &self.config, self.headroom);
            g.note_role(now, &mut self.events);
        }
    }

    /// Says how many more frames a subscription's queue takes. Call it before [`Node::poll_transmit`].
    pub fn set_room(&mut self, subscriber: SubscriberId, room: usize) {
        for g in self.groups.values_mut() {
            if let Some(s) = g.subscriptions.get_mut(&subscriber) {
                g.hush &= s.room == room;
                s.room = room;
            }
        }
    }

    /// Says how many receives are posted: statuses carry it.
    pub fn set_headroom(&mut self, posted: usize) {
        self.headroom = u32::try_from(posted).unwrap_or(u32::MAX);
    }

    /// The device dropped datagrams for want of a posted receive, or of time.
    pub fn handle_starvation(&mut self, now: Instant) {
        self.local_loss_until = now + LOCAL_LOSS;
    }

    /// Takes a datagram's payload that `from` sent to this node's queue pair of `group`.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        group: GroupId,
        from: PeerAddr,
        multicast: bool,
        frame: R,
    ) {
        self.wake(now);
        if self.control_group.is(group) {
            self.handle_control_datagram(now, from, frame.bytes());
            return;
        }
        let local = now < self.local_loss_until;
        if let Some(g) = self.groups.get_mut(&group) {
            let mut input = group::Input {
                now,
                from,
                multicast,
                local,
                config: &self.config,
                headroom: self.headroom,
                rng: &mut self.rng,
                out: &mut self.events,
            };
            g.handle_datagram(&mut input, frame);
        }
        self.uncounted += 1;
        if self.uncounted >= COUNT_KEPT_EVERY {
            self.uncounted = 0;
            self.bound_kept(now);
        }
    }

    /// Streams that keep more than their share give some of it up while all together keep too much.
    /// Requirements: `R-BOUND-5`.
    fn bound_kept(&mut self, now: Instant) {
        let share = self.config.max_kept / self.followed().count().max(1);
        let above = self.kept() > self.config.max_kept;
        for g in self.groups.values_mut() {
            for s in g.streams.values_mut().chain(g.dormant.values_mut()) {
                let crowded = (above && s.kept() > share).then_some(share);
                if crowded.is_some() || s.is_crowded() {
                    g.hush = false;
                    s.set_crowded(now, crowded, &mut self.rng, &mut self.events);
                }
            }
        }
    }

    /// Takes back a frame that the device has sent, or could not send.
    pub fn handle_sent(&mut self, token: FrameToken, frame: T) {
        let FrameToken::Stream(publisher) = token else {
            self.control.push(frame);
            return;
        };
        let sequence = sequence_of_checked(frame.bytes());
        if let Some(p) = self.publisher(publisher) {
            p.handle_sent(sequence, frame);
        }
    }

    /// Does what is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.wake(now);
        for g in self.groups.values_mut().filter(|g| g.blocked.is_none()) {
            g.handle_timeout(now, &mut self.events);
        }
        self.control_group.handle_timeout(now);
    }

    /// Says whether a group's frames cannot leave for now: until they can, [`Node::poll_transmit`] gives none of
    /// it, and nothing of it is due. Peers that it does not hear meanwhile are forgiven.
    /// Requirements: `R-SILENCE-3`.
    pub fn set_blocked(&mut self, now: Instant, group: GroupId, blocked: bool) {
        if self.control_group.is(group) {
            let pause = self.control_group.set_blocked(now, blocked);
            self.control_group.forgive(pause);
            return;
        }
        let Some(g) = self.groups.get_mut(&group) else { return };
        if blocked {
            g.blocked.get_or_insert(now);
        } else if let Some(since) = g.blocked.take() {
            let pause = now.saturating_since(since);
            if pause > PAUSE {
                g.forgive(now, pause);
            }
        }
    }

    /// Notices that this node slept through what was due: others did not go silent, it did not listen.
    /// Requirements: `R-SILENCE-3`.
    fn wake(&mut self, now: Instant) {
        let pause = now.saturating_since(self.last_turn);
        self.last_turn = now;
        if pause <= PAUSE {
            return;
        }
        let slept = self.poll_timeout().map_or(pause, |due| now.saturating_since(due));
        if slept > PAUSE {
            self.groups.values_mut().for_each(|g| g.forgive(now, slept));
            self.control_group.forgive(slept);
        }
    }

    /// When [`Node::handle_timeout`] or [`Node::poll_transmit`] has something to do, if nothing else
    /// happens before. Ask again after every input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let able = self.groups.values().filter(|g| g.blocked.is_none());
        able.filter_map(Group::poll_timeout).chain(self.control_group.poll_timeout()).min()
    }

    /// What happened. Ask until it is `None`, after every input.
    pub fn poll_event(&mut self) -> Option<Event<R>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some(event) = self.control_group.poll_event() {
            return Some(event);
        }
        self.groups.values_mut().find_map(Group::poll_event)
    }

    /// The streams of a group that are followed, with their numbers.
    pub fn streams(&self, group: GroupId) -> Vec<(StreamInfo, StreamStats)> {
        let Some(g) = self.groups.get(&group) else { return Vec::new() };
        g.streams.values().filter_map(|s| Some((s.info()?.clone(), s.stats))).collect()
    }

    /// The numbers of all streams that were ever followed in a group.
    pub fn stream_totals(&self, group: GroupId) -> StreamStats {
        let Some(g) = self.groups.get(&group) else { return StreamStats::default() };
        g.streams.values().chain(g.dormant.values()).fold(g.past, |sum, s| sum + s.stats)
    }

    /// A group's counters.
    pub fn group_counters(&self, group: GroupId) -> GroupCounters {
        if self.control_group.is(group) {
            return self.control_group.counters();
        }
        self.groups.get(&group).map(|g| g.counters).unwrap_or_default()
    }

    /// Received frames that the node itself keeps: they wait for a gap before them.
    pub fn frames_kept(&self) -> usize {
        self.groups.values().flat_map(|g| g.streams.values()).map(|s| s.waiting()).sum()
    }

    /// About how many bytes all streams keep: frames behind gaps, and pieces of messages that are not whole.
    pub fn kept(&self) -> usize {
        self.followed().map(ReceiveStream::kept).sum()
    }

    fn followed(&self) -> impl Iterator<Item = &ReceiveStream<R>> {
        self.groups.values().flat_map(|g| g.streams.values().chain(g.dormant.values()))
    }

    /// Frames for control bodies that the node has at hand.
    pub fn control_frames(&self) -> usize {
        self.control.len()
    }

    fn publisher(&mut self, id: PublisherId) -> Option<&mut PublishStream<T>> {
        self.groups.values_mut().find_map(|g| g.publishers.get_mut(&id))
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }
}
