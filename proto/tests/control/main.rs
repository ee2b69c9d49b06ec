//! The control group in virtual time: notices and the diagnosis of keys, services and their discovery, over a
//! medium that loses, reorders and repeats, falls apart, and lies. Everything is drawn from one seed.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code, reason = "shared with the simulation of streams")]
#[path = "../sim/seeds.rs"]
mod seeds;
mod world;

mod diagnosis;
mod discovery;
mod hostile;
mod traffic;
