//! Groups with different keys on one node, and publishers that are held back.

use qcast_proto::publish::Hold;

use super::rig::{MILLI, Rig, SECOND};
use crate::device::sim::Outcome;
use crate::engine::event::NodeEvent;

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
    // Which of its groups they were for the node cannot know.
    assert_eq!(rig.nodes[2].engine.group_counters(closed[2]).qkey_violations, 0);
    let told: u64 = rig
        .events(2)
        .iter()
        .map(|event| match event {
            NodeEvent::QKeyViolations { datagrams, groups } => {
                assert_eq!(groups[..], ["open", "closed"]);
                *datagrams
            }
            other => panic!("{other:?}"),
        })
        .sum();
    let counted = rig.nodes[2].engine.counters().qkey_violations;
    assert!(told > 0 && told <= counted, "{told} of {counted}");
    assert_eq!(rig.events(1), []);
    // One who stays does not fill everybody's log: his beacons go on, a second apart.
    rig.run_for(300 * SECOND);
    let words = rig.events(2).len();
    assert!((3..=15).contains(&words), "{words} words in five minutes");
    rig.close(0);
    rig.close(1);
}

/// The only group of a node is the one that strangers were at, however many they are told at once.
#[test]
fn strangers_are_counted_against_the_only_group() {
    let mut rig = Rig::new(3);
    for _ in 0..2 {
        rig.add();
    }
    let ours = rig.join(0, "g", "secret");
    let theirs = rig.join(1, "g", "guess");
    rig.subscribe(1, theirs);
    rig.publisher(0, ours);
    for _ in 0..4 {
        rig.publish(0, 500);
        rig.run_for(300 * MILLI);
        // Nothing of it wakes this device up; others do, or look once a second.
        rig.touch(1);
        rig.run_for(MILLI);
    }
    rig.run_for(SECOND);
    let rejected = rig.nodes[1].engine.counters().qkey_violations;
    assert!(rejected >= 2000);
    let counted = rig.nodes[1].engine.group_counters(theirs).qkey_violations;
    assert!((2000..=rejected).contains(&counted), "{counted} of {rejected}");
    let events = rig.events(1);
    assert!((1..=4).contains(&events.len()), "{events:?}");
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
