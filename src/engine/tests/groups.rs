//! Groups with different keys on one node, and publishers that are held back.

use qcast_proto::publish::Hold;

use super::rig::{MILLI, Rig, SECOND};
use crate::device::sim::Outcome;

/// One node in two groups of different keys, and a stranger who knows one of them.
#[test]
fn two_groups_of_one_node_have_keys_of_their_own() {
    let mut rig = Rig::new(1);
    for _ in 0..3 {
        rig.add();
    }
    let open = [0, 1, 2].map(|node| rig.join(node, "open", "known to all"));
    let closed = [
        rig.join(0, "closed", "secret"),
        rig.join(1, "closed", "secret"),
        rig.join(2, "closed", "guess"),
    ];
    for node in 1..3 {
        rig.subscribe(node, open[node]);
        rig.subscribe(node, closed[node]);
    }
    rig.publisher(0, open[0]);
    rig.publisher(0, closed[0]);
    rig.wait_for(0, 2);
    rig.wait_for(1, 1);
    rig.publish(0, 500);
    rig.publish(1, 500);
    rig.run_until("all that may", 10 * SECOND, |rig| {
        [0, 1, 2].iter().all(|s| rig.subscribers[*s].got.len() == 500)
    });
    rig.run_for(SECOND);
    let stranger = &rig.subscribers[3];
    assert!(stranger.got.is_empty() && stranger.notices.is_empty(), "{:?}", stranger.notices);
    assert!(rig.fabric.tally(Outcome::WrongQkey) >= 500);
    assert!(rig.nodes[2].engine.device().counters().qkey_violations >= 500);
    assert_eq!(rig.nodes[1].engine.device().counters().qkey_violations, 0);
    rig.close(0);
    rig.close(1);
}

/// DESIGN: a publisher that is held back is told by whom.
#[test]
fn who_holds_a_publisher_back_is_named() {
    let mut rig = Rig::new(2);
    for _ in 0..4 {
        rig.add();
    }
    rig.meet(3);
    rig.publish(0, 10);
    rig.settle();
    rig.subscribers[1].sleeps = true;
    rig.push(0, 100_000);
    rig.run_for(500 * MILLI);
    let Some(Hold::Subscriber { name, .. }) = rig.nodes[0].engine.hold(rig.publishers[0].id) else {
        panic!("nobody is named")
    };
    assert_eq!(name, "node 2");
    // The sleeper has lost nothing when it wakes.
    rig.subscribers[1].sleeps = false;
    rig.touch(2);
    rig.settle();
    assert_eq!(rig.nodes[0].engine.hold(rig.publishers[0].id), None);
}
