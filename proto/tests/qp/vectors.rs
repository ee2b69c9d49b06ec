//! Named cases: the right verdict, and the exact words.

use qcast_proto::qp::{
    AttrMask, QpState, QpType, Request, Step, TransitionError, check_request, transition,
};

use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use QpType::{Rc, Uc, Ud};

/// A try at a step from the state that is held, with STATE and `others`.
fn go(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    others: AttrMask,
) -> Result<Step, TransitionError> {
    check_request(qp_type, from, Request::new(Some(to), None, others))
}

/// The same with the required set and `others`.
fn go_with(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    others: AttrMask,
) -> Result<Step, TransitionError> {
    let row = transition(qp_type, from, to).expect("a legal step");
    go(qp_type, from, to, row.required | others)
}

fn words(verdict: Result<Step, TransitionError>) -> String {
    verdict.expect_err("to be refused").to_string()
}

fn legal_path(verdict: Result<Step, TransitionError>) -> String {
    verdict.expect_err("to be refused").path().expect("a way there").to_string()
}

#[test]
fn vector_2_init_without_a_qkey() {
    assert_eq!(
        words(go(Ud, Reset, Init, AttrMask::PKEY_INDEX | AttrMask::PORT)),
        "UD RESET->INIT with STATE|PKEY_INDEX|PORT: missing QKEY"
    );
}

#[test]
fn vector_3_access_flags_do_not_belong_to_ud() {
    assert_eq!(
        words(go_with(Ud, Reset, Init, AttrMask::ACCESS_FLAGS)),
        "UD RESET->INIT with STATE|ACCESS_FLAGS|PKEY_INDEX|PORT|QKEY: foreign ACCESS_FLAGS; \
         the step takes only STATE, PKEY_INDEX, PORT, QKEY"
    );
}

#[test]
fn vector_4_a_path_mtu_does_not_belong_to_ud() {
    let error = go(Ud, Init, Rtr, AttrMask::PATH_MTU).unwrap_err();
    assert_eq!((error.missing(), error.foreign()), (AttrMask::NONE, AttrMask::PATH_MTU));
    assert_eq!(error.path(), None);
}

/// Case 9: some adapters do without, and we do not.
#[test]
fn vector_5_rts_without_a_psn() {
    assert_eq!(words(go(Ud, Rtr, Rts, AttrMask::NONE)), "UD RTR->RTS with STATE: missing SQ_PSN");
}

#[test]
fn vector_6_rts_straight_from_init() {
    assert_eq!(
        words(go(Ud, Init, Rts, AttrMask::SQ_PSN)),
        "UD INIT->RTS with STATE|SQ_PSN: not a legal step, it skips RTR; go INIT->RTR->RTS"
    );
}

/// Case 10: Soft-RoCE of Linux 6.12 accepts this one.
#[test]
fn vector_7_a_key_cannot_be_changed_in_rtr() {
    let verdict = check_request(Ud, Rtr, Request::new(None, None, AttrMask::QKEY));
    assert!(matches!(verdict, Err(TransitionError::IllegalTransition { .. })));
    assert_eq!(
        words(verdict),
        "UD RTR->RTR with QKEY: not a legal step, nothing can be changed while staying in RTR; \
         set QKEY by RTR->RTS"
    );
    assert_eq!(
        words(check_request(Ud, Sqe, Request::new(None, None, AttrMask::QKEY))),
        "UD SQE->SQE with QKEY: not a legal step, nothing can be changed while staying in SQE; \
         set QKEY by SQE->RTS"
    );
    assert_eq!(
        words(go(Ud, Rtr, Rtr, AttrMask::NONE)),
        "UD RTR->RTR with STATE: not a legal step, nothing can be changed while staying in RTR"
    );
}

#[test]
fn vector_8_an_error_straight_from_reset() {
    for qp_type in QpType::ALL {
        assert_eq!(legal_path(go(qp_type, Reset, Error, AttrMask::NONE)), "RESET->INIT->ERR");
    }
}

#[test]
fn vector_9_a_drain_straight_from_a_send_error() {
    assert_eq!(legal_path(go(Ud, Sqe, Sqd, AttrMask::NONE)), "SQE->RTS->SQD");
}

#[test]
fn vector_10_init_straight_from_an_error() {
    assert_eq!(
        words(go(Ud, Error, Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY)),
        "UD ERR->INIT with STATE|PKEY_INDEX|PORT|QKEY: not a legal step, it skips RESET; \
         go to RESET first: ERR->RESET->INIT"
    );
}

#[test]
fn vector_11_init_cannot_be_claimed() {
    let claimed = |others| check_request(Ud, Init, Request::new(Some(Rtr), Some(Init), others));
    assert_eq!(
        words(claimed(AttrMask::NONE)),
        "UD INIT->RTR with STATE|CUR_STATE: CUR_STATE can claim RTR, RTS, SQD or SQE, not INIT; \
         leave it out"
    );
    let error = claimed(AttrMask::AV).unwrap_err();
    assert_eq!(error.foreign(), AttrMask::CUR_STATE | AttrMask::AV, "both are told");
    assert_eq!(
        error.to_string(),
        "UD INIT->RTR with STATE|CUR_STATE|AV: CUR_STATE can claim RTR, RTS, SQD or SQE, not INIT; \
         leave it out; and without it, UD INIT->RTR with STATE|AV: foreign AV; the step takes only \
         STATE, PKEY_INDEX, QKEY"
    );
    // What is held does not matter, what is claimed does.
    let held_rts = check_request(Ud, Rts, Request::new(Some(Rts), Some(Error), AttrMask::NONE));
    assert!(matches!(held_rts, Err(TransitionError::CurStateMisuse { otherwise: None, .. })));
}

#[test]
fn vector_12_a_key_is_changed_in_rts() {
    let step = go(Ud, Rts, Rts, AttrMask::QKEY).unwrap();
    assert_eq!(step.mask().bits(), 0x41);
    let unmoved = check_request(Ud, Rts, Request::new(None, None, AttrMask::QKEY)).unwrap();
    assert_eq!((unmoved.to(), unmoved.mask().bits()), (Rts, 0x40));
    assert!(!step.is_noop() && !unmoved.is_noop());
}

#[test]
fn vector_13_back_from_a_send_error() {
    let plain = Request::new(Some(Rts), None, AttrMask::NONE);
    let claiming = Request::new(Some(Rts), Some(Sqe), AttrMask::NONE);
    for qp_type in QpType::ALL {
        assert_eq!(check_request(qp_type, Sqe, plain).unwrap().mask().bits(), 0x1);
    }
    // The claim counts even when the cached state is stale.
    for qp_type in [Ud, Uc] {
        let step = check_request(qp_type, Rts, claiming).unwrap();
        assert_eq!((step.from(), step.to(), step.mask().bits()), (Sqe, Rts, 0x3));
    }
    assert_eq!(
        words(check_request(Rc, Sqe, claiming)),
        "RC SQE->RTS with STATE|CUR_STATE: foreign CUR_STATE; the step takes only STATE"
    );
}

#[test]
fn missing_and_foreign_are_told_at_once() {
    let error = go(Ud, Reset, Init, AttrMask::PORT | AttrMask::AV | AttrMask::from_bits(1 << 30));
    let error = error.unwrap_err();
    assert_eq!(error.missing(), AttrMask::PKEY_INDEX | AttrMask::QKEY);
    assert_eq!(
        error.to_string(),
        "UD RESET->INIT with STATE|PORT|AV|0x40000000: missing PKEY_INDEX, QKEY, and foreign AV, \
         0x40000000; the step takes only STATE, PKEY_INDEX, PORT, QKEY"
    );
}

#[test]
fn nothing_targets_sqe() {
    for from in QpState::ALL {
        for qp_type in QpType::ALL {
            let error = go(qp_type, from, Sqe, AttrMask::NONE).unwrap_err();
            assert_eq!(error.path(), None);
            assert!(error.to_string().contains("no modify can target SQE"), "{error}");
        }
    }
}

/// Case 1: legal, and better left out.
#[test]
fn reset_to_reset_is_legal_and_a_noop() {
    for qp_type in QpType::ALL {
        assert!(go(qp_type, Reset, Reset, AttrMask::NONE).unwrap().is_noop());
        assert!(!go_with(qp_type, Reset, Init, AttrMask::NONE).unwrap().is_noop());
    }
    let claiming = Request::new(Some(Rts), Some(Rts), AttrMask::NONE);
    assert!(!check_request(Ud, Sqe, claiming).unwrap().is_noop());
}
