//! The receive queue: dry, and kept fed when an application holds what it got.

use std::sync::Arc;

use parking_lot::Mutex;
use qcast_proto::publish::{FlowPolicy, PublisherConfig};
use qcast_proto::subscribe::SubscriberConfig;
use qcast_proto::wire::control::{self, Nak};
use qcast_proto::wire::frame::{Frame, FrameKind};

use super::rig::{MILLI, Rig, SECOND};
use crate::device::impair::Impairment;
use crate::device::sim::{Outcome, PortConfig, Verdict};

/// Case 57: a process that is not scheduled leaves its receive queue dry; the loss is its own, it says so, and
/// asks at once.
#[test]
fn a_dry_receive_queue_is_asked_for_as_a_local_loss() {
    let mut rig = Rig::new(1);
    rig.add();
    rig.add_with(PortConfig::default(), |config| config.srq_depth = 16, |device| Box::new(device));
    for _ in 0..10 {
        rig.add();
    }
    let naks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&naks);
    rig.fabric.add_rule(move |passing| {
        if let Ok(frame) = Frame::new_checked(passing.payload)
            && frame.header().kind == FrameKind::Nak
        {
            let nak: Nak = control::decode(frame.body()).unwrap();
            seen.lock().push((passing.from, nak.local));
        }
        Verdict::Pass
    });
    let groups: Vec<_> = (0..12).map(|node| rig.join(node, "g", "s")).collect();
    for (node, group) in groups.iter().enumerate().skip(1) {
        rig.subscribe(node, *group);
    }
    let mut config = PublisherConfig::default();
    config.policy = FlowPolicy::Unlimited;
    rig.publisher_with(0, groups[0], config);
    rig.wait_for(0, 11);
    // Frames come while it does not run, more than are posted.
    rig.fabric.pause(1);
    rig.nodes[1].paused = true;
    rig.push(0, 100);
    rig.run_for(5 * MILLI);
    assert!(rig.fabric.tally(Outcome::NoBuffer) > 0);
    rig.fabric.resume(1);
    rig.nodes[1].paused = false;
    rig.touch(1);
    rig.settle();
    let naks = naks.lock();
    assert!(!naks.is_empty() && naks.iter().all(|(from, _)| *from == Some(1)), "{naks:?}");
    assert!(naks[0].1, "the first request does not say that the loss is local");
    rig.assert_buffers(1);
}

/// DESIGN: an application that holds messages can never starve the SRQ.
#[test]
fn an_application_that_keeps_messages_does_not_starve_the_receive_queue() {
    let mut rig = Rig::new(2);
    rig.add();
    rig.add_with(PortConfig::default(), |config| config.srq_depth = 64, |device| Box::new(device));
    let groups = [rig.join(0, "g", "s"), rig.join(1, "g", "s")];
    let mut config = SubscriberConfig::default();
    config.queue = 4096;
    rig.subscribe_with(1, groups[1], config);
    rig.publisher(0, groups[0]);
    rig.wait_for(0, 1);
    rig.subscribers[0].keeps = true;
    for _ in 0..10 {
        rig.publish(0, 50);
        rig.run_for(5 * MILLI);
        let [posted, on_loan, _, capacity] = rig.nodes[1].engine.buffers();
        assert!(posted >= capacity / 8, "{posted} of {capacity} posted, {on_loan} on loan");
        rig.assert_buffers(1);
    }
    rig.run_until("all of it", SECOND, |rig| rig.subscribers[0].kept.len() >= 500);
    assert_eq!(rig.fabric.tally(Outcome::NoBuffer), 0);
    rig.subscribers[0].let_go();
    rig.settle();
    rig.run_for(SECOND);
    let [_, on_loan, ..] = rig.nodes[1].engine.buffers();
    assert_eq!(on_loan, 0);
    rig.assert_buffers(1);
}

/// Buffers add up after every step, with loss, duplicates, damage and foreign keys about.
#[test]
fn buffers_are_conserved_at_every_step() {
    let mut rig = Rig::new(3);
    for _ in 0..4 {
        let rx = Impairment {
            duplicate: 0.05,
            reorder: 0.05,
            corrupt: 0.01,
            ..Impairment::bursty(0.05, 4.0)
        };
        let port = PortConfig { rx, own_memory: true, ..PortConfig::default() };
        rig.add_with(port, |config| config.srq_depth = 32, |device| Box::new(device));
    }
    rig.meet(3);
    let mut steps = 0;
    rig.push(0, 400);
    rig.run_until("everything", 60 * SECOND, |rig| {
        rig.push(0, 400);
        (0..4).for_each(|node| rig.assert_buffers(node));
        steps += 1;
        rig.subscribers.iter().all(|s| s.got.len() == 400)
    });
    assert!(steps > 400, "{steps}");
    rig.assert_all_in_order();
}
