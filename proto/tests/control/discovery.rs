//! Services that come, change, go, and quarrel about names.

use std::time::Duration;

use qcast_proto::addr::NodeId;
use qcast_proto::discovery::{DiscoveryEvent, Service};

use crate::seeds::{each_seed, some_seeds};
use crate::world::{World, ms};

fn web(port: u16) -> Service {
    Service::new("http", "web", port).meta("path", "/").ttl(Duration::from_secs(6))
}

/// R-SERVICE-2: with every twentieth datagram lost a new service is seen within half a second.
#[test]
fn a_new_service_is_seen_within_half_a_second() {
    let slowest = std::cell::Cell::new(Duration::ZERO);
    some_seeds(50, |seed| {
        let mut world = World::new(seed, 0.05);
        let (owner, browser) = (world.add("owner"), world.add("browser"));
        world.browse(browser, "http", "");
        world.run_for(ms(3000));
        world.announce(owner, web(80));
        let took = world.run_until(ms(5000), |w| !w.found(browser).is_empty());
        let took = took.expect("it is found at last");
        // Three announcements in a row are lost once in eight thousand times.
        assert!(took <= ms(500), "it took {took:?}");
        slowest.set(slowest.get().max(took));
        let DiscoveryEvent::Added { found, .. } = &world.members[browser].discovered[0].1 else {
            panic!("{:?}", world.members[browser].discovered);
        };
        assert_eq!((found.service.port, found.service.value("path")), (80, Some("/")));
        assert_eq!(found.service.address, Some("10.0.0.1".parse().unwrap()));
        assert_eq!(found.node_name, "owner");
    });
    eprintln!("the slowest of them took {:?}", slowest.get());
}

/// R-SERVICE-4: whoever begins to browse finds what is there.
#[test]
fn a_new_browser_finds_what_is_there() {
    some_seeds(20, |seed| {
        let mut world = World::new(seed, 0.05);
        for n in 0..10 {
            let owner = world.add(&format!("owner {n}"));
            world.announce(owner, Service::new("http", format!("web {n}"), 80));
            world.announce(owner, Service::new("other", format!("x {n}"), 80));
        }
        world.run_for(ms(5000));
        let browser = world.add("browser");
        world.browse(browser, "http", "");
        let took = world.run_until(ms(1500), |w| w.found(browser).len() == 10);
        assert!(took.is_some(), "{:?}", world.found(browser));
        world.run_for(ms(40_000));
        assert_eq!(world.found(browser).len(), 10, "{:?}", world.found(browser));
    });
}

/// R-SERVICE-7: one that is withdrawn ends at once, and one that is killed within its time; no ghost comes after.
#[test]
fn services_end_and_stay_ended() {
    some_seeds(20, |seed| {
        let mut world = World::new(seed, 0.05);
        let (owner, victim, browser) =
            (world.add("owner"), world.add("victim"), world.add("browser"));
        world.browse(browser, "http", "");
        let id = world.announce(owner, web(80));
        let mut other = web(81);
        other.name = "victim".into();
        world.announce(victim, other);
        assert!(world.run_until(ms(2000), |w| w.found(browser).len() == 2).is_some());
        world.run_for(ms(20_000));
        assert_eq!(world.found(browser).len(), 2, "{:?}", world.found(browser));
        world.withdraw(owner, id);
        let gone = |name: &'static str| move |w: &World| w.found(browser).contains(&name.into());
        assert!(world.run_until(ms(500), gone("-web")).is_some());
        world.members[victim].dead = true;
        let took = world.run_until(ms(6000), gone("-victim"));
        assert!(took.is_some(), "{:?}", world.found(browser));
        world.run_for(ms(30_000));
        assert_eq!(world.found(browser).len(), 4, "{:?}", world.found(browser));
    });
}

/// R-SERVICE-3: of two that want a name at once, each gets one, whoever hears whom first.
#[test]
fn names_are_given_once() {
    some_seeds(20, |seed| {
        let mut world = World::new(seed, 0.05);
        let nodes: Vec<usize> = (0..5).map(|n| world.add(&format!("n{n}"))).collect();
        for n in &nodes {
            world.announce(*n, web(80));
            let pause = world.rng.u64(0..80);
            world.run_for(ms(pause));
        }
        world.run_for(ms(15_000));
        let mut names: Vec<String> = nodes.iter().flat_map(|n| world.announced(*n)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(names.contains(&"web".into()), "{names:?}");
    });
}

/// R-SERVICE-3: who had the name first keeps it, and both sides are told.
#[test]
fn a_newcomer_takes_the_next_name_and_both_are_told() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.0);
        let (first, second) =
            (world.add_as(NodeId(9), 1, "first"), world.add_as(NodeId(1), 1, "second"));
        world.announce(first, web(80));
        world.run_for(ms(1000));
        world.announce(second, web(81));
        world.run_for(ms(2000));
        assert_eq!(world.announced(first), ["web"]);
        assert_eq!(world.announced(second), ["web (2)"]);
        let told = |n: usize, is: &dyn Fn(&DiscoveryEvent) -> bool| {
            world.members[n].discovered.iter().any(|(_, event)| is(event))
        };
        assert!(told(
            first,
            &|e| matches!(e, DiscoveryEvent::Contested { by, .. } if by.node == NodeId(1))
        ));
        assert!(told(second, &|e| {
            matches!(e, DiscoveryEvent::Renamed { to, by, .. } if to == "web (2)" && by.node == NodeId(9))
        }));
    });
}

/// R-SERVICE-9, R-SERVICE-3: two halves of a network each have a "web"; when they meet the lesser node keeps the name,
/// and everybody sees both.
#[test]
fn halves_that_meet_settle_names() {
    some_seeds(10, |seed| {
        let mut world = World::new(seed, 0.02);
        let low = world.add_as(NodeId(1), 1, "low");
        let high = world.add_as(NodeId(9), 1, "high");
        let (left, right) = (world.add("left"), world.add("right"));
        for n in [high, right] {
            world.members[n].part = 1;
        }
        for (owner, browser, port) in [(low, left, 80), (high, right, 81)] {
            world.browse(browser, "http", "");
            world.announce(owner, web(port));
        }
        world.run_for(ms(20_000));
        for n in [low, high] {
            assert_eq!(world.announced(n), ["web"]);
        }
        for n in [high, right] {
            world.members[n].part = 0;
        }
        world.run_for(ms(10_000));
        assert_eq!(world.announced(low), ["web"]);
        assert_eq!(world.announced(high), ["web (2)"]);
        for browser in [left, right] {
            let mut now = std::collections::BTreeMap::new();
            for (_, event) in &world.members[browser].discovered {
                match event {
                    DiscoveryEvent::Added { found, .. } | DiscoveryEvent::Updated { found, .. } => {
                        now.insert(found.service.name.clone(), found.service.port);
                    }
                    DiscoveryEvent::Removed { found, .. } => {
                        now.remove(&found.service.name);
                    }
                    _ => {}
                }
            }
            let expected = [("web".to_owned(), 80), ("web (2)".to_owned(), 81)];
            assert_eq!(now.into_iter().collect::<Vec<_>>(), expected, "browser {browser}");
        }
    });
}

/// R-SERVICE-9: after a partition everything is found again.
#[test]
fn a_partition_ends_services_and_its_end_brings_them_back() {
    some_seeds(10, |seed| {
        let mut world = World::new(seed, 0.02);
        let (owner, browser) = (world.add("owner"), world.add("browser"));
        world.browse(browser, "http", "");
        world.announce(owner, web(80));
        world.run_for(ms(3000));
        world.members[owner].part = 1;
        assert!(world.run_until(ms(6100), |w| w.found(browser) == ["+web", "-web"]).is_some());
        world.run_for(ms(60_000));
        world.members[owner].part = 0;
        let took = world.run_until(ms(6000), |w| w.found(browser) == ["+web", "-web", "+web"]);
        assert!(took.is_some(), "{:?}", world.found(browser));
    });
}

/// R-SERVICE-8: a service that was killed and is started elsewhere, by another node, is taken over once its
/// first owner was asked and stayed silent.
#[test]
fn a_dead_owner_loses_the_name_after_a_second() {
    some_seeds(10, |seed| {
        let mut world = World::new(seed, 0.02);
        let (old, browser) = (world.add("old"), world.add("browser"));
        world.browse(browser, "http", "");
        world.announce(old, web(80).ttl(Duration::from_secs(3600)));
        world.run_for(ms(3000));
        world.members[old].dead = true;
        let new = world.add("new");
        world.announce(new, web(81));
        let took = world.run_until(ms(3000), |w| w.found(browser) == ["+web", "~web"]);
        let took = took.unwrap_or_else(|| panic!("{:?}", world.found(browser)));
        assert!(took >= ms(1000), "nobody was asked: {took:?}");
        let Some((_, DiscoveryEvent::Updated { found, .. })) =
            world.members[browser].discovered.last()
        else {
            panic!("{:?}", world.members[browser].discovered);
        };
        assert_eq!((found.service.port, &*found.node_name), (81, "new"));
    });
}

/// R-SERVICE-7: a member that is known to have failed takes its services with it.
#[test]
fn a_failed_node_takes_its_services_along() {
    let mut world = World::new(1, 0.0);
    let (owner, browser) = (world.add("owner"), world.add("browser"));
    world.browse(browser, "http", "");
    world.announce(owner, web(80));
    world.run_for(ms(1000));
    world.members[owner].dead = true;
    let now = world.now;
    world.members[browser].node.handle_failure(now, NodeId::of_name("owner"), 1);
    world.pump(browser);
    assert_eq!(world.found(browser), ["+web", "-web"]);
}

/// R-SERVICE-6: changes of what is said of a service, and nothing when nothing changed.
#[test]
fn changes_are_told_once() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.05);
        let (owner, browser) = (world.add("owner"), world.add("browser"));
        world.browse(browser, "", "web");
        let id = world.announce(owner, web(80));
        world.run_for(ms(10_000));
        let now = world.now;
        world.members[owner].node.update(now, id, web(80).meta("load", "9")).unwrap();
        world.pump(owner);
        world.run_for(ms(10_000));
        assert_eq!(world.found(browser), ["+web", "~web"]);
    });
}

/// Own services are found by own searches, as others' are.
#[test]
fn a_node_finds_its_own_services() {
    let mut world = World::new(1, 0.0);
    let node = world.add("node");
    let id = world.announce(node, web(80));
    world.run_for(ms(1000));
    world.browse(node, "http", "");
    assert_eq!(world.found(node), ["+web"]);
    world.run_for(ms(30_000));
    world.withdraw(node, id);
    world.run_for(ms(1000));
    assert_eq!(world.found(node), ["+web", "-web"]);
    let withdrawn = |e: &DiscoveryEvent| *e == DiscoveryEvent::Withdrawn { service: id };
    assert!(world.members[node].discovered.iter().any(|(_, e)| withdrawn(e)));
    // Two of one name in one node.
    world.announce(node, web(80));
    world.announce(node, web(81));
    world.run_for(ms(1000));
    let names = world.announced(node);
    assert!(names.contains(&"web".into()) && names.contains(&"web (2)".into()), "{names:?}");
}
