//! Machines on a medium in virtual time: everything that happens is drawn from one seed.

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{Domain, Gid, GroupTag, NodeId, PeerAddr, Qpn, ROCE_PORT, Sequence};
use qcast_proto::node::{FrameToken, NodeConfig};
use qcast_proto::publish::PublisherConfig;
use qcast_proto::subscribe::{StreamKey, SubscriberConfig};
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::{Frame, FrameHeader, FrameKind};

use crate::buffers::{Received, Slot};
use crate::fabric::{Fabric, Flight, Rule, Traffic};
use crate::machine::{GROUP, Machine, Srq, State};
use crate::publisher::{Plan, Publisher};
use crate::subscriber::Subscriber;
use crate::truth::{Library, Truth};

/// Everything there is.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) fabric: Fabric,
    pub(crate) machines: Vec<Machine>,
    pub(crate) traffic: Traffic,
    /// What happened, one line each, if it is recorded.
    pub(crate) log: Option<Vec<String>>,
    /// The last frames that were sent, if somebody listens.
    pub(crate) overheard: Option<VecDeque<Rc<[u8]>>>,
    /// Numbers drawn for the medium.
    pub(crate) draws: u64,
    /// Whether streams may have to wait until others of their node are described.
    pub(crate) refuses: bool,
    /// One machine that is further away than the others, in both directions.
    pub(crate) far: Option<(usize, Duration)>,
    seed: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) library: Library,
    pub(crate) addresses: BTreeMap<PeerAddr, usize>,
    pub(crate) rules: Vec<Rule>,
    /// Which side of a partition a machine is on.
    pub(crate) sides: Vec<u32>,
    pub(crate) bursts: Vec<bool>,
    happenings: BinaryHeap<Reverse<Happening>>,
    order: u64,
    touched: Vec<usize>,
}

struct Happening {
    at: Instant,
    order: u64,
    what: What,
}

pub(crate) enum What {
    Deliver { to: usize, from: PeerAddr, multicast: bool, bytes: Rc<[u8]> },
    Sent { machine: usize, life: u32, token: FrameToken, frame: Slot },
    Wake { machine: usize },
    Serve { machine: usize, life: u32 },
}

impl PartialEq for Happening {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Happening {}

impl PartialOrd for Happening {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Happening {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl World {
    pub(crate) fn new(seed: u64, fabric: Fabric) -> Self {
        Self {
            now: Instant::ZERO,
            fabric,
            machines: Vec::new(),
            traffic: Traffic::default(),
            log: None,
            overheard: None,
            draws: 0,
            refuses: false,
            far: None,
            seed,
            rng: fastrand::Rng::with_seed(seed ^ 0x51b0_cafe),
            library: Library::default(),
            addresses: BTreeMap::new(),
            rules: Vec::new(),
            sides: Vec::new(),
            bursts: Vec::new(),
            happenings: BinaryHeap::new(),
            order: 0,
            touched: Vec::new(),
        }
    }

    /// Adds a machine and gives its index.
    pub(crate) fn add(&mut self) -> usize {
        self.add_with(|_| {})
    }

    pub(crate) fn add_with(&mut self, change: impl FnOnce(&mut NodeConfig)) -> usize {
        let index = self.machines.len();
        let id = NodeId((u128::from(self.draw()) << 64) | index as u128);
        let mut config = NodeConfig::new(id, 1, format!("node-{index}"));
        change(&mut config);
        let address = self.address(index);
        let ahead = Duration::from_micros(self.draw() % 10_000_000_000);
        let seed = self.seed.wrapping_mul(1_000_003) + index as u64;
        self.machines.push(Machine::new(self.now, config, address, seed, ahead));
        self.addresses.insert(address, index);
        self.sides.push(0);
        self.bursts.push(false);
        index
    }

    /// Where machine `index` is reached. One that does not exist can send hostile frames.
    pub(crate) fn address(&self, index: usize) -> PeerAddr {
        let n = u32::try_from(index).expect("few machines");
        let gid = Gid::from(std::net::Ipv4Addr::from(0x0a00_0001 + n));
        PeerAddr { gid, qpn: Qpn::new(n + 17), udp_port: ROCE_PORT }
    }

    pub(crate) fn subscribe(&mut self, machine: usize, config: SubscriberConfig) -> usize {
        let (now, library) = (self.now, self.library.clone());
        let m = &mut self.machines[machine];
        let clock = m.clock(now);
        let id =
            m.node.open_subscriber(clock, m.group, config.clone()).expect("it is in the group");
        m.subscribers.push(Subscriber::new(now, machine, id, config, library));
        self.touched.push(machine);
        self.machines[machine].subscribers.len() - 1
    }

    pub(crate) fn publish(&mut self, machine: usize, config: PublisherConfig, plan: Plan) -> usize {
        let now = self.now;
        let m = &mut self.machines[machine];
        let (topic, window) = (config.topic.clone(), config.window);
        let clock = m.clock(now);
        let (id, header) =
            m.node.open_publisher(clock, m.group, config).expect("it is in the group");
        let key = StreamKey { session: header.session, stream: header.stream };
        let truth = Rc::new(RefCell::new(Truth::new(now, machine, topic, plan.sizes)));
        self.library.borrow_mut().insert(key, truth.clone());
        m.publishers.push(Publisher::new(now, id, key, header, window, plan, truth));
        self.touched.push(machine);
        self.machines[machine].publishers.len() - 1
    }

    pub(crate) fn close_publisher(&mut self, machine: usize, publisher: usize) {
        let now = self.now;
        let m = &mut self.machines[machine];
        let clock = m.clock(now);
        m.node.close_publisher(clock, m.publishers[publisher].id);
        self.touched.push(machine);
    }

    pub(crate) fn close_subscriber(&mut self, machine: usize, subscriber: usize) {
        let now = self.now;
        let m = &mut self.machines[machine];
        let clock = m.clock(now);
        m.node.close_subscriber(clock, m.subscribers[subscriber].id);
        m.subscribers[subscriber].open = false;
        self.touched.push(machine);
    }

    /// It does nothing any more, without a word.
    pub(crate) fn kill(&mut self, machine: usize) {
        self.machines[machine].state = State::Dead;
    }

    /// Another life of the same identity at the same address.
    pub(crate) fn restart(&mut self, machine: usize) {
        let seed = self.draw();
        let now = self.now;
        self.machines[machine].restart(now, seed);
    }

    pub(crate) fn pause(&mut self, machine: usize, keep: bool) {
        self.machines[machine].state = State::Paused { keep };
    }

    pub(crate) fn resume(&mut self, machine: usize) {
        self.machines[machine].state = State::Running;
        let inbox = std::mem::take(&mut self.machines[machine].inbox);
        for (from, multicast, frame) in inbox {
            self.handle(machine, from, multicast, frame);
        }
        self.touched.push(machine);
    }

    /// From now on the machine is reached elsewhere.
    pub(crate) fn readdress(&mut self, machine: usize) {
        let address = self.address(machine + 10_000);
        let now = self.now;
        let m = &mut self.machines[machine];
        self.addresses.remove(&m.address);
        m.address = address;
        let clock = m.clock(now);
        m.node.readdress(clock, m.group, address);
        self.addresses.insert(address, machine);
        self.touched.push(machine);
    }

    /// These machines hear only each other, until [`World::heal`].
    pub(crate) fn cut_off(&mut self, machines: &[usize]) {
        for m in machines {
            self.sides[*m] = 1;
        }
    }

    pub(crate) fn heal(&mut self) {
        self.sides.fill(0);
    }

    /// The domain, group, session and stream of a machine's publisher, as its frames say them.
    pub(crate) fn header_of(&self, machine: usize, publisher: usize) -> FrameHeader {
        let key = self.machines[machine].publishers[publisher].key;
        FrameHeader {
            kind: FrameKind::Data,
            domain: Domain(0),
            group: GroupTag::of(GROUP),
            stream: key.stream,
            session: key.session,
            sequence: Sequence(0),
        }
    }

    /// Adds a rule that drops datagrams.
    pub(crate) fn rule(&mut self, rule: impl FnMut(&Flight) -> bool + 'static) {
        self.rules.push(Box::new(rule));
    }

    pub(crate) fn limit_receives(&mut self, machine: usize, srq: Srq) {
        self.machines[machine].srq = Some(srq);
    }

    /// A datagram that no machine sent, handed to `to` now.
    pub(crate) fn inject(&mut self, from: PeerAddr, to: usize, multicast: bool, bytes: &[u8]) {
        let frame = Received::new(bytes.into(), &self.machines[to].received);
        self.handle(to, from, multicast, frame);
        self.touched.push(to);
    }

    /// The machine has a turn before time goes on.
    pub(crate) fn touch(&mut self, machine: usize) {
        self.touched.push(machine);
    }

    /// Lets `time` pass.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.settle_touched();
        while self.happenings.peek().is_some_and(|Reverse(h)| h.at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Lets time pass until `done`, which is asked every 100 µs, and at most `limit`.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) {
        let end = self.now + limit;
        while !done(self) {
            assert!(self.now < end, "not within {limit:?}: {what}\n{}", self.describe());
            self.run_for(Duration::from_micros(100));
        }
    }

    /// Runs until every publisher that lives has sent all and every subscription has taken it, and
    /// checks every invariant.
    pub(crate) fn settle(&mut self, limit: Duration) {
        self.run_until(limit, "all is published", |w| {
            let live = w.machines.iter().filter(|m| m.is_running());
            live.flat_map(|m| &m.publishers).all(|p| p.is_done() || p.closed.is_some())
        });
        self.run_until(limit, "all is received", |w| {
            w.machines.iter().filter(|m| m.is_running()).all(|m| m.node.frames_kept() == 0)
                && w.stragglers().is_empty()
        });
        self.check();
    }

    /// Checks what must hold at any time at which no work is left.
    pub(crate) fn check(&self) {
        for m in self.machines.iter().filter(|m| m.is_running()) {
            m.check_memory();
            let counters = m.node.group_counters(m.group);
            assert_eq!((counters.malformed, counters.foreign), (0, 0), "{counters:?}");
            assert!(counters.streams_refused == 0 || self.refuses, "{counters:?}");
        }
    }

    /// Subscriptions that have not got all that their live publishers sent.
    pub(crate) fn stragglers(&self) -> Vec<(usize, usize, String)> {
        let mut out = Vec::new();
        for (i, m) in self.machines.iter().enumerate().filter(|(_, m)| m.is_running()) {
            for (j, s) in m.subscribers.iter().enumerate().filter(|(_, s)| s.open) {
                for p in self.live_publishers_for(i) {
                    let truth = p.truth.borrow();
                    let wanted = s.config.topics.matches(&truth.topic)
                        && (truth.machine != i || s.config.own_messages);
                    if wanted && truth.sent > 0 && !s.follows.contains_key(&p.key) {
                        out.push((i, j, format!("it does not follow {:?}", p.key)));
                    }
                }
                for (key, f) in &s.follows {
                    let truth = f.truth.borrow();
                    let publisher = &self.machines[truth.machine];
                    let lives = publisher.is_running()
                        && publisher.publishers.iter().any(|p| p.key == *key)
                        && self.sides[truth.machine] == self.sides[i];
                    if lives && let Some(why) = f.lacks(truth.sent) {
                        out.push((i, j, why));
                    }
                }
            }
        }
        out
    }

    /// Publishers that machine `to` can hear.
    fn live_publishers_for(&self, to: usize) -> impl Iterator<Item = &Publisher> {
        let heard =
            move |(i, m): &(usize, &Machine)| m.is_running() && self.sides[*i] == self.sides[to];
        self.machines.iter().enumerate().filter(heard).flat_map(|(_, m)| &m.publishers)
    }

    pub(crate) fn describe(&self) -> String {
        let mut out = format!("at {:?}\n", self.now);
        for (i, m) in self.machines.iter().enumerate().take(12) {
            for p in &m.publishers {
                out += &format!("machine {i} publishes: {} {:?}\n", p.pushed(), p.stats);
            }
            for (info, stats) in m.node.streams(m.group) {
                out += &format!("machine {i} follows {:?}: {stats:?}\n", info.key);
            }
            for s in &m.subscribers {
                out += &format!("machine {i} got {} messages\n", s.messages());
            }
            out += &format!("machine {i}: {:?} due {:?}\n", m.state, m.due(self.now));
        }
        out += &format!("{:?}\nstragglers {:?}", self.traffic, self.stragglers().iter().take(5));
        out
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.rng.u64(..)
    }

    pub(crate) fn schedule(&mut self, at: Instant, what: What) {
        self.order += 1;
        self.happenings.push(Reverse(Happening { at, order: self.order, what }));
    }

    fn step(&mut self) {
        let Some(Reverse(first)) = self.happenings.pop() else { return };
        self.now = first.at;
        self.happen(first.what);
        while self.happenings.peek().is_some_and(|Reverse(h)| h.at == self.now) {
            let Reverse(next) = self.happenings.pop().expect("peeked");
            self.happen(next.what);
        }
        self.settle_touched();
    }

    fn settle_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for machine in touched.drain(..) {
            self.turn(machine);
        }
        self.touched = touched;
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Deliver { to, from, multicast, bytes } => {
                self.note(|| format!("deliver {to} from {:?} {}", from.qpn, brief(&bytes)));
                self.deliver(to, from, multicast, bytes);
            }
            What::Sent { machine, life, token, frame } => {
                let m = &mut self.machines[machine];
                if m.life != life || m.state == State::Dead {
                    return;
                }
                m.in_flight -= 1;
                if let FrameToken::Stream(_) = token {
                    m.streams_in_flight -= 1;
                }
                m.node.handle_sent(token, frame);
                self.touched.push(machine);
            }
            What::Wake { machine } => {
                let m = &mut self.machines[machine];
                if m.scheduled.is_some_and(|at| at <= self.now) {
                    m.scheduled = None;
                }
                self.touched.push(machine);
            }
            What::Serve { machine, life } => {
                if self.machines[machine].life == life {
                    self.machines[machine].serving = false;
                    self.serve(machine);
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, from: PeerAddr, multicast: bool, bytes: Rc<[u8]>) {
        let m = &mut self.machines[to];
        let frame = Received::new(bytes, &m.received);
        let room = m.srq.map_or(4096, |s| s.depth);
        match m.state {
            State::Dead | State::Paused { keep: false } => {}
            State::Paused { keep: true } => {
                if m.inbox.len() < room {
                    m.inbox.push_back((from, multicast, frame));
                }
            }
            State::Running if m.srq.is_none() => {
                self.handle(to, from, multicast, frame);
                self.touched.push(to);
            }
            State::Running => {
                if m.inbox.len() < room {
                    m.inbox.push_back((from, multicast, frame));
                } else {
                    let clock = m.clock(self.now);
                    m.node.handle_starvation(clock);
                }
                self.serve(to);
            }
        }
    }

    /// Lets a machine with a modelled receive queue take the next datagram from it.
    fn serve(&mut self, machine: usize) {
        let m = &mut self.machines[machine];
        let Some(srq) = m.srq else { return };
        if m.serving || !m.is_running() {
            return;
        }
        let Some((from, multicast, frame)) = m.inbox.pop_front() else { return };
        m.serving = true;
        let life = m.life;
        self.handle(machine, from, multicast, frame);
        self.touched.push(machine);
        self.schedule(self.now + srq.cost, What::Serve { machine, life });
    }

    fn handle(&mut self, to: usize, from: PeerAddr, multicast: bool, frame: Received) {
        let m = &mut self.machines[to];
        let clock = m.clock(self.now);
        m.node.handle_datagram(clock, m.group, from, multicast, frame);
        m.inputs += 1;
        m.drain_events(self.now);
    }

    /// What an engine does after inputs.
    fn turn(&mut self, index: usize) {
        let now = self.now;
        if !self.machines[index].is_running() {
            return;
        }
        let m = &mut self.machines[index];
        let clock = m.clock(now);
        m.node.handle_timeout(clock);
        m.inputs += 1;
        loop {
            let m = &mut self.machines[index];
            let mut acted = m.drain_events(now);
            acted |= m.run_applications(now);
            acted |= self.transmit(index);
            if !acted {
                break;
            }
        }
        let m = &mut self.machines[index];
        if let Some(due) = m.due(now) {
            assert!(due > now || !m.can_send(), "node {index} spins: {:?}", m.node);
            // What waits for the device is done when the device is.
            if due > now && m.scheduled.is_none_or(|at| at > due) {
                m.scheduled = Some(due);
                self.schedule(due, What::Wake { machine: index });
            }
        }
    }

    /// Takes what the node wants sent, as far as the device does.
    fn transmit(&mut self, index: usize) -> bool {
        let mut any = false;
        while self.machines[index].in_flight < crate::machine::SEND_DEPTH {
            let now = self.now;
            let m = &mut self.machines[index];
            let clock = m.clock(now);
            let Some(transmit) = m.node.poll_transmit(clock) else { break };
            assert_eq!(transmit.group, m.group);
            any = true;
            m.in_flight += 1;
            if let FrameToken::Stream(_) = transmit.token {
                m.streams_in_flight += 1;
            }
            let departs = m.line_free.max(now) + self.fabric.per_frame;
            m.line_free = departs;
            self.send(index, departs, transmit);
        }
        any
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{} {}", self.now.as_nanos(), line()));
        }
    }
}

pub(crate) fn brief(bytes: &[u8]) -> String {
    match Frame::new_checked(bytes) {
        Ok(f) => format!(
            "{} {}/{} {} bytes",
            f.header().kind.name(),
            f.header().stream,
            f.header().sequence,
            bytes.len()
        ),
        Err(e) => e.to_string(),
    }
}
