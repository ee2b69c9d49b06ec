//! Groups: C-MC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use qcast::device::{Device, DeviceError, DeviceEvent};
use qcast_proto::addr::Gid;
use qcast_proto::qp::{QpAttrs, QpState};

use crate::bench::Bench;
use crate::rig::{Rig, To, fresh_group, fresh_key};

/// C-MC-1, C-MC-3.
pub(crate) fn members_hear_a_group_and_others_do_not<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let gid = rig.device(0).port().gid;
    let (mgid, other) = (fresh_group(gid), fresh_group(gid));
    let qps = [0, 1, 2].map(|n| rig.qp(n, key));
    let ah = rig.join(0, qps[0], mgid);
    rig.join(1, qps[1], mgid);
    let other_ah = rig.join(2, qps[2], other);
    for n in [1, 2] {
        rig.post(n, 4);
    }
    rig.send(0, qps[0], To::group(ah, key), b"to members");
    assert_eq!(rig.payloads(1, 1), [b"to members"]);
    rig.send(2, qps[2], To::group(other_ah, key), b"to the other group");
    let to_two = rig.to(0, 2, qps[2], key);
    rig.send(0, qps[0], to_two, b"last");
    rig.until("the last", |rig| rig.ends[2].got.iter().any(|got| got.payload == b"last"));
    assert!(rig.ends[2].got.iter().all(|got| got.payload != b"to members"));
    let to_one = rig.to(0, 1, qps[1], key);
    rig.send(0, qps[0], to_one, b"last");
    assert_eq!(rig.payloads(1, 1), [b"last"]);
}

/// C-MC-3, case 53: which is why the engine attaches one queue pair to a group.
pub(crate) fn every_attached_queue_pair_takes_its_own_copy<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let ours = rig.qp(0, key);
    let ah = rig.join(0, ours, mgid);
    let theirs = [rig.qp(1, key), rig.qp(1, key)];
    for qp in theirs {
        rig.join(1, qp, mgid);
    }
    rig.post(1, 4);
    rig.send(0, ours, To::group(ah, key), b"twice");
    rig.until("both copies", |rig| rig.ends[1].got.len() == 2);
    assert_eq!(rig.device(1).posted_recvs(), 2);
    let mut qps: Vec<_> = rig.ends[1].got.iter().filter_map(|got| got.qp).collect();
    qps.sort();
    assert_eq!(qps, theirs);
}

/// C-MC-1, C-MC-3: as in the kernel, the second attachment is not counted.
pub(crate) fn joining_twice_is_joining_once<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let ah = rig.join(0, ours, mgid);
    let first = rig.join(1, theirs, mgid);
    assert_eq!(rig.join(1, theirs, mgid), first);
    rig.post(1, 4);
    rig.send(0, ours, To::group(ah, key), b"1");
    rig.send(0, ours, To::group(ah, key), b"2");
    assert_eq!(rig.payloads(1, 2), [b"1", b"2"]);
    rig.device(1).leave(theirs, mgid).unwrap();
    assert!(matches!(rig.device(1).leave(theirs, mgid), Err(DeviceError::NoSuch(_))));
}

/// C-MC-4, case 52.
pub(crate) fn ones_own_multicast_comes_back_as_announced<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let ours = rig.qp(0, key);
    let ah = rig.join(0, ours, mgid);
    rig.post(0, 4);
    rig.send(0, ours, To::group(ah, key), b"echo");
    let to_self = rig.to(0, 0, ours, key);
    rig.send(0, ours, to_self, b"last");
    let last = |rig: &Rig<B>| rig.ends[0].got.iter().any(|got| got.payload == b"last");
    let echoes = |rig: &Rig<B>| rig.ends[0].got.iter().filter(|got| got.source.multicast).count();
    match rig.device(0).caps().loops_back {
        Some(true) => rig.until("the echo", |rig| last(rig) && echoes(rig) == 1),
        Some(false) => {
            rig.until("the last", |rig| last(rig));
            assert_eq!(echoes(rig), 0);
        }
        None => rig.until("the last", |rig| last(rig)),
    }
}

/// C-MC-2, case 45.
pub(crate) fn addresses_that_are_no_groups_are_refused<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.qp(0, 1);
    let join = |rig: &mut Rig<B>, ip: IpAddr| rig.device(0).join(qp, Gid::from(ip)).unwrap_err();
    for unicast in [Ipv4Addr::new(192, 168, 3, 146).into(), Ipv6Addr::LOCALHOST.into()] {
        let error = join(rig, unicast);
        assert!(matches!(error, DeviceError::NotMulticast(ip) if ip == unicast), "{error}");
        assert!(error.to_string().contains("239."), "{error}");
    }
    for reserved in ["224.0.0.5", "ff02::1"] {
        let error = join(rig, reserved.parse().unwrap());
        assert!(matches!(error, DeviceError::ReservedMulticast(_)), "{error}");
    }
    let foreign: IpAddr = match rig.device(0).port().gid.ip() {
        IpAddr::V4(_) => "ff15::7163:1".parse().unwrap(),
        IpAddr::V6(_) => Ipv4Addr::new(239, 192, 1, 2).into(),
    };
    let error = join(rig, foreign);
    assert!(matches!(error, DeviceError::FamilyMismatch { .. }), "{error}");
    rig.drain();
    assert!(rig.ends[0].events.is_empty(), "what was not begun has no end");
}

/// C-MC-5.
pub(crate) fn after_leaving_nothing_arrives<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let qps = [0, 1, 2].map(|n| rig.qp(n, key));
    let ah = rig.join(0, qps[0], mgid);
    assert!(matches!(rig.device(1).leave(qps[1], mgid), Err(DeviceError::NoSuch(_))));
    rig.join(1, qps[1], mgid);
    rig.join(2, qps[2], mgid);
    rig.post(1, 4);
    rig.post(2, 4);
    rig.send(0, qps[0], To::group(ah, key), b"1");
    assert_eq!(rig.payloads(1, 1), [b"1"]);
    rig.device(1).leave(qps[1], mgid).unwrap();
    rig.send(0, qps[0], To::group(ah, key), b"2");
    assert_eq!(rig.payloads(2, 2), [b"1", b"2"]);
    let to = rig.to(0, 1, qps[1], key);
    rig.send(0, qps[0], to, b"3");
    assert_eq!(rig.payloads(1, 1), [b"3"]);
    assert_eq!(rig.device(1).counters().malformed, 0, "the group's datagrams do not even come");
    rig.join(1, qps[1], mgid);
    rig.send(0, qps[0], To::group(ah, key), b"4");
    assert_eq!(rig.payloads(1, 1), [b"4"]);
    // A join that is given up before its answer was taken has none.
    let late = fresh_group(rig.device(0).port().gid);
    rig.device(1).join(qps[1], late).unwrap();
    rig.device(1).leave(qps[1], late).unwrap();
    rig.send(0, qps[0], To::group(ah, key), b"5");
    rig.payloads(1, 1);
    assert!(
        !rig.ends[1]
            .events
            .iter()
            .any(|event| { matches!(event, DeviceEvent::Joined { mgid, .. } if *mgid == late) })
    );
}

/// C-MC-6, case 55.
pub(crate) fn an_attached_queue_pair_cannot_be_destroyed<B: Bench>(rig: &mut Rig<B>) {
    let mgid = fresh_group(rig.device(0).port().gid);
    let qp = rig.qp(0, 1);
    rig.join(0, qp, mgid);
    let error = rig.device(0).destroy_qp(qp).unwrap_err();
    assert!(matches!(error, DeviceError::Busy(_)), "{error}");
    assert_eq!(rig.state(0, qp), QpState::Rts);
    rig.device(0).leave(qp, mgid).unwrap();
    rig.device(0).destroy_qp(qp).unwrap();
}

/// C-STATE-7, case 17.
pub(crate) fn membership_outlives_a_reset<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let ah = rig.join(0, ours, mgid);
    rig.join(1, theirs, mgid);
    rig.post(1, 2);
    for (n, qp) in [(0, ours), (1, theirs)] {
        rig.device(n).modify_qp(qp, &QpAttrs::to(QpState::Reset)).unwrap();
        rig.walk(n, qp, QpState::Rts, key);
    }
    rig.send(0, ours, To::group(ah, key), b"still there");
    assert_eq!(rig.payloads(1, 1), [b"still there"]);
}

/// C-MC-7.
pub(crate) fn receives_say_who_sent_them<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let ah = rig.join(0, ours, mgid);
    rig.join(1, theirs, mgid);
    rig.post(1, 2);
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, To::group(ah, key), b"m");
    rig.until("the multicast", |rig| rig.ends[1].got.len() == 1);
    rig.send(0, ours, to, b"u");
    rig.until("the unicast", |rig| rig.ends[1].got.len() == 2);
    let (port, qpn) = (rig.device(0).port(), rig.device(0).qpn(ours));
    for got in &rig.ends[1].got {
        assert_eq!(got.qp, Some(theirs));
        assert_eq!(got.source.gid, port.gid);
        assert_eq!(got.source.qpn, qpn);
        assert_eq!(got.source.udp_port, port.udp_port);
        assert_eq!(got.source.multicast, got.payload == b"m");
    }
}
