//! Queue pairs that leave RTS by themselves.

use qcast_proto::qp::QpState;
use qcast_proto::time::Duration;

use super::rig::{MILLI, Rig, SECOND};
use super::scripted::Scripted;
use crate::device::sim::{Personality, PortConfig};
use crate::device::{QpId, WcStatus};

const BOTH: [Personality; 2] = [Personality::Hardware, Personality::SoftRoce];

fn pair(seed: u64, personality: Personality) -> Rig {
    println!("{personality:?}");
    let mut rig = Rig::new(seed);
    for _ in 0..3 {
        let port = PortConfig { personality, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig.meet(2);
    rig
}

/// Case 17: a failed send takes the queue pair to SQE with an event, or to ERR without one.
#[test]
fn a_failed_send_does_not_end_the_stream() {
    for personality in BOTH {
        let mut rig = pair(1, personality);
        rig.publish(0, 200);
        let qp = rig.qp(0);
        for _ in 0..3 {
            rig.fabric.fail_next_send(0, qp, WcStatus::LocQpOpErr);
            rig.publish(0, 200);
            rig.run_for(3 * SECOND);
        }
        rig.settle();
        let stats = rig.nodes[0].engine.recovery_stats();
        assert_eq!((stats.walks, stats.failed_walks, stats.replaced), (3, 0, 0), "{stats:?}");
        assert_eq!(rig.qp(0), qp);
    }
}

/// What was posted behind the failed send is flushed, and sent once the queue pair is back: only the failed one
/// has to be asked for.
#[test]
fn flushed_sends_are_sent_again_without_being_asked_for() {
    for personality in BOTH {
        let mut rig = pair(2, personality);
        let qp = rig.qp(0);
        rig.push(0, 100);
        // They leave one after the other, a microsecond each.
        rig.run_for(Duration::from_micros(50));
        rig.fabric.fail_next_send(0, qp, WcStatus::LocProtErr);
        rig.settle();
        let stats = rig.nodes[0].engine.publisher_stats(rig.publishers[0].id).unwrap();
        assert_eq!((stats.frames, stats.frames_asked), (100, 1), "{stats:?}");
    }
}

/// Case 16: a subscriber's queue pair that goes to ERR and says nothing is found out by its next word.
#[test]
fn a_silent_fault_of_a_subscriber_is_found_out() {
    for (personality, state, announced) in [
        (Personality::Hardware, QpState::Sqe, true),
        (Personality::Hardware, QpState::Err, true),
        (Personality::SoftRoce, QpState::Err, false),
    ] {
        let mut rig = pair(3, personality);
        rig.publish(0, 100);
        let qp = rig.qp(1);
        rig.fabric.fault_qp(1, qp, state, announced);
        rig.publish(0, 100);
        rig.settle();
        let stats = rig.nodes[1].engine.recovery_stats();
        assert_eq!((stats.faults, stats.walks, stats.replaced), (1, 1, 0), "{stats:?}");
    }
}

/// Case 13: some adapters cannot come back from ERR. Another queue pair takes the place, and is made known.
#[test]
fn a_queue_pair_that_does_not_come_back_is_replaced() {
    for node in [0, 1] {
        let mut rig = pair(4, Personality::Hardware);
        rig.publish(0, 100);
        let old = rig.qp(node);
        rig.fabric.refuse_modify(node, old, 1000, 22);
        rig.fabric.fault_qp(node, old, QpState::Err, true);
        rig.run_for(100 * MILLI);
        let stats = rig.nodes[node].engine.recovery_stats();
        assert_eq!((stats.replaced, stats.failed_walks), (1, 3), "{stats:?}");
        assert_ne!(rig.qp(node), old);
        rig.run_for(3 * SECOND);
        // The new address is used: for repairs if the subscriber moved, for requests if the publisher did.
        let subscriber = rig.qp(1);
        rig.fabric.add_rule(lose_every_tenth(1));
        rig.publish(0, 300);
        rig.settle();
        assert_eq!(rig.receivers(0), 2);
        assert_eq!(rig.nodes[1].engine.recovery_stats().faults, u64::from(node == 1));
        assert_eq!(rig.qp(1), subscriber);
    }
}

fn lose_every_tenth(
    port: usize,
) -> impl FnMut(&crate::device::sim::Passing<'_>) -> crate::device::sim::Verdict + Send {
    use crate::device::sim::Verdict;
    let mut n = 0;
    move |passing| {
        if passing.to != port || !passing.multicast {
            return Verdict::Pass;
        }
        n += 1;
        if n % 10 == 0 { Verdict::Drop } else { Verdict::Pass }
    }
}

/// Case 14: recovery that helps for a moment only is braked.
#[test]
fn a_queue_pair_that_fails_again_and_again_is_brought_back_ever_more_slowly() {
    for personality in BOTH {
        let mut rig = pair(5, personality);
        let qp = rig.qp(0);
        let id = rig.publishers[0].id;
        for _ in 0..2000 {
            rig.fabric.fail_next_send(0, qp, WcStatus::LocLenErr);
            rig.run_for(5 * MILLI);
        }
        let stats = rig.nodes[0].engine.recovery_stats();
        assert!((8..=30).contains(&stats.walks), "{stats:?} in ten seconds");
        assert!(rig.nodes[0].turns < 20_000, "{} turns", rig.nodes[0].turns);
        // It ends, and the stream goes on.
        rig.run_for(5 * SECOND);
        rig.publish(0, 100);
        rig.settle();
        assert!(rig.nodes[0].engine.publisher_stats(id).is_some());
    }
}

/// A group whose queue pair cannot be had back keeps no other group of the node from sending.
#[test]
fn a_broken_group_does_not_stop_another() {
    let mut rig = Rig::new(6);
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
    let broken = [rig.join(0, "broken", "s"), rig.join(1, "broken", "s")];
    let qp = rig.qp(0);
    let sound = [rig.join(0, "g", "s"), rig.join(1, "g", "s")];
    rig.subscribe(1, broken[1]);
    rig.subscribe(1, sound[1]);
    rig.publisher(0, sound[0]);
    rig.publisher(0, broken[0]);
    rig.wait_for(0, 1);
    rig.wait_for(1, 1);
    // Neither it nor any that follows it can be brought to RTS.
    for n in 0..40 {
        rig.fabric.refuse_modify(0, QpId(qp.0 + n * 2), 1_000_000, 5);
    }
    rig.fabric.set_unjoinable(super::rig::mgid("broken"), true);
    rig.fabric.fault_qp(0, qp, QpState::Err, true);
    rig.push(1, 1000);
    rig.run_for(SECOND);
    let turns = rig.nodes[0].turns;
    rig.publish(0, 2000);
    rig.run_until("the sound group's messages", 10 * SECOND, |rig| {
        rig.subscribers[1].got.len() == 2000
    });
    rig.run_for(2 * SECOND);
    assert!(rig.nodes[0].turns - turns < 20_000, "{} turns", rig.nodes[0].turns - turns);
    assert!(script.unwrap().lock().modifies < 200);
    // Once it can be joined again, it comes back with all that was published.
    rig.fabric.set_unjoinable(super::rig::mgid("broken"), false);
    rig.publish(1, 100);
    rig.run_until("the other group's", 20 * SECOND, |rig| rig.subscribers[0].got.len() == 1100);
    assert_eq!(rig.subscribers[0].losses(), 0);
}

/// A group that is left while another queue pair is on its way into it leaves nothing behind.
#[test]
fn leaving_while_a_queue_pair_is_replaced() {
    let config = crate::device::sim::FabricConfig { join_delay: 50 * MILLI, ..Default::default() };
    let mut rig = Rig::on(config, 7);
    rig.add();
    let group = rig.join(0, "g", "s");
    let old = rig.qp(0);
    rig.fabric.refuse_modify(0, old, 1000, 22);
    rig.fabric.fault_qp(0, old, QpState::Err, true);
    rig.run_for(40 * MILLI);
    assert_eq!(rig.nodes[0].engine.joining.len(), 1);
    rig.nodes[0].engine.leave(group);
    rig.touch(0);
    rig.run_for(SECOND);
    assert!(rig.nodes[0].engine.groups.is_empty() && rig.nodes[0].engine.joining.is_empty());
    rig.assert_clean();
    // The port has room for as many queue pairs as before.
    rig.join(0, "g", "s");
}
