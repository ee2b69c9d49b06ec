//! Groups: joined through rdma_cm, or by IP membership and a plain attach.
//!
//! rdma_cm is asked for the way to the group and nothing else: it makes the fabric send us the group's
//! datagrams (the subnet administrator's join on InfiniBand, IGMP on RoCE) for as long as its id lives. The
//! queue pair that is attached is our own, with a key of our own; rdma_cm's would have 0x01234567.
//!
//! On RoCE a group is its IP address, and the MGID is that address. On InfiniBand the kernel maps an IP group
//! to an MGID of the partition, `ff1S:4001:PKEY::GROUP` for IPv4 and `ff1S:6001:PKEY::GROUP` for IPv6 (S is the
//! scope, and GROUP the last 28 or 80 bits), so that programs that join the same IP group through rdma_cm meet. What
//! begins like an MGID of InfiniBand is taken as it is. Where the group is then, its MGID and its MLID, the join's
//! event says, and the queue pair is attached there.
//!
//! On Soft-RoCE an attach without a membership of the host hears nothing: its traffic passes through the
//! host's IP stack, which drops what the host is no member of.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nix::libc;
use qcast_proto::addr::Gid;
use qcast_proto::qp::LinkLayer;
use rdma_sys as sys;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};

use super::cm::{CmChannel, CmId};
use super::gid;
use super::qp::Qp;
use super::ret;
use crate::device::{AhId, DeviceError, QpId};

/// A group that a queue pair is attached to, or is about to be.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) qp: QpId,
    pub(super) mgid: Gid,
    pub(super) state: State,
    route: Route,
}

/// How far a join is.
#[derive(Debug)]
pub(super) enum State {
    /// So many answers are owed.
    Joining { answers: usize },
    /// Attached; the group's handle, and where the queue pair is attached.
    Joined { ah: AhId, place: Place },
}

/// Where a group is in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) mgid: Gid,
    /// Its LID on InfiniBand, and 0 elsewhere.
    pub(super) mlid: u16,
}

/// What makes the fabric send us the group's datagrams.
#[derive(Debug)]
enum Route {
    Cm(CmId),
    /// Closing it ends the membership.
    Socket(#[expect(dead_code, reason = "it holds the membership")] Socket),
}

impl Membership {
    /// Begins to join through rdma_cm. `local` is the address of the port, which also names the interface.
    pub(super) fn begin(
        channel: &CmChannel,
        qp: QpId,
        mgid: Gid,
        local: SocketAddr,
        link: LinkLayer,
    ) -> Result<Self, DeviceError> {
        let mut id = CmId::create(channel)?;
        id.bind(local)?;
        id.join(GroupAddress::of(mgid, local, link))?;
        Ok(Self { qp, mgid, state: State::Joining { answers: 1 }, route: Route::Cm(id) })
    }

    /// Joins anew: the fabric has forgotten the membership. The queue pair stays attached meanwhile.
    pub(super) fn renew(
        &mut self,
        channel: &CmChannel,
        local: SocketAddr,
        link: LinkLayer,
    ) -> Result<(), DeviceError> {
        let mut id = CmId::create(channel)?;
        id.bind(local)?;
        id.join(GroupAddress::of(self.mgid, local, link))?;
        self.route = Route::Cm(id);
        Ok(())
    }

    /// Becomes a member as a host.
    pub(super) fn of_host(qp: QpId, mgid: Gid, interface: u32) -> Result<Self, DeviceError> {
        let os = |call| move |source| DeviceError::Os { call, source };
        let domain = if mgid.ip().is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(os("socket"))?;
        match mgid.ip() {
            IpAddr::V4(group) => socket
                .join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
                .map_err(os("setsockopt(IP_ADD_MEMBERSHIP)"))?,
            IpAddr::V6(group) => socket
                .join_multicast_v6(&group, interface)
                .map_err(os("setsockopt(IPV6_ADD_MEMBERSHIP)"))?,
        }
        Ok(Self { qp, mgid, state: State::Joining { answers: 1 }, route: Route::Socket(socket) })
    }

    /// Whether its queue pair is attached.
    pub(super) fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined { .. })
    }

    /// The device is gone, and rdma_cm's context of it, which has nothing of ours, is to be let go.
    pub(super) fn orphan(&mut self) {
        if let Route::Cm(id) = &mut self.route {
            id.orphan();
        }
    }

    /// Whether this is the id at that address.
    pub(super) fn is(&self, id: usize) -> bool {
        matches!(&self.route, Route::Cm(cm) if cm.addr() == id)
    }
}

/// A group's address as rdma_cm takes it.
#[derive(Debug)]
pub(super) enum GroupAddress {
    /// Mapped to an MGID by the kernel.
    Ip(SockAddr),
    /// The MGID itself.
    Ib(SockAddrIb),
}

impl GroupAddress {
    fn of(mgid: Gid, local: SocketAddr, link: LinkLayer) -> Self {
        if link == LinkLayer::InfiniBand && is_infiniband_mgid(mgid) {
            return Self::Ib(SockAddrIb::new(mgid));
        }
        Self::Ip(SockAddr::from(match (mgid.ip(), local) {
            (IpAddr::V6(group), SocketAddr::V6(local)) => {
                SocketAddr::from(SocketAddrV6::new(group, 0, 0, local.scope_id()))
            }
            (group, _) => SocketAddr::new(group, 0),
        }))
    }

    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        match self {
            Self::Ip(address) => address.as_ptr().cast(),
            Self::Ib(address) => std::ptr::from_ref(address).cast(),
        }
    }
}

/// `struct sockaddr_ib` of `<infiniband/ib.h>`, which the bindings lack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SockAddrIb {
    family: u16,
    pkey: u16,
    flow_info: u32,
    address: [u8; 16],
    sid: u64,
    sid_mask: u64,
    scope_id: u64,
}

const _: () = assert!(size_of::<SockAddrIb>() == 48);

impl SockAddrIb {
    fn new(mgid: Gid) -> Self {
        // A join looks at the address alone: the partition is the bound interface's.
        Self {
            family: AF_IB,
            pkey: 0,
            flow_info: 0,
            address: mgid.to_bytes(),
            sid: 0,
            sid_mask: 0,
            scope_id: 0,
        }
    }
}

const AF_IB: u16 = 27;

/// Whether this is an MGID in one of InfiniBand's own forms: transient, and signed as IPoIB's (401b, 601b), as
/// rdma_cm's (4001, 6001), or as assigned by the subnet administrator (a01b).
fn is_infiniband_mgid(gid: Gid) -> bool {
    let bytes = gid.to_bytes();
    let signature = u16::from_be_bytes([bytes[2], bytes[3]]);
    bytes[0] == 0xff
        && bytes[1] & 0xf0 == 0x10
        && matches!(signature, 0x401b | 0x601b | 0x4001 | 0x6001 | 0xa01b)
}

/// What a join's event says of the way to the group, for a sender at this port and GID.
///
/// A datagram to a group has a GRH on every link. On InfiniBand the MLID, the service level and the rate are the subnet
/// administrator's choice, and are taken as they come.
pub(super) fn way_to_group(
    mut way: sys::ibv_ah_attr,
    asked: Gid,
    link: LinkLayer,
    port: u8,
    sgid_index: u8,
) -> Result<(sys::ibv_ah_attr, Place), DeviceError> {
    let place = Place { mgid: gid::from_raw(&way.grh.dgid), mlid: way.dlid };
    match link {
        LinkLayer::Ethernet if place.mgid != asked => {
            return Err(DeviceError::Unsupported(
                "groups of RoCE v1, which is rdma_cm's mode on this port (cma_roce_mode sets it)",
            ));
        }
        LinkLayer::InfiniBand if !MULTICAST_LIDS.contains(&place.mlid) => {
            let source = std::io::Error::from_raw_os_error(libc::EPROTO);
            return Err(DeviceError::Os { call: "rdma_join_multicast (no multicast LID)", source });
        }
        _ => {}
    }
    // The event may come from another context of the same device; the source is our own choice.
    (way.port_num, way.grh.sgid_index, way.is_global) = (port, sgid_index, 1);
    Ok((way, place))
}

/// LIDs of groups; the last is the permissive one, which is nobody's.
const MULTICAST_LIDS: std::ops::RangeInclusive<u16> = 0xc000..=0xfffe;

/// Attaches a queue pair to a group. Twice is as good as once.
pub(super) fn attach(qp: &Qp, to: Place) -> Result<(), DeviceError> {
    let raw = gid::to_raw(to.mgid);
    // SAFETY: the queue pair lives while `qp` does; `raw` outlives the call.
    let code = unsafe { sys::ibv_attach_mcast(qp.as_ptr(), &raw, to.mlid) };
    ret::returned("ibv_attach_mcast", code)
}

/// Detaches a queue pair from a group.
pub(super) fn detach(qp: &Qp, from: Place) -> Result<(), DeviceError> {
    let raw = gid::to_raw(from.mgid);
    // SAFETY: as for `attach`.
    let code = unsafe { sys::ibv_detach_mcast(qp.as_ptr(), &raw, from.mlid) };
    ret::returned("ibv_detach_mcast", code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::verbs::layout::Plain;

    fn gid(ip: &str) -> Gid {
        ip.parse::<IpAddr>().unwrap().into()
    }

    fn join(group: &str, link: LinkLayer) -> GroupAddress {
        GroupAddress::of(gid(group), "10.0.0.1:0".parse().unwrap(), link)
    }

    #[test]
    fn ip_groups_are_mapped_by_the_kernel_and_mgids_are_not() {
        use LinkLayer::{Ethernet, InfiniBand};
        for link in [Ethernet, InfiniBand] {
            for group in ["239.192.1.2", "ff15::7163:1:2", "ff0e:4001::1"] {
                let GroupAddress::Ip(address) = join(group, link) else { panic!("{group}") };
                assert_eq!(address.as_socket().unwrap().ip().to_string(), group);
            }
        }
        for mgid in ["ff12:401b:ffff::1:2", "ff15:6001:8001::7", "ff12:a01b:fe80::1"] {
            let GroupAddress::Ib(address) = join(mgid, InfiniBand) else { panic!("{mgid}") };
            assert_eq!((address.family, Gid::from_bytes(address.address)), (27, gid(mgid)));
            // Elsewhere it is an IPv6 group like any other.
            assert!(matches!(join(mgid, Ethernet), GroupAddress::Ip(_)));
        }
    }

    #[test]
    fn a_link_local_source_names_the_interface() {
        let local: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, 7).into();
        let group = GroupAddress::of(gid("ff15::7"), local, LinkLayer::Ethernet);
        let GroupAddress::Ip(address) = group else { panic!("{group:?}") };
        assert_eq!(address.as_socket_ipv6().unwrap().scope_id(), 7);
    }

    /// An event as the kernel fills it on InfiniBand.
    fn event(mgid: &str, mlid: u16) -> sys::ibv_ah_attr {
        let mut way = sys::ibv_ah_attr::zeroed();
        way.grh.dgid = gid::to_raw(gid(mgid));
        (way.grh.flow_label, way.grh.hop_limit, way.grh.traffic_class) = (5, 64, 1);
        (way.grh.sgid_index, way.port_num) = (9, 9);
        (way.dlid, way.sl, way.static_rate, way.is_global) = (mlid, 3, 6, 1);
        way
    }

    #[test]
    fn the_way_is_the_subnet_administrators_and_the_source_our_own() {
        let mapped = "ff12:4001:ffff::ef01:102";
        for is_global in [1, 0] {
            let mut event = event(mapped, 0xc005);
            event.is_global = is_global;
            let way = way_to_group(event, gid("239.1.1.2"), LinkLayer::InfiniBand, 2, 0);
            let (way, place) = way.unwrap();
            // The queue pair is attached where the group is, whatever address was asked for.
            assert_eq!(place, Place { mgid: gid(mapped), mlid: 0xc005 });
            assert_eq!((way.dlid, way.sl, way.static_rate, way.is_global), (0xc005, 3, 6, 1));
            assert_eq!((way.port_num, way.grh.sgid_index), (2, 0));
            let (flow, hops) = (way.grh.flow_label, way.grh.hop_limit);
            assert_eq!((flow, hops, way.grh.traffic_class), (5, 64, 1));
        }
    }

    #[test]
    fn a_group_without_a_multicast_lid_is_refused() {
        for mlid in [0, 1, 0xbfff, 0xffff] {
            let event = event("ff12:4001:ffff::1", mlid);
            let way = way_to_group(event, gid("239.0.0.1"), LinkLayer::InfiniBand, 1, 0);
            assert!(way.err().unwrap().to_string().contains("no multicast LID"), "{mlid:#x}");
        }
    }

    #[test]
    fn another_mgid_on_ethernet_is_another_mode() {
        let group = gid("239.1.1.1");
        let ethernet = |event| way_to_group(event, group, LinkLayer::Ethernet, 1, 1);
        let (_, place) = ethernet(event("239.1.1.1", 0)).unwrap();
        assert_eq!(place, Place { mgid: group, mlid: 0 });
        let error = ethernet(event("ff0e::ffff:ef01:101", 0)).err().unwrap();
        assert!(error.to_string().contains("cma_roce_mode"), "{error}");
    }
}
