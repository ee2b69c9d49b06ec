//! The bodies of the fuzz targets, over random bytes and a few that mean something.
//!
//! `cargo +nightly fuzz run TARGET` in `fuzz/` does the same without end. `PROPTEST_CASES=n` runs more here.

#[path = "../../fuzz/bodies/control.rs"]
mod control;
#[path = "../../fuzz/bodies/frame.rs"]
mod frame;
#[path = "../../fuzz/bodies/node.rs"]
mod node;
#[path = "../../fuzz/bodies/packet.rs"]
mod packet;

use proptest::collection::vec;
use proptest::prelude::*;

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn frames(
        data in vec(any::<u8>(), 0..300),
        kind in 1..10u8,
        lengths in vec(0..30u8, 0..10),
    ) {
        frame::run(&data);
        // With a sound header, and messages that may be whole.
        let header = [b'q', b'c', 1, kind];
        let mut sound = [&header, &data[..]].concat();
        sound.resize(32, 0);
        for len in lengths {
            sound.extend([0, len]);
            sound.extend(vec![7; usize::from(len)]);
        }
        frame::run(&sound);
    }

    #[test]
    fn controls(data in vec(any::<u8>(), 0..500)) {
        control::run(&data);
        // Small numbers, of which a varint decoder makes more sense.
        control::run(&data.iter().map(|b| b % 40).collect::<Vec<_>>());
    }

    #[test]
    fn packets(data in vec(any::<u8>(), 0..300)) {
        packet::run(&data);
        packet::run(&[&[0x64, 0, 0xff, 0xff], &data[..]].concat());
        packet::run(&[&[0x45, 0, 0, 60], &data[..]].concat());
    }

    #[test]
    fn nodes(data in vec(any::<u8>(), 0..2000)) {
        node::run(&data);
    }
}

/// Sequences of operations that once went wrong, or nearly.
#[test]
fn nodes_that_mean_something() {
    for data in [
        &[][..],
        // Publishes, and nothing is ever completed.
        &[2, 50, 15, 1, 255, 2, 50, 15, 1, 255, 2, 250, 15, 1, 255],
        // Claims and commits more.
        &[3, 10, 255, 3, 0, 0, 12, 255],
        &[
            242, 0, 0, 53, 0, 2, 192, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 199, 234, 0, 0, 0, 0, 0, 0,
            192, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0, 0, 0, 0,
            0, 41, 0, 0, 0, 0, 0, 142, 77, 87, 30,
        ],
        // Closes while all is in flight.
        &[2, 50, 15, 14, 77, 1, 255, 1, 255, 12, 255],
    ] {
        node::run(data);
    }
}
