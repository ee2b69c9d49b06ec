//! Membership in virtual time, with whole nodes: who sees whom join, leave, fail and come back.
//!
//! Each run draws everything from one seed. `QCAST_SEEDS=n` runs more seeds, `QCAST_SEED=s` one.

mod net;
#[path = "../sim/seeds.rs"]
#[allow(dead_code, reason = "the simulation of streams uses more of it")]
mod seeds;

mod agreement;
mod feeds;
mod hostile;
mod identity;
mod lives;
mod paths;
