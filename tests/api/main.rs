//! The public API from end to end, in real time, on loopback.

mod rig;
mod stress;
