//! Two nodes with one identity, and words from the past.

use crate::net::{MILLI, Net, SECOND, beacon};
use crate::seeds::each_seed;

/// Case 119, R-MEMBER-18: two live nodes with one identity are reported at both and at all others, and all count the
/// same one.
#[test]
fn two_with_one_identity_are_told_of_at_both() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.02, 5);
        let double = net.join(3, 1);
        net.run(8 * SECOND);
        assert!(net.told(2, 3).contains(&"conflict"), "{:?}", net.told(2, 3));
        assert!(net.told(double, 3).contains(&"conflict"));
        // Of one life, the greater address counts.
        let counts = net.machines[2].address.max(net.machines[double].address);
        for at in [0, 1, 3, 4] {
            let conflicts = net.told(at, 3).iter().filter(|e| **e == "conflict").count();
            assert_eq!(conflicts, 1, "{:?}", net.told(at, 3));
            assert_eq!(net.sees(at, 3).unwrap().info.address, counts);
        }
        // It is not told again and again.
        net.run(15 * SECOND);
        assert_eq!(net.told(0, 3).iter().filter(|e| **e == "conflict").count(), 1);
    });
}

/// R-MEMBER-18: of two lives on two hosts that both live, the later counts.
#[test]
fn of_two_lives_that_live_the_later_counts() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.02, 5);
        let double = net.join(2, 9);
        net.run(6 * SECOND);
        for at in [0, 2, 3, 4] {
            assert_eq!(net.sees(at, 2).unwrap().info.incarnation, 9);
            assert!(net.told(at, 2).contains(&"conflict"));
        }
        assert!(net.told(1, 2).contains(&"conflict") && net.told(double, 2).contains(&"conflict"));
    });
}

/// R-MEMBER-6: an earlier life's late words change nothing, and are no conflict.
#[test]
fn words_from_the_past_count_for_nothing() {
    let mut net = Net::settled(1, 0.0, 4);
    let (old, at) = (net.machines[1].address, net.now.as_micros());
    net.crash(1);
    net.join_at(2, 2, old.gid);
    net.run(2 * SECOND);
    let before = net.view(0);
    for (incarnation, at) in [(1, at), (1, at - 1000), (0, at + 9)] {
        net.forge(0, old, true, &beacon(2, incarnation, at, old));
    }
    // And of the one that is there, again.
    let new = net.machines[4].address;
    net.forge(0, new, true, &beacon(2, 2, 1, new));
    let stale = net.counters(0).stale;
    net.run(100 * MILLI);
    assert_eq!(net.counters(0).stale, stale + 4);
    net.run(10 * SECOND);
    assert_eq!(Net::lives(&net.view(0)), Net::lives(&before));
    assert_eq!(net.told(0, 2), ["left", "joined"]);
    // One that left does not come back by its own echo.
    let (now, m) = (net.now, &mut net.machines[2]);
    m.node.part(now, m.group);
    let (gone, said) = (m.address, net.now.as_micros());
    net.run(100 * MILLI);
    net.crash(2);
    net.forge(0, gone, true, &beacon(3, 1, said, gone));
    net.run(SECOND);
    assert_eq!(net.told(0, 3), ["left"]);
}

/// R-MEMBER-6: a host whose clock was set back between two lives of a node, which have one name, is a member again
/// soon, whether the first left or died.
#[test]
fn a_clock_that_was_set_back_takes_nobodys_name() {
    for leaves in [true, false] {
        each_seed(|seed| {
            let mut net = Net::settled(seed, 0.02, 5);
            if leaves {
                let (now, m) = (net.now, &mut net.machines[2]);
                m.node.part(now, m.group);
                net.run(200 * MILLI);
            }
            net.crash(2);
            net.join_at(3, 0, Net::host(2));
            net.run_until(15 * SECOND, "the earlier life is a member", |net| {
                [0, 1, 3, 4]
                    .iter()
                    .all(|at| net.sees(*at, 3).is_some_and(|member| member.info.incarnation == 0))
            });
            net.run(5 * SECOND);
            net.agree();
            for at in [0, 1, 3, 4] {
                assert!(net.told(at, 3).ends_with(&["joined"]), "{:?}", net.told(at, 3));
                assert!(!net.told(at, 3).contains(&"conflict"));
            }
        });
    }
}

/// R-MEMBER-18, R-MEMBER-6: of two nodes with one identity the one that counts is stopped, as everybody was told to
/// do; the other is a member then.
#[test]
fn the_other_of_two_counts_when_the_first_is_stopped() {
    each_seed(|seed| {
        let mut net = Net::settled(seed, 0.02, 5);
        let double = net.join(2, 9);
        net.run(6 * SECOND);
        net.crash(double);
        net.run_until(15 * SECOND, "the one that is left is a member", |net| {
            [0, 2, 3, 4]
                .iter()
                .all(|at| net.sees(*at, 2).is_some_and(|member| member.info.incarnation == 1))
        });
        net.run(5 * SECOND);
        net.agree();
    });
}
