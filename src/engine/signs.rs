//! What the device tells of: joins, addresses, faults, its port, its end.

use qcast_proto::addr::PeerAddr;
use qcast_proto::node::GroupId;
use qcast_proto::time::Instant;

use super::Engine;
use crate::device::{DeviceEvent, QpId};

impl Engine {
    pub(super) fn take_device_events(&mut self, now: Instant) {
        while let Some(event) = self.device.poll_event() {
            match event {
                DeviceEvent::Joined { qp, mgid, ah } => self.joined(now, qp, mgid, ah),
                DeviceEvent::JoinFailed { qp, mgid, error } => {
                    self.join_failed(now, qp, mgid, error);
                }
                DeviceEvent::AhReady { ah } => {
                    if let Some(way) = self.ah.resolved(ah) {
                        let waiters = self.waiting.release(&way);
                        self.send_waiting(now, waiters);
                    }
                }
                DeviceEvent::AhFailed { ah, error } => {
                    tracing::debug!(%error, "an address did not resolve");
                    if let Some(way) = self.ah.unresolved(now, ah) {
                        let waiters = self.waiting.release(&way);
                        self.send_waiting(now, waiters);
                    }
                }
                DeviceEvent::QpFault { qp, state } => {
                    self.suspect(now, qp, || format!("the device moved the QP to {state}"));
                }
                DeviceEvent::PortChanged => self.port_changed(now),
                DeviceEvent::SrqLimit => self.refill(),
                DeviceEvent::Lost { cause } => self.lose(now, cause),
            }
        }
        self.expire_joins(now);
    }

    /// The address that peers reach a queue pair of this node by.
    pub(super) fn address(&self, qp: QpId) -> PeerAddr {
        let port = self.device.port();
        PeerAddr { gid: port.gid, qpn: self.device.qpn(qp), udp_port: port.udp_port }
    }

    fn port_changed(&mut self, now: Instant) {
        self.watch_port(now);
        self.ah.flush(&mut *self.device);
        if self.device.port().active {
            self.groups.values_mut().for_each(|g| g.recovery.restart(now));
        }
        let groups: Vec<(GroupId, QpId)> =
            self.groups.iter().filter_map(|(id, g)| Some((*id, g.attached?))).collect();
        for (id, qp) in groups {
            let address = self.address(qp);
            self.node.readdress(now, id, address);
            self.node.set_mtu(now, id, self.device.port().mtu);
        }
    }
}
