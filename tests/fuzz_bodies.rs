//! The fuzz targets' bodies, without a fuzzer: on seeds that are known to go deep, and on random bytes.
//!
//! `fuzz/` runs the same functions under libFuzzer, which finds more and takes hours.

#[path = "../fuzz/src/bodies/mod.rs"]
pub mod bodies;

use proptest::collection::vec;
use proptest::prelude::*;

const CAPTURE: &[u8] = include_bytes!("../proto/tests/data/soft-roce-multicast.pcap");

/// Sound input of every kind, whole, cut short anywhere, and with each byte changed.
fn around(seed: &[u8], body: fn(&[u8])) {
    body(seed);
    for n in 0..seed.len() {
        body(&seed[..n]);
        let mut changed = seed.to_vec();
        for by in [1, 0x80, 0xff] {
            changed[n] = seed[n] ^ by;
            body(&changed);
        }
    }
}

#[test]
fn frames_and_control_bodies() {
    let header = b"qc\x01\x01\0\0\0\0\x01\x02\x03\x04\0\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88\0\0\0\0\0\0\0\x09";
    for (kind, body) in [
        (1, &b"\0\x02hi\0\0\0\x01x"[..]),
        (2, b"\0\0\x03\xe8\0\0\x03\x84\0\0\0\x09piece"),
        (3, b"\x07\x02\x09\xfb\xe8\x03\x01\x01\x10\x01\0"),
    ] {
        let mut frame = header.to_vec();
        frame[3] = kind;
        frame.extend_from_slice(body);
        around(&frame, bodies::frame);
        around(body, bodies::control);
    }
    for (kind, body) in [
        (16, &b"\x01\x01\x09\x01n\xfb\xe8\x03\0\x01\x01g\x07\x08\x09\x40\x02\0"[..]),
        (17, b"\x01\x01\x09\x01n\x01\x01k\x03web\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\x50\xfb\xe8\x03\0\x01\x01a\x01b"),
        (18, b"\x01\x01\x01k\x03web\x01\x01\x07"),
    ] {
        let mut frame = header.to_vec();
        frame[3] = kind;
        frame.extend_from_slice(body);
        around(&frame, bodies::frame);
        around(body, bodies::control);
        let mut heard = vec![kind - 16, body.len() as u8, 3];
        heard.extend_from_slice(body);
        around(&heard.repeat(2), bodies::control_group);
    }
    // A NAK, and one that claims 2^60 runs.
    around(b"\x05\x02\0\x03\x02\x01\x01", bodies::control);
    around(b"\x07\xfd\0\0\0\0\0\0\0\x10", bodies::control);
}

#[test]
fn a_capture_and_what_is_in_it() {
    bodies::capture(CAPTURE);
    let first = &CAPTURE[..CAPTURE.len().min(400)];
    around(first, bodies::capture);
    // Its first packet, behind the headers of the file and the packet.
    let packet = &CAPTURE[40..CAPTURE.len().min(240)];
    around(packet, bodies::ip);
    around(&packet[42..], bodies::roce);
}

#[test]
fn what_users_write() {
    for text in [
        "auto",
        "soft:127.0.0.7",
        "soft:::1",
        "soft:eth0",
        "verbs:mlx5_0/1@3",
        "loss=2%,delay=250us,jitter=1.5ms,reorder=0.01,reorder-by=1s,side=both,starve=9,seed=7",
        "0x7fffffff",
        "a*b*\nab",
    ] {
        around(text.as_bytes(), bodies::text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoders_take_any_bytes(bytes in vec(any::<u8>(), 0..600)) {
        for body in [bodies::frame, bodies::control, bodies::roce, bodies::ip, bodies::capture, bodies::text] {
            body(&bytes);
        }
    }

    /// R-CONTROLGROUP-5, R-SERVICE-5: whatever a node hears on the control group.
    #[test]
    fn the_control_group_keeps_its_bounds(bytes in vec(prop_oneof![0u8..4, any::<u8>()], 0..800)) {
        bodies::control_group(&bytes);
    }

    #[test]
    fn control_bodies_take_small_numbers(bytes in vec(prop_oneof![0u8..4, 248u8..=255, any::<u8>()], 0..80)) {
        bodies::control(&bytes);
    }

    #[test]
    fn text_of_the_right_letters(text in "[a-z0-9=,.%:/@*\n]{0,40}|(loss|delay|seed|side|starve|burst|dup|mangle)=[0-9a-z.%]{0,12}|(soft|verbs):[a-z0-9_./@:]{0,20}") {
        bodies::text(text.as_bytes());
    }

    /// R-BOUND-1 to R-BOUND-4: whatever two nodes hear.
    #[test]
    fn nodes_keep_their_bounds(bytes in vec(any::<u8>(), 0..1500)) {
        bodies::node(&bytes);
    }
}
