//! A group of a node: which datagram is for which of its publishers and streams.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::{Event, GroupId, NodeConfig, PublisherId, SubscriberId};
use crate::addr::{GroupTag, NodeId, PeerAddr, SessionId};
use crate::buf::RxFrame;
use crate::membership::Membership;
use crate::publish::PublishStream;
use crate::subscribe::stream::{ReceiveStream, StreamStats, Subscription};
use crate::subscribe::{Fate, Sharers, Speaker, StreamInfo, StreamKey, Upstream};
use crate::time::Instant;
use crate::wire::control::{self, Announce, Gone, Heartbeat, Nak, Released, Status, is_sound_name};
use crate::wire::frame::{Frame, FrameError, FrameHeader, FrameKind};

/// One group. Fields are open to the node, which is its only user.
#[derive(Debug)]
pub(super) struct Group<T, R> {
    pub(super) id: GroupId,
    pub(super) tag: GroupTag,
    pub(super) address: PeerAddr,
    pub(super) session: SessionId,
    pub(super) next_stream: u32,
    pub(super) publishers: BTreeMap<PublisherId, PublishStream<T>>,
    pub(super) subscriptions: BTreeMap<SubscriberId, Subscription>,
    pub(super) streams: BTreeMap<StreamKey, ReceiveStream<R>>,
    /// Streams whose publishers were silent for long. Should one come back, its subscribers get what
    /// follows, and nothing twice. Together with the others they are bounded by the same number.
    pub(super) dormant: BTreeMap<StreamKey, ReceiveStream<R>>,
    /// Last words to publishers, and questions to those that may be where another moved; bounded by the
    /// number of streams and how often each asks.
    pub(super) words: VecDeque<(PeerAddr, StreamKey, Upstream)>,
    pub(super) counters: GroupCounters,
    /// The numbers of streams that are no longer followed.
    pub(super) past: StreamStats,
    /// Frames that publishers sent which are no longer there.
    pub(super) sent: u64,
    /// Which publisher is asked first for something to send, and how often in a row it was.
    pub(super) turn: (PublisherId, u32),
    /// No stream has anything to say until something happens.
    pub(super) hush: bool,
    /// Since when nothing of it can leave.
    pub(super) blocked: Option<Instant>,
    /// Reassembly of own messages, for subscriptions that want them.
    pub(super) own: super::transmit::OwnDelivery,
    pub(super) members: Option<Membership>,
}

/// What a group dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCounters {
    /// Frames received and understood.
    pub frames: u64,
    /// One's own frames that came back.
    pub own: u64,
    /// Datagrams that are no frames, or of another version.
    pub malformed: u64,
    /// Datagrams of other programs.
    pub foreign: u64,
    /// Frames of another domain.
    pub wrong_domain: u64,
    /// Frames of another group.
    pub wrong_group: u64,
    /// Frames about a publisher's life that is over, or not one of this node's.
    pub stale: u64,
    /// Frames in another peer's name.
    pub spoofed: u64,
    /// Streams that were not followed because too many are.
    pub streams_refused: u64,
    /// Datagrams with another QKey, which the device drops and counts, that were surely for this group. The protocol
    /// never sees them: whoever drives the device fills this in.
    pub qkey_violations: u64,
}

/// One datagram and what is needed to handle it.
pub(super) struct Input<'a, R> {
    pub(super) now: Instant,
    pub(super) from: PeerAddr,
    pub(super) multicast: bool,
    pub(super) local: bool,
    pub(super) config: &'a NodeConfig,
    pub(super) headroom: u32,
    pub(super) rng: &'a mut fastrand::Rng,
    pub(super) out: &'a mut VecDeque<Event<R>>,
}

impl<T, R: RxFrame> Group<T, R> {
    pub(super) fn new(id: GroupId, tag: GroupTag, address: PeerAddr, session: SessionId) -> Self {
        Self {
            id,
            tag,
            address,
            session,
            next_stream: 0,
            publishers: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            streams: BTreeMap::new(),
            dormant: BTreeMap::new(),
            words: VecDeque::new(),
            counters: GroupCounters::default(),
            past: StreamStats::default(),
            sent: 0,
            turn: (PublisherId(0), 0),
            hush: false,
            blocked: None,
            own: Default::default(),
            members: None,
        }
    }

    pub(super) fn readdress(&mut self, now: Instant, address: PeerAddr) {
        self.address = address;
        self.hush = false;
        for p in self.publishers.values_mut() {
            p.readdress(now);
        }
        for s in self.streams.values_mut() {
            s.speak_soon();
        }
    }

    pub(super) fn forgive(&mut self, now: Instant, pause: Duration) {
        for p in self.publishers.values_mut() {
            p.forgive(now, pause);
        }
        for s in self.streams.values_mut() {
            s.forgive(now, pause);
        }
        if let Some(members) = &mut self.members {
            members.forgive(now, pause);
        }
    }

    pub(super) fn open_subscriber(
        &mut self,
        now: Instant,
        subscription: Subscription,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.hush = false;
        for s in self.streams.values_mut().chain(self.dormant.values_mut()) {
            s.attach(now, &subscription, out);
        }
        self.subscriptions.insert(subscription.id, subscription);
    }

    pub(super) fn close_subscriber(
        &mut self,
        now: Instant,
        id: SubscriberId,
        config: &NodeConfig,
        headroom: u32,
    ) {
        if self.subscriptions.remove(&id).is_none() {
            return;
        }
        self.own.forget(id);
        self.hush = false;
        for s in self.streams.values_mut() {
            if s.detach(id) {
                let status = s.farewell(now, &last_words(config, headroom));
                self.words.push_back((s.publisher, s.key, Upstream::Status(status)));
            }
        }
        self.dormant.retain(|_, s| !s.detach(id));
        if self.subscriptions.is_empty() {
            self.streams.retain(|_, s| !s.is_unknown());
        }
    }

    /// Requirements: `R-ID-1`, `R-ID-5`, `R-FRAME-2`.
    pub(super) fn handle_datagram(&mut self, input: &mut Input<'_, R>, frame: R) {
        let checked = match Frame::new_checked(frame.bytes()) {
            Ok(checked) => checked,
            Err(FrameError::Foreign) => {
                self.counters.foreign += 1;
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let header = *checked.header();
        if header.domain != input.config.domain {
            self.counters.wrong_domain += 1;
            return;
        }
        if header.group != self.tag {
            self.counters.wrong_group += 1;
            return;
        }
        self.counters.frames += 1;
        self.hush = false;
        if header.kind.is_of_members() {
            if self.handle_word(input, &header, checked.body()).is_err() {
                self.counters.malformed += 1;
            }
            return;
        }
        if header.session == self.session {
            self.handle_own(input, &header, checked.body());
            return;
        }
        let outcome = match header.kind {
            FrameKind::Data | FrameKind::Fragment => {
                self.handle_data(input, &header, frame);
                Ok(())
            }
            FrameKind::Query | FrameKind::Status => {
                // About a session that is not ours (any more): nobody to answer (case 112).
                self.counters.stale += 1;
                Ok(())
            }
            _ => {
                let body = checked.body();
                self.handle_control(input, &header, body)
            }
        };
        if outcome.is_err() {
            self.counters.malformed += 1;
        }
    }

    /// A frame of one's own session: an echo, or a subscriber's word to a publisher.
    fn handle_own(&mut self, input: &Input<'_, R>, header: &FrameHeader, body: &[u8]) {
        let Some(publisher) = self.publishers.values_mut().find(|p| p.stream == header.stream)
        else {
            self.counters.stale += 1;
            return;
        };
        let (now, from) = (input.now, input.from);
        let understood = match header.kind {
            FrameKind::Query => {
                publisher.handle_query(now, from);
                true
            }
            FrameKind::Status => match control::decode::<Status>(body) {
                Ok(status) if is_sound_name(&status.name) => {
                    publisher.handle_status(now, from, &status);
                    true
                }
                _ => false,
            },
            FrameKind::Nak => match control::decode::<Nak>(body) {
                Ok(nak) => {
                    publisher.handle_nak(now, from, &nak);
                    true
                }
                Err(_) => false,
            },
            _ => {
                self.counters.own += 1;
                if input.multicast && from == self.address {
                    publisher.handle_echo();
                }
                true
            }
        };
        if !understood {
            self.counters.malformed += 1;
        }
    }

    fn handle_data(&mut self, input: &mut Input<'_, R>, header: &FrameHeader, frame: R) {
        if self.subscriptions.is_empty() {
            return;
        }
        let Some(stream) = self.stream(input, header) else { return };
        let (now, local) = (input.now, input.local);
        stream.handle_frame(now, header.sequence, frame, local, input.rng, input.out);
    }

    fn handle_control(
        &mut self,
        input: &mut Input<'_, R>,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<(), FrameError> {
        let (now, local) = (input.now, input.local);
        let key = StreamKey { session: header.session, stream: header.stream };
        if self.subscriptions.is_empty() && !self.streams.contains_key(&key) {
            return Ok(());
        }
        match header.kind {
            FrameKind::Announce => {
                let announce = control::decode::<Announce>(body)?;
                if !is_sound_name(&announce.name) || !is_sound_name(&announce.topic) {
                    return Err(FrameError::Body);
                }
                self.handle_announce(input, header, &announce);
            }
            FrameKind::Heartbeat => {
                let beat = control::decode::<Heartbeat>(body)?;
                if let Some(stream) = self.stream(input, header) {
                    stream.handle_heartbeat(now, &beat, local, input.rng, input.out);
                    if stream.owes_farewell() {
                        let status =
                            stream.farewell(now, &last_words(input.config, input.headroom));
                        let publisher = stream.publisher;
                        self.words.push_back((publisher, key, Upstream::Status(status)));
                    }
                }
            }
            FrameKind::Gone => {
                let gone = control::decode::<Gone>(body)?;
                if let Some(stream) = self.known(input, key) {
                    let oldest = crate::addr::Sequence(gone.oldest);
                    stream.handle_gone(now, oldest, input.rng, input.out);
                }
            }
            FrameKind::Released => {
                let released = control::decode::<Released>(body)?;
                let us = input.config.id.0 == released.node;
                if let Some(stream) = self.known(input, key)
                    && us
                {
                    let waited = Duration::from_millis(released.waited_ms);
                    stream.handle_released(now, waited, input.out);
                }
            }
            FrameKind::Nak => {
                let nak = control::decode::<Nak>(body)?;
                // One that only this node got did not reach the publisher.
                if let Some(stream) = self.streams.get_mut(&key)
                    && input.multicast
                {
                    stream.handle_foreign_nak(now, &nak);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Requirements: `R-JOIN-1`, `R-RESTART-1` to `R-RESTART-3`, `R-SPOOF-1`.
    fn handle_announce(
        &mut self,
        input: &mut Input<'_, R>,
        header: &FrameHeader,
        announce: &Announce,
    ) {
        let now = input.now;
        let node = NodeId(announce.node);
        let key = StreamKey { session: header.session, stream: header.stream };
        if PeerAddr::from(announce.address) != input.from {
            // An announcement is about its own sender (case 126).
            self.counters.spoofed += 1;
            return;
        }
        let newer = |s: &ReceiveStream<R>| {
            s.key.session != key.session
                && s.incarnation > announce.incarnation
                && s.publisher.gid == input.from.gid
                && s.info().is_some_and(|i| i.node == node)
        };
        if node == input.config.id || self.streams.values().any(newer) {
            // A late word of an earlier life, or of somebody with this node's identity.
            self.counters.stale += 1;
            if self.streams.get(&key).is_some_and(|s| s.is_unknown() && s.publisher == input.from) {
                self.streams.remove(&key);
            }
            return;
        }
        let Some(stream) = self.stream(input, header) else { return };
        let known = stream.info().map(|i| i.node);
        if known.is_some_and(|known| known != node) || !stream.may_speak(now, input.from) {
            self.counters.spoofed += 1;
            return;
        }
        stream.incarnation = announce.incarnation;
        stream.publisher = input.from;
        if known.is_some() {
            let local = input.local;
            stream.handle_heartbeat(now, &announce.heartbeat, local, input.rng, input.out);
            return;
        }
        let info = stream.describe(node, &announce.name, &announce.topic);
        self.supersede(&info, announce.incarnation, input);
        let stream = self.streams.get_mut(&key).expect("it was there a moment ago");
        stream.resolve(now, announce, self.subscriptions.values(), input.rng, input.out);
    }

    /// A new life of a node takes the place of its earlier ones (case 110): at once on the same host, and
    /// elsewhere when the earlier one is silent. A stranger cannot end a stream that goes on.
    fn supersede(&mut self, by: &StreamInfo, incarnation: u64, input: &mut Input<'_, R>) {
        let is_earlier = |s: &ReceiveStream<R>| {
            s.key.session != by.key.session
                && s.incarnation < incarnation
                && s.info().is_some_and(|i| i.node == by.node && i.topic == by.topic)
        };
        for s in self.streams.values_mut().filter(|s| is_earlier(s)) {
            s.handle_successor(input.now, input.from, by, input.out);
        }
        self.dormant.retain(|_, s| {
            let earlier = is_earlier(s);
            if earlier {
                s.supersede(by, input.out);
            }
            !earlier
        });
    }

    /// The stream that a frame of its publisher belongs to; a new one if it was not known.
    /// Requirements: `R-SPOOF-2`.
    fn stream(
        &mut self,
        input: &Input<'_, R>,
        header: &FrameHeader,
    ) -> Option<&mut ReceiveStream<R>> {
        let key = StreamKey { session: header.session, stream: header.stream };
        if !self.streams.contains_key(&key) {
            self.follow(input, key, header.kind)?;
        }
        let stream = self.streams.get_mut(&key)?;
        if stream.publisher != input.from && header.kind != FrameKind::Announce {
            self.counters.spoofed += 1;
            if stream.asks_elsewhere(input.now) {
                self.words.push_back((input.from, key, Upstream::Query));
            }
            return None;
        }
        Some(stream)
    }

    /// Begins to follow a stream, or follows one again.
    fn follow(&mut self, input: &Input<'_, R>, key: StreamKey, kind: FrameKind) -> Option<()> {
        if let Some(stream) = self.dormant.get_mut(&key) {
            if stream.publisher != input.from && kind != FrameKind::Announce {
                self.counters.spoofed += 1;
                if stream.asks_elsewhere(input.now) {
                    self.words.push_back((input.from, key, Upstream::Query));
                }
                return None;
            }
            let stream = self.dormant.remove(&key)?;
            self.streams.insert(key, stream);
            return Some(());
        }
        if !self.may_follow(input, kind) {
            self.counters.streams_refused += 1;
            return None;
        }
        if self.streams.len() + self.dormant.len() >= input.config.max_streams {
            self.forget_longest_silent();
        }
        let capacity = input.config.receive_window;
        self.streams.insert(key, ReceiveStream::new(input.now, key, input.from, capacity));
        Some(())
    }

    /// A description settles a stream at once; others wait for theirs, and only so many.
    /// Requirements: `R-BOUND-1`.
    fn may_follow(&self, input: &Input<'_, R>, kind: FrameKind) -> bool {
        let of_peer = || self.streams.values().filter(|s| s.publisher == input.from);
        let unknown = || of_peer().filter(|s| s.is_unknown()).count();
        self.streams.len() < input.config.max_streams
            && of_peer().count() < input.config.max_streams_per_peer
            && (kind == FrameKind::Announce || unknown() < input.config.max_unknown_per_peer)
    }

    fn forget_longest_silent(&mut self) {
        let longest = self.dormant.iter().min_by_key(|(_, s)| s.last_heard).map(|(key, _)| *key);
        if let Some(key) = longest {
            self.dormant.remove(&key);
        }
    }

    fn known(&mut self, input: &Input<'_, R>, key: StreamKey) -> Option<&mut ReceiveStream<R>> {
        let stream = self.streams.get_mut(&key)?;
        if stream.publisher != input.from {
            self.counters.spoofed += 1;
            return None;
        }
        Some(stream)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        self.look_at_members(now, out);
        for p in self.publishers.values_mut() {
            p.handle_timeout(now);
        }
        self.hush = false;
        let mut asleep = Vec::new();
        let past = &mut self.past;
        self.streams.retain(|key, s| match s.handle_timeout(now, out) {
            Fate::Stays => true,
            Fate::Sleeps => {
                asleep.push(*key);
                true
            }
            Fate::Ends => {
                *past = *past + s.stats;
                false
            }
        });
        for key in asleep {
            let stream = self.streams.remove(&key).expect("it was there a moment ago");
            self.dormant.insert(key, stream);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let publishers = self.publishers.values().filter_map(PublishStream::poll_timeout);
        let streams = self.streams.values().filter_map(ReceiveStream::poll_timeout);
        let members = self.members.as_ref().and_then(Membership::poll_timeout);
        publishers.chain(streams).chain(members).min()
    }

    pub(super) fn poll_event(&mut self) -> Option<Event<R>> {
        self.publishers.iter_mut().find_map(|(id, p)| {
            p.poll_event().map(|event| Event::Publisher { publisher: *id, event })
        })
    }

    /// Shares the room of each subscription among the streams that fill it.
    /// Gives the streams that share the device's.
    pub(super) fn share_room(&mut self, now: Instant) -> Sharers {
        let mut all = Sharers::default();
        for s in self.subscriptions.values_mut() {
            (s.sharers, s.promised) = (Sharers::default(), 0);
        }
        for stream in self.streams.values().filter(|s| s.is_live()) {
            let busy = stream.is_busy(now);
            all.add(busy);
            for a in &stream.attached {
                if let Some(s) = self.subscriptions.get_mut(&a.subscriber) {
                    s.sharers.add(busy);
                    s.promised = s.promised.saturating_add(stream.promised());
                }
            }
        }
        all
    }

    /// The tag of this node: of its first subscription that has one.
    pub(super) fn tag(&self) -> Option<u32> {
        self.subscriptions.values().find_map(|s| s.config.tag)
    }

    /// Whether every reliable subscription that takes own messages of the publisher has room for a frame.
    pub(super) fn own_room(&self, publisher: PublisherId) -> bool {
        let full = |s: &Subscription| {
            s.config.own_messages && s.room == 0 && s.config.reliability.wants_repair()
        };
        let topic = self.publishers.get(&publisher).map_or("", |p| p.config.topic.as_str());
        !self.subscriptions.values().any(|s| full(s) && s.config.topics.matches(topic))
    }
}

/// What a node says of itself when its last subscription leaves.
fn last_words(config: &NodeConfig, headroom: u32) -> Speaker<'_> {
    Speaker {
        node: config.id,
        incarnation: config.incarnation,
        name: &config.name,
        headroom,
        room: 0,
        backlog: 0,
        tag: None,
        local_loss: false,
    }
}

/// The room that a stream's reliable subscriptions have for it.
pub(super) fn room_for<R: RxFrame>(
    stream: &ReceiveStream<R>,
    busy: bool,
    subscriptions: &BTreeMap<SubscriberId, Subscription>,
) -> usize {
    let reliable = stream.attached.iter().filter(|a| a.reliability.wants_repair());
    let mine = stream.promised();
    let rooms =
        reliable.filter_map(|a| subscriptions.get(&a.subscriber)).map(|s| s.share(mine, busy));
    rooms.min().unwrap_or(usize::MAX)
}
