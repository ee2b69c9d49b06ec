#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qcast_fuzz::bodies::control_group(bytes));
