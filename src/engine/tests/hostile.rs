//! Datagrams that nobody of ours sent.

use std::net::Ipv4Addr;

use bytes::Bytes;
use qcast_proto::addr::{Domain, Gid, GroupTag, QKey, Qpn, Sequence, SessionId, StreamId};
use qcast_proto::wire::control::{self, Gone, Heartbeat, Nak, Released, Status};
use qcast_proto::wire::frame::{FRAME_HEADER, FrameHeader, FrameKind};

use super::rig::{MILLI, Rig, mgid};
use crate::device::impair::Impairment;
use crate::device::sim::{PortConfig, Stray};

/// A control frame of any kind, with a body of any kind.
fn frame(rng: &mut fastrand::Rng, sessions: &[(SessionId, StreamId)]) -> Bytes {
    let (session, stream) = match rng.usize(..sessions.len() + 1) {
        n if n < sessions.len() => sessions[n],
        _ => (SessionId(rng.u64(..)), StreamId(rng.u32(..4))),
    };
    let kind = loop {
        if let Some(kind) = FrameKind::from_number(rng.u8(..16)) {
            break kind;
        }
    };
    let sequence = Sequence(if rng.bool() { rng.u64(..1 << 12) } else { rng.u64(..) });
    let header = FrameHeader {
        kind,
        domain: Domain(0),
        group: GroupTag::of("g"),
        stream,
        session,
        sequence,
    };
    let mut bytes = vec![0; 512];
    header.emit(&mut bytes[..FRAME_HEADER]);
    let number = |rng: &mut fastrand::Rng| if rng.bool() { rng.u64(..2000) } else { rng.u64(..) };
    let out = &mut bytes[FRAME_HEADER..];
    let len = match rng.u8(..6) {
        0 => {
            let runs = (0..rng.usize(..50)).map(|_| (rng.u32(..), rng.u32(..))).collect();
            control::encode(&Nak { base: number(rng), runs, local: rng.bool() }, out)
        }
        1 => control::encode(&Gone { oldest: number(rng) }, out),
        2 => control::encode(&Released { node: u128::from(number(rng)), waited_ms: 1 }, out),
        3 => {
            let beat = Heartbeat { next: number(rng), oldest: number(rng), ..Heartbeat::default() };
            control::encode(&Heartbeat { receivers: u32::MAX, wanted: rng.bool(), ..beat }, out)
        }
        4 => {
            let status = Status {
                node: u128::from(rng.u64(2..=4)),
                next: number(rng),
                edge: number(rng),
                leaving: rng.bool(),
                reliable: true,
                name: "liar".into(),
                ..Status::default()
            };
            control::encode(&status, out)
        }
        _ => {
            rng.fill(&mut out[..100]);
            Ok(rng.usize(..100))
        }
    };
    let mut len = FRAME_HEADER + len.unwrap_or(0);
    if rng.u8(..4) == 0 {
        len = rng.usize(..len);
    }
    bytes.truncate(len);
    bytes.into()
}

/// A stranger with the right key, who knows session and stream, says everything that can be said. The stream
/// goes on, nothing is lost, duplicated or made up, and nothing grows.
#[test]
fn a_stranger_with_the_key_can_say_what_it_likes() {
    for seed in 0..5 {
        let mut rig = Rig::new(seed);
        for _ in 0..4 {
            rig.add();
        }
        rig.meet(3);
        let mut rng = fastrand::Rng::with_seed(seed);
        let qkey = QKey::derive("g", b"s").get();
        let sessions: Vec<_> = {
            rig.publish(0, 1);
            rig.settle();
            let streams = rig.nodes[1]
                .engine
                .node
                .streams(*rig.nodes[1].engine.groups.keys().next().unwrap());
            streams.iter().map(|(info, _)| (info.key.session, info.key.stream)).collect()
        };
        assert_eq!(sessions.len(), 1);
        let qpns: Vec<Qpn> =
            (0..4).map(|node| rig.nodes[node].engine.device().qpn(rig.qp(node))).collect();
        for _ in 0..200 {
            for _ in 0..10 {
                let payload = frame(&mut rng, &sessions);
                let node = rng.usize(..4);
                rig.fabric.inject(if rng.bool() {
                    Stray::to_group(mgid("g"), qkey, payload)
                } else {
                    Stray::to_port(node, qpns[node], qkey, payload)
                });
            }
            rig.publish(0, 5);
            rig.run_for(MILLI);
        }
        rig.settle();
        let counters = rig.nodes[1].engine.groups.keys().next().copied();
        let counters = rig.nodes[1].engine.group_counters(counters.unwrap());
        assert!(counters.malformed > 0 && counters.spoofed > 0, "{counters:?}");
        (0..4).for_each(|node| rig.assert_buffers(node));
        assert_eq!(rig.receivers(0), 3, "seed {seed}");
    }
}

/// Questions from two hundred addresses that do not resolve, which takes a second each, keep nobody from being
/// answered, and the node from nothing.
#[test]
fn strangers_that_cannot_be_answered_keep_no_frame_from_others() {
    let mut rig = Rig::new(9);
    for _ in 0..3 {
        let rx = Impairment::lossy(0.02);
        let port = PortConfig { rx, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig.meet(2);
    rig.publish(0, 1);
    rig.settle();
    let qkey = QKey::derive("g", b"s").get();
    let group = *rig.nodes[1].engine.groups.keys().next().unwrap();
    let key = rig.nodes[1].engine.node.streams(group)[0].0.key;
    let header = FrameHeader {
        kind: FrameKind::Query,
        domain: Domain(0),
        group: GroupTag::of("g"),
        stream: key.stream,
        session: key.session,
        sequence: Sequence(0),
    };
    let mut query = vec![0; FRAME_HEADER];
    header.emit(&mut query);
    let qpn = rig.nodes[0].engine.device().qpn(rig.qp(0));
    let (turns, start) = (rig.nodes[0].turns, rig.now);
    for n in 0..200u8 {
        let mut stray = Stray::to_port(0, qpn, qkey, query.clone());
        stray.source.gid = Gid::from(Ipv4Addr::new(203, 0, 113, n));
        rig.fabric.inject(stray);
        rig.publish(0, 10);
        rig.run_for(MILLI);
    }
    rig.settle();
    assert!(rig.now.saturating_since(start) < 400 * MILLI, "{:?}", rig.now);
    assert!(rig.nodes[0].turns - turns < 20_000, "{} turns", rig.nodes[0].turns - turns);
    assert!(rig.nodes[0].engine.control_frames() >= 32);
}
