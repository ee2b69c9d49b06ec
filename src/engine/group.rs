//! A group on the device: its queue pair, its join, its send queue, and how it comes back from a fault.

use std::collections::VecDeque;

use qcast_proto::addr::{Gid, QKey};
use qcast_proto::node::{FrameToken, GroupId, Node};
use qcast_proto::qp::QpState;
use qcast_proto::time::Instant;

use super::Engine;
use super::ah_cache::AhCache;
use super::lease::Lease;
use super::recovery::{Recovery, Walk};
use crate::device::{AhId, Device, DeviceError, QpId, SendBuf, SendWr};

/// What a group is on the wire.
#[derive(Clone, Debug)]
pub(crate) struct GroupSetup {
    pub(crate) name: String,
    pub(crate) mgid: Gid,
    pub(crate) qkey: QKey,
}

/// A joined group.
pub(super) struct EngineGroup {
    pub(super) setup: GroupSetup,
    pub(super) qp: QpId,
    /// Leads to the group; the device owns it.
    pub(super) ah: AhId,
    /// What is to be posted.
    pub(super) queue: VecDeque<SendWr>,
    /// Whether the last post was refused, and that was logged.
    pub(super) refused: bool,
    /// How its queue pair comes back.
    pub(super) recovery: Recovery,
}

/// A join on its way.
pub(super) struct Joining {
    ticket: u64,
    setup: GroupSetup,
    qp: QpId,
    pub(super) deadline: Instant,
}

/// How a join ended.
pub(crate) type JoinOutcome = Result<GroupId, JoinFailure>;

/// Why a join failed. Nothing is left of it.
#[derive(Debug)]
pub(crate) enum JoinFailure {
    Device(DeviceError),
    Timeout,
}

impl EngineGroup {
    /// The device refused the send at the front: it is given back to the protocol, which repairs it if
    /// it is missed. A queue pair that is not ready keeps its queue.
    pub(super) fn refuse_front(
        &mut self,
        error: &DeviceError,
        ah: &mut AhCache,
        node: &mut Node<SendBuf, Lease>,
    ) {
        if matches!(error, DeviceError::NotReady(_)) {
            return;
        }
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
        let qp = self.device.create_qp()?;
        let mut walk = Walk {
            device: &mut *self.device,
            journal: &mut self.journal,
            qp,
            group: &setup.name,
            qkey: setup.qkey,
        };
        let walked = walk.walk_to_rts(QpState::Reset);
        let started = walked.and_then(|()| self.device.join(qp, setup.mgid));
        if let Err(error) = started {
            discard(&mut *self.device, qp);
            return Err(error);
        }
        self.next_ticket += 1;
        self.joining.push(Joining { ticket: self.next_ticket, setup, qp, deadline });
        Ok(self.next_ticket)
    }

    /// The end of a join, once there is one.
    pub(crate) fn take_joined(&mut self, ticket: u64) -> Option<JoinOutcome> {
        let at = self.joined.iter().position(|(t, _)| *t == ticket)?;
        Some(self.joined.swap_remove(at).1)
    }

    pub(super) fn joined(&mut self, qp: QpId, mgid: Gid, ah: AhId) {
        let Some(at) = self.joining.iter().position(|j| j.qp == qp && j.setup.mgid == mgid) else {
            return;
        };
        let Joining { ticket, setup, .. } = self.joining.swap_remove(at);
        let address = self.address(qp);
        let id = self.node.join(&setup.name, address);
        tracing::info!(group = setup.name, mgid = %mgid.ip(), "joined");
        self.groups.insert(
            id,
            EngineGroup {
                setup,
                qp,
                ah,
                queue: VecDeque::new(),
                refused: false,
                recovery: Recovery::default(),
            },
        );
        self.joined.push((ticket, Ok(id)));
    }

    pub(super) fn join_failed(&mut self, qp: QpId, mgid: Gid, error: DeviceError) {
        let Some(at) = self.joining.iter().position(|j| j.qp == qp && j.setup.mgid == mgid) else {
            return;
        };
        let Joining { ticket, .. } = self.joining.swap_remove(at);
        discard(&mut *self.device, qp);
        self.joined.push((ticket, Err(JoinFailure::Device(error))));
    }

    pub(super) fn expire_joins(&mut self, now: Instant) {
        while let Some(at) = self.joining.iter().position(|j| j.deadline <= now) {
            let Joining { ticket, setup, qp, .. } = self.joining.swap_remove(at);
            if let Err(error) = self.device.leave(qp, setup.mgid) {
                tracing::debug!(%error, "a join that took too long could not be given up");
            }
            discard(&mut *self.device, qp);
            self.joined.push((ticket, Err(JoinFailure::Timeout)));
        }
    }

    /// Leaves a group at once: exactly what was joined is left, then the queue pair is destroyed.
    pub(crate) fn leave_group(&mut self, id: GroupId) {
        self.node.leave(id);
        let Some(mut g) = self.groups.remove(&id) else { return };
        for wr in g.queue.drain(..) {
            self.ah.unpin(wr.ah);
            self.node.handle_sent(FrameToken::from_bits(wr.token), wr.buf);
        }
        if let Err(error) = self.device.leave(g.qp, g.setup.mgid) {
            tracing::warn!(group = g.setup.name, %error, "leaving failed");
        }
        discard(&mut *self.device, g.qp);
        tracing::info!(group = g.setup.name, "left");
    }
}

fn discard(device: &mut dyn Device, qp: QpId) {
    if let Err(error) = device.destroy_qp(qp) {
        tracing::warn!(%error, "a QP was not destroyed");
    }
}
