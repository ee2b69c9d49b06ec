//! What can be opened, and what is said when it cannot.

use std::net::IpAddr;

use qcast::device::Device;
use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice, SoftOpenError};

use crate::rig::Rig;

fn at(ip: &str) -> SoftConfig {
    SoftConfig::new(SoftAddress::Addr(ip.parse().unwrap()))
}

#[test]
fn an_address_asked_for_by_number_is_that_one_or_taken() {
    let first = SoftDevice::open(&at("127.0.3.5")).unwrap();
    assert_eq!(first.port().gid.ip(), "127.0.3.5".parse::<IpAddr>().unwrap());
    assert_eq!(first.port().udp_port, 4791);
    let error = SoftDevice::open(&at("127.0.3.5")).unwrap_err();
    assert!(matches!(error, SoftOpenError::PortTaken(_)), "{error:?}");
    assert!(error.to_string().contains("127.0.3.5:4791 is taken"), "{error}");
    drop(first);
    SoftDevice::open(&at("127.0.3.5")).unwrap();
}

#[test]
fn loopback_gives_each_an_address_even_if_they_draw_the_same() {
    let config = SoftConfig::new(SoftAddress::Loopback).seed(4);
    let devices: Vec<_> = (0..8).map(|_| SoftDevice::open(&config).unwrap()).collect();
    for (at, device) in devices.iter().enumerate() {
        assert_eq!(device.port().udp_port, 4791);
        assert!(devices[..at].iter().all(|other| other.port().gid != device.port().gid));
    }
}

#[test]
fn an_interface_that_does_not_exist_is_named() {
    let config = SoftConfig::new(SoftAddress::Interface("nope0".into()));
    let error = SoftDevice::open(&config).unwrap_err();
    assert!(matches!(error, SoftOpenError::NoSuchInterface { .. }), "{error:?}");
    let error = SoftDevice::open(&at("203.0.113.9")).unwrap_err();
    assert!(matches!(error, SoftOpenError::NoSuchAddress { .. }), "{error:?}");
}

#[test]
fn the_interface_lo_is_loopback() {
    let config = SoftConfig::new(SoftAddress::Interface("lo".into()));
    let (a, b) = (SoftDevice::open(&config).unwrap(), SoftDevice::open(&config).unwrap());
    assert_ne!(a.port().gid, b.port().gid);
    assert_eq!(a.caps().name, "soft:lo");
}

#[test]
fn an_mtu_is_one_of_five() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let device = SoftDevice::open(&SoftConfig::new(SoftAddress::Loopback).mtu(mtu)).unwrap();
        assert_eq!((device.caps().max_payload, device.port().mtu), (mtu, mtu));
    }
    for mtu in [0, 1000, 8192] {
        let error = SoftDevice::open(&SoftConfig::new(SoftAddress::Loopback).mtu(mtu)).unwrap_err();
        assert!(matches!(error, SoftOpenError::BadMtu(asked) if asked == mtu), "{error:?}");
    }
}

#[test]
fn closing_frees_the_groups_too() {
    let group = crate::rig::own_group();
    let joined = |group: &str| {
        let octets = group.parse::<std::net::Ipv4Addr>().unwrap().octets();
        let hex = format!("{:08X}", u32::from_le_bytes(octets));
        std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&hex)
    };
    let mut rig = Rig::new();
    assert!(!joined(&group));
    rig.join(&group).unwrap();
    assert!(joined(&group));
    drop(rig);
    assert!(!joined(&group), "dropping a device leaves its groups");
}
