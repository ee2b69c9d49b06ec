//! Faults on purpose, around any device: loss, delay, reordering, duplication, damage, starvation.
//!
//! A [`FaultDevice`] is a device around a device. It keeps the device contract while it does what its
//! [`FaultPlan`] asks for: a datagram that it drops gives its buffer back to the SRQ, one that it holds
//! is a completion that has not come yet, and a second copy is delivered into the next receive that
//! is posted, so buffers are neither made nor lost. An empty plan adds nothing to the path of a datagram
//! and allocates nothing.
//!
//! What a device promises about order it does not: held datagrams are overtaken, and so are the
//! completions of sends that were dropped or held.

mod device;
mod plan;

pub use device::FaultDevice;
pub use plan::{FaultPlan, FaultPlanError, Side};

#[cfg(test)]
mod tests;
