//! Liars, and floods of what was never there.

use std::time::Duration;

use qcast_proto::addr::{PeerAddr, Qpn};
use qcast_proto::membership::{MembershipConfig, Word};
use qcast_proto::wire::member::{Digest, Entry, Probe, Roster};

use crate::net::{MILLI, Net, SECOND, beacon};
use crate::seeds::each_seed;

fn stranger(n: u32) -> PeerAddr {
    PeerAddr { gid: Net::host(500 + n as usize / 2), qpn: Qpn::new(50_000 + n), udp_port: 4791 }
}

/// Case 126, R-MEMBER-1: nobody parts for another, renews another, or speaks from an address that is not its own.
#[test]
fn a_peer_cannot_speak_for_another() {
    let mut net = Net::settled(1, 0.0, 4);
    let (liar, victim) = (net.machines[1].address, net.machines[2].address);
    let Word::Beacon(mut bye) = beacon(3, 1, u64::MAX, victim) else { unreachable!() };
    (bye.leaving, bye.fresh) = (true, false);
    // It names the victim's address, and comes from another.
    net.forge(0, liar, true, &Word::Beacon(bye.clone()));
    bye.info = None;
    net.forge(0, liar, true, &Word::Beacon(bye));
    net.forge(0, liar, true, &beacon(77, 1, 9, stranger(1)));
    net.run(100 * MILLI);
    assert_eq!(net.counters(0).spoofed, 3);
    net.run(3 * SECOND);
    net.agree();
    assert!(net.told(0, 3).is_empty());
    // The victim dies, and the liar's word does not keep it.
    net.crash(2);
    for _ in 0..60 {
        let at = net.now.as_micros();
        net.forge(0, liar, true, &beacon(3, 1, at, liar));
        net.run(100 * MILLI);
    }
    // The claim is of a live node with that identity, from another address: it is that node now, and says so.
    let told = net.told(0, 3);
    assert!(told.iter().any(|e| ["updated", "failed"].contains(e)), "{told:?}");
}

/// R-MEMBER-1, R-MEMBER-5: a roster introduces, and neither makes members nor removes any.
#[test]
fn a_roster_makes_no_members() {
    let mut net = Net::settled(2, 0.0, 4);
    let from = net.machines[1].address;
    for bucket in 0..64u8 {
        let entries = (0..8)
            .map(|n| Entry { node: 1000 + n, incarnation: 1, address: stranger(n as u32).into() })
            .collect();
        let roster = Roster { node: 2, bucket, ask: true, entries };
        net.forge(0, from, false, &Word::Roster(roster.clone()));
        net.forge(0, stranger(3), false, &Word::Roster(roster));
    }
    net.forge(0, from, false, &Word::Digest(Digest { node: 2, sums: vec![7; 64] }));
    net.run(10 * SECOND);
    net.agree();
    assert!(net.machines[0].told.is_empty());
    let [candidates, ..] = side_tables(&net, 0);
    assert_eq!(candidates, 0);
}

fn side_tables(net: &Net, machine: usize) -> [usize; 3] {
    let m = &net.machines[machine];
    m.node.membership_side_tables(m.group)
}

/// R-MEMBER-15, R-MEMBER-16: a flood of forged members is bounded, counted, and gone when none answers; those that
/// are real stay.
#[test]
fn forged_members_are_bounded_and_soon_gone() {
    each_seed(|seed| {
        let mut net = Net::new(seed, 0.0);
        net.config = MembershipConfig::default();
        net.config.max_members = 64;
        net.config.max_per_host = 16;
        for n in 0..4 {
            net.join(n + 1, 1);
        }
        net.run(4 * SECOND);
        for round in 0..100u64 {
            for n in 0..20u32 {
                let id = 1000 + u128::from(round) * 20 + u128::from(n);
                let from = stranger(n);
                net.forge(0, from, true, &beacon(id, 1, round + 1, from));
                // And from one address all of them.
                net.forge(0, stranger(0), true, &beacon(id + 100_000, 1, round + 1, stranger(0)));
            }
            net.run(20 * MILLI);
            assert!(net.view(0).members.len() <= 64);
            assert!(side_tables(&net, 0)[0] <= 256);
        }
        assert!(net.counters(0).refused > 1000);
        net.run(Duration::from_secs(8));
        net.agree();
        assert!(side_tables(&net, 0)[1] <= 1024);
    });
}

/// R-MEMBER-16: even if they go on beaconing, members that never answer are gone, and stay barred for a while.
#[test]
fn who_never_answers_is_no_member() {
    let mut net = Net::settled(1, 0.0, 3);
    let mut there = Vec::new();
    for _ in 0..30 {
        let at = net.now.as_micros();
        net.forge(0, stranger(9), true, &beacon(99, 1, at, stranger(9)));
        net.run(SECOND);
        there.push(net.sees(0, 99).is_some());
    }
    assert!(there[0] && !there[12..].contains(&true), "{there:?}");
}

/// R-MEMBER-5, R-MEMBER-15: questions from strangers are answered, and change nothing; a flood of them is bounded.
#[test]
fn questions_of_strangers_change_nothing() {
    let mut net = Net::settled(1, 0.0, 3);
    for n in 0..2000u32 {
        let probe = Probe {
            node: u128::from(n) + 500,
            to: 1,
            suspect: true,
            unheard: true,
            ..Probe::default()
        };
        net.forge(0, stranger(n), false, &Word::Probe(probe));
    }
    net.run(2 * SECOND);
    assert!(side_tables(&net, 0)[0] <= 256);
    assert_eq!((net.machines[0].rejoins, net.counters(0).refuted), (0, 0));
    net.run(4 * SECOND);
    net.agree();
    // One that is meant for another is not answered.
    let answers = net.counters(0).answers;
    let probe = Probe { node: 900, to: 2, ..Probe::default() };
    net.forge(0, stranger(1), false, &Word::Probe(probe));
    net.run(10 * MILLI);
    assert!(net.counters(0).answers <= answers + 3);
}
