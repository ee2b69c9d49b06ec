//! How a queue pair comes back that left RTS by itself.
//!
//! Hardware moves a UD queue pair to SQE after a failed send and says so; Soft-RoCE moves it to ERR and
//! says nothing. So everything that may be a sign is followed by the question to the device itself: an
//! event, a completion that is no success, a send that is refused because the queue pair is not ready.
//! The cheapest legal walk brings it back. A walk that fails is tried again, ever more slowly; after a
//! few of them another queue pair takes its place, joins the group anew, and peers are told its
//! address. Queue pairs that fault again and again wait longer each time.
//!
//! While the port is down nothing is posted and nothing tried: on Soft-RoCE every send would take its
//! queue pair to ERR again. When the port is up all begin anew.

use qcast_proto::node::GroupId;
use qcast_proto::qp::QpState;
use qcast_proto::time::{Duration, Instant};

use super::Engine;
use super::group::{EngineGroup, Joining, Walk};
use crate::device::{AhId, DeviceError, QpId};

/// A queue pair's way back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    /// When the next step is due; `None` while nothing is wrong.
    pub(super) due: Option<Instant>,
    /// Walks that failed, one after the other.
    failed: u32,
    /// Faults, one soon after the other.
    streak: u32,
    recovered: Instant,
    /// Another queue pair joins the group: until it has, there is no way to send.
    pub(super) replacing: bool,
}

/// How often queue pairs came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryStats {
    /// Queue pairs that were found outside RTS.
    pub faults: u64,
    /// Walks that brought one back.
    pub walks: u64,
    /// Walks that the device refused.
    pub failed_walks: u64,
    /// Queue pairs that were replaced.
    pub replaced: u64,
}

/// The pause after a first failure, and after many: each is twice as long as the one before.
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Walks that may fail before the queue pair is replaced.
const MAX_FAILED: u32 = 3;

/// A fault so long after the last recovery has nothing to do with it.
const CALM: Duration = Duration::from_secs(2);

/// How long the join of a new queue pair may take.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

impl Recovery {
    /// There is a sign that the queue pair is not in RTS.
    pub(super) fn suspect(&mut self, now: Instant) {
        if self.due.is_some() || self.replacing {
            return;
        }
        if now.saturating_since(self.recovered) >= CALM {
            self.streak = 0;
        }
        self.failed = 0;
        self.due = Some(if self.streak == 0 { now } else { now + pause(self.streak - 1) });
    }

    fn back(&mut self, now: Instant) {
        (self.due, self.failed, self.recovered) = (None, 0, now);
        self.streak += 1;
    }

    /// The port is up again: what failed until then says nothing of what is to come.
    pub(super) fn restart(&mut self, now: Instant) {
        if self.due.is_some() {
            self.due = Some(now);
        }
        (self.failed, self.streak) = (0, 0);
    }

    /// Whether nothing can be posted now.
    pub(super) fn is_under_way(&self) -> bool {
        self.due.is_some() || self.replacing
    }
}

fn pause(times: u32) -> Duration {
    (MIN_PAUSE * (1 << times.min(16))).min(MAX_PAUSE)
}

impl Engine {
    /// How often queue pairs came back.
    pub fn recovery_stats(&self) -> RecoveryStats {
        self.recovery
    }

    /// There is a sign that a queue pair is not in RTS.
    pub(super) fn suspect(&mut self, now: Instant, qp: QpId) {
        if let Some(g) = self.groups.values_mut().find(|g| g.qp == qp) {
            g.recovery.suspect(now);
        }
    }

    /// Takes the steps that are due.
    pub(super) fn recover(&mut self, now: Instant) {
        if !self.device.port().active {
            return;
        }
        let is_due = |g: &EngineGroup| g.recovery.due.is_some_and(|due| due <= now);
        let due: Vec<GroupId> =
            self.groups.iter().filter(|(_, g)| is_due(g)).map(|(id, _)| *id).collect();
        for id in due {
            self.recover_group(now, id);
        }
    }

    pub(super) fn next_recovery(&self) -> Option<Instant> {
        if !self.device.port().active {
            return None;
        }
        self.groups.values().filter_map(|g| g.recovery.due).min()
    }

    fn recover_group(&mut self, now: Instant, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let state = match self.device.query_qp(g.qp) {
            Ok(info) if info.state == QpState::Rts => return g.recovery.back(now),
            Ok(info) => info.state,
            Err(error) => return self.walk_failed(now, id, &error),
        };
        if g.recovery.failed == 0 {
            self.recovery.faults += 1;
            tracing::warn!(group = g.setup.name, %state, "the QP left RTS; bringing it back");
        }
        let (device, journal) = (&mut *self.device, &mut self.journal);
        match (Walk { device, journal, qp: g.qp, setup: &g.setup }).walk_to_rts(state) {
            Ok(()) => {
                self.recovery.walks += 1;
                g.recovery.back(now);
            }
            Err(error) => self.walk_failed(now, id, &error),
        }
    }

    fn walk_failed(&mut self, now: Instant, id: GroupId, error: &DeviceError) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        self.recovery.failed_walks += 1;
        g.recovery.failed += 1;
        let failed = g.recovery.failed;
        g.recovery.due = Some(now + pause(failed - 1));
        if failed == 1 || failed == MAX_FAILED {
            tracing::error!(group = g.setup.name, %error, failed, "the QP could not be brought back");
        }
        if failed >= MAX_FAILED {
            self.replace(now, id);
        }
    }

    /// Gives up a queue pair that does not come back. Another one joins the group in its place.
    pub(super) fn replace(&mut self, now: Instant, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let (setup, old) = (g.setup.clone(), g.attached.take());
        if let Some(old) = old {
            self.part(&setup, old);
        }
        let (qp, deadline) = match self.bring_up_and_join(&setup) {
            Ok(qp) => (qp, now + JOIN_PATIENCE),
            Err(error) => {
                tracing::debug!(group = setup.name, %error, "no other QP");
                return;
            }
        };
        let g = self.groups.get_mut(&id).expect("it was there a moment ago");
        g.recovery.due = None;
        g.recovery.replacing = true;
        self.joining.push(Joining { ticket: 0, setup, qp, deadline, replaces: Some(id) });
    }

    /// The new queue pair has joined.
    pub(super) fn replaced(&mut self, now: Instant, id: GroupId, qp: QpId, ah: AhId) {
        let address = self.address(qp);
        // A group that is left takes its joins with it.
        let Some(g) = self.groups.get_mut(&id) else { return };
        tracing::warn!(group = g.setup.name, qpn = %address.qpn, "another QP took the place");
        let old = std::mem::replace(&mut g.ah, ah);
        for wr in g.queue.iter_mut().filter(|wr| wr.ah == old) {
            wr.ah = ah;
        }
        (g.qp, g.attached) = (qp, Some(qp));
        g.recovery.replacing = false;
        g.recovery.back(now);
        self.recovery.replaced += 1;
        self.node.readdress(now, id, address);
    }

    /// The new queue pair could not join.
    pub(super) fn replace_failed(&mut self, now: Instant, id: GroupId) {
        if let Some(g) = self.groups.get_mut(&id) {
            g.recovery.replacing = false;
            g.recovery.failed += 1;
            g.recovery.due = Some(now + pause(g.recovery.failed));
        }
    }
}
