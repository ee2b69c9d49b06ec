//! The values that queue pair attributes carry, where a plain number would not say enough.

use core::fmt;
use core::ops::BitOr;

use crate::addr::{Gid, QKey};

/// A queue key as a queue pair takes it: any 32 bits.
///
/// A group's key is a [`QKey`], which is never zero or privileged. A queue pair itself can hold any
/// number, and a modify that sets a privileged one is to be explained, not unthinkable.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RawQKey(pub u32);

impl RawQKey {
    /// Whether bit 31 is set, so that setting it takes a privilege.
    pub const fn is_privileged(self) -> bool {
        self.0 >> 31 != 0
    }
}

impl From<QKey> for RawQKey {
    fn from(key: QKey) -> Self {
        Self(key.get())
    }
}

/// Only the last byte is shown: a key that reaches a log is a key that strangers can read.
impl fmt::Debug for RawQKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x......{:02x}", self.0 & 0xff)
    }
}

/// What a remote peer may do to memory through a connected queue pair (`enum ibv_access_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessFlags(u32);

impl AccessFlags {
    /// Nothing remote: sends and receives alone.
    pub const NONE: Self = Self(0);
    /// Local writes, which receives always may do.
    pub const LOCAL_WRITE: Self = Self(1);
    /// RDMA writes.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// RDMA reads.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// RDMA atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);

    /// The kernel's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for AccessFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The largest payload of a packet on a path: one of five sizes (`enum ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every size, rising.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The number that libibverbs gives it.
    pub const fn raw(self) -> u32 {
        self as u32
    }

    /// The size with this number in `enum ibv_mtu`, if there is one.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.raw() == raw)
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The largest size that is at most `bytes`; `None` below 256.
    pub fn at_most(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }
}

/// The state of automatic path migration (`enum ibv_mig_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathMigState {
    /// On the path that is now the primary one.
    Migrated = 0,
    /// To be armed again.
    Rearm = 1,
    /// Ready to migrate.
    Armed = 2,
}

impl PathMigState {
    /// The number that libibverbs gives it.
    pub const fn raw(self) -> u32 {
        self as u32
    }
}

/// Where a connected queue pair's peer is: the attribute AV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The local port that the path leaves by, counted from 1; that of the queue pair itself.
    pub port: u8,
    /// The destination's LID, on InfiniBand; 0 on Ethernet, which ignores it.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The global route. Ethernet has no other kind.
    pub grh: Option<GlobalRoute>,
}

/// The part of an address that goes into the global routing header (GRH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The destination.
    pub dgid: Gid,
    /// The source, as an index into the port's own GID table; there is no safe default.
    pub sgid_index: u8,
    /// How many routers it may pass; on IPv4 the time to live.
    pub hop_limit: u8,
    /// The traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The flow label: 20 bits.
    pub flow_label: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_named_by_their_size() {
        let sizes = PathMtu::ALL.map(PathMtu::bytes);
        assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
        for mtu in PathMtu::ALL {
            assert_eq!(PathMtu::from_raw(mtu.raw()), Some(mtu));
            assert_eq!(PathMtu::at_most(mtu.bytes()), Some(mtu));
            assert_eq!(PathMtu::at_most(mtu.bytes() * 2 - 1), Some(mtu));
        }
        assert_eq!(PathMtu::at_most(255), None);
        assert_eq!(PathMtu::from_raw(0), None);
        assert_eq!(PathMtu::from_raw(6), None);
    }

    #[test]
    fn a_raw_key_does_not_print_itself() {
        assert_eq!(std::format!("{:?}", RawQKey(0x8bad_cafe)), "0x......fe");
        assert!(RawQKey(0x8000_0000).is_privileged());
        assert!(!RawQKey(0x7fff_ffff).is_privileged());
    }
}
