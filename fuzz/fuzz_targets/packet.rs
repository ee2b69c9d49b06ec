//! What a network brings: Ethernet, IP, UDP and RoCEv2 headers, and the ICRC.
#![no_main]

#[path = "../bodies/packet.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
