//! Two nodes, their applications, the medium between them, and a stranger on it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use qcast::proto::addr::{
    Domain, Gid, GroupTag, NodeId, PeerAddr, Qpn, Sequence, SessionId, StreamId,
};
use qcast::proto::buf::{HeapFrame, TxFrame};
use qcast::proto::membership::MembershipConfig;
use qcast::proto::node::{Event, GroupId, Node, NodeConfig, PublisherId, SubscriberId, To};
use qcast::proto::publish::{FlowPolicy, Outbox, PublisherConfig};
use qcast::proto::subscribe::{Notice, Reliability, Start, SubscriberConfig, TopicPattern};
use qcast::proto::time::Instant;
use qcast::proto::wire::control::{
    self, Announce, Gone, Heartbeat, MAX_BODY, Nak, Released, Status,
};
use qcast::proto::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind};
use qcast::proto::wire::member;

use super::operations::{Input, Operation};

const MTU: usize = 512;
const CONTROL_FRAMES: usize = 6;
/// Streams that a node follows, of all peers together.
const MAX_STREAMS: usize = 8;
const RECEIVE_WINDOW: usize = 32;
/// Frames that a node may keep of a stream: of one that is described, and of one that is not.
const MAX_KEPT: usize = MAX_STREAMS * 64;
const MAX_RECEIVERS: usize = 4;
const MAX_HANDLES: usize = 4;
/// Datagrams on their way at once, and ones that are kept to be repeated.
const MAX_IN_FLIGHT: usize = 4096;
const MAX_EARLIER: usize = 64;
/// What one turn may send, and how many turns one step of time may take: far above what is right.
const MAX_SENT: usize = 20_000;
const MAX_TURNS: usize = 5_000;

const KINDS: [FrameKind; 13] = [
    FrameKind::Data,
    FrameKind::Fragment,
    FrameKind::Heartbeat,
    FrameKind::Announce,
    FrameKind::Query,
    FrameKind::Status,
    FrameKind::Nak,
    FrameKind::Gone,
    FrameKind::Released,
    FrameKind::Beacon,
    FrameKind::Probe,
    FrameKind::Roster,
    FrameKind::Digest,
];
const RELIABILITIES: [Reliability; 4] =
    [Reliability::Ordered, Reliability::Unordered, Reliability::BestEffort, Reliability::Latest];

/// A datagram on its way.
#[derive(Clone)]
struct Datagram {
    to: usize,
    from: PeerAddr,
    multicast: bool,
    bytes: Rc<[u8]>,
}

struct Open {
    id: PublisherId,
    header: FrameHeader,
    outbox: Outbox<HeapFrame>,
    frames: usize,
    closing: bool,
}

struct Side {
    node: Node<HeapFrame, Rc<[u8]>>,
    group: GroupId,
    address: PeerAddr,
    publishers: Vec<Open>,
    subscribers: Vec<SubscriberId>,
}

pub(super) struct Pair {
    now: Instant,
    sides: [Side; 2],
    in_flight: VecDeque<Datagram>,
    earlier: VecDeque<Datagram>,
    /// A session that was seen, and those of liars.
    sessions: Vec<FrameHeader>,
}

fn addr(n: usize) -> PeerAddr {
    let mut gid = [0; 16];
    gid[15] = n as u8;
    PeerAddr { gid: Gid::from_bytes(gid), qpn: Qpn::new(n as u32 + 17), udp_port: 4791 }
}

impl Side {
    fn new(n: usize, seed: u64) -> Self {
        let mut config = NodeConfig::new(NodeId(n as u128 + 1), 5, format!("node-{n}"));
        config.receive_window = RECEIVE_WINDOW;
        config.max_streams = MAX_STREAMS;
        config.max_streams_per_peer = 4;
        config.max_unknown_per_peer = 2;
        config.backlog = 64;
        config.membership = Some(MembershipConfig::default());
        let mut node = Node::new(Instant::ZERO, config, seed + n as u64);
        node.supply((0..CONTROL_FRAMES).map(|_| HeapFrame::new(MTU)));
        let group = node.join(Instant::ZERO, "g", addr(n));
        Self { node, group, address: addr(n), publishers: Vec::new(), subscribers: Vec::new() }
    }

    /// Moves frames from the applications to the node and back.
    fn fill(&mut self) {
        for p in &mut self.publishers {
            loop {
                let mut freed = Vec::new();
                self.node.take_freed(p.id, &mut freed);
                let none = freed.is_empty();
                p.outbox.refill(freed);
                p.outbox.seal();
                let mut published = false;
                while p.outbox.sealed() > 0 && self.node.publisher_room(p.id) > 0 {
                    let frame = p.outbox.take().expect("one is sealed");
                    self.node.publish(p.id, frame);
                    published = true;
                }
                if none && !published {
                    break;
                }
            }
        }
    }

    /// What must hold after every turn.
    fn check(&mut self) {
        assert_eq!(self.node.control_frames(), CONTROL_FRAMES, "control frames come back");
        assert!(self.node.frames_kept() <= MAX_KEPT, "{} kept", self.node.frames_kept());
        assert!(self.node.streams(self.group).len() <= MAX_STREAMS);
        let _ = (self.node.stream_totals(self.group), self.node.group_counters(self.group));
        for p in &mut self.publishers {
            let stats = self.node.publisher_stats(p.id).expect("it is open");
            let at_hand = p.outbox.free() + p.outbox.sealed() + usize::from(p.outbox.is_open());
            assert_eq!(stats.retained + at_hand, p.frames, "no frame is lost or made");
            assert!(stats.receivers <= MAX_RECEIVERS);
            assert!(stats.confirmed <= stats.head);
            assert!(self.node.receivers(p.id).iter().all(|(_, r)| r.next <= stats.head));
            let _ = (self.node.hold(p.id), self.node.is_sent(p.id));
        }
    }
}

impl Pair {
    pub(super) fn new(input: &mut Input<'_>) -> Self {
        let seed = input.byte().into();
        Self {
            now: Instant::from_millis(1),
            sides: [Side::new(0, seed), Side::new(1, seed)],
            in_flight: VecDeque::new(),
            earlier: VecDeque::new(),
            sessions: vec![FrameHeader {
                kind: FrameKind::Data,
                domain: Domain(0),
                group: GroupTag::of("g"),
                stream: StreamId(0),
                session: SessionId(0xbad),
                sequence: Sequence(0),
            }],
        }
    }

    pub(super) fn apply(&mut self, operation: Operation, input: &mut Input<'_>) {
        match operation {
            Operation::Pass => {
                let time = Duration::from_micros(1 << (input.byte() % 26));
                self.pass(time);
            }
            Operation::Sleep => self.now += Duration::from_millis(40 * u64::from(input.byte())),
            Operation::Publish => self.publish(input),
            Operation::OpenPublisher => self.open_publisher(input),
            Operation::ClosePublisher => {
                let now = self.now;
                let side = &mut self.sides[input.below(2)];
                if let Some(p) = side.publishers.first_mut() {
                    p.closing = true;
                    side.node.close_publisher(now, p.id);
                }
            }
            Operation::RemovePublisher => {
                let side = &mut self.sides[input.below(2)];
                if !side.publishers.is_empty() {
                    let p = side.publishers.remove(0);
                    side.node.remove_publisher(p.id);
                }
            }
            Operation::OpenSubscriber => self.open_subscriber(input),
            Operation::CloseSubscriber => {
                let now = self.now;
                let side = &mut self.sides[input.below(2)];
                if !side.subscribers.is_empty() {
                    let id = side.subscribers.remove(0);
                    side.node.close_subscriber(now, id);
                }
            }
            Operation::Room => {
                let room = input.number(16) as usize;
                let side = &mut self.sides[input.below(2)];
                if let Some(id) = side.subscribers.last() {
                    side.node.set_room(*id, room);
                }
                side.node.set_headroom(room);
            }
            Operation::Starve => {
                let now = self.now;
                self.sides[input.below(2)].node.handle_starvation(now);
            }
            Operation::Readdress => {
                let n = input.below(2);
                let address = addr(n + 2 * input.below(3));
                let side = &mut self.sides[n];
                side.address = address;
                side.node.readdress(self.now, side.group, address);
            }
            Operation::Deliver => {
                for _ in 0..=input.byte() {
                    let Some(datagram) = self.in_flight.pop_front() else { break };
                    self.arrive(datagram);
                }
            }
            Operation::Lose => {
                for _ in 0..=input.below(32) {
                    self.in_flight.pop_front();
                }
            }
            Operation::Reorder => {
                let n = self.in_flight.len();
                if n > 1 {
                    self.in_flight.swap(input.below(n), input.below(n));
                }
            }
            Operation::Damage => {
                let n = input.below(self.in_flight.len());
                if let Some(datagram) = self.in_flight.get_mut(n) {
                    let mut bytes = datagram.bytes.to_vec();
                    let at = input.word() as usize % bytes.len();
                    bytes[at] ^= input.byte().max(1);
                    bytes.truncate(bytes.len().saturating_sub(input.below(64) / 60));
                    datagram.bytes = bytes.into();
                }
            }
            Operation::Replay => {
                let n = input.below(self.earlier.len());
                if let Some(datagram) = self.earlier.get(n) {
                    let mut datagram = datagram.clone();
                    if input.flag() {
                        datagram.from = addr(input.below(6));
                        datagram.to = input.below(2);
                    }
                    self.arrive(datagram);
                }
            }
            Operation::Noise => {
                let n = usize::from(input.byte());
                let bytes = input.bytes(n).into();
                self.strange(input, bytes);
            }
            Operation::Forge => {
                let kind = KINDS[input.below(KINDS.len())];
                let header = self.forged_header(input, kind);
                let n = usize::from(input.byte());
                let body = input.bytes(n);
                self.strange(input, framed(header, body));
            }
            Operation::Lie => self.lie(input),
        }
        self.turn();
    }

    /// Lets everything come to its end: nothing may be left of it that grows.
    pub(super) fn end(&mut self) {
        for _ in 0..4 {
            while let Some(datagram) = self.in_flight.pop_front() {
                self.arrive(datagram);
            }
            self.pass(Duration::from_secs(1));
        }
        let now = self.now;
        for side in &mut self.sides {
            for p in &side.publishers {
                side.node.close_publisher(now, p.id);
            }
            for s in side.subscribers.drain(..) {
                side.node.close_subscriber(now, s);
            }
        }
        self.in_flight.clear();
        for _ in 0..8 {
            self.pass(Duration::from_secs(10));
            self.in_flight.clear();
        }
        for side in &mut self.sides {
            assert_eq!(side.node.frames_kept(), 0, "nothing is kept for nobody");
            assert_eq!(side.node.streams(side.group).len(), 0, "streams of nobody are forgotten");
        }
    }

    fn publish(&mut self, input: &mut Input<'_>) {
        let side = &mut self.sides[input.below(2)];
        let n = input.below(side.publishers.len());
        let Some(p) = side.publishers.get_mut(n).filter(|p| !p.closing) else { return };
        let len = match input.byte() {
            long @ 240.. => usize::from(long - 239) * 1500,
            short => usize::from(short) * 3,
        };
        // A full outbox is none of the fuzzer's business.
        for _ in 0..=input.below(24) {
            let _ = p.outbox.push(&vec![0x5a; len]);
        }
    }

    fn open_publisher(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        let side = &mut self.sides[input.below(2)];
        if side.publishers.len() >= MAX_HANDLES {
            return;
        }
        let mut config = PublisherConfig::default();
        config.topic = ["", "a", "b"][input.below(3)].into();
        config.window = 1 + input.below(40);
        config.policy = match input.byte() % 4 {
            0 => FlowPolicy::Slowest,
            1 => FlowPolicy::Quorum(input.below(3)),
            2 => FlowPolicy::Tagged(input.below(2) as u32),
            _ => FlowPolicy::Unlimited,
        };
        config.grace = Duration::from_millis(input.number(500) % 20_000);
        config.linger = Duration::from_millis(u64::from(input.byte()) * 4);
        config.max_receivers = MAX_RECEIVERS;
        let frames = config.window + 1 + input.below(8);
        let Some((id, header)) = side.node.open_publisher(now, side.group, config) else { return };
        let free = (0..frames).map(|_| HeapFrame::new(MTU)).collect();
        let outbox = Outbox::new(header, MTU, free);
        side.publishers.push(Open { id, header, outbox, frames, closing: false });
        if self.sessions.len() < 16 {
            self.sessions.push(header);
        }
    }

    fn open_subscriber(&mut self, input: &mut Input<'_>) {
        let side = &mut self.sides[input.below(2)];
        if side.subscribers.len() >= MAX_HANDLES {
            return;
        }
        let mut config = SubscriberConfig::default();
        config.reliability = RELIABILITIES[input.below(4)];
        config.start = if input.flag() { Start::History(input.number(10)) } else { Start::Live };
        config.queue = input.below(80);
        config.own_messages = input.flag();
        config.tag = input.flag().then_some(1);
        if input.flag() {
            config.topics = TopicPattern::new(["a", "b*", ""][input.below(3)]);
        }
        side.subscribers.extend(side.node.open_subscriber(self.now, side.group, config));
    }

    /// Everything that is due by now and after `time`.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..MAX_TURNS {
            let due = self.sides.iter().filter_map(|s| s.node.poll_timeout()).min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = due.max(self.now + Duration::from_micros(20));
            let now = self.now;
            self.sides.iter_mut().for_each(|s| s.node.handle_timeout(now));
            self.turn();
        }
        self.now = self.now.max(end);
        let now = self.now;
        self.sides.iter_mut().for_each(|s| s.node.handle_timeout(now));
        self.turn();
    }

    /// Both nodes say what they have to say.
    fn turn(&mut self) {
        let now = self.now;
        let addresses = [self.sides[0].address, self.sides[1].address];
        for side in &mut self.sides {
            side.fill();
            let mut sent = 0usize;
            while let Some(t) = side.node.poll_transmit(now) {
                sent += 1;
                assert!(sent < MAX_SENT, "a turn has an end");
                assert!(t.frame.bytes().len() <= MTU);
                let bytes: Rc<[u8]> = t.frame.bytes().into();
                let multicast = t.to == To::Group;
                for (to, address) in addresses.iter().enumerate() {
                    let reaches = match t.to {
                        To::Group => true,
                        To::Peer(peer) => peer == *address,
                    };
                    if reaches && self.in_flight.len() < MAX_IN_FLIGHT {
                        let (from, bytes) = (side.address, bytes.clone());
                        self.in_flight.push_back(Datagram { to, from, multicast, bytes });
                    }
                }
                side.node.handle_sent(t.token, t.frame);
                if sent.is_multiple_of(8) {
                    side.fill();
                }
            }
            while let Some(event) = side.node.poll_event() {
                if let Event::Notice { notice: Notice::Lost { first, last, .. }, .. } = event {
                    assert!(first <= last);
                }
            }
            side.fill();
            side.check();
        }
    }

    fn arrive(&mut self, datagram: Datagram) {
        let Datagram { to, from, multicast, ref bytes } = datagram;
        let side = &mut self.sides[to];
        side.node.handle_datagram(self.now, side.group, from, multicast, bytes.clone());
        if self.earlier.len() >= MAX_EARLIER {
            self.earlier.pop_front();
        }
        self.earlier.push_back(datagram);
    }

    /// A datagram of somebody, who may say to be one of the nodes.
    fn strange(&mut self, input: &mut Input<'_>, bytes: Rc<[u8]>) {
        let from = addr(input.below(8));
        let (to, multicast) = (input.below(2), input.flag());
        self.arrive(Datagram { to, from, multicast, bytes });
    }

    fn forged_header(&mut self, input: &mut Input<'_>, kind: FrameKind) -> FrameHeader {
        let n = input.below(self.sessions.len() + 1);
        let known = self.sessions.get(n).copied();
        let mut header = known.unwrap_or(FrameHeader {
            session: SessionId(input.byte().into()),
            stream: StreamId(input.below(12) as u32),
            ..self.sessions[0]
        });
        header.kind = kind;
        header.sequence = Sequence(input.number(self.head(header)));
        header
    }

    /// How far a stream is, if it is one of the nodes'.
    fn head(&mut self, header: FrameHeader) -> u64 {
        let mut publishers = self.sides.iter().flat_map(|s| &s.publishers).filter(|p| {
            p.header == FrameHeader { kind: FrameKind::Data, sequence: Sequence(0), ..header }
        });
        publishers.next().map_or(5, |p| p.outbox.next().0)
    }

    fn lie(&mut self, input: &mut Input<'_>) {
        let kind = KINDS[2 + input.below(KINDS.len() - 2)];
        let header = self.forged_header(input, kind);
        let head = self.head(header);
        let mut out = [0; MAX_BODY];
        let node = [1, 2, 3, u128::MAX][input.below(4)];
        let written = match kind {
            FrameKind::Heartbeat => control::encode(&heartbeat(input, head), &mut out),
            FrameKind::Announce => {
                let from = addr(input.below(8));
                let announce = Announce {
                    node,
                    incarnation: input.number(5),
                    name: "liar".into(),
                    topic: ["", "a", "\u{7}"][input.below(3)].into(),
                    address: from.into(),
                    age_us: input.number(1000),
                    heartbeat: heartbeat(input, head),
                    first: input.flag(),
                };
                let len = control::encode(&announce, &mut out).expect("it fits");
                let (to, multicast) = (input.below(2), input.flag());
                let bytes = framed(header, &out[..len]);
                self.arrive(Datagram { to, from, multicast, bytes });
                return;
            }
            FrameKind::Status => {
                let status = Status {
                    node,
                    incarnation: input.number(5),
                    at: input.number(self.now.as_micros()),
                    name: "liar".into(),
                    next: input.number(head),
                    edge: input.number(head),
                    lost: input.number(0),
                    echo: input.flag().then(|| input.number32(1000)),
                    held_us: input.number32(10),
                    headroom: input.number32(100),
                    missing: input.number(4),
                    reliable: input.flag(),
                    leaving: input.byte().is_multiple_of(8),
                    ended: input.flag(),
                    tag: input.flag().then_some(1),
                };
                control::encode(&status, &mut out)
            }
            FrameKind::Nak => {
                let base = input.number(head);
                let runs = (0..input.below(50)).map(|_| (input.number32(0), input.number32(1)));
                let nak = Nak { base, runs: runs.collect(), local: input.flag() };
                control::encode(&nak, &mut out)
            }
            FrameKind::Gone => control::encode(&Gone { oldest: input.number(head) }, &mut out),
            FrameKind::Released => {
                control::encode(&Released { node, waited_ms: input.number(9) }, &mut out)
            }
            FrameKind::Beacon => control::encode(&beacon(input, node), &mut out),
            FrameKind::Probe => {
                let probe = member::Probe {
                    node,
                    incarnation: input.number(5),
                    to: [1, 2, 3][input.below(3)],
                    stamp: input.number32(7),
                    suspect: input.flag(),
                    unheard: input.flag(),
                    detail: input.flag(),
                };
                control::encode(&probe, &mut out)
            }
            FrameKind::Roster => {
                let entry = |input: &mut Input<'_>| member::Entry {
                    node: input.number(3).into(),
                    incarnation: input.number(5),
                    address: addr(input.below(8)).into(),
                };
                let entries = (0..input.below(9)).map(|_| entry(input)).collect();
                let (bucket, ask) = (input.byte(), input.flag());
                control::encode(&member::Roster { node, bucket, ask, entries }, &mut out)
            }
            FrameKind::Digest => {
                let sums = (0..64).map(|_| u32::from(input.byte())).collect();
                control::encode(&member::Digest { node, sums }, &mut out)
            }
            _ => Ok(0),
        };
        let Ok(len) = written else { return };
        self.strange(input, framed(header, &out[..len]));
    }
}

fn beacon(input: &mut Input<'_>, node: u128) -> member::Beacon {
    member::Beacon {
        node,
        incarnation: input.number(5),
        at: input.number(1000),
        interval_ms: input.number32(1000),
        members: input.number32(2),
        sum: input.number32(7),
        fresh: input.flag(),
        leaving: input.byte().is_multiple_of(8),
        echo: input.flag().then(|| input.number32(1000)),
        progress: input.flag().then(|| member::Progress {
            sent: input.number(9),
            received: input.number(9),
            lost: input.number(0),
            waiting: input.number(0),
        }),
        detail: input.flag().then(|| member::Detail {
            name: "liar".into(),
            host: ["", "h", "\u{7}"][input.below(3)].into(),
            address: addr(input.below(8)).into(),
            role: input.byte() % 5,
            metadata: ["", "k\nv\n", "k"][input.below(3)].into(),
        }),
    }
}

fn heartbeat(input: &mut Input<'_>, head: u64) -> Heartbeat {
    Heartbeat {
        next: input.number(head),
        oldest: input.number(head.saturating_sub(8)),
        stamp: input.number32(7),
        rtt_us: input.number32(100),
        receivers: input.number32(2),
        losers: input.number32(1),
        window: input.number32(16),
        wanted: input.flag(),
        end: input.byte().is_multiple_of(8),
    }
}

fn framed(header: FrameHeader, body: &[u8]) -> Rc<[u8]> {
    let mut bytes = vec![0; FRAME_HEADER];
    header.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes.into()
}
