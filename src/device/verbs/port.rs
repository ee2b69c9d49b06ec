//! Looking after the port, and what depends on it: addresses and groups.

use std::net::SocketAddr;

use nix::libc;
use qcast_proto::addr::Gid;
use qcast_proto::qp::{AddressVector, GlobalRoute, LinkLayer};
use rdma_sys as sys;

use super::ah::Ah;
use super::gid;
use super::ipoib;
use super::mcast::{self, Membership, Place, State};
use super::modify::raw_av;
use super::open::{active_mtu, is_active, local_address};
use super::{NO_QP, VerbsDevice, is_gone, ret};
use crate::device::spec::JoinBy;
use crate::device::{AhAttrs, AhId, AhStatus, DeviceError, DeviceEvent, QpId};

impl VerbsDevice {
    /// Asks for everything that can change without an event: link, MTU, GID, counters, states of queue pairs.
    pub(super) fn look_after(&mut self) {
        if self.lost {
            return;
        }
        // A device that is being taken away may go on to answer for as long as it is open.
        if !self.context.is_listed() {
            return self.lose("it is no longer listed");
        }
        let attr = match self.context.query_port(self.port.number) {
            Ok(attr) => attr,
            Err(error) => {
                tracing::debug!(device = %self.caps.name, %error, "the port could not be queried");
                if is_gone(&error) {
                    self.lose("ibv_query_port says so");
                }
                return;
            }
        };
        let more = attr.qkey_viol_cntr.wrapping_sub(self.violations);
        self.violations = attr.qkey_viol_cntr;
        self.counters.qkey_violations += u64::from(more);
        self.look_at_port(&attr);
        let qps: Vec<QpId> = self.qps.iter().map(|(id, _)| QpId(id)).collect();
        qps.into_iter().for_each(|qp| self.examine(qp));
    }

    fn look_at_port(&mut self, attr: &sys::ibv_port_attr) {
        let entry = match gid::table(&self.context, self.port.number) {
            Ok(table) => gid::find(&table, self.port.link, self.port.gid.gid),
            Err(error) => {
                tracing::debug!(device = %self.caps.name, %error, "the GID table could not be read");
                None
            }
        };
        let active = is_active(attr) && entry.is_some();
        // What is sent must fit the link of now, and what was allocated fits the MTU of the opening.
        let mtu = active_mtu(attr).min(self.caps.max_payload);
        let gid = entry.unwrap_or(self.port.gid);
        if (active, mtu, gid) != (self.port.active, self.port.mtu, self.port.gid) {
            tracing::info!(device = %self.caps.name, active, mtu, gid_index = gid.index, "the port changed");
            (self.port.active, self.port.mtu, self.port.gid) = (active, mtu, gid);
            self.events.push_back(DeviceEvent::PortChanged);
        }
    }

    /// Tells, once, that the device is gone.
    pub(super) fn lose(&mut self, cause: &'static str) {
        if !self.lost {
            tracing::debug!(device = %self.caps.name, cause, "the device is gone");
            self.lost = true;
            self.port.active = false;
            if !self.context.is_of_rdma_cm() {
                self.memberships.iter_mut().for_each(Membership::orphan);
            }
            self.events.push_back(DeviceEvent::Lost { cause });
        }
    }

    pub(super) fn begin_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        let ip = to.gid.ip();
        self.same_family(to.gid)?;
        if to.gid.is_zero() || ip.is_unspecified() {
            return Err(DeviceError::Unresolved(to.gid));
        }
        let raw = raw_av(&self.vector(to.gid));
        if to.gid.is_multicast() {
            // A group's link address follows from its IP address: nothing is resolved.
            let ah = Ah::create(&self.pd, raw)?;
            return Ok((self.ahs.insert(ah)?, AhStatus::Ready));
        }
        Ok((self.ahs.begin(to.gid, raw)?, AhStatus::Pending))
    }

    /// The way to a GID. It has a GRH in any case: RoCE knows no other, and it is right on InfiniBand too.
    pub(super) fn vector(&self, dgid: Gid) -> AddressVector {
        AddressVector {
            port: self.port.number,
            dlid: 0,
            sl: 0,
            grh: Some(GlobalRoute {
                dgid,
                sgid_index: self.port.gid.index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
                flow_label: 0,
            }),
        }
    }

    fn same_family(&self, theirs: Gid) -> Result<(), DeviceError> {
        let ours = self.port.gid.gid;
        if self.port.link == LinkLayer::Ethernet && ours.ip().is_ipv4() != theirs.ip().is_ipv4() {
            return Err(DeviceError::FamilyMismatch { ours, theirs });
        }
        Ok(())
    }

    pub(super) fn begin_join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.qps.get(qp.0).ok_or(NO_QP)?;
        let ip = mgid.ip();
        if !mgid.is_multicast() {
            return Err(DeviceError::NotMulticast(ip));
        }
        if reserved(ip) {
            return Err(DeviceError::ReservedMulticast(ip));
        }
        self.same_family(mgid)?;
        let known = self.memberships.iter_mut().find(|group| group.qp == qp && group.mgid == mgid);
        match known.map(|group| &mut group.state) {
            Some(State::Joining { answers }) => *answers += 1,
            Some(State::Joined { ah, .. }) => {
                let ah = *ah;
                self.events.push_back(DeviceEvent::Joined { qp, mgid, ah });
            }
            None => match self.join {
                JoinBy::RdmaCm => {
                    let (local, link) = (self.cm_address()?, self.port.link);
                    self.memberships.push(Membership::begin(&self.cm, qp, mgid, local, link)?);
                }
                JoinBy::Membership if self.port.link == LinkLayer::InfiniBand => {
                    return Err(DeviceError::Unsupported("join=ip on InfiniBand; leave it out"));
                }
                JoinBy::Membership => {
                    let interface = self.port.gid.interface;
                    self.memberships.push(Membership::of_host(qp, mgid, interface)?);
                    let way = raw_av(&self.vector(mgid));
                    self.end_join(self.memberships.len() - 1, Ok(way));
                }
            },
        }
        Ok(())
    }

    /// The address by which rdma_cm finds the port.
    pub(super) fn cm_address(&self) -> Result<SocketAddr, DeviceError> {
        match self.port.link {
            LinkLayer::Ethernet => Ok(local_address(&self.port.gid)),
            LinkLayer::InfiniBand => {
                let pkey = self.context.pkey(self.port.number, PKEY_INDEX)?;
                let gids = gid::table(&self.context, self.port.number)?;
                let gids: Vec<Gid> = gids.iter().map(|entry| entry.gid).collect();
                let interfaces = ipoib::of_port(ipoib::ROOT.as_ref(), &gids, pkey);
                ipoib::address(&interfaces)
                    .ok_or_else(|| DeviceError::NoIpoib { device: self.caps.name.clone(), pkey })
            }
        }
    }

    /// rdma_cm has told of a join: how it ended, or that the fabric has forgotten it.
    pub(super) fn heard_of_join(&mut self, at: usize, told: Result<sys::ibv_ah_attr, DeviceError>) {
        let group = &self.memberships[at];
        let mgid = group.mgid;
        match (&group.state, told) {
            (State::Joining { .. }, told) => self.end_join(at, told),
            (State::Joined { .. }, Ok(way)) => {
                if let Err(error) = self.move_group(at, way) {
                    tracing::warn!(mgid = %mgid.ip(), %error, "joined anew, but not attached");
                }
            }
            (State::Joined { .. }, Err(error)) => {
                // The subnet manager, the port's LID or its partitions changed. Such a join is over; another one is made.
                tracing::warn!(mgid = %mgid.ip(), %error, "the fabric has ended a membership; joining anew");
                let link = self.port.link;
                let renewed = self.cm_address();
                let renewed =
                    renewed.and_then(|local| self.memberships[at].renew(&self.cm, local, link));
                if let Err(error) = renewed {
                    tracing::warn!(mgid = %mgid.ip(), %error, "the group cannot be joined anew");
                }
            }
        }
    }

    /// A group that was joined anew may be elsewhere now: with another MLID, at another service level.
    fn move_group(&mut self, at: usize, way: sys::ibv_ah_attr) -> Result<(), DeviceError> {
        let Membership { qp, mgid, state: State::Joined { ah, place }, .. } = self.memberships[at]
        else {
            return Ok(());
        };
        let (link, port, sgid) = (self.port.link, self.port.number, self.port.gid.index);
        let (way, new) = mcast::way_to_group(way, mgid, link, port, sgid)?;
        self.ahs.replace(ah, Ah::create(&self.pd, way)?);
        if new != place {
            let found = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
            mcast::attach(found, new)?;
            if let Err(error) = mcast::detach(found, place) {
                tracing::debug!(mgid = %mgid.ip(), %error, "not detached from where the group was");
            }
            self.memberships[at].state = State::Joined { ah, place: new };
        }
        Ok(())
    }

    /// A join has ended: if well, `way` leads to the group, and the queue pair is attached now.
    pub(super) fn end_join(&mut self, at: usize, way: Result<sys::ibv_ah_attr, DeviceError>) {
        let Membership { qp, mgid, state, .. } = &self.memberships[at];
        let (qp, mgid) = (*qp, *mgid);
        let State::Joining { answers } = *state else { return };
        match way.and_then(|way| self.attach(qp, mgid, way)) {
            Ok((ah, place)) => {
                self.memberships[at].state = State::Joined { ah, place };
                for _ in 0..answers {
                    self.events.push_back(DeviceEvent::Joined { qp, mgid, ah });
                }
            }
            Err(error) => {
                self.memberships.remove(at);
                let more = error.to_string();
                self.events.push_back(DeviceEvent::JoinFailed { qp, mgid, error });
                for _ in 1..answers {
                    let source = std::io::Error::other(more.clone());
                    let error = DeviceError::Os { call: "the join that was already begun", source };
                    self.events.push_back(DeviceEvent::JoinFailed { qp, mgid, error });
                }
            }
        }
    }

    fn attach(
        &mut self,
        id: QpId,
        mgid: Gid,
        way: sys::ibv_ah_attr,
    ) -> Result<(AhId, Place), DeviceError> {
        let (link, port, sgid) = (self.port.link, self.port.number, self.port.gid.index);
        let (way, place) = mcast::way_to_group(way, mgid, link, port, sgid)?;
        let ah = self.ahs.insert(Ah::create(&self.pd, way)?)?;
        let qp = self.qps.get_mut(id.0).ok_or(NO_QP)?;
        if let Err(error) = mcast::attach(qp, place) {
            self.ahs.retire(ah);
            return Err(self.why_not_attached(error));
        }
        qp.attached += 1;
        Ok((ah, place))
    }

    /// A refused attach says ENOMEM for each of three limits, which the device's attributes name.
    fn why_not_attached(&self, error: DeviceError) -> DeviceError {
        let attached: usize = self.memberships.iter().filter(|group| group.is_joined()).count();
        match ret::errno(&error) {
            Some(libc::ENOMEM | libc::ENOSPC) => {
                let [groups, of_group, in_all] = self.mcast_limits;
                DeviceError::AttachLimit { attached, groups, of_group, in_all }
            }
            _ => error,
        }
    }

    pub(super) fn leave_group(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        let at = self.memberships.iter().position(|group| group.qp == qp && group.mgid == mgid);
        let at = at.ok_or(DeviceError::NoSuch("membership of this queue pair in this group"))?;
        if let State::Joined { ah, place } = self.memberships[at].state {
            let found = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
            if let Err(error) = mcast::detach(found, place)
                && ret::errno(&error) != Some(libc::EIO)
            {
                return Err(error);
            }
            found.attached -= 1;
            self.ahs.retire(ah);
        }
        self.memberships.remove(at);
        // An answer that nobody has taken yet would name a handle that is gone.
        self.events.retain(|event| {
            !matches!(event, DeviceEvent::Joined { qp: q, mgid: m, .. } if *q == qp && *m == mgid)
        });
        Ok(())
    }
}

/// Whether a group is kept for the link's own protocols.
fn reserved(group: std::net::IpAddr) -> bool {
    match group {
        std::net::IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        std::net::IpAddr::V6(ip) => (0xff00..=0xff02).contains(&ip.segments()[0]),
    }
}

/// Routers on the way, at most.
const HOP_LIMIT: u8 = 64;

/// The partition of all queue pairs: the first of the port's table.
const PKEY_INDEX: u16 = 0;
