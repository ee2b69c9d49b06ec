//! Loss, disorder and repetition of every kind, and nothing missing at the end.

use std::time::Duration;

use qcast_proto::wire::frame::FrameKind;

use crate::fabric::{Burst, Fabric};
use crate::machine::Srq;
use crate::publisher::Plan;
use crate::scene::{SECOND, plain};
use crate::seeds::{each_seed, some_seeds};
use crate::truth::Sizes;
use crate::world::World;

/// A stream of `plan` reaches all ordered subscribers whole.
fn run(seed: u64, fabric: Fabric, subscribers: usize, plan: Plan) -> World {
    let mut w = plain(seed, fabric, subscribers, plan);
    w.more(plan.total);
    w.settle(60 * SECOND);
    w.assert_all_got(plan.total);
    check_traffic(&w);
    w
}

/// What was asked for and repaired is in proportion to what was lost or late.
fn check_traffic(w: &World) {
    let t = &w.traffic;
    let troubles = t.data_lost() + t.lost(FrameKind::Nak) + t.late;
    let receivers = w.machines.len() as u64 - 1;
    assert!(t.sent(FrameKind::Nak) <= 2 * troubles + receivers, "{}", w.describe());
    assert!(t.repairs <= 2 * troubles + receivers, "{}", w.describe());
}

#[test]
fn no_loss_needs_no_repair() {
    each_seed(|seed| {
        let w = run(seed, Fabric::default(), 3, Plan::of(20_000));
        assert_eq!(w.traffic.sent(FrameKind::Nak), 0);
        assert_eq!(w.traffic.repairs, 0);
    });
}

#[test]
fn one_percent() {
    each_seed(|seed| {
        run(seed, Fabric::losing(0.01), 3, Plan::of(20_000));
    });
}

#[test]
fn five_percent() {
    each_seed(|seed| {
        run(seed, Fabric::losing(0.05), 3, Plan::of(20_000).sized(Sizes::Mixed));
    });
}

#[test]
fn thirty_percent() {
    each_seed(|seed| {
        run(seed, Fabric::losing(0.3), 2, Plan::of(5_000).sized(Sizes::Mixed));
    });
}

#[test]
fn bursts() {
    each_seed(|seed| {
        let burst = Some(Burst { enter: 0.002, leave: 0.05 });
        let fabric = Fabric { burst, ..Fabric::default() };
        run(seed, fabric, 3, Plan::of(20_000).sized(Sizes::Mixed));
    });
}

#[test]
fn jitter_far_beyond_the_spacing_of_frames() {
    each_seed(|seed| {
        let jitter = Duration::from_micros(15);
        let fabric = Fabric { jitter, loss: 0.01, ..Fabric::default() };
        let mut w = plain(seed, fabric, 3, Plan::of(0).sized(Sizes::Mixed));
        w.more(10_000);
        w.settle(60 * SECOND);
        w.assert_all_got(10_000);
    });
}

#[test]
fn everything_at_once() {
    each_seed(|seed| {
        let fabric = Fabric {
            jitter: Duration::from_micros(5),
            loss: 0.05,
            burst: Some(Burst { enter: 0.001, leave: 0.1 }),
            reorder: 0.02,
            copies: 2,
            corruption: 0.01,
            ..Fabric::default()
        };
        let mut w = plain(seed, fabric, 4, Plan::of(0).sized(Sizes::Mixed));
        w.more(5_000);
        w.settle(60 * SECOND);
        w.assert_all_got(5_000);
    });
}

/// Case 114.
#[test]
fn every_datagram_three_times() {
    each_seed(|seed| {
        let fabric = Fabric { copies: 3, loss: 0.02, ..Fabric::default() };
        let mut w = plain(seed, fabric, 2, Plan::of(0).sized(Sizes::Mixed));
        w.more(5_000);
        w.settle(60 * SECOND);
        w.assert_all_got(5_000);
        // Each frame that came again was counted, and nothing else.
        let t = &w.traffic;
        let data = t.delivered(FrameKind::Data) + t.delivered(FrameKind::Fragment);
        let own = w.publisher().stats.frames * 3 + t.multicast_repairs * 3;
        let counted: u64 = w.machines[1..]
            .iter()
            .flat_map(|m| m.node.streams(m.group))
            .map(|(_, s)| s.frames + s.duplicates)
            .sum();
        assert_eq!(counted, data - own);
    });
}

/// Case 102: repairs and new frames share the line.
#[test]
fn a_publisher_at_full_rate_starves_no_repair() {
    each_seed(|seed| {
        let w = run(seed, Fabric::losing(0.05), 3, Plan::of(100_000));
        // A repair that waited behind new frames would have waited for a window.
        for m in &w.machines[1..] {
            let mut waits = m.repaired.clone();
            waits.sort();
            let p99 = waits[waits.len() * 99 / 100];
            assert!(p99 < Duration::from_millis(15), "{p99:?}");
        }
    });
}

/// A receive queue that runs dry: the loss is one's own, and the repair is for oneself alone.
/// R-NAK-6, R-REPAIR-2.
#[test]
fn a_dry_receive_queue_is_repaired_by_unicast() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 3, Plan::of(0).whole_frames());
        // It takes frames at two thirds of the line rate, and holds few.
        w.limit_receives(1, Srq { depth: 48, cost: Duration::from_nanos(1500) });
        w.more(5_000);
        w.settle(60 * SECOND);
        w.assert_all_got(5_000);
        assert!(w.traffic.repairs > 0);
        assert_eq!(w.traffic.multicast_repairs, 0);
    });
}

/// A datagram with a flipped bit is no datagram.
#[test]
fn corruption_is_loss() {
    each_seed(|seed| {
        let fabric = Fabric { corruption: 0.02, ..Fabric::default() };
        run(seed, fabric, 3, Plan::of(5_000));
    });
}

#[test]
fn many_subscribers_lose_on_their_own() {
    some_seeds(1, |seed| {
        run(seed, Fabric::losing(0.01), 100, Plan::of(500).whole_frames());
    });
}

/// One slow link among fast ones sets the pace of repairs, and nobody loses.
#[test]
fn a_far_subscriber() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.02), 3, Plan::of(0).whole_frames());
        w.far = Some((3, Duration::from_millis(5)));
        w.more(5_000);
        w.settle(60 * SECOND);
        w.assert_all_got(5_000);
    });
}
