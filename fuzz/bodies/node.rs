//! Drives a whole node by operations that the bytes say: its own application, its device, time, and
//! peers that send anything.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{Gid, NodeId, PeerAddr, Qpn, Sequence, SessionId, StreamId};
use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::node::{FrameToken, GroupId, Node, NodeConfig, PublisherId, SubscriberId};
use qcast_proto::publish::{FlowPolicy, Outbox, PublisherConfig};
use qcast_proto::subscribe::{Reliability, Start, SubscriberConfig};
use qcast_proto::time::Instant;
use qcast_proto::wire::control::{Announce, Gone, Heartbeat, Nak, Released, Status, encode};
use qcast_proto::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind};

/// Frames of the publisher, and of the control pool.
const FRAMES: usize = 48;
const CONTROL: usize = 4;
const WINDOW: usize = 24;
const RECEIVE_WINDOW: usize = 32;
const MTU: usize = 512;
const MAX_STREAMS: usize = 12;

/// Panics if the node does, if it loses or keeps a frame, or if it has no end of something to do.
pub(crate) fn run(data: &[u8]) {
    let mut d = Driver::new();
    let mut input = Input(data);
    while !input.0.is_empty() {
        d.operation(&mut input);
        d.settle();
        d.check();
    }
    // Whatever was said, silence ends it: no frame that was received is kept.
    d.complete(usize::MAX);
    for _ in 0..400 {
        d.now += Duration::from_millis(100);
        d.node.handle_timeout(d.now);
        d.settle();
        d.complete(usize::MAX);
    }
    d.check();
    assert_eq!(d.node.frames_kept(), 0);
}

/// Bytes that say what happens; after the last one, zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    fn u64(&mut self) -> u64 {
        (0..8).fold(0, |n, _| n << 8 | u64::from(self.u8()))
    }

    /// A number near `around`, a small one, or any.
    fn number(&mut self, around: u64) -> u64 {
        match self.u8() {
            n @ 0..=127 => around.saturating_add(u64::from(n)).saturating_sub(40),
            n @ 128..=191 => u64::from(n - 128),
            192..=223 => self.u64(),
            n => u64::MAX - u64::from(n - 224),
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.u8()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }
}

struct Driver {
    now: Instant,
    node: Node<HeapFrame, Rc<[u8]>>,
    group: GroupId,
    address: PeerAddr,
    header: FrameHeader,
    publisher: PublisherId,
    outbox: Outbox<HeapFrame>,
    subscribers: Vec<SubscriberId>,
    in_flight: VecDeque<(FrameToken, HeapFrame)>,
    /// The last frames that the node sent.
    sent: VecDeque<Vec<u8>>,
    closed: bool,
}

fn address(n: u8) -> PeerAddr {
    PeerAddr { gid: Gid::from_bytes([n; 16]), qpn: Qpn::new(n.into()), udp_port: 4791 }
}

impl Driver {
    fn new() -> Self {
        let now = Instant::ZERO;
        let mut config = NodeConfig::new(NodeId(1), 5, "fuzzed");
        config.receive_window = RECEIVE_WINDOW;
        config.max_streams = MAX_STREAMS;
        config.max_streams_per_peer = MAX_STREAMS / 2;
        config.max_unknown_per_peer = 2;
        let mut node = Node::new(now, config, 7);
        node.supply((0..CONTROL).map(|_| HeapFrame::new(MTU)));
        let group = node.join("g", address(1));
        let mut config = PublisherConfig::default();
        config.window = WINDOW;
        config.max_receivers = 8;
        config.policy = FlowPolicy::Slowest;
        let (publisher, header) = node.open_publisher(now, group, config).expect("joined");
        let frames = (0..FRAMES).map(|_| HeapFrame::new(MTU)).collect();
        let mut driver = Self {
            now,
            node,
            group,
            address: address(1),
            header,
            publisher,
            outbox: Outbox::new(header, MTU, frames),
            subscribers: Vec::new(),
            in_flight: VecDeque::new(),
            sent: VecDeque::new(),
            closed: false,
        };
        for n in 0..4 {
            driver.subscribe(n);
        }
        driver
    }

    fn subscribe(&mut self, n: u8) {
        let mut config = SubscriberConfig::default();
        config.reliability = match n % 4 {
            0 => Reliability::Ordered,
            1 => Reliability::Unordered,
            2 => Reliability::BestEffort,
            _ => Reliability::Latest,
        };
        config.queue = 16;
        config.own_messages = n.is_multiple_of(3);
        config.start = if n.is_multiple_of(5) { Start::History(10) } else { Start::Live };
        let id = self.node.open_subscriber(self.now, self.group, config).expect("joined");
        self.subscribers.push(id);
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 => self.pass(Duration::from_micros(input.u8().into())),
            1 => self.pass(Duration::from_millis(u64::from(input.u8()) * 20)),
            2 => {
                let len = usize::from(input.u8()) * 11;
                for _ in 0..input.u8() % 16 {
                    let _ = self.outbox.push(&vec![3; len]);
                }
            }
            3 => {
                let len = usize::from(input.u8());
                if let Ok(room) = self.outbox.claim(len) {
                    room.fill(9);
                    self.outbox.commit(usize::from(input.u8()));
                }
            }
            4 => self.raw(input),
            5 | 6 => self.data(input),
            7 | 8 => self.control(input),
            9 => self.echo(input),
            10 => {
                let room = usize::from(input.u8() % 20);
                let which = usize::from(input.u8());
                if let Some(id) = self.subscribers.get(which % self.subscribers.len().max(1)) {
                    self.node.set_room(*id, room);
                }
            }
            11 => {
                let n = input.u8();
                if n.is_multiple_of(2) && self.subscribers.len() < 8 {
                    self.subscribe(n / 2);
                } else if !self.subscribers.is_empty() {
                    let at = usize::from(n / 2) % self.subscribers.len();
                    let id = self.subscribers.remove(at);
                    self.node.close_subscriber(self.now, id);
                }
            }
            12 => self.complete(usize::from(input.u8())),
            13 => self.node.handle_starvation(self.now),
            14 => {
                if input.u8() == 77 {
                    self.node.close_publisher(self.now, self.publisher);
                    self.closed = true;
                }
            }
            _ => {
                self.address = address(1 + input.u8() % 2);
                self.node.readdress(self.now, self.group, self.address);
                self.node.set_headroom(usize::from(input.u8()));
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.node.handle_timeout(self.now);
    }

    /// One of a few peers, or the node itself.
    fn peer(&self, input: &mut Input<'_>) -> PeerAddr {
        match input.u8() % 6 {
            0 => self.address,
            n => address(10 + n),
        }
    }

    /// A header of the node's own stream, or of one of a few others.
    fn header(&self, input: &mut Input<'_>, kind: FrameKind) -> FrameHeader {
        let n = input.u8();
        let session =
            if n.is_multiple_of(4) { self.header.session } else { SessionId((n % 16).into()) };
        let stream = StreamId(u32::from(n / 128));
        FrameHeader { kind, session, stream, sequence: Sequence(0), ..self.header }
    }

    fn deliver(&mut self, input: &mut Input<'_>, header: FrameHeader, body: &[u8]) {
        let mut bytes = vec![0; FRAME_HEADER];
        header.emit(&mut bytes);
        bytes.extend_from_slice(body);
        let (from, multicast) = (self.peer(input), input.bool());
        self.node.handle_datagram(self.now, self.group, from, multicast, bytes.into());
    }

    fn raw(&mut self, input: &mut Input<'_>) {
        let (from, multicast) = (self.peer(input), input.bool());
        let mut bytes = input.bytes().to_vec();
        if input.bool() {
            let kind = FrameKind::from_number(1 + input.u8() % 9).expect("there are nine");
            let mut header = [0; FRAME_HEADER];
            self.header(input, kind).emit(&mut header);
            bytes.splice(..0, header);
        }
        self.node.handle_datagram(self.now, self.group, from, multicast, bytes.into());
    }

    fn data(&mut self, input: &mut Input<'_>) {
        let sequence = Sequence(input.number(40));
        if input.bool() {
            let header = FrameHeader { sequence, ..self.header(input, FrameKind::Data) };
            let body = input.bytes();
            let len = u16::try_from(body.len()).expect("short").to_be_bytes();
            self.deliver(input, header, &[&len, body].concat());
        } else {
            let header = FrameHeader { sequence, ..self.header(input, FrameKind::Fragment) };
            let pieces = u32::from(input.u8() % 8) + 1;
            let index = u32::from(input.u8()) % (pieces + 1);
            let odd = u32::from(input.u8() / 250);
            let words = [pieces * 10 - odd, index * 10 + odd, index];
            let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            body.resize(body.len() + 10, 7);
            self.deliver(input, header, &body);
        }
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let kind = FrameKind::from_number(3 + input.u8() % 7).expect("there are nine");
        let header = self.header(input, kind);
        let mut out = [0; MTU];
        let beat = Heartbeat {
            next: input.number(40),
            oldest: input.number(20),
            stamp: input.u8().into(),
            rtt_us: input.number(100) as u32,
            receivers: input.number(2) as u32,
            losers: input.number(2) as u32,
            window: input.number(2) as u32,
            wanted: input.bool(),
            end: input.u8().is_multiple_of(8),
        };
        let node = u128::from(input.u8() % 8);
        let len = match kind {
            FrameKind::Heartbeat => encode(&beat, &mut out),
            FrameKind::Announce => {
                let mut address = self.peer(input);
                if input.bool() {
                    address.udp_port = 1;
                }
                let announce = Announce {
                    node,
                    incarnation: u64::from(input.u8() % 4),
                    name: "n".into(),
                    topic: ["", "a"][usize::from(input.u8() % 2)].into(),
                    address: address.into(),
                    age_us: input.number(1000),
                    heartbeat: beat,
                    first: false,
                };
                let len = encode(&announce, &mut out);
                // From the place that it says, so that it is believed.
                let mut bytes = vec![0; FRAME_HEADER];
                header.emit(&mut bytes);
                bytes.extend_from_slice(&out[..len.unwrap_or(0)]);
                self.node.handle_datagram(self.now, self.group, address, true, bytes.into());
                return;
            }
            FrameKind::Status => encode(
                &Status {
                    node,
                    incarnation: u64::from(input.u8() % 3),
                    at: input.number(self.now.as_micros()),
                    next: beat.next,
                    edge: beat.oldest,
                    lost: input.number(0),
                    missing: input.number(0),
                    echo: input.bool().then_some(beat.stamp),
                    held_us: beat.rtt_us,
                    reliable: input.bool(),
                    leaving: input.u8().is_multiple_of(8),
                    ended: input.bool(),
                    ..Status::default()
                },
                &mut out,
            ),
            FrameKind::Nak => {
                let pair = |input: &mut Input<'_>| (input.u8() as u32, input.number(9) as u32);
                let runs = (0..input.u8() % 50).map(|_| pair(input)).collect();
                encode(&Nak { base: beat.next, runs, local: input.bool() }, &mut out)
            }
            FrameKind::Gone => encode(&Gone { oldest: beat.oldest }, &mut out),
            FrameKind::Released => encode(&Released { node, waited_ms: 1 }, &mut out),
            _ => Ok(0),
        };
        self.deliver(input, header, &out[..len.unwrap_or(0)]);
    }

    /// A frame of the node's own comes back, changed or not.
    fn echo(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.u8());
        let (at, xor) = (usize::from(input.u8()), input.u8());
        if self.sent.is_empty() {
            return;
        }
        let mut bytes = self.sent[which % self.sent.len()].clone();
        let len = bytes.len();
        bytes[at % len] ^= xor;
        let (from, multicast) = (self.peer(input), input.bool());
        self.node.handle_datagram(self.now, self.group, from, multicast, bytes.into());
    }

    /// The device is done with so many frames.
    fn complete(&mut self, frames: usize) {
        for _ in 0..frames.min(self.in_flight.len()) {
            let (token, frame) = self.in_flight.pop_front().expect("there are as many");
            self.node.handle_sent(token, frame);
        }
        self.settle();
    }

    /// Does what an engine does after an input; the device takes all that it is given.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1_000, "no end of work");
            let mut acted = false;
            self.node.handle_timeout(self.now);
            let mut freed = Vec::new();
            self.node.take_freed(self.publisher, &mut freed);
            self.outbox.refill(freed);
            if !self.closed {
                self.outbox.seal();
                while self.node.publisher_room(self.publisher) > 0
                    && let Some(frame) = self.outbox.take()
                {
                    self.node.publish(self.publisher, frame);
                    acted = true;
                }
            }
            for n in 0.. {
                assert!(n < 10_000, "no end of frames");
                let Some(t) = self.node.poll_transmit(self.now) else { break };
                assert!(t.frame.bytes().len() <= MTU);
                self.sent.truncate(20);
                self.sent.push_front(t.frame.bytes().to_vec());
                self.in_flight.push_back((t.token, t.frame));
                acted = true;
            }
            for n in 0.. {
                assert!(n < 100_000, "no end of events");
                if self.node.poll_event().is_none() {
                    break;
                }
            }
            if !acted {
                break;
            }
        }
        let _ = (self.node.hold(self.publisher), self.node.receivers(self.publisher));
        // All that was due has been done, unless it waits for a frame that the device holds.
        if self.node.control_frames() > 0 {
            let due = self.node.poll_timeout();
            assert!(due.is_none_or(|due| due > self.now), "it spins: {:?}", self.node);
        }
    }

    fn check(&self) {
        let control =
            self.in_flight.iter().filter(|(token, _)| *token == FrameToken::Control).count();
        assert_eq!(self.node.control_frames() + control, CONTROL);
        let kept = self.node.frames_kept();
        assert!(kept <= MAX_STREAMS * RECEIVE_WINDOW.max(64), "{kept} frames are kept");
        assert!(self.node.streams(self.group).len() <= MAX_STREAMS);
    }
}
