//! Whole nodes in virtual time: the protocol and the engine as they are, on a simulated fabric.
//!
//! A [`Simulation`] runs publishers and thousands of subscribers in one thread, each with its own
//! [`Engine`](crate::engine::Engine) on its own simulated port. Nothing reads a clock: the same
//! [`SimulationConfig`] gives the same run, down to the last datagram, which its
//! [`digest`](SimulationReport::digest) shows.
//!
//! After each run these hold, or the report counts a violation and says which:
//! * an ordered subscriber got each message once and in order, or one event for the gap;
//! * nothing that another key was on reached anybody: a stranger publishes in the same group all along;
//! * every buffer is back where it came from: posted, on loan, free and in completions are all there are;
//! * NAKs and repairs stayed within their bounds.
//!
//! # Examples
//! ```
//! use qcast::device::impair::Impairment;
//! use qcast::simulate::{Simulation, SimulationConfig};
//!
//! let mut config = SimulationConfig::new(20, 500, 7);
//! config.path = Impairment::lossy(0.01);
//! let report = Simulation::new(config)?.run(|_| {})?;
//! assert!(report.is_sound(), "{:?}", report.described);
//! assert!(report.lost_frames > 0 && report.lost_events == 0);
//! # Ok::<(), qcast::simulate::SimulationError>(())
//! ```

mod config;
mod judge;
mod losses;
mod member;
mod membership;
mod report;
mod run;
mod traffic;
mod world;

pub use config::{Outage, OutageKind, SimulationConfig, SimulationError};
pub use membership::{
    MembershipProgress, MembershipReport, MembershipSimulation, MembershipSimulationConfig,
};
pub use report::SimulationReport;
pub use run::{Phase, Progress, Simulation};
