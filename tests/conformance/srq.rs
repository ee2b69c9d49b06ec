//! The shared receive queue: C-SRQ.

use qcast::device::{Device, DeviceError, DeviceEvent, RecvBuf};

use crate::bench::{Bench, SRQ};
use crate::rig::{Rig, fresh_key, skip};

/// C-SRQ-1, case 73: there is no receive queue of a queue pair's own to post to.
pub(crate) fn one_srq_serves_all_queue_pairs<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let (one, two) = (rig.qp(1, key), rig.qp(1, key));
    rig.post(1, 2);
    let (to_one, to_two) = (rig.to(0, 1, one, key), rig.to(0, 1, two, key));
    rig.send(0, ours, to_one, b"one");
    rig.send(0, ours, to_two, b"two");
    rig.until("both", |rig| rig.ends[1].got.len() == 2);
    let qps: Vec<_> = rig.ends[1].got.iter().map(|got| got.qp).collect();
    assert_eq!(qps, [Some(one), Some(two)]);
    assert_eq!(rig.device(1).posted_recvs(), 0);
}

/// C-SRQ-2.
pub(crate) fn receives_are_posted_from_the_end_as_many_as_fit<B: Bench>(rig: &mut Rig<B>) {
    let depth = rig.device(0).caps().max_srq_wr;
    if depth > SRQ {
        return skip(&format!("an SRQ of {depth} is too long to fill"));
    }
    let mut bufs = std::mem::take(&mut rig.ends[0].recvs);
    let left: Vec<_> = bufs.iter().take(bufs.len() - depth).map(RecvBuf::slot).collect();
    assert!(!left.is_empty());
    rig.device(0).post_recv(&mut bufs).unwrap();
    assert_eq!(bufs.iter().map(RecvBuf::slot).collect::<Vec<_>>(), left);
    assert_eq!(rig.device(0).posted_recvs(), depth);
    rig.device(0).post_recv(&mut bufs).unwrap();
    assert_eq!(bufs.len(), left.len(), "a full SRQ takes no more, and says nothing");
    rig.ends[0].recvs = bufs;
}

/// C-SRQ-3, case 70.
pub(crate) fn without_a_receive_a_datagram_is_dropped_for_good<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    for n in 0..10 {
        rig.send(0, ours, to, &[n]);
    }
    rig.until_dropped(1, |counters| counters.out_of_buffer, 6);
    assert_eq!(rig.payloads(1, 4).concat(), [0, 1, 2, 3]);
    rig.post(1, 8);
    rig.send(0, ours, to, b"later");
    assert_eq!(rig.payloads(1, 1), [b"later"]);
    if rig.device(1).caps().counts_drops {
        assert_eq!(rig.device(1).counters().out_of_buffer, 6);
    }
    assert_eq!(rig.device(1).posted_recvs(), 7);
}

/// C-SRQ-4, case 71.
pub(crate) fn the_limit_event_comes_once_each_time_it_is_armed<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    let to = rig.to(0, 1, theirs, key);
    for _ in 0..2 {
        let missing = 8 - rig.device(1).posted_recvs();
        rig.post(1, missing);
        match rig.device(1).arm_srq_limit(6) {
            Ok(()) => {}
            Err(DeviceError::Unsupported(what)) => {
                return skip(&format!("this provider does not have {what}"));
            }
            Err(error) => panic!("{error}"),
        }
        for n in 0..2 {
            rig.send(0, ours, to, &[n]);
        }
        rig.payloads(1, 2);
        assert!(rig.ends[1].events.is_empty(), "six receives are not below six");
        for n in 0..3 {
            rig.send(0, ours, to, &[n]);
        }
        rig.payloads(1, 3);
        rig.event(1, |event| matches!(event, DeviceEvent::SrqLimit).then_some(()));
        assert!(rig.ends[1].events.is_empty(), "{:?}", rig.ends[1].events);
    }
    let missing = 8 - rig.device(1).posted_recvs();
    rig.post(1, missing);
    for n in 0..5 {
        rig.send(0, ours, to, &[n]);
    }
    rig.payloads(1, 5);
    assert!(rig.ends[1].events.is_empty(), "it was not armed again");
}
