//! A deterministic network in virtual time: thousands of devices in one process.
//!
//! A [`Fabric`] owns a clock that moves only when it is told to, an event queue and all ports; each
//! [`SimDevice`] is one port's [`Device`](crate::device::Device). Nothing reads a real clock, draws an
//! unseeded number or depends on hash order: the same seed and the same calls give the same
//! [`digest`](Fabric::digest).
//!
//! A datagram leaves its port along the sender's outgoing path, crosses the fabric in
//! [`FabricConfig::latency`], and goes down each receiver's incoming path. What can happen to it there is, in
//! this order: a link that is down, a [partition](Fabric::partition), a [rule](Fabric::add_rule), an
//! [`Impairment`](crate::device::impair::Impairment), then what every device does: ICRC, queue pair,
//! QKey, SRQ. A multicast is one event in the queue and one copy of the payload, however many receive it.
//!
//! Driving it is a loop: ask [`Fabric::next_event`] and the nodes for their next deadlines, take the
//! earliest, [`Fabric::step_to`] it, and give a turn to each node whose deadline is due or whose port
//! is ready. A device's own `advance` moves the clock too, for tests with one or two of them.
//!
//! # Examples
//! ```
//! use qcast::device::sim::{Fabric, FabricConfig, PortConfig};
//! use qcast::device::Device;
//! use qcast_proto::time::Instant;
//!
//! let fabric = Fabric::new(FabricConfig::default(), 7);
//! let mut a = fabric.open(PortConfig::default());
//! let b = fabric.open(PortConfig::default());
//! assert_ne!(a.port().gid, b.port().gid);
//! a.advance(Instant::from_millis(1));
//! assert_eq!(fabric.now(), Instant::from_millis(1));
//! ```

mod addressing;
mod config;
mod control;
mod device;
mod fabric;
mod net;
mod path;
mod port;
mod queue_pair;
mod rule;
mod trace;

pub use config::{FabricConfig, Personality, PortConfig};
pub use control::{Stray, Traffic};
pub use device::SimDevice;
pub use fabric::{Accounting, Fabric};
pub use rule::{Passing, RuleId, Verdict};
pub use trace::{Outcome, Record};

#[cfg(test)]
mod tests;
