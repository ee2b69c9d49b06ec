//! How a node outlives its device.
//!
//! A device can be taken away: an adapter that is unplugged, a driver that resets it, a link of Soft-RoCE that is
//! deleted. What waits for that is often the device's own remover, which goes on only when nobody holds anything of
//! the device any more. So everything is let go at once: groups, queue pairs, receives, handles, the device itself.
//! What was posted comes back, and what was published stays where it is: send buffers keep their memory and are
//! registered with the next device when they are next posted, and so do messages that applications hold. A placeholder
//! takes the device's part, and groups are held back as they are while a queue pair recovers.
//!
//! Then the device is opened anew, ever more patiently, and all groups are joined on it with new queue pairs, whose
//! addresses peers are told. To them it looks like a pause: what is missing they ask for.

use std::error::Error;

use qcast_proto::node::FrameToken;
use qcast_proto::time::{Duration, Instant};

use super::event::NodeEvent;
use super::group::{GroupSetup, JoinFailure, Joining};
use super::lease::RecvPool;
use super::recovery::{JOIN_PATIENCE, Recovery};
use super::{Engine, NO_AH, NO_QP};
use crate::device::absent::Absent;
use crate::device::{Device, DeviceError, PortCounters, Sources};

/// Opens the device of a node that has lost it.
pub(crate) type Reopen = Box<dyn FnMut() -> Result<Box<dyn Device>, Box<dyn Error>> + Send>;

/// The device is gone.
#[derive(Debug)]
pub(super) struct Absence {
    since: Instant,
    next_try: Instant,
    pause: Duration,
    /// It is there again, and groups are being joined on it.
    is_over: bool,
}

/// The pause after a first attempt, and after many: each is twice as long as the one before.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// How the device is opened anew once it is lost. Without it a node whose device is lost waits for ever.
    pub(crate) fn reopen_by(&mut self, reopen: Reopen) {
        self.reopen = Some(reopen);
    }

    /// The port's counters since the node was opened, whatever devices it had.
    pub fn counters(&self) -> PortCounters {
        self.counters_before + self.device.counters()
    }

    /// The descriptors to be watched. See [`Device::sources`].
    pub(crate) fn sources(&self) -> Sources<'_> {
        let Sources { epoch, fds } = self.device.sources();
        // Another device may count its epochs from the same number.
        Sources { epoch: (self.devices << 40) ^ epoch, fds }
    }

    /// The device is gone: lets everything of it go.
    pub(super) fn lose(&mut self, now: Instant, cause: &str) {
        if self.absence.as_ref().is_some_and(|absence| !absence.is_over) {
            return;
        }
        let device = self.device.caps().name.clone();
        tracing::error!(device, cause, "the device is gone");
        self.let_go(now);
        self.counters_before = self.counters();
        self.drops_seen = 0;
        self.device = Box::new(Absent::after(&*self.device));
        self.devices += 1;
        self.forget_port();
        match &mut self.absence {
            // Once more, before all groups were joined.
            Some(absence) => (absence.is_over, absence.next_try) = (false, now + absence.pause),
            None => {
                let (next_try, pause) = (now + MIN_PAUSE, MIN_PAUSE);
                self.absence = Some(Absence { since: now, next_try, pause, is_over: false });
                self.tell(&NodeEvent::DeviceLost { device, cause: cause.into() });
            }
        }
    }

    /// Ends all that refers to the device, and takes back all that it has.
    fn let_go(&mut self, now: Instant) {
        for joining in std::mem::take(&mut self.joining) {
            self.part(&joining.setup, joining.qp);
            if joining.replaces.is_none() {
                let failure = JoinFailure::Device(DeviceError::Gone);
                self.joined.push((joining.ticket, Err(failure)));
            }
        }
        let attached: Vec<_> = self
            .groups
            .values_mut()
            .filter_map(|g| Some((g.setup.clone(), g.attached.take()?)))
            .collect();
        for (setup, qp) in attached {
            self.part(&setup, qp);
        }
        // Every send that was posted comes back, and what was for a group is put before what waits.
        self.take_completions(now, usize::MAX);
        for waiter in self.waiting.release_all() {
            self.node.handle_sent(waiter.token, waiter.frame);
        }
        for g in self.groups.values_mut() {
            // What was for one peer is said again when it is missed.
            for mut wr in std::mem::take(&mut g.queue) {
                if wr.ah == g.ah {
                    wr.ah = NO_AH;
                    g.queue.push_back(wr);
                } else {
                    self.node.handle_sent(FrameToken::from_bits(wr.token), wr.buf);
                }
            }
            (g.qp, g.ah, g.posted) = (NO_QP, NO_AH, 0);
            g.recovery = Recovery::of_absent();
        }
        self.ah.restart(self.max_ah);
        // Frames that the protocol or applications hold keep their memory.
        self.recv = RecvPool::new(Vec::new());
    }

    /// Opens the device anew when that is due, and notices when all groups are back on it.
    pub(super) fn come_back(&mut self, now: Instant) {
        let (Some(absence), Some(reopen)) = (&mut self.absence, &mut self.reopen) else { return };
        if absence.is_over {
            if !self.groups.values().any(|g| g.recovery.replacing) {
                self.returned(now);
            }
            return;
        }
        if absence.next_try > now {
            return;
        }
        absence.pause = (absence.pause * 2).min(MAX_PAUSE);
        absence.next_try = now + absence.pause;
        let opened = reopen();
        match opened.and_then(|device| Ok(self.install(now, device)?)) {
            Ok(()) => self.rejoin(now),
            Err(error) => tracing::debug!(%error, "the device is not back yet"),
        }
    }

    pub(super) fn next_return(&self) -> Option<Instant> {
        let absence = self.absence.as_ref().filter(|absence| !absence.is_over)?;
        self.reopen.as_ref().map(|_| absence.next_try)
    }

    fn install(&mut self, now: Instant, mut device: Box<dyn Device>) -> Result<(), DeviceError> {
        device.advance(now);
        let depth = self.srq_depth.min(device.caps().max_srq_wr).max(2);
        let mut recv = RecvPool::new(device.alloc_recv(depth)?);
        device.post_recv(&mut recv.free)?;
        self.ah.restart(self.max_ah.min(device.caps().max_ah));
        (self.device, self.recv) = (device, recv);
        self.devices += 1;
        Ok(())
    }

    /// Joins every group on the new device.
    fn rejoin(&mut self, now: Instant) {
        if let Some(absence) = &mut self.absence {
            absence.is_over = true;
        }
        self.forget_port();
        let groups: Vec<_> = self.groups.iter().map(|(id, g)| (*id, g.setup.clone())).collect();
        for (id, setup) in groups {
            match self.bring_up_and_join(&setup) {
                Ok(qp) => {
                    let (deadline, replaces) = (now + JOIN_PATIENCE, Some(id));
                    self.joining.push(Joining { ticket: 0, setup, qp, deadline, replaces });
                }
                Err(error) => {
                    let GroupSetup { name, .. } = setup;
                    tracing::warn!(group = name, %error, "no QP on the new device yet");
                    self.replace_failed(now, id, &error.to_string());
                }
            }
        }
        self.watch_port(now);
    }

    fn returned(&mut self, now: Instant) {
        let Some(Absence { since, .. }) = self.absence.take() else { return };
        let (device, gid) = (self.device.caps().name.clone(), self.device.port().gid);
        let after = now.saturating_since(since);
        tracing::info!(device, %gid, ms = after.as_millis() as u64, "the device is back");
        self.tell(&NodeEvent::DeviceReturned { device, gid, after });
    }
}
