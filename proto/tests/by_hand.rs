//! What one node does with words that are written by hand: the requirements of `docs/protocol.md` that
//! a whole simulation would hide.

use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::{
    Domain, Gid, GroupTag, NodeId, PeerAddr, Qpn, Sequence, SessionId, StreamId,
};
use qcast_proto::buf::{HeapFrame, TxFrame};
use qcast_proto::node::{GroupId, Node, NodeConfig, PublisherId, To};
use qcast_proto::publish::{Outbox, PublisherConfig};
use qcast_proto::subscribe::{Reliability, SubscriberConfig};
use qcast_proto::time::Instant;
use qcast_proto::wire::control::{self, Address, Announce, Gone, Heartbeat, Nak, Status};
use qcast_proto::wire::frame::{FRAGMENT_HEADER, FRAME_HEADER, Frame, FrameHeader, FrameKind};

/// A control body's bytes.
macro_rules! body {
    ($body:expr) => {{
        let mut out = [0; control::MAX_BODY];
        let len = control::encode(&$body, &mut out).unwrap();
        out[..len].to_vec()
    }};
}

const SESSION: SessionId = SessionId(0x5e55);
const MTU: usize = 1024;

fn addr(n: u32) -> PeerAddr {
    PeerAddr { gid: Gid::from_bytes([n as u8; 16]), qpn: Qpn::new(n), udp_port: 4791 }
}

fn header(kind: FrameKind, session: SessionId) -> FrameHeader {
    FrameHeader {
        kind,
        domain: Domain(0),
        group: GroupTag::of("g"),
        stream: StreamId(0),
        session,
        sequence: Sequence(0),
    }
}

fn frame(header: FrameHeader, body: &[u8]) -> Rc<[u8]> {
    let mut bytes = vec![0; FRAME_HEADER];
    header.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes.into()
}

fn data(stream: u32, sequence: u64) -> Rc<[u8]> {
    let h = header(FrameKind::Data, SESSION);
    frame(FrameHeader { stream: StreamId(stream), sequence: Sequence(sequence), ..h }, &[0, 1, 9])
}

fn announce(from: u32, node: u128, incarnation: u64, next: u64) -> Announce {
    Announce {
        node: NodeId(node).0,
        incarnation,
        name: "pub".into(),
        topic: "t".into(),
        address: addr(from).into(),
        age_us: u64::MAX,
        heartbeat: Heartbeat { next, window: 1024, ..Heartbeat::default() },
        first: true,
    }
}

/// Something that a node sent.
struct Sent {
    at: Instant,
    to: To,
    header: FrameHeader,
    body: Vec<u8>,
}

/// One node, and its clock.
struct Hand {
    node: Node<HeapFrame, Rc<[u8]>>,
    group: GroupId,
    now: Instant,
}

impl Hand {
    fn new() -> Self {
        Self::seeded(7)
    }

    fn seeded(seed: u64) -> Self {
        let mut node = Node::new(Instant::ZERO, NodeConfig::new(NodeId(1), 1, "n"), seed);
        node.supply((0..8).map(|_| HeapFrame::new(MTU)));
        let group = node.join(Instant::ZERO, "g", addr(1));
        Self { node, group, now: Instant::ZERO }
    }

    /// One that subscribes.
    fn subscriber(reliability: Reliability) -> Self {
        Self::new().subscribing(reliability)
    }

    fn subscribing(self, reliability: Reliability) -> Self {
        let mut hand = self;
        let mut config = SubscriberConfig::default();
        config.reliability = reliability;
        hand.node.open_subscriber(hand.now, hand.group, config).expect("the group is there");
        hand
    }

    /// One that publishes, is ready, and has sent `frames` frames.
    fn publisher(
        frames: u64,
        change: impl FnOnce(&mut PublisherConfig),
    ) -> (Self, PublisherId, SessionId) {
        let mut hand = Self::new();
        let mut config = PublisherConfig::default();
        change(&mut config);
        let (id, header) =
            hand.node.open_publisher(hand.now, hand.group, config).expect("the group is there");
        hand.hear(1, &frame(header, &[0, 0]));
        let free = (0..frames).map(|_| HeapFrame::new(MTU)).collect();
        let mut outbox = Outbox::new(header, MTU, free);
        for _ in 0..frames {
            outbox.push(b"message").expect("a frame is free");
            outbox.seal();
            hand.node.publish(id, outbox.take().expect("one is sealed"));
        }
        hand.drain();
        (hand, id, header.session)
    }

    fn hear(&mut self, from: u32, frame: &Rc<[u8]>) {
        self.node.handle_datagram(self.now, self.group, addr(from), true, frame.clone());
    }

    fn hear_body(&mut self, from: u32, kind: FrameKind, session: SessionId, body: &[u8]) {
        self.hear(from, &frame(header(kind, session), body));
    }

    fn drain(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(t) = self.node.poll_transmit(self.now) {
            let frame = Frame::new_checked(t.frame.bytes()).expect("a node sends sound frames");
            let (header, body) = (*frame.header(), frame.body().to_vec());
            sent.push(Sent { at: self.now, to: t.to, header, body });
            self.node.handle_sent(t.token, t.frame);
        }
        while self.node.poll_event().is_some() {}
        sent
    }

    /// What is sent while `time` passes and nothing is heard.
    fn pass(&mut self, time: Duration) -> Vec<Sent> {
        let end = self.now + time;
        let mut sent = self.drain();
        while let Some(due) = self.node.poll_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now + Duration::from_micros(5));
            self.node.handle_timeout(self.now);
            sent.extend(self.drain());
        }
        self.now = end.max(self.now);
        sent
    }

    fn counters(&self) -> qcast_proto::node::GroupCounters {
        self.node.group_counters(self.group)
    }

    fn status(&mut self, from: u32, session: SessionId, change: impl FnOnce(&mut Status)) {
        let mut status = Status {
            node: u128::from(from),
            at: self.now.as_micros(),
            name: format!("s{from}"),
            reliable: true,
            edge: 1 << 20,
            ..Status::default()
        };
        change(&mut status);
        self.hear_body(from, FrameKind::Status, session, &body!(status));
    }

    fn nak(&mut self, from: u32, session: SessionId, first: u64, local: bool) {
        let nak = Nak { base: first, runs: vec![(0, 1)], local };
        self.hear_body(from, FrameKind::Nak, session, &body!(nak));
    }
}

fn of(kind: FrameKind) -> impl Fn(&&Sent) -> bool {
    move |s| s.header.kind == kind
}

/// R-FRAME-3.
#[test]
fn flags_are_ignored() {
    let plain = data(0, 3);
    let mut flagged = plain.to_vec();
    (flagged[4], flagged[5]) = (0xff, 0xff);
    let read = Frame::new_checked(&flagged).unwrap();
    assert_eq!(read.header(), Frame::new_checked(&plain).unwrap().header());
}

/// R-CONTROL-1, R-ID-4.
#[test]
fn control_bodies_have_their_golden_bytes() {
    let beat = Heartbeat {
        next: 0x0102_0304_0506,
        oldest: 250,
        stamp: 251,
        rtt_us: 0x1_0000,
        receivers: 1,
        losers: 2,
        window: 3,
        wanted: true,
        end: false,
    };
    let golden = [253, 6, 5, 4, 3, 2, 1, 0, 0, 250, 251, 251, 0, 252, 0, 0, 1, 0, 1, 2, 3, 1, 0];
    assert_eq!(body!(beat), golden);
    let status = Status {
        node: 1 << 64,
        name: "é".into(),
        lost: 3,
        echo: Some(7),
        tag: None,
        reliable: true,
        ..Status::default()
    };
    let mut golden = vec![254, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc3, 0xa9];
    golden.extend([0, 0, 3, 1, 7, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(body!(status), golden);
    assert_eq!(
        body!(Nak { base: 5, runs: vec![(0, 3), (2, 1)], local: true }),
        [5, 2, 0, 3, 2, 1, 1]
    );
    let mut golden = vec![9; 16];
    golden.extend([9, 251, 0xb7, 0x12]);
    assert_eq!(body!(Address::from(addr(9))), golden);
    assert_eq!(PeerAddr::from(control::decode::<Address>(&golden).unwrap()), addr(9));
}

/// R-FRAG-1.
#[test]
fn a_large_message_is_cut_into_equal_pieces() {
    let most = MTU - FRAME_HEADER - FRAGMENT_HEADER;
    for len in [MTU, most * 3, most * 3 + 1, 100_000] {
        let free = (0..200).map(|_| HeapFrame::new(MTU)).collect();
        let mut outbox = Outbox::new(header(FrameKind::Data, SESSION), MTU, free);
        outbox.push(&vec![7; len]).unwrap();
        let mut pieces = Vec::new();
        while let Some(frame) = outbox.take() {
            let read = Frame::new_checked(frame.bytes()).unwrap();
            assert_eq!(read.header().sequence, Sequence(pieces.len() as u64));
            pieces.push(read.fragment().unwrap().1.len());
        }
        let (last, first) = pieces.split_last().unwrap();
        assert_eq!(pieces.len(), len.div_ceil(most), "the fewest");
        assert!(first.iter().all(|p| *p == pieces[0]) && *last <= pieces[0], "{pieces:?}");
    }
}

/// R-ID-1.
#[test]
fn other_domains_and_groups_are_not_heard() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    let h = header(FrameKind::Data, SESSION);
    hand.hear(2, &frame(FrameHeader { domain: Domain(1), ..h }, &[0, 0]));
    hand.hear(2, &frame(FrameHeader { group: GroupTag::of("other"), ..h }, &[0, 0]));
    let counters = hand.counters();
    assert_eq!((counters.wrong_domain, counters.wrong_group, counters.frames), (1, 1, 0));
    assert_eq!(hand.pass(Duration::from_secs(1)).len(), 0);
}

/// R-ID-2.
#[test]
fn sessions_differ_and_stream_numbers_are_used_once() {
    let mut hand = Hand::new();
    let other = hand.node.join(Instant::ZERO, "g", addr(1));
    let mut open =
        |group| hand.node.open_publisher(Instant::ZERO, group, PublisherConfig::default()).unwrap();
    let (a, first) = open(hand.group);
    let (_, elsewhere) = open(other);
    hand.node.remove_publisher(a);
    let (_, second) =
        hand.node.open_publisher(Instant::ZERO, hand.group, PublisherConfig::default()).unwrap();
    assert_ne!(first.session, elsewhere.session);
    assert_eq!((first.stream, second.stream), (StreamId(0), StreamId(1)));
    assert_eq!(first.session, second.session);
}

/// R-JOIN-1, R-BOUND-2.
#[test]
fn an_undescribed_stream_is_asked_about_and_forgotten() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    for n in 0..1000 {
        hand.hear(2, &data(0, n));
    }
    assert_eq!(hand.node.frames_kept(), 64);
    let sent = hand.pass(Duration::from_secs(60));
    let queries: Vec<_> = sent.iter().filter(of(FrameKind::Query)).collect();
    assert_eq!((queries.len(), sent.len()), (40, 40));
    assert!(queries.iter().all(|q| q.to == To::Peer(addr(2)) && q.header.session == SESSION));
    let pauses: Vec<_> = queries.windows(2).map(|q| q[1].at.saturating_since(q[0].at)).collect();
    assert!(pauses.is_sorted() && pauses[0] >= Duration::from_millis(2), "{pauses:?}");
    assert!(pauses.iter().all(|p| *p <= Duration::from_millis(101)), "{pauses:?}");
    assert_eq!(hand.node.frames_kept(), 0);
}

/// R-BOUND-1.
#[test]
fn streams_of_a_peer_are_bounded() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    for stream in 0..1000 {
        hand.hear(2, &data(stream, 0));
    }
    assert_eq!(hand.node.frames_kept(), 16);
    assert_eq!(hand.counters().streams_refused, 1000 - 16);
    // Another peer has its own.
    hand.hear(3, &data(5000, 0));
    assert_eq!(hand.node.frames_kept(), 17);
    // Described ones too.
    for stream in 0..2000 {
        let h = FrameHeader { stream: StreamId(stream), ..header(FrameKind::Announce, SESSION) };
        hand.hear(2, &frame(h, &body!(announce(2, 2, 1, 0))));
    }
    assert_eq!(hand.node.streams(hand.group).len(), 256);
}

/// R-SPOOF-1, R-SPOOF-2.
#[test]
fn nobody_speaks_for_a_publisher() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    hand.hear_body(3, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 0)));
    assert_eq!(hand.node.streams(hand.group).len(), 0);
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 0)));
    assert_eq!(hand.node.streams(hand.group).len(), 1);
    // Another address, another node, and data and heartbeats of a stranger.
    hand.hear_body(3, FrameKind::Announce, SESSION, &body!(announce(3, 2, 1, 0)));
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 9, 1, 0)));
    hand.hear(3, &data(0, 0));
    hand.hear_body(3, FrameKind::Heartbeat, SESSION, &body!(Heartbeat::default()));
    hand.hear_body(3, FrameKind::Gone, SESSION, &body!(Gone { oldest: 0 }));
    assert_eq!(hand.counters().spoofed, 6);
    assert_eq!(hand.node.streams(hand.group)[0].1.frames, 0);
    // It has moved: it is silent where it was.
    hand.pass(Duration::from_millis(700));
    hand.hear_body(3, FrameKind::Announce, SESSION, &body!(announce(3, 2, 1, 0)));
    hand.hear(3, &data(0, 0));
    assert_eq!(hand.node.streams(hand.group)[0].1.frames, 1);
}

/// R-RESTART-1.
#[test]
fn an_earlier_life_is_not_believed() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 8, 0)));
    hand.hear_body(2, FrameKind::Announce, SessionId(1), &body!(announce(2, 2, 7, 0)));
    hand.hear_body(3, FrameKind::Announce, SessionId(2), &body!(announce(3, 1, 9, 0)));
    let streams = hand.node.streams(hand.group);
    assert_eq!((streams.len(), streams[0].0.key.session), (1, SESSION));
    assert_eq!(hand.counters().stale, 2);
}

/// R-HEARTBEAT-2, R-LOSS-2, R-BOUND-4.
#[test]
fn numbers_that_contradict_themselves_are_refused() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 10)));
    let beat = Heartbeat { next: 10, oldest: 11, ..Heartbeat::default() };
    hand.hear_body(2, FrameKind::Heartbeat, SESSION, &body!(beat));
    hand.hear_body(2, FrameKind::Gone, SESSION, &body!(Gone { oldest: 11 }));
    hand.hear(2, &data(0, u64::MAX));
    let stats = hand.node.streams(hand.group)[0].1;
    assert_eq!((stats.refused, stats.lost, stats.missing), (3, 0, 0));
}

/// R-BOUND-4: the sums of what two liars claim.
#[test]
fn claims_do_not_overflow() {
    for kind in
        [Reliability::Ordered, Reliability::Unordered, Reliability::BestEffort, Reliability::Latest]
    {
        let mut hand = Hand::subscriber(kind);
        for session in [SESSION, SessionId(9)] {
            hand.hear_body(2, FrameKind::Announce, session, &body!(announce(2, 2, 1, 0)));
            let far = Heartbeat {
                next: u64::MAX,
                oldest: u64::MAX,
                rtt_us: u32::MAX,
                receivers: u32::MAX,
                losers: u32::MAX,
                window: u32::MAX,
                wanted: true,
                ..Heartbeat::default()
            };
            let h = header(FrameKind::Data, session);
            hand.hear(2, &frame(FrameHeader { sequence: Sequence(u64::MAX - 1), ..h }, &[0, 0]));
            hand.hear_body(2, FrameKind::Heartbeat, session, &body!(far));
            hand.pass(Duration::from_secs(1));
        }
        assert!(hand.node.stream_totals(hand.group).missing > 0 || kind == Reliability::Latest);
        hand.pass(Duration::from_secs(60));
        hand.node.stream_totals(hand.group);
    }
}

/// R-HEARTBEAT-3, R-STATUS-7.
#[test]
fn a_new_subscriber_introduces_itself_and_answers_when_asked() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 0)));
    let first = hand.pass(Duration::from_millis(40));
    assert_eq!(first.iter().filter(of(FrameKind::Status)).count(), 3);
    assert!(hand.drain().is_empty());
    let wanted = Heartbeat { wanted: true, receivers: 1, window: 1024, ..Heartbeat::default() };
    hand.hear_body(2, FrameKind::Heartbeat, SESSION, &body!(wanted));
    let sent = hand.drain();
    assert_eq!(
        (sent.len(), sent[0].header.kind, sent[0].to),
        (1, FrameKind::Status, To::Peer(addr(2)))
    );
}

/// R-STATUS-6.
#[test]
fn statuses_of_a_large_group_are_bounded() {
    let mut hand = Hand::subscriber(Reliability::Ordered);
    hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 0)));
    let mut statuses = 0;
    for _ in 0..500 {
        // It is asked every 20 ms.
        let wanted =
            Heartbeat { wanted: true, receivers: 2000, window: 1024, ..Heartbeat::default() };
        hand.hear_body(2, FrameKind::Heartbeat, SESSION, &body!(wanted));
        statuses +=
            hand.pass(Duration::from_millis(20)).iter().filter(of(FrameKind::Status)).count();
    }
    // 10 s at 100 ms, and it is asked all the time.
    assert!((40..=103).contains(&statuses), "{statuses}");
}

/// R-STATUS-8: all are asked by the same heartbeat, and their publisher's receive queue is finite.
#[test]
fn those_that_are_asked_at_once_do_not_answer_at_once() {
    let spacing = Duration::from_millis(100);
    let beat = Heartbeat { receivers: 2000, window: 1024, ..Heartbeat::default() };
    let mut delays: Vec<_> = (0..100)
        .map(|seed| {
            let mut hand = Hand::seeded(seed).subscribing(Reliability::Ordered);
            hand.hear_body(2, FrameKind::Announce, SESSION, &body!(announce(2, 2, 1, 0)));
            hand.hear_body(2, FrameKind::Heartbeat, SESSION, &body!(beat));
            // It has just spoken.
            while !hand.pass(Duration::from_millis(1)).iter().any(|s| of(FrameKind::Status)(&s)) {}
            let asked = hand.now;
            // Asked again, it keeps the time that it drew.
            let mut answer = Vec::new();
            while answer.is_empty() {
                let wanted = Heartbeat { wanted: true, ..beat };
                hand.hear_body(2, FrameKind::Heartbeat, SESSION, &body!(wanted));
                answer = hand.pass(Duration::from_millis(5));
            }
            answer[0].at.saturating_since(asked)
        })
        .collect();
    delays.sort();
    let near = |d: Duration| d >= spacing * 7 / 10 && d <= spacing * 13 / 10;
    assert!(delays.iter().all(|d| near(*d)), "{delays:?}");
    let half = delays[90] - delays[10];
    assert!(half > spacing / 4, "{delays:?}");
}

/// R-READY-2.
#[test]
fn a_publisher_announces_itself_until_it_is_ready() {
    let mut hand = Hand::new();
    let (_, header) =
        hand.node.open_publisher(hand.now, hand.group, PublisherConfig::default()).unwrap();
    let sent = hand.pass(Duration::from_millis(1000));
    let at: Vec<_> =
        sent.iter().filter(of(FrameKind::Announce)).map(|s| s.at.as_micros() / 1000).collect();
    assert_eq!(at, [0, 20, 60, 140, 300, 550, 800]);
    hand.hear(1, &frame(header, &[0, 0]));
    let sent = hand.pass(Duration::from_secs(2));
    // The one that was due already is the last.
    assert!(sent.iter().filter(of(FrameKind::Announce)).count() <= 1);
}

/// R-JOIN-5.
#[test]
fn many_questions_are_answered_once() {
    let (mut hand, _, session) = Hand::publisher(0, |_| {});
    hand.pass(Duration::from_secs(1));
    for (askers, answers, multicast) in [(3, 3, 0), (50, 1, 1)] {
        for n in 0..askers {
            hand.hear_body(10 + n, FrameKind::Query, session, &[]);
        }
        let sent = hand.drain();
        let sent: Vec<_> = sent.iter().filter(of(FrameKind::Announce)).collect();
        assert_eq!(sent.len(), answers, "{askers} asked");
        assert_eq!(sent.iter().filter(|s| s.to == To::Group).count(), multicast);
    }
}

/// R-HEARTBEAT-4, R-HEARTBEAT-5.
#[test]
fn heartbeats_come_quickly_then_slowly_and_often_when_held() {
    let (mut hand, _, session) = Hand::publisher(1, |c| c.window = 1);
    let beats = |sent: &[Sent]| -> Vec<(u64, bool)> {
        let beats = sent.iter().filter(of(FrameKind::Heartbeat));
        let wanted = |s: &Sent| control::decode::<Heartbeat>(&s.body).unwrap().wanted;
        beats.map(|s| (s.at.as_micros() / 1000, wanted(s))).collect()
    };
    let sent = hand.pass(Duration::from_secs(1));
    assert_eq!(
        beats(&sent)[..8].iter().map(|b| b.0).collect::<Vec<_>>(),
        [2, 4, 8, 16, 32, 64, 128, 256]
    );
    assert!(beats(&sent).iter().all(|b| !b.1));
    // One joins, and has confirmed nothing: the window is full.
    hand.status(2, session, |_| {});
    let sent = hand.pass(Duration::from_secs(1));
    let beats = beats(&sent);
    assert!(beats.len() >= 48 && beats.iter().all(|b| b.1), "{beats:?}");
}

/// R-REPAIR-1, R-REPAIR-2.
#[test]
fn one_asker_is_answered_alone_and_two_through_the_group() {
    let (mut hand, _, session) = Hand::publisher(8, |_| {});
    let repairs = |sent: &[Sent]| -> Vec<(To, u64)> {
        sent.iter().filter(of(FrameKind::Data)).map(|s| (s.to, s.header.sequence.0)).collect()
    };
    hand.status(2, session, |_| {});
    hand.nak(2, session, 3, false);
    assert_eq!(
        repairs(&hand.drain()),
        [(To::Peer(addr(2)), 3)],
        "a lone subscriber is not kept waiting"
    );
    hand.status(3, session, |_| {});
    hand.pass(Duration::from_millis(50));
    // Of two, the first waits for the second, for a moment.
    hand.nak(2, session, 4, false);
    assert_eq!(repairs(&hand.drain()), []);
    assert_eq!(repairs(&hand.pass(Duration::from_micros(150))), [(To::Peer(addr(2)), 4)]);
    hand.nak(2, session, 6, false);
    hand.nak(2, session, 5, false);
    hand.nak(3, session, 6, false);
    hand.nak(3, session, 5, false);
    assert_eq!(repairs(&hand.drain()), [(To::Group, 5), (To::Group, 6)]);
    // A loss of one's own is one's own.
    hand.nak(3, session, 7, true);
    assert_eq!(repairs(&hand.drain()), [(To::Peer(addr(3)), 7)]);
}

/// R-REPAIR-4, R-BOUND-3.
#[test]
fn what_is_not_retained_is_gone_and_answers_are_bounded() {
    let (mut hand, id, session) = Hand::publisher(20, |c| c.window = 8);
    hand.nak(2, session, 3, false);
    let sent = hand.drain();
    assert_eq!(
        (sent.len(), sent[0].header.kind, sent[0].to),
        (1, FrameKind::Gone, To::Peer(addr(2)))
    );
    let oldest = control::decode::<Gone>(&sent[0].body).unwrap().oldest;
    assert!((4..=12).contains(&oldest), "{oldest}");
    // What was not sent yet gets no answer.
    hand.nak(2, session, 20, false);
    assert_eq!(hand.drain().len(), 0);
    for asker in 10..1000 {
        hand.nak(asker, session, 0, false);
    }
    assert_eq!(hand.drain().len(), 64);
    assert_eq!(hand.node.publisher_stats(id).unwrap().gone, 991);
}
