//! The qcast protocol as values that are fed and drained.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or draws an unseeded random number:
//! `now` and the generator are arguments. The runtime crate, `qcast`, joins this to a device.
//!
//! * [`qp`]: queue pair states, the kernel's transition tables and a validator that explains itself.
//! * [`wire`]: RoCEv2 UD headers with their ICRC, and qcast's own frames.
//! * [`addr`], [`time`]: value types.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod addr;
pub mod buf;
pub mod diagnosis;
pub mod discovery;
pub mod membership;
pub mod node;
pub mod publish;
pub mod qp;
pub mod rtt;
pub mod subscribe;
pub mod time;
pub mod wire;
