//! Keys and paths that differ.

use qcast_proto::addr::{NodeId, PKey};
use qcast_proto::diagnosis::{DiagnosisEvent, PathDifference, key_check};
use qcast_proto::wire::notice::Checks;

use crate::seeds::each_seed;
use crate::world::{World, checks, key, ms};

fn names(world: &World, index: usize) -> Vec<String> {
    let mut names: Vec<_> = world.mismatches(index).into_iter().map(|(name, ..)| name).collect();
    names.sort();
    names
}

/// R-KEY-2, R-KEY-3, case 21: sixteen members, one with another key. He learns of all, and all of him, once.
#[test]
fn a_wrong_key_is_named_by_everybody_and_names_them() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.05);
        for n in 0..15 {
            let index = world.add(&format!("n{n:02}"));
            world.join(index, "g", 7);
            world.run_for(ms(30));
        }
        world.run_for(ms(8000));
        let stranger = world.add("stranger");
        world.join(stranger, "g", 8);
        let took = world.run_until(ms(2000), |w| {
            w.mismatches(stranger).len() == 15 && (0..15).all(|n| w.mismatches(n).len() == 1)
        });
        let took = took.unwrap_or_else(|| {
            panic!("after 2 s: {:?}", (0..16).map(|n| names(&world, n)).collect::<Vec<_>>())
        });
        eprintln!("seed {seed}: everybody knew after {took:?}");
        let (theirs, ours) = (key_check("g", key(7)), key_check("g", key(8)));
        assert!(world.mismatches(stranger).iter().all(|m| (m.1, m.2) == (theirs, ours)));
        assert_eq!(world.mismatches(3), [("stranger".into(), ours, theirs)]);
        // He is not told fifteen times.
        let told = world.members[stranger].diagnosed.len();
        assert!(told <= 3, "fifteen members are told of in {told} events");
        // Once, however long it goes on.
        world.run_for(ms(60_000));
        assert_eq!(world.mismatches(stranger).len(), 15);
        assert!((0..15).all(|n| world.mismatches(n).len() == 1));
    });
}

/// R-KEY-5: who corrects himself is no longer told of, and would be told of again.
#[test]
fn a_corrected_key_is_told_and_a_second_fault_too() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.02);
        let (a, b) = (world.add("a"), world.add("b"));
        world.join(a, "g", 7);
        let wrong = world.join(b, "g", 8);
        assert!(world.run_until(ms(2000), |w| w.mismatches(a).len() == 1).is_some());
        assert!(world.run_until(ms(2000), |w| w.mismatches(b).len() == 1).is_some());
        world.leave(b, wrong);
        let right = world.join(b, "g", 7);
        let corrected = |w: &World, n: usize| {
            let is = |e: &DiagnosisEvent| matches!(e, DiagnosisEvent::Corrected { .. });
            w.members[n].diagnosed.iter().filter(|(_, event)| is(event)).count()
        };
        assert!(world.run_until(ms(2000), |w| corrected(w, a) == 1).is_some());
        world.run_for(ms(20_000));
        assert_eq!((world.mismatches(a).len(), corrected(&world, a)), (1, 1));
        world.leave(b, right);
        world.join(b, "g", 9);
        assert!(world.run_until(ms(2000), |w| w.mismatches(a).len() == 2).is_some());
    });
}

/// R-KEY-5: one who was killed is forgotten; his next life with the right key is nobody's concern.
#[test]
fn a_restart_with_the_right_key_is_quiet() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.02);
        let a = world.add("a");
        world.join(a, "g", 7);
        let b = world.add_as(NodeId(5), 1, "b");
        world.join(b, "g", 8);
        assert!(world.run_until(ms(2000), |w| w.mismatches(a).len() == 1).is_some());
        world.members[b].dead = true;
        world.run_for(ms(300));
        let again = world.add_as(NodeId(5), 2, "b");
        world.join(again, "g", 7);
        world.run_for(ms(30_000));
        assert_eq!(world.mismatches(a).len(), 1);
        assert_eq!(world.mismatches(again).len(), 0);
        let groups = world.members[a].node.seen_groups();
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(groups[0].members.len(), 1, "{groups:?}");
    });
}

/// R-KEY-4: partition, multicast address and MTU.
#[test]
fn paths_that_differ_are_told_with_both_values() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.02);
        let (a, b) = (world.add("a"), world.add("b"));
        let ours = checks("g", 7);
        world.join_with(a, "g", ours);
        let theirs = Checks::of("g", key(7), PKey(0x8001), "239.192.9.9".parse().unwrap(), 2048);
        world.join_with(b, "g", theirs);
        let told = |w: &World, n: usize| -> Vec<PathDifference> {
            let of = |e: &DiagnosisEvent| match e {
                DiagnosisEvent::PathMismatch { what, .. } => Some(*what),
                _ => None,
            };
            w.members[n].diagnosed.iter().filter_map(|(_, event)| of(event)).collect()
        };
        assert!(
            world.run_until(ms(2000), |w| told(w, a).len() == 3 && told(w, b).len() == 3).is_some()
        );
        assert!(told(&world, a).contains(&PathDifference::Mtu { theirs: 2048, ours: 4096 }));
        assert!(told(&world, b).contains(&PathDifference::Mtu { theirs: 4096, ours: 2048 }));
        assert!(told(&world, a).contains(&PathDifference::Partition {
            theirs: theirs.partition,
            ours: ours.partition
        }));
        assert!(world.mismatches(a).is_empty());
        world.run_for(ms(30_000));
        assert_eq!(told(&world, a).len(), 3);
    });
}

/// R-KEY-2: who is in a group twice, once with the right key, hears it: no mismatch.
#[test]
fn one_of_two_memberships_that_agrees_is_enough() {
    let mut world = World::new(1, 0.0);
    let (a, b) = (world.add("a"), world.add("b"));
    world.join(b, "g", 7);
    world.join(b, "g", 8);
    world.join(a, "g", 8);
    world.run_for(ms(10_000));
    assert_eq!(world.mismatches(a).len() + world.mismatches(b).len(), 0);
}

/// R-CONTROLGROUP-3: what is seen of others' groups, also by one who is in none, at once.
#[test]
fn whoever_asks_hears_of_all_groups() {
    each_seed(|seed| {
        let mut world = World::new(seed, 0.05);
        for n in 0..40 {
            let index = world.add(&format!("n{n}"));
            world.join(index, if n % 2 == 0 { "even" } else { "odd" }, 7);
            if n == 7 {
                // More than one frame takes.
                for g in 0..30 {
                    world.join(index, &format!("group number {g}"), 7);
                }
            }
        }
        world.run_for(ms(30_000));
        let asker = world.add("asker");
        world.members[asker].node.ask_groups(world.now);
        world.pump(asker);
        let took = world.run_until(ms(2000), |w| {
            let seen = w.members[asker].node.seen_groups();
            seen.len() == 32 && seen.iter().map(|g| g.members.len()).sum::<usize>() == 70
        });
        let seen = world.members[asker].node.seen_groups();
        eprintln!("seed {seed}: all groups after {took:?}");
        assert!(took.is_some(), "{} groups", seen.len());
        assert!(seen.iter().all(|group| !group.own));
        assert!(seen.iter().any(|group| group.name == "even" && group.members.len() == 20));
    });
}

/// R-CONTROLGROUP-1: alone, nothing happens and little is sent.
#[test]
fn a_control_group_that_nobody_else_is_in() {
    let mut world = World::new(1, 0.0);
    let a = world.add("a");
    world.join(a, "g", 7);
    world.browse(a, "http", "");
    world.run_for(ms(600_000));
    let member = &world.members[a];
    assert!(member.diagnosed.is_empty() && member.discovered.is_empty());
    assert!(member.frames < 200, "{} frames in ten minutes", member.frames);
}

/// R-SILENCE-3: a node that was stopped forgets nobody when it goes on.
#[test]
fn a_pause_of_ones_own_ends_no_membership() {
    let mut world = World::new(3, 0.0);
    let (a, b) = (world.add("a"), world.add("b"));
    world.join(a, "g", 7);
    world.join(b, "g", 8);
    world.run_for(ms(5000));
    world.members[a].paused = true;
    world.run_for(ms(120_000));
    world.members[a].paused = false;
    world.run_for(ms(10));
    assert_eq!(world.members[a].node.seen_groups().len(), 2);
    world.run_for(ms(20_000));
    assert_eq!(world.mismatches(a).len(), 1);
    let is = |e: &DiagnosisEvent| matches!(e, DiagnosisEvent::Corrected { .. });
    assert!(!world.members[a].diagnosed.iter().any(|(_, e)| is(e)));
}
