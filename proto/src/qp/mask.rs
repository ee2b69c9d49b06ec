//! Attribute masks: which attributes a modify carries.

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// A set of queue pair attributes, with the kernel's bit values (`enum ib_qp_attr_mask`).
///
/// Bits that have no name here are kept and printed in hexadecimal, never dropped: a mask from
/// elsewhere is reported as it was.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttrMask(u32);

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $about:literal;)*) => {
        impl AttrMask {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
        }

        /// Bit, name and purpose of each attribute, by rising bit.
        const ATTRIBUTES: &[(AttrMask, &str, &str)] = &[
            $((AttrMask::$name, stringify!($name), $about),)*
        ];
    };
}

attributes! {
    /// The state to move to.
    STATE = 0, "the state to move to";
    /// The state that the caller believes the queue pair is in.
    CUR_STATE = 1, "the state the caller believes the QP is in";
    /// Whether an event tells that the send queue has drained.
    EN_SQD_ASYNC_NOTIFY = 2, "ask for an event once the send queue has drained";
    /// What a remote peer may do to local memory.
    ACCESS_FLAGS = 3, "what the remote side may do to local memory";
    /// The partition, as an index into the port's table.
    PKEY_INDEX = 4, "the partition, as an index into the port's table";
    /// The physical port.
    PORT = 5, "the physical port, counted from 1";
    /// The queue key that datagrams must carry to be delivered.
    QKEY = 6, "the queue key that a datagram must carry to be delivered";
    /// The address vector: where the connected peer is.
    AV = 7, "the address of the connected peer";
    /// The path MTU.
    PATH_MTU = 8, "the largest payload of a packet on the path";
    /// How long to wait for an acknowledgement.
    TIMEOUT = 9, "how long to wait for an acknowledgement";
    /// How often to repeat when none came.
    RETRY_CNT = 10, "how often to repeat a packet that was not acknowledged";
    /// How often to repeat when the peer had no receive posted.
    RNR_RETRY = 11, "how often to repeat when the peer had no receive posted";
    /// The first packet sequence number expected.
    RQ_PSN = 12, "the first packet sequence number to expect";
    /// How many RDMA reads and atomics may be outstanding as initiator.
    MAX_QP_RD_ATOMIC = 13, "how many RDMA reads and atomics may be under way to the peer";
    /// The alternate path.
    ALT_PATH = 14, "the alternate path (not on RoCE)";
    /// How long a peer is asked to wait when no receive is posted here.
    MIN_RNR_TIMER = 15, "how long the peer is asked to wait when no receive is posted here";
    /// The first packet sequence number sent.
    SQ_PSN = 16, "the first packet sequence number to send";
    /// How many RDMA reads and atomics may be outstanding as responder.
    MAX_DEST_RD_ATOMIC = 17, "how many RDMA reads and atomics the peer may have under way here";
    /// The state of automatic path migration.
    PATH_MIG_STATE = 18, "the state of automatic path migration";
    /// The queue capacities. No step of UD, UC or RC takes it.
    CAP = 19, "the queue capacities";
    /// The connected peer's queue pair number.
    DEST_QPN = 20, "the connected peer's queue pair number";
    /// The packet pacing rate, of raw packet queue pairs.
    RATE_LIMIT = 25, "the packet pacing rate (raw packet QPs only)";
}

impl AttrMask {
    /// No attribute.
    pub const NONE: Self = Self(0);

    /// The set with these kernel bits; those without a name are kept.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The kernel's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether there is no attribute in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every attribute of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many attributes are in it.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The attributes one by one, by rising bit.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        (0..u32::BITS).map(|bit| Self(1 << bit)).filter(move |&one| self.contains(one))
    }

    /// Every attribute that has a name.
    pub fn all_named() -> Self {
        ATTRIBUTES.iter().fold(Self::NONE, |all, &(one, ..)| all | one)
    }

    /// The attribute's name, if this is exactly one and it has a name.
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|&(_, name, _)| name)
    }

    /// What the attribute says, in a few words, if this is exactly one and it has a name.
    pub fn about(self) -> Option<&'static str> {
        self.entry().map(|&(_, _, about)| about)
    }

    /// The attribute called `name`, such as `QKEY`.
    pub fn from_name(name: &str) -> Option<Self> {
        ATTRIBUTES.iter().find(|&&(_, known, _)| known == name).map(|&(one, ..)| one)
    }

    fn entry(self) -> Option<&'static (Self, &'static str, &'static str)> {
        ATTRIBUTES.iter().find(|&&(one, ..)| one == self)
    }

    fn write(self, f: &mut fmt::Formatter<'_>, separator: &str) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (n, one) in self.iter().enumerate() {
            if n > 0 {
                f.write_str(separator)?;
            }
            match one.name() {
                Some(name) => f.write_str(name)?,
                None => write!(f, "{:#x}", one.0)?,
            }
        }
        Ok(())
    }

    /// The names as a list in a sentence: `QKEY, PORT`.
    pub(super) fn listed(self) -> impl fmt::Display {
        struct Listed(AttrMask);
        impl fmt::Display for Listed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(f, ", ")
            }
        }
        Listed(self)
    }
}

/// `STATE|PKEY_INDEX|0x800000`, or `nothing`.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "|")
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttrMask({self})")
    }
}

impl BitOr for AttrMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for AttrMask {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl BitAnd for AttrMask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.intersection(other)
    }
}

impl Sub for AttrMask {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.without(other)
    }
}

impl FromIterator<AttrMask> for AttrMask {
    fn from_iter<I: IntoIterator<Item = Self>>(masks: I) -> Self {
        masks.into_iter().fold(Self::NONE, Self::union)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_bits_are_the_kernels() {
        let ud_init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        assert_eq!(ud_init.bits(), 0x71);
        assert_eq!((AttrMask::STATE | AttrMask::SQ_PSN).bits(), 0x1_0001);
        assert_eq!(AttrMask::DEST_QPN.bits(), 0x10_0000);
        assert_eq!(AttrMask::RATE_LIMIT.bits(), 0x200_0000);
        assert_eq!(AttrMask::all_named().bits(), 0x21f_ffff);
        assert_eq!(AttrMask::all_named().len(), 22);
    }

    #[test]
    fn names_print_in_bit_order_and_unknown_bits_survive() {
        let mask = AttrMask::QKEY | AttrMask::STATE | AttrMask::from_bits(0x8080_0000);
        assert_eq!(mask.to_string(), "STATE|QKEY|0x800000|0x80000000");
        assert_eq!(AttrMask::NONE.to_string(), "nothing");
        assert_eq!(mask.iter().collect::<AttrMask>(), mask);
    }

    #[test]
    fn every_name_leads_back_to_its_bit() {
        for one in AttrMask::all_named().iter() {
            assert_eq!(AttrMask::from_name(one.name().unwrap()), Some(one));
            assert!(one.about().is_some());
        }
        assert_eq!(AttrMask::from_name("QKey"), None);
        assert_eq!((AttrMask::QKEY | AttrMask::PORT).name(), None);
    }
}
