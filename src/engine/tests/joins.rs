//! Joins that fail, or take too long.

use super::rig::{MILLI, Rig, SECOND, mgid};
use crate::device::sim::{FabricConfig, PortConfig};
use crate::engine::JoinFailure;

#[test]
fn a_join_that_fails_leaves_nothing() {
    let mut rig = Rig::new(1);
    let port = PortConfig { max_qp: 1, ..PortConfig::default() };
    rig.add_with(port, |_| {}, |device| Box::new(device));
    rig.fabric.set_unjoinable(mgid("g"), true);
    for _ in 0..3 {
        let ticket = rig.start_join(0, "g", "s", SECOND);
        rig.run_for(10 * MILLI);
        let outcome = rig.take_joined(0, ticket);
        assert!(matches!(outcome, Some(Err(JoinFailure::Device(_)))), "{outcome:?}");
        assert!(rig.take_joined(0, ticket).is_none());
    }
    rig.fabric.set_unjoinable(mgid("g"), false);
    rig.join(0, "g", "s");
}

/// Case 25: an answer that never comes.
#[test]
fn a_join_that_takes_too_long_is_given_up_in_time() {
    let config = FabricConfig { join_delay: 20 * SECOND, ..FabricConfig::default() };
    let mut rig = Rig::on(config, 2);
    let port = PortConfig { max_qp: 1, ..PortConfig::default() };
    rig.add_with(port, |_| {}, |device| Box::new(device));
    let ticket = rig.start_join(0, "g", "s", SECOND);
    rig.run_for(999 * MILLI);
    assert!(rig.take_joined(0, ticket).is_none());
    // Its own deadline wakes the node.
    rig.run_for(2 * MILLI);
    let outcome = rig.take_joined(0, ticket);
    assert!(matches!(outcome, Some(Err(JoinFailure::Timeout))), "{outcome:?}");
    // The answer that comes after all is for nobody, and the queue pair is free.
    rig.run_for(30 * SECOND);
    assert!(rig.nodes[0].engine.groups.is_empty());
    rig.start_join(0, "g", "s", SECOND);
}

/// Two joins of one group by one node are two queue pairs, and each is left by itself.
#[test]
fn a_group_joined_twice_is_left_twice() {
    let mut rig = Rig::new(3);
    for _ in 0..2 {
        rig.add();
    }
    let first = rig.join(1, "g", "s");
    let second = rig.join(1, "g", "s");
    rig.subscribe(1, first);
    rig.subscribe(1, second);
    let group = rig.join(0, "g", "s");
    rig.publisher(0, group);
    rig.run_for(SECOND);
    rig.publish(0, 10);
    rig.run_for(SECOND);
    assert_eq!(rig.subscribers[0].got.len(), 10);
    rig.nodes[1].engine.leave(second);
    rig.touch(1);
    rig.run_for(SECOND);
    rig.publish(0, 10);
    rig.run_for(SECOND);
    assert_eq!(rig.subscribers[0].got.len(), 20);
}
