//! Addresses and identities: value types with the field's own names.

use alloc::string::String;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use sha2::{Digest, Sha256};

/// A 128-bit global identifier: on RoCE an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID with these bytes, in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The IP address that a RoCEv2 GID stands for.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether this names a multicast group (an MGID): `ff00::/8` or a mapped `224.0.0.0/4`.
    ///
    /// These are the GIDs that the kernel's `ib_attach_mcast` accepts.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }

    /// Whether this is a link-local unicast address, which cannot be routed.
    pub fn is_link_local(self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    /// Whether all bytes are zero: an unused entry of a GID table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        IpAddr::V4(ip).into()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The destination of every multicast datagram.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// The queue pair number in the low 24 bits of `n`; the rest is dropped, as on the wire.
    pub const fn new(n: u32) -> Self {
        Self(n & 0x00ff_ffff)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A packet sequence number of a queue pair: 24 bits. qcast's reliability does not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number in the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Self(n & 0x00ff_ffff)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one after this; it wraps at 24 bits.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }
}

/// A group's queue key: 31 bits, not zero.
///
/// Bit 31 is kept clear: in a send request it means "use the queue pair's own key", and setting such
/// a key on a queue pair needs `CAP_NET_RAW`. Zero is refused because rdma_cm on InfiniBand answers
/// a join with key 0 with no event at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QKey(u32);

impl QKey {
    /// Checks a key.
    ///
    /// # Errors
    /// [`QKeyError`] says which rule `key` breaks.
    pub const fn new_checked(key: u32) -> Result<Self, QKeyError> {
        if key == 0 {
            Err(QKeyError::Zero)
        } else if key >> 31 != 0 {
            Err(QKeyError::Privileged(key))
        } else {
            Ok(Self(key))
        }
    }

    /// The key of a group that shares `secret`: the same name and secret give the same key.
    ///
    /// A QKey is sent in the clear, so the secret keeps strangers apart, not attackers out; the key does
    /// not give the secret away.
    pub fn derive(name: &str, secret: &[u8]) -> Self {
        let digest = digest(b"qcast qkey 1", name, secret);
        // 31 bits; the one name and secret in 2^31 that give zero get 1.
        Self((digest & 0x7fff_ffff).max(1))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The multicast address that a group has if none is chosen: in 239.192.0.0/14, which is set aside for
/// organisations' own use (RFC 2365).
pub fn group_address(name: &str) -> Ipv4Addr {
    let digest = digest(b"qcast mgid 1", name, &[]);
    Ipv4Addr::from(0xefc0_0000 | digest & 0x0003_ffff)
}

/// The same on an IPv6 device: a transient address of site scope (RFC 4291), so that it can cross routers
/// of the site and nothing more.
pub fn group_address_v6(name: &str) -> Ipv6Addr {
    let digest = digest(b"qcast mgid 1", name, &[]);
    Ipv6Addr::from(0xff15 << 112 | 0x7163 << 32 | u128::from(digest))
}

/// The first 32 bits of a SHA-256 over a purpose, a name with its length, and a secret.
pub(crate) fn digest(purpose: &[u8], name: &str, secret: &[u8]) -> u32 {
    let mut hash = Sha256::new();
    hash.update(purpose);
    hash.update((name.len() as u64).to_be_bytes());
    hash.update(name);
    hash.update(secret);
    let digest = hash.finalize();
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Only the last byte is shown: a key that reaches a log is a key that strangers can read.
impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey(0x......{:02x})", self.0 & 0xff)
    }
}

impl FromStr for QKey {
    type Err = QKeyError;

    /// Reads `0x…` as hexadecimal, anything else as decimal.
    fn from_str(s: &str) -> Result<Self, QKeyError> {
        let parsed = match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => s.parse(),
        };
        Self::new_checked(parsed.map_err(|_| QKeyError::NotANumber(s.into()))?)
    }
}

/// Why a number cannot be a group's queue key. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QKeyError {
    /// The key is 0.
    #[error("a group's QKey cannot be 0; choose one from 0x1 to 0x7fffffff")]
    Zero,
    /// Bit 31 is set.
    #[error(
        "QKey {0:#010x} has bit 31 set: such a key is privileged (it needs CAP_NET_RAW), and in a send it \
         means \"use the QP's own key\"; choose one from 0x1 to 0x7fffffff"
    )]
    Privileged(u32),
    /// The text is not a 32-bit number.
    #[error("{0:?} is not a QKey; give a number such as 0x0badcafe")]
    NotANumber(String),
}

/// A partition key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT: Self = Self(0xffff);
}

/// Where a peer's queue pair is reached, as the peer itself advertises it.
/// Requirements: `R-ID-4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddr {
    /// The peer's GID, by value: an index means nothing on another host.
    pub gid: Gid,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The UDP port that its RoCEv2 endpoint listens on: [`ROCE_PORT`] but for software endpoints
    /// that share a host.
    pub udp_port: u16,
}

/// The UDP port of RoCEv2 (IANA "roce").
pub const ROCE_PORT: u16 = 4791;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A node's identity: random, drawn anew by every process, so that a restart is a new node.
    NodeId(u128), "{:032x}"
);
id!(
    /// A publisher's life in a group: random, so that a restart is told from a late frame.
    SessionId(u64), "{:016x}"
);
id!(
    /// A stream (topic) of a session, counted from 0 and never used twice in it.
    StreamId(u32), "{}"
);
id!(
    /// A check value of a group's name, carried by every frame.
    GroupTag(u32), "{:08x}"
);
id!(
    /// Keeps deployments that share a fabric apart: frames of another domain are dropped.
    Domain(u16), "{}"
);
id!(
    /// A frame's place in its stream, from 0: 64 bits, so it never wraps (at 10^9 frames a second
    /// that takes 584 years).
    Sequence(u64), "{}"
);

impl NodeId {
    /// The identity of a node that is known by a name of its own, from one life to the next.
    /// Requirements: `R-ID-3`.
    pub fn of_name(name: &str) -> Self {
        let hash = Sha256::digest(name);
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        Self(u128::from_be_bytes(id))
    }
}

impl GroupTag {
    /// The check value of a group's name: its CRC-32.
    pub fn of(name: &str) -> Self {
        Self(crc32fast::hash(name.as_bytes()))
    }
}

impl Sequence {
    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The `n`th after this.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }

    /// How far this is after `earlier`; 0 if it is not after it.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn gids_and_ips() {
        let v4 = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        assert!(v4.is_multicast());
        assert_eq!(v4.to_string(), "::ffff:239.1.2.3");
        assert_eq!(v4.ip(), IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3)));
        let v6 = Gid::from("ff0e::7".parse::<IpAddr>().unwrap());
        assert!(v6.is_multicast());
        assert!(!Gid::from(Ipv4Addr::new(10, 0, 0, 1)).is_multicast());
        assert!(Gid::from("fe80::1".parse::<IpAddr>().unwrap()).is_link_local());
    }

    #[test]
    fn qkeys_are_31_bits_and_not_zero() {
        assert_eq!("0x7fffffff".parse::<QKey>().unwrap().get(), 0x7fff_ffff);
        assert_eq!("0".parse::<QKey>(), Err(QKeyError::Zero));
        assert_eq!("0x80010000".parse::<QKey>(), Err(QKeyError::Privileged(0x8001_0000)));
        assert!(matches!("0x100000000".parse::<QKey>(), Err(QKeyError::NotANumber(_))));
        assert!(
            "bit 31".len() > 1
                && QKeyError::Privileged(1 << 31).to_string().contains("CAP_NET_RAW")
        );
    }

    #[test]
    fn keys_and_addresses_follow_from_names() {
        let key = QKey::derive("ticks", b"s3cret");
        assert_eq!(key, QKey::derive("ticks", b"s3cret"));
        assert_ne!(key, QKey::derive("ticks", b"other"));
        assert_ne!(key, QKey::derive("tick", b"ss3cret"));
        for i in 0..10_000u32 {
            let key = QKey::derive("g", &i.to_be_bytes()).get();
            assert!(key != 0 && key >> 31 == 0);
            assert!(group_address_v6(&i.to_string()).segments()[0] == 0xff15);
            let [a, b, ..] = group_address(&i.to_string()).octets();
            assert!(a == 239 && (192..196).contains(&b));
        }
    }

    #[test]
    fn a_debug_print_does_not_give_the_key_away() {
        let key = QKey::new_checked(0x0bad_cafe).unwrap();
        assert_eq!(std::format!("{key:?}"), "QKey(0x......fe)");
    }
}
