//! Tests that need devices, named by `QCAST_TEST_DEVICES` (`rxe0,rxe1`; the first and the last are used): what is
//! beside the contract's suite. `scripts/test vm` runs them.

mod fork;
mod stream;

use std::collections::BTreeMap;
use std::env;
use std::fs;

use qcast_proto::addr::Psn;
use qcast_proto::qp::{
    AccessFlags, AttrMask, ConnectedInit, PathMtu, QpAttrs, QpState, RawQKey, RcRtr, RcRts,
    Request, UcRtr, UcRts, UdSetup, check_request, path, transition,
};

use super::modify::raw_av;
use super::*;
use crate::device::spec::VerbsSpec;

fn config(at: usize) -> VerbsConfig {
    let names = env::var("QCAST_TEST_DEVICES").expect("QCAST_TEST_DEVICES names the devices");
    let names: Vec<&str> = names.split(',').collect();
    let spec: VerbsSpec = names[at.min(names.len() - 1)].parse().unwrap();
    let mut config = VerbsConfig::new(spec);
    (config.srq_depth, config.send_depth) = (64, 16);
    config
}

fn open(at: usize) -> VerbsDevice {
    VerbsDevice::open(&config(at)).unwrap()
}

/// Lets events and completions of both come, until `holds`.
fn until(
    devices: &mut [VerbsDevice],
    what: &str,
    mut holds: impl FnMut(&mut [VerbsDevice]) -> bool,
) {
    for _ in 0..2000 {
        if holds(devices) {
            return;
        }
        for device in &mut *devices {
            device.take_events();
        }
        std::thread::yield_now();
    }
    panic!("waited in vain for {what}");
}

/// A legal set of values with which a step can be tried, whatever its mask names.
fn values(device: &VerbsDevice, from: QpState) -> rdma_sys::ibv_qp_attr {
    let av = device.vector(device.port.gid.gid);
    let mut raw = <rdma_sys::ibv_qp_attr as super::layout::Plain>::zeroed();
    raw.cur_qp_state = from.raw();
    raw.path_mtu = PathMtu::Mtu1024.raw();
    raw.qkey = 0x1111_1111;
    (raw.rq_psn, raw.sq_psn, raw.dest_qp_num) = (1, 2, 17);
    (raw.ah_attr, raw.alt_ah_attr) = (raw_av(&av), raw_av(&av));
    (raw.port_num, raw.alt_port_num) = (1, 1);
    (raw.max_rd_atomic, raw.max_dest_rd_atomic) = (1, 1);
    (raw.min_rnr_timer, raw.timeout, raw.retry_cnt, raw.rnr_retry) = (12, 14, 7, 7);
    raw
}

/// Walks a new queue pair of this kind to `to` with the raw verb.
fn raw_walk(device: &mut VerbsDevice, kind: QpType, to: QpState) -> QpId {
    let id = device.create_qp_of(kind).unwrap();
    if to == QpState::Reset {
        return id;
    }
    // The shortest way to ERR begins with INIT.
    let path = path(QpState::Reset, to).unwrap();
    for hop in path.hops(kind) {
        let required = transition(kind, hop.from, hop.to).unwrap().required | AttrMask::STATE;
        let mut raw = values(device, hop.from);
        raw.qp_state = hop.to.raw();
        let qp = device.qps.get_mut(id.0).unwrap();
        qp.modify_raw(&mut raw, required.bits() as i32)
            .unwrap_or_else(|error| panic!("{kind} {}->{}: {error}", hop.from, hop.to));
        // While it drains only ERR is accepted.
        while hop.to == QpState::Sqd && qp.query().unwrap().draining {
            std::thread::yield_now();
        }
    }
    id
}

/// Every pair of states of every kind: with the required mask, with each required attribute left out, with each
/// foreign one added. The kernel's verdict is ours, but for the differences listed here.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn the_kernel_and_the_tables_agree() {
    let mut device = open(0);
    let mut differences: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut tried = 0;
    for kind in [QpType::Ud, QpType::Uc, QpType::Rc] {
        for from in QpState::ALL {
            if from == QpState::Sqe {
                // No modify leads there, and Soft-RoCE goes to ERR in its place.
                continue;
            }
            let mut qp = raw_walk(&mut device, kind, from);
            for to in QpState::ALL {
                for mask in masks(kind, from, to) {
                    tried += 1;
                    let others = mask - AttrMask::STATE - AttrMask::CUR_STATE;
                    let claim = mask.contains(AttrMask::CUR_STATE).then_some(from);
                    let ours = check_request(kind, from, Request::new(Some(to), claim, others));
                    let mut raw = values(&device, from);
                    raw.qp_state = to.raw();
                    let found = device.qps.get_mut(qp.0).unwrap();
                    let kernel = found.modify_raw(&mut raw, mask.bits() as i32);
                    if ours.is_ok() != kernel.is_ok() {
                        let says = kernel.as_ref().map_or_else(
                            |error| ret::errno(error).unwrap_or(0).to_string(),
                            |()| "yes".into(),
                        );
                        let case = format!("{kind} {from}->{to} with {mask}");
                        differences.entry(says).or_default().push(case);
                    }
                    if kernel.is_ok() {
                        device.destroy_qp(qp).unwrap();
                        qp = raw_walk(&mut device, kind, from);
                    } else {
                        let state = device.query_qp(qp).unwrap().state;
                        assert_eq!(state, from, "{kind} {from}->{to} with {mask} was refused");
                    }
                }
            }
            device.destroy_qp(qp).unwrap();
        }
    }
    eprintln!("{tried} modifies tried, differences: {differences:#?}");
    assert!(tried > 1500);
    differences.retain(|_, cases| {
        cases.retain(|case| !is_known(case));
        !cases.is_empty()
    });
    assert!(differences.is_empty(), "the kernel judged otherwise: {differences:#?}");
}

/// Differences that are known; `docs/verbs.md` has the reasons.
fn is_known(case: &str) -> bool {
    KNOWN.iter().any(|(steps, attribute)| {
        steps.iter().any(|step| case.starts_with(step)) && case.contains(attribute)
    })
}

const KNOWN: &[(&[&str], &str)] = &[
    // RoCE has no alternate paths: `validate` refuses them there, the table alone does not know the link.
    (&["UC ", "RC "], "ALT_PATH"),
    // The system call adds PORT to an AV that is changed in SQD, and a UC queue pair takes no PORT there.
    (&["UC SQD->SQD"], "|AV"),
];

fn masks(kind: QpType, from: QpState, to: QpState) -> Vec<AttrMask> {
    let row = transition(kind, from, to);
    let required = row.as_ref().map_or(AttrMask::NONE, |row| row.required) | AttrMask::STATE;
    let allowed = row.as_ref().map_or(AttrMask::STATE, |row| row.allowed() | AttrMask::STATE);
    let mut masks = vec![required];
    masks.extend((required - AttrMask::STATE).iter().map(|one| required - one));
    masks.extend((AttrMask::all_named() - allowed).iter().map(|one| required | one));
    masks.extend((allowed - required).iter().map(|one| required | one));
    masks
}

/// A pair of connected queue pairs of one kind on two devices, in RTS, through the checked modify.
fn connected(devices: &mut [VerbsDevice; 2], kind: QpType) -> [QpId; 2] {
    let qps = [0, 1].map(|at: usize| devices[at].create_qp_of(kind).unwrap());
    let psn = [Psn::new(0x00ff_fff0), Psn::new(7)];
    for at in [0, 1] {
        let peer = 1 - at;
        let (dest_qpn, dgid) = (devices[peer].qpn(qps[peer]), devices[peer].port.gid.gid);
        let av = devices[at].vector(dgid);
        let init = ConnectedInit { pkey_index: 0, port: 1, access: AccessFlags::REMOTE_WRITE };
        let (path_mtu, rq_psn, sq_psn) = (PathMtu::Mtu1024, psn[peer], psn[at]);
        let steps: [QpAttrs; 3] = match kind {
            QpType::Rc => [
                init.into(),
                RcRtr { av, path_mtu, dest_qpn, rq_psn, max_dest_rd_atomic: 1, min_rnr_timer: 12 }
                    .into(),
                RcRts { sq_psn, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_qp_rd_atomic: 1 }
                    .into(),
            ],
            QpType::Uc => [
                init.into(),
                UcRtr { av, path_mtu, dest_qpn, rq_psn }.into(),
                UcRts { sq_psn }.into(),
            ],
            QpType::Ud => panic!("a UD queue pair has no peer"),
        };
        for step in &steps {
            devices[at].modify_qp(qps[at], step).unwrap();
        }
        assert_eq!(devices[at].query_qp(qps[at]).unwrap().state, QpState::Rts);
    }
    qps
}

#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn rc_and_uc_pairs_carry_a_message() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut devices = [open(0), open(1)];
        let qps = connected(&mut devices, kind);
        let mut recvs = devices[1].alloc_recv(4).unwrap();
        devices[1].post_recv(&mut recvs).unwrap();
        let mut buf = devices[0].alloc_send(1).unwrap().remove(0);
        let text = b"a connected queue pair puts no GRH before its payload, so this is longer than forty bytes";
        buf.room_mut()[..text.len()].copy_from_slice(text);
        buf.set_len(text.len());
        let VerbsDevice { qps: table, next_seq, .. } = &mut devices[0];
        table.get_mut(qps[0].0).unwrap().post_connected(buf, next_seq).unwrap();
        let mut got = Vec::new();
        until(&mut devices, "the message", |devices| {
            devices[1].poll(&mut got, 4);
            !got.is_empty()
        });
        let Some(Completion::Recv { qp, mut buf, .. }) = got.pop() else { panic!("{got:?}") };
        assert_eq!(qp, Some(qps[1]), "{kind}");
        assert_eq!(&buf.slot_mut()[..text.len()], text, "{kind}");
        let mut done = Vec::new();
        until(&mut devices, "the send's completion", |devices| {
            devices[0].poll(&mut done, 4);
            !done.is_empty()
        });
        let sent =
            matches!(done[0], Completion::Send { status: super::super::WcStatus::Success, .. });
        assert!(sent, "{kind}: {done:?}");
        // Up again from ERR, by the same wrapper, which remembers no port of before.
        devices[0].modify_qp(qps[0], &QpAttrs::to(QpState::Err)).unwrap();
        devices[0].modify_qp(qps[0], &QpAttrs::to(QpState::Reset)).unwrap();
        let error = devices[0].modify_qp(qps[0], &QpAttrs::to(QpState::Rtr)).unwrap_err();
        assert!(error.to_string().contains("it skips INIT"), "{error}");
    }
}

/// Case 3: RoCE has no addresses without a GRH; the kernel says EINVAL.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn an_address_handle_needs_a_grh() {
    let device = open(0);
    let mut av = device.vector(device.port.gid.gid);
    av.grh = None;
    let error = super::ah::Ah::create(&device.pd, raw_av(&av)).unwrap_err();
    assert_eq!(ret::errno(&error), Some(nix::libc::EINVAL), "{error}");
}

/// Case 10: a modify without STATE is refused by us in RTR, whatever this kernel does with it.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_refused_modify_changes_nothing() {
    let mut device = open(0);
    let qp = device.create_qp().unwrap();
    let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(7), sq_psn: Psn::new(0) };
    device.modify_qp(qp, &setup.init()).unwrap();
    device.modify_qp(qp, &setup.rtr()).unwrap();
    let new_key = QpAttrs::new().with(qcast_proto::qp::Attr::QKey(RawQKey(8)));
    device.modify_qp(qp, &new_key).unwrap_err();
    assert_eq!(device.query_qp(qp).unwrap().qkey, 7);
}

/// Case 92: moved behind the device's back, with no event; found by looking, and told once.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_silent_fault_is_found_within_a_second_and_told_once() {
    let mut device = open(0);
    let qp = raw_walk(&mut device, QpType::Ud, QpState::Rts);
    device.advance(Instant::ZERO);
    assert_eq!(device.query_qp(qp).unwrap().state, QpState::Rts);
    let mut raw = values(&device, QpState::Rts);
    raw.qp_state = QpState::Err.raw();
    device.qps.get_mut(qp.0).unwrap().modify_raw(&mut raw, 1).unwrap();
    let mut told = 0;
    for second in 1..4 {
        device.advance(Instant::ZERO + std::time::Duration::from_secs(second));
        while let Some(event) = device.poll_event() {
            assert!(
                matches!(event, DeviceEvent::QpFault { qp: q, state: QpState::Err } if q == qp),
                "{event:?}"
            );
            told += 1;
        }
    }
    assert_eq!(told, 1);
}

/// Case 47: by the host's membership and a plain attach, with no rdma_cm.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_plain_attach_with_a_membership_hears_the_group() {
    let mgid = Gid::from(std::net::Ipv4Addr::new(239, 195, 7, 7));
    let mut devices = [0, 1].map(|at| {
        let mut config = config(at);
        config.spec.join = JoinBy::Membership;
        VerbsDevice::open(&config).unwrap()
    });
    let qps = [0, 1].map(|at: usize| {
        let qp = raw_walk(&mut devices[at], QpType::Ud, QpState::Rts);
        devices[at].query_qp(qp).unwrap();
        devices[at].join(qp, mgid).unwrap();
        qp
    });
    let Some(DeviceEvent::Joined { ah, .. }) = devices[0].poll_event() else { panic!("joined") };
    let mut recvs = devices[1].alloc_recv(4).unwrap();
    devices[1].post_recv(&mut recvs).unwrap();
    let mut buf = devices[0].alloc_send(1).unwrap().remove(0);
    buf.set_len(100);
    let send = SendWr { ah, qpn: Qpn::MULTICAST, qkey: 0x1111_1111, token: 1, buf };
    let mut sends = VecDeque::from([send]);
    devices[0].post_send(qps[0], &mut sends).unwrap();
    let mut got = Vec::new();
    until(&mut devices, "the datagram", |devices| {
        devices[1].poll(&mut got, 4);
        !got.is_empty()
    });
}

/// Cases 74, 79 and 95: nothing stays behind of a thousand devices, neither descriptors nor mappings.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_thousand_openings_leave_nothing() {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let mut before = None;
    for round in 0..1000 {
        let mut device = open(round % 2);
        let bufs = device.alloc_send(4).unwrap();
        let qp = raw_walk(&mut device, QpType::Ud, QpState::Rts);
        let mgid = Gid::from(std::net::Ipv4Addr::new(239, 195, 8, (round % 200) as u8));
        device.join(qp, mgid).unwrap();
        if round % 2 == 0 {
            drop(device);
            drop(bufs);
        } else {
            drop(bufs);
            drop(device);
        }
        // The first rounds load what is loaded once.
        if round == 10 {
            before = Some(count("/proc/self/fd"));
        }
    }
    assert_eq!(before, Some(count("/proc/self/fd")));
}

/// Case 78: what is needed and what is allowed are told.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn errors_of_opening_say_what_to_do() {
    let mut wrong = config(0);
    wrong.spec.name = "nosuch0".into();
    let error = VerbsDevice::open(&wrong).unwrap_err();
    assert!(matches!(&error, VerbsOpenError::NoSuchDevice { have, .. } if have.len() >= 2));
    let mut wrong = config(0);
    wrong.spec.port = Some(9);
    let error = VerbsDevice::open(&wrong).unwrap_err();
    assert!(matches!(error, VerbsOpenError::NoSuchPort { port: 9, ports: 1, .. }), "{error}");
    let mut wrong = config(0);
    wrong.spec.gid_index = Some(200);
    let error = VerbsDevice::open(&wrong).unwrap_err();
    assert!(matches!(error, VerbsOpenError::BadGidIndex { index: 200, .. }), "{error}");
    let mut wrong = config(0);
    wrong.mtu = Some(1000);
    assert!(matches!(VerbsDevice::open(&wrong), Err(VerbsOpenError::BadMtu { .. })));
}

/// Soft-RoCE takes 56 queue pairs into a group. The next is told so, and the others hear on.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_full_group_says_which_limits_there_are() {
    let mgid = Gid::from(std::net::Ipv4Addr::new(239, 195, 7, 9));
    let mut config = config(0);
    // So many CQs are needed: they are small.
    (config.srq_depth, config.send_depth) = (8, 2);
    let mut device = VerbsDevice::open(&config).unwrap();
    let [_, of_group, _] = device.mcast_limits;
    if of_group > 1000 {
        eprintln!("skip: {of_group} queue pairs in a group are too many to try");
        return;
    }
    for n in 0..=of_group {
        let qp = raw_walk(&mut device, QpType::Ud, QpState::Rts);
        device.join(qp, mgid).unwrap();
        let mut event = None;
        until(std::slice::from_mut(&mut device), "the join", |devices| {
            event = devices[0].poll_event();
            event.is_some()
        });
        match event {
            Some(DeviceEvent::Joined { .. }) => assert!(n < of_group, "{n} of {of_group}"),
            Some(DeviceEvent::JoinFailed { error, .. }) => {
                assert_eq!(n, of_group, "{error}");
                assert!(matches!(error, DeviceError::AttachLimit { .. }), "{error}");
                let says = format!("{n} are attached by this node");
                let limit = format!("{of_group} queue pairs in one group");
                let text = error.to_string();
                assert!(text.contains(&says) && text.contains(&limit), "{text}");
                device.destroy_qp(qp).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Case 24: rdma_cm makes a queue pair with its own key. Ours takes its place, and the journal says how.
#[test]
#[ignore = "needs RDMA devices: scripts/test vm"]
fn a_queue_pair_of_rdma_cm_gets_the_groups_key() {
    let mut spec = config(0).spec;
    spec.qp = QpBy::RdmaCm;
    let mut config = VerbsConfig::new(spec.clone());
    (config.srq_depth, config.send_depth) = (64, 16);
    let mut device = VerbsDevice::open(&config).unwrap();
    let qp = device.create_qp().unwrap();
    let info = device.query_qp(qp).unwrap();
    assert_eq!((info.state, info.qkey), (QpState::Rts, 0x0123_4567));
    drop(device);

    // With the control group there would be more in the journal.
    let builder = crate::Node::builder().device(crate::DeviceSpec::Verbs(spec));
    let node = builder.control(false).open().unwrap();
    let key = crate::QKey::new_checked(0x0bad_cafe).unwrap();
    let group = node.group("made by rdma_cm").qkey(key).join().unwrap();
    let journal = node.journal();
    assert_eq!(journal.len(), 1, "{journal:?}");
    assert_eq!((journal[0].from, journal[0].to), (QpState::Rts, QpState::Rts));
    assert_eq!((journal[0].mask, &journal[0].error), (AttrMask::QKEY, &None));
    let info = node.runtime().engine().device_mut().query_qp(QpId(0)).unwrap();
    assert_eq!((info.state, info.qkey), (QpState::Rts, 0x0bad_cafe));
    // From ERR it comes back by the walk through RESET like any other, with the group's key. A publisher speaks up now and
    // then, and finds that it cannot send.
    let _publisher = group.publisher().open().unwrap();
    group.break_qp().unwrap();
    for _ in 0..5000 {
        if node.journal().len() > 4 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let info = node.runtime().engine().device_mut().query_qp(QpId(0)).unwrap();
    assert_eq!((info.state, info.qkey), (QpState::Rts, 0x0bad_cafe));
}
