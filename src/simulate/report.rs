//! What a simulation found.

use serde::Serialize;

/// What a simulation found. Ratios are 0 where nothing was lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulationReport {
    /// Subscribers.
    pub subscribers: usize,
    /// Publishers.
    pub publishers: usize,
    /// Messages of each publisher.
    pub messages: u64,
    /// Bytes of each.
    pub size: usize,
    /// The share of datagrams that each receiver's path lost, as asked for.
    pub loss: f64,
    /// The seed.
    pub seed: u64,
    /// What must hold and did not.
    pub violations: u64,
    /// The first of them, described.
    pub described: Vec<String>,
    /// Events that told a subscriber of messages lost for good.
    pub lost_events: u64,
    /// Events that told a subscriber that a publisher was lost, or no longer waits for it.
    pub partings: u64,
    /// Messages delivered, summed over subscribers.
    pub delivered: u64,
    /// NAK datagrams that reached publishers for each distinct frame that was lost anywhere.
    pub naks_per_loss: f64,
    /// Frames sent again for each distinct frame that was lost anywhere.
    pub repairs_per_loss: f64,
    /// Time between finding a loss and having the frame, in round trips: half of them took no longer.
    pub repair_p50_rtt: f64,
    /// The same, of 99 in 100.
    pub repair_p99_rtt: f64,
    /// The longest.
    pub repair_max_rtt: f64,
    /// A round trip across the fabric in seconds.
    pub rtt_seconds: f64,
    /// The round trip as publishers measured it, the largest, in seconds.
    pub measured_rtt_seconds: f64,
    /// Frames of data that publishers sent for the first time.
    pub frames: u64,
    /// Distinct frames that did not reach a subscriber at the first try.
    pub lost_frames: u64,
    /// Frames of data that did not arrive, counted at each subscriber.
    pub lost_datagrams: u64,
    /// Of those, for want of a posted receive.
    pub unposted: u64,
    /// NAK datagrams that reached publishers.
    pub naks: u64,
    /// Frames sent again.
    pub repairs: u64,
    /// Of those, to the group.
    pub multicast_repairs: u64,
    /// Requests that a repair on its way made needless.
    pub damped: u64,
    /// Requests that subscribers put off because they heard another's.
    pub suppressed: u64,
    /// Statuses that reached publishers.
    pub statuses: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Datagrams with another key that were turned away.
    pub wrong_key: u64,
    /// Datagrams that arrived in a buffer, at all receivers.
    pub arrivals: u64,
    /// Turns of all nodes.
    pub turns: u64,
    /// Virtual time until every subscriber was known to every publisher.
    pub join_seconds: f64,
    /// Virtual time from the first message to the end of the last stream.
    pub virtual_seconds: f64,
    /// Everything that happened to every datagram, in a number: equal runs have equal digests.
    pub digest: String,
}

impl SimulationReport {
    /// Whether everything held.
    pub fn is_sound(&self) -> bool {
        self.violations == 0
    }
}
