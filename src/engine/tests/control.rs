//! The control group on devices: joined in the background, and no burden to anything else.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use qcast_proto::discovery::{Filter, Service};

use super::rig::{MILLI, Rig, SECOND, mgid};
use crate::device::sim::PortConfig;
use crate::engine::control::{ServiceEvent, Standing};
use crate::engine::event::NodeEvent;
use crate::engine::feed::FeedQueue;
use crate::engine::outlet::Patience;

/// Nodes that are to join the control group.
fn nodes(rig: &mut Rig, n: usize) {
    for _ in 0..n {
        let node = rig.add();
        rig.nodes[node].engine.want_control();
    }
}

fn found(queue: &FeedQueue<ServiceEvent>) -> Vec<String> {
    let events = std::iter::from_fn(|| queue.take(Patience::None));
    let line = |event| match event {
        ServiceEvent::Added(found) => format!("+{}", found.service.name),
        ServiceEvent::Updated(found) => format!("~{}", found.service.name),
        ServiceEvent::Removed(found) => format!("-{}", found.service.name),
        ServiceEvent::Missed(n) => format!("{n} missed"),
    };
    events.map(line).collect()
}

/// R-KEY-2, R-KEY-3.
#[test]
fn members_with_other_keys_are_told_and_messages_go_on() {
    let mut rig = Rig::new(1);
    nodes(&mut rig, 3);
    rig.meet(1);
    rig.join(2, "g", "another");
    rig.publish(0, 200);
    rig.settle();
    rig.run_for(2 * SECOND);
    for node in 0..3 {
        let names: Vec<String> = rig
            .events(node)
            .into_iter()
            .flat_map(|event| match event {
                NodeEvent::KeyMismatch { members, .. } => {
                    members.into_iter().map(|member| member.name).collect()
                }
                // The control group is nobody's guess.
                NodeEvent::QKeyViolations { groups, .. } if groups == ["g"] => Vec::new(),
                other => panic!("{other:?}"),
            })
            .collect();
        let others: &[&str] = if node == 2 { &["node 0", "node 1"] } else { &["node 2"] };
        assert_eq!(names.len(), others.len(), "{names:?}");
        assert!(others.iter().all(|other| names.iter().any(|name| name == other)), "{names:?}");
    }
}

/// R-CONTROLGROUP-1: that it cannot be joined holds nothing up, and is tried again.
#[test]
fn a_control_group_that_cannot_be_joined_is_no_burden() {
    let mut rig = Rig::new(2);
    rig.fabric.set_unjoinable(mgid("qcast"), true);
    nodes(&mut rig, 3);
    rig.meet(1);
    rig.publish(0, 200);
    rig.settle();
    let before = rig.nodes[2].turns;
    rig.run_for(100 * SECOND);
    let turns = rig.nodes[2].turns - before;
    assert!(turns < 40, "{turns} turns in 100 s of a node that waits for nothing else");
    assert!(!rig.nodes[0].engine.has_control());
    let (_, queue) = rig.nodes[2].engine.browse(rig.now, Filter::default());
    rig.fabric.set_unjoinable(mgid("qcast"), false);
    rig.nodes[0].engine.announce(rig.now, Service::new("http", "web", 80)).unwrap();
    for node in [0, 2] {
        rig.touch(node);
    }
    rig.run_until("the service is found", 40 * SECOND, |_| found(&queue) == ["+web"]);
    assert!(rig.nodes[0].engine.has_control());
}

/// R-CONTROLGROUP-1: as many queue pairs as groups, and one.
#[test]
fn it_takes_one_queue_pair() {
    let mut rig = Rig::new(3);
    let port = PortConfig { max_qp: 2, ..PortConfig::default() };
    let node = rig.add_with(port, |_| {}, |device| Box::new(device));
    let group = rig.join(node, "g", "s");
    rig.nodes[node].engine.want_control();
    rig.touch(node);
    rig.run_until("it is joined", SECOND, |rig| rig.nodes[node].engine.has_control());
    rig.nodes[node].engine.leave(group);
    rig.touch(node);
    rig.run_for(SECOND);
    rig.join(node, "other", "s");
    rig.run_for(SECOND);
    rig.assert_buffers(node);
}

/// R-SERVICE-9: a device that is lost and comes back takes the control group with it, and brings it back.
#[test]
fn services_outlive_the_device() {
    let mut rig = Rig::new(4);
    nodes(&mut rig, 2);
    let (is_there, now) = (Arc::new(AtomicBool::new(true)), rig.now);
    rig.let_reopen(0, &is_there);
    rig.join(0, "g", "s");
    let service = Service::new("http", "web", 80).ttl(2 * SECOND);
    let (id, _events) = rig.nodes[0].engine.announce(now, service).unwrap();
    let (_, queue) = rig.nodes[1].engine.browse(now, Filter::default());
    for node in [0, 1] {
        rig.touch(node);
    }
    rig.run_until("the service is found", SECOND, |_| found(&queue) == ["+web"]);
    assert_eq!(rig.nodes[0].engine.standing(id), Standing::Announced("web".into()));
    is_there.store(false, std::sync::atomic::Ordering::Relaxed);
    rig.lose(0);
    rig.run_until("its end is seen", 3 * SECOND, |_| found(&queue) == ["-web"]);
    is_there.store(true, std::sync::atomic::Ordering::Relaxed);
    rig.run_until("it is found again", 5 * SECOND, |_| found(&queue) == ["+web"]);
    // The end of it is said before the node counts as idle.
    let now = rig.now;
    rig.nodes[0].engine.withdraw(now, id);
    rig.touch(0);
    assert!(rig.nodes[0].engine.is_parting());
    rig.run_until("it is withdrawn", SECOND, |_| found(&queue) == ["-web"]);
    rig.run_until("nothing is left to say", SECOND, |rig| !rig.nodes[0].engine.is_parting());
}

/// R-CONTROLGROUP-3: an idle node has a turn now and then.
#[test]
fn an_idle_node_rests() {
    let mut rig = Rig::new(5);
    nodes(&mut rig, 2);
    for node in [0, 1] {
        rig.join(node, "g", "s");
    }
    rig.run_for(10 * SECOND);
    let before = rig.nodes[0].turns;
    rig.run_for(60 * SECOND);
    let turns = rig.nodes[0].turns - before;
    assert!(turns < 150, "{turns} turns in a minute");
    rig.run_for(10 * MILLI);
}
