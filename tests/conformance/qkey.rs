//! Queue keys: C-QKEY.

use qcast::device::{Device, DeviceError, WcStatus};
use qcast_proto::qp::{Attr, QpState, RawQKey};

use crate::bench::Bench;
use crate::rig::{Rig, To, fresh_group, fresh_key, setup};

/// C-QKEY-1, case 21: silence for the sender, a counter for the receiver.
pub(crate) fn a_datagram_with_another_key_is_dropped_and_counted<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    for n in 0..3 {
        rig.send(0, ours, to.with_key(key + 1), &[n]);
    }
    rig.send(0, ours, to, b"right");
    assert_eq!(rig.payloads(1, 1), [b"right"]);
    assert!(rig.done(0, 4).iter().all(|done| done.status == WcStatus::Success));
    rig.until("all three to count", |rig| rig.device(1).counters().qkey_violations == 3);
    assert_eq!(rig.device(1).posted_recvs(), 3);
    assert_eq!(rig.state(1, theirs), QpState::Rts);
    // The sender's own key does not matter: the request's does.
    let strangers = rig.qp(2, key + 1);
    let to = rig.to(2, 1, theirs, key);
    rig.send(2, strangers, to, b"by request");
    assert_eq!(rig.payloads(1, 1), [b"by request"]);
}

/// C-QKEY-1, C-MC-3.
pub(crate) fn every_attached_queue_pair_counts_for_itself<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let ours = rig.qp(0, key);
    let ah = rig.join(0, ours, mgid);
    for wrong in [key + 1, key + 2, key] {
        let qp = rig.qp(1, wrong);
        rig.join(1, qp, mgid);
    }
    rig.post(1, 4);
    rig.send(0, ours, To::group(ah, key), b"to one of three");
    assert_eq!(rig.payloads(1, 1), [b"to one of three"]);
    rig.until("both others to count", |rig| rig.device(1).counters().qkey_violations == 2);
    assert_eq!(rig.device(1).posted_recvs(), 3);
}

/// C-QKEY-2, case 23.
pub(crate) fn a_privileged_key_takes_a_privilege<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.device(0).create_qp().unwrap();
    let attrs = setup(1).init().with(Attr::QKey(RawQKey(0x8001_0000)));
    match rig.device(0).modify_qp(qp, &attrs) {
        Ok(()) => assert_eq!(rig.device(0).query_qp(qp).unwrap().qkey, 0x8001_0000),
        Err(error) => {
            assert!(matches!(error, DeviceError::Modify(_)), "{error}");
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            assert_eq!(rig.state(0, qp), QpState::Reset);
            rig.walk(0, qp, QpState::Init, 0x7fff_ffff);
        }
    }
}

/// C-QKEY-3, case 22: the specification says "the queue pair's own key", Soft-RoCE sends it as it is.
pub(crate) fn a_privileged_key_in_a_send_reaches_one_key_at_most<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let same = rig.qp(1, key);
    let other = rig.qp(2, key + 1);
    rig.post(1, 2);
    rig.post(2, 2);
    let (to_same, to_other) = (rig.to(0, 1, same, key), rig.to(0, 2, other, key + 1));
    rig.send(0, ours, to_other.with_key(0x8000_0000), b"own key");
    rig.send(0, ours, to_other, b"end");
    assert_eq!(rig.payloads(2, 1), [b"end"]);
    rig.until("the other to count", |rig| rig.device(2).counters().qkey_violations == 1);
    rig.send(0, ours, to_same.with_key(0x8000_0000), b"own key");
    rig.send(0, ours, to_same, b"end");
    rig.until("the last", |rig| rig.ends[1].got.last().is_some_and(|got| got.payload == b"end"));
    let arrived = rig.ends[1].got.len() as u64 - 1;
    rig.until("one way or the other", |rig| {
        arrived + rig.device(1).counters().qkey_violations == 1
    });
}
