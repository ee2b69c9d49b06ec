//! What is simulated.

use std::ops::Range;

use qcast_proto::publish::FlowPolicy;
use qcast_proto::subscribe::Reliability;
use qcast_proto::time::Duration;
use qcast_proto::wire::frame::{MAX_MESSAGE, MIN_MTU};

use crate::device::impair::Impairment;

/// What a [`Simulation`](super::Simulation) is of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulationConfig {
    /// Subscribers, each a node of its own.
    pub subscribers: usize,
    /// Publishers, each a node of its own that publishes [`SimulationConfig::messages`].
    pub publishers: usize,
    /// Messages of each publisher.
    pub messages: u64,
    /// Bytes of each message.
    pub size: usize,
    /// Messages a second of each publisher; without it as many as flow control allows.
    pub rate: Option<f64>,
    /// What happens to datagrams on their way into each node, publishers included.
    pub path: Impairment,
    /// How long a datagram takes across the fabric; a round trip is twice that.
    pub latency: Duration,
    /// Bytes a second that each port sends.
    pub bandwidth: u64,
    /// How long a node is busy with one turn; what arrives meanwhile waits for the next.
    pub turn: Duration,
    /// The path MTU in bytes.
    pub mtu: usize,
    /// Receives posted by each subscriber. What it has room for is half as many frames.
    pub srq_depth: usize,
    /// How subscribers treat loss.
    pub reliability: Reliability,
    /// Whom publishers wait for.
    pub policy: FlowPolicy,
    /// Frames that publishers retain.
    pub window: usize,
    /// How many of the subscribers take their time.
    pub slow: usize,
    /// How long those take for a frame.
    pub slow_pause: Duration,
    /// Whether a node with another key publishes and subscribes at the same group address.
    pub stranger: bool,
    /// What happens to subscribers while messages are published.
    pub outages: Vec<Outage>,
    /// How much virtual time may pass with no message delivered before the run counts as stuck.
    pub patience: Duration,
    /// NAK datagrams that may reach a publisher for each lost frame.
    pub max_naks_per_loss: f64,
    /// Where all randomness comes from.
    pub seed: u64,
}

/// Something that happens to some subscribers for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// When it begins, from the first message on.
    pub after: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// Which subscribers it hits.
    pub subscribers: Range<usize>,
    /// What it is.
    pub kind: OutageKind,
}

impl Outage {
    /// An outage of `kind` that hits `subscribers` from `after` on for so long.
    pub fn new(
        kind: OutageKind,
        subscribers: Range<usize>,
        after: Duration,
        lasts: Duration,
    ) -> Self {
        Self { after, lasts, subscribers, kind }
    }
}

/// What an [`Outage`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutageKind {
    /// They hear nobody outside, and are heard by nobody.
    Partition,
    /// Their links are down, with an event at each end of it.
    LinkDown,
    /// Their processes do not run.
    Pause,
}

impl SimulationConfig {
    /// So many subscribers and messages, drawn from `seed`, on a fabric that loses nothing.
    pub fn new(subscribers: usize, messages: u64, seed: u64) -> Self {
        Self {
            subscribers,
            publishers: 1,
            messages,
            size: 1024,
            rate: None,
            path: Impairment::default(),
            latency: Duration::from_micros(50),
            bandwidth: 12_500_000_000,
            turn: Duration::from_micros(10),
            mtu: 4096,
            srq_depth: 512,
            reliability: Reliability::Ordered,
            policy: FlowPolicy::Slowest,
            window: 1024,
            slow: 0,
            slow_pause: Duration::from_micros(100),
            stranger: true,
            outages: Vec::new(),
            patience: Duration::from_secs(30),
            max_naks_per_loss: 10.0,
            seed,
        }
    }

    /// A round trip across the fabric.
    pub fn rtt(&self) -> Duration {
        self.latency * 2
    }

    pub(super) fn check(&self) -> Result<(), SimulationError> {
        let refuse = |what, range| Err(SimulationError::OutOfRange { what, range });
        let chances = [
            ("loss", self.path.loss),
            ("reorder", self.path.reorder),
            ("duplicate", self.path.duplicate),
            ("corrupt", self.path.corrupt),
            ("mangle", self.path.mangle),
        ];
        for (what, chance) in chances {
            if !(0.0..1.0).contains(&chance) {
                return refuse(what, "0 to below 1");
            }
        }
        if !(1..=MAX_SUBSCRIBERS).contains(&self.subscribers) {
            return refuse("subscribers", "1 to 16384");
        }
        if !(1..=64).contains(&self.publishers) {
            return refuse("publishers", "1 to 64");
        }
        if !(1..=1 << 40).contains(&self.messages) {
            return refuse("messages", "1 to 2^40");
        }
        if !(super::traffic::MARK..=MAX_MESSAGE).contains(&self.size) {
            return refuse("message size", "16 to 16777216 bytes");
        }
        if self.rate.is_some_and(|rate| !(0.001..=1e9).contains(&rate)) {
            return refuse("rate", "0.001 to 10^9 messages a second");
        }
        if !(MIN_MTU..=4096).contains(&self.mtu) {
            return refuse("path MTU", "512 to 4096 bytes");
        }
        if !(4..=1 << 20).contains(&self.srq_depth) || !(1..=1 << 20).contains(&self.window) {
            return refuse("SRQ depth or window", "4 to 1048576 receives, 1 to 1048576 frames");
        }
        if self.latency.is_zero() || self.turn < MIN_TURN || self.bandwidth == 0 {
            return refuse(
                "latency, turn or bandwidth",
                "more than 0; a turn takes 100 ns or more",
            );
        }
        if self.slow > self.subscribers {
            return refuse("slow subscribers", "at most all of them");
        }
        Ok(())
    }
}

/// What a publisher's table of subscribers holds by default.
const MAX_SUBSCRIBERS: usize = 1 << 14;

/// With turns that take no time, a node that has something to do again and again would stop the clock.
const MIN_TURN: Duration = Duration::from_nanos(100);

/// Why a simulation was not begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A number is out of its range.
    #[error("{what} is out of range: it can be {range}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// What it can be.
        range: &'static str,
    },
    /// A simulated device refused what every node needs.
    #[error("a simulated node could not be set up")]
    Device(#[from] crate::device::DeviceError),
}
