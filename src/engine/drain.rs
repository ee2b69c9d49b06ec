//! Draining a group: everything that is to be sent is sent, and then nothing is, until it is resumed.
//!
//! For planned changes, and before a group is left: last words would be flushed with the queue pair. The protocol
//! is held back, as while a queue pair recovers; what waits is posted, what is posted ends; then the queue pair is
//! moved to SQD, where it receives and sends nothing. (SQD alone would not do: sends that were posted and not begun
//! stay in it until RTS.)

use qcast_proto::node::GroupId;
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::Instant;

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
    /// The queue pair is in SQD.
    Drained,
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
        if g.drains > 0 || std::mem::take(&mut g.drain) != Drain::Drained {
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
            if g.drain != Drain::Draining || !g.is_quiet() || g.recovery.is_under_way() {
                continue;
            }
            let to_sqd = QpAttrs::to(QpState::Sqd);
            let group = &g.setup.name;
            let moved = self.journal.modify(&mut *self.device, g.qp, group, QpState::Rts, &to_sqd);
            if let Err(error) = moved {
                // It is as quiet in RTS, since nothing is posted.
                tracing::debug!(group, %error, "the QP was not moved to SQD");
            }
            g.drain = Drain::Drained;
        }
    }
}
