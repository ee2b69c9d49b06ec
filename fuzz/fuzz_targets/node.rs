//! A whole node, driven by any sequence of operations and hostile datagrams.
#![no_main]

#[path = "../bodies/node.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
