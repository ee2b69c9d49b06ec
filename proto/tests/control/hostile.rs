//! Forgeries, floods, the past, and texts that nobody wants to see.

use std::time::Duration;

use qcast_proto::addr::NodeId;
use qcast_proto::diagnosis::DiagnosisEvent;
use qcast_proto::discovery::{
    DiscoveryEvent, MAX_RECORDS, MAX_RECORDS_OF_NODE, Service, ServiceError,
};
use qcast_proto::wire::frame::FrameKind;
use qcast_proto::wire::notice::{GroupEntry, GroupNotice};
use qcast_proto::wire::service::{Record, ServiceQuery, Services};

use crate::seeds::each_seed;
use crate::world::{World, address, checks, forged, ms};

fn record(kind: &str, name: &str) -> Record {
    Record { kind: kind.into(), name: name.into(), port: 1, ttl_ms: 6000, ..Record::default() }
}

fn services(
    node: u128,
    incarnation: u64,
    at: u64,
    records: impl IntoIterator<Item = Record>,
) -> Vec<u8> {
    let records = records.into_iter().collect();
    let body = Services { node, incarnation, at, name: "forger".into(), records };
    forged(FrameKind::Service, &body)
}

fn notice(node: u128, at: u64, group: &str, qkey: u32) -> Vec<u8> {
    let entry =
        GroupEntry { name: group.into(), checks: checks(group, qkey), members: 1, left: false };
    let body = GroupNotice {
        node,
        incarnation: 1,
        at,
        name: "forger".into(),
        period_ms: u32::MAX,
        asks: true,
        groups: [entry].into_iter().collect(),
    };
    forged(FrameKind::GroupNotice, &body)
}

/// R-CONTROLGROUP-5, R-KEY-3: a flood of forged notices is bounded, counted and answered rarely.
#[test]
fn a_flood_of_notices_is_bounded() {
    let mut world = World::new(1, 0.0);
    let victim = world.add("victim");
    world.join(victim, "g", 7);
    world.run_for(ms(2000));
    let before = world.members[victim].frames;
    for n in 0..20_000u32 {
        world.inject(victim, address(n as usize % 60_000), &notice(n.into(), 1, "g", 8 + n));
        if n % 100 == 0 {
            world.run_for(ms(10));
        }
    }
    let member = &world.members[victim];
    let seen: usize = member.node.seen_groups().iter().map(|g| g.members.len()).sum();
    let (counters, _) = member.node.control_counters();
    assert!(seen <= 8192, "{seen}");
    assert!(counters.refused > 10_000, "{counters:?}");
    assert!(member.frames - before < 60, "{} answers in 2 s", member.frames - before);
    // It goes on to work.
    world.run_for(Duration::from_secs(3600));
    let other = world.add("other");
    world.join(other, "g", 8);
    assert!(world.run_until(ms(2000), |w| !w.mismatches(other).is_empty()).is_some());
    assert!(world.mismatches(victim).iter().any(|(name, ..)| name == "other"));
}

/// R-SERVICE-5: a flood of forged services is bounded per node and in all, and counted.
#[test]
fn a_flood_of_services_is_bounded() {
    let mut world = World::new(1, 0.0);
    let victim = world.add("victim");
    world.browse(victim, "http", "");
    for n in 0..200u64 {
        let name = format!("web {n}");
        world.inject(victim, address(5), &services(5, 1, n, [record("http", &name)]));
    }
    assert_eq!(world.found(victim).len(), MAX_RECORDS_OF_NODE);
    let (_, counters) = world.members[victim].node.control_counters();
    assert_eq!(counters.refused, 200 - MAX_RECORDS_OF_NODE as u64);
    for n in 0..6000u64 {
        let name = format!("x {n}");
        world.inject(
            victim,
            address(6),
            &services(100 + u128::from(n), 1, n, [record("http", &name)]),
        );
    }
    assert_eq!(world.found(victim).len(), MAX_RECORDS);
    // None of another type is kept at all.
    world.inject(victim, address(7), &services(7, 1, 1, [record("ftp", "y")]));
    let before = world.members[victim].frames;
    world.run_for(ms(6500));
    let gone = world.found(victim).iter().filter(|line| line.starts_with('-')).count();
    assert_eq!(gone, MAX_RECORDS, "all are gone after their time");
    let asked = world.members[victim].frames - before;
    assert!(asked < 1500, "{asked} frames asked for what nobody has");
    // There is room again.
    let owner = world.add("owner");
    world.announce(owner, Service::new("http", "real", 80));
    assert!(world.run_until(ms(500), |w| w.found(victim).contains(&"+real".into())).is_some());
}

/// R-SERVICE-8, case 126: nobody takes away, changes or ends what another announces.
#[test]
fn records_do_not_change_owner_while_he_lives() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.02);
        let (owner, browser) = (world.add_as(NodeId(50), 5, "owner"), world.add("browser"));
        world.browse(browser, "http", "");
        world.announce(owner, Service::new("http", "web", 80));
        assert!(world.run_until(ms(2000), |w| w.found(browser) == ["+web"]).is_some());
        let web = record("http", "web");
        let end = Record { withdrawn: true, ..web.clone() };
        for round in 0..50u64 {
            let at = 1_000_000_000 + round;
            // In his name, from elsewhere; in another's name; in that of a later life of his.
            for (node, incarnation) in [(50, 5), (60, 1), (50, 6), (50, 4)] {
                for record in [&end, &web] {
                    world.inject(
                        browser,
                        address(9),
                        &services(node, incarnation, at, [record.clone()]),
                    );
                }
            }
            world.run_for(ms(200));
        }
        world.run_for(ms(3000));
        assert_eq!(world.found(browser), ["+web"]);
        let (_, counters) = world.members[browser].node.control_counters();
        assert!(counters.spoofed > 20 && counters.stale > 0, "{counters:?}");
    });
}

/// R-SERVICE-6, R-CONTROLGROUP-4: the past is over. Old frames are repeated at the end, as they were.
#[test]
fn announcements_from_the_past_bring_nothing_back() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.0);
        let (owner, browser) = (world.add("owner"), world.add("browser"));
        let group = world.join(owner, "g", 8);
        world.join(browser, "g", 7);
        world.browse(browser, "http", "");
        let id = world.announce(owner, Service::new("http", "web", 80));
        world.run_for(ms(3000));
        let old = world.seen.clone();
        let now = world.now;
        world.members[owner].node.update(now, id, Service::new("http", "web", 81)).unwrap();
        world.pump(owner);
        world.run_for(ms(1000));
        for (from, frame) in &old {
            world.inject(browser, *from, frame);
        }
        assert_eq!(world.found(browser), ["+web", "~web"]);
        world.withdraw(owner, id);
        world.leave(owner, group);
        world.run_for(ms(1000));
        let (before, seen) = (world.mismatches(browser).len(), old.len());
        assert!(before == 1 && seen > 5);
        for (from, frame) in &old {
            world.inject(browser, *from, frame);
        }
        world.run_for(ms(1000));
        assert_eq!(world.found(browser), ["+web", "~web", "-web"]);
        assert_eq!(world.mismatches(browser).len(), before);
        assert!(world.members[browser].node.seen_groups().iter().all(|g| g.members.is_empty()));
    });
}

/// R-CONTROLGROUP-2, R-CONTROLGROUP-5: what cannot be read, or should not be shown, is dropped whole and counted.
#[test]
fn bad_texts_and_bodies_are_dropped_whole() {
    let mut world = World::new(1, 0.0);
    let victim = world.add("victim");
    let control = {
        world.browse(victim, "", "");
        world.run_for(ms(100));
        victim
    };
    let bad: Vec<Vec<u8>> = vec![
        services(5, 1, 1, [record("http", "a\u{1b}[2J")]),
        services(5, 1, 1, [record("http", "ok"), record("http", "")]),
        services(5, 1, 1, [record("a type that is much longer than any is", "x")]),
        services(
            5,
            1,
            1,
            [Record {
                metadata: [("k".into(), "a\nb".into())].into_iter().collect(),
                ..record("t", "x")
            }],
        ),
        notice(5, 1, "a\u{7}b", 8),
        notice(5, 1, "", 8),
        forged(
            FrameKind::ServiceQuery,
            &ServiceQuery { name: "\r".into(), ..ServiceQuery::default() },
        ),
        forged(FrameKind::Service, &()),
        forged(FrameKind::Heartbeat, &()),
        forged(FrameKind::Data, &()),
    ];
    let count = bad.len() as u64;
    for frame in &bad {
        world.inject(control, address(9), frame);
    }
    // 10 kB of a name do not even make a frame; what claims them is cut short.
    let mut long = services(5, 1, 1, [record("http", "x")]);
    let body = long.len() - 2;
    long.truncate(body);
    long.extend([251, 0x10, 0x27]);
    long.extend([b'x'; 900]);
    world.inject(control, address(9), &long);
    assert!(world.found(victim).is_empty());
    let member = &world.members[victim];
    assert!(member.node.seen_groups().is_empty());
    let counters = member.malformed();
    assert_eq!(counters, count + 1);
}

/// R-CONTROLGROUP-6, case 119: two nodes with one identity each hear of the other.
#[test]
fn one_identity_twice_is_told_to_both() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.02);
        let (a, b) = (world.add_as(NodeId(5), 1, "twin a"), world.add_as(NodeId(5), 2, "twin b"));
        world.join(a, "g", 7);
        world.join(b, "g", 7);
        let observer = world.add("observer");
        world.join(observer, "g", 7);
        let told = |w: &World, n: usize| -> Vec<String> {
            let of = |e: &DiagnosisEvent| match e {
                DiagnosisEvent::IdentityConflict { other } => Some(other.name.clone()),
                _ => None,
            };
            w.members[n].diagnosed.iter().filter_map(|(_, event)| of(event)).collect()
        };
        let both = |w: &World| told(w, a) == ["twin b"] && told(w, b) == ["twin a"];
        assert!(world.run_until(ms(10_000), both).is_some());
        world.run_for(ms(30_000));
        assert!(both(&world), "once");
        // Services of both are two owners' services.
        world.browse(observer, "http", "");
        for twin in [a, b] {
            world.announce(twin, Service::new("http", "web", 80));
        }
        world.run_for(ms(3000));
        let mut found = world.found(observer);
        found.sort();
        assert_eq!(found, ["+web", "+web (2)"]);
    });
}

/// R-CONTROLGROUP-4: a late word of an earlier life of one's own is no conflict.
#[test]
fn ones_own_earlier_life_is_no_conflict() {
    let mut world = World::new(1, 0.0);
    let old = world.add_as(NodeId(5), 1, "me");
    world.join(old, "g", 7);
    world.run_for(ms(100));
    world.members[old].dead = true;
    let late = world.seen.clone();
    let new = world.add_as(NodeId(5), 2, "me");
    world.join(new, "g", 7);
    for (from, frame) in &late {
        world.inject(new, *from, frame);
    }
    world.run_for(ms(5000));
    assert!(world.members[new].diagnosed.is_empty(), "{:?}", world.members[new].diagnosed);
}

/// R-SERVICE-3: a forger that claims every name drives a service to the end of its names, and no further.
#[test]
fn who_claims_every_name_cannot_make_a_node_work_without_end() {
    let mut world = World::new(1, 0.0);
    let victim = world.add_as(NodeId(50), 1, "victim");
    let id = world.announce(victim, Service::new("http", "web", 80));
    let mut at = 0;
    for _ in 0..5000 {
        let wanted = world.members[victim].discovered.iter().rev().find_map(|(_, e)| match e {
            DiscoveryEvent::Renamed { to, .. } => Some(to.clone()),
            _ => None,
        });
        let wanted = wanted.unwrap_or_else(|| "web".into());
        at += 1;
        world.inject(victim, address(9), &services(1, 1, at, [record("http", &wanted)]));
        world.run_for(ms(20));
    }
    let member = &world.members[victim];
    assert!(member.discovered.len() < 200, "{}", member.discovered.len());
    assert!(member.discovered.iter().any(|(_, e)| *e == DiscoveryEvent::Refused { service: id }));
    assert!(member.frames < 600, "{}", member.frames);
}

/// R-SERVICE-4: a flood of questions is answered at a bounded rate.
#[test]
fn a_flood_of_questions_is_answered_rarely() {
    let mut world = World::new(1, 0.0);
    let victim = world.add("victim");
    world.announce(victim, Service::new("http", "web", 80));
    world.run_for(ms(2000));
    let before = world.members[victim].frames;
    for n in 0..10_000u32 {
        let query = ServiceQuery {
            node: n.into(),
            name: "web".into(),
            probe: n % 2 == 0,
            kind: "http".into(),
            ..ServiceQuery::default()
        };
        world.inject(victim, address(9), &forged(FrameKind::ServiceQuery, &query));
        if n % 10 == 0 {
            world.run_for(ms(1));
        }
    }
    let answers = world.members[victim].frames - before;
    assert!(answers <= 60, "{answers} answers in a second");
}

/// R-SERVICE-1.
#[test]
fn a_node_refuses_what_cannot_be_announced() {
    let mut world = World::new(1, 0.0);
    let node = world.add("node");
    let now = world.now;
    let node = &mut world.members[node].node;
    let refused = node.announce(now, Service::new("http", "x".repeat(10_000), 80));
    assert!(matches!(refused, Err(ServiceError::Name(_))));
    let id = node.announce(now, Service::new("http", "x", 80)).unwrap();
    let zero = Service::new("http", "x", 80).ttl(Duration::ZERO);
    assert_eq!(node.update(now, id, zero), Err(ServiceError::Ttl(Duration::ZERO)));
}
