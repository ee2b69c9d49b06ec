//! Address handles: evicted under load, pending, failing; and one's own address that changes.

use std::net::Ipv4Addr;

use qcast_proto::addr::Gid;
use qcast_proto::time::Duration;

use super::rig::{MILLI, Rig, SECOND};
use super::scripted::Scripted;
use crate::device::impair::Impairment;
use crate::device::sim::{FabricConfig, PortConfig};

/// Case 40: more peers than handles, each asking for repairs while others' are on their way.
#[test]
fn handles_are_evicted_under_load_but_never_under_a_send() {
    let mut rig = Rig::new(1);
    let mut script = None;
    // One of the four is the group's.
    let port = PortConfig { max_ah: 4, ..PortConfig::default() };
    rig.add_with(
        port,
        |config| config.max_ah = 3,
        |device| {
            let (device, told) = Scripted::new(device);
            script = Some(told);
            Box::new(device)
        },
    );
    for _ in 0..8 {
        let rx = Impairment::lossy(0.05);
        let port = PortConfig { rx, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig.meet(8);
    rig.publish(0, 3000);
    rig.settle();
    let stats = rig.nodes[0].engine.ah_stats();
    assert!(stats.evictions > 20, "{stats:?}");
    assert_eq!(script.unwrap().lock().failed_destroys, 0);
    let repairs = rig.nodes[0].engine.publisher_stats(rig.publishers[0].id).unwrap().repairs;
    assert!(repairs > 100, "{repairs}");
}

/// What is for a peer whose address is not resolved yet waits for it, and keeps nothing else.
#[test]
fn frames_wait_while_an_address_is_resolved() {
    let config = FabricConfig {
        latency: Duration::from_micros(20),
        ah_delay: 30 * MILLI,
        ..FabricConfig::default()
    };
    let mut rig = Rig::on(config, 2);
    for _ in 0..4 {
        let rx = Impairment::lossy(0.02);
        let port = PortConfig { rx, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig.meet(3);
    rig.publish(0, 500);
    rig.settle();
    let stats = rig.nodes[0].engine.ah_stats();
    assert!((1..=3).contains(&stats.misses), "{stats:?}");
}

/// Case 29: resolving takes a second in the kernel, so an address that did not resolve is left alone for a while.
#[test]
fn an_address_that_does_not_resolve_is_not_tried_all_the_time() {
    let mut rig = Rig::new(3);
    rig.add();
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
    let script = script.unwrap();
    let gid = rig.nodes[0].engine.device().port().gid;
    rig.fabric.set_unresolvable(gid, true);
    let groups = [rig.join(0, "g", "s"), rig.join(1, "g", "s")];
    rig.subscribe(1, groups[1]);
    rig.publisher(0, groups[0]);
    let before = script.lock().created_ahs;
    rig.run_for(6 * SECOND);
    let tried = script.lock().created_ahs - before;
    assert!((2..=4).contains(&tried), "{tried} attempts in six seconds");
    assert!(rig.nodes[1].engine.ah_stats().refused > 0);
    assert_eq!(rig.receivers(0), 0);
    // It answers now, and everything comes to order.
    rig.fabric.set_unresolvable(gid, false);
    rig.wait_for(0, 1);
    rig.publish(0, 100);
    rig.run_until("the messages", 10 * SECOND, |rig| rig.subscribers[0].got.len() >= 100);
}

/// Case 37: the port's GID changes; peers find the node at its new address.
#[test]
fn a_port_that_moves_is_found_again() {
    for mover in [0, 1] {
        let mut rig = Rig::new(4);
        for _ in 0..3 {
            let rx = Impairment::lossy(0.02);
            let port = PortConfig { rx, ..PortConfig::default() };
            rig.add_with(port, |_| {}, |device| Box::new(device));
        }
        rig.meet(2);
        rig.publish(0, 300);
        rig.settle();
        let gid = Gid::from(Ipv4Addr::new(10, 99, 0, 7));
        rig.fabric.set_gid(mover, gid);
        rig.run_for(2 * SECOND);
        rig.publish(0, 300);
        rig.settle();
        assert_eq!(rig.nodes[mover].engine.device().port().gid, gid);
        assert_eq!(rig.receivers(0), 2, "mover {mover}");
        let publisher = rig.publishers[0].id;
        if mover == 1 {
            let known = rig.nodes[0].engine.receivers(publisher);
            assert!(known.iter().any(|(_, r)| r.address.gid == gid), "{known:?}");
        }
    }
}
