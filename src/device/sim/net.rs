//! The network behind a fabric: the clock, what is to happen, and all ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::time::Instant;

use super::config::{FabricConfig, PortConfig};
use super::path::{Datagram, Fan};
use super::port::{Join, Port, Ticket};
use super::rule::{Rules, Watch};
use super::trace::Trace;
use crate::device::agenda::Agenda;
use crate::device::impair::mix;
use crate::device::{AhId, QpId};

/// Something that is to happen.
#[derive(Debug)]
pub(super) enum Event {
    /// A datagram has crossed the fabric and reaches its receivers' paths.
    Crossed(Arc<Datagram>),
    /// A datagram reaches one port at the end of its path.
    Arrived(u32, Arc<Datagram>),
    /// The same for many ports, one after the other.
    Fanned(Box<Fan>),
    /// A send leaves its queue.
    Departs(u32, QpId),
    /// A join ends.
    Joined(u32, Ticket),
    /// An address is resolved, or is not.
    Resolved(u32, AhId, Ticket),
}

/// Everything on a fabric. Ports are named by their index; an index is never used again.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) config: FabricConfig,
    pub(super) seed: u64,
    pub(super) now: Instant,
    pub(super) queue: Agenda<Event>,
    pub(super) ports: Vec<Option<Box<Port>>>,
    pub(super) addresses: BTreeMap<(Gid, u16), u32>,
    /// The ports that have a queue pair attached, by group and in order.
    pub(super) groups: BTreeMap<Gid, Vec<u32>>,
    /// GIDs whose address does not resolve, whoever has them.
    pub(super) unresolvable: BTreeSet<Gid>,
    /// Groups that cannot be joined.
    pub(super) unjoinable: BTreeSet<Gid>,
    pub(super) rules: Rules,
    pub(super) watch: Option<Watch>,
    pub(super) trace: Trace,
    pub(super) next_qpn: u32,
    next_ticket: u64,
    pub(super) next_side: u16,
    /// Ports that may have something to poll.
    listed: Vec<u32>,
}

impl Net {
    pub(super) fn new(config: FabricConfig, seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            queue: Agenda::new(),
            ports: Vec::new(),
            addresses: BTreeMap::new(),
            groups: BTreeMap::new(),
            unresolvable: BTreeSet::new(),
            unjoinable: BTreeSet::new(),
            rules: Rules::default(),
            watch: None,
            trace: Trace::new(config.trace),
            next_qpn: FIRST_QPN,
            next_ticket: 0,
            next_side: 1,
            listed: Vec::new(),
            config,
        }
    }

    pub(super) fn open(&mut self, config: PortConfig) -> usize {
        let index = self.ports.len();
        let number = number_of(index);
        let gid = config.gid.unwrap_or_else(|| own_gid(number));
        self.addresses.insert((gid, config.udp_port), number);
        let port = Port::new(config, gid, mix(self.seed, u64::from(number)));
        self.ports.push(Some(Box::new(port)));
        index
    }

    pub(super) fn close(&mut self, index: usize) {
        let Some(port) = self.ports.get_mut(index).and_then(Option::take) else { return };
        let number = number_of(index);
        for join in &port.joins {
            self.detach(number, join.mgid);
        }
        if self.addresses.get(&(port.gid, port.udp_port)) == Some(&number) {
            self.addresses.remove(&(port.gid, port.udp_port));
        }
    }

    /// A port that a device handle keeps open.
    pub(super) fn port(&self, index: usize) -> &Port {
        self.find(index).expect("a device's port is open until the device is dropped")
    }

    /// A port that a device handle keeps open.
    pub(super) fn port_mut(&mut self, index: usize) -> &mut Port {
        self.find_mut(index).expect("a device's port is open until the device is dropped")
    }

    pub(super) fn find(&self, index: usize) -> Option<&Port> {
        self.ports.get(index)?.as_deref()
    }

    pub(super) fn find_mut(&mut self, index: usize) -> Option<&mut Port> {
        self.ports.get_mut(index)?.as_deref_mut()
    }

    /// Does everything that is due by `to` and moves the clock there; it never moves back.
    pub(super) fn run(&mut self, to: Instant) {
        while let Some((at, place, event)) = self.queue.pop_due(to) {
            // An event for the past is one that was made late: it happens now.
            self.now = self.now.max(at);
            match event {
                Event::Crossed(datagram) => self.cross(&datagram),
                Event::Arrived(port, datagram) => self.arrive(port, &datagram),
                Event::Fanned(fan) => self.fan(fan, place),
                Event::Departs(port, qp) => self.depart(port, qp),
                Event::Joined(port, ticket) => self.end_join(port, ticket),
                Event::Resolved(port, ah, ticket) => self.end_resolution(port, ah, ticket),
            }
        }
        self.now = self.now.max(to);
    }

    /// When there is next something to do: now, if a port has something to poll.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let waiting = self.listed.iter().any(|&port| self.has_something(port as usize));
        if waiting { Some(self.now) } else { self.queue.next_at() }
    }

    /// Notes that a port has something to poll.
    pub(super) fn list(&mut self, index: usize) {
        if let Some(port) = self.ports.get_mut(index).and_then(Option::as_deref_mut) {
            list(port, number_of(index), &mut self.listed);
        }
    }

    /// Moves the ports that have something to poll to `ready`.
    pub(super) fn take_ready(&mut self, ready: &mut Vec<usize>) {
        for index in std::mem::take(&mut self.listed) {
            if let Some(port) = self.find_mut(index as usize) {
                port.listed = false;
                if port.has_something() {
                    ready.push(index as usize);
                }
            }
        }
    }

    /// Runs `f` on an open port and notes if it has something to poll afterwards.
    pub(super) fn with_port<R>(&mut self, index: usize, f: impl FnOnce(&mut Port) -> R) -> R {
        let answer = f(self.port_mut(index));
        self.list(index);
        answer
    }

    /// The ports table and the list of those that have something, for loops over many ports.
    pub(super) fn ports_and_list(&mut self) -> (&mut [Option<Box<Port>>], &mut Vec<u32>) {
        (&mut self.ports, &mut self.listed)
    }

    pub(super) fn new_qpn(&mut self) -> Qpn {
        let qpn = Qpn::new(self.next_qpn);
        self.next_qpn =
            if self.next_qpn + 1 >= Qpn::MULTICAST.get() { FIRST_QPN } else { self.next_qpn + 1 };
        qpn
    }

    pub(super) fn new_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    pub(super) fn attach(&mut self, number: u32, mgid: Gid) {
        let members = self.groups.entry(mgid).or_default();
        if let Err(place) = members.binary_search(&number) {
            members.insert(place, number);
        }
    }

    /// Takes a port out of a group, unless another of its queue pairs is attached.
    pub(super) fn detach(&mut self, number: u32, mgid: Gid) {
        let still = |join: &Join| join.mgid == mgid && join.ah.is_some();
        if self.find(number as usize).is_some_and(|port| port.joins.iter().any(still)) {
            return;
        }
        if let Some(members) = self.groups.get_mut(&mgid) {
            if let Ok(place) = members.binary_search(&number) {
                members.remove(place);
            }
            if members.is_empty() {
                self.groups.remove(&mgid);
            }
        }
    }

    fn has_something(&self, index: usize) -> bool {
        self.find(index).is_some_and(Port::has_something)
    }
}

/// Adds a port that has something to the list of them, once.
pub(super) fn list(port: &mut Port, number: u32, listed: &mut Vec<u32>) {
    if !port.listed && port.has_something() {
        port.listed = true;
        listed.push(number);
    }
}

/// A port's index as it is kept in events, where there are many.
pub(super) fn number_of(index: usize) -> u32 {
    u32::try_from(index).expect("a port takes more than a byte, so there are far fewer than 2^32")
}

/// Numbers 0 and 1 are the management queue pairs of real devices.
const FIRST_QPN: u32 = 0x11;

/// The address of a port that did not ask for one: 10.0.0.1 and on.
fn own_gid(number: u32) -> Gid {
    Gid::from(Ipv4Addr::from(0x0a00_0000 | ((number + 1) & 0x00ff_ffff)))
}
