//! The whole protocol in virtual time, over a medium that loses, reorders, repeats and lies.
//!
//! Each run draws everything from one seed. Subscribers are judged while they run: an ordered one must
//! get each message once, in order, or exactly one event for a gap; the others what their reliability
//! says. After each run memory must be back where it began. `QCAST_SEEDS=n` runs more seeds.

mod buffers;
mod fabric;
mod follow;
mod machine;
mod medium;
mod publisher;
mod scene;
mod seeds;
mod subscriber;
mod truth;
mod world;

mod determinism;
mod flow;
mod fragments;
mod goodput;
mod hostile;
mod kinds;
mod lifecycle;
mod loss;
mod naks;
mod retention;
