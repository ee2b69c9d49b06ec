//! Waking up: what is there now, and what will tell of more.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::VerbsDevice;
use super::cm::CmEvent;
use super::event::AsyncEvent;
use crate::device::{Armed, DeviceError, DeviceEvent, QpId};

/// Which descriptors can be read.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    channel: bool,
    others: bool,
}

impl VerbsDevice {
    pub(super) fn arm_all(&mut self) -> Armed {
        if !self.done.is_empty() || !self.events.is_empty() {
            return Armed::Again;
        }
        let ready = self.ready();
        if ready.channel {
            self.take_channel_events();
        }
        if let Err(error) = self.arm_queues() {
            tracing::warn!(device = %self.caps.name, %error, "a queue could not be armed");
        }
        // What came before the queues were armed tells nobody.
        self.gather(1);
        if ready.others {
            self.take_events();
        }
        if self.done.is_empty() && self.events.is_empty() { Armed::Sleep } else { Armed::Again }
    }

    fn ready(&self) -> Ready {
        let mut fds: Vec<PollFd<'_>> = self
            .sources
            .iter()
            .map(|fd| {
                // SAFETY: the descriptors are those of objects that this device owns, and open as long as these live.
                let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
                PollFd::new(fd, PollFlags::POLLIN)
            })
            .collect();
        if poll(&mut fds, PollTimeout::ZERO).is_err() {
            return Ready { channel: true, others: true };
        }
        let any = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ready { channel: any(&fds[0]), others: fds[1..].iter().any(any) }
    }

    /// Takes the events of the completion channel: their queues are no longer armed.
    fn take_channel_events(&mut self) {
        while let Some(cq) = self.channel.event() {
            if cq == self.recv_cq.as_ptr().addr() {
                self.recv_cq.took_event();
                self.recv_armed = false;
            } else if let Some((_, qp)) =
                self.qps.iter_mut().find(|(_, qp)| qp.cq.as_ptr().addr() == cq)
            {
                qp.cq.took_event();
                qp.armed = false;
            }
        }
    }

    fn arm_queues(&mut self) -> Result<(), DeviceError> {
        if !self.recv_armed {
            self.recv_cq.arm()?;
            self.recv_armed = true;
        }
        for (_, qp) in &mut self.qps {
            if !qp.armed {
                qp.cq.arm()?;
                qp.armed = true;
            }
        }
        Ok(())
    }

    /// Takes what the device, rdma_cm and the resolvers of addresses have to tell.
    pub(super) fn take_events(&mut self) {
        while let Some((ah, result)) = self.ahs.poll() {
            self.events.push_back(match result {
                Ok(()) => DeviceEvent::AhReady { ah },
                Err(error) => DeviceEvent::AhFailed { ah, error },
            });
        }
        while let Some((id, event)) = self.cm.event() {
            let result = match event {
                CmEvent::Joined(way) => Ok(way),
                CmEvent::Failed(error) => Err(error),
                CmEvent::Removed => {
                    self.lose("rdma_cm says that it is being removed");
                    continue;
                }
            };
            if let Some(at) = self.memberships.iter().position(|group| group.is(id)) {
                self.heard_of_join(at, result);
            }
        }
        while let Some(event) = self.reader.take() {
            self.take_async(event);
        }
    }

    fn take_async(&mut self, event: AsyncEvent) {
        tracing::debug!(device = %self.caps.name, ?event, "asynchronous event");
        match event {
            AsyncEvent::Qp { at, .. } => {
                let id = self.qps.iter().find(|(_, qp)| qp.as_ptr().addr() == at);
                if let Some(id) = id.map(|(id, _)| QpId(id)) {
                    self.examine(id);
                }
            }
            AsyncEvent::SrqLimit { at } => {
                if self.posted.srq().as_ptr().addr() == at {
                    self.events.push_back(DeviceEvent::SrqLimit);
                }
            }
            AsyncEvent::Port { .. } => self.look_after(),
            AsyncEvent::CqOverrun | AsyncEvent::SrqError => {
                tracing::error!(device = %self.caps.name, ?event, "a queue of the device is broken");
                self.look_after();
            }
            AsyncEvent::Fatal => self.lose("DEVICE_FATAL"),
            AsyncEvent::Other(_) => {}
        }
    }
}
