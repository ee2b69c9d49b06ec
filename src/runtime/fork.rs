//! Telling a forked child from the process that opened a node.
//!
//! A child has a copy of the node's memory, and shares its sockets and queues with the parent: a turn there would take
//! what is the parent's, and its locks may be held by threads that it does not have. So every call looks here first.

use crate::device::soft::forks;

/// The process that opened a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u32);

impl Birth {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(forks())
    }

    /// An error in a child of that process.
    pub(crate) fn check(self) -> Result<(), ForkedChild> {
        if self.0 == forks() { Ok(()) } else { Err(ForkedChild) }
    }
}

/// This process was forked from the one that opened the node. Nothing was done.
///
/// A node belongs to the process that opened it: its sockets and queues are shared with the child, its threads are not
/// there. Handles can be dropped in the child, or left alone until it ends. To use qcast there, open another node;
/// better, fork before the first is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process was forked from the one that opened the node; open a node here, or fork before opening one"
)]
pub struct ForkedChild;
