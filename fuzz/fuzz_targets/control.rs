//! Control bodies: any bytes are one, or are refused.
#![no_main]

#[path = "../bodies/control.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
