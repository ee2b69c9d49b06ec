//! Multicast groups: one socket for each, whatever number of queue pairs is attached.

use std::net::IpAddr;

use qcast_proto::addr::{Gid, ROCE_PORT};
use socket2::{Domain, Protocol, Socket, Type};

use super::SoftDevice;
use super::error::Call;
use super::receive::Endpoint;
use super::socket;
use crate::device::{AhId, DeviceError, DeviceEvent, QpId};

/// A group that the device is a member of.
#[derive(Debug)]
pub(super) struct Group {
    mgid: Gid,
    pub(super) endpoint: Endpoint,
    pub(super) members: Vec<Member>,
}

/// A queue pair that is attached to a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) qp: QpId,
    ah: AhId,
}

impl SoftDevice {
    pub(super) fn join_group(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.qps.get(qp)?;
        let ip = mgid.ip();
        if !mgid.is_multicast() {
            return Err(DeviceError::NotMulticast(ip));
        }
        if reserved(ip) {
            return Err(DeviceError::ReservedMulticast(ip));
        }
        if ip.is_ipv4() != self.local.is_ipv4() {
            return Err(DeviceError::FamilyMismatch { ours: self.local.ip().into(), theirs: mgid });
        }
        let event = match self.attach(qp, mgid) {
            Ok(ah) => DeviceEvent::Joined { qp, mgid, ah },
            Err(error) => DeviceEvent::JoinFailed { qp, mgid, error },
        };
        self.inbox.events.push_back(event);
        Ok(())
    }

    /// Attaches a queue pair; the handle that leads to the group. Twice is as good as once, as in the kernel.
    fn attach(&mut self, qp: QpId, mgid: Gid) -> Result<AhId, DeviceError> {
        let at = match self.groups.iter().position(|group| group.mgid == mgid) {
            Some(at) => at,
            None => {
                let address = self.place.scoped(mgid.ip(), ROCE_PORT);
                self.route(mgid.ip())?;
                let socket = socket::multicast(&self.place, address, &self.config)?;
                let endpoint = Endpoint::new(socket, address);
                self.groups.push(Group { mgid, endpoint, members: Vec::new() });
                self.list_sources();
                self.groups.len() - 1
            }
        };
        let already = self.groups[at].members.iter().find(|member| member.qp == qp);
        if let Some(member) = already {
            return Ok(member.ah);
        }
        let to = self.groups[at].endpoint.address;
        let flow = self.flow_to(to)?;
        let ah = match self.ahs.create(to, flow) {
            Ok(ah) => ah,
            Err(error) => {
                self.close_if_empty(at);
                return Err(error);
            }
        };
        self.groups[at].members.push(Member { qp, ah });
        self.qps.get_mut(qp)?.attached += 1;
        Ok(ah)
    }

    pub(super) fn leave_group(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        let not_joined = DeviceError::NoSuch("membership of this queue pair in this group");
        let Some(at) = self.groups.iter().position(|group| group.mgid == mgid) else {
            return Err(not_joined);
        };
        let members = &mut self.groups[at].members;
        let Some(member) = members.iter().position(|member| member.qp == qp) else {
            return Err(not_joined);
        };
        let member = members.remove(member);
        self.ahs.retire(member.ah);
        self.qps.get_mut(qp)?.attached -= 1;
        // An answer that nobody has taken yet would name a handle that is gone.
        self.inbox.events.retain(|event| {
            !matches!(event, DeviceEvent::Joined { qp: q, mgid: m, .. } if *q == qp && *m == mgid)
        });
        self.close_if_empty(at);
        Ok(())
    }

    /// Leaves the group itself, by closing its socket, once nobody is attached.
    fn close_if_empty(&mut self, at: usize) {
        if self.groups[at].members.is_empty() {
            self.groups.remove(at);
            self.list_sources();
        }
    }

    /// Whether datagrams to the group find their way out: IPv6 has no such way on loopback unless root made one.
    fn route(&self, group: IpAddr) -> Result<(), DeviceError> {
        if group.is_ipv4() {
            return Ok(());
        }
        let probe = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).call("socket")?;
        probe.set_multicast_if_v6(self.place.index).call("setsockopt(IPV6_MULTICAST_IF)")?;
        self.place.reaches(&probe, group)
    }
}

/// Whether a group is kept for the link's own protocols: 224.0.0.0/24, and the IPv6 scopes up to the link's.
fn reserved(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => (0xff00..=0xff02).contains(&ip.segments()[0]),
    }
}
