//! The engine in virtual time, on simulated devices that are short of everything and fail.
//!
//! A node gets a turn only when its port has something for it, when the deadline that its last turn gave is due,
//! or when a test touches it: an engine that forgets a deadline stands still here, and one that asks for
//! turns for nothing is found by their number.

mod addresses;
mod closing;
mod control;
mod devices;
mod drain;
mod events;
mod faults;
mod groups;
mod hostile;
mod joins;
mod loss;
mod members;
mod receives;
mod rig;
mod scripted;
