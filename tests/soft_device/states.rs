//! Queue pair states, as every provider enforces them.

use std::collections::VecDeque;

use qcast::device::soft::{SoftAddress, SoftConfig};
use qcast::device::{Device, DeviceError, DeviceEvent, WcStatus};
use qcast_proto::addr::{Psn, Qpn};
use qcast_proto::qp::{Attr, ModifyError, QpAttrs, QpState, RawQKey, TransitionError, UdSetup};

use crate::rig::{QKEY, Rig, gid, own_group};

fn bare() -> Rig {
    Rig::bare(&SoftConfig::new(SoftAddress::Loopback))
}

#[test]
fn steps_that_the_kernel_refuses_are_refused_and_explained() {
    let mut rig = bare();
    let skip = rig.device.modify_qp(rig.qp, &QpAttrs::to(QpState::Rts)).unwrap_err();
    let DeviceError::Modify(ModifyError::Transition(TransitionError::IllegalTransition { .. })) =
        &skip
    else {
        panic!("{skip:?}");
    };
    rig.walk(rig.qp, QpState::Init, QKEY);
    rig.device.modify_qp(rig.qp, &QpAttrs::to(QpState::Rtr)).unwrap();
    // Case 9: a set that only some adapters accept.
    let lacking = rig.device.modify_qp(rig.qp, &QpAttrs::to(QpState::Rts)).unwrap_err();
    assert!(lacking.to_string().contains("SQ_PSN"), "{lacking}");
    // Case 10: a modify without STATE in RTR, which Soft-RoCE of 6.12 lets through.
    let rekey = QpAttrs::new().with(Attr::QKey(RawQKey(5)));
    rig.device.modify_qp(rig.qp, &rekey).unwrap_err();
    let info = rig.device.query_qp(rig.qp).unwrap();
    assert_eq!((info.state, info.qkey), (QpState::Rtr, QKEY));
}

#[test]
fn a_claim_that_is_not_true_is_refused() {
    let mut rig = bare();
    rig.walk(rig.qp, QpState::Rtr, QKEY);
    let attrs = QpAttrs::to(QpState::Rts).with(Attr::CurState(QpState::Rts));
    rig.device.modify_qp(rig.qp, &attrs).unwrap_err();
    assert_eq!(rig.device.query_qp(rig.qp).unwrap().state, QpState::Rtr);
}

#[test]
fn nothing_posted_before_rts_goes_out_later() {
    // Case 11.
    let (mut a, mut b) = (bare(), Rig::new());
    let to_b = a.ah(&b);
    let mut early: VecDeque<_> = [a.wr(to_b, b.qpn(), b"A")].into();
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        match state {
            QpState::Reset => {}
            state => {
                a.device.modify_qp(a.qp, &QpAttrs::to(QpState::Reset)).unwrap();
                a.walk(a.qp, state, QKEY);
            }
        }
        let error = a.device.post_send(a.qp, &mut early).unwrap_err();
        assert!(matches!(error, DeviceError::NotReady(s) if s == state), "{error:?}");
        assert_eq!(early.len(), 1, "what cannot be posted stays with its owner");
    }
    let rts = QpAttrs::to(QpState::Rts).with(Attr::SqPsn(Psn::new(0)));
    a.device.modify_qp(a.qp, &rts).unwrap();
    a.send(to_b, b.qpn(), &[b"B"]);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [b"B"]);
}

#[test]
fn datagrams_arrive_from_rtr_on_and_in_sqe_but_not_in_err() {
    let (mut a, mut b) = (Rig::new(), bare());
    b.post_recvs(100);
    // Tells that what was sent before it has been looked at.
    let probe = b.device.create_qp().unwrap();
    b.walk(probe, QpState::Rtr, QKEY);
    let (to_b, probe_qpn) = (a.ah(&b), b.device.qpn(probe));
    let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(QKEY), sq_psn: Psn::new(0) };
    let mut arrived = 0;
    let mut check = |b: &mut Rig, a: &mut Rig, hears: bool| {
        a.send(to_b, b.qpn(), &[b"to the queue pair"]);
        a.send(to_b, probe_qpn, &[b"probe"]);
        arrived += 1 + usize::from(hears);
        b.until_arrived(arrived);
    };
    check(&mut b, &mut a, false); // RESET
    for attrs in [setup.init(), setup.rtr(), setup.rts(), QpAttrs::to(QpState::Sqd)] {
        b.device.modify_qp(b.qp, &attrs).unwrap();
        check(&mut b, &mut a, attrs.state() != Some(QpState::Init));
    }
    b.device.modify_qp(b.qp, &QpAttrs::to(QpState::Rts)).unwrap();
    b.device.fault_qp(b.qp, QpState::Sqe, true).unwrap();
    check(&mut b, &mut a, true);
    b.device.modify_qp(b.qp, &QpAttrs::to(QpState::Err)).unwrap();
    check(&mut b, &mut a, false);
    assert!(
        b.events
            .iter()
            .any(|event| matches!(event, DeviceEvent::QpFault { state: QpState::Sqe, .. }))
    );
    // Sent to a queue pair of ours that did not take it: RESET, INIT, ERR.
    assert_eq!(b.device.counters().malformed, 3);
}

#[test]
fn a_failed_send_flushes_those_behind_it_and_one_step_mends_sqe() {
    // Case 17.
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let to_b = a.ah(&b);
    a.device.fail_next_send(a.qp, WcStatus::LocProtErr, QpState::Sqe).unwrap();
    let wrs = [b"1".as_slice(), b"22", b"333"].map(|payload| a.wr(to_b, b.qpn(), payload));
    a.post(wrs.into());
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(a.sent, [(1, WcStatus::LocProtErr), (2, flushed), (3, flushed)]);
    assert_eq!(a.device.query_qp(a.qp).unwrap().state, QpState::Sqe);
    let mut refused: VecDeque<_> = [a.wr(to_b, b.qpn(), b"4")].into();
    a.device.post_send(a.qp, &mut refused).unwrap_err();
    a.device.modify_qp(a.qp, &QpAttrs::to(QpState::Rts)).unwrap();
    a.post(refused);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [b"4"]);
}

#[test]
fn an_attachment_survives_reset_and_a_new_walk() {
    let group = own_group();
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let ah = a.join(&group).unwrap();
    b.join(&group).unwrap();
    b.device.fault_qp(b.qp, QpState::Err, false).unwrap();
    a.send(ah, Qpn::MULTICAST, &[b"into the void"]);
    b.device.modify_qp(b.qp, &QpAttrs::to(QpState::Reset)).unwrap();
    b.turn();
    let qpn = b.qpn();
    b.walk(b.qp, QpState::Rts, QKEY);
    assert_eq!(b.qpn(), qpn);
    a.send(ah, Qpn::MULTICAST, &[b"back again"]);
    b.until_arrived(1);
    assert_eq!(b.payloads(), [b"back again"]);
}

#[test]
fn a_queue_pair_that_is_attached_cannot_be_destroyed() {
    // Case 55.
    let mut rig = Rig::new();
    let group = own_group();
    rig.join(&group).unwrap();
    let error = rig.device.destroy_qp(rig.qp).unwrap_err();
    assert!(matches!(error, DeviceError::Busy(_)), "{error:?}");
    rig.device.leave(rig.qp, gid(&group)).unwrap();
    let again = rig.device.leave(rig.qp, gid(&group)).unwrap_err();
    assert!(matches!(again, DeviceError::NoSuch(_)), "{again:?}");
    rig.device.destroy_qp(rig.qp).unwrap();
    rig.device.query_qp(rig.qp).unwrap_err();
}

#[test]
fn completions_of_a_destroyed_queue_pair_still_come_and_are_not_anothers() {
    let (mut a, b) = (Rig::new(), Rig::new());
    let to_b = a.ah(&b);
    let mut wrs: VecDeque<_> = [a.wr(to_b, b.qpn(), b"last words")].into();
    a.device.post_send(a.qp, &mut wrs).unwrap();
    a.device.destroy_qp(a.qp).unwrap();
    let new = a.device.create_qp().unwrap();
    assert_ne!(new, a.qp, "the old one's place is not free while a completion names it");
    a.turn();
    assert_eq!(a.sent.len(), 1);
    assert_eq!(a.device.create_qp().unwrap(), a.qp, "now it is");
}
