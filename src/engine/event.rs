//! What happens to a node beneath its groups: to its port, its device, its queue pairs.
//!
//! None of this needs an answer. The engine brings back what can be brought back, and messages are
//! held back meanwhile; the events say why nothing moves, and when it does again.

use std::fmt;
use std::time::Duration;

use qcast_proto::addr::Gid;
use qcast_proto::qp::QpState;

use super::feed::Entry;

/// Something that happened to a node. See [`Node::events`](crate::Node::events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// Something is wrong, and being seen to: what is published meanwhile is held back or comes late.
    Degraded {
        /// What is wrong.
        trouble: Trouble,
    },
    /// What was wrong is right again.
    Restored {
        /// What was wrong.
        trouble: Trouble,
        /// For how long.
        after: Duration,
    },
    /// The device is gone. Groups, publishers and subscribers stay; what is published is held back until
    /// the device is there again.
    DeviceLost {
        /// Its name.
        device: String,
        /// How that was noticed.
        cause: String,
    },
    /// The device is there again, or another in its place, and the groups are joined on it.
    DeviceReturned {
        /// Its name.
        device: String,
        /// Where peers reach the node now.
        gid: Gid,
        /// How long it was gone.
        after: Duration,
    },
    /// A group's queue pair could neither be brought back nor replaced. Nothing is sent to the group, or
    /// heard from it, until an attempt now and then, or after a change of the port, succeeds:
    /// [`NodeEvent::Restored`] tells.
    QpFailed {
        /// The group.
        group: String,
        /// What went wrong first.
        cause: String,
        /// Attempts so far.
        attempts: u32,
    },
    /// The node's address has changed; peers are told.
    AddressChanged {
        /// Where peers reached the node.
        was: Gid,
        /// Where they reach it now.
        now: Gid,
    },
    /// The listener was slow: this many events were dropped, the oldest first.
    Missed {
        /// How many.
        events: u64,
    },
}

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Trouble {
    /// The port's link is down.
    PortDown {
        /// The port's number.
        port: u8,
    },
    /// The path MTU has become smaller than the frames that the node sends.
    MtuTooSmall {
        /// The path MTU.
        mtu: usize,
        /// What the frames take at most.
        frame: usize,
    },
    /// A group's queue pair has left RTS by itself.
    QueuePair {
        /// The group.
        group: String,
        /// The state that it was found in; ERR if there is none at all.
        state: QpState,
    },
}

impl Entry for NodeEvent {
    fn missed(events: u64) -> Self {
        Self::Missed { events }
    }
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Degraded { trouble } => trouble.fmt(f),
            Self::Restored { trouble, after } => {
                write!(f, "over after {} ms: {trouble}", after.as_millis())
            }
            Self::DeviceLost { device, cause } => write!(f, "{device} is gone: {cause}"),
            Self::DeviceReturned { device, gid, after } => {
                write!(f, "{device} is back at {gid} after {} ms", after.as_millis())
            }
            Self::QpFailed { group, cause, attempts } => {
                write!(f, "the QP of {group:?} failed, {attempts} attempts; first: {cause}")
            }
            Self::AddressChanged { was, now } => write!(f, "the address is {now}, no longer {was}"),
            Self::Missed { events } => write!(f, "{events} events were not taken in time"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortDown { port } => write!(f, "port {port} is down"),
            Self::MtuTooSmall { mtu, frame } => {
                write!(f, "the path MTU is {mtu}, and frames take up to {frame} bytes")
            }
            Self::QueuePair { group, state } => write!(f, "the QP of {group:?} is in {state}"),
        }
    }
}
