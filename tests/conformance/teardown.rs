//! The end of things: C-END.

use qcast::device::{Device, DeviceError};
use qcast_proto::qp::QpAttrs;
use qcast_proto::qp::QpState;

use crate::bench::Bench;
use crate::rig::{Rig, To, fresh_group, fresh_key};

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
