//! Where a subscription begins, and what becomes of frames that are no longer retained.

use std::time::Duration;

use qcast_proto::subscribe::{LossCause, Start, SubscriberConfig};
use qcast_proto::wire::frame::FrameKind;

use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, is_joined, is_lost, is_publisher_back, is_publisher_lost};
use crate::scene::{plain, publishing, scene, with};
use crate::seeds::each_seed;
use crate::truth::Sizes;
use crate::world::World;

use qcast_proto::publish::{FlowPolicy, PublisherConfig};

/// Case 103: what is older than the window is told with its range, and the stream goes on.
/// R-LOSS-1, R-HEARTBEAT-1.
#[test]
fn a_loss_older_than_the_window() {
    each_seed(|seed| {
        let unlimited = publishing(|c| {
            c.policy = FlowPolicy::Unlimited;
            c.window = 64;
        });
        let plan = Plan::of(0).every(Duration::from_micros(20)).whole_frames();
        let mut w = scene(seed, Fabric::default(), 2, unlimited, SubscriberConfig::default(), plan);
        w.run_for(SECOND);
        w.more(10_000);
        w.run_for(Duration::from_millis(20));
        w.cut_off(&[1]);
        w.run_for(Duration::from_millis(100));
        w.heal();
        w.settle(10 * SECOND);
        let s = w.subscriber(1);
        // The publisher goes on meanwhile: a few frames more fall out while the first are asked for.
        assert!((1..=4).contains(&s.count(is_lost)), "{:?}", s.notices);
        let lost = s.newest().expect("joined").lost[0];
        assert_eq!(lost.cause, LossCause::NotRetained);
        assert!(lost.last - lost.first > 4_000, "{lost:?}");
        assert_eq!(s.messages() + s.lost_frames(), 10_000);
        assert_eq!(w.subscriber(2).messages(), 10_000);
    });
}

/// A stream that is younger than a subscription is received from its first frame, though the first
/// words of it are lost.
/// R-JOIN-2.
#[test]
fn a_young_stream_is_received_from_its_first_frame() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::losing(0.05));
        w.add();
        for _ in 0..3 {
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
        }
        w.run_for(Duration::from_millis(700));
        let start = w.now;
        let deaf = start + Duration::from_micros(100 + seed * 40 % 500);
        w.rule(move |f| f.now < deaf);
        w.publish(0, PublisherConfig::default(), Plan::of(800).whole_frames());
        w.settle(10 * SECOND);
        w.assert_all_got(800);
    });
}

/// Announcements are all lost: the question brings the description.
/// R-JOIN-1.
#[test]
fn the_announcement_is_asked_for() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::default());
        w.add();
        let m = w.add();
        w.subscribe(m, SubscriberConfig::default());
        w.rule(|f| f.kind == FrameKind::Announce && f.multicast);
        w.publish(0, PublisherConfig::default(), Plan::of(900).whole_frames());
        w.settle(10 * SECOND);
        w.assert_all_got(900);
    });
}

/// R-JOIN-3.
#[test]
fn a_late_joiner_begins_at_the_live_edge() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(50)).sized(Sizes::Mixed);
        let mut w = plain(seed, Fabric::losing(0.02), 2, plan);
        w.more(20_000);
        w.run_for(Duration::from_millis(300));
        let late = w.add();
        let head = w.publisher().truth.borrow().sent;
        w.subscribe(late, SubscriberConfig::default());
        w.settle(20 * SECOND);
        let s = w.subscriber(late);
        assert_eq!(s.lost_frames(), 0, "{:?}", s.newest().map(|f| &f.lost));
        let start = s.newest().expect("joined").start.expect("began");
        assert!((head.saturating_sub(10)..head + 400).contains(&start), "{head} {start}");
        assert_eq!(w.subscriber(1).messages(), 20_000);
    });
}

/// R-JOIN-4.
#[test]
fn history_begins_with_what_is_retained() {
    for (n, expected) in [(10, 1_990), (100_000, 2_000 - 256)] {
        each_seed(|seed| {
            let window = publishing(|c| c.window = 256);
            let plan = Plan::of(0).whole_frames();
            let fabric = Fabric::losing(0.02);
            let mut w = scene(seed, fabric, 1, window, SubscriberConfig::default(), plan);
            w.more(2_000);
            w.settle(10 * SECOND);
            let late = w.add();
            w.subscribe(late, with(|c| c.start = Start::History(n)));
            w.run_for(SECOND);
            w.settle(10 * SECOND);
            let s = w.subscriber(late);
            assert_eq!(s.newest().expect("joined").start, Some(expected));
            assert_eq!((s.messages(), s.lost_frames()), (2_000 - expected, 0));
        });
    }
}

/// A subscription that is opened in a node which has heard the stream, and not followed it.
#[test]
fn a_stream_that_nobody_wanted_is_joined_at_its_live_edge() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(50)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 1, plan);
        let m = w.add();
        w.subscribe(m, crate::scene::topic("something else"));
        w.more(30_000);
        w.run_for(Duration::from_millis(500));
        let head = w.publisher().truth.borrow().sent;
        assert!(head > 5_000);
        w.subscribe(m, SubscriberConfig::default());
        w.run_for(Duration::from_millis(100));
        let third = w.subscribe(m, with(|c| c.start = Start::History(50)));
        w.settle(10 * SECOND);
        let s = &w.machines[m].subscribers[1];
        assert_eq!(s.lost_frames(), 0, "{:?}", s.newest().map(|f| &f.lost));
        let start = s.newest().expect("joined").start.expect("began");
        assert!((head - 5..head + 50).contains(&start), "{start} {head}");
        assert_eq!(w.machines[m].subscribers[third].lost_frames(), 0);
    });
}

/// History for the first subscription of a topic in a node that knows the stream.
#[test]
fn history_of_a_stream_that_nobody_wanted() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 1, Plan::of(0).whole_frames());
        let m = w.add();
        w.subscribe(m, crate::scene::topic("something else"));
        w.more(500);
        w.settle(SECOND);
        w.run_for(SECOND);
        let s = w.subscribe(m, with(|c| c.start = Start::History(50)));
        w.run_for(SECOND);
        w.settle(SECOND);
        assert_eq!(w.machines[m].subscribers[s].messages(), 50);
    });
}

/// A partition that outlasts every memory of the stream: nothing comes twice, and what was missed is told.
/// R-SILENCE-2.
#[test]
fn a_long_partition_repeats_nothing() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_millis(20)).whole_frames();
        let mut w = plain(seed, Fabric::losing(0.01), 2, plan);
        w.more(6_000);
        w.run_for(5 * SECOND);
        w.cut_off(&[1]);
        w.run_for(60 * SECOND);
        let s = w.subscriber(1);
        assert_eq!(s.count(is_publisher_lost), 1);
        w.heal();
        w.settle(100 * SECOND);
        let s = w.subscriber(1);
        assert_eq!(s.messages() + s.lost_frames(), 6_000, "{:?}", s.notices);
        assert_eq!((s.count(is_publisher_back), s.count(is_joined)), (1, 1), "{:?}", s.notices);
        assert_eq!(w.subscriber(2).messages(), 6_000);
    });
}

/// Many join at once, in the middle of a stream.
#[test]
fn many_join_at_once() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(100)).whole_frames();
        let mut w = plain(seed, Fabric::losing(0.01), 1, plan);
        // The publisher's receive queue is modest.
        w.limit_receives(0, crate::machine::Srq { depth: 256, cost: Duration::from_nanos(500) });
        w.more(2_000);
        w.run_for(Duration::from_millis(100));
        for _ in 0..150 {
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
        }
        w.run_for(Duration::from_millis(600));
        assert_eq!(w.publisher().stats.receivers, 151);
        w.settle(20 * SECOND);
        let lost = w.subscribers().filter(|s| s.lost_frames() > 0).count();
        assert_eq!(lost, 0);
    });
}
