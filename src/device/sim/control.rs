//! What a test does to a fabric: rules, partitions, links, faults, strangers.

use bytes::Bytes;
use qcast_proto::addr::{Gid, Qpn, ROCE_PORT};
use qcast_proto::qp::QpState;

use super::fabric::Fabric;
use super::path::Datagram;
use super::port::{AhTo, Port, Sides};
use super::rule::{Passing, RuleId, Verdict, Watch};
use super::trace::Outcome;
use crate::device::impair::Impairment;
use crate::device::{AhAttrs, DeviceEvent, QpId, Source, WcStatus};

/// Which datagrams a partition or a block keeps off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All.
    All,
    /// Those to one queue pair.
    Unicast,
    /// Those to a group.
    Multicast,
}

/// A datagram from outside: any bytes, any source, any key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stray {
    /// Who it claims to be from.
    pub source: Source,
    /// Which queue pair it is for.
    pub qpn: Qpn,
    /// The key that it carries.
    pub qkey: u32,
    /// Its payload.
    pub payload: Bytes,
    /// Whether its ICRC is wrong.
    pub corrupt: bool,
    to: StrayTo,
}

#[derive(Clone, Copy, Debug)]
enum StrayTo {
    Port(usize),
    Group(Gid),
}

impl Stray {
    /// A datagram for a queue pair of a port.
    pub fn to_port(port: usize, qpn: Qpn, qkey: u32, payload: impl Into<Bytes>) -> Self {
        Self::new(StrayTo::Port(port), qpn, qkey, payload.into())
    }

    /// A datagram for a group.
    pub fn to_group(mgid: Gid, qkey: u32, payload: impl Into<Bytes>) -> Self {
        Self::new(StrayTo::Group(mgid), Qpn::MULTICAST, qkey, payload.into())
    }

    fn new(to: StrayTo, qpn: Qpn, qkey: u32, payload: Bytes) -> Self {
        let source = Source {
            gid: Gid::from(std::net::Ipv4Addr::new(203, 0, 113, 66)),
            qpn: Qpn::new(0x666),
            udp_port: ROCE_PORT,
            multicast: matches!(to, StrayTo::Group(_)),
        };
        Self { source, qpn, qkey, payload, corrupt: false, to }
    }
}

/// What a test does to the fabric. Ports that are closed or were never opened are left alone.
impl Fabric {
    /// Adds a rule that is asked about every datagram at every port that it is about to reach.
    ///
    /// It runs under the fabric's lock and must not use the fabric.
    pub fn add_rule(&self, rule: impl FnMut(&Passing<'_>) -> Verdict + Send + 'static) -> RuleId {
        self.net.lock().rules.add(Box::new(rule))
    }

    /// Removes a rule; whether it was there.
    pub fn remove_rule(&self, rule: RuleId) -> bool {
        self.net.lock().rules.remove(rule)
    }

    /// Tells `watch` of every datagram that a port does not get: what a path loses, a rule drops, a partition
    /// or a link keeps off, and what comes while no receive is posted. Datagrams that cross cost nothing.
    ///
    /// It runs under the fabric's lock and must not use the fabric. A second watch takes the first one's place.
    pub fn watch_losses(&self, watch: impl FnMut(&Passing<'_>, Outcome) + Send + 'static) {
        self.net.lock().watch = Some(Watch(Box::new(watch)));
    }

    /// Sets what happens to datagrams on their way into a port.
    pub fn set_rx(&self, port: usize, impairment: Impairment) {
        self.with(port, |port| port.rx.set(impairment));
    }

    /// Sets what happens to datagrams on their way out of a port.
    pub fn set_tx(&self, port: usize, impairment: Impairment) {
        self.with(port, |port| port.tx.set(impairment));
    }

    /// Puts each set of ports on a side of its own: they hear each other, and nobody on another side.
    /// Ports in no set stay where they are.
    pub fn partition(&self, sets: &[&[usize]], traffic: Traffic) {
        for set in sets {
            let side = {
                let mut net = self.net.lock();
                let side = net.next_side;
                net.next_side = if side + 1 == u16::MAX { 1 } else { side + 1 };
                side
            };
            for &port in *set {
                self.put_on_side(port, side, traffic);
            }
        }
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        let ports = self.net.lock().ports.len();
        for port in 0..ports {
            self.put_on_side(port, 0, Traffic::All);
        }
    }

    /// Whether nothing of this kind gets into a port.
    pub fn set_deaf(&self, port: usize, traffic: Traffic, deaf: bool) {
        self.with(port, |port| {
            if traffic != Traffic::Multicast {
                port.sides.deaf_to_unicast = deaf;
            }
            if traffic != Traffic::Unicast {
                port.sides.deaf_to_multicast = deaf;
            }
        });
    }

    /// Takes a port's link down or up, with an event.
    pub fn set_link(&self, port: usize, up: bool) {
        self.with(port, |port| {
            if port.link_up != up {
                port.link_up = up;
                port.events.push_back(DeviceEvent::PortChanged);
            }
        });
    }

    /// Changes a port's MTU, with an event unless it is to go `unannounced`, as on Soft-RoCE.
    pub fn set_mtu(&self, port: usize, mtu: usize, unannounced: bool) {
        self.with(port, |port| {
            port.mtu = mtu;
            if !unannounced {
                port.events.push_back(DeviceEvent::PortChanged);
            }
        });
    }

    /// Gives a port another GID, with an event. It is no longer reached by the old one.
    pub fn set_gid(&self, port: usize, gid: Gid) {
        let mut net = self.net.lock();
        let number = super::net::number_of(port);
        let Some(entry) = net.find_mut(port) else { return };
        let udp_port = entry.udp_port;
        let old = std::mem::replace(&mut entry.gid, gid);
        entry.events.push_back(DeviceEvent::PortChanged);
        if net.addresses.get(&(old, udp_port)) == Some(&number) {
            net.addresses.remove(&(old, udp_port));
        }
        net.addresses.insert((gid, udp_port), number);
        net.list(port);
    }

    /// Stops a port's process: its polls give nothing, while datagrams still take up its receives.
    pub fn pause(&self, port: usize) {
        self.with(port, |port| port.paused = true);
    }

    /// Lets a port's process run again.
    pub fn resume(&self, port: usize) {
        self.with(port, |port| port.paused = false);
    }

    /// Takes a port's device away: sends are flushed, an event tells, and calls fail from then on.
    pub fn lose(&self, port: usize) {
        self.with(port, |port| {
            port.lost = true;
            port.link_up = false;
            for qp in port.qps.ids() {
                port.flush(qp);
            }
            port.events.push_back(DeviceEvent::Lost { cause: "the test took it away" });
        });
    }

    /// Lets the next send of a queue pair that leaves fail. What the queue pair does then is up to
    /// the port's [`Personality`](super::Personality).
    pub fn fail_next_send(&self, port: usize, qp: QpId, status: WcStatus) {
        self.with(port, |port| {
            if let Some(qp) = port.qps.find_mut(qp) {
                qp.failure = Some(status);
            }
        });
    }

    /// Moves a queue pair to SQE or ERR as if by itself; what is posted is flushed. An event tells
    /// if it is `announced`.
    pub fn fault_qp(&self, port: usize, qp: QpId, state: QpState, announced: bool) {
        self.with(port, |port| port.fault(qp, state, announced));
    }

    /// Lets the device refuse a queue pair's next `times` modifies with this errno.
    pub fn refuse_modify(&self, port: usize, qp: QpId, times: u32, errno: i32) {
        self.with(port, |port| {
            if let Some(qp) = port.qps.find_mut(qp) {
                qp.refusals = (times > 0).then_some((times, errno));
            }
        });
    }

    /// Whether a peer's address does not resolve, although there is such a port.
    pub fn set_unresolvable(&self, gid: Gid, unresolvable: bool) {
        let mut net = self.net.lock();
        if unresolvable {
            net.unresolvable.insert(gid);
        } else {
            net.unresolvable.remove(&gid);
        }
    }

    /// Whether joins of a group fail.
    pub fn set_unjoinable(&self, mgid: Gid, unjoinable: bool) {
        let mut net = self.net.lock();
        if unjoinable {
            net.unjoinable.insert(mgid);
        } else {
            net.unjoinable.remove(&mgid);
        }
    }

    /// Sends a stranger's datagram. It crosses the fabric like any other, and no partition holds it.
    pub fn inject(&self, stray: Stray) {
        let mut net = self.net.lock();
        let Stray { source, qpn, qkey, payload, corrupt, to } = stray;
        let (to, sides) = match to {
            StrayTo::Group(mgid) => (AhTo::Group(mgid), Sides::ANYWHERE),
            StrayTo::Port(port) => {
                let Some(port) = net.find(port) else { return };
                let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
                (AhTo::Peer(to), Sides::ANYWHERE)
            }
        };
        net.emit(Datagram {
            from: None,
            sides,
            to,
            source,
            qpn,
            qkey,
            payload,
            corrupt,
            not_to: None,
        });
    }

    fn put_on_side(&self, port: usize, side: u16, traffic: Traffic) {
        self.with(port, |port| {
            if traffic != Traffic::Multicast {
                port.sides.unicast = side;
            }
            if traffic != Traffic::Unicast {
                port.sides.multicast = side;
            }
        });
    }

    fn with(&self, port: usize, f: impl FnOnce(&mut Port)) {
        let mut net = self.net.lock();
        if net.find(port).is_some() {
            net.with_port(port, f);
        }
    }
}
