//! Counters: C-CNT.

use qcast::device::{Device, PortCounters};
use qcast_proto::addr::Qpn;

use crate::bench::Bench;
use crate::rig::{Rig, To, fresh_key};

/// C-CNT-1.
pub(crate) fn counters_begin_at_zero_and_count_what_happens<B: Bench>(rig: &mut Rig<B>) {
    for n in 0..3 {
        assert_eq!(rig.device(n).counters(), PortCounters::default());
    }
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    rig.post(1, 5);
    let to = rig.to(0, 1, theirs, key);
    for n in 0..5 {
        rig.send(0, ours, to, &[n]);
    }
    rig.payloads(1, 5);
    rig.done(0, 5);
    let (sender, receiver) = (rig.device(0).counters(), rig.device(1).counters());
    assert_eq!((sender.sent, sender.received), (5, 0));
    assert_eq!((receiver.sent, receiver.received), (0, 5));
    for counters in [sender, receiver] {
        let PortCounters {
            qkey_violations,
            out_of_buffer,
            overruns,
            icrc_errors,
            malformed,
            injected_drops,
            ..
        } = counters;
        let drops =
            [qkey_violations, out_of_buffer, overruns, icrc_errors, malformed, injected_drops];
        assert_eq!(drops, [0; 6], "{counters:?}");
    }
    assert_eq!(rig.device(2).counters(), PortCounters::default());
}

/// C-CNT-2.
pub(crate) fn a_datagram_for_nobody_is_counted_and_takes_no_receive<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let (ours, theirs) = (rig.qp(0, key), rig.qp(1, key));
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    let nobody = Qpn::new(to.qpn.get() ^ 0x0055_5555);
    rig.send(0, ours, To { qpn: nobody, ..to }, b"to nobody");
    // A unicast datagram to the groups' number is for nobody either.
    rig.send(0, ours, To { qpn: Qpn::MULTICAST, ..to }, b"to nobody");
    rig.send(0, ours, to, b"to somebody");
    assert_eq!(rig.payloads(1, 1), [b"to somebody"]);
    if rig.device(1).caps().counts_drops {
        assert_eq!(rig.device(1).counters().malformed, 2);
    }
    assert_eq!(rig.device(1).posted_recvs(), 3);
}
