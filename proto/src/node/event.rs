//! What goes in and out of a node.

use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{PeerAddr, Sequence};
use crate::diagnosis::DiagnosisEvent;
use crate::discovery::DiscoveryEvent;
use crate::membership::MemberEvent;
use crate::publish::PublisherEvent;
use crate::subscribe::{Notice, StreamKey};

/// A group of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(crate) u32);

/// A publisher's stream of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherId(pub(crate) u32);

/// A subscription of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub(crate) u32);

/// Something that a node tells.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<R> {
    /// A frame of messages for a subscription.
    Frame {
        /// Whom it is for.
        subscriber: SubscriberId,
        /// The stream.
        key: StreamKey,
        /// The frame's place in it.
        sequence: Sequence,
        /// The frame: its messages are read with
        /// [`Messages::of_checked`](crate::wire::frame::Messages::of_checked).
        frame: R,
    },
    /// A message that came in fragments.
    Message {
        /// Whom it is for.
        subscriber: SubscriberId,
        /// The stream.
        key: StreamKey,
        /// The place of its last fragment.
        sequence: Sequence,
        /// The message.
        message: Vec<u8>,
    },
    /// Something beside messages, in its place between them.
    Notice {
        /// Whom it is for.
        subscriber: SubscriberId,
        /// What it is.
        notice: Notice,
    },
    /// Something about a publisher.
    Publisher {
        /// Which.
        publisher: PublisherId,
        /// What it is.
        event: PublisherEvent,
    },
    /// A frame that had been asked for has come.
    Repaired {
        /// How long it had been missing.
        waited: Duration,
    },
    /// Something about a member of a group.
    Member {
        /// The group.
        group: GroupId,
        /// What it is.
        event: MemberEvent,
        /// The version that the group's view has with it.
        version: u64,
    },
    /// The group's multicast does not reach this node, or this node's does not reach the others, while
    /// unicast does: leave the multicast group on the device and join it anew.
    Rejoin {
        /// The group.
        group: GroupId,
    },
    /// Something about the members of a group.
    Diagnosis(DiagnosisEvent),
    /// Something about services.
    Discovery(DiscoveryEvent),
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To the group.
    Group,
    /// To one peer.
    Peer(PeerAddr),
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Transmit<T> {
    /// The group whose queue pair sends it.
    pub group: GroupId,
    /// Where it goes.
    pub to: To,
    /// The frame.
    pub frame: T,
    /// What to give back with it to [`Node::handle_sent`](super::Node::handle_sent).
    pub token: FrameToken,
}

/// Whose frame it is that a device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameToken {
    /// A frame of a stream. Which one, the frame itself says.
    Stream(PublisherId),
    /// A control frame.
    Control,
}

impl FrameToken {
    /// The token as a work request id.
    pub fn to_bits(self) -> u64 {
        match self {
            Self::Control => u64::MAX,
            Self::Stream(publisher) => u64::from(publisher.0),
        }
    }

    /// Reads a work request id back.
    pub fn from_bits(bits: u64) -> Self {
        u32::try_from(bits).map_or(Self::Control, |id| Self::Stream(PublisherId(id)))
    }
}
