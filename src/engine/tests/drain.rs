//! Groups that are drained and resumed, and that are drained before they are left.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use qcast_proto::node::GroupId;
use qcast_proto::qp::QpState;

use super::devices::scripted;
use super::rig::{MILLI, Rig, SECOND};
use crate::device::sim::PortConfig;

fn pair(seed: u64) -> (Rig, GroupId) {
    let mut rig = Rig::new(seed);
    for _ in 0..3 {
        rig.add();
    }
    rig.meet(2);
    let group = *rig.nodes[0].engine.groups.keys().next().unwrap();
    (rig, group)
}

fn drain(rig: &mut Rig, group: GroupId) {
    assert!(rig.nodes[0].engine.start_drain(group));
    rig.touch(0);
    rig.run_until("the drain", SECOND, |rig| rig.nodes[0].engine.is_drained(group));
}

fn state(rig: &mut Rig) -> QpState {
    let qp = rig.qp(0);
    rig.nodes[0].engine.device_mut().query_qp(qp).unwrap().state
}

fn resume(rig: &mut Rig, group: GroupId) {
    let now = rig.now;
    rig.nodes[0].engine.end_drain(now, group).unwrap();
    rig.touch(0);
}

#[test]
fn what_was_on_its_way_is_sent_and_then_nothing_until_it_is_resumed() {
    let (mut rig, group) = pair(1);
    rig.publish(0, 300);
    rig.push(0, 400);
    rig.run_for(MILLI / 100);
    drain(&mut rig, group);
    assert_eq!(state(&mut rig), QpState::Sqd);
    let sent = rig.fabric.counters(0).unwrap().sent;
    rig.push(0, 100_000);
    rig.run_for(5 * SECOND);
    assert_eq!(rig.fabric.counters(0).unwrap().sent, sent);
    resume(&mut rig, group);
    assert_eq!(state(&mut rig), QpState::Rts);
    rig.publish(0, 300);
    rig.settle();
    assert_eq!(rig.receivers(0), 2);
    assert_eq!(rig.nodes[0].engine.recovery_stats().faults, 0);
}

/// Soft-RoCE on a busy host: a queue pair in SQD takes no step until what it had begun is finished.
#[test]
fn a_group_is_drained_when_its_queue_pair_can_be_resumed() {
    let (mut rig, script) = scripted(5);
    let group = *rig.nodes[0].engine.groups.keys().next().unwrap();
    script.lock().draining = 7;
    drain(&mut rig, group);
    assert_eq!(script.lock().draining, 0);
    resume(&mut rig, group);
    assert_eq!(state(&mut rig), QpState::Rts);
    assert_eq!(rig.nodes[0].engine.recovery_stats().faults, 0);
    // One that is given up meanwhile goes on all the same.
    script.lock().draining = 1000;
    assert!(rig.nodes[0].engine.start_drain(group));
    rig.touch(0);
    rig.run_for(10 * MILLI);
    assert_eq!(state(&mut rig), QpState::Sqd);
    assert!(!rig.nodes[0].engine.is_drained(group));
    let now = rig.now;
    assert!(rig.nodes[0].engine.end_drain(now, group).is_err());
    script.lock().draining = 0;
    rig.publish(0, 10);
    rig.settle();
    assert_eq!(state(&mut rig), QpState::Rts);
}

#[test]
fn it_is_resumed_when_the_last_who_wanted_it_drained_says_so() {
    let (mut rig, group) = pair(2);
    drain(&mut rig, group);
    drain(&mut rig, group);
    resume(&mut rig, group);
    assert_eq!(state(&mut rig), QpState::Sqd);
    resume(&mut rig, group);
    assert_eq!(state(&mut rig), QpState::Rts);
    rig.publish(0, 100);
    rig.settle();
}

/// A fault of the queue pair, and the loss of the device, while it is drained: it stays drained until it is resumed.
#[test]
fn recovery_does_not_resume_a_drained_group() {
    for lose in [false, true] {
        let (mut rig, group) = pair(3);
        rig.let_reopen(0, &Arc::new(AtomicBool::new(true)));
        rig.publish(0, 100);
        drain(&mut rig, group);
        if lose {
            rig.lose(0);
        } else {
            let qp = rig.qp(0);
            rig.fabric.fault_qp(0, qp, QpState::Err, true);
        }
        rig.run_for(100 * MILLI);
        let port = rig.port(0);
        let sent = rig.fabric.counters(port).unwrap().sent;
        rig.push(0, 500);
        rig.run_for(SECOND);
        assert_eq!(rig.fabric.counters(port).unwrap().sent, sent);
        resume(&mut rig, group);
        rig.publish(0, 600);
        rig.settle();
    }
}

/// Last words leave before the queue pair does; and if the link takes none, the group is left all the same.
#[test]
fn a_group_is_left_when_its_last_words_are_sent() {
    for link in [true, false] {
        let mut rig = Rig::new(4);
        let slow = PortConfig { rate: Some(20_000_000), ..PortConfig::default() };
        rig.add_with(PortConfig::default(), |_| {}, |device| Box::new(device));
        rig.add_with(slow, |_| {}, |device| Box::new(device));
        rig.meet(1);
        let listener = rig.subscribers.remove(0);
        rig.fabric.set_link(1, link);
        rig.run_for(MILLI);
        let now = rig.now;
        let group = *rig.nodes[1].engine.groups.keys().next().unwrap();
        rig.nodes[1].engine.close_subscriber(now, listener.id);
        rig.nodes[1].engine.leave(group);
        rig.touch(1);
        rig.run_until("it is left", 60 * MILLI, |rig| rig.nodes[1].engine.groups.is_empty());
        rig.run_for(10 * MILLI);
        // It said good-bye, or is not known to be gone yet.
        assert_eq!(rig.receivers(0), usize::from(!link));
        rig.fabric.set_link(1, true);
        rig.run_for(SECOND);
        rig.assert_clean();
    }
}
