//! Draining a group: everything that is to be sent is sent, and then nothing is, until it is resumed.
//!
//! For planned changes, and before a group is left: last words would be flushed with the queue pair. The protocol
//! is held back, as while a queue pair recovers; what waits is posted, what is posted ends; then the queue pair is
//! moved to SQD, where it receives and sends nothing. (SQD alone would not do: sends that were posted and not begun
//! stay in it until RTS.)

use qcast_proto::node::GroupId;
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::{Duration, Instant};

use super::Engine;
use super::group::{EngineGroup, Walk};
use crate::device::DeviceError;

/// How far a group's drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// Nobody asked for it.
    #[default]
    No,
    /// There is something to be sent yet.
    Draining,
    /// The queue pair is on its way to SQD: what it had begun is not finished, and it takes no other step.
    Stopping,
    /// The queue pair is in SQD.
    Drained,
}

/// How long the sends of a queue pair take that were begun, about.
const STOPPING: Duration = Duration::from_millis(1);

impl Drain {
    /// Whether the queue pair was moved to SQD.
    fn is_in_sqd(self) -> bool {
        matches!(self, Self::Stopping | Self::Drained)
    }
}

impl EngineGroup {
    /// Whether the protocol is not to give more to send.
    pub(super) fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Whether nothing is on its way out.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.posted == 0
    }
}

impl Engine {
    /// Begins to drain a group; whether there is such a group. Each call is to be followed by an [`Engine::end_drain`].
    pub(crate) fn start_drain(&mut self, id: GroupId) -> bool {
        let Some(g) = self.groups.get_mut(&id) else { return false };
        g.drains += 1;
        if g.drain == Drain::No {
            g.drain = Drain::Draining;
        }
        true
    }

    /// Whether a group is drained.
    pub(crate) fn is_drained(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|g| g.drain == Drain::Drained)
    }

    /// Lets a group send again, when all who had it drained have said so.
    ///
    /// # Errors
    /// The device refused to move the queue pair to RTS. Recovery goes on trying.
    pub(crate) fn end_drain(&mut self, now: Instant, id: GroupId) -> Result<(), DeviceError> {
        let Some(g) = self.groups.get_mut(&id) else { return Ok(()) };
        g.drains = g.drains.saturating_sub(1);
        if g.drains > 0 || !std::mem::take(&mut g.drain).is_in_sqd() {
            return Ok(());
        }
        if g.recovery.is_under_way() {
            // It leads to RTS.
            return Ok(());
        }
        let state = self.device.query_qp(g.qp)?.state;
        let (device, journal) = (&mut *self.device, &mut self.journal);
        let walked = Walk { device, journal, qp: g.qp, setup: &g.setup }.walk_to_rts(state);
        if let Err(error) = &walked {
            g.recovery.suspect(now, || error.to_string());
        }
        walked
    }

    /// Moves those groups to SQD that have nothing to send any more.
    pub(super) fn drain(&mut self) {
        for g in self.groups.values_mut() {
            if g.drain == Drain::Draining && g.is_quiet() && !g.recovery.is_under_way() {
                let to_sqd = QpAttrs::to(QpState::Sqd);
                let (device, group) = (&mut *self.device, &g.setup.name);
                let moved = self.journal.modify(device, g.qp, group, QpState::Rts, &to_sqd);
                if let Err(error) = moved {
                    // It is as quiet in RTS, since nothing is posted.
                    tracing::debug!(group, %error, "the QP was not moved to SQD");
                }
                g.drain = Drain::Stopping;
            }
            // One that cannot be asked has worse to do, which recovery sees to.
            if g.drain == Drain::Stopping && !self.device.query_qp(g.qp).is_ok_and(|qp| qp.draining)
            {
                g.drain = Drain::Drained;
            }
        }
    }

    /// When a queue pair that is on its way to SQD is looked at again: nothing else tells.
    pub(super) fn next_drain(&self, now: Instant) -> Option<Instant> {
        self.groups.values().any(|g| g.drain == Drain::Stopping).then_some(now + STOPPING)
    }
}
