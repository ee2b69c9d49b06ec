//! The checks outside the table.

use qcast_proto::addr::{Gid, Psn, Qpn};
use qcast_proto::qp::{
    AddressVector, Attr, AttrMask, GlobalRoute, LinkLayer, ModifyContext, ModifyError, PathMtu,
    Precheck, PrecheckError, Privilege, PsnTooWide, QpAttrs, QpState, QpType, RawQKey, RcRts,
    TransitionError, UcRtr, UdSetup, checked_psn, validate,
};

const ROCE: ModifyContext = ModifyContext {
    ports: 1,
    link: LinkLayer::Ethernet,
    pkey_table_len: 1,
    qp_port: Some(1),
    privileged_qkey: Privilege::Unknown,
};

const SETUP: UdSetup =
    UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(0x7fff_ffff), sq_psn: Psn::new(0) };

const GRH: GlobalRoute = GlobalRoute {
    dgid: Gid::from_bytes([0xfe; 16]),
    sgid_index: 3,
    hop_limit: 64,
    traffic_class: 0,
    flow_label: 0,
};

const AV: AddressVector = AddressVector { port: 1, dlid: 0, sl: 0, grh: Some(GRH) };

fn refusal(
    qp_type: QpType,
    held: QpState,
    attrs: &QpAttrs,
    context: &ModifyContext,
) -> PrecheckError {
    match validate(qp_type, held, attrs, context) {
        Err(ModifyError::Precheck(error)) => error,
        other => panic!("{attrs}: {other:?}"),
    }
}

fn uc_rtr(av: AddressVector) -> QpAttrs {
    let dest_qpn = Qpn::new(17);
    UcRtr { av, path_mtu: PathMtu::Mtu1024, dest_qpn, rq_psn: Psn::new(0) }.into()
}

#[test]
fn what_passed_is_told() {
    let accepted = validate(QpType::Ud, QpState::Reset, &SETUP.init(), &ROCE).unwrap();
    assert_eq!(accepted.step.to(), QpState::Init);
    assert!(!accepted.may_need_privilege);
    assert_eq!(
        accepted.passed,
        [Precheck::PortExists, Precheck::Transition, Precheck::PkeyIndex, Precheck::QkeyPrivilege]
    );
}

/// Case 2, on both sides of each boundary.
#[test]
fn a_port_that_is_not_there_is_told_before_anything_else() {
    for (port, ports) in [(0, 1), (9, 1), (3, 2)] {
        let attrs = UdSetup { port, ..SETUP }.init();
        let error = refusal(QpType::Ud, QpState::Reset, &attrs, &ModifyContext { ports, ..ROCE });
        assert!(matches!(error, PrecheckError::InvalidPort { .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "UD RESET->INIT with STATE|PKEY_INDEX|PORT|QKEY: PORT names port {port}; \
                 the device has ports 1..={ports}"
            )
        );
    }
    for port in [1, 2] {
        let attrs = UdSetup { port, ..SETUP }.init();
        validate(QpType::Ud, QpState::Reset, &attrs, &ModifyContext { ports: 2, ..ROCE }).unwrap();
    }
    // Also when the table would refuse it too.
    let hopeless = QpAttrs::to(QpState::Rts).with(Attr::Port(9));
    let error = refusal(QpType::Ud, QpState::Reset, &hopeless, &ROCE);
    assert!(matches!(error, PrecheckError::InvalidPort { port: 9, .. }));
    let other_port = AddressVector { port: 2, ..AV };
    let error = refusal(QpType::Uc, QpState::Init, &uc_rtr(other_port), &ROCE);
    assert!(matches!(error, PrecheckError::InvalidPort { attribute: AttrMask::AV, .. }));
}

#[test]
fn the_table_comes_before_the_other_values() {
    let attrs = QpAttrs::to(QpState::Rtr).with(Attr::PkeyIndex(9));
    let error = validate(QpType::Ud, QpState::Rts, &attrs, &ROCE).unwrap_err();
    assert!(matches!(error, ModifyError::Transition(TransitionError::IllegalTransition { .. })));
}

#[test]
fn a_pkey_index_outside_the_table() {
    let context = ModifyContext { pkey_table_len: 128, ..ROCE };
    let at = |pkey_index| UdSetup { pkey_index, ..SETUP }.init();
    validate(QpType::Ud, QpState::Reset, &at(127), &context).unwrap();
    let error = refusal(QpType::Ud, QpState::Reset, &at(128), &context);
    assert!(matches!(error, PrecheckError::InvalidPkeyIndex { index: 128, len: 128, .. }));
}

/// Case 23: whether it is allowed is not always known, so only a sure refusal is one.
#[test]
fn a_privileged_qkey() {
    let attrs = UdSetup { qkey: RawQKey(0x8001_0000), ..SETUP }.init();
    let with = |privileged_qkey| ModifyContext { privileged_qkey, ..ROCE };
    let text = refusal(QpType::Ud, QpState::Reset, &attrs, &with(Privilege::Denied)).to_string();
    assert!(text.contains("CAP_NET_RAW"), "{text}");
    assert!(text.contains("`rdma system set privileged-qkey on`"), "{text}");
    assert!(!text.contains("80010000"), "a key is not for the log: {text}");
    for (privilege, on_trust) in [(Privilege::Granted, false), (Privilege::Unknown, true)] {
        let accepted = validate(QpType::Ud, QpState::Reset, &attrs, &with(privilege)).unwrap();
        assert_eq!(accepted.may_need_privilege, on_trust);
        assert_eq!(accepted.passed.contains(&Precheck::QkeyPrivilege), !on_trust);
    }
    let ordinary = validate(QpType::Ud, QpState::Reset, &SETUP.init(), &with(Privilege::Denied));
    assert!(!ordinary.unwrap().may_need_privilege);
}

/// Case 3.
#[test]
fn ethernet_needs_a_global_route() {
    let bare = uc_rtr(AddressVector { grh: None, dlid: 5, ..AV });
    let error = refusal(QpType::Uc, QpState::Init, &bare, &ROCE);
    assert!(matches!(error, PrecheckError::GrhRequired { .. }));
    let infiniband = ModifyContext { link: LinkLayer::InfiniBand, ..ROCE };
    validate(QpType::Uc, QpState::Init, &bare, &infiniband).unwrap();
    let accepted = validate(QpType::Uc, QpState::Init, &uc_rtr(AV), &ROCE).unwrap();
    assert!(
        accepted.passed.contains(&Precheck::Grh) && accepted.passed.contains(&Precheck::AvPort)
    );
}

#[test]
fn a_path_leaves_by_the_queue_pairs_own_port() {
    let two = ModifyContext { ports: 2, ..ROCE };
    let other = uc_rtr(AddressVector { port: 2, ..AV });
    let error = refusal(QpType::Uc, QpState::Init, &other, &two);
    assert!(matches!(error, PrecheckError::AvPortMismatch { port: 2, qp_port: 1, .. }));
    let moved = ModifyContext { qp_port: Some(2), ..two };
    validate(QpType::Uc, QpState::Init, &other, &moved).unwrap();
}

#[test]
fn roce_has_no_alternate_path() {
    let attrs = uc_rtr(AV).with(Attr::AltPath);
    let error = refusal(QpType::Uc, QpState::Init, &attrs, &ROCE);
    assert!(matches!(error, PrecheckError::AltPathOnEthernet { .. }));
    let infiniband = ModifyContext { link: LinkLayer::InfiniBand, ..ROCE };
    validate(QpType::Uc, QpState::Init, &attrs, &infiniband).unwrap();
}

#[test]
fn numbers_fit_their_fields() {
    let rts =
        RcRts { sq_psn: Psn::new(0), timeout: 31, retry_cnt: 7, rnr_retry: 7, max_qp_rd_atomic: 1 };
    validate(QpType::Rc, QpState::Rtr, &rts.into(), &ROCE).unwrap();
    for (rts, name, value, width) in [
        (RcRts { timeout: 32, ..rts }, AttrMask::TIMEOUT, 32, 5),
        (RcRts { retry_cnt: 8, ..rts }, AttrMask::RETRY_CNT, 8, 3),
        (RcRts { rnr_retry: 8, ..rts }, AttrMask::RNR_RETRY, 8, 3),
    ] {
        match refusal(QpType::Rc, QpState::Rtr, &rts.into(), &ROCE) {
            PrecheckError::TooWide { attribute, value: told, bits, .. } => {
                assert_eq!((attribute, told, bits), (name, value, width));
            }
            other => panic!("{other:?}"),
        }
    }
    let wide = GlobalRoute { flow_label: 1 << 20, ..GRH };
    let error =
        refusal(QpType::Uc, QpState::Init, &uc_rtr(AddressVector { grh: Some(wide), ..AV }), &ROCE);
    assert!(matches!(error, PrecheckError::TooWide { attribute: AttrMask::AV, .. }));
}

#[test]
fn a_psn_is_24_bits() {
    assert_eq!(checked_psn(0x00ff_ffff), Ok(Psn::new(0x00ff_ffff)));
    assert_eq!(checked_psn(0x0100_0000), Err(PsnTooWide(0x0100_0000)));
}
