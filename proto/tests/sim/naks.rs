//! How many ask, how often, and when they stop.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::subscribe::LossCause;
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::FrameKind;

use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, is_lost, plain};
use crate::seeds::{each_seed, some_seeds};

/// NAKs that reach the publisher, and multicast repairs, when all of `group` lose the same frame. Before
/// that, all lose so many others, so that the publisher may learn how many lose together.
fn implosion(seed: u64, group: usize, before: u64) -> (u64, u64) {
    let jitter = Duration::from_micros(4);
    let fabric = Fabric { jitter, ..Fabric::default() };
    let plan = Plan::of(0).every(Duration::from_micros(10)).whole_frames();
    let mut w = plain(seed, fabric, group, plan);
    // Everybody's round trip is known.
    w.run_for(SECOND);
    w.rule(move |f| f.is_data() && !f.repair && f.sequence.0 < 3 * before && f.sequence.0 % 3 == 0);
    w.more(3 * before);
    w.settle(10 * SECOND);
    w.run_for(SECOND);
    let warm = w.traffic.clone();
    w.rule(move |f| f.is_first_of(3 * before + 7));
    w.more(30);
    w.settle(10 * SECOND);
    w.assert_all_got(3 * before + 30);
    let naks = w.traffic.delivered(FrameKind::Nak) - warm.delivered(FrameKind::Nak);
    (naks, w.traffic.multicast_repairs - warm.multicast_repairs)
}

/// Case 96, R-NAK-2, R-REPAIR-3: the mean over the runs of NAKs for a frame that all of a group lose.
fn mean_naks(group: usize, before: u64, few: u64) -> f64 {
    let total = Rc::new(Cell::new((0, 0)));
    some_seeds(few, |seed| {
        let (naks, repairs) = implosion(seed, group, before);
        assert!((1..=2).contains(&repairs), "{repairs} multicast repairs");
        let (n, runs) = total.get();
        total.set((n + naks, runs + 1));
    });
    let (naks, runs) = total.get();
    let mean = naks as f64 / f64::from(runs);
    println!("group {group}, {before} losses before: {mean:.2} NAKs a loss, {runs} runs");
    mean
}

#[test]
fn a_hundred_that_lose_the_same_frame_ask_a_few_times() {
    let mean = mean_naks(100, 0, 20);
    assert!(mean <= 6.5, "{mean}");
}

#[test]
fn ten_that_lose_the_same_frame_ask_a_few_times() {
    let mean = mean_naks(10, 0, 20);
    assert!(mean <= 4.0, "{mean}");
}

/// A large group is not expected to lose a frame as one; when it does, more ask, the first time.
#[test]
fn a_thousand_that_lose_the_same_frame_ask_a_few_times() {
    let mean = mean_naks(1000, 0, 2);
    assert!(mean <= 45.0, "{mean}");
    let mean = mean_naks(1000, 12, 2);
    assert!(mean <= 18.0, "{mean}");
}

/// The last frame of a stream is known to be lost from a heartbeat, which all hear at once.
#[test]
fn a_hundred_that_lose_the_last_frame_ask_a_few_times() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 100, Plan::of(0).whole_frames());
        w.run_for(SECOND);
        w.rule(|f| f.is_first_of(2));
        w.more(3);
        w.settle(10 * SECOND);
        w.assert_all_got(3);
        let naks = w.traffic.delivered(FrameKind::Nak);
        assert!(naks <= 16, "{naks} NAKs");
    });
}

/// Case 98: neighbours that change places are no loss.
#[test]
fn a_swap_of_neighbours_is_not_asked_for() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(40)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 3, plan);
        // 55 µs late: after the one that follows, and before the next.
        w.fabric.reorder = 0.1;
        w.fabric.reorder_by = Duration::from_micros(55);
        w.fabric.latency = Duration::from_micros(100);
        w.run_for(SECOND);
        w.more(2_000);
        w.settle(10 * SECOND);
        w.assert_all_got(2_000);
        assert!(w.traffic.late > 100);
        assert_eq!(w.traffic.sent(FrameKind::Nak), 0);
    });
}

/// Case 99: the way of repairs is dead.
#[test]
fn one_frame_is_not_asked_for_for_ever() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 2, plan);
        w.rule(|f| f.to == 1 && f.is_data() && (20..23).contains(&f.sequence.0));
        w.more(10_000);
        w.settle(30 * SECOND);
        let s = w.subscriber(1);
        assert_eq!(s.messages(), 10_000 - 3);
        // One event for the whole gap.
        assert_eq!(s.count(is_lost), 1, "{:?}", s.notices);
        let lost = s.newest().expect("joined").lost[0];
        assert_eq!((lost.first, lost.last, lost.cause), (20, 22, LossCause::Unrepaired));
        assert!(w.traffic.sent(FrameKind::Nak) <= 50, "{:?}", w.traffic);
        assert_eq!(w.subscriber(2).messages(), 10_000);
    });
}

/// Case 99, the other way: NAKs never reach the publisher.
#[test]
fn a_publisher_that_hears_nothing_is_not_asked_for_ever() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 2, plan);
        w.rule(|f| f.is_first_of(20) || (f.kind == FrameKind::Nak));
        w.more(6_000);
        w.settle(30 * SECOND);
        for s in w.subscribers() {
            assert_eq!((s.messages(), s.count(is_lost)), (5_999, 1));
        }
        assert!(w.traffic.sent(FrameKind::Nak) <= 90, "{:?}", w.traffic);
    });
}

/// Case 107: the only message is lost, and so is the whole of what was sent after it for a while.
#[test]
fn the_last_message_is_recovered_soon() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 3, Plan::of(0));
        w.run_for(SECOND);
        let gone = w.now + Duration::from_millis(1);
        w.rule(move |f| f.now < gone);
        w.more(1);
        let sent = w.now;
        w.settle(SECOND);
        w.assert_all_got(1);
        let took = w.now.saturating_since(sent);
        assert!(took < Duration::from_millis(15), "{took:?}");
    });
}

/// R-NAK-3: all gaps of a window go in few datagrams.
#[test]
fn all_gaps_go_in_one_request() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(1)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 1, plan);
        w.run_for(SECOND);
        let until = Rc::new(Cell::new(Instant::ZERO));
        let dead = until.clone();
        // Every other frame of a run, found when the link comes back.
        w.rule(move |f| f.is_data() && !f.repair && f.sequence.0 < 80 && f.sequence.0 % 2 == 0);
        w.rule(move |f| f.from == 1 && f.now < dead.get());
        w.more(200);
        w.settle(SECOND);
        w.assert_all_got(200);
        let naks = w.traffic.sent(FrameKind::Nak);
        assert!(naks <= 40, "{naks} for 40 gaps");
    });
}
