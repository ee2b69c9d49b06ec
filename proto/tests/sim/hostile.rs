//! Strangers in the group: whatever they send, nobody panics, nothing grows, and a correct stream beside
//! goes on.

use std::time::Duration;

use proptest::prelude::*;
use qcast_proto::addr::{NodeId, PeerAddr, Sequence, SessionId};
use qcast_proto::node::{Node, NodeConfig};
use qcast_proto::publish::PublisherConfig;
use qcast_proto::subscribe::{Reliability, SubscriberConfig};
use qcast_proto::time::Instant;
use qcast_proto::wire::control::{Announce, Gone, Heartbeat, Nak, Released, Status, encode};
use qcast_proto::wire::frame::{FRAGMENT_HEADER, FRAME_HEADER};
use qcast_proto::wire::frame::{FragmentHeader, FrameHeader, FrameKind};

use crate::buffers::{Living, Received, Slot};
use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, publishing, reliability};
use crate::truth::Sizes;
use crate::world::World;

/// A datagram that nobody honest sends.
#[derive(Clone, Debug)]
enum Forgery {
    Bytes(Vec<u8>),
    /// One that was overheard, with a byte changed and cut short.
    Changed {
        which: usize,
        at: usize,
        xor: u8,
        cut: usize,
    },
    /// A body of any bytes.
    Body {
        kind: u8,
        body: Vec<u8>,
    },
    Data {
        sequence: Number,
        body: Vec<u8>,
    },
    Fragment {
        sequence: Number,
        message_len: u32,
        offset: u32,
        index: u32,
        piece: Vec<u8>,
    },
    Heartbeat {
        next: Number,
        oldest: Number,
        end: bool,
    },
    Announce {
        next: Number,
        oldest: Number,
        incarnation: u64,
        of_victim: bool,
    },
    Status {
        next: Number,
        edge: Number,
        at: Number,
        of_victim: bool,
        leaving: bool,
    },
    Nak {
        base: Number,
        runs: Vec<(u32, u32)>,
    },
    Gone {
        oldest: Number,
    },
    Released {
        of_victim: bool,
    },
}

/// A number that may mean something.
#[derive(Clone, Copy, Debug)]
enum Number {
    Any(u64),
    /// So far from what the stream has sent.
    Near(i64),
    FromEnd(u64),
}

impl Number {
    fn at(self, head: u64) -> u64 {
        match self {
            Self::Any(n) => n,
            Self::Near(d) => head.saturating_add_signed(d),
            Self::FromEnd(d) => u64::MAX - d,
        }
    }
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        any::<u64>().prop_map(Number::Any),
        (0..2000u64).prop_map(Number::Any),
        (-700..700i64).prop_map(Number::Near),
        (0..4u64).prop_map(Number::FromEnd),
    ]
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

fn forgery() -> impl Strategy<Value = Forgery> {
    use Forgery as F;
    let runs = prop::collection::vec((any::<u32>(), any::<u32>()), 0..60);
    let small_runs = prop::collection::vec((0..9u32, 0..99u32), 0..60);
    let words = (any::<u32>(), any::<u32>(), 0..99u32);
    prop_oneof![
        bytes(200).prop_map(F::Bytes),
        (any::<usize>(), any::<usize>(), any::<u8>(), 0..40usize)
            .prop_map(|(which, at, xor, cut)| F::Changed { which, at, xor, cut }),
        (any::<u8>(), bytes(100)).prop_map(|(kind, body)| F::Body { kind: kind % 12, body }),
        (number(), bytes(50)).prop_map(|(sequence, body)| F::Data { sequence, body }),
        (number(), words, bytes(50)).prop_map(|(sequence, (message_len, offset, index), piece)| {
            F::Fragment { sequence, message_len, offset, index, piece }
        }),
        (number(), number(), any::<bool>()).prop_map(|(next, oldest, end)| F::Heartbeat {
            next,
            oldest,
            end
        }),
        (number(), number(), 0..9u64, any::<bool>()).prop_map(
            |(next, oldest, incarnation, of_victim)| {
                F::Announce { next, oldest, incarnation, of_victim }
            }
        ),
        (number(), number(), number(), any::<bool>(), any::<bool>()).prop_map(
            |(next, edge, at, of_victim, leaving)| {
                F::Status { next, edge, at, of_victim, leaving }
            }
        ),
        (number(), prop_oneof![runs, small_runs]).prop_map(|(base, runs)| F::Nak { base, runs }),
        number().prop_map(|oldest| F::Gone { oldest }),
        any::<bool>().prop_map(|of_victim| F::Released { of_victim }),
    ]
}

/// Where a forgery goes, and which stream it is about.
#[derive(Clone, Debug)]
struct Attack {
    forgery: Forgery,
    to: usize,
    multicast: bool,
    stranger: usize,
    own_session: Option<u64>,
    pause: u64,
}

fn attack() -> impl Strategy<Value = Attack> {
    let session = prop_oneof![4 => Just(None), 1 => (0..99u64).prop_map(Some)];
    (forgery(), 0..3usize, any::<bool>(), 0..4usize, session, 0..400u64).prop_map(
        |(forgery, to, multicast, stranger, own_session, pause)| Attack {
            forgery,
            to,
            multicast,
            stranger: 500 + stranger,
            own_session,
            pause,
        },
    )
}

impl World {
    /// What a stranger sends, knowing all that went over the fabric.
    fn forge(&mut self, attack: &Attack) -> Vec<u8> {
        let mut header = self.header_of(0, 0);
        let head = self.publisher().truth.borrow().sent;
        let victim = self.machines[1 + attack.stranger % 2].config.id.0;
        let publisher = self.machines[0].config.id.0;
        if let Some(session) = attack.own_session {
            header.session = SessionId(session);
        }
        let beat = |next: Number, oldest: Number, end| Heartbeat {
            next: next.at(head),
            oldest: oldest.at(head),
            rtt_us: 1,
            receivers: u32::MAX,
            losers: u32::MAX,
            wanted: true,
            end,
            ..Heartbeat::default()
        };
        let from = self.address(attack.stranger);
        match &attack.forgery {
            Forgery::Bytes(bytes) => bytes.clone(),
            Forgery::Changed { which, at, xor, cut } => {
                let overheard = self.overheard.as_ref().expect("it listens");
                let mut bytes = overheard[which % overheard.len()].to_vec();
                let at = at % bytes.len();
                bytes[at] ^= xor;
                bytes.truncate(bytes.len() - cut.min(&(bytes.len() - 1)));
                bytes
            }
            Forgery::Body { kind, body } => {
                let mut bytes = raw(header, body);
                bytes[3] = *kind;
                bytes
            }
            Forgery::Data { sequence, body } => {
                raw(FrameHeader { sequence: Sequence(sequence.at(head)), ..header }, body)
            }
            Forgery::Fragment { sequence, message_len, offset, index, piece } => {
                let sequence = Sequence(sequence.at(head));
                let mut body = vec![0; FRAGMENT_HEADER];
                let (message_len, offset, index) = (*message_len, *offset, *index);
                FragmentHeader { message_len, offset, index }.emit(&mut body);
                body.extend_from_slice(piece);
                raw(FrameHeader { kind: FrameKind::Fragment, sequence, ..header }, &body)
            }
            Forgery::Heartbeat { next, oldest, end } => {
                control(header, FrameKind::Heartbeat, &beat(*next, *oldest, *end))
            }
            Forgery::Announce { next, oldest, incarnation, of_victim } => {
                let announce = Announce {
                    node: if *of_victim { publisher } else { 77 },
                    incarnation: *incarnation,
                    name: "stranger".into(),
                    topic: String::new(),
                    address: from.into(),
                    age_us: 0,
                    heartbeat: beat(*next, *oldest, false),
                    first: true,
                };
                control(header, FrameKind::Announce, &announce)
            }
            Forgery::Status { next, edge, at, of_victim, leaving } => {
                let status = Status {
                    node: if *of_victim { victim } else { attack.stranger as u128 },
                    incarnation: 9,
                    at: at.at(head),
                    next: next.at(head),
                    edge: edge.at(head),
                    echo: Some(next.at(head) as u32),
                    missing: at.at(head),
                    reliable: true,
                    leaving: *leaving,
                    ..Status::default()
                };
                control(header, FrameKind::Status, &status)
            }
            Forgery::Nak { base, runs } => {
                let nak = Nak { base: base.at(head), runs: runs.clone(), local: false };
                control(header, FrameKind::Nak, &nak)
            }
            Forgery::Gone { oldest } => {
                control(header, FrameKind::Gone, &Gone { oldest: oldest.at(head) })
            }
            Forgery::Released { of_victim } => {
                let node = if *of_victim { victim } else { 0 };
                control(header, FrameKind::Released, &Released { node, waited_ms: 9 })
            }
        }
    }
}

fn raw(header: FrameHeader, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_HEADER];
    header.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn control(header: FrameHeader, kind: FrameKind, body: &impl bincode::Encode) -> Vec<u8> {
    let mut out = [0; 480];
    let len = encode(body, &mut out).unwrap_or(0);
    raw(FrameHeader { kind, ..header }, &out[..len])
}

proptest! {
    #![proptest_config(crate::seeds::cases(64))]

    /// R-SPOOF-1, R-SPOOF-2, case 126: strangers disturb nobody.
    #[test]
    fn strangers_disturb_no_stream(
        attacks in prop::collection::vec(attack(), 1..150),
        kind in 0..2usize,
        seed in 0..1000u64,
    ) {
        let mut w = World::new(seed, Fabric::losing(0.02));
        w.overheard = Some(Default::default());
        let publisher = w.add();
        for _ in 0..2 {
            let m = w.add_with(|c| {
                c.max_streams = 16;
                c.max_streams_per_peer = 4;
                c.max_unknown_per_peer = 2;
            });
            let kinds = [Reliability::Ordered, Reliability::Unordered];
            // It wants the publisher's topic alone: what a stranger publishes itself is another matter.
            let mut config = reliability(kinds[kind]);
            config.topics = qcast_proto::subscribe::TopicPattern::new("real");
            w.subscribe(m, config);
        }
        // A stranger may join like anybody: it is let go like anybody.
        let config = publishing(|c| {
            c.topic = "real".into();
            c.grace = SECOND / 2;
        });
        let plan = Plan::of(0).every(Duration::from_micros(30)).sized(Sizes::Mixed);
        w.publish(publisher, config, plan);
        w.run_until(SECOND, "both join", |w| w.publisher().stats.receivers == 2);
        w.more(1_000);
        w.run_for(Duration::from_millis(1));
        for a in &attacks {
            let bytes = w.forge(a);
            let from = w.address(a.stranger);
            w.inject(from, a.to, a.multicast, &bytes);
            w.run_for(Duration::from_micros(a.pause));
            for m in &w.machines {
                let unknown = 16 * 64;
                prop_assert!(m.node.frames_kept() <= 1024 + unknown);
            }
        }
        w.settle_among_strangers(60 * SECOND);
        w.assert_all_got(1_000);
    }
}

impl World {
    /// As [`World::settle`], where datagrams that make no sense are no surprise.
    fn settle_among_strangers(&mut self, limit: Duration) {
        self.run_until(limit, "all is published", |w| w.publisher().is_done());
        self.run_until(limit, "all is received", |w| w.stragglers().is_empty());
        // Streams that strangers only named are forgotten, with the frames that were kept of them.
        self.run_for(30 * SECOND);
        for m in &self.machines {
            m.check_memory();
            assert_eq!(m.node.frames_kept(), 0);
        }
    }
}

/// A stranger takes the place of a publisher that sleeps. When that wakes up and the stranger is silent,
/// the stream goes on.
#[test]
fn a_sleeping_publishers_place_is_given_back() {
    crate::seeds::each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = crate::scene::plain(seed, Fabric::losing(0.02), 2, plan);
        w.more(5_000);
        w.run_for(SECOND);
        w.pause(0, true);
        w.run_for(SECOND);
        let header = w.header_of(0, 0);
        let stranger = w.address(500);
        let node = w.machines[0].config.id.0;
        for _ in 0..10 {
            let heartbeat = Heartbeat { next: 900, ..Heartbeat::default() };
            let announce = Announce {
                node,
                incarnation: 1,
                name: "node-0".into(),
                topic: String::new(),
                address: stranger.into(),
                age_us: 0,
                heartbeat,
                first: true,
            };
            let bytes = control(header, FrameKind::Announce, &announce);
            for m in [1, 2] {
                w.inject(stranger, m, true, &bytes);
            }
            w.run_for(SECOND / 10);
        }
        w.resume(0);
        w.settle_among_strangers(30 * SECOND);
        for s in w.subscribers() {
            assert_eq!(s.messages() + s.lost_frames(), 5_000);
            assert!(s.messages() > 3_000, "{}", s.messages());
        }
    });
}

/// A million lives from one peer: none of them is followed for long, the stream beside is.
#[test]
fn a_million_sessions_of_one_peer() {
    let living = Living::default();
    let control = Living::default();
    let mut now = Instant::ZERO;
    let mut node: Node<Slot, Received> = Node::new(now, NodeConfig::new(NodeId(1), 1, "victim"), 1);
    node.supply((0..4).map(|_| Slot::new(512, &control)));
    let world = World::new(0, Fabric::default());
    let group = node.join(now, crate::machine::GROUP, world.address(0));
    node.open_subscriber(now, group, SubscriberConfig::default()).expect("joined");
    let template = FrameHeader {
        kind: FrameKind::Data,
        domain: qcast_proto::addr::Domain(0),
        group: qcast_proto::addr::GroupTag::of(crate::machine::GROUP),
        stream: qcast_proto::addr::StreamId(0),
        session: SessionId(0),
        sequence: Sequence(0),
    };
    let mut bytes = raw(template, &[0, 1, 7]);
    let send = |node: &mut Node<Slot, Received>, now, from: PeerAddr, bytes: &[u8]| {
        node.handle_datagram(now, group, from, true, Received::new(bytes.into(), &living));
    };
    for n in 1..=1_000_000u64 {
        now += Duration::from_nanos(500);
        bytes[16..24].copy_from_slice(&n.to_be_bytes());
        send(&mut node, now, world.address(1), &bytes);
        if n.is_multiple_of(1000) {
            node.handle_timeout(now);
            while let Some(t) = node.poll_transmit(now) {
                node.handle_sent(t.token, t.frame);
            }
            while node.poll_event().is_some() {}
        }
    }
    let counters = node.group_counters(group);
    assert_eq!(counters.streams_refused, 1_000_000 - 16, "{counters:?}");
    assert!(node.frames_kept() <= 16 && living.count() <= 16);
    // Another peer's stream is followed all the same, and described ones are bounded too.
    for n in 0..5_000u64 {
        let announce = Announce {
            node: 9,
            incarnation: 1,
            name: "peer".into(),
            topic: "t".into(),
            address: world.address(2).into(),
            age_us: 0,
            heartbeat: Heartbeat::default(),
            first: true,
        };
        let header = FrameHeader { session: SessionId(1 << 40 | n), ..template };
        let bytes = control_frame(header, &announce);
        send(&mut node, now, world.address(2), &bytes);
    }
    assert_eq!(node.streams(group).len(), node.config().max_streams_per_peer);
}

fn control_frame(header: FrameHeader, announce: &Announce) -> Vec<u8> {
    control(header, FrameKind::Announce, announce)
}

/// Datagrams of other programs, versions, domains and groups are told apart and counted.
#[test]
fn foreign_datagrams_are_counted_apart() {
    let mut w = World::new(1, Fabric::default());
    w.add();
    w.publish(0, PublisherConfig::default(), Plan::of(0));
    let m = w.add();
    w.subscribe(m, SubscriberConfig::default());
    let good = raw(w.header_of(0, 0), &[0, 0]);
    let from = w.address(9);
    let change = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n, and then some more".to_vec(),
        change(2, 9),
        change(3, 99),
        change(7, 5),
        change(8, !good[8]),
        good[..20].to_vec(),
        [&good[..], &[9]].concat(),
    ] {
        w.inject(from, m, true, &bytes);
    }
    let c = w.machines[m].node.group_counters(w.machines[m].group);
    assert_eq!((c.foreign, c.malformed, c.wrong_domain, c.wrong_group), (1, 4, 1, 1), "{c:?}");
}
