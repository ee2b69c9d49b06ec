//! Limits, refusals, and what waits between two polls.

use std::collections::VecDeque;

use qcast::device::soft::{SoftAddress, SoftConfig};
use qcast::device::{AhAttrs, Armed, Device, DeviceError, DeviceEvent};
use qcast_proto::addr::Qpn;

use crate::rig::{Rig, gid, own_group, pattern};

fn loopback() -> SoftConfig {
    SoftConfig::new(SoftAddress::Loopback)
}

#[test]
fn an_oversize_send_is_refused_and_what_was_before_it_goes() {
    // Case 82.
    let (mut wide, mut b) = (Rig::new(), Rig::new());
    let mut narrow = Rig::ready(&loopback().mtu(1024));
    narrow.spare.push(wide.spare.pop().unwrap());
    let to_b = narrow.ah(&b);
    let big = narrow.wr(to_b, b.qpn(), &[1; 1025]);
    let [first, last] = [b"first".as_slice(), b"last"].map(|p| narrow.wr(to_b, b.qpn(), p));
    let mut wrs = VecDeque::from([first, big, last]);
    let error = narrow.device.post_send(narrow.qp, &mut wrs).unwrap_err();
    assert!(matches!(error, DeviceError::TooLarge { len: 1025, max: 1024 }), "{error:?}");
    assert_eq!(wrs.len(), 2, "it and those behind it stay");
    wrs.pop_front();
    narrow.post(wrs);
    b.until_arrived(2);
    assert_eq!(b.payloads(), [b"first".as_slice(), b"last"]);
}

#[test]
fn groups_that_are_none_are_refused() {
    // Case 45.
    let mut rig = Rig::new();
    assert!(matches!(rig.join("192.168.3.146"), Err(DeviceError::NotMulticast(_))));
    assert!(matches!(rig.join("224.0.0.5"), Err(DeviceError::ReservedMulticast(_))));
    assert!(matches!(rig.join("ff02::5"), Err(DeviceError::ReservedMulticast(_))));
    assert!(matches!(rig.join("ff0e::5"), Err(DeviceError::FamilyMismatch { .. })));
    assert_eq!(rig.device.sources().fds.len(), 1);
    rig.join("224.0.1.200").unwrap();
}

#[test]
fn peers_of_the_other_family_are_refused() {
    let mut rig = Rig::new();
    let error = rig.device.create_ah(&AhAttrs { gid: gid("::1"), udp_port: 4791 }).unwrap_err();
    assert!(matches!(error, DeviceError::FamilyMismatch { .. }), "{error:?}");
}

#[test]
fn joining_twice_is_joining_once() {
    let mut rig = Rig::new();
    let group = own_group();
    let ah = rig.join(&group).unwrap();
    assert_eq!(rig.join(&group).unwrap(), ah);
    rig.device.leave(rig.qp, gid(&group)).unwrap();
    rig.device.leave(rig.qp, gid(&group)).unwrap_err();
    assert_eq!(rig.device.sources().fds.len(), 1);
}

#[test]
fn a_group_whose_port_is_not_shared_cannot_be_joined() {
    let group = own_group();
    let selfish = std::net::UdpSocket::bind((group.as_str(), 4791)).unwrap();
    let mut rig = Rig::new();
    let error = rig.join(&group).unwrap_err();
    assert!(error.to_string().contains("4791"), "{error}");
    assert_eq!(rig.device.sources().fds.len(), 1);
    drop(selfish);
    rig.join(&group).unwrap();
}

#[test]
fn a_join_given_up_is_not_answered() {
    let mut rig = Rig::new();
    let group = own_group();
    rig.device.join(rig.qp, gid(&group)).unwrap();
    rig.device.leave(rig.qp, gid(&group)).unwrap();
    assert!(rig.device.poll_event().is_none());
}

#[test]
fn address_handles_are_bounded_and_pinned_by_sends() {
    let mut config = loopback();
    config.max_ah = 2;
    let (mut a, mut b) = (Rig::ready(&config), Rig::new());
    let to_b = a.ah(&b);
    let group = own_group();
    let to_group = a.join(&group).unwrap();
    let port = b.device.port();
    let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
    let error = a.device.create_ah(&to).unwrap_err();
    assert!(matches!(error, DeviceError::Exhausted { limit: 2, .. }), "{error:?}");
    assert!(matches!(a.join(&own_group()), Err(DeviceError::Exhausted { .. })));
    assert_eq!(a.device.sources().fds.len(), 2, "a join that failed leaves no socket");

    let mut wrs: VecDeque<_> =
        [a.wr(to_b, b.qpn(), b"x"), a.wr(to_group, Qpn::MULTICAST, b"y")].into();
    a.device.post_send(a.qp, &mut wrs).unwrap();
    assert!(matches!(a.device.destroy_ah(to_b), Err(DeviceError::Busy(_))));
    // The group's own handle goes when its last send has completed.
    a.device.leave(a.qp, gid(&group)).unwrap();
    assert!(matches!(a.device.create_ah(&to), Err(DeviceError::Exhausted { .. })));
    a.turn();
    a.device.create_ah(&to).unwrap();
    a.device.destroy_ah(to_b).unwrap();
    assert!(matches!(a.device.destroy_ah(to_b), Err(DeviceError::NoSuch(_))));
    let mut wrs: VecDeque<_> = [a.wr(to_b, b.qpn(), b"z")].into();
    assert!(matches!(a.device.post_send(a.qp, &mut wrs), Err(DeviceError::NoSuch(_))));
    b.until_arrived(1);
}

#[test]
fn the_send_queue_is_full_until_completions_are_polled() {
    let mut config = loopback();
    config.send_depth = 10;
    let (mut a, mut b) = (Rig::ready(&config), Rig::new());
    let to_b = a.ah(&b);
    let mut wrs: VecDeque<_> = (0..25).map(|n| a.wr(to_b, b.qpn(), &pattern(n, 50))).collect();
    let post = |a: &mut Rig, wrs: &mut VecDeque<_>| {
        a.device.post_send(a.qp, wrs).unwrap();
        wrs.len()
    };
    assert_eq!(post(&mut a, &mut wrs), 15);
    assert_eq!(post(&mut a, &mut wrs), 15, "no completion was polled");
    a.turn();
    assert_eq!(post(&mut a, &mut wrs), 5);
    a.turn();
    assert_eq!(post(&mut a, &mut wrs), 0);
    b.until_arrived(25);
    let expected: Vec<_> = (0..25).map(|n| pattern(n, 50)).collect();
    assert_eq!(b.payloads(), expected);
}

#[test]
fn the_srq_takes_what_fits() {
    let mut rig = Rig::bare(&loopback().srq_depth(100));
    let mut bufs = rig.device.alloc_recv(150).unwrap();
    rig.device.post_recv(&mut bufs).unwrap();
    assert_eq!((rig.device.posted_recvs(), bufs.len()), (100, 50));
    rig.device.post_recv(&mut bufs).unwrap();
    assert_eq!(bufs.len(), 50);
}

#[test]
fn the_srq_limit_tells_once() {
    // Case 71.
    let (mut a, mut b) = (Rig::new(), Rig::bare(&loopback()));
    b.walk(b.qp, qcast_proto::qp::QpState::Rts, crate::rig::QKEY);
    b.post_recvs(64);
    b.repost = false;
    b.device.arm_srq_limit(16).unwrap();
    let to_b = a.ah(&b);
    let told = |b: &Rig| b.events.iter().filter(|e| matches!(e, DeviceEvent::SrqLimit)).count();
    let mut arrived = 0;
    let mut send = |b: &mut Rig, a: &mut Rig, count: usize| {
        for _ in 0..count {
            a.send(to_b, b.qpn(), &[b"x"]);
        }
        arrived += count;
        b.until_arrived(arrived);
    };
    send(&mut b, &mut a, 48);
    assert_eq!((b.device.posted_recvs(), told(&b)), (16, 0));
    send(&mut b, &mut a, 1);
    assert_eq!((b.device.posted_recvs(), told(&b)), (15, 1));
    send(&mut b, &mut a, 5);
    assert_eq!(told(&b), 1, "it is not told again before it is armed again");
    b.device.arm_srq_limit(8).unwrap();
    send(&mut b, &mut a, 3);
    assert_eq!((b.device.posted_recvs(), told(&b)), (7, 2));
}

#[test]
fn the_backlog_that_the_device_claims_is_kept() {
    for offload in [true, false] {
        for mtu in [1024, 4096] {
            let config = loopback().mtu(mtu).recv_buffer(256 << 10).offload(offload);
            let (mut a, mut b) = (Rig::ready(&config), Rig::ready(&config));
            let backlog = b.device.caps().backlog;
            assert!((30..1024).contains(&backlog), "{backlog}");
            let to_b = a.ah(&b);
            let payload = pattern(1, mtu);
            let wrs = (0..backlog).map(|_| a.wr(to_b, b.qpn(), &payload)).collect();
            a.post(wrs);
            b.until_arrived(backlog);
            assert_eq!(b.device.counters().overruns, 0);
        }
    }
}

#[test]
fn what_the_kernel_drops_is_counted() {
    for offload in [true, false] {
        let config = loopback().recv_buffer(64 << 10).offload(offload);
        let (mut a, mut b) = (Rig::ready(&config), Rig::ready(&config));
        let to_b = a.ah(&b);
        let payload = pattern(2, 4096);
        let wrs = (0..500).map(|_| a.wr(to_b, b.qpn(), &payload)).collect();
        a.post(wrs);
        b.turn();
        let arrived = b.arrived.len();
        assert!(arrived > 0 && arrived < 500, "{arrived} arrived");
        // The count comes with the next datagram.
        a.send(to_b, b.qpn(), &[b"next"]);
        b.until_arrived(arrived + 1);
        let overruns = b.device.counters().overruns as usize;
        if offload {
            // The kernel counts a batch that it keeps together, 15 datagrams here, as one.
            assert_eq!(arrived + 15 * overruns, 510, "500 are 33 batches and 5 over");
        } else {
            assert_eq!(arrived + overruns, 500);
        }
    }
}

#[test]
fn arm_says_again_while_something_waits() {
    // Cases 84 and 85.
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let group = own_group();
    let to_b = a.ah(&b);
    assert_eq!(b.device.arm(), Armed::Again, "nothing was looked at yet");
    b.turn();
    assert_eq!(b.device.arm(), Armed::Sleep);
    b.device.join(b.qp, gid(&group)).unwrap();
    assert_eq!(b.device.arm(), Armed::Again, "an event waits");
    assert!(b.device.poll_event().is_some());
    assert_eq!(b.device.arm(), Armed::Again, "a new socket was not looked at yet");
    b.turn();
    assert_eq!(b.device.arm(), Armed::Sleep);
    // More than one budget's worth: the rest must not be slept over, on whichever socket it is.
    for _ in 0..40 {
        a.send(to_b, b.qpn(), &[b"one", b"two", b"three"]);
    }
    let mut out = Vec::new();
    b.device.poll(&mut out, 50);
    assert_eq!(out.len(), 50);
    assert_eq!(b.device.arm(), Armed::Again);
    b.device.poll(&mut out, 200);
    assert_eq!(out.len(), 120);
    assert_eq!(b.device.arm(), Armed::Sleep);
    // A completion that was not polled yet.
    let mut wrs: VecDeque<_> = [a.wr(to_b, b.qpn(), b"x")].into();
    a.device.post_send(a.qp, &mut wrs).unwrap();
    assert_eq!(a.device.arm(), Armed::Again);
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    // Case 84: each side sleeps until the other has answered, so one lost edge stops both.
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let group = own_group();
    let (to_b, to_a) = (a.ah(&b), b.ah(&a));
    let (qpn_a, qpn_b) = (a.qpn(), b.qpn());
    let (all, _) = (a.join(&group).unwrap(), b.join(&group).unwrap());
    let rounds = 5_000;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=rounds {
                // By unicast and by multicast in turn: two sockets.
                b.until("the question", |b| b.arrived.len() >= round);
                b.send(to_a, qpn_a, &[b"answer"]);
            }
        });
        let mut answers = 0;
        for round in 0..rounds {
            if round % 2 == 0 {
                a.send(to_b, qpn_b, &[b"question"]);
            } else {
                a.send(all, Qpn::MULTICAST, &[b"question"]);
            }
            a.until("the answer", |a| {
                answers = a.arrived.iter().filter(|(payload, ..)| payload == b"answer").count();
                answers > 0
            });
            a.arrived.clear();
        }
    });
}

#[test]
fn a_busy_socket_does_not_starve_the_others() {
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let group = own_group();
    let all = a.join(&group).unwrap();
    b.join(&group).unwrap();
    let to_b = a.ah(&b);
    let full = pattern(0, 1000);
    for _ in 0..100 {
        a.send(all, Qpn::MULTICAST, &[&full]);
    }
    a.send(to_b, b.qpn(), &[b"unicast"]);
    let mut out = Vec::new();
    let mut polls = 0;
    while !out.iter().any(|completion| {
        matches!(completion, qcast::device::Completion::Recv { source, .. } if !source.multicast)
    }) {
        b.device.poll(&mut out, 8);
        polls += 1;
        assert!(polls <= 3, "the unicast waits behind {} multicasts", out.len());
    }
}
