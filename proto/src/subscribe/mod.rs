//! The subscriber's half of the protocol.
//!
//! A `ReceiveStream` follows one publisher's stream: it finds gaps, asks for
//! what is missing, puts messages back together and hands frames to every subscription that is
//! attached to it, each in its own [`Reliability`].

pub(crate) mod assembly;
mod attach;
mod attachment;
mod gaps;
mod hear;
mod keep;
mod lose;
mod pattern;
mod share;
mod speak;
pub(crate) mod stream;

pub(crate) use hear::Fate;
pub(crate) use share::Sharers;
pub(crate) use speak::{Speaker, Upstream};

use alloc::string::String;
use core::time::Duration;

use crate::addr::{NodeId, Sequence, SessionId, StreamId};

pub use pattern::TopicPattern;

/// How a subscription treats loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reliability {
    /// Every message once and in order; a loss is an event in its place.
    #[default]
    Ordered,
    /// Every message once, as soon as it is whole; a loss is an event once it is certain.
    Unordered,
    /// What arrives, in order, with an event at once for what did not. Nothing is asked for again.
    BestEffort,
    /// The newest message: an older one that was not taken yet is replaced.
    Latest,
}

impl Reliability {
    /// Whether missing frames are asked for.
    pub const fn wants_repair(self) -> bool {
        matches!(self, Self::Ordered | Self::Unordered)
    }
}

/// Where a subscription begins in a stream that is older than itself. A younger stream is always
/// received from its first frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With what comes next.
    #[default]
    Live,
    /// With up to so many frames of what the publisher still retains. A best-effort subscription, and one
    /// that is opened in a node where another follows the stream already, begins with what comes next.
    History(u64),
}

/// How a subscription behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriberConfig {
    /// Which streams it wants.
    pub topics: TopicPattern,
    /// How it treats loss.
    pub reliability: Reliability,
    /// Where it begins.
    pub start: Start,
    /// Frames that may wait for the application. A reliable subscription that is full holds the
    /// publishers back that wait for it; another one drops its oldest, and says so, and so does a
    /// reliable one far above this if a publisher does not wait.
    pub queue: usize,
    /// Whether messages that this node publishes itself are delivered too.
    pub own_messages: bool,
    /// A number that [`FlowPolicy::Tagged`](crate::publish::FlowPolicy::Tagged) publishers wait for.
    pub tag: Option<u32>,
}

impl Default for SubscriberConfig {
    fn default() -> Self {
        Self {
            topics: TopicPattern::default(),
            reliability: Reliability::default(),
            start: Start::default(),
            queue: 1024,
            own_messages: false,
            tag: None,
        }
    }
}

/// A stream, as frames name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// The publisher's life.
    pub session: SessionId,
    /// The stream of it.
    pub stream: StreamId,
}

/// A stream, as its publisher describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// The stream.
    pub key: StreamKey,
    /// The publisher's node.
    pub node: NodeId,
    /// The node's name.
    pub name: String,
    /// The stream's name.
    pub topic: String,
}

/// Why frames are missing for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The publisher no longer retained them when they were asked for.
    NotRetained,
    /// The publisher did not repair them, though it was asked again and again.
    Unrepaired,
    /// The publisher went silent before it repaired them.
    PublisherLost,
    /// They were lost on the way, and the subscription does not ask again.
    Fabric,
    /// They were lost in this node's own receive queue, and the subscription does not ask again.
    Local,
    /// The application did not take them in time.
    QueueFull,
    /// The publisher, which does not wait for this subscriber, ran ahead of what repairs could bring.
    Overrun,
    /// The node's memory for messages that are not whole yet is used up, and this stream's share of it too.
    NoMemory,
}

impl LossCause {
    /// The cause as a short phrase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRetained => "no longer retained by the publisher",
            Self::Unrepaired => "not repaired by the publisher",
            Self::PublisherLost => "publisher lost",
            Self::Fabric => "lost on the way",
            Self::Local => "lost in this node's receive queue",
            Self::QueueFull => "not taken in time",
            Self::Overrun => "the publisher ran ahead",
            Self::NoMemory => "no memory for the pieces of its messages",
        }
    }
}

/// What a subscription is told beside messages, in its place between them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A publisher's stream is followed from here on.
    Joined(StreamInfo),
    /// Frames are missing for good: `first` and `last` are both among them. Messages that had a part in
    /// them are lost.
    Lost {
        /// The stream.
        key: StreamKey,
        /// The first missing frame.
        first: Sequence,
        /// The last missing frame.
        last: Sequence,
        /// Why.
        cause: LossCause,
    },
    /// The publisher was not heard of any more.
    PublisherLost(StreamInfo),
    /// A publisher that had been lost is heard again.
    PublisherBack(StreamInfo),
    /// A new life of the same node took the stream's place.
    PublisherRestarted(StreamInfo),
    /// The publisher ended the stream, and everything of it was delivered or reported lost.
    PublisherClosed(StreamInfo),
    /// The publisher no longer waits for this subscriber, which stayed behind for so long.
    Released {
        /// The stream.
        key: StreamKey,
        /// How long the publisher waited.
        waited: Duration,
    },
}

/// How often a subscriber speaks when nothing else makes it: in a group of `receivers` all of them
/// together send a publisher at most 10,000 statuses a second.
pub(crate) fn status_interval(receivers: u32) -> Duration {
    Duration::from_millis(250).max(Duration::from_micros(100) * receivers)
}

/// The least time between two statuses of a subscriber: 20,000 a second for the publisher in all. In a
/// small group progress alone decides.
pub(crate) fn status_spacing(receivers: u32) -> Duration {
    if receivers <= 8 { Duration::ZERO } else { Duration::from_micros(50) * receivers }
}
