//! What a node sends next, and what of it it hands to its own subscriptions.

use alloc::collections::{BTreeMap, VecDeque};

use super::group::room_for;
use super::{Event, FrameToken, Group, GroupId, Node, PublisherId, SubscriberId, To, Transmit};
use crate::addr::{PeerAddr, Sequence, SessionId, StreamId};
use crate::buf::{RxFrame, TxFrame};
use crate::publish::Outgoing;
use crate::subscribe::assembly::InOrder;
use crate::subscribe::{Speaker, StreamKey, Upstream};
use crate::time::Instant;
use crate::wire::control::{self, Announce};
use crate::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind, fragment_of_checked};

/// Own messages on their way to this node's own subscriptions.
#[derive(Debug, Default)]
pub(super) struct OwnDelivery {
    parts: BTreeMap<(SubscriberId, StreamId), InOrder>,
}

impl OwnDelivery {
    pub(super) fn forget(&mut self, subscriber: SubscriberId) {
        self.parts.retain(|(s, _), _| *s != subscriber);
    }

    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        self.parts.retain(|(_, s), _| *s != stream);
    }
}

/// Frames of one group, or of one publisher in it, before the next gets its turn: a run of equal frames
/// is cheap on every device, and nobody waits for a whole window.
/// Requirements: `R-PUBLISH-3`.
const RUN: u32 = 32;

/// A control frame to be written.
struct Control<'a> {
    kind: FrameKind,
    session: SessionId,
    stream: StreamId,
    to: To,
    write: &'a dyn Fn(&mut [u8]) -> Option<usize>,
}

impl<T: TxFrame, R: RxFrame> Node<T, R> {
    /// What to send next. Ask until it is `None`, after every input and timeout. Bounded: everything that
    /// it may give was queued by an input or is due by `now`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<T>> {
        if let Some(transmit) = self.poll_control(now) {
            return Some(transmit);
        }
        let (mut at, run) = self.turn;
        if run >= RUN {
            at = GroupId(at.0.wrapping_add(1));
        }
        for _ in 0..self.groups.len() {
            let id = *self.groups.range(at..).chain(&self.groups).next()?.0;
            if let Some(transmit) = self.poll_group(now, id) {
                self.turn = (id, if self.turn.0 == id && run < RUN { run + 1 } else { 1 });
                return Some(transmit);
            }
            at = GroupId(id.0 + 1);
        }
        None
    }

    /// First what few and timed words its streams have for their publishers, then what its publishers
    /// have for the group, in turns.
    fn poll_group(&mut self, now: Instant, id: GroupId) -> Option<Transmit<T>> {
        if self.groups.get(&id)?.blocked.is_some() {
            return None;
        }
        let can_control = !self.control.is_empty();
        if can_control && let Some(transmit) = self.poll_streams(now, id) {
            return Some(transmit);
        }
        if can_control && let Some(transmit) = self.poll_members(now, id) {
            return Some(transmit);
        }
        let group = self.groups.get_mut(&id)?;
        let (mut at, run) = group.turn;
        if run >= RUN {
            at = PublisherId(at.0.wrapping_add(1));
        }
        for _ in 0..group.publishers.len() {
            let publisher = *group.publishers.range(at..).chain(&group.publishers).next()?.0;
            let own_room = group.own_room(publisher);
            let p = group.publishers.get_mut(&publisher)?;
            if let Some(outgoing) = p.poll_transmit(now, can_control, own_room) {
                let same = group.turn.0 == publisher && run < RUN;
                group.turn = (publisher, if same { run + 1 } else { 1 });
                return self.outgoing(now, id, publisher, outgoing);
            }
            at = PublisherId(publisher.0 + 1);
        }
        None
    }

    /// What the streams of a group have to say to their publishers. The caller has seen that there is a
    /// frame for it.
    fn poll_streams(&mut self, now: Instant, id: GroupId) -> Option<Transmit<T>> {
        let group = self.groups.get_mut(&id)?;
        if let Some((to, key, word)) = group.words.pop_front() {
            return self.upstream(id, key, to, &word);
        }
        if group.hush {
            return None;
        }
        let sharers = group.share_room(now);
        let tag = group.tag();
        let local_loss = now < self.local_loss_until;
        for s in group.streams.values_mut() {
            let busy = s.is_busy(now);
            let who = Speaker {
                node: self.config.id,
                incarnation: self.config.incarnation,
                name: &self.config.name,
                headroom: self.headroom,
                room: room_for(s, busy, &group.subscriptions),
                backlog: sharers.part(self.config.backlog, busy),
                tag,
                local_loss,
            };
            if let Some(upstream) = s.poll_upstream(now, &who, &mut self.rng) {
                let (to, key) = (s.publisher, s.key);
                return self.upstream(id, key, to, &upstream);
            }
        }
        group.hush = true;
        None
    }

    fn outgoing(
        &mut self,
        now: Instant,
        id: GroupId,
        publisher: PublisherId,
        outgoing: Outgoing<T>,
    ) -> Option<Transmit<T>> {
        let group = self.groups.get_mut(&id)?;
        let p = group.publishers.get_mut(&publisher)?;
        let (session, stream) = (p.session, p.stream);
        let peer = |to: Option<PeerAddr>| to.map_or(To::Group, To::Peer);
        let (kind, to): (FrameKind, To) = match &outgoing {
            Outgoing::Frame { to, .. } => (FrameKind::Data, peer(*to)),
            Outgoing::Heartbeat(_) => (FrameKind::Heartbeat, To::Group),
            Outgoing::Announce(to, ..) => (FrameKind::Announce, peer(*to)),
            Outgoing::Gone(to, _) => (FrameKind::Gone, To::Peer(*to)),
            Outgoing::Released(to, _) => (FrameKind::Released, To::Peer(*to)),
        };
        let control = |write| Control { kind, session, stream, to, write };
        match outgoing {
            Outgoing::Frame { sequence, frame, again, .. } => {
                if !again {
                    p.note_bytes(frame.bytes().len());
                    let key = StreamKey { session, stream };
                    group.deliver_own(key, publisher, sequence, frame.bytes(), &mut self.events);
                }
                let token = FrameToken::Stream(publisher);
                Some(Transmit { group: id, to, frame, token })
            }
            Outgoing::Heartbeat(beat) => {
                self.control(id, &control(&|out| control::encode(&beat, out).ok()))
            }
            Outgoing::Announce(_, heartbeat, first) => {
                let age = now.saturating_since(p.born).as_micros();
                let announce = Announce {
                    node: self.config.id.0,
                    incarnation: self.config.incarnation,
                    name: self.config.name.clone(),
                    topic: p.config.topic.clone(),
                    address: group.address.into(),
                    age_us: u64::try_from(age).unwrap_or(u64::MAX),
                    heartbeat,
                    first,
                };
                self.control(id, &control(&|out| control::encode(&announce, out).ok()))
            }
            Outgoing::Gone(_, gone) => {
                self.control(id, &control(&|out| control::encode(&gone, out).ok()))
            }
            Outgoing::Released(_, released) => {
                self.control(id, &control(&|out| control::encode(&released, out).ok()))
            }
        }
    }

    fn upstream(
        &mut self,
        id: GroupId,
        key: StreamKey,
        to: PeerAddr,
        upstream: &Upstream,
    ) -> Option<Transmit<T>> {
        let StreamKey { session, stream } = key;
        let to = To::Peer(to);
        let control = |kind, write| Control { kind, session, stream, to, write };
        match upstream {
            Upstream::Query => self.control(id, &control(FrameKind::Query, &|_| Some(0))),
            Upstream::Nak(nak) => {
                self.control(id, &control(FrameKind::Nak, &|out| control::encode(nak, out).ok()))
            }
            Upstream::Status(status) => self
                .control(id, &control(FrameKind::Status, &|out| control::encode(status, out).ok())),
        }
    }

    /// Writes a control frame into a frame of the control pool; the caller has seen that there is one.
    fn control(&mut self, id: GroupId, what: &Control<'_>) -> Option<Transmit<T>> {
        let group = self.groups.get(&id)?;
        let mut frame = self.control.pop()?;
        let header = FrameHeader {
            kind: what.kind,
            domain: self.config.domain,
            group: group.tag,
            stream: what.stream,
            session: what.session,
            sequence: Sequence(0),
        };
        let (head, body) = frame.room_mut().split_at_mut(FRAME_HEADER);
        header.emit(head);
        let len = (what.write)(body).expect("names and ranges are bounded so that bodies fit");
        frame.set_len(FRAME_HEADER + len);
        Some(Transmit { group: id, to: what.to, frame, token: FrameToken::Control })
    }
}

impl<T, R: RxFrame> Group<T, R> {
    /// Hands a frame that is sent for the first time to this node's own subscriptions.
    /// Requirements: `R-OWN-1`.
    fn deliver_own(
        &mut self,
        key: StreamKey,
        publisher: PublisherId,
        sequence: Sequence,
        bytes: &[u8],
        out: &mut VecDeque<Event<R>>,
    ) {
        let Some(topic) = self.publishers.get(&publisher).map(|p| p.config.topic.as_str()) else {
            return;
        };
        let mut shared = None;
        for s in self.subscriptions.values_mut() {
            if !s.config.own_messages || !s.config.topics.matches(topic) {
                continue;
            }
            s.room = s.room.saturating_sub(1);
            let subscriber = s.id;
            if let Some((header, piece)) = fragment_of_checked(bytes) {
                let parts = self.own.parts.entry((subscriber, key.stream)).or_default();
                if let Some(message) = parts.take(sequence, header, piece) {
                    out.push_back(Event::Message { subscriber, key, sequence, message });
                }
            } else {
                let frame = shared.get_or_insert_with(|| R::copy_of(bytes)).clone();
                out.push_back(Event::Frame { subscriber, key, sequence, frame });
            }
        }
    }
}
