//! Members of a group on simulated devices.

use std::sync::Arc;

use qcast_proto::addr::NodeId;
use qcast_proto::membership::{MemberState, MembershipConfig, Profile};
use qcast_proto::node::GroupId;

use super::rig::{Rig, SECOND};
use crate::device::sim::{PortConfig, Traffic};
use crate::engine::feed::FeedQueue;
use crate::engine::members::ViewChange;
use crate::engine::outlet::Patience;

type Queue = Arc<FeedQueue<ViewChange>>;

fn members(seed: u64, nodes: usize) -> (Rig, Vec<GroupId>, Vec<Queue>) {
    let mut rig = Rig::new(seed);
    let mut groups = Vec::new();
    for _ in 0..nodes {
        let node = rig.add_with(
            PortConfig::default(),
            |config| config.node.membership = Some(MembershipConfig::default()),
            |device| Box::new(device),
        );
        groups.push(rig.join(node, "g", "s"));
    }
    rig.run_for(4 * SECOND);
    let queues = groups.iter().enumerate().map(|(node, group)| {
        let (view, queue) = rig.nodes[node].engine.listen_members(*group);
        assert_eq!(view.members.len(), nodes);
        queue
    });
    let queues = queues.collect();
    (rig, groups, queues)
}

fn told(queue: &Queue) -> Vec<(&'static str, u128)> {
    let changes = std::iter::from_fn(|| queue.take(Patience::None));
    let told = changes.map(|change| match change {
        ViewChange::Member { event, .. } => (event.name(), event.info().node.0),
        missed => panic!("{missed:?}"),
    });
    told.collect()
}

/// R-MEMBER-4: a group is left when the others were told; its address handle goes with the member.
#[test]
fn the_others_hear_a_farewell() {
    let (mut rig, groups, queues) = members(1, 4);
    let evictions = rig.nodes[0].engine.ah_stats().evictions;
    let profile = Profile { metadata: vec![("rank".into(), "0".into())] };
    rig.nodes[0].engine.set_profile(groups[0], profile).expect("it is within bounds");
    rig.nodes[2].engine.leave(groups[2]);
    rig.touch(2);
    rig.run_for(SECOND);
    assert!(rig.nodes[2].engine.is_idle());
    for node in [0, 1, 3] {
        let told = told(&queues[node]);
        assert!(told.contains(&("left", 3)) && told.contains(&("updated", 1)), "{told:?}");
        assert_eq!(told.len(), 2);
        assert_eq!(rig.nodes[node].engine.view(groups[node]).members.len(), 3);
    }
    assert_eq!(rig.nodes[0].engine.ah_stats().evictions, evictions + 1);
}

/// R-MEMBER-9: a node that is cut off is failed by the others, and fails them; then all are there again.
#[test]
fn a_node_that_is_cut_off_fails_and_comes_back() {
    let (mut rig, groups, queues) = members(2, 4);
    rig.fabric.partition(&[&[1]], Traffic::All);
    rig.run_for(6 * SECOND);
    assert_eq!(told(&queues[0]), [("suspected", 2), ("failed", 2)]);
    assert_eq!(rig.nodes[1].engine.view(groups[1]).members.len(), 1);
    rig.fabric.heal();
    rig.run_for(4 * SECOND);
    for (node, group) in groups.iter().enumerate() {
        assert_eq!(rig.nodes[node].engine.view(*group).members.len(), 4);
    }
}

/// Case 122, R-MEMBER-12: a node whose multicast fails while its unicast works gets another queue pair, which joins anew.
#[test]
fn a_node_that_multicast_fails_joins_anew() {
    let (mut rig, groups, _) = members(3, 4);
    let before = rig.nodes[1].engine.recovery_stats().replaced;
    rig.fabric.partition(&[&[1]], Traffic::Multicast);
    rig.run_for(20 * SECOND);
    let view = rig.nodes[0].engine.view(groups[0]);
    assert_eq!(view.member(NodeId(2)).map(|m| m.state), Some(MemberState::Degraded));
    assert!(rig.nodes[1].engine.recovery_stats().replaced > before);
    rig.fabric.heal();
    rig.run_for(8 * SECOND);
    for (node, group) in groups.iter().enumerate() {
        let view = rig.nodes[node].engine.view(*group);
        assert_eq!(view.members.len(), 4);
        assert!(view.members.iter().all(|m| m.state == MemberState::Alive));
    }
}
