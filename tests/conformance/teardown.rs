//! The end of things: C-END.

use qcast::device::{Device, DeviceError, DeviceEvent};
use qcast_proto::qp::QpAttrs;
use qcast_proto::qp::QpState;

use crate::bench::{Bench, MTU};
use crate::rig::{End, Rig, To, fresh_group, fresh_key, skip};

/// C-END-1, case 74: leave, then destroy, a hundred times.
pub(crate) fn objects_can_be_made_and_destroyed_again_and_again<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    rig.post(0, 16);
    for _ in 0..100 {
        let qp = rig.qp(0, key);
        let group = rig.join(0, qp, mgid);
        let peer = rig.ah(0, 1);
        rig.send(0, qp, To::group(group, key), b"x");
        // With the send perhaps still posted: its buffer comes back all the same (C-BUF-1).
        rig.device(0).leave(qp, mgid).unwrap();
        rig.device(0).destroy_qp(qp).unwrap();
        rig.device(0).destroy_ah(peer).unwrap();
        rig.done(0, 1);
        let free = rig.ends[0].recvs.len() - 56;
        rig.post(0, free);
    }
}

/// C-END-1.
pub(crate) fn a_queue_pair_that_is_gone_is_unknown<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    rig.post(1, 2);
    let to = rig.to(0, 1, theirs, key);
    rig.device(1).destroy_qp(theirs).unwrap();
    let device = rig.device(1);
    let reset = QpAttrs::to(QpState::Reset);
    assert!(matches!(device.modify_qp(theirs, &reset), Err(DeviceError::NoSuch(_))));
    assert!(matches!(device.query_qp(theirs), Err(DeviceError::NoSuch(_))));
    assert!(matches!(device.destroy_qp(theirs), Err(DeviceError::NoSuch(_))));
    assert!(matches!(device.join(theirs, mgid), Err(DeviceError::NoSuch(_))));
    rig.send(0, ours, to, b"too late");
    rig.until_dropped(1, |counters| counters.malformed, 1);
    assert_eq!(rig.device(1).posted_recvs(), 2);
}

/// C-END-2, case 90: what others hold of a device's memory keeps neither the device nor loses a byte, and a send buffer can be
/// posted to the device that takes its place.
pub(crate) fn buffers_outlive_their_device<B: Bench>(rig: &mut Rig<B>) {
    let next = Rig::open(&[MTU; 3]).expect("devices like these were opened before");
    let Rig { bench, mut ends } = std::mem::replace(rig, next);
    drop(bench);
    let End { mut sends, recvs, .. } = ends.swap_remove(0);
    assert!(recvs.iter().all(|buf| buf.payload().is_empty()));
    std::mem::swap(&mut rig.ends[0].sends, &mut sends);
    drop((sends, recvs));
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let to = rig.to(0, 1, theirs, key);
    rig.post(1, 3);
    for n in 0..3_u8 {
        rig.send(0, ours, to, &[n; 700]);
    }
    rig.done(0, 3);
    let got = rig.payloads(1, 3);
    assert!(
        got.iter().all(|payload| payload.len() == 700 && payload.iter().all(|b| *b == payload[0]))
    );
}

/// C-END-3, case 90.
pub(crate) fn a_device_that_is_gone_says_so_once_and_gives_sends_back<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, to, b"on its way");
    if !rig.bench.lose(0) {
        rig.done(0, 1);
        return skip("this provider's devices cannot be taken away here");
    }
    rig.event(0, |event| matches!(event, DeviceEvent::Lost { .. }).then_some(()));
    assert!(!rig.device(0).port().active);
    assert!(rig.device(0).create_qp().is_err());
    rig.device(0).destroy_qp(ours).unwrap();
    rig.done(0, 1);
    rig.drain();
    assert!(rig.ends[0].events.is_empty());
}
