//! A few nodes of one group on a medium that loses what it is told to.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{
    Domain, Gid, GroupTag, NodeId, PeerAddr, Qpn, Sequence, SessionId, StreamId,
};
use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::membership::{
    Member, MemberEvent, MemberInfo, MembershipConfig, MembershipCounters, View, Word,
};
use qcast_proto::node::{Event, GroupId, Node, NodeConfig, To};
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::{FRAME_HEADER, Frame, FrameHeader, FrameKind};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);
pub(crate) const GROUP: &str = "g";

pub(crate) type Proto = Node<HeapFrame, Rc<[u8]>>;

/// A datagram on its way: from a machine to one, through the group or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) in_group: bool,
}

type Filter = Box<dyn Fn(Hop) -> bool>;

#[derive(Debug)]
struct Datagram {
    to: usize,
    /// The address it is for; nobody is there any more if the machine has another.
    address: PeerAddr,
    from: PeerAddr,
    in_group: bool,
    bytes: Rc<[u8]>,
}

pub(crate) struct Machine {
    pub(crate) node: Proto,
    pub(crate) group: GroupId,
    pub(crate) address: PeerAddr,
    pub(crate) up: bool,
    pub(crate) asleep: bool,
    /// What it was told: when, what, and with which version.
    pub(crate) told: Vec<(Instant, MemberEvent, u64)>,
    pub(crate) rejoins: usize,
}

pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) rng: fastrand::Rng,
    pub(crate) loss: f64,
    pub(crate) machines: Vec<Machine>,
    /// What does not arrive.
    pub(crate) cut: Filter,
    /// No word between members arrives.
    pub(crate) mute: bool,
    pub(crate) config: MembershipConfig,
    pub(crate) sent: u64,
    wire: BTreeMap<(Instant, u64), Datagram>,
    next_qpn: u32,
}

impl Net {
    pub(crate) fn new(seed: u64, loss: f64) -> Self {
        Self {
            now: Instant::from_millis(5),
            rng: fastrand::Rng::with_seed(seed),
            loss,
            machines: Vec::new(),
            cut: Box::new(|_| false),
            mute: false,
            config: MembershipConfig::default(),
            sent: 0,
            wire: BTreeMap::new(),
            next_qpn: 1,
        }
    }

    /// A group of so many that all see each other.
    pub(crate) fn settled(seed: u64, loss: f64, machines: usize) -> Self {
        let mut net = Self::new(seed, loss);
        for n in 0..machines {
            net.join(n as u128 + 1, 1);
        }
        net.run(4 * SECOND);
        net.agree();
        net.machines.iter_mut().for_each(|m| m.told.clear());
        net
    }

    pub(crate) fn host(n: usize) -> Gid {
        std::net::Ipv4Addr::from(0x0a00_0001 + n as u32).into()
    }

    pub(crate) fn join(&mut self, id: u128, incarnation: u64) -> usize {
        let host = Self::host(self.machines.len());
        self.join_at(id, incarnation, host)
    }

    pub(crate) fn join_at(&mut self, id: u128, incarnation: u64, gid: Gid) -> usize {
        let address = PeerAddr { gid, qpn: Qpn::new(self.next_qpn), udp_port: 4791 };
        self.next_qpn += 1;
        let mut config = NodeConfig::new(NodeId(id), incarnation, format!("node {id}"));
        config.host = format!("host {}", gid);
        config.membership = Some(self.config.clone());
        let mut node = Node::new(self.now, config, self.rng.u64(..));
        node.supply((0..4096).map(|_| HeapFrame::new(1024)));
        let group = node.join(self.now, GROUP, address);
        self.machines.push(Machine {
            node,
            group,
            address,
            up: true,
            asleep: false,
            told: Vec::new(),
            rejoins: 0,
        });
        self.machines.len() - 1
    }

    pub(crate) fn crash(&mut self, machine: usize) {
        self.machines[machine].up = false;
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            for at in 0..self.machines.len() {
                self.drain(at);
            }
            let wire = self.wire.first_key_value().map(|((at, _), _)| *at);
            let awake = self.machines.iter().filter(|m| m.up && !m.asleep);
            let timers = awake.filter_map(|m| m.node.poll_timeout()).min();
            let next = wire.into_iter().chain(timers).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            let next = next.max(self.now);
            self.now = next;
            while let Some(((at, _), _)) = self.wire.first_key_value()
                && *at <= self.now
            {
                let (_, d) = self.wire.pop_first().expect("it was there a moment ago");
                let m = &mut self.machines[d.to];
                if m.up && !m.asleep && (d.in_group || m.address == d.address) {
                    let group = m.group;
                    m.node.handle_datagram(self.now, group, d.from, d.in_group, d.bytes);
                    self.drain(d.to);
                }
            }
            let now = self.now;
            for m in self.machines.iter_mut().filter(|m| m.up && !m.asleep) {
                if m.node.poll_timeout().is_some_and(|due| due <= now) {
                    m.node.handle_timeout(now);
                }
            }
        }
    }

    pub(crate) fn run_until(&mut self, within: Duration, what: &str, done: impl Fn(&Net) -> bool) {
        let end = self.now + within;
        while !done(self) {
            assert!(self.now < end, "{what} did not come about");
            self.run(10 * MILLI);
        }
    }

    fn drain(&mut self, at: usize) {
        let m = &mut self.machines[at];
        if !m.up || m.asleep {
            return;
        }
        while let Some(event) = m.node.poll_event() {
            match event {
                Event::Member { event, version, .. } => m.told.push((self.now, event, version)),
                Event::Rejoin { .. } => m.rejoins += 1,
                _ => {}
            }
        }
        let from = m.address;
        let mut sent = Vec::new();
        while let Some(t) = m.node.poll_transmit(self.now) {
            sent.push((t.to, Rc::from(t.frame.bytes())));
            m.node.handle_sent(t.token, t.frame);
        }
        self.sent += sent.len() as u64;
        for (to, bytes) in sent {
            self.send(at, from, to, &bytes);
        }
    }

    fn send(&mut self, machine: usize, from: PeerAddr, to: To, bytes: &Rc<[u8]>) {
        let kind = Frame::new_checked(bytes).expect("a node's own frame").header().kind;
        if self.mute && (FrameKind::Beacon..=FrameKind::Digest).contains(&kind) {
            return;
        }
        for at in 0..self.machines.len() {
            let address = self.machines[at].address;
            let (in_group, is_for) = match to {
                To::Group => (true, at != machine),
                To::Peer(peer) => (false, address == peer),
            };
            let hop = Hop { from: machine, to: at, in_group };
            if is_for && !(self.cut)(hop) && self.rng.f64() >= self.loss {
                self.arrive(at, from, in_group, bytes.clone());
            }
        }
    }

    fn arrive(&mut self, to: usize, from: PeerAddr, in_group: bool, bytes: Rc<[u8]>) {
        let at = self.now + Duration::from_micros(self.rng.u64(20..200));
        let address = self.machines[to].address;
        let order = self.rng.u64(..);
        self.wire.insert((at, order), Datagram { to, address, from, in_group, bytes });
    }

    /// A word that somebody made up, from any address to one machine.
    pub(crate) fn forge(&mut self, to: usize, from: PeerAddr, in_group: bool, word: &Word) {
        let bytes = framed(word);
        self.arrive(to, from, in_group, bytes);
    }

    pub(crate) fn view(&self, machine: usize) -> View {
        let m = &self.machines[machine];
        m.node.view(m.group)
    }

    pub(crate) fn counters(&self, machine: usize) -> MembershipCounters {
        let m = &self.machines[machine];
        m.node.membership_counters(m.group)
    }

    /// A member as a machine sees it.
    pub(crate) fn sees(&self, machine: usize, id: u128) -> Option<Member> {
        self.view(machine).member(NodeId(id)).cloned()
    }

    /// The names of the events of a machine about a node.
    pub(crate) fn told(&self, machine: usize, id: u128) -> Vec<&'static str> {
        let told = self.machines[machine].told.iter();
        told.filter(|(_, e, _)| e.info().node == NodeId(id)).map(|(_, e, _)| e.name()).collect()
    }

    pub(crate) fn told_at(&self, machine: usize, id: u128, what: &str) -> Option<Instant> {
        let told = self.machines[machine].told.iter();
        told.filter(|(_, e, _)| e.info().node == NodeId(id) && e.name() == what)
            .map(|(at, ..)| *at)
            .next()
    }

    /// Who is up, by identity and life, in order.
    pub(crate) fn group(&self) -> Vec<(NodeId, u64)> {
        let up = self.machines.iter().filter(|m| m.up);
        let mut group: Vec<_> =
            up.map(|m| (m.node.config().id, m.node.config().incarnation)).collect();
        group.sort();
        group
    }

    pub(crate) fn lives(view: &View) -> Vec<(NodeId, u64)> {
        view.members.iter().map(|m| (m.info.node, m.info.incarnation)).collect()
    }

    pub(crate) fn is_agreed(&self) -> bool {
        let group = self.group();
        let up = self.machines.iter().filter(|m| m.up);
        up.map(|m| m.node.view(m.group)).all(|view| Self::lives(&view) == group)
    }

    /// All that are up see the same members: those that are up.
    #[track_caller]
    pub(crate) fn agree(&self) {
        let group = self.group();
        for (at, m) in self.machines.iter().enumerate().filter(|(_, m)| m.up) {
            assert_eq!(Self::lives(&m.node.view(m.group)), group, "as machine {at} sees it");
        }
    }

    /// What was told turns the view as it was into the view as it is, one version for each event that is no conflict.
    #[track_caller]
    pub(crate) fn assert_versions(&self) {
        for m in self.machines.iter().filter(|m| m.up) {
            let mut last = None;
            for (_, event, version) in &m.told {
                let step = u64::from(event.name() != "conflict");
                assert!(
                    last.is_none_or(|last: u64| *version == last + step),
                    "{event:?} {version}"
                );
                last = Some(*version);
            }
            let view = m.node.view(m.group).version;
            assert!(last.is_none_or(|last| last == view));
        }
    }
}

pub(crate) fn framed(word: &Word) -> Rc<[u8]> {
    let mut bytes = vec![0; 1024];
    let header = FrameHeader {
        kind: word.kind(),
        domain: Domain(0),
        group: GroupTag::of(GROUP),
        stream: StreamId(0),
        session: SessionId(0xbad),
        sequence: Sequence(0),
    };
    header.emit(&mut bytes);
    let len = word.encode(&mut bytes[FRAME_HEADER..]).expect("there is room");
    bytes.truncate(FRAME_HEADER + len);
    assert!(Frame::new_checked(&bytes).is_ok());
    bytes.into()
}

/// A beacon of nobody.
pub(crate) fn beacon(id: u128, incarnation: u64, at: u64, address: PeerAddr) -> Word {
    let info = MemberInfo {
        node: NodeId(id),
        incarnation,
        name: format!("forged {id}"),
        host: String::new(),
        address,
        role: Default::default(),
        metadata: Vec::new(),
    };
    Word::Beacon(qcast_proto::membership::Beacon {
        node: NodeId(id),
        incarnation,
        at,
        interval_ms: 1000,
        members: 1,
        sum: 0,
        fresh: true,
        leaving: false,
        echo: None,
        progress: None,
        info: Some(info.into()),
    })
}
