//! How a queue pair comes back that left RTS by itself.
//!
//! Hardware moves a UD queue pair to SQE after a failed send and says so; Soft-RoCE moves it to ERR and
//! says nothing. So everything that may be a sign is followed by the question to the device itself: an
//! event, a completion that is no success, a send that is refused because the queue pair is not ready,
//! the device's own look at its queue pairs, once a second. However many signs there are of one fault, there is one
//! recovery: while it is under way others say nothing new, and one that comes late finds the queue pair in RTS.
//!
//! The cheapest legal walk brings it back. A walk that fails is tried again, ever more slowly; after a
//! few of them another queue pair takes its place, joins the group anew, and peers are told its
//! address. Queue pairs that fault again and again wait longer each time. After [`MAX_ATTEMPTS`] without a calm
//! moment the group has failed: that is told with what went wrong first, and from then on there is an attempt now and
//! then.
//!
//! While the port is down nothing is posted and nothing tried: on Soft-RoCE every send would take its
//! queue pair to ERR again. When the port is up all begin anew.

use qcast_proto::node::GroupId;
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::{Duration, Instant};

use super::event::{NodeEvent, Trouble};
use super::group::{EngineGroup, Joining, Walk};
use super::{Engine, NO_QP};
use crate::device::{AhId, DeviceError, QpId, WcStatus};

/// A queue pair's way back.
#[derive(Clone, Debug, Default)]
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
    /// What went wrong first, since it was last calm.
    cause: Option<String>,
    /// Whether that is what a completion says, which knows best.
    is_exact: bool,
    /// Attempts since then.
    attempts: u32,
    /// What was told, and when.
    told: Option<(Trouble, Instant)>,
    /// That there were too many attempts was told.
    has_failed: bool,
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
    /// Groups whose queue pairs did not come back in time.
    pub failed: u64,
}

/// The pause after a first failure, and after many: each is twice as long as the one before.
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Walks that may fail before the queue pair is replaced.
const MAX_FAILED: u32 = 3;

/// Attempts without a calm moment before the group counts as failed: about three seconds of them.
const MAX_ATTEMPTS: u32 = 10;

/// The pause between attempts from then on.
const SLOW_PAUSE: Duration = Duration::from_secs(5);

/// A fault so long after the last recovery has nothing to do with it.
const CALM: Duration = Duration::from_secs(2);

/// How long the join of a new queue pair may take.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_secs(5);

impl Recovery {
    /// Nothing to recover, and nothing to send by, until another device is there.
    pub(super) fn of_absent() -> Self {
        Self { replacing: true, ..Self::default() }
    }

    /// There is a sign that the queue pair is not in RTS.
    pub(super) fn suspect(&mut self, now: Instant, cause: impl FnOnce() -> String) {
        if self.is_under_way() {
            return;
        }
        if now.saturating_since(self.recovered) >= CALM && !self.has_failed {
            (self.streak, self.attempts, self.cause, self.is_exact) = (0, 0, None, false);
        }
        self.failed = 0;
        self.cause.get_or_insert_with(cause);
        let pause = match self.streak {
            _ if self.attempts >= MAX_ATTEMPTS => SLOW_PAUSE,
            0 => Duration::ZERO,
            streak => pause(streak - 1),
        };
        self.due = Some(now + pause);
    }

    /// A send ended badly.
    pub(super) fn blame(&mut self, now: Instant, status: WcStatus) {
        let cause = || format!("a send ended with {status:?}");
        self.suspect(now, cause);
        // An event of the same fault may have come first, and says less.
        if status != WcStatus::WrFlushErr && self.attempts == 0 && !self.is_exact {
            (self.cause, self.is_exact) = (Some(cause()), true);
        }
    }

    fn back(&mut self, now: Instant) {
        (self.due, self.failed, self.recovered, self.replacing) = (None, 0, now, false);
        self.streak += 1;
    }

    /// Another attempt failed: when the next is due.
    fn again(&mut self, now: Instant) {
        let slow = self.attempts >= MAX_ATTEMPTS;
        let pause = if slow { SLOW_PAUSE } else { pause(self.failed.saturating_sub(1)) };
        self.due = Some(now + pause);
    }

    /// The port has changed: what failed until then says nothing of what is to come.
    pub(super) fn restart(&mut self, now: Instant) {
        if self.due.is_some() {
            self.due = Some(now);
        }
        (self.failed, self.streak, self.attempts) = (0, 0, 0);
    }

    /// Whether nothing can be posted now.
    pub(super) fn is_under_way(&self) -> bool {
        self.due.is_some() || self.replacing
    }

    /// When a group that has failed counts as whole again.
    fn calm_at(&self) -> Option<Instant> {
        (self.has_failed && !self.is_under_way()).then(|| self.recovered + CALM)
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

    /// Moves a group's queue pair to ERR, past all that would bring it back.
    pub(crate) fn break_qp(&mut self, id: GroupId) -> Result<(), DeviceError> {
        let g = self.groups.get(&id).ok_or(DeviceError::NoSuch("group"))?;
        self.device.modify_qp(g.qp, &QpAttrs::to(QpState::Err))
    }

    /// There is a sign that a queue pair is not in RTS.
    pub(super) fn suspect(&mut self, now: Instant, qp: QpId, cause: impl FnOnce() -> String) {
        if let Some(g) = self.groups.values_mut().find(|g| g.qp == qp) {
            g.recovery.suspect(now, cause);
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
        let is_calm = |g: &EngineGroup| g.recovery.calm_at().is_some_and(|at| at <= now);
        let calm: Vec<GroupId> =
            self.groups.iter().filter(|(_, g)| is_calm(g)).map(|(id, _)| *id).collect();
        for id in calm {
            self.restored(now, id);
        }
    }

    pub(super) fn next_recovery(&self) -> Option<Instant> {
        if !self.device.port().active {
            return None;
        }
        let next = |g: &EngineGroup| g.recovery.due.or_else(|| g.recovery.calm_at());
        self.groups.values().filter_map(next).min()
    }

    fn recover_group(&mut self, now: Instant, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let state = match self.device.query_qp(g.qp) {
            Ok(info) if info.state == QpState::Rts && g.recovery.told.is_none() => {
                // A late sign of what is over, or none at all.
                g.recovery.due = None;
                return;
            }
            Ok(info) if info.state == QpState::Rts => return self.is_back(now, id),
            Ok(info) => info.state,
            Err(error) => {
                g.recovery.attempts += 1;
                self.tell_of(now, id, QpState::Err);
                self.count_attempts(id);
                return self.walk_failed(now, id, &error);
            }
        };
        g.recovery.attempts += 1;
        if g.recovery.failed == 0 {
            self.recovery.faults += 1;
            let cause = g.recovery.cause.as_deref().unwrap_or_default();
            tracing::warn!(group = g.setup.name, %state, cause, "the QP left RTS; bringing it back");
        }
        self.tell_of(now, id, state);
        self.count_attempts(id);
        let Some(g) = self.groups.get_mut(&id) else { return };
        let (device, journal) = (&mut *self.device, &mut self.journal);
        match (Walk { device, journal, qp: g.qp, setup: &g.setup }).walk_to_rts(state) {
            Ok(()) => {
                self.recovery.walks += 1;
                self.is_back(now, id);
            }
            Err(error) => self.walk_failed(now, id, &error),
        }
    }

    /// Tells that a group's queue pair is not in RTS, once for each fault.
    fn tell_of(&mut self, now: Instant, id: GroupId, state: QpState) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        if g.recovery.told.is_none() {
            let trouble = Trouble::QueuePair { group: g.setup.name.clone(), state };
            g.recovery.told = Some((trouble.clone(), now));
            self.tell(&NodeEvent::Degraded { trouble });
        }
    }

    /// A group whose queue pair has had enough attempts has failed.
    fn count_attempts(&mut self, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let recovery = &mut g.recovery;
        if recovery.attempts < MAX_ATTEMPTS || std::mem::replace(&mut recovery.has_failed, true) {
            return;
        }
        self.recovery.failed += 1;
        let (group, attempts) = (g.setup.name.clone(), recovery.attempts);
        let cause = recovery.cause.clone().unwrap_or_default();
        tracing::error!(group, cause, attempts, "the QP failed; trying now and then");
        self.tell(&NodeEvent::QpFailed { group, cause, attempts });
    }

    /// The queue pair, or another in its place, is in RTS.
    fn is_back(&mut self, now: Instant, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        g.recovery.back(now);
        // One that failed has to stay there for a while first.
        if !g.recovery.has_failed {
            self.restored(now, id);
        }
    }

    fn restored(&mut self, now: Instant, id: GroupId) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        if std::mem::take(&mut g.recovery.has_failed) {
            g.recovery = Recovery { told: g.recovery.told.take(), ..Recovery::default() };
        }
        if let Some((trouble, since)) = g.recovery.told.take() {
            let after = now.saturating_since(since);
            self.tell(&NodeEvent::Restored { trouble, after });
        }
    }

    fn walk_failed(&mut self, now: Instant, id: GroupId, error: &DeviceError) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        self.recovery.failed_walks += 1;
        g.recovery.failed += 1;
        let failed = g.recovery.failed;
        g.recovery.cause.get_or_insert_with(|| error.to_string());
        g.recovery.again(now);
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
            // What it had comes back while it is known whose it was: its place may be given to another.
            self.take_completions(now, usize::MAX);
        }
        if let Some(g) = self.groups.get_mut(&id) {
            g.qp = NO_QP;
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
        (g.qp, g.attached, g.posted) = (qp, Some(qp), 0);
        self.recovery.replaced += 1;
        self.is_back(now, id);
        self.node.readdress(now, id, address);
    }

    /// There is no queue pair on a new device, or it could not join.
    pub(super) fn replace_failed(&mut self, now: Instant, id: GroupId, why: &str) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        tracing::debug!(group = g.setup.name, why, "no other QP");
        g.recovery.replacing = false;
        g.recovery.failed = g.recovery.failed.max(MAX_FAILED) + 1;
        g.recovery.attempts += 1;
        g.recovery.cause.get_or_insert_with(|| why.into());
        g.recovery.again(now);
        self.tell_of(now, id, QpState::Err);
        self.count_attempts(id);
    }
}
