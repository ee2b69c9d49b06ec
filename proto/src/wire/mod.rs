//! What is on the wire: RoCEv2 UD headers with their ICRC, and qcast's own frames.
//!
//! A RoCEv2 datagram is the payload of a UDP datagram to port 4791:
//!
//! ```text
//! [BTH 12][DETH 8][immediate 4, with opcode 0x65 only][payload][pad 0..3][ICRC 4]
//! ```
//!
//! [`roce`] reads and writes it whole; [`bth`] and [`deth`] are its headers, [`icrc`] its checksum,
//! and [`ip`] reads the headers below it, for the ICRC (which covers them) and for captures.

pub mod bth;
pub mod control;
pub mod deth;
pub mod frame;
mod gf2;
pub mod icrc;
pub mod ip;
pub mod list;
pub mod member;
pub mod notice;
pub mod roce;
pub mod service;
