//! A group of a node: which datagram is for which of its publishers and streams.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::{Event, NodeConfig, PublisherId, SubscriberId};
use crate::addr::{GroupTag, NodeId, PeerAddr, SessionId};
use crate::buf::RxFrame;
use crate::publish::PublishStream;
use crate::subscribe::stream::{Phase, ReceiveStream, Speaker, StreamStats, Subscription};
use crate::subscribe::{Reliability, StreamKey};
use crate::time::Instant;
use crate::wire::control::{self, Announce, Gone, Heartbeat, Nak, Released, Status, is_sound_name};
use crate::wire::frame::{Frame, FrameError, FrameHeader, FrameKind};

/// One group. Fields are open to the node, which is its only user.
#[derive(Debug)]
pub(super) struct Group<T, R> {
    pub(super) tag: GroupTag,
    pub(super) address: PeerAddr,
    pub(super) session: SessionId,
    pub(super) next_stream: u32,
    pub(super) publishers: BTreeMap<PublisherId, PublishStream<T>>,
    pub(super) subscriptions: BTreeMap<SubscriberId, Subscription>,
    pub(super) streams: BTreeMap<StreamKey, ReceiveStream<R>>,
    /// Last words to publishers; bounded by the number of streams.
    pub(super) farewells: VecDeque<(PeerAddr, StreamKey, Status)>,
    pub(super) counters: GroupCounters,
    /// The numbers of streams that are no longer followed.
    pub(super) past: StreamStats,
    /// What is next asked for something to send.
    pub(super) cursor: usize,
    /// Reassembly of own messages, for subscriptions that want them.
    pub(super) own: super::transmit::OwnDelivery,
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
}

/// One datagram and what is needed to handle it.
pub(super) struct Input<'a, R> {
    pub(super) now: Instant,
    pub(super) from: PeerAddr,
    pub(super) multicast: bool,
    pub(super) local: bool,
    pub(super) config: &'a NodeConfig,
    pub(super) rng: &'a mut fastrand::Rng,
    pub(super) out: &'a mut VecDeque<Event<R>>,
}

impl<T, R: RxFrame> Group<T, R> {
    pub(super) fn new(tag: GroupTag, address: PeerAddr, session: SessionId) -> Self {
        Self {
            tag,
            address,
            session,
            next_stream: 0,
            publishers: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            streams: BTreeMap::new(),
            farewells: VecDeque::new(),
            counters: GroupCounters::default(),
            past: StreamStats::default(),
            cursor: 0,
            own: Default::default(),
        }
    }

    pub(super) fn readdress(&mut self, now: Instant, address: PeerAddr) {
        self.address = address;
        for p in self.publishers.values_mut() {
            p.readdress(now);
        }
        for s in self.streams.values_mut() {
            s.speak_soon(now);
        }
    }

    pub(super) fn forgive(&mut self, pause: Duration) {
        for p in self.publishers.values_mut() {
            p.forgive(pause);
        }
        for s in self.streams.values_mut() {
            s.last_heard += pause;
        }
    }

    pub(super) fn open_subscriber(
        &mut self,
        now: Instant,
        subscription: Subscription,
        out: &mut VecDeque<Event<R>>,
    ) {
        for s in self.streams.values_mut() {
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
        for s in self.streams.values_mut() {
            if s.detach(id) {
                let who = Speaker {
                    node: config.id,
                    name: &config.name,
                    headroom,
                    room: 0,
                    backlog: 0,
                    tag: None,
                    local_loss: false,
                };
                self.farewells.push_back((s.publisher, s.key, s.farewell(now, &who)));
            }
        }
    }

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
                }
            }
            FrameKind::Gone => {
                let gone = control::decode::<Gone>(body)?;
                if let Some(stream) = self.known(input, key) {
                    stream.handle_gone(now, crate::addr::Sequence(gone.oldest), input.out);
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
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.handle_foreign_nak(now, &nak);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_announce(
        &mut self,
        input: &mut Input<'_, R>,
        header: &FrameHeader,
        announce: &Announce,
    ) {
        let now = input.now;
        let node = NodeId(announce.node);
        let key = StreamKey { session: header.session, stream: header.stream };
        let stale = self.streams.values().any(|s| {
            s.key.session != key.session
                && s.incarnation > announce.incarnation
                && s.info().is_some_and(|i| i.node == node)
        });
        if stale || node == input.config.id {
            // A late word of an earlier life, or of somebody with this node's identity.
            self.counters.stale += 1;
            self.streams.remove(&key);
            return;
        }
        let Some(stream) = self.stream(input, header) else { return };
        let fresh = stream.info().is_none();
        stream.incarnation = announce.incarnation;
        if fresh {
            let wanted: Vec<&Subscription> = self.subscriptions.values().collect();
            let stream = self.streams.get_mut(&key).expect("it was there a moment ago");
            stream.resolve(now, announce, &wanted, input.rng, input.out);
        } else {
            let local = input.local;
            stream.handle_heartbeat(now, &announce.heartbeat, local, input.rng, input.out);
        }
        if fresh {
            self.supersede(key, announce, input);
        }
    }

    /// A new life of a node takes the place of its earlier ones (case 110).
    fn supersede(&mut self, key: StreamKey, announce: &Announce, input: &mut Input<'_, R>) {
        let Some(info) = self.streams.get(&key).and_then(|s| s.info().cloned()) else { return };
        for (k, s) in &mut self.streams {
            let earlier = k.session != key.session
                && s.incarnation < announce.incarnation
                && s.info().is_some_and(|i| i.node == info.node && i.topic == info.topic);
            if earlier && s.is_wanted() {
                s.supersede(&info, input.out);
            }
        }
    }

    /// The stream that a frame of its publisher belongs to; a new one if it was not known.
    fn stream(
        &mut self,
        input: &Input<'_, R>,
        header: &FrameHeader,
    ) -> Option<&mut ReceiveStream<R>> {
        let key = StreamKey { session: header.session, stream: header.stream };
        if !self.streams.contains_key(&key) && !self.may_follow(input) {
            self.counters.streams_refused += 1;
            return None;
        }
        let stream = self.streams.entry(key).or_insert_with(|| {
            ReceiveStream::new(input.now, key, input.from, input.config.receive_window)
        });
        if stream.publisher != input.from && header.kind != FrameKind::Announce {
            self.counters.spoofed += 1;
            return None;
        }
        Some(stream)
    }

    fn known(&mut self, input: &Input<'_, R>, key: StreamKey) -> Option<&mut ReceiveStream<R>> {
        let stream = self.streams.get_mut(&key)?;
        if stream.publisher != input.from {
            self.counters.spoofed += 1;
            return None;
        }
        Some(stream)
    }

    fn may_follow(&self, input: &Input<'_, R>) -> bool {
        let unknown = self
            .streams
            .values()
            .filter(|s| matches!(s.phase, Phase::Unknown { .. }) && s.publisher == input.from)
            .count();
        self.streams.len() < input.config.max_streams && unknown < input.config.max_unknown_per_peer
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        for p in self.publishers.values_mut() {
            p.handle_timeout(now);
        }
        let past = &mut self.past;
        self.streams.retain(|_, s| {
            let forget = s.handle_timeout(now, out);
            if forget {
                *past = *past + s.stats;
            }
            !forget
        });
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let publishers = self.publishers.values().filter_map(PublishStream::poll_timeout);
        let streams = self.streams.values().filter_map(ReceiveStream::poll_timeout);
        publishers.chain(streams).min()
    }

    pub(super) fn poll_event(&mut self) -> Option<Event<R>> {
        self.publishers.iter_mut().find_map(|(id, p)| {
            p.poll_event().map(|event| Event::Publisher { publisher: *id, event })
        })
    }

    /// Frames that a stream may have sent to it: what the reliable subscriptions have room for, shared
    /// among the streams.
    pub(super) fn room(&self) -> usize {
        let room = self
            .subscriptions
            .values()
            .filter(|s| s.config.reliability.wants_repair())
            .map(|s| s.room)
            .min()
            .unwrap_or(usize::MAX);
        if room == 0 { 0 } else { (room / self.wanted()).max(1) }
    }

    /// How many streams are wanted, at least one.
    pub(super) fn wanted(&self) -> usize {
        self.streams.values().filter(|s| s.is_wanted()).count().max(1)
    }

    pub(super) fn tag(&self) -> Option<u32> {
        self.subscriptions.values().find_map(|s| s.config.tag)
    }

    /// Whether every subscription that wants own messages of any topic has room for a frame.
    pub(super) fn own_room(&self) -> bool {
        self.subscriptions.values().all(|s| {
            !s.config.own_messages || s.room > 0 || s.config.reliability != Reliability::Ordered
        })
    }
}
