//! The GID table: the entry is chosen by type and address, and found again by its value.
//!
//! Tables differ from driver to driver and change when a link flaps, so an index means nothing by itself. On
//! Ethernet only RoCEv2 entries will do: an IPv4 address first, then a global IPv6 address, and a
//! link-local one, which no router carries, if there is nothing else.

use std::net::IpAddr;
use std::os::raw::c_int;

use qcast_proto::addr::Gid;
use qcast_proto::qp::LinkLayer;
use rdma_sys as sys;

use super::device::Context;
use super::layout::Plain;
use super::ret;
use crate::device::DeviceError;

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) index: u8,
    pub(super) gid: Gid,
    pub(super) kind: Kind,
    /// The network interface; 0 on InfiniBand.
    pub(super) interface: u32,
}

/// What an entry's GID goes by on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    InfiniBand,
    RoceV1,
    RoceV2,
    Unknown(u32),
}

/// Why an index that was asked for will not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    Empty,
    WrongKind,
}

impl Unfit {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::WrongKind => "not of the type RoCE v2",
        }
    }
}

/// The entry to be used, if there is one.
pub(super) fn choose(entries: &[Entry], link: LinkLayer) -> Option<Entry> {
    let fit = entries.iter().filter(|entry| entry.kind == wanted(link) && !entry.gid.is_zero());
    fit.min_by_key(|entry| (rank(entry.gid), entry.index)).copied()
}

/// The entry at `index`, if it can be used.
pub(super) fn at(entries: &[Entry], link: LinkLayer, index: u8) -> Result<Entry, Unfit> {
    let entry = entries.iter().find(|entry| entry.index == index && !entry.gid.is_zero());
    let entry = entry.ok_or(Unfit::Empty)?;
    if entry.kind == wanted(link) { Ok(*entry) } else { Err(Unfit::WrongKind) }
}

/// Where the GID is now.
pub(super) fn find(entries: &[Entry], link: LinkLayer, gid: Gid) -> Option<Entry> {
    entries.iter().find(|entry| entry.gid == gid && entry.kind == wanted(link)).copied()
}

fn wanted(link: LinkLayer) -> Kind {
    match link {
        LinkLayer::Ethernet => Kind::RoceV2,
        LinkLayer::InfiniBand => Kind::InfiniBand,
    }
}

fn rank(gid: Gid) -> u8 {
    match gid.ip() {
        _ if gid.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

/// Reads the table of a port.
pub(super) fn table(context: &Context, port: u8) -> Result<Vec<Entry>, DeviceError> {
    let len = usize::try_from(context.query_port(port)?.gid_tbl_len).unwrap_or(0);
    // The call is for all ports of a device at once.
    let ports = usize::from(context.query_device()?.phys_port_cnt).max(1);
    let mut raw: Vec<sys::ibv_gid_entry> = Vec::new();
    raw.resize_with(len * ports, Plain::zeroed);
    // SAFETY: the context is open, and `raw` has room for as many entries of this size as is said.
    let count = unsafe {
        _ibv_query_gid_table(
            context.as_ptr(),
            raw.as_mut_ptr(),
            raw.len(),
            0,
            size_of::<sys::ibv_gid_entry>(),
        )
    };
    raw.truncate(ret::count("ibv_query_gid_table", count)?);
    Ok(raw.iter().filter(|raw| raw.port_num == u32::from(port)).filter_map(entry).collect())
}

fn entry(raw: &sys::ibv_gid_entry) -> Option<Entry> {
    Some(Entry {
        // Address vectors have eight bits for it.
        index: u8::try_from(raw.gid_index).ok()?,
        gid: from_raw(&raw.gid),
        kind: match raw.gid_type {
            sys::IBV_GID_TYPE_IB => Kind::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => Kind::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Kind::RoceV2,
            other => Kind::Unknown(other),
        },
        interface: raw.ndev_ifindex,
    })
}

pub(super) fn from_raw(raw: &sys::ibv_gid) -> Gid {
    // SAFETY: both members of the union are 16 bytes of which every value is valid.
    Gid::from_bytes(unsafe { raw.raw })
}

pub(super) fn to_raw(gid: Gid) -> sys::ibv_gid {
    sys::ibv_gid { raw: gid.to_bytes() }
}

unsafe extern "C" {
    // Behind the inline function ibv_query_gid_table of verbs.h; in libibverbs since 1.11 (rdma-core 32).
    fn _ibv_query_gid_table(
        context: *mut sys::ibv_context,
        entries: *mut sys::ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// The link layer that a port's attributes name.
pub(super) fn link_layer(attr: &sys::ibv_port_attr) -> LinkLayer {
    const ETHERNET: c_int = 2;
    if c_int::from(attr.link_layer) == ETHERNET {
        LinkLayer::Ethernet
    } else {
        LinkLayer::InfiniBand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, ip: &str, kind: Kind) -> Entry {
        Entry { index, gid: ip.parse::<IpAddr>().unwrap().into(), kind, interface: 1 }
    }

    // Cases 4, 32 and 35: three drivers' tables, the same address in each.
    #[test]
    fn type_and_address_choose_and_not_the_index() {
        use Kind::{RoceV1, RoceV2};
        let tables = [
            vec![
                entry(0, "fe80::1", RoceV1),
                entry(1, "fe80::1", RoceV2),
                entry(2, "10.0.0.1", RoceV1),
                entry(3, "10.0.0.1", RoceV2),
            ],
            vec![entry(0, "fe80::1", RoceV2), entry(1, "10.0.0.1", RoceV2)],
            vec![entry(0, "10.0.0.1", RoceV2), entry(5, "2001:db8::1", RoceV2)],
        ];
        let chosen = tables.map(|table| choose(&table, LinkLayer::Ethernet).unwrap());
        assert_eq!(chosen.map(|entry| entry.index), [3, 1, 0]);
        assert!(chosen.iter().all(|entry| entry.gid.ip().to_string() == "10.0.0.1"));
    }

    #[test]
    fn link_local_is_the_last_resort() {
        let v2 = Kind::RoceV2;
        let local = entry(0, "fe80::1", v2);
        assert_eq!(choose(&[local], LinkLayer::Ethernet), Some(local));
        let global = entry(7, "2001:db8::1", v2);
        assert_eq!(choose(&[local, global], LinkLayer::Ethernet), Some(global));
    }

    // Case 39.
    #[test]
    fn an_empty_table_has_nothing() {
        let zero = Entry { gid: Gid::default(), ..entry(0, "::", Kind::RoceV2) };
        assert_eq!(choose(&[zero], LinkLayer::Ethernet), None);
        assert_eq!(at(&[zero], LinkLayer::Ethernet, 0), Err(Unfit::Empty));
        let v1 = entry(2, "10.0.0.1", Kind::RoceV1);
        assert_eq!(choose(&[v1], LinkLayer::Ethernet), None);
        assert_eq!(at(&[v1], LinkLayer::Ethernet, 2), Err(Unfit::WrongKind));
    }

    // Case 37: after a flap the same address may be elsewhere.
    #[test]
    fn a_gid_is_found_again_by_its_value() {
        let before = [entry(3, "10.0.0.1", Kind::RoceV2)];
        let after = [entry(3, "10.0.0.9", Kind::RoceV2), entry(5, "10.0.0.1", Kind::RoceV2)];
        assert_eq!(find(&after, LinkLayer::Ethernet, before[0].gid).unwrap().index, 5);
    }
}
