//! Devices that are taken away, and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use qcast_proto::publish::PublisherConfig;
use qcast_proto::subscribe::Notice;

use super::rig::{MILLI, Rig, SECOND};
use crate::device::DeviceError;
use crate::device::impair::Impairment;
use crate::device::sim::PortConfig;
use crate::engine::JoinFailure;
use crate::engine::event::NodeEvent;

struct Switch(Arc<AtomicBool>);

impl Switch {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn set(&self, is_there: bool) {
        self.0.store(is_there, Ordering::Relaxed);
    }
}

/// A publisher that waits for its two subscribers, however long they are silent.
fn three(seed: u64) -> Rig {
    let patience = 60 * SECOND;
    let mut config = PublisherConfig::default();
    (config.receiver_timeout, config.grace) = (patience, patience);
    three_with(seed, config)
}

fn three_with(seed: u64, config: PublisherConfig) -> Rig {
    let mut rig = Rig::new(seed);
    for _ in 0..3 {
        let rx = Impairment::lossy(0.02);
        let port = PortConfig { rx, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    let groups = [0, 1, 2].map(|node| rig.join(node, "g", "s"));
    rig.subscribe(1, groups[1]);
    rig.subscribe(2, groups[2]);
    rig.publisher_with(0, groups[0], config);
    rig.wait_for(0, 2);
    rig
}

/// Case 90: whoever loses its device, in the middle of a stream, nobody misses a message.
#[test]
fn the_stream_goes_on_after_a_device_was_lost_and_came_back() {
    for node in [0, 1] {
        for (seed, away) in [(1, 50 * MILLI), (2, 1500 * MILLI), (3, 8 * SECOND)] {
            println!("node {node}, away {away:?}");
            let mut rig = three(seed);
            let switch = Switch::new();
            rig.let_reopen(node, &switch.0);
            rig.publish(0, 500);
            rig.push(0, 700);
            rig.run_for(MILLI / 10);
            rig.lose(node);
            let end = rig.now + away;
            while rig.now < end {
                // Publishing is held back, not refused.
                rig.push(0, 100_000);
                rig.run_for(10 * MILLI);
            }
            let events = rig.events(node);
            assert!(matches!(&events[..], [NodeEvent::DeviceLost { .. }]), "{events:?}");
            switch.set(true);
            rig.publish(0, 500);
            rig.settle();
            let events = rig.events(node);
            let [NodeEvent::DeviceReturned { device, after, .. }] = &events[..] else {
                panic!("{events:?}")
            };
            assert_eq!(device, "sim:3");
            assert!(*after >= away && *after < away + 2 * SECOND, "{after:?}");
            assert_eq!(rig.receivers(0), 2);
            for node in 0..3 {
                rig.assert_buffers(node);
            }
            assert_eq!(rig.close(0).unconfirmed, Vec::<String>::new());
            rig.subscribers.clear();
            rig.run_for(SECOND);
            rig.assert_clean();
        }
    }
}

/// A subscriber that is away for longer than the publisher waits for it is told exactly what it missed.
#[test]
fn what_a_subscriber_without_a_device_misses_is_told() {
    for seed in 10..13 {
        let mut rig = three_with(seed, PublisherConfig::default());
        let switch = Switch::new();
        rig.let_reopen(1, &switch.0);
        rig.publish(0, 500);
        rig.settle();
        rig.lose(1);
        rig.publish(0, 5000);
        switch.set(true);
        rig.wait_for(0, 2);
        rig.publish(0, 100);
        rig.run_until("the last message", 20 * SECOND, |rig| {
            rig.subscribers[0].got.last() == Some(&5599)
        });
        let s = &rig.subscribers[0];
        assert!(s.got.is_sorted_by(|a, b| a < b));
        let lost: u64 = s
            .notices
            .iter()
            .map(|notice| match notice {
                Notice::Lost { first, last, .. } => last.0 - first.0 + 1,
                _ => 0,
            })
            .sum();
        assert!(lost > 1000, "{lost} lost");
        assert_eq!(s.got.len() as u64 + lost, 5600, "{:?}", s.notices);
        assert_eq!(rig.subscribers[1].losses(), 0);
    }
}

/// What applications hold is theirs, whatever becomes of the device that it came by.
#[test]
fn received_messages_outlive_the_device() {
    let mut rig = three(4);
    let switch = Switch::new();
    rig.let_reopen(1, &switch.0);
    rig.subscribers[0].keeps = true;
    rig.publish(0, 100);
    rig.run_for(SECOND);
    assert!(rig.subscribers[0].kept.len() >= 100);
    rig.lose(1);
    rig.run_for(100 * MILLI);
    assert!(rig.fabric.counters(1).is_none(), "the device is still open");
    switch.set(true);
    rig.publish(0, 100);
    rig.run_for(2 * SECOND);
    rig.subscribers[0].let_go();
    rig.touch(1);
    rig.settle();
    rig.assert_buffers(1);
}

/// A device that is not there is looked for ever more patiently, and one that is lost again is not told of twice.
#[test]
fn a_device_is_looked_for_patiently() {
    let mut rig = three(5);
    let switch = Switch::new();
    let attempts = rig.let_reopen(1, &switch.0);
    rig.lose(1);
    let turns = rig.nodes[1].turns;
    rig.run_for(60 * SECOND);
    assert!((55..75).contains(&attempts.load(Ordering::Relaxed)), "{attempts:?}");
    assert!(rig.nodes[1].turns - turns < 2000, "{} turns", rig.nodes[1].turns - turns);
    switch.set(true);
    rig.run_until("the device", 2 * SECOND, |rig| rig.port(1) != 1);
    // Before the groups are joined.
    rig.lose(1);
    rig.run_for(5 * SECOND);
    let events = rig.events(1);
    assert!(
        matches!(events[..], [NodeEvent::DeviceLost { .. }, NodeEvent::DeviceReturned { .. }]),
        "{events:?}"
    );
    rig.wait_for(0, 2);
    rig.publish(0, 100);
    rig.run_for(SECOND);
}

/// Without a way to open it anew, and without a device, a node asks for no turns that do nothing.
#[test]
fn a_node_without_a_device_waits_quietly() {
    let mut rig = three(6);
    rig.lose(1);
    rig.run_for(SECOND);
    let turns = rig.nodes[1].turns;
    rig.run_for(60 * SECOND);
    assert!(rig.nodes[1].turns - turns < 2000, "{} turns", rig.nodes[1].turns - turns);
}

#[test]
fn joining_without_a_device_fails_and_leaving_does_not() {
    let mut rig = three(7);
    let switch = Switch::new();
    rig.let_reopen(1, &switch.0);
    let other = rig.join(1, "other", "s");
    let pending = rig.start_join(1, "third", "s", 10 * SECOND);
    rig.lose(1);
    rig.run_for(MILLI);
    let outcome = rig.take_joined(1, pending);
    assert!(
        matches!(outcome, Some(Ok(_) | Err(JoinFailure::Device(DeviceError::Gone)))),
        "{outcome:?}"
    );
    let setup = rig.nodes[1].engine.groups[&other].setup.clone();
    let deadline = rig.now + SECOND;
    let refused = rig.nodes[1].engine.start_join(setup, deadline);
    assert!(matches!(refused, Err(DeviceError::Gone)), "{refused:?}");
    rig.nodes[1].engine.leave(other);
    rig.touch(1);
    rig.run_for(SECOND);
    assert!(!rig.nodes[1].engine.groups.contains_key(&other));
    switch.set(true);
    rig.publish(0, 100);
    rig.settle();
}

/// Counters are the node's, whatever devices it had.
#[test]
fn counters_go_on() {
    let mut rig = three(8);
    let switch = Switch::new();
    switch.set(true);
    rig.let_reopen(0, &switch.0);
    rig.publish(0, 100);
    rig.settle();
    let before = rig.nodes[0].engine.counters().sent;
    rig.lose(0);
    rig.publish(0, 100);
    rig.settle();
    let after = rig.nodes[0].engine.counters().sent;
    assert!(before >= 100 && after >= before + 100, "{before}, then {after}");
    assert!(rig.nodes[0].engine.device().counters().sent < after);
}
