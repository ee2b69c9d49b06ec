//! Many streams of strangers that never finish a message, or leave gaps: what a node keeps stays bounded, and a
//! stream beside them loses nothing.

use std::rc::Rc;

use qcast_proto::addr::{
    Domain, Gid, GroupTag, NodeId, PeerAddr, Qpn, Sequence, SessionId, StreamId,
};
use qcast_proto::buf::HeapFrame;
use qcast_proto::node::{Event, GroupId, Node, NodeConfig, SubscriberId};
use qcast_proto::subscribe::{LossCause, Notice, Reliability, SubscriberConfig};
use qcast_proto::time::{Duration, Instant};
use qcast_proto::wire::control::{self, Announce, Heartbeat};
use qcast_proto::wire::frame::{FRAGMENT_HEADER, FRAME_HEADER, FragmentHeader};
use qcast_proto::wire::frame::{FrameHeader, FrameKind};

const MAX_KEPT: usize = 4 << 20;
const PIECE: usize = 4000;
const HOGS: u32 = 100;

type TestNode = Node<HeapFrame, Rc<[u8]>>;

struct Rig {
    node: TestNode,
    group: GroupId,
    subscriber: SubscriberId,
    now: Instant,
    /// What the honest stream, 0, brought: its messages' lengths.
    whole: Vec<usize>,
    /// Losses told, by stream.
    lost: Vec<(u32, u64, u64)>,
    most: usize,
}

fn addr(n: u32) -> PeerAddr {
    PeerAddr { gid: Gid::from_bytes([n as u8; 16]), qpn: Qpn::new(n), udp_port: 4791 }
}

impl Rig {
    fn new(reliability: Reliability) -> Self {
        let mut config = NodeConfig::new(NodeId(1), 1, "n");
        config.max_kept = MAX_KEPT;
        let mut node = Node::new(Instant::ZERO, config, 7);
        node.supply((0..8).map(|_| HeapFrame::new(1024)));
        let group = node.join(Instant::ZERO, "g", addr(1));
        let mut config = SubscriberConfig::default();
        config.reliability = reliability;
        let subscriber =
            node.open_subscriber(Instant::ZERO, group, config).expect("the group is there");
        let now = Instant::ZERO + Duration::from_secs(1);
        Self { node, group, subscriber, now, whole: Vec::new(), lost: Vec::new(), most: 0 }
    }

    fn hear(&mut self, kind: FrameKind, stream: u32, sequence: u64, body: &[u8]) {
        let header = FrameHeader {
            kind,
            domain: Domain(0),
            group: GroupTag::of("g"),
            stream: StreamId(stream),
            session: SessionId(u64::from(stream) + 1),
            sequence: Sequence(sequence),
        };
        let mut bytes = vec![0; FRAME_HEADER];
        header.emit(&mut bytes);
        bytes.extend_from_slice(body);
        self.now += Duration::from_micros(10);
        self.node.handle_datagram(self.now, self.group, addr(10 + stream), true, bytes.into());
        self.most = self.most.max(self.node.kept());
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::Message { key, message, subscriber, .. } if key.stream.0 == 0 => {
                    assert_eq!(subscriber, self.subscriber);
                    self.whole.push(message.len());
                }
                Event::Notice { notice: Notice::Lost { key, first, last, cause }, .. } => {
                    assert_eq!(cause, LossCause::NoMemory);
                    self.lost.push((key.stream.0, first.0, last.0));
                }
                _ => {}
            }
        }
    }

    fn announce(&mut self, stream: u32) {
        let announce = Announce {
            node: u128::from(stream) + 100,
            incarnation: 1,
            name: format!("p{stream}"),
            topic: "t".into(),
            address: addr(10 + stream).into(),
            age_us: 0,
            heartbeat: Heartbeat { window: 1024, ..Heartbeat::default() },
            first: true,
        };
        let mut out = [0; control::MAX_BODY];
        let len = control::encode(&announce, &mut out).expect("it fits");
        self.hear(FrameKind::Announce, stream, 0, &out[..len]);
    }

    /// Piece `index` of a message of `len` bytes whose first piece is frame `first`.
    fn piece(&mut self, stream: u32, first: u64, index: u32, len: usize) {
        let offset = index as usize * PIECE;
        let header = FragmentHeader { message_len: len as u32, offset: offset as u32, index };
        let mut body = vec![0; FRAGMENT_HEADER];
        header.emit(&mut body);
        body.resize(FRAGMENT_HEADER + PIECE.min(len - offset), stream as u8);
        self.hear(FrameKind::Fragment, stream, first + u64::from(index), &body);
    }

    /// The honest stream's message number `n`, of two frames.
    fn honest(&mut self, n: u64) {
        for index in 0..2 {
            self.piece(0, n * 2, index, 2 * PIECE);
        }
    }
}

fn hogs_never_finish(reliability: Reliability) {
    let mut rig = Rig::new(reliability);
    (0..=HOGS).for_each(|stream| rig.announce(stream));
    for index in 0..400 {
        for stream in 1..=HOGS {
            rig.piece(stream, 0, index, 16 << 20);
        }
        rig.honest(u64::from(index));
    }
    // What is counted with is twice what was received at most, as memory grows by doubling.
    assert!(rig.most <= 2 * MAX_KEPT + 256 * 4096, "{} bytes were kept", rig.most);
    assert!(rig.most > MAX_KEPT, "the bound was meant to be reached");
    assert_eq!(rig.whole, [2 * PIECE; 400]);
    assert!(rig.lost.iter().all(|(stream, ..)| *stream != 0), "the honest stream lost something");
    let told: std::collections::BTreeSet<u32> =
        rig.lost.iter().map(|(stream, ..)| *stream).collect();
    assert!(told.len() > HOGS as usize / 2, "only {} streams were told", told.len());
    assert!(rig.lost.iter().all(|(_, first, last)| *first == 0 && last >= first));
    assert!(rig.node.stream_totals(rig.group).shed >= told.len() as u64);
}

/// R-BOUND-5.
#[test]
fn unfinished_messages_are_bounded_in_all() {
    hogs_never_finish(Reliability::Ordered);
}

/// R-BOUND-5.
#[test]
fn unfinished_messages_without_order_are_bounded_in_all() {
    hogs_never_finish(Reliability::Unordered);
}

/// R-BOUND-5: frames behind a gap are dropped, not lost: they are asked for again.
#[test]
fn frames_behind_gaps_are_bounded_in_all() {
    let mut rig = Rig::new(Reliability::Ordered);
    (0..=HOGS).for_each(|stream| rig.announce(stream));
    let message = [&[0, 200][..], &[7; 200]].concat();
    for n in 1..100 {
        for stream in 1..=HOGS {
            rig.hear(FrameKind::Data, stream, n, &message);
        }
        rig.honest(n - 1);
    }
    assert!(rig.most > MAX_KEPT, "the bound was meant to be reached");
    assert!(rig.node.frames_kept() * 4096 < 2 * MAX_KEPT, "{} frames", rig.node.frames_kept());
    assert_eq!(rig.whole, [2 * PIECE; 99]);
    assert_eq!(rig.lost, []);
    // The first hog mends its gap, and says everything again.
    for n in 0..100 {
        rig.hear(FrameKind::Data, 1, n, &message);
    }
    let first = rig.node.streams(rig.group).into_iter().find(|(i, _)| i.key.stream.0 == 1).unwrap();
    assert_eq!((first.1.lost, first.1.frames >= 100), (0, true));
}
