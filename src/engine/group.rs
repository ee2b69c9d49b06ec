//! A group on the device: its queue pair, its join, its send queue, and how it comes back from a fault.

use std::collections::VecDeque;

use qcast_proto::addr::{Gid, Psn, QKey};
use qcast_proto::membership::Profile;
use qcast_proto::node::{CONTROL_GROUP, FrameToken, GroupId, Node};
use qcast_proto::qp::{Attr, Path, QpAttrs, QpState, QpType, UdSetup, reset_walk, walk_to_rts};
use qcast_proto::time::Instant;

use super::Engine;
use super::ah_cache::AhCache;
use super::drain::Drain;
use super::journal::Journal;
use super::lease::Lease;
use super::recovery::Recovery;
use crate::device::{AhId, Device, DeviceError, QpId, SendBuf, SendWr};

/// What a group is on the wire.
#[derive(Clone, Debug)]
pub(crate) struct GroupSetup {
    pub(crate) name: String,
    pub(crate) mgid: Gid,
    pub(crate) qkey: QKey,
    /// What members see from the first word on.
    pub(crate) profile: Profile,
}

/// A joined group.
pub(super) struct EngineGroup {
    pub(super) setup: GroupSetup,
    pub(super) qp: QpId,
    /// The queue pair, while it is joined to the group.
    pub(super) attached: Option<QpId>,
    /// Leads to the group; the device owns it.
    pub(super) ah: AhId,
    /// What is to be posted.
    pub(super) queue: VecDeque<SendWr>,
    /// Sends that are posted and have not ended.
    pub(super) posted: usize,
    /// Whether the last post was refused, and that was logged.
    pub(super) refused: bool,
    /// Whether the protocol was told not to give more to send.
    pub(super) blocked: bool,
    pub(super) recovery: Recovery,
    pub(super) drain: Drain,
    /// How many want it drained.
    pub(super) drains: u32,
    /// Datagrams with another key that were surely for this group.
    pub(super) violations: u64,
}

/// A join on its way.
pub(super) struct Joining {
    pub(super) ticket: u64,
    pub(super) setup: GroupSetup,
    pub(super) qp: QpId,
    pub(super) deadline: Instant,
    /// The group whose queue pair this one is to replace.
    pub(super) replaces: Option<GroupId>,
}

/// How a join ended.
pub(crate) type JoinOutcome = Result<GroupId, JoinFailure>;

/// Why a join failed. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinFailure {
    #[error(transparent)]
    Device(DeviceError),
    #[error("the join got no answer in time")]
    Timeout,
}

impl EngineGroup {
    /// The device refused the send at the front: it is given back to the protocol, which repairs it if
    /// it is missed.
    pub(super) fn refuse_front(
        &mut self,
        error: &DeviceError,
        ah: &mut AhCache,
        node: &mut Node<SendBuf, Lease>,
    ) {
        if !std::mem::replace(&mut self.refused, true) {
            tracing::warn!(group = self.setup.name, %error, "sends are refused; they count as lost");
        }
        if let Some(wr) = self.queue.pop_front() {
            ah.unpin(wr.ah);
            node.handle_sent(FrameToken::from_bits(wr.token), wr.buf);
        }
    }
}

impl Engine {
    /// Starts to join a group; [`Engine::take_joined`] tells the end.
    ///
    /// # Errors
    /// The device refused at once. Nothing is left of it.
    pub(crate) fn start_join(
        &mut self,
        setup: GroupSetup,
        deadline: Instant,
    ) -> Result<u64, DeviceError> {
        let qp = self.bring_up_and_join(&setup)?;
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.joining.push(Joining { ticket, setup, qp, deadline, replaces: None });
        Ok(ticket)
    }

    /// A new queue pair in RTS whose join has begun.
    pub(super) fn bring_up_and_join(&mut self, setup: &GroupSetup) -> Result<QpId, DeviceError> {
        let qp = self.device.create_qp()?;
        let (device, journal) = (&mut *self.device, &mut self.journal);
        let walked = Walk { device, journal, qp, setup }.bring_up();
        if let Err(error) = walked.and_then(|()| self.device.join(qp, setup.mgid)) {
            discard(&mut *self.device, qp);
            return Err(error);
        }
        Ok(qp)
    }

    /// The end of a join, once there is one.
    pub(crate) fn take_joined(&mut self, ticket: u64) -> Option<JoinOutcome> {
        let at = self.joined.iter().position(|(t, _)| *t == ticket)?;
        Some(self.joined.swap_remove(at).1)
    }

    pub(super) fn joined(&mut self, now: Instant, qp: QpId, mgid: Gid, ah: AhId) {
        let Some(Joining { ticket, setup, replaces, .. }) = self.take_joining(qp, mgid) else {
            return;
        };
        if let Some(id) = replaces {
            return self.replaced(now, id, qp, ah);
        }
        let address = self.address(qp);
        let id = if setup.name == CONTROL_GROUP {
            self.node.join_control(now, address)
        } else {
            let id = self.node.join(now, &setup.name, address);
            if let Err(error) = self.node.set_profile(id, setup.profile.clone()) {
                tracing::warn!(group = setup.name, %error, "members see no metadata");
            }
            self.describe(now, id, &setup);
            id
        };
        tracing::info!(group = setup.name, mgid = %mgid.ip(), "joined");
        let group = EngineGroup {
            setup,
            qp,
            attached: Some(qp),
            ah,
            queue: VecDeque::new(),
            posted: 0,
            refused: false,
            blocked: false,
            recovery: Recovery::default(),
            drain: Drain::No,
            drains: 0,
            violations: 0,
        };
        self.groups.insert(id, group);
        self.joined.push((ticket, Ok(id)));
    }

    pub(super) fn join_failed(&mut self, now: Instant, qp: QpId, mgid: Gid, error: DeviceError) {
        let Some(joining) = self.take_joining(qp, mgid) else { return };
        discard(&mut *self.device, qp);
        self.end_join(now, &joining, JoinFailure::Device(error));
    }

    pub(super) fn expire_joins(&mut self, now: Instant) {
        while let Some(at) = self.joining.iter().position(|j| j.deadline <= now) {
            let joining = self.joining.swap_remove(at);
            self.part(&joining.setup, joining.qp);
            self.end_join(now, &joining, JoinFailure::Timeout);
        }
    }

    fn take_joining(&mut self, qp: QpId, mgid: Gid) -> Option<Joining> {
        let at = self.joining.iter().position(|j| j.qp == qp && j.setup.mgid == mgid)?;
        Some(self.joining.swap_remove(at))
    }

    fn end_join(&mut self, now: Instant, joining: &Joining, failure: JoinFailure) {
        match joining.replaces {
            Some(id) => self.replace_failed(now, id, &failure.to_string()),
            None => self.joined.push((joining.ticket, Err(failure))),
        }
    }

    /// Leaves the group with one queue pair, and destroys it.
    pub(super) fn part(&mut self, setup: &GroupSetup, qp: QpId) {
        if let Err(error) = self.device.leave(qp, setup.mgid) {
            tracing::warn!(group = setup.name, %error, "leaving failed");
        }
        discard(&mut *self.device, qp);
    }

    /// Leaves a group at once: exactly what was joined is left, then the queue pair is destroyed.
    pub(crate) fn leave_group(&mut self, id: GroupId) {
        self.node.leave(id);
        self.close_members(id);
        let Some(mut g) = self.groups.remove(&id) else { return };
        for wr in g.queue.drain(..) {
            self.ah.unpin(wr.ah);
            self.node.handle_sent(FrameToken::from_bits(wr.token), wr.buf);
        }
        for waiter in self.waiting.release_group(id) {
            self.node.handle_sent(waiter.token, waiter.frame);
        }
        while let Some(at) = self.joining.iter().position(|j| j.replaces == Some(id)) {
            let joining = self.joining.swap_remove(at);
            self.part(&joining.setup, joining.qp);
        }
        if let Some(qp) = g.attached {
            self.part(&g.setup, qp);
        }
        tracing::info!(group = g.setup.name, "left");
    }
}

/// What a walk needs to know of a group's queue pair.
pub(super) struct Walk<'a> {
    pub(super) device: &'a mut dyn Device,
    pub(super) journal: &'a mut Journal,
    pub(super) qp: QpId,
    pub(super) setup: &'a GroupSetup,
}

impl Walk<'_> {
    /// Takes a new queue pair to RTS with the group's key. One that rdma_cm made is there already, with rdma_cm's key.
    pub(super) fn bring_up(&mut self) -> Result<(), DeviceError> {
        match self.device.caps().new_qp {
            QpState::Rts => {
                let key = QpAttrs::new().with(Attr::QKey(self.setup.qkey.into()));
                self.journal.modify(self.device, self.qp, &self.setup.name, QpState::Rts, &key)
            }
            state => self.walk_to_rts(state),
        }
    }

    /// Walks the queue pair to RTS from where it is: the cheapest way, and if that fails through RESET.
    pub(super) fn walk_to_rts(&mut self, from: QpState) -> Result<(), DeviceError> {
        match self.along(&walk_to_rts(from)) {
            Err(error) if from != QpState::Reset => {
                tracing::debug!(%error, "the cheapest walk failed; trying through RESET");
                let held = self.device.query_qp(self.qp)?.state;
                self.along(&reset_walk(held))
            }
            other => other,
        }
    }

    fn along(&mut self, path: &Path) -> Result<(), DeviceError> {
        let port = self.device.port().port;
        let qkey = self.setup.qkey.into();
        let setup = UdSetup { pkey_index: 0, port, qkey, sq_psn: Psn::new(0) };
        for hop in path.hops(QpType::Ud) {
            let attrs = setup
                .attrs(hop.from, hop.to)
                .expect("every hop of a walk is a legal step of a UD queue pair");
            self.journal.modify(self.device, self.qp, &self.setup.name, hop.from, &attrs)?;
        }
        Ok(())
    }
}

pub(super) fn discard(device: &mut dyn Device, qp: QpId) {
    if let Err(error) = device.destroy_qp(qp) {
        tracing::warn!(%error, "a QP was not destroyed");
    }
}
