//! One port of a fabric as a device.

use std::collections::VecDeque;

use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::Instant;

use super::config::PortConfig;
use super::fabric::Fabric;
use crate::device::buf::{RecvBuf, SendBuf};
use crate::device::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, SendWr, Sources,
};

/// A port of a [`Fabric`]. Dropping it closes the port, as the end of its process would: nothing is
/// said to anyone, and what is on its way to it is lost.
#[derive(Debug)]
pub struct SimDevice {
    fabric: Fabric,
    index: usize,
    caps: DeviceCaps,
    own_memory: bool,
}

impl SimDevice {
    pub(super) fn open(fabric: Fabric, config: PortConfig) -> Self {
        let mut caps = DeviceCaps {
            name: String::new(),
            max_payload: config.mtu,
            max_srq_wr: config.max_srq_wr,
            max_send_wr: config.max_send_wr,
            max_ah: config.max_ah,
            backlog: usize::MAX,
            loops_back: Some(config.loops_back),
            ethernet: true,
            counts_drops: true,
            pkeys: 1,
            ports: 1,
            new_qp: QpState::Reset,
        };
        let own_memory = config.own_memory;
        let index = fabric.net.lock().open(config);
        caps.name = format!("sim:{index}");
        Self { fabric, index, caps, own_memory }
    }

    /// The port's index, by which the fabric knows it.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.fabric.net.lock().close(self.index);
    }
}

impl Device for SimDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn port(&self) -> PortInfo {
        let net = self.fabric.net.lock();
        let port = net.port(self.index);
        PortInfo {
            port: 1,
            gid: port.gid,
            udp_port: port.udp_port,
            mtu: port.mtu,
            active: port.link_up,
        }
    }

    /// Lets everything happen on the whole fabric that is due by `now`.
    fn advance(&mut self, now: Instant) {
        self.fabric.net.lock().run(now);
    }

    /// Always `None`: whoever drives a fabric asks [`Fabric::next_event`] once for all of its ports.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError> {
        Ok(SendBuf::slab(count, self.caps.max_payload))
    }

    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        if self.own_memory {
            Ok(RecvBuf::slab(count, self.caps.max_payload))
        } else {
            Ok(RecvBuf::shells(count))
        }
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        self.fabric.net.lock().create_qp(self.index)
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        self.fabric.net.lock().port(self.index).qps.find(qp).map_or_else(Qpn::default, |qp| qp.qpn)
    }

    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
        self.fabric.net.lock().modify_qp(self.index, qp, attrs)
    }

    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError> {
        self.fabric.net.lock().query_qp(self.index, qp)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        self.fabric.net.lock().destroy_qp(self.index, qp)
    }

    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.fabric.net.lock().join(self.index, qp, mgid)
    }

    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.fabric.net.lock().leave(self.index, qp, mgid)
    }

    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        self.fabric.net.lock().create_ah(self.index, to)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError> {
        self.fabric.net.lock().destroy_ah(self.index, ah)
    }

    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        let mut net = self.fabric.net.lock();
        let port = net.port_mut(self.index);
        port.check("ibv_post_srq_recv")?;
        port.post_recv(bufs);
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        self.fabric.net.lock().post_send(self.index, qp, sends)
    }

    fn arm_srq_limit(&mut self, limit: usize) -> Result<(), DeviceError> {
        let mut net = self.fabric.net.lock();
        let port = net.port_mut(self.index);
        port.check("ibv_modify_srq")?;
        port.srq.limit = limit;
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        self.fabric.net.lock().port_mut(self.index).poll(out, budget);
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let mut net = self.fabric.net.lock();
        let port = net.port_mut(self.index);
        if port.paused { None } else { port.events.pop_front() }
    }

    fn counters(&self) -> PortCounters {
        self.fabric.net.lock().port(self.index).counters
    }

    fn posted_recvs(&self) -> usize {
        self.fabric.net.lock().port(self.index).srq.bufs.len()
    }

    /// None: what wakes a node up is [`Fabric::step_to`].
    fn sources(&self) -> Sources<'_> {
        Sources { epoch: 0, fds: &[] }
    }

    fn arm(&mut self) -> Armed {
        let net = self.fabric.net.lock();
        if net.port(self.index).has_something() { Armed::Again } else { Armed::Sleep }
    }
}
