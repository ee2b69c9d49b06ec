//! The `qcast` command, run as users run it: real processes on loopback.
//!
//! Each test has a group of its own, whose multicast address and key follow from its name, so that tests
//! run beside each other. Every wait has a deadline, and nothing is left to sleeping: a process is ready
//! when it says so.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod bench;
mod deploy;
mod files;
mod harness;
mod members;
mod pubsub;
mod services;
mod sim;
mod terminal;
mod usage;
