//! Queue pair states: C-STATE.

use std::collections::VecDeque;

use qcast::device::{Device, DeviceError, DeviceEvent, QpId, WcStatus};
use qcast_proto::addr::{Psn, Qpn};
use qcast_proto::qp::{Attr, AttrMask, ModifyError, QpAttrs, QpState, RawQKey, TransitionError};

use crate::bench::Bench;
use crate::rig::{Rig, To, fresh_group, fresh_key, setup, skip};

/// C-STATE-1.
pub(crate) fn a_new_queue_pair_is_in_reset<B: Bench>(rig: &mut Rig<B>) {
    let mut numbers = Vec::new();
    for _ in 0..4 {
        let qp = rig.create(0);
        assert_eq!(rig.state(0, qp), QpState::Reset);
        numbers.push(rig.device(0).qpn(qp));
        rig.walk(0, qp, QpState::Rts, 1);
        assert_eq!(rig.device(0).qpn(qp), numbers[numbers.len() - 1]);
    }
    assert!(!numbers.contains(&Qpn::MULTICAST));
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

/// C-STATE-2, case 1: three modifies and no reset before them.
pub(crate) fn three_steps_lead_to_rts<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.create(0);
    let steps = [
        (setup(7).init(), 0x71, QpState::Init),
        (setup(7).rtr(), 0x1, QpState::Rtr),
        (setup(7).rts(), 0x1_0001, QpState::Rts),
    ];
    for (attrs, mask, state) in steps {
        assert_eq!(attrs.mask().bits(), mask);
        rig.device(0).modify_qp(qp, &attrs).unwrap();
        assert_eq!(rig.state(0, qp), state);
    }
    assert_eq!(rig.device(0).query_qp(qp).unwrap().qkey, 7);
}

/// C-STATE-2.
pub(crate) fn steps_that_are_not_in_the_table_are_refused<B: Bench>(rig: &mut Rig<B>) {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let refused = [
        (Reset, [Rtr, Rts, Sqd, Sqe, Err].as_slice()),
        (Init, &[Rts, Sqd, Sqe]),
        (Rtr, &[Init, Rtr, Sqd, Sqe]),
        (Rts, &[Init, Rtr, Sqe]),
        (Sqd, &[Init, Rtr, Sqe]),
        (Err, &[Init, Rtr, Rts, Sqd, Sqe]),
    ];
    for (from, targets) in refused {
        let qp = rig.create(0);
        if from == Err {
            // There is no way from RESET to ERR but through INIT, and the shortest walk knows.
            rig.walk(0, qp, Init, 7);
        }
        rig.walk(0, qp, from, 7);
        for &to in targets {
            is_refused(rig, qp, from, &QpAttrs::to(to), |error| {
                matches!(error, TransitionError::IllegalTransition { .. })
            });
        }
    }
}

/// C-STATE-2, case 9: the full set is required whatever the device would do with less.
pub(crate) fn incomplete_and_foreign_masks_are_refused<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.create(0);
    let lacks = |lack: AttrMask| {
        move |error: &TransitionError| {
            matches!(error, TransitionError::Attributes { missing, foreign, .. }
                if *missing == lack && foreign.is_empty())
        }
    };
    let no_key: QpAttrs =
        setup(7).init().iter().filter(|attr| attr.mask() != AttrMask::QKEY).copied().collect();
    is_refused(rig, qp, QpState::Reset, &no_key, lacks(AttrMask::QKEY));
    rig.walk(0, qp, QpState::Rtr, 7);
    is_refused(rig, qp, QpState::Rtr, &QpAttrs::to(QpState::Rts), lacks(AttrMask::SQ_PSN));
    let too_much = setup(7).rts().with(Attr::PkeyIndex(0));
    is_refused(rig, qp, QpState::Rtr, &too_much, |error| {
        matches!(error, TransitionError::Attributes { foreign, .. }
            if *foreign == AttrMask::PKEY_INDEX)
    });
    let claim = QpAttrs::to(QpState::Rts)
        .with(Attr::SqPsn(Psn::new(1)))
        .with(Attr::CurState(QpState::Init));
    is_refused(rig, qp, QpState::Rtr, &claim, |error| {
        matches!(error, TransitionError::CurStateMisuse { .. })
    });
}

/// C-STATE-2, case 2: the port is named in the refusal.
pub(crate) fn values_out_of_place_are_refused<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.create(0);
    for port in [0, 99] {
        let attrs = setup(7).init().with(Attr::Port(port));
        let error = rig.device(0).modify_qp(qp, &attrs).unwrap_err();
        assert!(
            matches!(error, DeviceError::Modify(ModifyError::Precheck(_)))
                && error.to_string().contains(&format!("port {port}")),
            "{error}"
        );
    }
    let pkeys = rig.device(0).caps().pkeys;
    let attrs = setup(7).init().with(Attr::PkeyIndex(pkeys));
    rig.device(0).modify_qp(qp, &attrs).unwrap_err();
    assert_eq!(rig.state(0, qp), QpState::Reset);
    rig.device(0).modify_qp(qp, &setup(7).init()).unwrap();
}

/// C-STATE-2, case 10: Soft-RoCE takes a modify without STATE in any state; the contract does not.
pub(crate) fn a_key_can_change_in_rts_and_not_in_rtr<B: Bench>(rig: &mut Rig<B>) {
    let qp = rig.create(0);
    rig.walk(0, qp, QpState::Rtr, 7);
    let new_key = QpAttrs::new().with(Attr::QKey(RawQKey(8)));
    is_refused(rig, qp, QpState::Rtr, &new_key, |error| {
        matches!(error, TransitionError::IllegalTransition { .. })
    });
    assert_eq!(rig.device(0).query_qp(qp).unwrap().qkey, 7);
    rig.walk(0, qp, QpState::Rts, 7);
    rig.device(0).modify_qp(qp, &new_key).unwrap();
    assert_eq!(rig.device(0).query_qp(qp).unwrap().qkey, 8);
    assert_eq!(rig.state(0, qp), QpState::Rts);
}

/// C-STATE-4, case 11: real devices keep the send and let it go later.
pub(crate) fn no_send_before_rts_and_none_of_it_later<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let qp = rig.create(0);
    let to = rig.to(0, 1, theirs, key);
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        rig.walk(0, qp, state, key);
        let mut requests = VecDeque::from([rig.request(0, to, 1, b"A")]);
        let error = rig.try_post(0, qp, &mut requests).unwrap_err();
        assert!(matches!(error, DeviceError::NotReady(s) if s == state), "{error}");
        assert_eq!(requests.len(), 1, "C-BUF-3");
        rig.give_back(0, requests);
    }
    rig.walk(0, qp, QpState::Rts, key);
    rig.send(0, qp, to, b"B");
    assert_eq!(rig.payloads(1, 1), [b"B"]);
}

/// C-STATE-5.
pub(crate) fn nothing_arrives_before_rtr<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.create(1);
    rig.walk(1, theirs, QpState::Init, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, to, b"too early");
    rig.until_dropped(1, |counters| counters.malformed, 1);
    assert_eq!(rig.device(1).posted_recvs(), 4);
    rig.walk(1, theirs, QpState::Rtr, key);
    rig.send(0, ours, to, b"in time");
    assert_eq!(rig.payloads(1, 1), [b"in time"]);
}

/// C-STATE-5, C-STATE-1, case 17: the same queue pair, with the same number, comes back.
pub(crate) fn err_ends_receiving_and_a_reset_brings_it_back<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    rig.device(1).modify_qp(theirs, &QpAttrs::to(QpState::Err)).unwrap();
    assert_eq!(rig.state(1, theirs), QpState::Err);
    rig.send(0, ours, to, b"lost");
    rig.until_dropped(1, |counters| counters.malformed, 1);
    rig.walk(1, theirs, QpState::Rts, key);
    assert_eq!(rig.device(1).qpn(theirs), to.qpn);
    rig.send(0, ours, to, b"found");
    assert_eq!(rig.payloads(1, 1), [b"found"]);
}

/// C-STATE-4, C-STATE-5.
pub(crate) fn sqd_holds_sends_and_receives_on<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(0, 2);
    rig.post(1, 2);
    let there = rig.to(0, 1, theirs, key);
    let back = rig.to(1, 0, ours, key);
    rig.walk(0, ours, QpState::Sqd, key);
    let mut requests = VecDeque::from([rig.request(0, there, 1, b"held")]);
    let error = rig.try_post(0, ours, &mut requests).unwrap_err();
    assert!(matches!(error, DeviceError::NotReady(QpState::Sqd)), "{error}");
    rig.send(1, theirs, back, b"heard");
    assert_eq!(rig.payloads(0, 1), [b"heard"]);
    rig.walk(0, ours, QpState::Rts, key);
    rig.try_post(0, ours, &mut requests).unwrap();
    assert_eq!(rig.payloads(1, 1), [b"held"]);
}

/// C-STATE-3, C-STATE-6, cases 17, 91, 92.
pub(crate) fn a_failed_send_can_be_recovered_from<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 4);
    let to = rig.to(0, 1, theirs, key);
    if !rig.bench.fail_next_send(0, ours, WcStatus::LocProtErr) {
        return skip("this provider has no way to let a send fail");
    }
    let mut requests: VecDeque<_> = (0..3).map(|n| rig.request(0, to, n, &[n as u8])).collect();
    let posted = rig.try_post(0, ours, &mut requests);
    // A device that fails at once takes no more, one that fails later flushes them.
    assert!(matches!(posted, Ok(()) | Err(DeviceError::NotReady(_))), "{posted:?}");
    let count = 3 - requests.len();
    rig.give_back(0, requests);
    let statuses: Vec<_> = rig.done(0, count).into_iter().map(|done| done.status).collect();
    // Soft-RoCE has another name for memory that is not registered; that of Linux 6.12 calls what failed flushed too.
    let failed = [WcStatus::LocProtErr, WcStatus::LocQpOpErr, WcStatus::WrFlushErr];
    assert!(failed.contains(&statuses[0]), "{statuses:?}");
    assert!(statuses[1..].iter().all(|status| *status == WcStatus::WrFlushErr), "{statuses:?}");
    let state = rig.state(0, ours);
    assert!(matches!(state, QpState::Sqe | QpState::Err), "{state}");
    assert!(rig.ends[0].events.iter().all(|event| {
        matches!(event, DeviceEvent::QpFault { qp, state: s } if *qp == ours && *s == state)
    }));
    let mut requests = VecDeque::from([rig.request(0, to, 9, b"refused")]);
    rig.try_post(0, ours, &mut requests).unwrap_err();
    rig.give_back(0, requests);
    let number = rig.device(0).qpn(ours);
    rig.walk(0, ours, QpState::Rts, key);
    assert_eq!(rig.device(0).qpn(ours), number);
    rig.send(0, ours, to, b"recovered");
    assert_eq!(rig.payloads(1, 1), [b"recovered"]);
}

/// C-STATE-7, C-BUF-1.
pub(crate) fn reset_and_err_flush_what_is_posted<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let mgid = fresh_group(rig.device(0).port().gid);
    let ours = rig.qp(0, key);
    let ah = rig.join(0, ours, mgid);
    for state in [QpState::Err, QpState::Reset] {
        rig.walk(0, ours, QpState::Rts, key);
        for n in 0..5 {
            rig.send(0, ours, To::group(ah, key), &[n]);
        }
        rig.walk(0, ours, state, key);
        let done = rig.done(0, 5);
        // Those that had left by then ended well.
        assert!(done.is_sorted_by_key(|done| done.status == WcStatus::WrFlushErr));
        assert!(
            done.iter().all(|done| matches!(done.status, WcStatus::Success | WcStatus::WrFlushErr)),
            "{done:?}"
        );
    }
}

/// A modify is refused as `is_right` tells, and state and key stay what they were.
fn is_refused<B: Bench>(
    rig: &mut Rig<B>,
    qp: QpId,
    state: QpState,
    attrs: &QpAttrs,
    is_right: impl Fn(&TransitionError) -> bool,
) {
    let before = rig.device(0).query_qp(qp).unwrap();
    assert_eq!(before.state, state);
    match rig.device(0).modify_qp(qp, attrs) {
        Err(DeviceError::Modify(ModifyError::Transition(error))) if is_right(&error) => {}
        other => panic!("{attrs} in {state}: {other:?}"),
    }
    // Sends that were begun may have ended meanwhile.
    let after = rig.device(0).query_qp(qp).unwrap();
    assert_eq!((after.state, after.qkey), (before.state, before.qkey));
}
