//! What nodes tell of their ports and queue pairs.

use std::net::Ipv4Addr;

use qcast_proto::addr::Gid;
use qcast_proto::qp::QpState;

use super::rig::{MILLI, Rig, SECOND, mgid};
use crate::device::WcStatus;
use crate::device::sim::{Personality, PortConfig};
use crate::engine::event::{NodeEvent, Trouble};

fn pair(seed: u64, personality: Personality) -> Rig {
    let mut rig = Rig::new(seed);
    for _ in 0..2 {
        let port = PortConfig { personality, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig.meet(1);
    rig
}

#[test]
fn a_link_that_goes_down_is_told_and_loses_nothing() {
    for node in [0, 1] {
        let mut rig = pair(1, Personality::SoftRoce);
        rig.publish(0, 200);
        rig.fabric.set_link(node, false);
        rig.push(0, 300);
        rig.run_for(3 * SECOND);
        let down = Trouble::PortDown { port: 1 };
        assert_eq!(rig.events(node), [NodeEvent::Degraded { trouble: down.clone() }]);
        rig.fabric.set_link(node, true);
        rig.publish(0, 400);
        rig.settle();
        let events = rig.events(node);
        let [NodeEvent::Restored { trouble, after }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((trouble, *after), (&down, 3 * SECOND));
        assert_eq!(rig.events(1 - node), []);
    }
}

#[test]
fn an_mtu_below_the_frames_is_told_until_they_fit_again() {
    let mut rig = pair(2, Personality::Hardware);
    rig.fabric.set_mtu(0, 4096, false);
    rig.run_for(MILLI);
    rig.fabric.set_mtu(0, 1024, false);
    rig.run_for(MILLI);
    assert_eq!(rig.events(0), []);
    rig.fabric.set_mtu(0, 512, false);
    rig.run_for(MILLI);
    let trouble = Trouble::MtuTooSmall { mtu: 512, frame: 1024 };
    assert_eq!(rig.events(0), [NodeEvent::Degraded { trouble: trouble.clone() }]);
    rig.fabric.set_mtu(0, 1024, false);
    rig.run_for(MILLI);
    assert_eq!(rig.events(0), [NodeEvent::Restored { trouble, after: MILLI }]);
}

#[test]
fn an_address_that_changes_is_told() {
    let mut rig = pair(3, Personality::Hardware);
    let (was, now) =
        (rig.nodes[1].engine.device().port().gid, Gid::from(Ipv4Addr::new(10, 99, 0, 7)));
    rig.fabric.set_gid(1, now);
    rig.run_for(MILLI);
    assert_eq!(rig.events(1), [NodeEvent::AddressChanged { was, now }]);
}

/// Case 94: an event, completions with errors and refused posts are signs of one fault.
#[test]
fn many_signs_of_one_fault_make_one_recovery() {
    for announced in [true, false] {
        let mut rig = pair(4, Personality::Hardware);
        rig.publish(0, 100);
        let qp = rig.qp(0);
        rig.push(0, 200);
        rig.run_for(MILLI / 20);
        rig.fabric.fault_qp(0, qp, QpState::Err, announced);
        // A second sign of what the first recovery has dealt with.
        rig.run_for(MILLI);
        rig.nodes[0].engine.suspect(rig.now, qp, || "late".into());
        rig.touch(0);
        rig.publish(0, 100);
        rig.settle();
        let stats = rig.nodes[0].engine.recovery_stats();
        assert_eq!((stats.faults, stats.walks), (1, 1), "{stats:?}");
        let events = rig.events(0);
        let trouble = Trouble::QueuePair { group: "g".into(), state: QpState::Err };
        let [NodeEvent::Degraded { trouble: begun }, NodeEvent::Restored { trouble: over, .. }] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((begun, over), (&trouble, &trouble));
    }
}

/// Case 14: it ends in one word of failure, with what went wrong first, and that is taken back only once it is calm.
#[test]
fn a_queue_pair_that_fails_again_and_again_has_failed() {
    for personality in [Personality::Hardware, Personality::SoftRoce] {
        let mut rig = pair(5, personality);
        let qp = rig.qp(0);
        rig.fabric.fail_next_send(0, qp, WcStatus::LocLenErr);
        for _ in 0..1000 {
            rig.run_for(5 * MILLI);
            rig.fabric.fail_next_send(0, qp, WcStatus::LocProtErr);
        }
        let events = rig.events(0);
        let failures: Vec<_> =
            events.iter().filter(|e| matches!(e, NodeEvent::QpFailed { .. })).collect();
        let [NodeEvent::QpFailed { group, cause, attempts: 10 }] = failures[..] else {
            panic!("{events:?}")
        };
        assert_eq!((group.as_str(), cause.as_str()), ("g", "a send ended with LocLenErr"));
        assert!(!matches!(events.last(), Some(NodeEvent::Restored { .. })), "{events:?}");
        assert_eq!(rig.nodes[0].engine.recovery_stats().failed, 1);
        rig.publish(0, 100);
        rig.run_for(12 * SECOND);
        rig.settle();
        let events = rig.events(0);
        assert!(matches!(events[..], [NodeEvent::Restored { .. }]), "{events:?}");
        // And the next fault is one like any other.
        rig.fabric.fail_next_send(0, qp, WcStatus::LocLenErr);
        rig.publish(0, 100);
        rig.settle();
        let events = rig.events(0);
        assert!(
            matches!(events[..], [NodeEvent::Degraded { .. }, NodeEvent::Restored { .. }]),
            "{events:?}"
        );
    }
}

/// A group that can neither be brought back nor joined anew has failed, and a change of the port is a new beginning.
#[test]
fn a_port_event_gives_a_failed_group_another_chance_at_once() {
    let mut rig = pair(6, Personality::Hardware);
    rig.publish(0, 100);
    let qp = rig.qp(0);
    rig.fabric.set_unjoinable(mgid("g"), true);
    rig.fabric.refuse_modify(0, qp, 1000, 22);
    rig.fabric.fault_qp(0, qp, QpState::Err, true);
    rig.run_for(30 * SECOND);
    let events = rig.events(0);
    let [NodeEvent::Degraded { .. }, NodeEvent::QpFailed { cause, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(cause, "the device moved the QP to ERR");
    let stats = rig.nodes[0].engine.recovery_stats();
    assert!(stats.failed_walks < 40, "{stats:?} in 30 seconds");
    rig.fabric.set_unjoinable(mgid("g"), false);
    rig.fabric.set_link(0, false);
    rig.fabric.set_link(0, true);
    rig.run_for(100 * MILLI);
    assert_ne!(rig.qp(0), qp);
    rig.publish(0, 100);
    rig.run_for(3 * SECOND);
    rig.settle();
    let events = rig.events(0);
    assert!(matches!(events[..], [NodeEvent::Restored { .. }]), "{events:?}");
}
