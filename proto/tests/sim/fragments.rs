//! Messages larger than a frame.

use std::time::Duration;

use qcast_proto::publish::{FlowPolicy, PublisherConfig};
use qcast_proto::subscribe::{Reliability, SubscriberConfig};

use crate::fabric::{Burst, Fabric};
use crate::publisher::Plan;
use crate::scene::{SECOND, plain, publishing, reliability, scene};
use crate::seeds::{each_seed, some_seeds};
use crate::truth::Sizes;

/// A message of 64 fragments.
const LARGE: Sizes = Sizes::Fixed(64 * (1024 - 44));

/// Case 115: fragments are lost once, of one subscriber.
#[test]
fn lost_fragments_are_repaired() {
    for lost in [0..1, 63..64, 5..61, 0..64] {
        for kind in [Reliability::Ordered, Reliability::Unordered] {
            each_seed(|seed| {
                let publisher = PublisherConfig::default();
                let plan = Plan::of(0).sized(LARGE);
                let fabric = Fabric::default();
                let mut w = scene(seed, fabric, 2, publisher, reliability(kind), plan);
                let lost = lost.clone();
                w.rule(move |f| {
                    f.to == 1 && f.is_data() && !f.repair && lost.contains(&f.sequence.0)
                });
                w.more(3);
                w.settle(5 * SECOND);
                w.assert_all_got(3);
            });
        }
    }
}

/// Case 115: fragments that are lost for good take their message with them, and no other.
/// R-FRAG-4.
#[test]
fn fragments_lost_for_good_are_one_gap() {
    for lost in [64..65, 127..128, 70..120, 64..128] {
        for kind in [Reliability::Ordered, Reliability::Unordered] {
            some_seeds(1, |seed| {
                let publisher = PublisherConfig::default();
                let plan = Plan::of(0).sized(LARGE);
                let fabric = Fabric::default();
                let mut w = scene(seed, fabric, 2, publisher, reliability(kind), plan);
                let gone = lost.clone();
                w.rule(move |f| f.to == 1 && f.is_data() && gone.contains(&f.sequence.0));
                w.more(3);
                w.settle(20 * SECOND);
                let s = w.subscriber(1);
                assert_eq!((s.messages(), w.subscriber(2).messages()), (2, 3));
                let told = &s.newest().expect("joined").lost;
                let told: Vec<_> = told.iter().map(|l| l.first..l.last + 1).collect();
                assert_eq!(told, std::slice::from_ref(&lost), "{kind:?}");
            });
        }
    }
}

/// Many messages of two fragments at once, each lacking one, for subscriptions without order.
#[test]
fn many_incomplete_messages_at_once() {
    each_seed(|seed| {
        let unordered = reliability(Reliability::Unordered);
        let plan = Plan::of(0).sized(Sizes::Fixed(1500));
        let publisher = PublisherConfig::default();
        let mut w = scene(seed, Fabric::losing(0.2), 2, publisher, unordered, plan);
        w.more(2_000);
        w.settle(20 * SECOND);
        w.assert_all_got(2_000);
    });
}

#[test]
fn sixteen_mebibytes() {
    some_seeds(1, |seed| {
        let plan = Plan { mtu: 4096, ..Plan::of(0).sized(Sizes::Fixed(16 << 20)) };
        let mut w = plain(seed, Fabric::losing(0.01), 2, plan);
        w.subscribe(1, reliability(Reliability::Unordered));
        w.more(2);
        w.settle(20 * SECOND);
        w.assert_all_got(2);
    });
}

/// Bursts, mixed sizes, every reliability.
#[test]
fn mixed_sizes_through_bursts() {
    each_seed(|seed| {
        let burst = Some(Burst { enter: 0.005, leave: 0.1 });
        let fabric = Fabric { burst, loss: 0.01, ..Fabric::default() };
        let plan = Plan::of(0).every(Duration::from_micros(5)).sized(Sizes::Mixed);
        let mut w = plain(seed, fabric, 3, plan);
        for kind in [Reliability::Unordered, Reliability::BestEffort, Reliability::Latest] {
            for m in 1..=3 {
                w.subscribe(m, reliability(kind));
            }
        }
        w.run_for(SECOND);
        w.more(5_000);
        w.settle(20 * SECOND);
        w.run_for(SECOND);
        for m in &w.machines[1..] {
            let got: Vec<_> = m.subscribers.iter().map(|s| s.messages()).collect();
            assert_eq!(got[..2], [5_000; 2]);
        }
    });
}

/// The newest message is in fragments, and some of them are lost: a latest-only subscriber gets it.
#[test]
fn the_latest_large_message_is_caught() {
    for lost in [0..1, 63..64, 5..61, 0..64, 0..0] {
        each_seed(|seed| {
            let latest = reliability(Reliability::Latest);
            let plan = Plan::of(0).every(Duration::from_millis(1)).sized(LARGE);
            let publisher = PublisherConfig::default();
            let mut w = scene(seed, Fabric::default(), 2, publisher, latest, plan);
            let lost = lost.clone();
            w.rule(move |f| {
                let at = f.sequence.0;
                f.is_data() && !f.repair && at >= 64 && lost.contains(&(at % 64))
            });
            w.more(3);
            w.settle(2 * SECOND);
            assert!(w.subscribers().all(|s| s.newest().expect("joined").newest == Some(2)));
        });
    }
}

/// A last message that can never be whole is not asked for without end.
#[test]
fn a_latest_message_that_is_gone_is_given_up() {
    each_seed(|seed| {
        let latest = reliability(Reliability::Latest);
        let small = publishing(|c| {
            c.window = 16;
            c.policy = FlowPolicy::Unlimited;
        });
        let plan = Plan::of(0).sized(LARGE);
        let mut w = scene(seed, Fabric::default(), 2, small, latest, plan);
        w.rule(|f| f.to == 1 && f.is_data() && !f.repair && f.sequence.0 == 64);
        w.more(2);
        w.run_for(10 * SECOND);
        let newest = |m: usize| w.subscriber(m).newest().expect("joined").newest;
        assert_eq!((newest(1), newest(2)), (Some(0), Some(1)));
        let naks = w.traffic.sent(qcast_proto::wire::frame::FrameKind::Nak);
        assert!(naks <= 2, "{naks}");
    });
}

/// Subscribers that join in the middle of a large message begin with the next one.
/// R-FRAG-4.
#[test]
fn joining_in_the_middle_of_a_message() {
    for kind in [Reliability::Ordered, Reliability::Unordered, Reliability::BestEffort] {
        each_seed(|seed| {
            let plan = Plan::of(0).every(Duration::from_micros(100)).sized(LARGE);
            let mut w = plain(seed, Fabric::default(), 1, plan);
            w.more(200);
            w.run_for(Duration::from_micros(5_030));
            let m = w.add();
            w.subscribe(m, reliability(kind));
            w.settle(5 * SECOND);
            let s = w.subscriber(m);
            assert!(s.messages() >= 140 && s.lost_frames() == 0, "{}", s.messages());
        });
    }
}

/// One frame of room, and messages of many frames.
#[test]
fn large_messages_through_a_small_window() {
    each_seed(|seed| {
        let publisher = publishing(|c| c.window = 4);
        let plan = Plan { spare: 2, ..Plan::of(0).sized(LARGE) };
        let subscriber = SubscriberConfig::default();
        let mut w = scene(seed, Fabric::losing(0.02), 2, publisher, subscriber, plan);
        w.more(5);
        w.settle(20 * SECOND);
        w.assert_all_got(5);
    });
}
