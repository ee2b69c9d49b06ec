//! What a user types: device specs, fault plans, keys and addresses.
#![no_main]

#[path = "../bodies/spec.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
