//! What is sent arrives as it was, or is dropped and counted.

use std::collections::VecDeque;

use qcast::device::soft::{SoftAddress, SoftConfig};
use qcast::device::{AhAttrs, Device, WcStatus};
use qcast_proto::addr::Qpn;
use qcast_proto::qp::QpState;

use crate::rig::{QKEY, Random, Rig, gid, own_group, pattern};

fn ipv6() -> SoftConfig {
    SoftConfig::new(SoftAddress::Addr("::1".parse().unwrap()))
}

fn unicast(mut a: Rig, mut b: Rig) {
    let (to_b, to_a) = (a.ah(&b), b.ah(&a));
    a.send(to_b, b.qpn(), &[b"hello", b""]);
    b.until_arrived(2);
    assert_eq!(b.payloads(), [b"hello".as_slice(), b""]);
    let (_, source, qp) = b.arrived[0];
    assert_eq!(qp, b.qp);
    assert_eq!((source.gid, source.udp_port), (a.device.port().gid, a.device.port().udp_port));
    assert_eq!((source.qpn, source.multicast), (a.qpn(), false));
    assert_eq!(a.sent, [(5, WcStatus::Success), (0, WcStatus::Success)]);

    b.send(to_a, source.qpn, &[b"and back"]);
    a.until_arrived(1);
    assert_eq!(a.payloads(), [b"and back"]);
    assert_eq!((a.device.counters().sent, a.device.counters().received), (2, 1));
    assert_eq!((b.device.counters().sent, b.device.counters().received), (1, 2));
}

#[test]
fn unicast_there_and_back() {
    unicast(Rig::new(), Rig::new());
}

#[test]
fn unicast_over_ipv6_where_only_one_has_port_4791() {
    let (a, b) = (Rig::ready(&ipv6()), Rig::ready(&ipv6()));
    assert_ne!(a.device.port().udp_port, b.device.port().udp_port);
    unicast(a, b);
}

#[test]
fn a_multicast_reaches_every_member_and_the_sender() {
    let group = own_group();
    let mut rigs = [Rig::new(), Rig::new(), Rig::new()];
    let ah = rigs.each_mut().map(|rig| rig.join(&group).unwrap())[0];
    let mut stranger = Rig::new();
    stranger.join(&own_group()).unwrap();
    rigs[0].send(ah, Qpn::MULTICAST, &[b"to all", b"and again"]);
    let (from, qpn) = (rigs[0].device.port().gid, rigs[0].qpn());
    for rig in &mut rigs {
        rig.until_arrived(2);
        assert_eq!(rig.payloads(), [b"to all".as_slice(), b"and again"]);
        let (_, source, _) = rig.arrived[0];
        assert!(source.multicast && source.gid == from && source.qpn == qpn);
        assert_eq!(source.udp_port, 4791);
    }
    stranger.turn();
    assert!(stranger.arrived.is_empty());
}

#[test]
fn who_is_no_member_can_send_to_a_group() {
    let group = own_group();
    let (mut a, mut b) = (Rig::new(), Rig::new());
    b.join(&group).unwrap();
    // The port of a handle that leads to a group is 4791 whatever was asked for.
    let to = AhAttrs { gid: gid(&group), udp_port: 9 };
    let (ah, _) = a.device.create_ah(&to).unwrap();
    a.send(ah, Qpn::MULTICAST, &[b"from outside"]);
    b.until_arrived(1);
}

/// Sends of random sizes in random runs, checked byte for byte at two members.
fn batches(sender: SoftConfig, receiver: SoftConfig, seed: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let group = own_group();
    let mut a = Rig::ready(&sender);
    let mut hearers = [Rig::ready(&receiver), Rig::new()];
    let ah = a.join(&group).unwrap();
    a.repost = false; // it hears itself until its receives are used up
    for rig in &mut hearers {
        rig.join(&group).unwrap();
    }
    // Where net.core.rmem_max is small, so is what may be under way.
    let room = hearers.each_ref().map(|rig| rig.device.caps().backlog).into_iter().min().unwrap();
    let mut expected = Vec::new();
    for round in 0..100 {
        let mut wrs = VecDeque::new();
        while wrs.len() < room.min(150) {
            let len = random.below(4097);
            // Runs of one size, then perhaps a shorter one: what the kernel can cut.
            for _ in 0..(1 + random.below(69)).min(room - wrs.len()) {
                expected.push(pattern(expected.len() + round, len));
                wrs.push_back(a.wr(ah, Qpn::MULTICAST, expected.last().unwrap()));
            }
        }
        a.post(wrs);
        for rig in &mut hearers {
            rig.until_arrived(expected.len());
        }
    }
    for rig in &hearers {
        let wrong = rig.payloads().iter().zip(&expected).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "the first datagram that differs");
        assert_eq!(rig.device.counters().received, expected.len() as u64);
        assert_eq!(rig.device.counters().icrc_errors, 0);
    }
    assert_eq!(a.device.counters().sent, expected.len() as u64);
}

fn loopback() -> SoftConfig {
    SoftConfig::new(SoftAddress::Loopback)
}

#[test]
fn batches_of_mixed_sizes_arrive_byte_for_byte() {
    batches(loopback(), loopback(), 1);
}

#[test]
fn so_they_do_where_the_sender_does_not_segment() {
    batches(loopback().offload(false), loopback(), 2);
}

#[test]
fn and_where_the_receiver_does_not_coalesce() {
    batches(loopback(), loopback().offload(false), 3);
}

#[test]
fn sends_to_many_destinations_in_one_post_keep_their_order() {
    let mut a = Rig::new();
    let mut peers = [Rig::new(), Rig::new(), Rig::new()];
    let ahs = peers.each_ref().map(|peer| a.ah(peer));
    let mut wrs = VecDeque::new();
    for n in 0..300 {
        // 0 1 2 2 2 0 1 2 2 2: singles and runs in turn.
        let to = (n % 5).min(2);
        let payload = pattern(n, 100 + n % 7);
        wrs.push_back(a.wr(ahs[to], peers[to].qpn(), &payload));
    }
    a.post(wrs);
    for (to, peer) in peers.iter_mut().enumerate() {
        let expected: Vec<_> =
            (0..300).filter(|n| (n % 5).min(2) == to).map(|n| pattern(n, 100 + n % 7)).collect();
        peer.until_arrived(expected.len());
        assert_eq!(peer.payloads(), expected);
    }
}

#[test]
fn a_wrong_key_is_dropped_and_counted_exactly() {
    let group = own_group();
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let ah = a.join(&group).unwrap();
    b.join(&group).unwrap();
    for qkey in [QKEY ^ 1, 0, 0x7fff_ffff] {
        let mut wr = a.wr(ah, Qpn::MULTICAST, b"not for you");
        wr.qkey = qkey;
        a.post([wr].into());
    }
    a.send(ah, Qpn::MULTICAST, &[b"for you"]);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [b"for you"]);
    assert_eq!(b.device.counters().qkey_violations, 3);
    assert_eq!(b.device.posted_recvs(), 1024, "a violation uses no receive up");
}

#[test]
fn bit_31_in_a_send_means_the_queue_pairs_own_key() {
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let to_b = a.ah(&b);
    let mut wr = a.wr(to_b, b.qpn(), b"own key");
    wr.qkey = 0x8000_0000;
    a.post([wr].into());
    b.until_arrived(1);
}

#[test]
fn with_no_receive_posted_a_datagram_is_dropped_and_counted() {
    // Case 70.
    let (mut a, mut b) = (Rig::new(), Rig::bare(&loopback()));
    b.walk(b.qp, QpState::Rts, QKEY);
    b.post_recvs(16);
    b.repost = false;
    let to_b = a.ah(&b);
    let payloads: Vec<_> = (0..100).map(|n| pattern(n, 64)).collect();
    let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
    a.send(to_b, b.qpn(), &payloads);
    b.until("the drops", |b| b.device.counters().out_of_buffer == 84);
    assert_eq!(b.payloads(), payloads[..16]);
    // Nothing was kept for later.
    b.post_recvs(16);
    a.send(to_b, b.qpn(), &[b"later"]);
    b.until_arrived(17);
    assert_eq!(b.payloads()[16], b"later");
}

#[test]
fn what_does_not_fit_its_buffer_uses_one_up() {
    // Case 66.
    let (mut a, mut b) = (Rig::new(), Rig::ready(&loopback().mtu(1024)));
    b.repost = false;
    let to_b = a.ah(&b);
    a.send(to_b, b.qpn(), &[&[7; 1025], &[8; 1024]]);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [[8; 1024]]);
    assert_eq!(b.failed, [WcStatus::LocLenErr]);
    assert_eq!(b.device.posted_recvs(), 1022);
    assert_eq!(b.device.query_qp(b.qp).unwrap().state, QpState::Rts);
}

#[test]
fn each_attached_queue_pair_gets_its_copy_through_one_socket() {
    // Case 53.
    let group = own_group();
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let ah = a.join(&group).unwrap();
    let first = b.qp;
    b.join(&group).unwrap();
    let second = b.device.create_qp().unwrap();
    b.walk(second, QpState::Rts, QKEY);
    b.qp = second;
    b.join(&group).unwrap();
    assert_eq!(b.device.sources().fds.len(), 2);
    b.repost = false;
    a.send(ah, Qpn::MULTICAST, &[b"twice"]);
    b.until_arrived(2);
    let mut got = [b.arrived[0].2, b.arrived[1].2];
    got.sort();
    assert_eq!(got, [first, second]);
    assert_eq!(b.device.posted_recvs(), 1022);
    // One leaves, the other goes on hearing.
    b.device.leave(first, gid(&group)).unwrap();
    a.send(ah, Qpn::MULTICAST, &[b"once"]);
    b.until_arrived(3);
    assert_eq!(b.arrived[2].2, second);
}

#[test]
fn two_groups_are_heard_apart() {
    let (one, other) = (own_group(), own_group());
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let to_one = a.join(&one).unwrap();
    let to_other = a.join(&other).unwrap();
    b.join(&one).unwrap();
    let epoch = b.device.sources().epoch;
    a.send(to_other, Qpn::MULTICAST, &[b"other"]);
    a.send(to_one, Qpn::MULTICAST, &[b"one"]);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [b"one"]);
    // Joining and leaving show in the sources.
    b.join(&other).unwrap();
    assert!(b.device.sources().epoch > epoch && b.device.sources().fds.len() == 3);
    a.send(to_other, Qpn::MULTICAST, &[b"now the other"]);
    b.until_arrived(2);
    b.device.leave(b.qp, gid(&one)).unwrap();
    a.send(to_one, Qpn::MULTICAST, &[b"unheard"]);
    a.send(to_other, Qpn::MULTICAST, &[b"heard"]);
    b.until_arrived(3);
    assert_eq!(b.payloads()[2], b"heard");
}
