//! Flow control: who is waited for, for how long, and how fast it goes.

use std::time::Duration;

use qcast_proto::publish::{FlowPolicy, Hold, PublisherConfig, PublisherEvent};
use qcast_proto::subscribe::{Notice, Reliability, SubscriberConfig};

use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, plain, publishing, reliability, scene, with};
use crate::seeds::each_seed;
use crate::subscriber::Appetite;
use crate::world::World;

/// Case 106: a slow consumer holds a publisher that waits for the slowest, and is named.
#[test]
fn the_slowest_sets_the_pace_and_is_named() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.01), 3, Plan::of(0).whole_frames());
        w.machines[2].subscribers[0].appetite = Appetite::Every(Duration::from_micros(100));
        w.more(10_000);
        w.run_for(Duration::from_millis(300));
        let id = w.publisher().id;
        match w.machines[0].node.hold(id) {
            Some(Hold::Subscriber { name, .. }) => assert_eq!(name, "node-2"),
            other => panic!("not held by the slow one: {other:?}"),
        }
        w.settle(20 * SECOND);
        w.run_until(20 * SECOND, "the slow one has eaten", |w| {
            w.subscriber(2).messages() == 10_000
        });
        w.assert_all_got(10_000);
        let released = |e: &PublisherEvent| matches!(e, PublisherEvent::SubscriberReleased { .. });
        assert_eq!(w.publisher().count(released), 0);
    });
}

/// Case 106: one that does not take anything is let go after the grace; both ends are told, the others
/// go on, and once it eats again it gets what follows.
/// R-FLOW-5.
#[test]
fn one_that_stands_still_is_let_go() {
    each_seed(|seed| {
        let grace = publishing(|c| c.grace = SECOND);
        let plan = Plan::of(0).every(Duration::from_micros(200)).whole_frames();
        let mut w = scene(seed, Fabric::losing(0.01), 3, grace, SubscriberConfig::default(), plan);
        w.machines[2].subscribers[0].appetite = Appetite::None;
        w.more(25_000);
        w.run_for(4 * SECOND);
        let released = |e: &PublisherEvent| {
            matches!(e, PublisherEvent::SubscriberReleased { name, waited, .. }
                if name == "node-2" && *waited >= SECOND && *waited < SECOND * 3 / 2)
        };
        assert_eq!(w.publisher().count(released), 1, "{:?}", w.publisher().events);
        assert!(w.subscriber(1).messages() > 10_000);
        w.machines[2].subscribers[0].appetite = Appetite::Eager;
        w.touch(2);
        w.settle(20 * SECOND);
        w.run_for(SECOND);
        let s = w.subscriber(2);
        assert_eq!(s.count(|n| matches!(n, Notice::Released { .. })), 1);
        assert_eq!(s.messages() + s.lost_frames(), 25_000);
        let others = [w.subscriber(1), w.subscriber(3)];
        assert!(others.iter().all(|s| s.messages() == 25_000 && s.lost_frames() == 0));
        let stats = &w.publisher().stats;
        assert_eq!((stats.receivers, stats.confirmed), (3, stats.head), "{stats:?}");
    });
}

/// Case 106, in one node: a slow best-effort subscription drops its own, the fast one beside it does not.
#[test]
fn slow_and_fast_in_one_node() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(20)).whole_frames();
        let mut w = plain(seed, Fabric::default(), 1, plan);
        let small = with(|c| {
            c.reliability = Reliability::BestEffort;
            c.queue = 100;
        });
        let slow = w.subscribe(1, small);
        w.machines[1].subscribers[slow].appetite = Appetite::Every(Duration::from_micros(200));
        w.more(10_000);
        w.settle(20 * SECOND);
        let took = w.now;
        w.machines[1].subscribers[slow].appetite = Appetite::Eager;
        w.touch(1);
        w.run_for(SECOND);
        assert_eq!(w.subscriber(1).messages(), 10_000);
        let s = &w.machines[1].subscribers[slow];
        assert_eq!(s.messages() + s.lost_frames(), 10_000);
        assert!(s.lost_frames() > 5_000);
        assert!(took < qcast_proto::time::Instant::from_millis(450), "{took:?}");
    });
}

/// Case 109: all subscribers die.
/// R-STATUS-9.
#[test]
fn dead_subscribers_are_counted_out_in_time() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = plain(seed, Fabric::losing(0.05), 5, plan);
        w.more(10_000);
        w.run_for(SECOND);
        (1..=5).for_each(|m| w.kill(m));
        let died = w.now;
        w.run_until(3 * SECOND, "nobody is left", |w| w.publisher().stats.receivers == 0);
        let lost = |e: &PublisherEvent| matches!(e, PublisherEvent::SubscriberLost { .. });
        assert_eq!(w.publisher().count(lost), 5);
        let took = w.now.saturating_since(died);
        assert!(took <= Duration::from_millis(2_100), "{took:?}");
        w.settle(20 * SECOND);
        assert_eq!(w.publisher().pushed(), 10_000);
    });
}

/// A dead subscriber holds a full publisher back no longer than the timeout.
#[test]
fn a_dead_subscriber_holds_for_its_timeout_only() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.02), 3, Plan::of(0).whole_frames());
        w.more(30_000);
        w.run_for(Duration::from_millis(5));
        w.kill(3);
        w.settle(10 * SECOND);
        assert!(w.now < qcast_proto::time::Instant::from_millis(2_500), "{:?}", w.now);
        for m in [1, 2] {
            assert_eq!(w.subscriber(m).messages(), 30_000);
        }
    });
}

/// R-FLOW-1: a quorum of two goes as fast as the second fastest, and stands still without one.
#[test]
fn a_quorum() {
    each_seed(|seed| {
        let quorum = publishing(|c| c.policy = FlowPolicy::Quorum(2));
        let plan = Plan::of(0).whole_frames();
        let mut w = World::new(seed, Fabric::default());
        w.add();
        let m = w.add();
        w.subscribe(m, SubscriberConfig::default());
        w.publish(0, quorum, Plan { total: 5_000, ..plan });
        w.run_for(SECOND);
        let id = w.publisher().id;
        assert_eq!(w.machines[0].node.hold(id), Some(Hold::Quorum { have: 1, want: 2 }));
        assert_eq!(w.subscriber(1).messages(), 0);
        for _ in 0..2 {
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
        }
        w.machines[3].subscribers[0].appetite = Appetite::Every(Duration::from_millis(1));
        w.run_until(SECOND, "the quorum has it", |w| {
            [1, 2].iter().all(|m| w.subscriber(*m).messages() == 5_000)
        });
        w.machines[3].subscribers[0].appetite = Appetite::Eager;
        w.touch(3);
        w.settle(10 * SECOND);
        let s = w.subscriber(3);
        assert_eq!(s.messages() + s.lost_frames(), 5_000);
    });
}

/// R-FLOW-1: only those that carry the tag are waited for.
#[test]
fn tagged() {
    each_seed(|seed| {
        let tagged = publishing(|c| c.policy = FlowPolicy::Tagged(7));
        let plan = Plan::of(0).whole_frames();
        let mut w = World::new(seed, Fabric::losing(0.01));
        w.add();
        for tag in [Some(7), None, Some(8)] {
            let m = w.add();
            w.subscribe(m, with(|c| c.tag = tag));
        }
        w.publish(0, tagged, plan);
        w.run_until(SECOND, "all join", |w| w.publisher().stats.receivers == 3);
        w.machines[1].subscribers[0].appetite = Appetite::Every(Duration::from_micros(50));
        w.machines[2].subscribers[0].appetite = Appetite::Every(Duration::from_millis(2));
        w.more(10_000);
        w.run_until(10 * SECOND, "the tagged one has it", |w| w.subscriber(1).messages() == 10_000);
        assert_eq!(w.subscriber(1).lost_frames(), 0);
        for m in [2, 3] {
            w.machines[m].subscribers[0].appetite = Appetite::Eager;
            w.touch(m);
        }
        w.settle(10 * SECOND);
        let s = w.subscriber(2);
        assert_eq!(s.messages() + s.lost_frames(), 10_000);
        assert!(s.lost_frames() > 0);
    });
}

/// R-FLOW-1: a publisher that waits for nobody runs at its own rate, and every gap is told.
#[test]
fn unlimited() {
    each_seed(|seed| {
        let unlimited = publishing(|c| c.policy = FlowPolicy::Unlimited);
        let mut w = scene(
            seed,
            Fabric::losing(0.05),
            3,
            unlimited,
            SubscriberConfig::default(),
            Plan::of(0).whole_frames(),
        );
        w.machines[3].subscribers[0].appetite = Appetite::Every(Duration::from_micros(20));
        let start = w.now;
        w.more(20_000);
        w.run_until(SECOND, "all is sent", |w| w.publisher().is_done());
        // Half the line is for repairs at most.
        let took = w.now.saturating_since(start);
        assert!(took < Duration::from_millis(45), "{took:?}");
        w.machines[3].subscribers[0].appetite = Appetite::Eager;
        w.touch(3);
        w.settle(20 * SECOND);
        for s in w.subscribers() {
            assert_eq!(s.messages() + s.lost_frames(), 20_000);
        }
        let fast = w.subscriber(1);
        assert!(fast.messages() > 19_000, "{} {:?}", fast.messages(), w.describe());
    });
}

/// A receiver that fell behind a publisher that does not wait reaches the live edge again.
/// R-LOSS-2.
#[test]
fn one_that_fell_behind_an_unlimited_publisher_catches_up() {
    each_seed(|seed| {
        let unlimited = publishing(|c| c.policy = FlowPolicy::Unlimited);
        let plan = Plan::of(0).every(Duration::from_micros(3)).whole_frames();
        let mut w = scene(seed, Fabric::default(), 2, unlimited, SubscriberConfig::default(), plan);
        w.more(90_000);
        w.run_for(Duration::from_millis(10));
        w.cut_off(&[1]);
        w.run_for(Duration::from_millis(100));
        w.heal();
        w.run_for(Duration::from_millis(60));
        let before = w.subscriber(1).lost_frames();
        assert!(before > 30_000);
        w.settle(20 * SECOND);
        let s = w.subscriber(1);
        assert_eq!(s.messages() + s.lost_frames(), 90_000);
        assert_eq!(s.lost_frames(), before, "{:?}", s.newest().map(|f| &f.lost));
    });
}

/// Case 65: eight are waited for, and one never joins.
#[test]
fn seven_of_eight() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::losing(0.05));
        w.add();
        w.publish(0, PublisherConfig::default(), Plan::of(0).whole_frames());
        for i in 0..8 {
            let m = w.add();
            if i < 7 {
                w.subscribe(m, SubscriberConfig::default());
            }
        }
        w.run_for(2 * SECOND);
        assert_eq!(w.publisher().stats.receivers, 7);
        w.more(5_000);
        w.settle(10 * SECOND);
        w.assert_all_got(5_000);
    });
}

/// Windows and queues of a few frames go at the round trip's pace, not at that of timers.
/// R-STATUS-5.
#[test]
fn small_windows_and_queues_are_not_slow() {
    for (window, queue) in [(1, 1024), (2, 1024), (8, 1024), (1024, 1), (1024, 4), (3, 2)] {
        each_seed(|seed| {
            let publisher = publishing(|c| c.window = window);
            let subscriber = with(|c| c.queue = queue);
            let plan = Plan::of(0).whole_frames();
            let mut w = scene(seed, Fabric::default(), 2, publisher, subscriber, plan);
            w.run_for(SECOND);
            let start = w.now;
            w.more(1_000);
            w.settle(10 * SECOND);
            w.assert_all_got(1_000);
            let trips = w.now.saturating_since(start).as_micros() / 45;
            let few = 1_000 / window.min(queue).min(2) as u128;
            assert!(trips <= 3 * few, "window {window}, queue {queue}: {trips} round trips");
        });
    }
}

/// With loss, small windows survive too.
#[test]
fn small_windows_with_loss() {
    for (window, queue) in [(1, 1), (4, 1024), (8, 3)] {
        each_seed(|seed| {
            let publisher = publishing(|c| c.window = window);
            let subscriber = with(|c| c.queue = queue);
            let plan = Plan::of(0).whole_frames();
            let mut w = scene(seed, Fabric::losing(0.05), 3, publisher, subscriber, plan);
            w.more(500);
            w.settle(20 * SECOND);
            w.assert_all_got(500);
        });
    }
}

/// A consumer that takes a frame now and then: its publisher never runs over it.
/// R-STATUS-10.
#[test]
fn room_is_a_promise() {
    each_seed(|seed| {
        let small = with(|c| c.queue = 32);
        let publisher = PublisherConfig::default();
        let plan = Plan::of(0).whole_frames();
        let mut w = scene(seed, Fabric::losing(0.03), 3, publisher, small, plan);
        for m in 1..=3 {
            let pause = Duration::from_micros(20 * m as u64);
            w.machines[m].subscribers[0].appetite = Appetite::Every(pause);
        }
        w.more(3_000);
        w.settle(20 * SECOND);
        w.run_until(SECOND, "all is eaten", |w| w.subscribers().all(|s| s.messages() == 3_000));
        w.assert_all_got(3_000);
    });
}

/// Two publishers fill one subscription: its room is shared.
/// R-STATUS-10.
#[test]
fn two_publishers_share_a_queue() {
    each_seed(|seed| {
        let small = with(|c| c.queue = 64);
        let mut w = World::new(seed, Fabric::losing(0.02));
        for _ in 0..2 {
            w.add();
        }
        let m = w.add();
        let s = w.subscribe(m, small);
        for p in 0..2 {
            w.publish(p, PublisherConfig::default(), Plan::of(0).whole_frames());
        }
        w.run_until(SECOND, "both know it", |w| {
            w.machines[..2].iter().all(|m| m.publishers[0].stats.receivers == 1)
        });
        w.run_for(SECOND);
        w.machines[m].subscribers[s].appetite = Appetite::Every(Duration::from_micros(30));
        for p in 0..2 {
            let now = w.now;
            w.machines[p].publishers[0].more(now, 2_000);
            w.touch(p);
        }
        w.settle(20 * SECOND);
        w.run_until(SECOND, "all is eaten", |w| w.subscriber(m).messages() == 4_000);
        let s = w.subscriber(m);
        assert_eq!((s.lost_frames(), s.overflows), (0, 0));
    });
}

/// Best-effort and latest-only subscribers hold nobody back.
#[test]
fn unreliable_ones_are_not_waited_for() {
    for kind in [Reliability::BestEffort, Reliability::Latest] {
        each_seed(|seed| {
            let plan = Plan::of(0).whole_frames();
            let publisher = PublisherConfig::default();
            let mut w = scene(seed, Fabric::default(), 1, publisher, reliability(kind), plan);
            w.machines[1].subscribers[0].appetite = Appetite::None;
            let start = w.now;
            w.more(10_000);
            w.run_until(SECOND, "all is sent", |w| w.publisher().is_done());
            assert!(w.now.saturating_since(start) < Duration::from_millis(12));
        });
    }
}
