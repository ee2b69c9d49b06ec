//! Ends with everything on its way.

use super::rig::{MILLI, Rig, SECOND};
use crate::device::impair::Impairment;
use crate::device::sim::{PortConfig, Traffic};

fn lossy(seed: u64, nodes: usize) -> Rig {
    let mut rig = Rig::new(seed);
    for _ in 0..nodes {
        let rx = Impairment { reorder: 0.02, ..Impairment::lossy(0.05) };
        let port = PortConfig { rx, ..PortConfig::default() };
        rig.add_with(port, |_| {}, |device| Box::new(device));
    }
    rig
}

fn leave_all(rig: &mut Rig) {
    let now = rig.now;
    for s in std::mem::take(&mut rig.subscribers) {
        rig.nodes[s.node].engine.close_subscriber(now, s.id);
    }
    for node in 0..rig.nodes.len() {
        let groups: Vec<_> = rig.nodes[node].engine.groups.keys().copied().collect();
        groups.into_iter().for_each(|g| rig.nodes[node].engine.leave(g));
        rig.touch(node);
    }
    rig.run_for(SECOND);
}

#[test]
fn closing_with_frames_on_their_way_loses_none_and_leaves_nothing() {
    for seed in 0..5 {
        let mut rig = lossy(seed, 4);
        rig.meet(3);
        rig.publish(0, 700);
        let closed = rig.close(0);
        assert_eq!(closed.unconfirmed, Vec::<String>::new());
        rig.settle();
        leave_all(&mut rig);
        rig.assert_clean();
        assert!(rig.nodes.iter().all(|n| n.engine.is_idle()));
        assert_eq!(rig.fabric.next_event(), None);
    }
}

/// A subscriber that cannot be reached is named when the linger is over.
#[test]
fn who_did_not_confirm_is_named() {
    let mut rig = lossy(6, 3);
    rig.meet(2);
    rig.publish(0, 100);
    rig.settle();
    rig.fabric.partition(&[&[2]], Traffic::All);
    rig.push(0, 150);
    let start = rig.now;
    let closed = rig.close(0);
    assert_eq!(closed.unconfirmed, ["node 2"]);
    assert!(rig.now.saturating_since(start) < 6 * SECOND);
}

/// A subscription that is closed in the middle holds nobody back, and its frames come home.
#[test]
fn a_subscription_may_close_at_any_moment() {
    for seed in 0..5 {
        let mut rig = lossy(seed, 3);
        rig.meet(2);
        rig.push(0, 400);
        rig.run_for(MILLI / 2 + MILLI * (seed as u32) / 4);
        let gone = rig.subscribers.remove(0);
        let now = rig.now;
        rig.nodes[gone.node].engine.close_subscriber(now, gone.id);
        rig.touch(gone.node);
        drop(gone);
        rig.publish(0, 600);
        rig.settle();
        assert_eq!(rig.receivers(0), 1);
        assert_eq!(rig.close(0).unconfirmed, Vec::<String>::new());
        leave_all(&mut rig);
        rig.assert_clean();
    }
}
