//! Buffers and sizes: C-BUF, C-SIZE. That none is lost or made is checked after every case.

use std::collections::VecDeque;

use qcast::device::{AhId, Device, DeviceError, RecvBuf, SendBuf, WcStatus};
use qcast_proto::qp::QpState;

use crate::bench::{Bench, MTU, PATIENCE, SENDS};
use crate::rig::{Rig, To, fresh_key, skip};

/// C-BUF-2, cases 66 and 67.
pub(crate) fn payloads_of_every_size_arrive_whole<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    let to = rig.to(0, 1, theirs, key);
    let max = rig.device(0).caps().max_payload;
    for len in [0, 1, 2, 3, 4, 5, 63, 64, 65, 1000, max - 1, max] {
        rig.post(1, 1);
        let payload: Vec<_> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        rig.send(0, ours, to, &payload);
        let got = rig.payloads(1, 1);
        assert!(got[0] == payload, "a payload of {len} bytes came as {} bytes", got[0].len());
    }
}

/// C-BUF-5.
pub(crate) fn sends_complete_in_order<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, SENDS);
    let (there, elsewhere) = (rig.to(0, 1, theirs, key), rig.to(0, 2, theirs, key));
    let mut requests = VecDeque::new();
    for token in 0..SENDS as u64 {
        let to = if token % 3 == 2 { elsewhere } else { there };
        requests.push_back(rig.request(0, to, token, &[token as u8; 100]));
    }
    rig.try_post(0, ours, &mut requests).unwrap();
    assert!(requests.is_empty());
    for (done, token) in rig.done(0, SENDS).into_iter().zip(0..) {
        let ah = if token % 3 == 2 { elsewhere.ah } else { there.ah };
        assert_eq!((done.token, done.qp, done.ah), (token, ours, ah));
        assert_eq!(done.status, WcStatus::Success);
    }
    let got = rig.payloads(1, SENDS - SENDS / 3);
    assert!(got.is_sorted(), "datagrams of one sender to one queue pair came out of order");
}

/// C-BUF-4.
pub(crate) fn a_full_send_queue_takes_no_more<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, SENDS + 2);
    let depth = rig.device(0).caps().max_send_wr;
    if depth > SENDS {
        return skip(&format!("a send queue of {depth} is too long to fill"));
    }
    let to = rig.to(0, 1, theirs, key);
    let mut requests = VecDeque::new();
    for token in 0..depth as u64 + 2 {
        requests.push_back(rig.request(0, to, token, &[token as u8]));
    }
    rig.try_post(0, ours, &mut requests).unwrap();
    assert_eq!(
        requests.iter().map(|wr| wr.token).collect::<Vec<_>>(),
        [depth as u64, depth as u64 + 1]
    );
    rig.try_post(0, ours, &mut requests).unwrap();
    assert_eq!(requests.len(), 2, "nothing was polled, so there is no room");
    rig.done(0, depth);
    rig.try_post(0, ours, &mut requests).unwrap();
    assert!(requests.is_empty());
    rig.done(0, 2);
    assert_eq!(rig.payloads(1, depth + 2).len(), depth + 2);
}

/// C-BUF-3, C-AH-4, C-SIZE-1.
pub(crate) fn a_refused_send_stays_at_the_front<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    let nowhere = To { ah: AhId(0xdead), ..to };
    let mut requests = VecDeque::from([
        rig.request(0, to, 1, b"1"),
        rig.request(0, nowhere, 2, b"2"),
        rig.request(0, to, 3, b"3"),
    ]);
    let error = rig.try_post(0, ours, &mut requests).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuch(_)), "{error}");
    assert_eq!(requests.iter().map(|wr| wr.token).collect::<Vec<_>>(), [2, 3]);
    rig.give_back(0, requests.pop_front());
    rig.try_post(0, ours, &mut requests).unwrap();
    assert_eq!(rig.payloads(1, 2), [b"1", b"3"]);
}

/// C-BUF-6.
pub(crate) fn poll_keeps_to_its_budget<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 10);
    let to = rig.to(0, 1, theirs, key);
    for n in 0..10 {
        rig.send(0, ours, to, &[n]);
    }
    let mut taken = 0;
    for _ in 0..PATIENCE {
        let (now, mut out) = (rig.bench.now(), Vec::new());
        for n in [0, 1] {
            rig.device(n).advance(now);
        }
        rig.device(1).poll(&mut out, 0);
        assert!(out.is_empty());
        rig.device(1).poll(&mut out, 3);
        assert!(out.len() <= 3, "{} of at most 3", out.len());
        taken += out.len();
        rig.ends[1].take_all(out);
        if taken == 10 {
            assert_eq!(rig.payloads(1, 10).concat(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            return;
        }
        rig.bench.step();
    }
    panic!("{taken} of 10 datagrams came");
}

/// C-BUF-1.
pub(crate) fn every_buffer_is_as_large_as_the_device_says<B: Bench>(rig: &mut Rig<B>) {
    let max = rig.device(0).caps().max_payload;
    assert!(rig.ends[0].sends.iter().all(|buf| buf.capacity() >= max));
    // Shells, which share the sender's memory, have none of their own.
    assert!(rig.ends[0].recvs.iter().all(|buf| buf.capacity() >= max || buf.capacity() == 0));
    for slots in [
        rig.ends[0].sends.iter().map(SendBuf::slot).collect::<Vec<_>>(),
        rig.ends[0].recvs.iter().map(RecvBuf::slot).collect(),
    ] {
        let mut unique = slots.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), slots.len());
    }
    assert!(rig.device(0).caps().max_payload <= rig.device(0).port().mtu);
}

/// C-SIZE-1, case 82: a real device says "success" and sends nothing.
pub(crate) fn an_oversize_send_is_refused<B: Bench>(rig: &mut Rig<B>) {
    // The sender's buffers are larger than the receiver's, so a buffer of the one does not fit the other's wire.
    let Some(mut large) = Rig::<B>::open(&[2 * MTU]) else {
        return skip("this provider's devices have one MTU");
    };
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 1);
    let to = rig.to(0, 1, theirs, key);
    let too_long = [1; MTU + 1];
    let mut requests = VecDeque::from([large.request(0, to, 1, &too_long)]);
    let error = rig.try_post(0, ours, &mut requests).unwrap_err();
    assert!(
        matches!(error, DeviceError::TooLarge { len, max } if len == MTU + 1 && max == MTU),
        "{error}"
    );
    large.give_back(0, requests);
    assert_eq!(rig.state(0, ours), QpState::Rts);
    rig.send(0, ours, to, b"fits");
    assert_eq!(rig.payloads(1, 1), [b"fits"]);
}

/// C-SIZE-2, case 66.
pub(crate) fn an_oversize_datagram_ends_its_receive<B: Bench>(_: &mut Rig<B>) {
    let Some(mut rig) = Rig::<B>::open(&[2 * MTU, MTU]) else {
        return skip("this provider's devices have one MTU");
    };
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 2);
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, to, &[1; MTU + 1]);
    rig.until("the receive to end", |rig| !rig.ends[1].got.is_empty());
    let got = rig.ends[1].got.remove(0);
    assert_eq!(got.status, WcStatus::LocLenErr);
    assert_eq!(rig.state(1, theirs), QpState::Rts);
    assert_eq!(rig.device(1).posted_recvs(), 1);
    rig.send(0, ours, to, b"fits");
    assert_eq!(rig.payloads(1, 1), [b"fits"]);
    rig.check_buffers();
}
