//! Who is in a group, at one moment.

use alloc::vec::Vec;

use super::Member;
use crate::addr::NodeId;

/// Who is in a group, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Grows with each change that is reported, and only then.
    pub version: u64,
    /// The members by node identity, this node among them.
    pub members: Vec<Member>,
}

impl View {
    /// The member with this identity.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&node, |m| m.info.node).ok()?;
        Some(&self.members[at])
    }
}
