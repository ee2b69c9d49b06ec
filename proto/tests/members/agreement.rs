//! Whatever comes and goes: when it is over, all see the same.

use std::time::Duration;

use proptest::prelude::*;

use crate::net::{MILLI, Net, SECOND};
use crate::seeds::{cases, some_seeds};

/// Something that happens to a group.
#[derive(Clone, Debug)]
enum Change {
    Join,
    Leave(usize),
    Crash(usize),
    Restart(usize),
    Sleep(usize),
    Wake(usize),
    Cut(usize),
    Mend,
    Wait(u64),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => Just(Change::Join),
        1 => (0..20usize).prop_map(Change::Leave),
        1 => (0..20usize).prop_map(Change::Crash),
        2 => (0..20usize).prop_map(Change::Restart),
        1 => (0..20usize).prop_map(Change::Sleep),
        1 => (0..20usize).prop_map(Change::Wake),
        1 => (0..20usize).prop_map(Change::Cut),
        1 => Just(Change::Mend),
        4 => (1..4000u64).prop_map(Change::Wait),
    ]
}

fn apply(net: &mut Net, change: &Change, next: &mut u128) {
    let pick = |net: &Net, n: usize| {
        let up: Vec<usize> = (0..net.machines.len()).filter(|at| net.machines[*at].up).collect();
        (up.len() > 2).then(|| up[n % up.len()])
    };
    match change {
        Change::Join if net.machines.len() < 20 => {
            *next += 1;
            net.join(*next, 1);
        }
        Change::Leave(n) => {
            if let Some(at) = pick(net, *n) {
                let (now, m) = (net.now, &mut net.machines[at]);
                m.asleep = false;
                m.node.part(now, m.group);
                net.run(60 * MILLI);
                net.crash(at);
            }
        }
        Change::Crash(n) => {
            if let Some(at) = pick(net, *n) {
                net.crash(at);
            }
        }
        Change::Restart(n) => {
            if let Some(at) = pick(net, *n) {
                net.crash(at);
                let config = net.machines[at].node.config();
                let (id, life, host) =
                    (config.id, config.incarnation, net.machines[at].address.gid);
                net.join_at(id.0, life + 1, host);
            }
        }
        Change::Sleep(n) => {
            if let Some(at) = pick(net, *n) {
                net.machines[at].asleep = true;
            }
        }
        Change::Wake(n) => {
            let at = n % net.machines.len();
            net.machines[at].asleep = false;
        }
        Change::Cut(n) => {
            let n = *n;
            net.cut = Box::new(move |hop| (hop.from < n) != (hop.to < n));
        }
        Change::Mend => net.cut = Box::new(|_| false),
        Change::Wait(ms) => net.run(Duration::from_millis(*ms)),
        Change::Join => {}
    }
}

fn settle(net: &mut Net) {
    net.cut = Box::new(|_| false);
    net.machines.iter_mut().for_each(|m| m.asleep = false);
    net.run(12 * SECOND);
    net.agree();
    net.assert_versions();
    let views: Vec<_> = net.machines.iter().filter(|m| m.up).map(|m| m.told.len()).collect();
    // And nothing goes on changing.
    net.run(20 * SECOND);
    let after: Vec<_> = net.machines.iter().filter(|m| m.up).map(|m| m.told.len()).collect();
    assert_eq!(views, after);
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, ..cases(48) })]

    /// R-MEMBER-10, R-MEMBER-14, R-MEMBER-19: all views are the group, and versions grow by one.
    #[test]
    fn all_views_agree_when_it_is_over(
        seed: u64,
        changes in proptest::collection::vec(change(), 1..40),
    ) {
        let mut net = Net::new(seed, 0.01);
        let mut next = 4;
        for id in 1..=next {
            net.join(id, 1);
        }
        for change in &changes {
            apply(&mut net, change, &mut next);
        }
        settle(&mut net);
    }
}

/// R-MEMBER-15: after much coming and going nothing is left but who is there.
#[test]
fn nothing_grows_with_what_has_been() {
    some_seeds(2, |seed| {
        let mut net = Net::settled(seed, 0.02, 4);
        for life in 2..60 {
            let at = net.machines.len() - 1;
            net.crash(at);
            net.join_at(4, life, Net::host(3));
            net.run(500 * MILLI);
        }
        net.run(10 * SECOND);
        net.agree();
        let m = &net.machines[0];
        let [candidates, departed, rivals] = m.node.membership_side_tables(m.group);
        assert!((candidates, departed, rivals) == (0, 1, 0), "{candidates} {departed} {rivals}");
    });
}

/// The same seed gives the same events at the same time.
#[test]
fn a_run_repeats() {
    let run = |seed| {
        let mut net = Net::settled(seed, 0.1, 10);
        net.crash(3);
        net.run(8 * SECOND);
        let told: Vec<_> = net.machines.iter().map(|m| m.told.clone()).collect();
        (told, net.sent)
    };
    assert_eq!(run(9), run(9));
}
