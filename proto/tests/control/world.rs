//! Nodes that are in the control group, and the medium between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{
    Domain, Gid, GroupTag, NodeId, PKey, PeerAddr, QKey, Qpn, ROCE_PORT, Sequence, SessionId,
    StreamId,
};
use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::diagnosis::DiagnosisEvent;
use qcast_proto::discovery::{BrowseId, DiscoveryEvent, Filter, Service, ServiceId};
use qcast_proto::node::{CONTROL_GROUP, Event, GroupId, Node, NodeConfig, Transmit};
use qcast_proto::time::Instant;
use qcast_proto::wire::control::encode;
use qcast_proto::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind};
use qcast_proto::wire::notice::Checks;

pub(crate) type Frame = Rc<[u8]>;

/// A node, and what it told.
pub(crate) struct Member {
    pub(crate) node: Node<HeapFrame, Frame>,
    pub(crate) address: PeerAddr,
    control: GroupId,
    /// Killed, or so busy that it does nothing.
    pub(crate) dead: bool,
    pub(crate) paused: bool,
    /// Which part of the network it is in.
    pub(crate) part: u8,
    pub(crate) diagnosed: Vec<(Instant, DiagnosisEvent)>,
    pub(crate) discovered: Vec<(Instant, DiscoveryEvent)>,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    due: Option<Instant>,
}

impl Member {
    /// Frames of the control group that were dropped because they cannot be read, or should not be shown.
    pub(crate) fn malformed(&self) -> u64 {
        self.node.group_counters(self.control).malformed
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) rng: fastrand::Rng,
    pub(crate) loss: f64,
    pub(crate) members: Vec<Member>,
    in_flight: BTreeMap<(Instant, u64), (usize, PeerAddr, Frame)>,
    sent: u64,
    /// How often in a row a node was due at the same time.
    idle: u32,
    /// When nodes are due, as they said last.
    due: BTreeSet<(Instant, usize)>,
    /// Frames as they were sent, newest last, for whoever repeats them.
    pub(crate) seen: VecDeque<(PeerAddr, Frame)>,
}

pub(crate) fn key(n: u32) -> QKey {
    QKey::new_checked(n).unwrap()
}

/// What a member of a group uses.
pub(crate) fn checks(group: &str, qkey: u32) -> Checks {
    Checks::of(group, key(qkey), PKey::DEFAULT, "239.192.1.2".parse().unwrap(), 4096)
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    pub(crate) fn new(seed: u64, loss: f64) -> Self {
        let now = Instant::from_millis(1);
        let rng = fastrand::Rng::with_seed(seed);
        let (members, in_flight) = (Vec::new(), BTreeMap::new());
        let (due, seen) = (BTreeSet::new(), VecDeque::new());
        Self { now, rng, loss, members, in_flight, sent: 0, idle: 0, due, seen }
    }

    /// A node with an identity of its own.
    pub(crate) fn add(&mut self, name: &str) -> usize {
        self.add_as(NodeId::of_name(name), 1, name)
    }

    /// A node with this identity, in an address of its own.
    pub(crate) fn add_as(&mut self, id: NodeId, incarnation: u64, name: &str) -> usize {
        let index = self.members.len();
        let address = address(index);
        let config = NodeConfig::new(id, incarnation, name);
        let mut node = Node::new(self.now, config, self.rng.u64(..));
        node.supply((0..16).map(|_| HeapFrame::new(1024)));
        let control = node.join_control(self.now, address);
        let member = Member {
            node,
            address,
            control,
            dead: false,
            paused: false,
            part: 0,
            diagnosed: Vec::new(),
            discovered: Vec::new(),
            frames: 0,
            bytes: 0,
            due: None,
        };
        self.members.push(member);
        self.pump(index);
        index
    }

    pub(crate) fn join(&mut self, index: usize, group: &str, qkey: u32) -> GroupId {
        self.join_with(index, group, checks(group, qkey))
    }

    pub(crate) fn join_with(&mut self, index: usize, group: &str, checks: Checks) -> GroupId {
        let member = &mut self.members[index];
        let id = member.node.join(self.now, group, member.address);
        member.node.describe(self.now, id, group, checks);
        self.pump(index);
        id
    }

    pub(crate) fn leave(&mut self, index: usize, group: GroupId) {
        self.members[index].node.notice_leave(group);
        self.members[index].node.leave(group);
        self.pump(index);
    }

    pub(crate) fn announce(&mut self, index: usize, service: Service) -> ServiceId {
        let id = self.members[index].node.announce(self.now, service).unwrap();
        self.pump(index);
        id
    }

    pub(crate) fn withdraw(&mut self, index: usize, id: ServiceId) {
        self.members[index].node.withdraw(self.now, id);
        self.pump(index);
    }

    pub(crate) fn browse(&mut self, index: usize, kind: &str, name: &str) -> BrowseId {
        let filter = Filter { kind: kind.into(), name: name.into() };
        let id = self.members[index].node.browse(self.now, filter);
        self.pump(index);
        id
    }

    /// Gives a node a frame that `from` seems to have sent.
    pub(crate) fn inject(&mut self, index: usize, from: PeerAddr, frame: &[u8]) {
        let member = &mut self.members[index];
        let control = member.control;
        member.node.handle_datagram(self.now, control, from, true, frame.into());
        self.pump(index);
    }

    /// Sends and tells what a node has to.
    pub(crate) fn pump(&mut self, index: usize) {
        if self.members[index].dead || self.members[index].paused {
            return;
        }
        let mut sent = 0;
        while let Some(Transmit { frame, token, .. }) =
            self.members[index].node.poll_transmit(self.now)
        {
            sent += 1;
            assert!(sent < 1000, "node {index} does not come to an end");
            let bytes: Frame = frame.bytes().into();
            self.members[index].frames += 1;
            self.members[index].bytes += bytes.len() as u64;
            self.members[index].node.handle_sent(token, frame);
            self.multicast(index, &bytes);
        }
        let member = &mut self.members[index];
        while let Some(event) = member.node.poll_event() {
            match event {
                Event::Diagnosis(event) => member.diagnosed.push((self.now, event)),
                Event::Discovery(event) => member.discovered.push((self.now, event)),
                other => panic!("{other:?}"),
            }
        }
        let due = member.node.poll_timeout();
        if due != member.due {
            if let Some(was) = std::mem::replace(&mut member.due, due) {
                self.due.remove(&(was, index));
            }
            self.due.extend(due.map(|at| (at, index)));
        }
    }

    fn multicast(&mut self, from: usize, bytes: &Frame) {
        let (address, part) = (self.members[from].address, self.members[from].part);
        self.seen.push_back((address, bytes.clone()));
        if self.seen.len() > 256 {
            self.seen.pop_front();
        }
        for to in 0..self.members.len() {
            // One's own frames come back, or not.
            let heard = to != from || self.rng.bool();
            if !heard || self.members[to].part != part || self.rng.f64() < self.loss {
                continue;
            }
            let copies = if self.loss > 0.0 && self.rng.u8(..) == 0 { 2 } else { 1 };
            for _ in 0..copies {
                let delay = Duration::from_micros(self.rng.u64(20..800));
                self.sent += 1;
                self.in_flight.insert((self.now + delay, self.sent), (to, address, bytes.clone()));
            }
        }
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until it is so; says how long it took, `None` if it was not so in time.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Option<Duration> {
        let (start, end) = (self.now, self.now + limit);
        while !done(self) {
            if !self.step(end) {
                return None;
            }
        }
        Some(self.now.saturating_since(start))
    }

    fn step(&mut self, end: Instant) -> bool {
        let able = |m: &Member| !m.dead && !m.paused;
        let due = self.due.iter().find(|(_, i)| able(&self.members[*i])).copied();
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        let next = [due.map(|(at, _)| at), arrival].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= end) else { return false };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= next) {
            let (_, (to, from, frame)) = self.in_flight.pop_first().unwrap();
            let member = &mut self.members[to];
            if !member.dead && !member.paused {
                let control = member.control;
                member.node.handle_datagram(self.now, control, from, true, frame);
                self.pump(to);
            }
        } else if let Some((at, index)) = due {
            self.members[index].node.handle_timeout(self.now);
            self.pump(index);
            self.idle = if self.members[index].due == Some(at) { self.idle + 1 } else { 0 };
            assert!(self.idle < 1000, "node {index} is due again and again");
        }
        true
    }

    /// What a node was told of a search, as lines: `+name`, `~name`, `-name`.
    pub(crate) fn found(&self, index: usize) -> Vec<String> {
        let line = |event: &DiscoveryEvent| match event {
            DiscoveryEvent::Added { found, .. } => Some(format!("+{}", found.service.name)),
            DiscoveryEvent::Updated { found, .. } => Some(format!("~{}", found.service.name)),
            DiscoveryEvent::Removed { found, .. } => Some(format!("-{}", found.service.name)),
            _ => None,
        };
        self.members[index].discovered.iter().filter_map(|(_, event)| line(event)).collect()
    }

    /// The names that a node announces now.
    pub(crate) fn announced(&self, index: usize) -> Vec<String> {
        let mut names = BTreeMap::new();
        for (_, event) in &self.members[index].discovered {
            match event {
                DiscoveryEvent::Announced { service, name } => {
                    names.insert(*service, name.clone());
                }
                DiscoveryEvent::Renamed { service, .. } | DiscoveryEvent::Refused { service } => {
                    names.remove(service);
                }
                _ => {}
            }
        }
        names.into_values().collect()
    }

    /// Who differs from a node in its key, by name, with their check value and its own.
    pub(crate) fn mismatches(&self, index: usize) -> Vec<(String, u8, u8)> {
        let of = |event: &DiagnosisEvent| match event {
            DiagnosisEvent::KeyMismatch { members, theirs, ours, .. } => {
                members.iter().map(|member| (member.name.clone(), *theirs, *ours)).collect()
            }
            _ => Vec::new(),
        };
        self.members[index].diagnosed.iter().flat_map(|(_, event)| of(event)).collect()
    }
}

/// The address of a node.
pub(crate) fn address(index: usize) -> PeerAddr {
    let [a, b] = u16::try_from(index + 1).unwrap().to_be_bytes();
    let gid = Gid::from(std::net::Ipv4Addr::new(10, 0, a, b));
    PeerAddr { gid, qpn: Qpn::new(0x100), udp_port: ROCE_PORT }
}

/// A frame of the control group that a stranger made.
pub(crate) fn forged(kind: FrameKind, body: &impl bincode::Encode) -> Vec<u8> {
    let header = FrameHeader {
        kind,
        domain: Domain(0),
        group: GroupTag::of(CONTROL_GROUP),
        stream: StreamId(0),
        session: SessionId(7),
        sequence: Sequence(0),
    };
    let mut frame = vec![0; 1024];
    header.emit(&mut frame);
    let len = encode(body, &mut frame[FRAME_HEADER..]).unwrap();
    frame.truncate(FRAME_HEADER + len);
    frame
}
