//! Joins, farewells, deaths and restarts.

use std::time::Duration;

use qcast_proto::membership::{Profile, Role};
use qcast_proto::subscribe::SubscriberConfig;

use crate::net::{MILLI, Net, SECOND};
use crate::seeds::each_seed;

/// R-MEMBER-4, R-MEMBER-5: all see a join within 2 s at 5 % loss, and the new one sees all.
#[test]
fn a_join_is_seen_by_all() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 30);
        let start = net.now;
        net.join(1000, 1);
        net.run_until(3 * SECOND, "agreement", Net::is_agreed);
        for at in 0..30 {
            let seen = net.told_at(at, 1000, "joined").unwrap();
            assert!(seen.saturating_since(start) < 2 * SECOND);
            assert_eq!(net.told(at, 1000), ["joined"]);
        }
        net.assert_versions();
    });
}

/// R-MEMBER-4: a farewell is no failure, and late words do not bring one back.
#[test]
fn who_leaves_is_gone_at_once() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.0, 8);
        let (now, m) = (net.now, &mut net.machines[3]);
        m.node.part(now, m.group);
        net.run(100 * MILLI);
        assert!(net.machines[3].node.has_parted(net.machines[3].group));
        net.crash(3);
        net.run(20 * SECOND);
        net.agree();
        for at in (0..8).filter(|at| *at != 3) {
            assert_eq!(net.told(at, 4), ["left"]);
        }
        // The same process joins again.
        net.machines[3].up = true;
        let (now, address) = (net.now, net.machines[3].address);
        let m = &mut net.machines[3];
        m.node.leave(m.group);
        m.group = m.node.join(now, crate::net::GROUP, address);
        net.run(2 * SECOND);
        net.agree();
        assert_eq!(net.told(0, 4), ["left", "joined"]);
    });
}

/// R-MEMBER-8, R-MEMBER-9: a crash is suspected, and then seen by all within 5 s at 5 % loss. Nobody else fails.
#[test]
fn a_crash_is_seen_by_all_in_time() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 40);
        net.crash(7);
        net.run(5 * SECOND);
        for at in (0..40).filter(|at| *at != 7) {
            assert_eq!(net.told(at, 8), ["suspected", "failed"]);
        }
        net.run(60 * SECOND);
        net.agree();
        for at in (0..40).filter(|at| *at != 7) {
            assert!(
                net.machines[at].told.iter().all(|(_, e, _)| !e.is_end() || e.info().node.0 == 8)
            );
        }
        net.assert_versions();
    });
}

/// Case 123, R-MEMBER-8: one that cannot be heard for a while is suspected, hears of it, and refutes it as soon as
/// it can.
#[test]
fn a_suspect_that_lives_refutes_it() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.0, 10);
        net.cut = Box::new(|hop| hop.from == 2);
        net.run(Duration::from_millis(3300));
        assert!((0..10).any(|at| net.told(at, 3) == ["suspected"]));
        net.cut = Box::new(|_| false);
        net.run(2 * SECOND);
        for at in (0..10).filter(|at| *at != 2) {
            let told = net.told(at, 3);
            assert!(told.is_empty() || told == ["suspected", "refuted"], "{told:?}");
        }
        assert!(net.counters(2).refuted > 0);
        assert!(net.machines[2].told.is_empty());
        net.agree();
    });
}

/// R-MEMBER-13: one that slept for as long does not take the others for dead.
#[test]
fn who_slept_suspects_nobody() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.0, 10);
        net.machines[2].asleep = true;
        net.run(Duration::from_millis(3900));
        net.machines[2].asleep = false;
        net.run(2 * SECOND);
        assert!(net.machines[2].told.is_empty(), "{:?}", net.machines[2].told);
        net.agree();
    });
}

/// Case 123: stalls of a beacon and a half again and again, and nobody is even suspected.
#[test]
fn who_stalls_for_a_moment_is_not_suspected() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.0, 6);
        for _ in 0..20 {
            net.machines[1].asleep = true;
            net.run(Duration::from_millis(1500));
            net.machines[1].asleep = false;
            net.run(Duration::from_millis(3500));
        }
        assert!(net.machines.iter().all(|m| m.told.is_empty()));
    });
}

/// Case 125, R-MEMBER-6: killed and restarted at once: the old one left, then the new one joined, and nothing else.
#[test]
fn a_restart_is_a_parting_and_a_join_in_that_order() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 12);
        net.crash(5);
        net.run(10 * MILLI);
        net.join_at(6, 2, Net::host(5));
        net.run(10 * SECOND);
        net.agree();
        for at in (0..12).filter(|at| *at != 5) {
            assert_eq!(net.told(at, 6), ["left", "joined"]);
            let lives: Vec<u64> = net.machines[at]
                .told
                .iter()
                .filter(|(_, e, _)| e.info().node.0 == 6)
                .map(|(_, e, _)| e.info().incarnation)
                .collect();
            assert_eq!(lives, [1, 2]);
        }
    });
}

/// R-MEMBER-17: a restart on another host is believed when the old one is silent.
#[test]
fn a_restart_elsewhere_is_believed_when_the_old_one_is_silent() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.05, 6);
        net.crash(2);
        net.run(200 * MILLI);
        net.join(3, 2);
        net.run(4 * SECOND);
        net.agree();
        for at in [0, 1, 3, 4, 5] {
            let told = net.told(at, 3);
            assert!(told.ends_with(&["left", "joined"]), "{told:?}");
            assert!(!told.contains(&"conflict"));
        }
    });
}

/// R-MEMBER-2, R-MEMBER-14: what a member says of itself reaches all, and each change has its version.
#[test]
fn profiles_and_roles_are_told() {
    let mut net = Net::settled(3, 0.05, 10);
    let version = net.view(0).version;
    let (now, m) = (net.now, &mut net.machines[4]);
    let profile = Profile { metadata: vec![("rank".into(), "4".into())] };
    m.node.set_profile(m.group, profile).unwrap();
    m.node.open_subscriber(now, m.group, SubscriberConfig::default());
    net.run(4 * SECOND);
    for at in 0..10 {
        let info = net.sees(at, 5).unwrap().info;
        assert_eq!(info.metadata, [("rank".to_owned(), "4".to_owned())]);
        assert_eq!(info.role, Role::Subscriber);
        assert!(net.told(at, 5).iter().all(|e| *e == "updated"));
    }
    assert!(net.view(0).version > version);
    net.assert_versions();
    let m = &mut net.machines[4];
    let bad = Profile { metadata: vec![("rank".into(), "\u{7}".into())] };
    assert!(m.node.set_profile(m.group, bad).is_err());
    let long = Profile { metadata: vec![("rank".into(), "v".repeat(300))] };
    assert!(m.node.set_profile(m.group, long).is_err());
}

/// R-MEMBER-7: a view knows how far each member is, and when it was heard.
#[test]
fn members_are_measured() {
    let mut net = Net::settled(4, 0.0, 4);
    net.run(6 * SECOND);
    for m in net.view(0).members {
        assert_eq!(m.own, m.info.node.0 == 1);
        if !m.own {
            assert!(m.rtt.is_some_and(|rtt| rtt < 10 * MILLI), "{:?}", m.rtt);
            assert!(net.now.saturating_since(m.heard) <= SECOND + 50 * MILLI);
            assert!(m.heard <= net.now);
        }
    }
}

/// R-MEMBER-3: what a member sends does not depend on how many there are.
#[test]
fn traffic_of_a_member_is_constant() {
    let rate = |members: usize| {
        let mut net = Net::settled(1, 0.0, members);
        net.run(10 * SECOND);
        let before = net.sent;
        net.run(10 * SECOND);
        (net.sent - before) as f64 / members as f64 / 10.0
    };
    let (few, many) = (rate(4), rate(100));
    // A beacon, a probe, an answer.
    assert!((3.0..3.6).contains(&few) && (3.0..3.6).contains(&many), "{few} {many}");
}

/// R-MEMBER-4: when many join one after the other, those that are there do not all speak each time.
#[test]
fn a_storm_of_joins_is_met_at_the_steady_pace() {
    let mut net = Net::settled(1, 0.0, 40);
    let beacons = |net: &Net| (0..40).map(|at| net.counters(at).beacons).sum::<u64>();
    let before = beacons(&net);
    for n in 0..100 {
        net.join(1000 + n, 1);
        net.run(10 * MILLI);
    }
    // Forty of them in a second: one in 40 to 140 ms each at the most, not one for each that came.
    let sent = beacons(&net) - before;
    assert!(sent < 40 * 25, "{sent}");
    net.run(3 * SECOND);
    net.agree();
}
