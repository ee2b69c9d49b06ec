//! The software provider: a UD device over UDP sockets, with no RDMA adapter, kernel module or root.
//!
//! What goes over the wire is real RoCEv2 (`BTH | DETH | payload | padding | ICRC` in UDP), so a
//! [`SoftDevice`] talks with Soft-RoCE and with adapters. It is as rude as they are: a datagram that finds no posted
//! receive, or whose key differs, is dropped and counted; queue pair states are enforced; oversize sends are refused.
//!
//! # Addresses
//! RoCEv2 listens on UDP port 4791, and a host may run many processes. On IPv4 loopback each takes an
//! address of 127.0.0.0/8 for its own. Elsewhere the first has port 4791 and the others one of 4792 to
//! 4855, which their peers learn ([`Source::udp_port`](super::Source::udp_port), and by what they advertise);
//! an adapter can send to the first alone. Groups always use port 4791: every process binds the group's
//! address, and the kernel gives each its copy, the sender too.
//!
//! # Buffers
//! What arrives between two polls waits in the sockets' buffers; what does not fit there is dropped by the kernel and counted
//! as [`PortCounters::overruns`](super::PortCounters::overruns). [`DeviceCaps::backlog`](super::DeviceCaps::backlog)
//! says how much fits. Without the privilege to go beyond it, `net.core.rmem_max` is the limit.
//!
//! # Waking up
//! Each group has a socket of its own beside the unicast one. [`Device::poll`] reads them until they are
//! empty or its budget is used up, and [`Device::arm`] answers
//! [`Armed::Again`] unless each was seen to be empty: what arrives after that makes an edge.

mod config;
mod error;
#[expect(unsafe_code, reason = "the C library alone knows of forks without a system call")]
mod forks;
mod group;
mod interface;
mod open;
mod option;
mod qp;
mod receive;
mod send;
mod socket;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use qcast_proto::addr::{Gid, Qpn, ROCE_PORT};
use qcast_proto::qp::{Privilege, QpAttrs};
use qcast_proto::time::Instant;
use qcast_proto::wire::icrc::Icrc;

pub use self::config::SoftConfig;
pub use self::error::SoftOpenError;
pub(crate) use self::forks::forks;
use self::group::Group;
use self::interface::Place;
use self::qp::{AhTable, QpTable};
use self::receive::{Endpoint, Inbox};
use self::send::Gso;
pub use super::spec::SoftAddress;
use super::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, RecvBuf, SendBuf, SendWr, Sources,
};

/// A UD device over UDP sockets; see the [module](self).
///
/// Dropping it closes its sockets, which leaves its groups.
pub struct SoftDevice {
    config: SoftConfig,
    caps: DeviceCaps,
    place: Place,
    /// The address and port that peers reach it by.
    local: SocketAddr,
    /// The path MTU now.
    mtu: usize,
    active: bool,
    /// Whether the interface is gone for good.
    lost: bool,
    privileged_qkey: Privilege,
    now: Instant,
    /// When to look after the interface again.
    look_at: Instant,
    /// When to try sends again that the kernel had no room for.
    retry_at: Option<Instant>,
    unicast: Endpoint,
    groups: Vec<Group>,
    /// The socket to begin with in the next poll, so that a busy one does not starve the others.
    turn: usize,
    qps: QpTable,
    ahs: AhTable,
    inbox: Inbox,
    gso: Gso,
    staging: Box<[u8]>,
    control: Vec<u8>,
    sources: Vec<RawFd>,
    epoch: u64,
}

impl fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftDevice")
            .field("name", &self.caps.name)
            .field("local", &self.local)
            .field("mtu", &self.mtu)
            .field("groups", &self.groups)
            .field("counters", &self.inbox.counters)
            .finish_non_exhaustive()
    }
}

impl Device for SoftDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn port(&self) -> PortInfo {
        PortInfo {
            port: 1,
            gid: self.local.ip().into(),
            udp_port: self.local.port(),
            mtu: self.mtu,
            active: self.active,
        }
    }

    fn advance(&mut self, now: Instant) {
        self.now = now;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        if now >= self.look_at {
            self.look_after(now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError> {
        Ok(SendBuf::slab(count, self.caps.max_payload))
    }

    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        Ok(RecvBuf::slab(count, self.caps.max_payload))
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        self.qps.create()
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        self.qps.get(qp).map_or(Qpn::default(), |qp| qp.number)
    }

    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
        let privileged_qkey = self.privileged_qkey;
        self.qps.get_mut(qp)?.modify(attrs, privileged_qkey)
    }

    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError> {
        let qp = self.qps.get(qp)?;
        Ok(QpInfo { state: qp.state, qkey: qp.qkey, draining: false })
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        self.qps.destroy(qp)
    }

    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.join_group(qp, mgid)
    }

    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.leave_group(qp, mgid)
    }

    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        let ip = to.gid.ip();
        if ip.is_ipv4() != self.local.is_ipv4() {
            return Err(DeviceError::FamilyMismatch {
                ours: self.local.ip().into(),
                theirs: to.gid,
            });
        }
        if ip.is_unspecified() || to.udp_port == 0 {
            return Err(DeviceError::Unresolved(to.gid));
        }
        let port = if ip.is_multicast() { ROCE_PORT } else { to.udp_port };
        let to = self.place.scoped(ip, port);
        let flow = self.flow_to(to)?;
        Ok((self.ahs.create(to, flow)?, AhStatus::Ready))
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError> {
        self.ahs.destroy(ah)
    }

    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        let room = self.config.srq_depth.saturating_sub(self.inbox.srq.len());
        let taken = bufs.drain(bufs.len() - room.min(bufs.len())..);
        self.inbox.srq.extend(taken);
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        self.send(qp, sends)
    }

    fn arm_srq_limit(&mut self, limit: usize) -> Result<(), DeviceError> {
        self.inbox.srq_limit = limit;
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        self.take(out, budget);
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.inbox.events.pop_front()
    }

    fn counters(&self) -> PortCounters {
        self.inbox.counters
    }

    fn posted_recvs(&self) -> usize {
        self.inbox.srq.len()
    }

    fn sources(&self) -> Sources<'_> {
        Sources { epoch: self.epoch, fds: &self.sources }
    }

    fn arm(&mut self) -> Armed {
        let waiting = !self.inbox.done.is_empty()
            || !self.inbox.events.is_empty()
            || !self.unicast.drained()
            || self.groups.iter().any(|group| !group.endpoint.drained());
        if waiting { Armed::Again } else { Armed::Sleep }
    }
}

impl SoftDevice {
    /// The checksum of what goes from this device to `to`.
    fn flow_to(&self, to: SocketAddr) -> Result<Icrc, DeviceError> {
        Icrc::new(self.local, to).ok_or_else(|| DeviceError::FamilyMismatch {
            ours: self.local.ip().into(),
            theirs: to.ip().into(),
        })
    }
}
