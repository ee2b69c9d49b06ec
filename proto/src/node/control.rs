//! The control group of a node: the one group that every node is in, whatever its other groups are.
//!
//! Its name, its address and its queue key are known to all, so who has the wrong key of a group still hears
//! what others say of it here. It carries no messages: only [notices](crate::diagnosis) and
//! [services](crate::discovery).
//! Requirements: `R-CONTROLGROUP-1` to `R-CONTROLGROUP-6`.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Event, FrameToken, GroupCounters, GroupId, Node, To, Transmit};
use crate::addr::{GroupTag, PeerAddr, QKey, Sequence, SessionId, StreamId};
use crate::buf::{RxFrame, TxFrame};
use crate::diagnosis::{Diagnosis, DiagnosisCounters, Identity, SeenGroup};
use crate::discovery::{
    BrowseId, Discovery, DiscoveryCounters, Filter, Owner, Service, ServiceError, ServiceId, Word,
};
use crate::time::Instant;
use crate::wire::control::{self, decode};
use crate::wire::frame::{FRAME_HEADER, Frame, FrameError, FrameHeader, FrameKind};
use crate::wire::notice::{Checks, GroupNotice};
use crate::wire::service::{ServiceQuery, Services};

/// The name of the control group: no other group may have it.
pub const CONTROL_GROUP: &str = "qcast";

/// The control group's queue key: it follows from the name, with no secret.
pub fn control_qkey() -> QKey {
    QKey::derive(CONTROL_GROUP, &[])
}

/// What a node says and knows on the control group.
#[derive(Debug, Default)]
pub(super) struct Control {
    link: Option<Link>,
    diagnosis: Diagnosis,
    discovery: Discovery,
    counters: GroupCounters,
    /// When something is due. Data frames are sent between any two looks at it, so it is not found anew each time.
    due: Option<Instant>,
}

/// The joined group.
#[derive(Debug)]
struct Link {
    id: GroupId,
    address: PeerAddr,
    session: SessionId,
    /// Since when nothing can leave.
    blocked: Option<Instant>,
}

impl Control {
    pub(super) fn is(&self, group: GroupId) -> bool {
        self.link.as_ref().is_some_and(|link| link.id == group)
    }

    pub(super) fn counters(&self) -> GroupCounters {
        self.counters
    }

    /// This node leaves a group: it may be this one.
    pub(super) fn leave(&mut self, now: Instant, group: GroupId) {
        if self.is(group) {
            self.link = None;
        }
        self.diagnosis.leave(now, group);
        self.look();
    }

    pub(super) fn forgive(&mut self, pause: Duration) {
        self.diagnosis.forgive(pause);
        self.discovery.forgive(pause);
        self.look();
    }

    /// Finds when something is due. To be called after every change.
    fn look(&mut self) {
        let able = self.link.as_ref().is_some_and(|link| link.blocked.is_none());
        let due = [self.diagnosis.poll_timeout(), self.discovery.poll_timeout()];
        self.due = due.into_iter().flatten().min().filter(|_| able);
    }

    /// Says whether frames cannot leave for now; gives how long they could not.
    pub(super) fn set_blocked(&mut self, now: Instant, blocked: bool) -> Duration {
        let Some(link) = &mut self.link else { return Duration::ZERO };
        let pause = if blocked {
            link.blocked.get_or_insert(now);
            Duration::ZERO
        } else {
            link.blocked.take().map_or(Duration::ZERO, |since| now.saturating_since(since))
        };
        self.look();
        pause
    }

    pub(super) fn readdress(&mut self, now: Instant, address: PeerAddr) {
        if let Some(link) = &mut self.link
            && link.address != address
        {
            link.address = address;
            self.diagnosis.start(now);
            self.discovery.start(now);
            self.look();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.diagnosis.handle_timeout(now);
            self.discovery.handle_timeout(now);
            self.look();
        }
    }

    pub(super) fn poll_event<R>(&mut self) -> Option<Event<R>> {
        let found = self.diagnosis.poll_event().map(Event::Diagnosis);
        found.or_else(|| self.discovery.poll_event().map(Event::Discovery))
    }
}

impl<T: TxFrame, R: RxFrame> Node<T, R> {
    /// Takes part in the control group, in which this node is reached at `address`.
    pub fn join_control(&mut self, now: Instant, address: PeerAddr) -> GroupId {
        let id = GroupId(self.id());
        let session = SessionId(self.rng.u64(..));
        self.control_group.link = Some(Link { id, address, session, blocked: None });
        self.control_group.diagnosis.start(now);
        self.control_group.discovery.start(now);
        self.control_group.look();
        id
    }

    /// Says what all members of a joined group must agree in: others are told on the control group.
    pub fn describe(&mut self, now: Instant, group: GroupId, name: &str, checks: Checks) {
        self.control_group.diagnosis.join(now, group, name, checks);
        self.control_group.look();
    }

    /// The greatest payload in a group has changed.
    pub fn set_mtu(&mut self, now: Instant, group: GroupId, mtu: usize) {
        let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        self.control_group.diagnosis.set_mtu(now, group, mtu);
        self.control_group.look();
    }

    /// Says on the control group that this node leaves a group. [`Node::leave`] does, too, but what it says
    /// leaves only with the next [`Node::poll_transmit`].
    pub fn notice_leave(&mut self, group: GroupId) {
        self.control_group.diagnosis.leave(self.last_turn, group);
        self.control_group.look();
    }

    /// The groups that nodes say they are in.
    pub fn seen_groups(&self) -> Vec<SeenGroup> {
        self.control_group.diagnosis.seen()
    }

    /// Asks all nodes which groups they are in.
    pub fn ask_groups(&mut self, now: Instant) {
        self.control_group.diagnosis.ask(now);
        self.control_group.look();
    }

    /// Announces a service.
    ///
    /// # Errors
    /// It breaks a bound. Nothing was changed.
    pub fn announce(&mut self, now: Instant, service: Service) -> Result<ServiceId, ServiceError> {
        service.check()?;
        let id = self.control_group.discovery.announce(now, service);
        self.control_group.look();
        Ok(id)
    }

    /// Changes what is said of a service; its type and name stay as they are.
    ///
    /// # Errors
    /// It breaks a bound. Nothing was changed.
    pub fn update(
        &mut self,
        now: Instant,
        id: ServiceId,
        service: Service,
    ) -> Result<(), ServiceError> {
        service.check()?;
        self.control_group.discovery.update(now, id, service);
        self.control_group.look();
        Ok(())
    }

    /// Ends a service.
    pub fn withdraw(&mut self, now: Instant, id: ServiceId) {
        let here = self.here().gid;
        self.control_group.discovery.withdraw(now, id, here);
        self.control_group.look();
    }

    /// Whether the end of a service is still being said.
    pub fn is_parting(&self) -> bool {
        let able = self.control_group.link.as_ref().is_some_and(|link| link.blocked.is_none());
        able && self.control_group.discovery.is_parting()
    }

    /// Looks for services.
    pub fn browse(&mut self, now: Instant, filter: Filter) -> BrowseId {
        let address = self.here();
        let here = Owner { node: self.config.id, incarnation: self.config.incarnation, address };
        let id = self.control_group.discovery.browse(now, filter, &here, &self.config.name);
        self.control_group.look();
        id
    }

    /// Looks for them no longer.
    pub fn stop_browse(&mut self, id: BrowseId) {
        self.control_group.discovery.stop(id);
        self.control_group.look();
    }

    /// A life of a node is known to be over: what it offered has ended.
    pub fn handle_failure(&mut self, now: Instant, node: crate::addr::NodeId, incarnation: u64) {
        self.control_group.discovery.handle_failure(now, node, incarnation);
        self.control_group.look();
    }

    /// What the control group dropped and refused.
    pub fn control_counters(&self) -> (DiagnosisCounters, DiscoveryCounters) {
        (self.control_group.diagnosis.counters(), self.control_group.discovery.counters())
    }

    fn here(&self) -> PeerAddr {
        let nowhere =
            PeerAddr { gid: Default::default(), qpn: crate::addr::Qpn::new(0), udp_port: 0 };
        self.control_group.link.as_ref().map_or(nowhere, |link| link.address)
    }

    /// Takes a datagram of the control group.
    /// Requirements: `R-CONTROLGROUP-2`.
    pub(super) fn handle_control_datagram(&mut self, now: Instant, from: PeerAddr, bytes: &[u8]) {
        let Some(link) = &self.control_group.link else { return };
        let (session, here) = (link.session, link.address.gid);
        let counters = &mut self.control_group.counters;
        let frame = match Frame::new_checked(bytes) {
            Ok(frame) => frame,
            Err(FrameError::Foreign) => {
                counters.foreign += 1;
                return;
            }
            Err(_) => {
                counters.malformed += 1;
                return;
            }
        };
        let header = frame.header();
        if header.domain != self.config.domain {
            counters.wrong_domain += 1;
            return;
        }
        if header.group != GroupTag::of(CONTROL_GROUP) {
            counters.wrong_group += 1;
            return;
        }
        counters.frames += 1;
        if header.session == session {
            counters.own += 1;
            return;
        }
        let config = &self.config;
        let us = Identity { node: config.id, incarnation: config.incarnation, name: &config.name };
        let Control { diagnosis, discovery, .. } = &mut self.control_group;
        let body = frame.body();
        let understood = match header.kind {
            FrameKind::GroupNotice => decode::<GroupNotice>(body).is_ok_and(|notice| {
                let sound = notice.is_sound();
                if sound {
                    diagnosis.handle_notice(now, from, &notice, us, &mut self.rng);
                }
                sound
            }),
            FrameKind::Service => decode::<Services>(body).is_ok_and(|services| {
                let sound = services.is_sound();
                if sound {
                    discovery.handle_services(now, from, &services, us, here);
                }
                sound
            }),
            FrameKind::ServiceQuery => decode::<ServiceQuery>(body).is_ok_and(|query| {
                let sound = query.is_sound();
                if sound {
                    discovery.handle_query(now, from, &query, us, here, &mut self.rng);
                }
                sound
            }),
            // Streams have no place here.
            _ => false,
        };
        if !understood {
            self.control_group.counters.malformed += 1;
        }
        self.control_group.look();
    }

    /// What is to be said on the control group.
    pub(super) fn poll_control(&mut self, now: Instant) -> Option<Transmit<T>> {
        if self.control_group.due? > now || self.control.is_empty() {
            return None;
        }
        let transmit = self.poll_said(now);
        self.control_group.look();
        transmit
    }

    fn poll_said(&mut self, now: Instant) -> Option<Transmit<T>> {
        let link = self.control_group.link.as_ref()?;
        let (id, address, session) = (link.id, link.address, link.session);
        let config = &self.config;
        let us = Identity { node: config.id, incarnation: config.incarnation, name: &config.name };
        let Control { diagnosis, discovery, .. } = &mut self.control_group;
        if let Some(notice) = diagnosis.poll_notice(now, us, &mut self.rng) {
            return self
                .say(id, session, FrameKind::GroupNotice, |out| control::encode(&notice, out));
        }
        match discovery.poll_word(now, us, address, &mut self.rng)? {
            Word::Services(s) => {
                self.say(id, session, FrameKind::Service, |out| control::encode(&s, out))
            }
            Word::Query(q) => {
                self.say(id, session, FrameKind::ServiceQuery, |out| control::encode(&q, out))
            }
        }
    }

    fn say(
        &mut self,
        group: GroupId,
        session: SessionId,
        kind: FrameKind,
        write: impl FnOnce(&mut [u8]) -> Result<usize, FrameError>,
    ) -> Option<Transmit<T>> {
        let mut frame = self.control.pop()?;
        let header = FrameHeader {
            kind,
            domain: self.config.domain,
            group: GroupTag::of(CONTROL_GROUP),
            stream: StreamId(0),
            session,
            sequence: Sequence(0),
        };
        let (head, body) = frame.room_mut().split_at_mut(FRAME_HEADER);
        header.emit(head);
        let len = write(body).expect("bodies are filled up to their room and no further");
        frame.set_len(FRAME_HEADER + len);
        Some(Transmit { group, to: To::Group, frame, token: FrameToken::Control })
    }
}
