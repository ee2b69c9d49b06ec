//! A device that counts calls, and refuses sends as a test tells it to.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::{Duration, Instant};

use crate::device::sim::SimDevice;
use crate::device::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, RecvBuf, SendBuf, SendWr, Sources,
};

/// What becomes of a post.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    /// Nothing is taken and no error given; the device wants a turn after that time, as the software
    /// provider when the socket is full.
    Later(Duration),
    /// This error.
    Error(fn() -> DeviceError),
}

/// What a test sees of the device, and tells it.
#[derive(Default)]
pub(super) struct Script {
    /// What becomes of the next posts; then they go through.
    pub(super) posts: VecDeque<Refusal>,
    pub(super) created_ahs: u64,
    pub(super) failed_destroys: u64,
    pub(super) modifies: u64,
    /// How often it still says that it is not in SQD altogether; until then it goes nowhere from there.
    pub(super) draining: u64,
}

pub(super) struct Scripted {
    device: SimDevice,
    script: Arc<Mutex<Script>>,
    now: Instant,
    retry: Option<Instant>,
}

impl Scripted {
    pub(super) fn new(device: SimDevice) -> (Self, Arc<Mutex<Script>>) {
        let script = Arc::new(Mutex::new(Script::default()));
        (Self { device, script: Arc::clone(&script), now: Instant::ZERO, retry: None }, script)
    }
}

impl Device for Scripted {
    fn advance(&mut self, now: Instant) {
        self.now = now;
        self.device.advance(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry
    }

    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        self.retry = None;
        match self.script.lock().posts.pop_front() {
            None => self.device.post_send(qp, sends),
            Some(Refusal::Later(after)) => {
                self.retry = Some(self.now + after);
                Ok(())
            }
            Some(Refusal::Error(error)) => Err(error()),
        }
    }

    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        self.script.lock().created_ahs += 1;
        self.device.create_ah(to)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError> {
        let destroyed = self.device.destroy_ah(ah);
        self.script.lock().failed_destroys += u64::from(destroyed.is_err());
        destroyed
    }

    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
        let mut script = self.script.lock();
        script.modifies += 1;
        if script.draining > 0 && self.device.query_qp(qp)?.state == QpState::Sqd {
            return Err(DeviceError::Busy("a queue pair in SQD whose sends are not finished"));
        }
        drop(script);
        self.device.modify_qp(qp, attrs)
    }

    fn caps(&self) -> &DeviceCaps {
        self.device.caps()
    }

    fn port(&self) -> PortInfo {
        self.device.port()
    }

    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError> {
        self.device.alloc_send(count)
    }

    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        self.device.alloc_recv(count)
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        self.device.create_qp()
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        self.device.qpn(qp)
    }

    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError> {
        let mut info = self.device.query_qp(qp)?;
        let mut script = self.script.lock();
        info.draining = info.state == QpState::Sqd && script.draining > 0;
        script.draining -= u64::from(info.draining);
        Ok(info)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        self.device.destroy_qp(qp)
    }

    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.device.join(qp, mgid)
    }

    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.device.leave(qp, mgid)
    }

    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        self.device.post_recv(bufs)
    }

    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        self.device.poll(out, budget);
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.device.poll_event()
    }

    fn counters(&self) -> PortCounters {
        self.device.counters()
    }

    fn posted_recvs(&self) -> usize {
        self.device.posted_recvs()
    }

    fn sources(&self) -> Sources<'_> {
        self.device.sources()
    }

    fn arm(&mut self) -> Armed {
        self.device.arm()
    }
}
