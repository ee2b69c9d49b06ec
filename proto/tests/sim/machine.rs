//! One node with its device's queues and its applications.

use std::collections::VecDeque;
use std::time::Duration;

use qcast_proto::addr::PeerAddr;
use qcast_proto::node::{Event, GroupId, Node, NodeConfig};
use qcast_proto::time::Instant;

use crate::buffers::{Living, Received, Slot};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;

/// A node and what is around it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) node: Node<Slot, Received>,
    pub(crate) config: NodeConfig,
    pub(crate) group: GroupId,
    pub(crate) address: PeerAddr,
    pub(crate) publishers: Vec<Publisher>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) state: State,
    /// Counts the lives of a machine that is restarted.
    pub(crate) life: u32,
    pub(crate) inbox: VecDeque<(PeerAddr, bool, Received)>,
    /// Its receive queue, if it is to be modelled.
    pub(crate) srq: Option<Srq>,
    pub(crate) serving: bool,
    pub(crate) in_flight: usize,
    pub(crate) streams_in_flight: usize,
    pub(crate) line_free: Instant,
    pub(crate) scheduled: Option<Instant>,
    pub(crate) received: Living,
    pub(crate) control: Living,
    /// Its clock is ahead of the world's: no two nodes agree on the time.
    pub(crate) clock_ahead: Duration,
    pub(crate) repaired: Vec<Duration>,
    /// Counts what the node was given: what it says in answer to one thing belongs together.
    pub(crate) inputs: u64,
}

/// Whether a machine does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Stopped as by SIGSTOP. Datagrams wait in its receive queue, or are lost.
    Paused {
        keep: bool,
    },
    Dead,
}

/// A receive queue that can run dry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Srq {
    pub(crate) depth: usize,
    /// What handling one datagram takes.
    pub(crate) cost: Duration,
}

/// The group that all are in.
pub(crate) const GROUP: &str = "sim";

/// Control frames that a node is given.
pub(crate) const CONTROL_FRAMES: usize = 16;

/// Frames that a device takes at once.
pub(crate) const SEND_DEPTH: usize = 64;

impl Machine {
    pub(crate) fn new(
        now: Instant,
        config: NodeConfig,
        address: PeerAddr,
        seed: u64,
        clock_ahead: Duration,
    ) -> Self {
        let (node, group, control) = start(now + clock_ahead, &config, address, seed);
        Self {
            node,
            config,
            group,
            address,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            state: State::Running,
            life: 0,
            inbox: VecDeque::new(),
            srq: None,
            serving: false,
            in_flight: 0,
            streams_in_flight: 0,
            line_free: now,
            scheduled: None,
            received: Living::default(),
            control,
            clock_ahead,
            repaired: Vec::new(),
            inputs: 0,
        }
    }

    /// Begins another life, with nothing of the one before.
    pub(crate) fn restart(&mut self, now: Instant, seed: u64) {
        self.config.incarnation += 1;
        let (node, group, control) =
            start(now + self.clock_ahead, &self.config, self.address, seed);
        (self.node, self.group, self.control) = (node, group, control);
        self.publishers.clear();
        self.subscribers.clear();
        self.inbox.clear();
        self.state = State::Running;
        self.life += 1;
        (self.in_flight, self.streams_in_flight) = (0, 0);
        self.scheduled = None;
        self.serving = false;
    }

    pub(crate) fn clock(&self, now: Instant) -> Instant {
        now + self.clock_ahead
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Hands events to the applications; says whether there were any.
    pub(crate) fn drain_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.node.poll_event() {
            any = true;
            match event {
                Event::Frame { subscriber, key, sequence, frame } => {
                    self.subscriber(subscriber).push_frame(key, sequence, frame);
                }
                Event::Message { subscriber, key, sequence, message } => {
                    self.subscriber(subscriber).push_message(key, sequence, message);
                }
                Event::Notice { subscriber, notice } => {
                    let inputs = self.inputs;
                    self.subscriber(subscriber).push_notice(notice, inputs);
                }
                Event::Publisher { publisher, event } => {
                    let at = self.publishers.iter().position(|p| p.id == publisher);
                    self.publishers[at.expect("it was opened here")].note(now, event);
                }
                Event::Repaired { waited } => self.repaired.push(waited),
                other => panic!("an unknown event: {other:?}"),
            }
        }
        any
    }

    /// Gives every application its turn; says whether one did anything.
    pub(crate) fn run_applications(&mut self, now: Instant) -> bool {
        let mut acted = false;
        for s in &mut self.subscribers {
            acted |= s.run(now, &mut self.node);
        }
        for p in &mut self.publishers {
            acted |= p.run(now, &mut self.node);
        }
        acted
    }

    /// When it must have a turn again, in the world's time.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let node = self.node.poll_timeout().map(|t| (t - self.clock_ahead).max(now));
        let publishers = self.publishers.iter().filter_map(|p| p.due(now));
        let subscribers = self.subscribers.iter().filter_map(|s| s.due(now));
        node.into_iter().chain(publishers).chain(subscribers).min()
    }

    /// Whether the device would take a frame, and the node has one for every kind of word.
    pub(crate) fn can_send(&self) -> bool {
        self.in_flight < SEND_DEPTH && self.in_flight - self.streams_in_flight < CONTROL_FRAMES
    }

    /// Memory is where it belongs.
    pub(crate) fn check_memory(&self) {
        let waiting: usize = self.subscribers.iter().map(Subscriber::waiting).sum();
        let kept = self.node.frames_kept();
        let bound = self.config.receive_window * self.node.streams(self.group).len().max(1) + 64;
        assert!(kept <= bound, "{kept} frames are kept");
        let held = self.received.count();
        assert!(held <= kept + waiting + self.inbox.len(), "{held} received frames, {kept} kept");
        assert_eq!(self.control.count(), CONTROL_FRAMES, "control frames were dropped");
        for p in &self.publishers {
            p.check_frames(self.streams_in_flight);
        }
    }

    fn subscriber(&mut self, id: qcast_proto::node::SubscriberId) -> &mut Subscriber {
        self.subscribers.iter_mut().find(|s| s.id == id).expect("it was opened here")
    }
}

fn start(
    now: Instant,
    config: &NodeConfig,
    address: PeerAddr,
    seed: u64,
) -> (Node<Slot, Received>, GroupId, Living) {
    let mut node = Node::new(now, config.clone(), seed);
    let control = Living::default();
    node.supply((0..CONTROL_FRAMES).map(|_| Slot::new(1024, &control)));
    let group = node.join(now, GROUP, address);
    (node, group, control)
}
