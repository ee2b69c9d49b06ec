//! Several subscriptions in one node, their reliabilities, topics, and one's own messages.

use std::collections::BTreeSet;
use std::time::Duration;

use qcast_proto::addr::NodeId;
use qcast_proto::node::{GroupId, Node, NodeConfig};
use qcast_proto::publish::{Hold, Outbox, PublisherConfig};
use qcast_proto::subscribe::{Reliability, SubscriberConfig, TopicPattern};
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::FrameKind;

use crate::buffers::{Living, Received, Slot};
use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{SECOND, is_joined, on_topic, plain, reliability, scene, topic, with};
use crate::seeds::each_seed;
use crate::subscriber::Appetite;
use crate::truth::Sizes;
use crate::world::World;

const KINDS: [Reliability; 4] =
    [Reliability::Ordered, Reliability::Unordered, Reliability::BestEffort, Reliability::Latest];

/// Case 53: each gets what it wants of one stream, which is received once.
/// R-DELIVER-6.
#[test]
fn every_reliability_in_one_node() {
    each_seed(|seed| {
        let plan = Plan::of(0).every(Duration::from_micros(10)).whole_frames();
        let mut w = plain(seed, Fabric::losing(0.05), 2, plan);
        for kind in KINDS {
            w.subscribe(1, reliability(kind));
        }
        w.run_for(SECOND);
        w.more(5_000);
        w.settle(10 * SECOND);
        w.run_for(SECOND);
        let got: Vec<_> = w.machines[1].subscribers.iter().map(|s| s.messages()).collect();
        assert_eq!(got[..3], [5_000; 3]);
        let best_effort = &w.machines[1].subscribers[3];
        assert_eq!(best_effort.messages() + best_effort.lost_frames(), 5_000);
        assert!((100..400).contains(&best_effort.lost_frames()));
        let streams = w.machines[1].node.streams(w.machines[1].group);
        assert_eq!((streams.len(), streams[0].1.frames), (1, 5_000));
    });
}

/// Each on its own, so that none profits from another's repairs.
/// R-DELIVER-1 to R-DELIVER-4.
#[test]
fn every_reliability_alone() {
    for kind in KINDS {
        each_seed(|seed| {
            let fabric = Fabric { reorder: 0.02, loss: 0.05, ..Fabric::default() };
            let plan = Plan::of(0).every(Duration::from_micros(10)).sized(Sizes::Mixed);
            let publisher = PublisherConfig::default();
            let mut w = scene(seed, fabric, 2, publisher, reliability(kind), plan);
            w.run_for(SECOND);
            w.more(3_000);
            w.settle(10 * SECOND);
            w.run_for(SECOND);
            if !kind.wants_repair() {
                // Nothing is asked for but the last message, for those that want it.
                let naks = w.traffic.sent(FrameKind::Nak);
                assert!(naks <= if kind == Reliability::Latest { 40 } else { 0 }, "{naks}");
            }
        });
    }
}

/// A gap is told to a best-effort subscription with the frame that shows it, not later.
/// R-DELIVER-3.
#[test]
fn a_best_effort_gap_is_told_at_once() {
    each_seed(|seed| {
        let kind = reliability(Reliability::BestEffort);
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = scene(seed, Fabric::default(), 1, PublisherConfig::default(), kind, plan);
        w.rule(|f| f.is_data() && [5, 6, 9].contains(&f.sequence.0));
        let start = w.now;
        w.more(10);
        w.run_for(SECOND);
        let lost = &w.subscriber(1).newest().expect("joined").lost;
        let ranges: Vec<_> = lost.iter().map(|l| (l.first, l.last)).collect();
        assert_eq!(ranges, [(5, 6), (9, 9)]);
        let at = lost[0].at.saturating_since(start);
        assert!(at < Duration::from_micros(7_100), "{at:?}");
        // The last one is told by the heartbeat after it.
        let at = lost[1].at.saturating_since(start);
        assert!(at < Duration::from_millis(12), "{at:?}");
    });
}

/// A latest-only subscriber that is slow sees few messages, and the last.
/// R-DELIVER-4.
#[test]
fn latest_skips_for_the_slow() {
    each_seed(|seed| {
        let latest = with(|c| {
            c.reliability = Reliability::Latest;
            c.queue = 1;
        });
        let plan = Plan::of(0).every(Duration::from_micros(50)).whole_frames();
        let publisher = PublisherConfig::default();
        let mut w = scene(seed, Fabric::losing(0.1), 1, publisher, latest, plan);
        w.machines[1].subscribers[0].appetite = Appetite::Every(Duration::from_millis(5));
        w.more(2_000);
        w.settle(10 * SECOND);
        let s = w.subscriber(1);
        assert!(s.messages() < 40, "{}", s.messages());
    });
}

/// The last message is lost: it is asked for, though nothing else is.
/// R-DELIVER-5.
#[test]
fn the_last_value_does_not_stay_lost() {
    each_seed(|seed| {
        let latest = reliability(Reliability::Latest);
        let plan = Plan::of(0).every(Duration::from_millis(1)).whole_frames();
        let mut w = scene(seed, Fabric::default(), 3, PublisherConfig::default(), latest, plan);
        w.rule(|f| f.is_first_of(9) || f.is_first_of(4));
        let start = w.now;
        w.more(10);
        w.settle(SECOND);
        assert!(w.now.saturating_since(start) < Duration::from_millis(30));
        assert!(w.subscribers().all(|s| s.messages() == 9));
    });
}

/// Case 52: one's own messages come once each when they are wanted, and not at all when they are not;
/// whether the fabric brings them back makes no difference.
/// R-OWN-1, R-ID-5.
#[test]
fn own_messages() {
    for echo in [true, false] {
        each_seed(|seed| {
            let fabric = Fabric { echo, ..Fabric::losing(0.02) };
            let mut w = plain(seed, fabric, 1, Plan::of(0).sized(Sizes::Mixed));
            let own = w.subscribe(0, with(|c| c.own_messages = true));
            let other = w.subscribe(0, SubscriberConfig::default());
            w.more(3_000);
            w.settle(10 * SECOND);
            let got = |s: usize| w.machines[0].subscribers[s].messages();
            assert_eq!((got(own), got(other)), (3_000, 0));
            assert_eq!(w.subscriber(1).messages(), 3_000);
            let counters = w.machines[0].node.group_counters(w.machines[0].group);
            assert_eq!(counters.own > 0, echo);
        });
    }
}

/// A subscription to one's own messages that is full holds one back, and the hold says so.
/// R-OWN-1.
#[test]
fn own_messages_hold_one_back() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 1, Plan::of(0).whole_frames());
        let own = with(|c| {
            c.own_messages = true;
            c.queue = 10;
        });
        w.subscribe(0, own);
        w.machines[0].subscribers[0].appetite = Appetite::Every(Duration::from_millis(1));
        w.more(200);
        w.run_for(Duration::from_millis(50));
        let id = w.publisher().id;
        assert_eq!(w.machines[0].node.hold(id), Some(Hold::Own));
        assert!(w.subscriber(1).messages() < 80);
        w.settle(10 * SECOND);
        w.run_for(SECOND);
        let s = &w.machines[0].subscribers[0];
        assert_eq!((s.messages(), s.overflows), (200, 0));
    });
}

/// A slow subscription to one topic does not slow another's publisher in the same node.
#[test]
fn own_room_is_by_topic() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::default());
        w.add();
        let m = w.add();
        w.subscribe(m, SubscriberConfig::default());
        let own = with(|c| {
            c.own_messages = true;
            c.queue = 10;
            c.topics = TopicPattern::new("slow");
        });
        w.subscribe(0, own);
        w.machines[0].subscribers[0].appetite = Appetite::None;
        w.publish(0, on_topic("fast"), Plan::of(1_000).whole_frames());
        w.settle(SECOND);
        assert_eq!(w.subscriber(m).messages(), 1_000);
    });
}

#[test]
fn topics_are_chosen_by_pattern() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::losing(0.05));
        w.add();
        let patterns = ["rack/*/cpu", "rack/1/*", "none", "*"];
        for pattern in patterns {
            let m = w.add();
            w.subscribe(m, topic(pattern));
        }
        let mut either = SubscriberConfig::default();
        either.topics = TopicPattern::new("rack/1/cpu").or("rack/2/mem");
        let m = w.add();
        w.subscribe(m, either);
        for name in ["rack/1/cpu", "rack/1/mem", "rack/2/cpu", "rack/2/mem"] {
            w.publish(0, on_topic(name), Plan::of(500).whole_frames());
        }
        w.settle(10 * SECOND);
        w.run_for(SECOND);
        let got: Vec<_> = w.subscribers().map(|s| s.messages()).collect();
        assert_eq!(got, [1000, 1000, 0, 2000, 1000]);
        // Nobody is waited for on a stream that it does not want.
        let receivers: Vec<_> =
            w.machines[0].publishers.iter().map(|p| p.stats.receivers).collect();
        assert_eq!(receivers, [4, 2, 2, 2]);
    });
}

/// A slow subscription to one stream does not slow another stream of the same node.
#[test]
fn room_is_by_topic() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::default());
        w.add();
        let m = w.add();
        w.subscribe(m, topic("a"));
        w.subscribe(m, topic("b"));
        w.machines[m].subscribers[0].appetite = Appetite::Every(Duration::from_millis(1));
        for name in ["a", "b"] {
            w.publish(0, on_topic(name), Plan::of(3_000).whole_frames());
        }
        w.run_until(SECOND, "b is done", |w| w.machines[m].subscribers[1].messages() == 3_000);
        assert!(w.machines[m].subscribers[0].messages() < 200);
    });
}

/// A hundred topics of one node, all announced at once, are all followed.
#[test]
fn a_hundred_topics_at_once() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::losing(0.1));
        // With bad luck more descriptions are lost than may be waited for at once.
        w.refuses = true;
        w.add();
        for _ in 0..2 {
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
        }
        for n in 0..100 {
            let plan = Plan { spare: 4, ..Plan::of(20).whole_frames() };
            let config = crate::scene::publishing(|c| {
                c.topic = format!("topic/{n}");
                c.window = 32;
            });
            w.publish(0, config, plan);
        }
        w.settle(20 * SECOND);
        w.assert_all_got(2_000);
    });
}

/// R-STATUS-10: quiet streams keep little of the room that a busy one beside them could use.
#[test]
fn a_busy_topic_among_quiet_ones() {
    for backlog in [usize::MAX, 1024] {
        each_seed(|seed| {
            let mut w = World::new(seed, Fabric::default());
            w.add();
            let m = w.add_with(|c| c.backlog = backlog);
            w.subscribe(m, SubscriberConfig::default());
            for n in 0..100 {
                let plan = Plan { spare: 4, ..Plan::of(3).whole_frames() };
                let config = crate::scene::publishing(|c| {
                    c.topic = format!("quiet/{n}");
                    c.window = 16;
                });
                w.publish(0, config, plan);
            }
            w.publish(0, on_topic("busy"), Plan::of(0).whole_frames());
            w.run_for(2 * SECOND);
            let start = w.now;
            w.machines[0].publishers[100].more(start, 20_000);
            w.touch(0);
            w.settle(10 * SECOND);
            let took = w.now.saturating_since(start);
            assert!(took < Duration::from_millis(40), "{took:?}");
            assert_eq!((w.subscriber(m).messages(), w.subscriber(m).overflows), (20_300, 0));
            // And one that was quiet gets its part when it has something to say.
            let start = w.now;
            for p in [7, 100] {
                w.machines[0].publishers[p].more(start, 2_000);
            }
            w.touch(0);
            w.settle(10 * SECOND);
            let took = w.now.saturating_since(start);
            assert!(took < Duration::from_millis(25), "{took:?}");
            assert_eq!(w.subscriber(m).overflows, 0);
        });
    }
}

/// Every publisher of a node gets its turn, however busy another one is.
/// R-PUBLISH-3.
#[test]
fn publishers_of_a_node_take_turns() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::default());
        w.add();
        let m = w.add();
        w.subscribe(m, SubscriberConfig::default());
        for name in ["busy", "quiet"] {
            w.publish(0, on_topic(name), Plan::of(0).whole_frames());
        }
        w.run_for(SECOND);
        let now = w.now;
        w.machines[0].publishers[0].more(now, 50_000);
        w.touch(0);
        w.run_for(Duration::from_millis(5));
        let now = w.now;
        w.machines[0].publishers[1].more(now, 1);
        w.touch(0);
        let key = w.machines[0].publishers[1].key;
        w.run_until(Duration::from_millis(1), "the quiet one is heard", |w| {
            w.subscriber(m).follows[&key].messages == 1
        });
    });
}

/// A node's groups take turns, each with a run of frames.
#[test]
fn groups_of_a_node_take_turns() {
    let now = Instant::ZERO;
    let living = Living::default();
    let mut node: Node<Slot, Received> = Node::new(now, NodeConfig::new(NodeId(1), 1, "n"), 1);
    let w = World::new(1, Fabric::default());
    for (n, name) in ["a", "b", "c"].iter().enumerate() {
        let group = node.join(now, name, w.address(n));
        let (id, header) =
            node.open_publisher(now, group, PublisherConfig::default()).expect("joined");
        let frames = (0..200).map(|_| Slot::new(512, &living)).collect();
        let mut outbox = Outbox::new(header, 512, frames);
        while outbox.push(&[7; 400]).is_ok() {}
        while let Some(frame) = outbox.take() {
            node.publish(id, frame);
        }
    }
    let mut runs: Vec<(GroupId, u32)> = Vec::new();
    for _ in 0..600 {
        let t = node.poll_transmit(now).expect("all frames can be sent");
        match runs.last_mut() {
            Some((group, run)) if *group == t.group => *run += 1,
            _ => runs.push((t.group, 1)),
        }
        node.handle_sent(t.token, t.frame);
    }
    assert!(runs[..15].iter().all(|(_, run)| *run == 32), "{runs:?}");
    let first: BTreeSet<_> = runs[..3].iter().map(|(group, _)| group).collect();
    assert_eq!(first.len(), 3, "{runs:?}");
}

/// A node that publishes without pause still says what it lacks, and how far it is.
/// R-PUBLISH-3.
#[test]
fn a_busy_publisher_is_a_good_subscriber() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::losing(0.02));
        for _ in 0..3 {
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
            w.publish(m, PublisherConfig::default(), Plan::of(0).whole_frames());
        }
        w.run_until(SECOND, "all know each other", |w| {
            w.machines.iter().all(|m| m.publishers[0].stats.receivers == 2)
        });
        for m in 0..3 {
            let now = w.now;
            w.machines[m].publishers[0].more(now, 10_000);
            w.touch(m);
        }
        w.settle(10 * SECOND);
        for m in &w.machines {
            assert_eq!((m.subscribers[0].messages(), m.subscribers[0].lost_frames()), (20_000, 0));
        }
    });
}

/// A second subscription to a stream that is followed begins with what comes next, whatever gaps are
/// open at that moment.
#[test]
fn a_second_subscription_in_the_middle() {
    for kind in KINDS {
        each_seed(|seed| {
            let plan = Plan::of(0).every(Duration::from_micros(5)).sized(Sizes::Mixed);
            let first = [Reliability::Ordered, Reliability::BestEffort, Reliability::Latest]
                [seed as usize % 3];
            let publisher = PublisherConfig::default();
            let mut w = scene(seed, Fabric::losing(0.1), 1, publisher, reliability(first), plan);
            w.more(3_000);
            w.run_for(Duration::from_micros(5_000 + 13 * seed));
            let second = w.subscribe(1, reliability(kind));
            w.settle(10 * SECOND);
            w.run_for(SECOND);
            let s = &w.machines[1].subscribers[second];
            assert_eq!(s.count(is_joined), 1);
            if kind.wants_repair() {
                assert_eq!(s.lost_frames(), 0);
            }
            w.close_subscriber(1, 0);
            w.more(100);
            w.settle(10 * SECOND);
        });
    }
}
