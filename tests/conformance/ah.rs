//! Address handles: C-AH.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use qcast::device::{AhAttrs, AhStatus, Device, DeviceError, DeviceEvent, WcStatus};
use qcast_proto::addr::{Gid, Qpn, ROCE_PORT};

use crate::bench::{Bench, HANDLES};
use crate::rig::{Rig, To, fresh_key, skip};

/// C-AH-1, case 42.
pub(crate) fn the_limit_is_kept_and_destroying_makes_room<B: Bench>(rig: &mut Rig<B>) {
    let limit = rig.device(0).caps().max_ah;
    if limit > HANDLES {
        return skip(&format!("{limit} address handles are too many to make"));
    }
    let handles: Vec<_> = (0..limit).map(|_| rig.ah(0, 1)).collect();
    let port = rig.device(1).port();
    let to = AhAttrs { gid: port.gid, udp_port: port.udp_port };
    let error = rig.device(0).create_ah(&to).unwrap_err();
    assert!(matches!(error, DeviceError::Exhausted { limit: l, .. } if l == limit), "{error}");
    rig.device(0).destroy_ah(handles[limit / 2]).unwrap();
    rig.ah(0, 1);
}

/// C-AH-2, case 43: on Soft-RoCE it would move the queue pair to ERR.
pub(crate) fn a_handle_in_use_cannot_be_destroyed<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 1);
    let to = rig.to(0, 1, theirs, key);
    rig.send(0, ours, to, b"x");
    let error = rig.device(0).destroy_ah(to.ah).unwrap_err();
    assert!(matches!(error, DeviceError::Busy(_)), "{error}");
    assert_eq!(rig.done(0, 1)[0].status, WcStatus::Success);
    rig.device(0).destroy_ah(to.ah).unwrap();
    assert_eq!(rig.payloads(1, 1), [b"x"]);
}

/// C-AH-3, case 31.
pub(crate) fn the_other_address_family_is_refused<B: Bench>(rig: &mut Rig<B>) {
    let gid = rig.device(0).port().gid;
    let theirs: Gid = match gid.ip() {
        IpAddr::V4(_) => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
        IpAddr::V6(_) => Ipv4Addr::LOCALHOST.into(),
    };
    let to = AhAttrs { gid: theirs, udp_port: ROCE_PORT };
    let error = rig.device(0).create_ah(&to).unwrap_err();
    assert!(
        matches!(error, DeviceError::FamilyMismatch { ours: o, theirs: t } if o == gid && t == theirs),
        "{error}"
    );
}

/// C-AH-3, case 29.
pub(crate) fn a_peer_that_is_not_there_harms_nobody<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    rig.post(1, 1);
    let there = rig.to(0, 1, theirs, key);
    let nobody: Gid = match rig.device(0).port().gid.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::new(127, 255, 1, 1).into(),
        IpAddr::V4(_) => Ipv4Addr::new(10, 255, 1, 1).into(),
        IpAddr::V6(_) => return skip("no IPv6 address is known to be nobody's here"),
    };
    match rig.device(0).create_ah(&AhAttrs { gid: nobody, udp_port: ROCE_PORT }) {
        Err(DeviceError::Unresolved(gid)) => assert_eq!(gid, nobody),
        Err(error) => panic!("{error}"),
        Ok((ah, AhStatus::Pending)) => {
            let to = To { ah, qpn: Qpn::new(9), qkey: key };
            let mut requests = VecDeque::from([rig.request(0, to, 1, b"x")]);
            let refused = rig.try_post(0, ours, &mut requests);
            assert!(matches!(refused, Err(DeviceError::AhPending)), "C-AH-4: {refused:?}");
            rig.give_back(0, requests);
            rig.event(0, |event| match event {
                DeviceEvent::AhFailed { ah: failed, .. } if *failed == ah => Some(()),
                _ => None,
            });
        }
        Ok((ah, AhStatus::Ready)) => {
            rig.send(0, ours, To { ah, qpn: Qpn::new(9), qkey: key }, b"to nobody");
            assert_eq!(rig.done(0, 1).len(), 1);
        }
    }
    rig.send(0, ours, there, b"to somebody");
    assert_eq!(rig.payloads(1, 1), [b"to somebody"]);
}

/// C-AH-4.
pub(crate) fn a_handle_that_is_gone_cannot_be_used<B: Bench>(rig: &mut Rig<B>) {
    let key = fresh_key();
    let ours = rig.qp(0, key);
    let theirs = rig.qp(1, key);
    let to = rig.to(0, 1, theirs, key);
    rig.device(0).destroy_ah(to.ah).unwrap();
    let error = rig.device(0).destroy_ah(to.ah).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuch(_)), "{error}");
    let mut requests = VecDeque::from([rig.request(0, to, 1, b"x")]);
    let error = rig.try_post(0, ours, &mut requests).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuch(_)), "{error}");
    rig.give_back(0, requests);
}
