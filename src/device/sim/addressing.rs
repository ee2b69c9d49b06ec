//! Address handles and multicast groups.

use std::net::IpAddr;

use qcast_proto::addr::Gid;

use super::net::{Event, Net, number_of};
use super::port::{Ah, AhTo, Join, Port, Ticket};
use crate::device::{AhAttrs, AhId, AhStatus, DeviceError, DeviceEvent, QpId};

impl Net {
    pub(super) fn create_ah(
        &mut self,
        index: usize,
        to: &AhAttrs,
    ) -> Result<(AhId, AhStatus), DeviceError> {
        let ticket = self.new_ticket();
        let resolves = to.gid.is_multicast() || self.resolves(to);
        let port = self.port_mut(index);
        port.check("ibv_create_ah")?;
        check_family(port.gid, to.gid)?;
        let to = if to.gid.is_multicast() { AhTo::Group(to.gid) } else { AhTo::Peer(*to) };
        let ah = new_ah(port, to)?;
        let wait = if resolves { self.config.ah_delay } else { self.config.ah_timeout };
        if resolves && wait.is_zero() {
            return Ok((ah, AhStatus::Ready));
        }
        self.port_mut(index).ahs[ah.0].pending = Some(ticket);
        self.queue.push(self.now + wait, Event::Resolved(number_of(index), ah, ticket));
        Ok((ah, AhStatus::Pending))
    }

    pub(super) fn destroy_ah(&mut self, index: usize, ah: AhId) -> Result<(), DeviceError> {
        let port = self.port_mut(index);
        let entry = port.ahs.get(ah.0).filter(|ah| !ah.left);
        if entry.ok_or(DeviceError::NoSuch("address handle"))?.uses > 0 {
            return Err(DeviceError::Busy("the address handle"));
        }
        if port.joins.iter().any(|join| join.ah == Some(ah)) {
            return Err(DeviceError::Busy("the group's address handle"));
        }
        port.ahs.remove(ah.0);
        Ok(())
    }

    pub(super) fn end_resolution(&mut self, number: u32, ah: AhId, ticket: Ticket) {
        let is_this = |entry: &&Ah| entry.pending == Some(ticket);
        let Some(entry) =
            self.find(number as usize).and_then(|port| port.ahs.get(ah.0)).filter(is_this)
        else {
            return;
        };
        let failed = match &entry.to {
            AhTo::Peer(to) if !self.resolves(to) => Some(to.gid),
            _ => None,
        };
        self.with_port(number as usize, |port| match failed {
            None => {
                port.ahs[ah.0].pending = None;
                port.events.push_back(DeviceEvent::AhReady { ah });
            }
            Some(gid) => {
                port.ahs.remove(ah.0);
                let error = DeviceError::Unresolved(gid);
                port.events.push_back(DeviceEvent::AhFailed { ah, error });
            }
        });
    }

    pub(super) fn join(&mut self, index: usize, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        let ticket = self.new_ticket();
        let at = self.now + self.config.join_delay;
        let port = self.port_mut(index);
        port.check("rdma_join_multicast")?;
        port.qps.get(qp)?;
        check_mgid(port.gid, mgid)?;
        if let Some(join) = port.joins.iter().find(|join| join.qp == qp && join.mgid == mgid) {
            // Twice is as good as once, as in the kernel. A join under way answers for both.
            if let Some(ah) = join.ah {
                port.events.push_back(DeviceEvent::Joined { qp, mgid, ah });
                self.list(index);
            }
            return Ok(());
        }
        port.joins.push(Join { ticket, qp, mgid, ah: None });
        if at > self.now {
            self.queue.push(at, Event::Joined(number_of(index), ticket));
        } else {
            self.end_join(number_of(index), ticket);
        }
        Ok(())
    }

    pub(super) fn end_join(&mut self, number: u32, ticket: Ticket) {
        let Some(port) = self.find_mut(number as usize) else { return };
        let Some(place) = port.joins.iter().position(|join| join.ticket == ticket) else { return };
        let Join { qp, mgid, .. } = port.joins[place];
        let refused = self.unjoinable.contains(&mgid);
        let joined = self.with_port(number as usize, |port| {
            let ah = if refused {
                Err(DeviceError::Unsupported("this group"))
            } else {
                new_ah(port, AhTo::Group(mgid))
            };
            let joined = ah.is_ok();
            port.events.push_back(match ah {
                Ok(ah) => {
                    port.joins[place].ah = Some(ah);
                    DeviceEvent::Joined { qp, mgid, ah }
                }
                Err(error) => {
                    port.joins.remove(place);
                    DeviceEvent::JoinFailed { qp, mgid, error }
                }
            });
            joined
        });
        if joined {
            self.attach(number, mgid);
        }
    }

    pub(super) fn leave(&mut self, index: usize, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        let port = self.port_mut(index);
        let place = port.joins.iter().position(|join| join.qp == qp && join.mgid == mgid);
        let join = port.joins.remove(place.ok_or(DeviceError::NoSuch("membership in the group"))?);
        // An answer that was not taken yet would name a handle that is gone.
        port.events.retain(|event| {
            !matches!(event, DeviceEvent::Joined { qp: q, mgid: m, .. } if *q == qp && *m == mgid)
        });
        if let Some(ah) = join.ah {
            let entry = &mut port.ahs[ah.0];
            entry.left = true;
            if entry.uses == 0 {
                port.ahs.remove(ah.0);
            }
        }
        self.detach(number_of(index), mgid);
        Ok(())
    }

    fn resolves(&self, to: &AhAttrs) -> bool {
        self.addresses.contains_key(&(to.gid, to.udp_port)) && !self.unresolvable.contains(&to.gid)
    }
}

fn new_ah(port: &mut Port, to: AhTo) -> Result<AhId, DeviceError> {
    let limit = port.config.max_ah;
    if port.ahs.len() >= limit {
        return Err(DeviceError::Exhausted { what: "address handles", limit });
    }
    Ok(AhId(port.ahs.insert(Ah { to, pending: None, uses: 0, left: false })))
}

fn check_mgid(ours: Gid, mgid: Gid) -> Result<(), DeviceError> {
    let ip = mgid.ip();
    if !ip.is_multicast() {
        return Err(DeviceError::NotMulticast(ip));
    }
    let reserved = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        // Scopes 0 to 2: reserved, the interface's own, the link's own.
        IpAddr::V6(ip) => ip.octets()[1] & 0x0f <= 2,
    };
    if reserved {
        return Err(DeviceError::ReservedMulticast(ip));
    }
    check_family(ours, mgid)
}

fn check_family(ours: Gid, theirs: Gid) -> Result<(), DeviceError> {
    if ours.ip().is_ipv4() == theirs.ip().is_ipv4() {
        Ok(())
    } else {
        Err(DeviceError::FamilyMismatch { ours, theirs })
    }
}
