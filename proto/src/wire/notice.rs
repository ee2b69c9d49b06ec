//! What a node says of the groups that it is in, on the control group.

use alloc::string::String;

use bincode::{Decode, Encode};

use super::control::{MAX_NAME, is_sound_name};
use super::list::List;

/// The most groups in one notice; what does not fit goes into the next.
pub const MAX_GROUPS: usize = 48;

/// A node's word about its groups, or some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct GroupNotice {
    /// The node's identity.
    pub node: u128,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// Its clock in microseconds: of two words about a group, the one with the greater is newer.
    pub at: u64,
    /// Its name.
    pub name: String,
    /// After this time it speaks again, in milliseconds.
    pub period_ms: u32,
    /// Whether it wants to hear at once what others are in.
    pub asks: bool,
    /// The groups.
    pub groups: List<GroupEntry, MAX_GROUPS>,
}

/// A group that a node is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct GroupEntry {
    /// The group's name. Its tag follows from it.
    pub name: String,
    /// What the node uses there.
    pub checks: Checks,
    /// Members of the group that it knows of, itself included.
    pub members: u32,
    /// Whether it has left the group.
    pub left: bool,
}

/// What all members of a group must agree in. Keys are there as 8-bit check values only, as
/// [`diagnosis`](crate::diagnosis) says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Checks {
    /// Of the queue key.
    pub key: u8,
    /// Of the partition key.
    pub partition: u8,
    /// Of the multicast address.
    pub address: u8,
    /// The greatest payload of a datagram in bytes.
    pub mtu: u32,
}

impl GroupNotice {
    /// Whether the names in it may be kept and shown.
    pub fn is_sound(&self) -> bool {
        is_sound_name(&self.name)
            && self.groups.iter().all(|g| !g.name.is_empty() && is_sound_name(&g.name))
    }
}

/// Bytes of a notice without groups, at most.
pub(crate) const NOTICE_ROOM: usize = 17 + 9 + 9 + 1 + MAX_NAME + 5 + 1 + 1;

impl GroupEntry {
    /// Bytes of it in a notice, at most.
    pub(crate) fn room(&self) -> usize {
        1 + self.name.len() + 3 + 5 + 5 + 1
    }
}
