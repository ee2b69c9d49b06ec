//! Members with another key, or another way to the group: both sides are told.

use std::time::Duration;

use qcast::proto::diagnosis::key_check;
use qcast::{JoinError, Node, NodeEvent, NodeEvents, PathDifference, QKey};

use crate::rig::{DEADLINE, manual, node, now, small, unique};

fn key(n: u32) -> QKey {
    QKey::new_checked(n).unwrap()
}

/// The next event that is about this group.
fn event(events: &NodeEvents, of: &str) -> NodeEvent {
    let deadline = now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(now());
        let event = events.recv_timeout(left).unwrap().expect("it is told before the deadline");
        match &event {
            NodeEvent::KeyMismatch { group, .. }
            | NodeEvent::PathMismatch { group, .. }
            | NodeEvent::MismatchOver { group, .. }
                if group == of =>
            {
                return event;
            }
            _ => {}
        }
    }
}

/// R-KEY-2, R-KEY-3, case 21.
#[test]
fn another_key_is_told_to_both_sides_with_names() {
    let (ours, theirs) = (node(), node());
    let (a, b) = (ours.events(), theirs.events());
    let group = unique("wrong key");
    let right = ours.group(&group).qkey(key(0x1234)).join().unwrap();
    let start = now();
    let wrong = theirs.group(&group).qkey(key(0x1235)).join().unwrap();
    for (events, other, ours, theirs) in
        [(&a, &theirs, &right, &wrong), (&b, &ours, &wrong, &right)]
    {
        match event(events, &group) {
            NodeEvent::KeyMismatch { members, theirs: t, ours: o, .. } => {
                let [member] = &members[..] else { panic!("{members:?}") };
                assert_eq!((member.node, &*member.name), (other.id(), other.name()));
                assert_eq!(member.address.gid, other.device().gid);
                assert_eq!(
                    (t, o),
                    (key_check(&group, theirs.qkey()), key_check(&group, ours.qkey()))
                );
            }
            event => panic!("{event:?}"),
        }
        println!("{} knew after {:?}", other.name(), start.elapsed());
    }
    drop(wrong);
    let _right = theirs.group(&group).qkey(key(0x1234)).join().unwrap();
    assert!(matches!(event(&a, &group), NodeEvent::MismatchOver { .. }));
}

/// R-KEY-4.
#[test]
fn another_mtu_is_told_and_another_address_too() {
    let (ours, theirs) = (node(), small().mtu(1024).open().unwrap());
    let events = ours.events();
    let group = unique("mtu");
    let _ours = ours.group(&group).join().unwrap();
    let _theirs = theirs.group(&group).mgid("239.192.200.7".parse().unwrap()).join().unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        match event(&events, &group) {
            NodeEvent::PathMismatch { what, member, .. } => {
                assert_eq!(member.node, theirs.id());
                found.push(what);
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(found.iter().any(|w| matches!(w, PathDifference::Mtu { theirs: 1024, ours: 2048.. })));
    assert!(found.iter().any(|w| matches!(w, PathDifference::Address { .. })));
}

/// R-CONTROLGROUP-1: manual nodes tell it to whoever waits for it.
#[test]
fn manual_nodes_are_told_while_they_wait() {
    let (ours, theirs) = (manual(), node());
    let events = ours.events();
    let group = unique("manual key");
    let _ours = ours.group(&group).qkey(key(7)).join().unwrap();
    let _theirs = theirs.group(&group).qkey(key(8)).join().unwrap();
    assert!(matches!(event(&events, &group), NodeEvent::KeyMismatch { .. }));
}

/// R-CONTROLGROUP-3.
#[test]
fn groups_are_seen_with_who_is_in_them() {
    let ours = node();
    let group = unique("seen");
    let _ours = ours.group(&group).secret("x").join().unwrap();
    let observer = node();
    let deadline = now() + DEADLINE;
    loop {
        let groups = observer.seen_groups(Duration::from_millis(200)).unwrap();
        if let Some(seen) = groups.iter().find(|seen| seen.name == group) {
            assert_eq!(seen.members[0].node, ours.id());
            assert_eq!(seen.checks.key, key_check(&group, QKey::derive(&group, b"x")));
            assert!(!seen.own);
            break;
        }
        assert!(now() < deadline, "{groups:?}");
    }
}

/// R-CONTROLGROUP-1.
#[test]
fn the_control_group_is_nobodys_own() {
    let node = node();
    assert!(matches!(node.group("qcast").join(), Err(JoinError::Reserved)));
}

/// R-CONTROLGROUP-1: who stays out hears nothing of it and says nothing.
#[test]
fn a_node_may_stay_out() {
    let ours = small().control(false).open().unwrap();
    let theirs = node();
    let group = unique("out");
    let _ours = ours.group(&group).qkey(key(7)).join().unwrap();
    let events = theirs.events();
    let _theirs = theirs.group(&group).qkey(key(8)).join().unwrap();
    let told = |events: &NodeEvents| {
        let event = events.recv_timeout(Duration::from_millis(300)).unwrap();
        matches!(event, Some(NodeEvent::KeyMismatch { group: g, .. }) if g == group)
    };
    assert!(!told(&events));
    assert_eq!(ours.control_counters(), Default::default());
}

/// R-CONTROLGROUP-6, case 119.
#[test]
fn one_name_for_two_nodes_is_told_to_both() {
    let name = unique("twin").replace(' ', "-");
    let open = || small().name(&name).open().unwrap();
    let (ours, theirs): (Node, Node) = (open(), open());
    assert_eq!(ours.id(), theirs.id());
    let group = unique("twins");
    let (a, b) = (ours.events(), theirs.events());
    let _ours = ours.group(&group).join().unwrap();
    let _theirs = theirs.group(&group).join().unwrap();
    for (events, other) in [(&a, &theirs), (&b, &ours)] {
        let deadline = now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(now());
            let event = events.recv_timeout(left).unwrap().expect("it is told");
            if let NodeEvent::IdentityConflict { other: told } = event {
                assert_eq!(told.address.gid, other.device().gid);
                break;
            }
        }
    }
}
