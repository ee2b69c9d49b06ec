//! Partitions, one-way paths, sleep.

use std::time::Duration;

use qcast_proto::membership::MemberState;

use crate::net::{Net, SECOND};
use crate::seeds::each_seed;

/// R-MEMBER-10: two halves fail each other, and are one group again soon after they can.
#[test]
fn a_partition_heals() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 20);
        net.cut = Box::new(|hop| (hop.from < 8) != (hop.to < 8));
        net.run(8 * SECOND);
        assert_eq!(net.view(0).members.len(), 8);
        assert_eq!(net.view(19).members.len(), 12);
        net.cut = Box::new(|_| false);
        net.run(5 * SECOND);
        net.agree();
        net.assert_versions();
    });
}

/// R-MEMBER-10: one believes the other dead, who never noticed; the next beacon heals it.
#[test]
fn a_one_sided_expiry_heals() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.0, 5);
        // Nothing of machine 1 reaches machine 0, and no answers either.
        net.cut = Box::new(|hop| hop.from == 1 && hop.to == 0);
        net.run(6 * SECOND);
        assert_eq!(net.told(0, 2), ["suspected", "failed"]);
        assert!(net.sees(1, 1).is_some() && net.told(1, 1).is_empty());
        net.cut = Box::new(|_| false);
        net.run(2 * SECOND);
        assert_eq!(net.told(0, 2), ["suspected", "failed", "joined"]);
        net.agree();
    });
}

/// R-MEMBER-19: two that do not hear each other through the group find each other by the sums of a third.
#[test]
fn a_lasting_disagreement_is_found_and_healed() {
    each_seed(|seed| {
        let mut net = Net::new(seed, 0.02);
        net.cut = Box::new(|hop| hop.in_group && hop.from < 2 && hop.to < 2);
        for n in 0..6 {
            net.join(n + 1, 1);
        }
        net.run(15 * SECOND);
        net.agree();
        assert!(net.counters(0).digests + net.counters(1).digests > 0);
        assert_eq!(net.told(0, 2)[0], "joined");
    });
}

/// R-MEMBER-13: a process that was stopped for long does not declare everybody dead, and is taken back.
#[test]
fn a_long_pause_is_ones_own() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 12);
        net.machines[4].asleep = true;
        net.run(20 * SECOND);
        assert!((0..12).filter(|at| *at != 4).all(|at| net.sees(at, 5).is_none()));
        net.machines[4].asleep = false;
        net.run(4 * SECOND);
        net.agree();
        let told = &net.machines[4].told;
        assert!(told.iter().all(|(_, e, _)| e.name() != "failed"), "{told:?}");
        assert_eq!(net.told(0, 5), ["suspected", "failed", "joined"]);
    });
}

/// R-MEMBER-13: nor does one whose frames could not leave.
#[test]
fn what_could_not_be_sent_is_forgiven() {
    let mut net = Net::settled(2, 0.0, 4);
    let (now, m) = (net.now, &mut net.machines[0]);
    m.node.set_blocked(now, m.group, true);
    net.cut = Box::new(|hop| hop.to == 0);
    net.run(10 * SECOND);
    net.cut = Box::new(|_| false);
    let (now, m) = (net.now, &mut net.machines[0]);
    m.node.set_blocked(now, m.group, false);
    net.run(3 * SECOND);
    assert!(net.machines[0].told.is_empty(), "{:?}", net.machines[0].told);
    net.agree();
}

/// Case 122, R-MEMBER-11, R-MEMBER-12: multicast silent and unicast alive is degraded, not up and not dead; the
/// one that nobody hears is told, and joins anew.
#[test]
fn a_member_that_only_answers_is_degraded() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 6);
        net.cut = Box::new(|hop| hop.in_group && hop.from == 2);
        let start = net.now;
        net.run(9 * SECOND);
        for at in [0, 1, 3, 4, 5] {
            assert_eq!(net.sees(at, 3).unwrap().state, MemberState::Degraded);
            let seen = net.told_at(at, 3, "degraded").unwrap().saturating_since(start);
            assert!(seen < Duration::from_secs(9));
        }
        net.run(10 * SECOND);
        assert_eq!(net.machines[2].rejoins, 1);
        assert!(net.machines.iter().enumerate().all(|(at, m)| at == 2 || m.rejoins == 0));
        net.cut = Box::new(|_| false);
        net.run(2 * SECOND);
        for at in [0, 1, 3, 4, 5] {
            assert_eq!(net.sees(at, 3).unwrap().state, MemberState::Alive);
            assert!(net.told(at, 3).ends_with(&["restored"]));
            assert!(!net.told(at, 3).contains(&"failed"));
        }
        net.agree();
    });
}

/// R-MEMBER-12: a node that hears nobody through the group, and is answered, joins anew; the others do not.
#[test]
fn a_deaf_member_joins_anew() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 6);
        net.cut = Box::new(|hop| hop.in_group && hop.to == 3);
        net.run(12 * SECOND);
        assert_eq!(net.machines[3].rejoins, 1);
        assert!(net.machines.iter().enumerate().all(|(at, m)| at == 3 || m.rejoins == 0));
        assert!(net.machines[3].told.iter().all(|(_, e, _)| e.name() != "failed"));
        net.cut = Box::new(|_| false);
        net.run(3 * SECOND);
        net.agree();
        assert!(net.view(3).members.iter().all(|m| m.state == MemberState::Alive));
    });
}

/// R-MEMBER-17: a node that moves is followed, in the same life.
#[test]
fn a_member_that_moves_is_followed() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 6);
        let mut address = net.machines[1].address;
        address.qpn = qcast_proto::addr::Qpn::new(777);
        let (now, m) = (net.now, &mut net.machines[1]);
        m.address = address;
        m.node.readdress(now, m.group, address);
        net.run(5 * SECOND);
        net.agree();
        for at in [0, 2, 3, 4, 5] {
            assert_eq!(net.sees(at, 2).unwrap().info.address, address);
            assert!(!net.told(at, 2).iter().any(|e| ["failed", "left", "conflict"].contains(e)));
        }
    });
}
