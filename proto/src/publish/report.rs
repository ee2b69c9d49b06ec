//! What a publisher tells of itself.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::addr::{NodeId, Sequence};

/// What happened to a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublisherEvent {
    /// The join was seen to work: an echo came back through the group, or a subscriber spoke.
    Ready,
    /// A subscriber is there.
    SubscriberJoined {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber left.
    SubscriberLeft {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber was not heard of any more.
    SubscriberLost {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A subscriber stayed behind, is no longer waited for, and was told.
    SubscriberReleased {
        /// Its node.
        node: NodeId,
        /// Its name.
        name: String,
        /// How long it held the publisher back.
        waited: Duration,
    },
    /// The stream is closed.
    Closed(Closed),
}

/// How a publisher's stream ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Names of live subscribers that do not have everything: they did not confirm it while the publisher
    /// lingered, or had to give up some of it.
    pub unconfirmed: Vec<String>,
}

/// A publisher's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherStats {
    /// New frames sent.
    pub frames: u64,
    /// Bytes of new frames.
    pub bytes: u64,
    /// NAK datagrams received.
    pub naks: u64,
    /// Distinct frames that were asked for.
    pub frames_asked: u64,
    /// Frames sent again, by unicast or multicast.
    pub repairs: u64,
    /// Of those, by multicast.
    pub multicast_repairs: u64,
    /// Requests that a repair on its way made needless.
    pub damped: u64,
    /// Requests for frames that are no longer retained.
    pub gone: u64,
    /// Statuses received.
    pub statuses: u64,
    /// Of those, statuses that a newer one had overtaken.
    pub stale: u64,
    /// Of those, statuses in another subscriber's name.
    pub spoofed: u64,
    /// Of those, statuses of subscribers that the full table has no place for.
    pub refused: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Live subscribers.
    pub receivers: usize,
    /// The round trip to the slower subscribers.
    pub rtt: Duration,
    /// Everything before this is confirmed by all that are waited for.
    pub confirmed: Sequence,
    /// The first sequence not sent yet.
    pub head: Sequence,
    /// Frames in the window: sent and retained, or waiting to be sent.
    pub retained: usize,
}
