//! Thousands of members of one group in virtual time.
//!
//! Each member is the protocol's own [`Membership`](qcast_proto::membership::Membership); around it is only what
//! a group needs: addresses, a fabric that loses, and a script of members that come, go, crash, restart,
//! pause and are cut apart. There are no queue pairs and no streams, so ten thousand members with ten
//! thousand entries each fit one process. Every word is written and read once as the bytes that a frame carries.
//!
//! Time goes in steps. All that was said in one step arrives in the next: in a step members do not depend on each
//! other, so that they run on all processors and the outcome is the same on any number of them.
//!
//! # Examples
//! ```
//! use qcast::simulate::{MembershipSimulation, MembershipSimulationConfig};
//! use std::time::Duration;
//!
//! let mut config = MembershipSimulationConfig::new(20, 7);
//! config.loss = 0.05;
//! config.duration = Duration::from_secs(40);
//! let report = MembershipSimulation::new(config)?.run(|_| {});
//! assert!(report.is_sound(), "{:?}", report.described);
//! # Ok::<(), qcast::simulate::SimulationError>(())
//! ```

mod config;
mod judge;
mod report;
mod run;
mod script;
mod seat;
mod truth;

pub use config::MembershipSimulationConfig;
pub use report::MembershipReport;
pub use run::{MembershipProgress, MembershipSimulation};
