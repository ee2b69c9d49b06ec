//! Devices that do not take sends: full, busy, or with an error of every kind.

use qcast_proto::qp::QpState;
use qcast_proto::time::Duration;

use super::rig::{MILLI, Rig, SECOND};
use super::scripted::{Refusal, Script, Scripted};
use crate::device::DeviceError;
use crate::device::sim::PortConfig;

use std::sync::Arc;

use parking_lot::Mutex;

/// A scripted publisher and two subscribers.
pub(super) fn scripted(seed: u64) -> (Rig, Arc<Mutex<Script>>) {
    let mut rig = Rig::new(seed);
    let mut script = None;
    rig.add_with(
        PortConfig::default(),
        |_| {},
        |device| {
            let (device, told) = Scripted::new(device);
            script = Some(told);
            Box::new(device)
        },
    );
    rig.add();
    rig.add();
    rig.meet(2);
    (rig, script.unwrap())
}

/// The send queue takes four at a time.
#[test]
fn a_short_send_queue_is_filled_as_it_empties() {
    let mut rig = Rig::new(1);
    let port = PortConfig { max_send_wr: 4, ..PortConfig::default() };
    rig.add_with(port, |_| {}, |device| Box::new(device));
    rig.add();
    rig.meet(1);
    rig.publish(0, 2000);
    rig.settle();
    let stats = rig.nodes[0].engine.publisher_stats(rig.publishers[0].id).unwrap();
    assert_eq!(stats.repairs, 0, "{stats:?}");
}

/// A device that takes nothing just now says when it wants to be asked again; nothing else wakes the node.
#[test]
fn a_busy_device_is_asked_again_when_it_says() {
    let (mut rig, script) = scripted(2);
    let pause = Duration::from_micros(100);
    script.lock().posts.extend([Refusal::Later(pause); 5]);
    rig.push(0, 1);
    let (start, turns) = (rig.now, rig.nodes[0].turns);
    rig.settle();
    let took = rig.now.saturating_since(start);
    assert!(took >= pause * 5 && took < pause * 5 + MILLI, "{took:?}");
    assert!(rig.nodes[0].turns - turns < 12);
    let stats = rig.nodes[0].engine.publisher_stats(rig.publishers[0].id).unwrap();
    assert_eq!(stats.repairs, 0, "{stats:?}");
}

/// No error of a post stops the stream: what is refused is repaired when it is missed.
#[test]
fn no_error_of_a_post_stops_the_stream() {
    let errors: [fn() -> DeviceError; 8] = [
        || DeviceError::NotReady(QpState::Rts),
        || DeviceError::AhPending,
        || DeviceError::TooLarge { len: 2, max: 1 },
        || DeviceError::Exhausted { what: "sends", limit: 1 },
        || DeviceError::Busy("it"),
        || DeviceError::NoSuch("address handle"),
        || DeviceError::Unsupported("this"),
        || DeviceError::Os { call: "ibv_post_send", source: std::io::Error::from_raw_os_error(12) },
    ];
    for (n, error) in errors.into_iter().enumerate() {
        let (mut rig, script) = scripted(3);
        println!("{}", error());
        rig.publish(0, 50);
        script.lock().posts.extend([Refusal::Error(error); 20]);
        rig.publish(0, 200);
        let before = rig.nodes[0].turns;
        rig.settle();
        assert!(rig.nodes[0].turns - before < 2000, "error {n}: {} turns", rig.nodes[0].turns);
        rig.run_for(SECOND);
        assert!(script.lock().posts.is_empty());
        for node in 0..3 {
            rig.assert_buffers(node);
        }
        rig.close(0);
    }
}
