//! How a queue pair that left RTS by itself comes back.
//!
//! An event of the device, a send that is refused and the device's own looking all end here, and all mean the same: one
//! recovery for each fault, however often it is told. The first try comes at once, by the cheapest legal
//! walk; when faults follow each other, tries are put off, each twice as long as the one before, and after
//! [`MAX_ATTEMPTS`] the queue pair is given up with its first cause. Sends wait in the group's queue
//! meanwhile. What was posted comes back as flushed, and is repaired if it is missed.
//!
//! While the port is down nothing is posted and nothing tried: on Soft-RoCE every send would take its queue pair to
//! ERR again. When it is up all begin anew.

use qcast_proto::addr::{Psn, QKey};
use qcast_proto::qp::{Path, QpState, QpType, UdSetup, reset_walk, walk_to_rts};
use qcast_proto::time::{Duration, Instant};

use super::Engine;
use super::journal::Journal;
use crate::device::{Device, DeviceError, QpId};

/// How far a queue pair's recovery is.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Tries since it last worked for a while.
    attempts: u32,
    /// When the next try is due.
    due: Option<Instant>,
    /// When the last try was made.
    tried: Option<Instant>,
    /// What the first of the faults that followed each other was.
    cause: Option<String>,
    given_up: bool,
}

/// Tries before a queue pair is given up.
const MAX_ATTEMPTS: u32 = 8;

/// The time before the second try.
const BACK_OFF: Duration = Duration::from_millis(5);

/// After so long without a fault the next one is a first one again.
const CALM: Duration = Duration::from_secs(2);

impl Recovery {
    /// There is a fault. Says whether it is news.
    pub(super) fn fault(&mut self, now: Instant, cause: &str) -> bool {
        if self.given_up || self.due.is_some() {
            return false;
        }
        if self.tried.is_none_or(|tried| now.saturating_since(tried) > CALM) {
            (self.attempts, self.cause) = (0, None);
        }
        self.cause.get_or_insert_with(|| cause.into());
        if self.attempts >= MAX_ATTEMPTS {
            self.given_up = true;
            return true;
        }
        let delay = match self.attempts {
            0 => Duration::ZERO,
            n => BACK_OFF * (1 << (n - 1)),
        };
        self.due = Some(now + delay);
        true
    }

    /// The port is up again: what failed until then says nothing of what is to come.
    pub(super) fn restart(&mut self, now: Instant) {
        let unfinished = self.given_up || self.due.is_some();
        *self = Self { due: unfinished.then_some(now), ..Self::default() };
    }

    /// Whether a try is due; it counts as made.
    fn take_due(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        (self.due, self.tried) = (None, Some(now));
        self.attempts += 1;
        true
    }

    /// When the next try is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Why it was given up, if it was.
    pub(super) fn given_up(&self) -> Option<&str> {
        self.cause.as_deref().filter(|_| self.given_up)
    }
}

impl Engine {
    /// A queue pair is in a state in which it does not send.
    pub(super) fn fault(&mut self, now: Instant, qp: QpId, state: QpState) {
        let Some(g) = self.groups.values_mut().find(|g| g.qp == qp) else { return };
        if !g.recovery.fault(now, state.name()) {
            return;
        }
        match g.recovery.given_up() {
            None => {
                tracing::warn!(group = g.setup.name, %state, "the QP left RTS; bringing it back")
            }
            Some(cause) => tracing::error!(
                group = g.setup.name,
                cause,
                "the QP leaves RTS again and again, and is given up; leave the group and join it anew"
            ),
        }
    }

    /// Tries what is due.
    pub(super) fn recover(&mut self, now: Instant) {
        if !self.device.port().active {
            return;
        }
        for g in self.groups.values_mut() {
            if !g.recovery.take_due(now) {
                continue;
            }
            let device = &mut *self.device;
            let back = match device.query_qp(g.qp) {
                Ok(info) if info.state == QpState::Rts => Ok(()),
                Ok(info) => {
                    let (journal, group) = (&mut self.journal, g.setup.name.as_str());
                    Walk { device, journal, qp: g.qp, group, qkey: g.setup.qkey }
                        .walk_to_rts(info.state)
                }
                Err(error) => Err(error),
            };
            match back {
                Ok(()) => tracing::info!(group = g.setup.name, "the QP is in RTS again"),
                Err(error) => {
                    tracing::warn!(group = g.setup.name, %error, "the QP could not be brought back");
                    g.recovery.fault(now, &error.to_string());
                }
            }
        }
    }

    /// When the next try is due.
    pub(super) fn recovery_due(&self) -> Option<Instant> {
        if !self.device.port().active {
            return None;
        }
        self.groups.values().filter_map(|g| g.recovery.due()).min()
    }
}

/// What a walk needs to know of a group's queue pair.
pub(super) struct Walk<'a> {
    pub(super) device: &'a mut dyn Device,
    pub(super) journal: &'a mut Journal,
    pub(super) qp: QpId,
    pub(super) group: &'a str,
    pub(super) qkey: QKey,
}

impl Walk<'_> {
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
        let qkey = self.qkey.into();
        let setup = UdSetup { pkey_index: 0, port, qkey, sq_psn: Psn::new(0) };
        for hop in path.hops(QpType::Ud) {
            let attrs = setup
                .attrs(hop.from, hop.to)
                .expect("every hop of a walk is a legal step of a UD queue pair");
            self.journal.modify(self.device, self.qp, self.group, hop.from, &attrs)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    // Case 94: an event, a completion and a look all tell of one fault.
    #[test]
    fn a_fault_that_is_told_three_times_is_one() {
        let mut recovery = Recovery::default();
        assert!(recovery.fault(at(0), "ERR"));
        assert!(!recovery.fault(at(0), "ERR"));
        assert!(!recovery.fault(at(1), "SQE"));
        assert!(recovery.take_due(at(1)));
        assert!(!recovery.take_due(at(1)));
    }

    // Case 14: at once, then 1, 2, 4, ... times as long, then given up with the first cause.
    #[test]
    fn tries_are_put_off_and_end() {
        let mut recovery = Recovery::default();
        let mut now = at(0);
        let mut delays = Vec::new();
        for n in 0..MAX_ATTEMPTS {
            assert!(recovery.fault(now, if n == 0 { "LOC_LEN" } else { "flushed" }));
            let due = recovery.due().unwrap();
            delays.push(due.saturating_since(now).as_millis());
            now = due;
            assert!(recovery.take_due(now));
        }
        assert_eq!(delays, [0, 5, 10, 20, 40, 80, 160, 320]);
        assert!(recovery.fault(now, "flushed"));
        assert_eq!(recovery.given_up(), Some("LOC_LEN"));
        assert!(!recovery.fault(now, "flushed"));
        assert!(!recovery.take_due(at(1_000_000)));
    }

    #[test]
    fn a_port_that_is_up_again_is_a_new_chance() {
        let mut recovery =
            Recovery { given_up: true, attempts: MAX_ATTEMPTS, ..Recovery::default() };
        recovery.restart(at(9));
        assert_eq!((recovery.due(), recovery.attempts), (Some(at(9)), 0));
        let mut sound = Recovery::default();
        sound.restart(at(9));
        assert_eq!(sound.due(), None);
    }

    #[test]
    fn after_a_calm_time_it_begins_anew() {
        let mut recovery = Recovery::default();
        for millis in [0, 10] {
            recovery.fault(at(millis), "ERR");
            recovery.take_due(at(millis + 5));
        }
        assert!(recovery.fault(at(5000), "SQE"));
        assert_eq!(recovery.due(), Some(at(5000)));
        assert_eq!(recovery.cause.as_deref(), Some("SQE"));
    }
}
