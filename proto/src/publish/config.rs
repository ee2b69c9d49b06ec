//! How a publisher behaves.

use alloc::string::String;
use core::time::Duration;

use super::flow::FlowPolicy;
use crate::subscribe::stream::PUBLISHER_TIMEOUT;

/// How a publisher behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The stream's name; subscribers choose by it.
    pub topic: String,
    /// Frames retained for repairs and history. Memory: this many path MTUs.
    pub window: usize,
    /// Whom the publisher waits for.
    pub policy: FlowPolicy,
    /// How long one subscriber may hold the publisher back without a step before it is let go.
    pub grace: Duration,
    /// How long a silent subscriber counts as alive. In large groups, where each speaks less often, it
    /// is at least eight of its intervals.
    pub receiver_timeout: Duration,
    /// How long a closing publisher waits for subscribers to have everything.
    pub linger: Duration,
    /// The first heartbeat after a frame; the next ones come after twice as long each, up to
    /// [`PublisherConfig::heartbeat_max`].
    pub heartbeat_min: Duration,
    /// The idle heartbeat.
    pub heartbeat_max: Duration,
    /// Subscribers that the publisher keeps apart; those above it are served but not waited for.
    pub max_receivers: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            topic: String::new(),
            window: 1024,
            policy: FlowPolicy::Slowest,
            grace: Duration::from_secs(10),
            receiver_timeout: Duration::from_secs(2),
            linger: Duration::from_secs(5),
            heartbeat_min: Duration::from_millis(2),
            heartbeat_max: Duration::from_millis(250),
            max_receivers: 1 << 14,
        }
    }
}

/// The longest idle heartbeat: a publisher is lost after [`PUBLISHER_TIMEOUT`], and no lost datagram
/// or two may come near that.
const MAX_HEARTBEAT: Duration = Duration::from_millis(PUBLISHER_TIMEOUT.as_millis() as u64 / 6);

/// The shortest heartbeat: below it a publisher would only send heartbeats.
const MIN_HEARTBEAT: Duration = Duration::from_micros(100);

impl PublisherConfig {
    /// The same with every number in its range.
    pub(crate) fn bounded(mut self) -> Self {
        self.window = self.window.max(1);
        self.heartbeat_min = self.heartbeat_min.clamp(MIN_HEARTBEAT, MAX_HEARTBEAT);
        self.heartbeat_max = self.heartbeat_max.clamp(self.heartbeat_min, MAX_HEARTBEAT);
        self
    }
}
