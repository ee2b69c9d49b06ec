//! Nodes on a fabric, driven by their deadlines alone.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use qcast_proto::addr::{Gid, NodeId, QKey, group_address};
use qcast_proto::buf::RxFrame;
use qcast_proto::membership::Profile;
use qcast_proto::node::{GroupId, NodeConfig, PublisherId, SubscriberId};
use qcast_proto::publish::{Closed, PublisherConfig, PushError};
use qcast_proto::subscribe::{Notice, SubscriberConfig};
use qcast_proto::time::{Duration, Instant};
use qcast_proto::wire::frame::Messages;

use crate::device::sim::{Fabric, FabricConfig, PortConfig, SimDevice};
use crate::device::{Device, QpId};
use crate::engine::event::NodeEvent;
use crate::engine::feed::FeedQueue;
use crate::engine::outlet::{Item, Patience, PublisherOutlet, SubscriberOutlet};
use crate::engine::{Engine, EngineConfig, GroupSetup, JoinOutcome};

pub(super) const MILLI: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) struct Rig {
    pub(super) fabric: Fabric,
    pub(super) nodes: Vec<Node>,
    pub(super) subscribers: Vec<Listener>,
    pub(super) publishers: Vec<Talker>,
    pub(super) now: Instant,
    seed: u64,
    /// The nodes of ports that were opened in place of others.
    later: Arc<Mutex<BTreeMap<usize, usize>>>,
}

pub(super) struct Node {
    pub(super) engine: Engine,
    events: Arc<FeedQueue<NodeEvent>>,
    due: Option<Instant>,
    pub(super) turns: u64,
    pub(super) paused: bool,
}

/// A subscription and its application.
pub(super) struct Listener {
    pub(super) node: usize,
    pub(super) id: SubscriberId,
    outlet: Arc<SubscriberOutlet>,
    /// Numbers of the messages that were taken.
    pub(super) got: Vec<u64>,
    pub(super) notices: Vec<Notice>,
    /// Whether the application keeps what it takes.
    pub(super) keeps: bool,
    /// Whether it takes nothing.
    pub(super) sleeps: bool,
    pub(super) kept: VecDeque<Item>,
}

/// A publisher and its application.
pub(super) struct Talker {
    pub(super) node: usize,
    pub(super) id: PublisherId,
    pub(super) outlet: Arc<PublisherOutlet>,
    pub(super) sent: u64,
}

impl Rig {
    pub(super) fn new(seed: u64) -> Self {
        Self::on(FabricConfig { latency: Duration::from_micros(20), ..Default::default() }, seed)
    }

    pub(super) fn on(config: FabricConfig, seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            fabric: Fabric::new(config, seed),
            nodes: Vec::new(),
            subscribers: Vec::new(),
            publishers: Vec::new(),
            now: Instant::ZERO,
            seed,
            later: Arc::default(),
        }
    }

    pub(super) fn add(&mut self) -> usize {
        self.add_with(PortConfig::default(), |_| {}, |device| Box::new(device))
    }

    /// A node on a port of its own, whose device may be wrapped.
    pub(super) fn add_with(
        &mut self,
        port: PortConfig,
        edit: impl FnOnce(&mut EngineConfig),
        wrap: impl FnOnce(SimDevice) -> Box<dyn Device>,
    ) -> usize {
        let index = self.nodes.len();
        let port = PortConfig { mtu: 1024, rate: Some(1_000_000_000), ..port };
        let device = self.fabric.open(port);
        assert_eq!(device.index(), index);
        let node = NodeConfig::new(NodeId(index as u128 + 1), 1, format!("node {index}"));
        let mut config = EngineConfig::new(node, self.seed * 1000 + index as u64);
        config.srq_depth = 256;
        edit(&mut config);
        let mut engine = Engine::new(self.now, wrap(device), config).unwrap();
        let events = engine.listen();
        self.nodes.push(Node { engine, events, due: Some(self.now), turns: 0, paused: false });
        index
    }

    /// Lets a node open its device anew when it has lost it, once `is_there`: as another port of the same address.
    pub(super) fn let_reopen(
        &mut self,
        node: usize,
        is_there: &Arc<AtomicBool>,
    ) -> Arc<AtomicUsize> {
        let attempts = Arc::new(AtomicUsize::new(0));
        let (counted, is_there) = (Arc::clone(&attempts), Arc::clone(is_there));
        let (fabric, later) = (self.fabric.clone(), Arc::clone(&self.later));
        let gid = self.nodes[node].engine.device().port().gid;
        self.nodes[node].engine.reopen_by(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            if !is_there.load(Ordering::Relaxed) {
                return Err("it is not there".into());
            }
            let port = PortConfig {
                mtu: 1024,
                rate: Some(1_000_000_000),
                gid: Some(gid),
                ..PortConfig::default()
            };
            let device = fabric.open(port);
            later.lock().insert(device.index(), node);
            Ok(Box::new(device))
        }));
        attempts
    }

    /// Takes a node's device away.
    pub(super) fn lose(&mut self, node: usize) {
        self.fabric.lose(self.port(node));
        self.touch(node);
    }

    /// The port that a node has now.
    pub(super) fn port(&self, node: usize) -> usize {
        let later = self.later.lock();
        later
            .iter()
            .filter(|(_, owner)| **owner == node)
            .map(|(port, _)| *port)
            .max()
            .unwrap_or(node)
    }

    /// What a node has told since it was last asked.
    pub(super) fn events(&mut self, node: usize) -> Vec<NodeEvent> {
        std::iter::from_fn(|| self.nodes[node].events.take(Patience::None)).collect()
    }

    pub(super) fn join(&mut self, node: usize, group: &str, secret: &str) -> GroupId {
        let ticket = self.start_join(node, group, secret, 10 * SECOND);
        let mut outcome = None;
        self.run_until("the join", 10 * SECOND, |rig| {
            outcome = rig.nodes[node].engine.take_joined(ticket);
            outcome.is_some()
        });
        outcome.unwrap().unwrap()
    }

    pub(super) fn start_join(
        &mut self,
        node: usize,
        group: &str,
        secret: &str,
        patience: Duration,
    ) -> u64 {
        let setup = GroupSetup {
            name: group.into(),
            mgid: mgid(group),
            qkey: QKey::derive(group, secret.as_bytes()),
            profile: Profile::default(),
        };
        self.touch(node);
        self.nodes[node].engine.start_join(setup, self.now + patience).unwrap()
    }

    pub(super) fn take_joined(&mut self, node: usize, ticket: u64) -> Option<JoinOutcome> {
        self.nodes[node].engine.take_joined(ticket)
    }

    pub(super) fn subscribe(&mut self, node: usize, group: GroupId) -> usize {
        self.subscribe_with(node, group, SubscriberConfig::default())
    }

    pub(super) fn subscribe_with(
        &mut self,
        node: usize,
        group: GroupId,
        config: SubscriberConfig,
    ) -> usize {
        let (id, outlet) =
            self.nodes[node].engine.open_subscriber(self.now, group, config).unwrap();
        self.touch(node);
        self.subscribers.push(Listener {
            node,
            id,
            outlet,
            got: Vec::new(),
            notices: Vec::new(),
            keeps: false,
            sleeps: false,
            kept: VecDeque::new(),
        });
        self.subscribers.len() - 1
    }

    pub(super) fn publisher(&mut self, node: usize, group: GroupId) -> usize {
        self.publisher_with(node, group, PublisherConfig::default())
    }

    pub(super) fn publisher_with(
        &mut self,
        node: usize,
        group: GroupId,
        config: PublisherConfig,
    ) -> usize {
        let (id, outlet) = self.nodes[node].engine.open_publisher(self.now, group, config).unwrap();
        self.touch(node);
        self.publishers.push(Talker { node, id, outlet, sent: 0 });
        self.publishers.len() - 1
    }

    /// One publisher on node 0 and a subscriber on each of the next `n` nodes, all known to each other.
    pub(super) fn meet(&mut self, n: usize) {
        let groups: Vec<GroupId> = (0..=n).map(|node| self.join(node, "g", "s")).collect();
        for (node, group) in groups.iter().enumerate().skip(1) {
            self.subscribe(node, *group);
        }
        self.publisher(0, groups[0]);
        self.wait_for(0, n);
    }

    /// Waits until a publisher knows `n` subscribers.
    pub(super) fn wait_for(&mut self, publisher: usize, n: usize) {
        self.run_until("all are known", 10 * SECOND, |rig| rig.receivers(publisher) == n);
    }

    pub(super) fn receivers(&mut self, publisher: usize) -> usize {
        let Talker { node, id, .. } = self.publishers[publisher];
        self.nodes[node].engine.receivers(id).len()
    }

    /// Publishes `n` numbered messages, each as large as fits a frame, as room comes free.
    pub(super) fn publish(&mut self, publisher: usize, n: u64) {
        let end = self.publishers[publisher].sent + n;
        self.run_until("everything is published", 60 * SECOND, |rig| {
            rig.push(publisher, end);
            rig.publishers[publisher].sent == end
        });
    }

    /// Publishes up to message `end` as far as there is room now.
    pub(super) fn push(&mut self, publisher: usize, end: u64) {
        let talker = &mut self.publishers[publisher];
        let before = talker.sent;
        let mut outbox = talker.outlet.outbox.lock();
        let mut message = vec![0x5a; outbox.max_whole()];
        while talker.sent < end {
            message[..8].copy_from_slice(&talker.sent.to_be_bytes());
            match outbox.push(&message) {
                Ok(()) => talker.sent += 1,
                Err(PushError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(outbox);
        if talker.sent > before {
            talker.outlet.dirty.store(true, Ordering::Release);
            let node = talker.node;
            self.touch(node);
        }
    }

    /// Runs until every subscriber has every message of the only publisher.
    pub(super) fn settle(&mut self) {
        let sent = self.publishers[0].sent;
        self.run_until("everything is delivered", 60 * SECOND, |rig| {
            rig.subscribers.iter().all(|s| s.got.len() as u64 >= sent)
        });
        self.assert_all_in_order();
    }

    /// Every subscriber has what the only publisher published, once, in order, with no loss.
    pub(super) fn assert_all_in_order(&self) {
        let expected: Vec<u64> = (0..self.publishers[0].sent).collect();
        for (index, s) in self.subscribers.iter().enumerate() {
            assert_eq!(s.got, expected, "subscriber {index}: {:?}", s.notices);
            assert_eq!(s.losses(), 0, "subscriber {index}: {:?}", s.notices);
        }
    }

    /// Starts to close a publisher and waits until it is closed.
    pub(super) fn close(&mut self, publisher: usize) -> Closed {
        let Talker { node, id, .. } = self.publishers[publisher];
        self.nodes[node].engine.close_publisher(id);
        self.touch(node);
        let mut closed = None;
        self.run_until("the publisher is closed", 60 * SECOND, |rig| {
            closed = rig.publishers[publisher].outlet.report.lock().closed.clone();
            closed.is_some()
        });
        closed.unwrap()
    }

    /// Gives a node a turn with the next step.
    pub(super) fn touch(&mut self, node: usize) {
        self.nodes[node].due = Some(self.now);
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.next().filter(|at| *at <= end) {
            self.step_to(at);
        }
        self.step_to(end);
    }

    pub(super) fn run_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next();
            match next {
                Some(at) if at <= end => self.step_to(at),
                _ => panic!("{what}: not by {end:?}; next is {next:?}, now {:?}", self.now),
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let turns = self.nodes.iter().filter(|n| !n.paused).filter_map(|n| n.due);
        turns.chain(self.fabric.next_event()).min()
    }

    fn step_to(&mut self, at: Instant) {
        self.now = self.now.max(at);
        let mut ready = Vec::new();
        self.fabric.step_to(self.now, &mut ready);
        for port in ready {
            let later = self.later.lock().get(&port).copied();
            self.touch(later.unwrap_or(port));
        }
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.paused || node.due.is_none_or(|due| due > self.now) {
                continue;
            }
            let turn = node.engine.turn(self.now);
            node.turns += 1;
            // A turn takes a while.
            let soonest = self.now + Duration::from_micros(1);
            let next = if turn.more { Some(soonest) } else { turn.next };
            node.due = next.map(|at| at.max(soonest));
        }
        for index in 0..self.subscribers.len() {
            if self.subscribers[index].take() {
                let node = self.subscribers[index].node;
                self.touch(node);
            }
        }
    }

    /// Where a node's receive buffers are must add up at any time; frees are included.
    pub(super) fn assert_buffers(&self, node: usize) {
        let [posted, on_loan, free, capacity] = self.nodes[node].engine.buffers();
        let port = self.fabric.accounting(self.port(node)).unwrap();
        assert_eq!(
            posted + on_loan + free + port.in_completion,
            capacity,
            "node {node}: {posted} posted, {on_loan} on loan, {free} free, {port:?}"
        );
    }

    /// Everything is back where it came from.
    pub(super) fn assert_clean(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            self.assert_buffers(index);
            let [_, on_loan, ..] = node.engine.buffers();
            let port = self.fabric.accounting(self.port(index)).unwrap();
            let sends = port.sends_posted + port.sends_in_completion;
            let left = (on_loan, sends, node.engine.frames_kept(), node.engine.control_frames());
            assert_eq!(left, (0, 0, 0, 64), "node {index}");
        }
    }

    /// A node's only queue pair, as the device knows it.
    pub(super) fn qp(&self, node: usize) -> QpId {
        let group = self.nodes[node].engine.groups.values().next().unwrap();
        group.attached.unwrap()
    }
}

impl Listener {
    /// Takes what there is; whether the engine wants a turn because of it.
    fn take(&mut self) -> bool {
        if self.sleeps {
            return false;
        }
        let mut items = VecDeque::new();
        self.outlet.take(&mut items, Patience::None);
        let mut wanted = false;
        for item in items {
            if self.keeps {
                self.kept.push_back(item);
                continue;
            }
            wanted |= self.consume(item);
        }
        wanted
    }

    /// The application is done with everything that it kept.
    pub(super) fn let_go(&mut self) {
        self.keeps = false;
        while let Some(item) = self.kept.pop_front() {
            self.consume(item);
        }
    }

    fn consume(&mut self, item: Item) -> bool {
        match &item {
            Item::Frame { frame, .. } => {
                self.got.extend(Messages::of_checked(frame.bytes()).map(number));
            }
            Item::Message { message, .. } => self.got.push(number(message)),
            Item::Notice(notice) => self.notices.push(notice.clone()),
        }
        let weight = item.weight();
        drop(item);
        weight > 0 && self.outlet.done(weight, 0)
    }

    pub(super) fn losses(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Notice::Lost { .. })).count()
    }
}

fn number(message: &[u8]) -> u64 {
    assert!(message[8..].iter().all(|byte| *byte == 0x5a), "a message is damaged");
    u64::from_be_bytes(message[..8].try_into().unwrap())
}

pub(super) fn mgid(group: &str) -> Gid {
    Gid::from(IpAddr::V4(group_address(group)))
}
