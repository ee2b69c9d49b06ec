//! What the control group costs.

use std::time::Duration;

use qcast_proto::discovery::Service;

use crate::world::{World, ms};

fn frames(world: &World) -> u64 {
    world.members.iter().map(|m| m.frames).sum()
}

/// R-CONTROLGROUP-3: when nothing happens all nodes together send about fifty notices a second at most, whatever
/// their number.
#[test]
fn notices_are_bounded_whatever_the_number_of_nodes() {
    for nodes in [16u64, 100, 250] {
        let mut world = World::new(nodes, 0.0);
        for n in 0..nodes {
            let index = world.add(&format!("n{n}"));
            world.join(index, "g", 7);
        }
        world.run_for(ms(60_000));
        let (before, seconds) = (frames(&world), 60);
        world.run_for(Duration::from_secs(seconds));
        let rate = (frames(&world) - before) as f64 / seconds as f64;
        eprintln!("{nodes} nodes: {rate:.1} notices a second in all");
        assert!(rate < 65.0, "{nodes} nodes: {rate}");
        let size = world.members.iter().map(|m| m.bytes).sum::<u64>() / frames(&world);
        assert!(size < 150, "{size} bytes each");
    }
}

/// R-KEY-3: in a large group that a stranger joins some answer, and not all.
#[test]
fn few_of_many_answer_a_stranger() {
    let mut world = World::new(5, 0.02);
    for n in 0..300 {
        let index = world.add(&format!("n{n}"));
        world.join(index, "g", 7);
    }
    world.run_for(ms(30_000));
    let before = frames(&world);
    let stranger = world.add("stranger");
    world.join(stranger, "g", 8);
    world.run_for(ms(2000));
    let answers = frames(&world) - before;
    let (known, knows) = (
        (0..300).filter(|n| !world.mismatches(*n).is_empty()).count(),
        world.mismatches(stranger).len(),
    );
    eprintln!("{answers} notices; {known} know of the stranger, and the stranger of {knows}");
    assert_eq!(known, 300);
    assert!(knows >= 8, "{knows}");
    assert!(answers < 300, "{answers}");
}

/// R-SERVICE-4: a question is answered by who owns what is asked for, once for all who ask, and what is known is not
/// told again.
#[test]
fn questions_are_answered_once() {
    let mut world = World::new(2, 0.0);
    let owners: Vec<usize> = (0..4).map(|n| world.add(&format!("owner {n}"))).collect();
    for (n, owner) in owners.iter().enumerate() {
        world.announce(*owner, Service::new("http", format!("web {n}"), 80));
    }
    let others: Vec<usize> = (0..40).map(|n| world.add(&format!("other {n}"))).collect();
    world.run_for(ms(4000));
    let sent = |world: &World| -> Vec<u64> {
        owners.iter().map(|o| world.members[*o].node.control_counters().1.sent).collect()
    };
    let before = sent(&world);
    for other in &others {
        world.browse(*other, "http", "");
    }
    world.run_for(ms(2000));
    for other in &others {
        assert_eq!(world.found(*other).len(), 4);
    }
    let more: Vec<u64> = sent(&world).iter().zip(&before).map(|(a, b)| a - b).collect();
    eprintln!("40 nodes asked at once; records sent by each owner: {more:?}");
    assert!(more.iter().all(|n| (1..=3).contains(n)), "{more:?}");
    let asked: u64 =
        others.iter().map(|o| world.members[*o].node.control_counters().1.queries).sum();
    assert!(asked < 130, "{asked} questions");
}

/// R-CONTROLGROUP-3: many services of a node share frames.
#[test]
fn records_share_frames() {
    let mut world = World::new(2, 0.0);
    let (owner, browser) = (world.add("owner"), world.add("browser"));
    world.browse(browser, "http", "");
    for n in 0..60 {
        world.announce(owner, Service::new("http", format!("web {n}"), 80));
    }
    world.run_for(ms(5000));
    assert_eq!(world.found(browser).len(), 60);
    let before = (world.members[owner].frames, world.members[owner].node.control_counters().1.sent);
    world.run_for(ms(60_000));
    let member = &world.members[owner];
    let frames = member.frames - before.0;
    let records = member.node.control_counters().1.sent - before.1;
    eprintln!("{records} records in {frames} frames");
    assert!(records >= 4 * frames, "{records} records in {frames} frames");
    assert_eq!(world.found(browser).len(), 60, "{:?}", world.found(browser));
}
