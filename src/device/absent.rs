//! In place of a device that is gone: a port that is down, and an error for whoever asks for more.

use std::collections::VecDeque;

use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::qp::QpAttrs;
use qcast_proto::time::Instant;

use super::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, RecvBuf, SendBuf, SendWr, Sources,
};

/// What is left of a device: what it was called and where it was.
#[derive(Debug)]
pub(crate) struct Absent {
    caps: DeviceCaps,
    port: PortInfo,
}

impl Absent {
    /// Stands in for a device.
    pub(crate) fn after(device: &dyn Device) -> Self {
        Self { caps: device.caps().clone(), port: PortInfo { active: false, ..device.port() } }
    }
}

impl Device for Absent {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn port(&self) -> PortInfo {
        self.port
    }

    fn advance(&mut self, _: Instant) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn alloc_send(&mut self, _: usize) -> Result<Vec<SendBuf>, DeviceError> {
        Err(DeviceError::Gone)
    }

    fn alloc_recv(&mut self, _: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        Err(DeviceError::Gone)
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        Err(DeviceError::Gone)
    }

    fn qpn(&self, _: QpId) -> Qpn {
        Qpn::default()
    }

    fn modify_qp(&mut self, _: QpId, _: &QpAttrs) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn query_qp(&mut self, _: QpId) -> Result<QpInfo, DeviceError> {
        Err(DeviceError::Gone)
    }

    fn destroy_qp(&mut self, _: QpId) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn join(&mut self, _: QpId, _: Gid) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn leave(&mut self, _: QpId, _: Gid) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn create_ah(&mut self, _: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn destroy_ah(&mut self, _: AhId) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn post_recv(&mut self, _: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn post_send(&mut self, _: QpId, _: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }

    fn poll(&mut self, _: &mut Vec<Completion>, _: usize) {}

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    fn posted_recvs(&self) -> usize {
        0
    }

    fn sources(&self) -> Sources<'_> {
        Sources { epoch: 0, fds: &[] }
    }

    fn arm(&mut self) -> Armed {
        Armed::Sleep
    }
}
