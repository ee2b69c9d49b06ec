//! The public API from end to end, in real time, on loopback.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[cfg(feature = "async")]
mod asynchronous;
mod cycles;
mod delivery;
mod flow;
mod groups;
mod keys;
mod lifecycle;
mod manual;
mod membership;
mod messages;
mod rig;
mod services;
mod stress;
