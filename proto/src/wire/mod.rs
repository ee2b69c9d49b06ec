//! What is on the wire: RoCEv2 UD headers with their ICRC, and qcast's own frames.

pub mod control;
pub mod frame;
