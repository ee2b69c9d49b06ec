//! A group's membership, joined to the rest of the node: what it is told by the streams, and what it tells them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::group::{Group, Input};
use super::{Event, FrameToken, GroupId, Node, NodeConfig, Transmit};
use crate::addr::{PeerAddr, Sequence, StreamId};
use crate::buf::{RxFrame, TxFrame};
use crate::membership::{
    Heard, MAX_HOST, MemberEvent, MemberInfo, Membership, MembershipCounters, Profile,
    ProfileError, Role, View, Word, sound_prefix,
};
use crate::subscribe::stream::{ReceiveStream, Subscription};
use crate::time::Instant;
use crate::wire::control::MAX_NAME;
use crate::wire::frame::{FRAME_HEADER, FrameError, FrameHeader, FrameKind};
use crate::wire::member::Progress;

/// This node as a member of a group in which it is reached at `address`.
pub(super) fn own_info(config: &NodeConfig, address: PeerAddr) -> MemberInfo {
    MemberInfo {
        node: config.id,
        incarnation: config.incarnation,
        name: sound_prefix(&config.name, MAX_NAME),
        host: sound_prefix(&config.host, MAX_HOST),
        address,
        role: Role::Observer,
        metadata: Vec::new(),
    }
}

impl FrameKind {
    /// Whether members send it to each other.
    pub(super) fn is_of_members(self) -> bool {
        matches!(self, Self::Beacon | Self::Probe | Self::Roster | Self::Digest)
    }
}

impl<T, R: RxFrame> Group<T, R> {
    /// A word of another member; one's own that comes back shows that the join works.
    /// Requirements: `R-MEMBER-1`, `R-READY-1`.
    pub(super) fn handle_word(
        &mut self,
        input: &mut Input<'_, R>,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<(), FrameError> {
        if header.session == self.session {
            self.counters.own += 1;
            if input.multicast && input.from == self.address {
                self.publishers.values_mut().for_each(|p| p.handle_echo());
            }
            return Ok(());
        }
        let Some(members) = &mut self.members else { return Ok(()) };
        let word = Word::decode(header.kind, body)?;
        members.handle(input.now, input.from, input.multicast, &word);
        self.settle(input.now, input.out);
        Ok(())
    }

    /// Does what is due among members.
    /// Requirements: `R-MEMBER-7`.
    pub(super) fn look_at_members(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        let Some(members) = &mut self.members else { return };
        let (streams, publishers) = (&self.streams, &self.publishers);
        members.handle_timeout(now, &mut |info| {
            // Streams are heard through the group: their heartbeats go nowhere else.
            let of_streams = streams
                .values()
                .filter(|s| s.incarnation == info.incarnation && s.publisher == info.address)
                .filter(|s| s.info().is_some_and(|i| i.node == info.node))
                .map(|s| Heard { at: s.last_heard, in_group: true });
            let of_receivers = publishers
                .values()
                .flat_map(|p| p.receiver(info.node))
                .filter(|r| r.address == info.address)
                .map(|r| Heard { at: r.heard, in_group: false });
            of_streams.chain(of_receivers).max_by_key(|heard| (heard.at, heard.in_group))
        });
        self.settle(now, out);
    }

    /// Tells what happened among members, and does what follows from it.
    /// Requirements: `R-MEMBER-20`.
    fn settle(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        let Some(members) = &mut self.members else { return };
        let group = self.id;
        while let Some((event, version)) = members.poll_event() {
            for p in self.publishers.values_mut() {
                match &event {
                    MemberEvent::Failed(info) => p.part(now, info.node, info.incarnation),
                    MemberEvent::Left(info) => p.part_soon(now, info.node, info.incarnation),
                    _ => {}
                }
            }
            out.push_back(Event::Member { group, event, version });
        }
        if members.take_rejoin() {
            out.push_back(Event::Rejoin { group });
        }
    }

    /// What this node has open is what it does in the group.
    pub(super) fn note_role(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        let role = Role::of(!self.publishers.is_empty(), !self.subscriptions.is_empty());
        if let Some(members) = &mut self.members {
            members.set_role(now, role);
            self.settle(now, out);
        }
    }

    /// Members that subscribe, as far as they said so.
    pub(super) fn subscribing_members(&self) -> u32 {
        let count = self.members.as_ref().map_or(0, Membership::subscribing);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    pub(super) fn readdress_member(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        let address = self.address;
        if let Some(members) = &mut self.members {
            members.readdress(now, address);
            self.settle(now, out);
        }
    }
}

impl<T: TxFrame, R: RxFrame> Node<T, R> {
    /// Who is in a group. Empty if it was left, or the node takes no part in membership. Costs the number of
    /// members.
    pub fn view(&self, group: GroupId) -> View {
        let members = self.groups.get(&group).and_then(|g| g.members.as_ref());
        members.map(Membership::view).unwrap_or_default()
    }

    /// The version of a group's view, at no cost.
    pub fn view_version(&self, group: GroupId) -> u64 {
        let members = self.groups.get(&group).and_then(|g| g.members.as_ref());
        members.map_or(0, Membership::version)
    }

    /// What the members of a group said, and what of it did not count.
    pub fn membership_counters(&self, group: GroupId) -> MembershipCounters {
        let members = self.groups.get(&group).and_then(|g| g.members.as_ref());
        members.map(Membership::counters).unwrap_or_default()
    }

    /// How many nodes a group's membership remembers that are no members: candidates, departed, and those
    /// that claim a member's identity. Each is bounded.
    pub fn membership_side_tables(&self, group: GroupId) -> [usize; 3] {
        let members = self.groups.get(&group).and_then(|g| g.members.as_ref());
        members.map(Membership::side_tables).unwrap_or_default()
    }

    /// Sets what this node wants known of itself in a group; members are told at once.
    ///
    /// # Errors
    /// The profile breaks a bound, or the group was left. Nothing was changed.
    pub fn set_profile(&mut self, group: GroupId, profile: Profile) -> Result<(), ProfileError> {
        let now = self.last_turn;
        let Some(g) = self.groups.get_mut(&group) else { return Err(ProfileError::Left) };
        match &mut g.members {
            Some(members) => members.set_profile(now, &profile)?,
            None => profile.check()?,
        }
        g.settle(now, &mut self.events);
        Ok(())
    }

    /// Begins to leave a group: the other members are told, three times. Then, or at once if nobody need
    /// know, [`Node::leave`]. Requirements: `R-MEMBER-4`.
    pub fn part(&mut self, now: Instant, group: GroupId) {
        if let Some(members) = self.groups.get_mut(&group).and_then(|g| g.members.as_mut()) {
            members.part(now);
        }
    }

    /// Whether everything was said about leaving. So it is where there is nobody to say it to.
    pub fn has_parted(&self, group: GroupId) -> bool {
        let members = self.groups.get(&group).and_then(|g| g.members.as_ref());
        members.is_none_or(Membership::has_parted)
    }

    /// What members are to be told next. The caller has seen that there is a frame for it.
    pub(super) fn poll_members(&mut self, now: Instant, id: GroupId) -> Option<Transmit<T>> {
        let group = self.groups.get_mut(&id)?;
        let members = group.members.as_mut()?;
        let followed = || group.streams.values().chain(group.dormant.values());
        let mut progress = || {
            let received = followed().fold(group.past, |sum, s| sum + s.stats);
            let sent = group.publishers.values().fold(group.sent, |sum, p| sum + p.frames());
            let untaken = group.subscriptions.values().map(Subscription::untaken).max();
            let behind = followed().map(ReceiveStream::waiting).sum::<usize>();
            let waiting = (untaken.unwrap_or(0) + behind) as u64;
            let progress =
                Progress { sent, received: received.frames, lost: received.lost, waiting };
            let is_observer = group.publishers.is_empty() && group.subscriptions.is_empty();
            (!is_observer || progress != Progress::default()).then_some(progress)
        };
        let (to, word) = members.poll_transmit(now, &mut progress)?;
        let mut frame = self.control.pop()?;
        let header = FrameHeader {
            kind: word.kind(),
            domain: self.config.domain,
            group: group.tag,
            stream: StreamId(0),
            session: group.session,
            sequence: Sequence(0),
        };
        let (head, body) = frame.room_mut().split_at_mut(FRAME_HEADER);
        header.emit(head);
        let len = word.encode(body).expect("names and lists are bounded so that bodies fit");
        frame.set_len(FRAME_HEADER + len);
        Some(Transmit { group: id, to, frame, token: FrameToken::Control })
    }
}
