//! Joining, leaving, closing, dying, pausing and coming back.

use std::time::Duration;

use qcast_proto::addr::Sequence;
use qcast_proto::publish::{PublisherConfig, PublisherEvent};
use qcast_proto::subscribe::{LossCause, Notice, Reliability, SubscriberConfig};
use qcast_proto::wire::frame::{FrameHeader, FrameKind};

use crate::fabric::Fabric;
use crate::publisher::Plan;
use crate::scene::{
    SECOND, is_joined, is_lost, is_publisher_back, is_publisher_closed, is_publisher_lost,
    is_restarted, plain, publishing, scene,
};
use crate::seeds::each_seed;
use crate::subscriber::Appetite;
use crate::truth::Sizes;
use crate::world::World;

fn paced() -> Plan {
    Plan::of(0).every(Duration::from_millis(1)).whole_frames()
}

/// A publisher is ready when its own frame comes back, or else with its first subscriber.
/// R-READY-1.
#[test]
fn readiness() {
    for echo in [true, false] {
        each_seed(|seed| {
            let mut w = World::new(seed, Fabric { echo, ..Fabric::losing(0.1) });
            w.add();
            w.publish(0, PublisherConfig::default(), Plan::of(0));
            w.run_for(SECOND);
            let ready = |w: &World| w.publisher().count(|e| *e == PublisherEvent::Ready);
            assert_eq!(ready(&w), usize::from(echo));
            let m = w.add();
            w.subscribe(m, SubscriberConfig::default());
            w.run_for(SECOND);
            assert_eq!(ready(&w), 1);
            // Whoever waits for it does not shout for ever.
            assert!(w.traffic.sent(FrameKind::Announce) < 16, "{:?}", w.traffic);
        });
    }
}

/// A stream is closed once all have it: everybody is told, at both ends, and soon.
/// R-CLOSE-1, R-CLOSE-3.
#[test]
fn a_stream_closes_in_good_order() {
    for loss in [0.0, 0.05, 0.3] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(loss), 5, Plan::of(0).sized(Sizes::Mixed));
            w.more(2_000);
            w.run_until(10 * SECOND, "all is published", |w| w.publisher().is_done());
            w.close_publisher(0, 0);
            let at = w.now;
            w.run_until(5 * SECOND, "it is closed", |w| w.publisher().closed.is_some());
            let closed = w.publisher().closed.clone().expect("closed");
            assert_eq!(closed.unconfirmed, Vec::<String>::new());
            if loss < 0.1 {
                let took = w.now.saturating_since(at);
                assert!(took < Duration::from_millis(200), "{took:?}");
            }
            for s in w.subscribers() {
                assert_eq!((s.messages(), s.count(is_publisher_closed)), (2_000, 1));
            }
            // It is over: nobody speaks any more, and later nothing of it is left.
            let id = w.publisher().id;
            w.machines[0].node.remove_publisher(id);
            w.machines[0].publishers[0].drop_outbox();
            let sent = w.traffic.clone();
            w.run_for(25 * SECOND);
            let statuses = w.traffic.sent(FrameKind::Status) - sent.sent(FrameKind::Status);
            assert!(statuses <= 5, "{statuses} statuses after the end");
            for m in &w.machines[1..] {
                assert_eq!(m.node.streams(m.group).len(), 0);
                assert_eq!(m.subscribers[0].count(is_publisher_lost), 0);
            }
            w.check();
        });
    }
}

/// Whoever lacks something when the linger time is over is named; whoever is dead by then is not waited
/// for.
/// R-CLOSE-1, R-CLOSE-2, R-CLOSE-3.
#[test]
fn closing_names_the_unconfirmed() {
    each_seed(|seed| {
        let linger = publishing(|c| c.linger = 3 * SECOND);
        let subscriber = SubscriberConfig::default();
        let mut w = scene(seed, Fabric::default(), 3, linger, subscriber, paced());
        // The second hears no data and the third is dead.
        w.rule(|f| f.to == 2 && f.is_data() && f.sequence.0 >= 50);
        w.more(100);
        w.run_for(SECOND / 2);
        w.kill(3);
        w.close_publisher(0, 0);
        w.run_until(4 * SECOND, "it is closed", |w| w.publisher().closed.is_some());
        let closed = w.publisher().closed.clone().expect("closed");
        assert_eq!(closed.unconfirmed, ["node-2"]);
        w.run_for(10 * SECOND);
        // And it is told of what it lacks, then of the end.
        let s = w.subscriber(2);
        assert_eq!((s.messages(), s.lost_frames(), s.count(is_publisher_closed)), (50, 50, 1));
    });
}

/// Nobody is there.
#[test]
fn closing_alone_is_quick() {
    each_seed(|seed| {
        let mut w = World::new(seed, Fabric::default());
        w.add();
        w.publish(0, PublisherConfig::default(), Plan::of(100));
        w.run_for(SECOND);
        w.close_publisher(0, 0);
        w.run_until(Duration::from_millis(100), "closed", |w| w.publisher().closed.is_some());
    });
}

/// A subscriber leaves: the publisher knows at once, though its word be lost, and a late word of it does
/// not bring it back.
/// R-LEAVE-1.
#[test]
fn a_subscriber_leaves() {
    for lose in [false, true] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.02), 2, paced());
            w.fabric.jitter = Duration::from_micros(300);
            w.more(3_000);
            w.run_for(SECOND);
            if lose {
                let until = w.now + Duration::from_micros(100);
                w.rule(move |f| f.from == 1 && f.now < until);
            }
            w.close_subscriber(1, 0);
            let left = |e: &PublisherEvent| {
                matches!(e, PublisherEvent::SubscriberLeft { name, .. }
                if name == "node-1")
            };
            w.run_until(SECOND / 5, "it is gone", |w| w.publisher().count(left) == 1);
            w.run_for(3 * SECOND);
            assert_eq!((w.publisher().stats.receivers, w.publisher().count(left)), (1, 1));
            let lost = |e: &PublisherEvent| matches!(e, PublisherEvent::SubscriberLost { .. });
            assert_eq!(w.publisher().count(lost), 0);
            // And it may come back.
            let again = w.subscribe(1, SubscriberConfig::default());
            w.run_for(Duration::from_millis(100));
            w.more(100);
            w.settle(SECOND);
            assert_eq!(w.machines[1].subscribers[again].messages(), 100);
            assert_eq!(w.subscriber(2).messages(), 3_100);
        });
    }
}

/// A subscription closes while others of its node stay.
/// R-LEAVE-2.
#[test]
fn one_of_several_leaves() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.02), 1, Plan::of(0).whole_frames());
        w.subscribe(1, crate::scene::reliability(Reliability::BestEffort));
        w.machines[1].subscribers[0].appetite = Appetite::None;
        w.run_for(SECOND);
        w.more(10_000);
        w.run_for(Duration::from_millis(500));
        assert!(w.publisher().stats.head.0 < 2_000, "held by the ordered one");
        w.close_subscriber(1, 0);
        let at = w.now;
        w.run_until(SECOND, "nobody holds it", |w| w.publisher().is_done());
        let took = w.now.saturating_since(at);
        assert!(took < Duration::from_millis(60), "{took:?}");
    });
}

/// The publisher is killed: its subscribers are told in time, once.
/// R-SILENCE-1, R-NAK-7.
#[test]
fn a_killed_publisher_is_missed_in_time() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.05), 3, paced());
        w.more(100_000);
        w.run_for(SECOND + Duration::from_micros(seed * 77));
        w.kill(0);
        w.run_for(Duration::from_millis(2_700));
        assert!(w.subscribers().all(|s| s.count(is_publisher_lost) == 0));
        w.run_for(Duration::from_millis(400));
        assert!(w.subscribers().all(|s| s.count(is_publisher_lost) == 1));
        let sent = w.traffic.sent.iter().sum::<u64>();
        w.run_for(30 * SECOND);
        // Nobody talks to the dead.
        assert_eq!(w.traffic.sent.iter().sum::<u64>(), sent);
        assert!(w.machines[1..].iter().all(|m| m.node.frames_kept() == 0));
        for m in &w.machines[1..] {
            m.check_memory();
        }
    });
}

/// Case 110, 125: another life of the publisher, at once or after a while. The old one's end is told
/// before the new one's beginning, all new messages come, and late frames of the old life do not.
/// R-RESTART-2, R-RESTART-3.
#[test]
fn a_publisher_restarts() {
    for pause in [Duration::from_millis(10), 5 * SECOND, 40 * SECOND] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.02), 3, paced());
            w.more(100);
            w.settle(SECOND);
            let old = w.header_of(0, 0);
            w.kill(0);
            w.run_for(pause);
            w.restart(0);
            w.publish(0, PublisherConfig::default(), Plan::of(100).whole_frames());
            w.run_for(SECOND);
            // A late frame of the old life.
            let from = w.address(0);
            let header = FrameHeader { sequence: Sequence(100), ..old };
            let mut late = vec![0; 32];
            header.emit(&mut late);
            late.extend([0, 1, 9]);
            for m in 1..=3 {
                w.inject(from, m, true, &late);
            }
            w.settle(5 * SECOND);
            for s in w.subscribers() {
                assert_eq!(s.messages(), 200);
                let told: Vec<_> = s
                    .notices
                    .iter()
                    .filter(|(_, n)| is_restarted(n) || is_joined(n) || is_publisher_lost(n))
                    .map(|(_, n)| std::mem::discriminant(n))
                    .collect();
                assert_eq!(told.len(), if pause > 3 * SECOND { 4 } else { 3 }, "{:?}", s.notices);
                let restarted = s.notices.iter().position(|(_, n)| is_restarted(n));
                let joined = s.notices.iter().rposition(|(_, n)| is_joined(n));
                assert!(restarted < joined, "{:?}", s.notices);
            }
        });
    }
}

/// R-RESTART-2, case 126: another life on another host takes the stream's place once the first is silent,
/// and not while it goes on, whoever says so.
#[test]
fn a_publisher_restarts_elsewhere() {
    for dies in [true, false] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.02), 3, paced());
            w.more(3_000);
            w.run_for(SECOND);
            let id = w.machines[0].config.id;
            let again = w.add_with(|c| {
                c.id = id;
                c.incarnation = 2;
            });
            if dies {
                w.kill(0);
            }
            w.publish(again, PublisherConfig::default(), Plan::of(100).whole_frames());
            w.run_for(2 * SECOND);
            for s in w.subscribers() {
                assert_eq!(s.count(is_publisher_lost), 0, "{:?}", s.notices);
                assert_eq!(s.count(is_restarted), usize::from(dies), "{:?}", s.notices);
                assert_eq!(s.count(is_joined), 2);
            }
            w.settle(10 * SECOND);
            assert!(dies || w.subscribers().all(|s| s.messages() == 3_100));
        });
    }
}

/// Case 112: a subscriber's words about the old life reach the new one.
/// R-ID-5.
#[test]
fn stale_words_are_dropped() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 2, paced());
        w.more(50);
        w.settle(SECOND);
        w.restart(0);
        w.run_for(SECOND);
        w.publish(0, PublisherConfig::default(), Plan::of(50).whole_frames());
        w.run_for(SECOND);
        let counters = w.machines[0].node.group_counters(w.machines[0].group);
        assert!(counters.stale > 0, "{counters:?}");
        let stats = &w.publisher().stats;
        assert_eq!((stats.receivers, stats.naks, stats.gone), (2, 0, 0));
    });
}

/// A subscriber's node restarts under its old identity.
#[test]
fn a_subscriber_restarts() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.02), 2, paced());
        w.more(3_000);
        w.run_for(SECOND);
        w.restart(1);
        w.subscribe(1, SubscriberConfig::default());
        w.settle(10 * SECOND);
        let s = w.subscriber(1);
        assert_eq!(s.lost_frames(), 0);
        assert!(s.messages() > 1_800, "{}", s.messages());
        let joined = |e: &PublisherEvent| {
            matches!(e, PublisherEvent::SubscriberJoined { name, .. }
            if name == "node-1")
        };
        let lost = |e: &PublisherEvent| {
            matches!(e, PublisherEvent::SubscriberLost { name, .. }
            if name == "node-1")
        };
        assert_eq!((w.publisher().count(joined), w.publisher().count(lost)), (2, 1));
        assert_eq!(w.subscriber(2).messages(), 3_000);
    });
}

/// Case 117: everything is lost for ten seconds. The subscribers are told, nothing grows, and the stream
/// goes on after it.
/// R-SILENCE-1.
#[test]
fn ten_seconds_of_nothing() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::losing(0.01), 3, paced());
        w.more(20_000);
        w.run_for(SECOND);
        let (from, to) = (w.now, w.now + 10 * SECOND);
        w.rule(move |f| f.now >= from && f.now < to);
        w.run_for(9 * SECOND);
        for m in &w.machines {
            m.check_memory();
        }
        assert!(w.subscribers().all(|s| s.count(is_publisher_lost) == 1));
        assert_eq!(w.publisher().stats.receivers, 0);
        w.settle(20 * SECOND);
        for s in w.subscribers() {
            assert_eq!((s.count(is_publisher_back), s.count(is_joined)), (1, 1));
            assert_eq!(s.messages() + s.lost_frames(), 20_000);
            assert!(s.messages() > 11_000);
        }
        assert_eq!(w.publisher().stats.receivers, 3);
    });
}

/// A publisher is stopped for ten seconds, its receive queue kept or lost, and goes on.
/// R-SILENCE-3, R-RTT-1.
#[test]
fn a_publisher_sleeps() {
    for keep in [true, false] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.01), 3, paced());
            w.more(5_000);
            w.run_for(SECOND);
            w.pause(0, keep);
            w.run_for(10 * SECOND);
            w.resume(0);
            w.settle(20 * SECOND);
            for s in w.subscribers() {
                let told = (s.count(is_publisher_lost), s.count(is_publisher_back));
                assert_eq!((s.messages() + s.lost_frames(), told), (5_000, (1, 1)));
                // Only what was missing when it fell silent can be lost.
                assert!(s.lost_frames() < 20, "{}", s.lost_frames());
            }
            // It was itself that slept: nobody else is missed.
            let lost = |e: &PublisherEvent| matches!(e, PublisherEvent::SubscriberLost { .. });
            assert_eq!((w.publisher().count(lost), w.publisher().stats.receivers), (0, 3));
            // And one round trip through a sleep does not make repairs slow.
            let rtt = w.publisher().stats.rtt;
            assert!(rtt < Duration::from_millis(1), "{rtt:?}");
        });
    }
}

/// A subscriber is stopped for ten seconds: it is let go, comes back, and is told what it missed.
/// R-SILENCE-3.
#[test]
fn a_subscriber_sleeps() {
    for keep in [true, false] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.01), 3, paced());
            w.more(14_000);
            w.run_for(SECOND);
            w.pause(1, keep);
            w.run_for(10 * SECOND);
            w.resume(1);
            w.settle(40 * SECOND);
            let s = w.subscriber(1);
            assert_eq!(s.messages() + s.lost_frames(), 14_000);
            assert_eq!(s.count(is_publisher_lost), 0, "it was itself that slept");
            // What waited for it at its return is more than its queue holds.
            let causes = [LossCause::NotRetained, LossCause::Overrun, LossCause::QueueFull];
            let mut lost = s.newest().expect("joined").lost.iter();
            assert!(lost.all(|l| causes[..2 + usize::from(keep)].contains(&l.cause)));
            for m in [2, 3] {
                assert_eq!(w.subscriber(m).messages(), 14_000);
            }
            let rtt = w.publisher().stats.rtt;
            assert!(rtt < Duration::from_millis(1), "{rtt:?}");
            assert_eq!(w.publisher().stats.receivers, 3);
        });
    }
}

/// A subscriber that was asleep itself still misses a publisher that died meanwhile, in time.
#[test]
fn a_sleeper_misses_the_dead_in_time() {
    each_seed(|seed| {
        let mut w = plain(seed, Fabric::default(), 2, paced());
        w.more(2_000);
        w.run_for(SECOND);
        w.pause(1, true);
        w.run_for(SECOND);
        w.kill(0);
        w.run_for(9 * SECOND);
        w.resume(1);
        w.run_for(Duration::from_millis(3_100));
        assert_eq!(w.subscriber(1).count(is_publisher_lost), 1);
    });
}

/// A node is reached elsewhere from now on, as after a port that went down and came up.
/// R-MOVE-1.
#[test]
fn nodes_move() {
    for who in [0, 1] {
        each_seed(|seed| {
            let mut w = plain(seed, Fabric::losing(0.02), 2, paced());
            w.more(8_000);
            w.run_for(SECOND);
            w.readdress(who);
            w.settle(20 * SECOND);
            w.assert_all_got(8_000);
            assert!(w.subscribers().all(|s| s.count(is_publisher_lost) == 0));
            assert_eq!(w.publisher().stats.receivers, 2);
        });
    }
}

/// R-SPOOF-2: a node moves, and all that it announces for a while is lost; or it does while the others
/// have been told that it is lost, or have put it to sleep.
#[test]
fn nodes_move_unheard() {
    for silence in [Duration::ZERO, 5 * SECOND, 30 * SECOND] {
        each_seed(|seed| {
            let slow = paced().every(Duration::from_millis(10));
            let mut w = plain(seed, Fabric::losing(0.02), 2, slow);
            w.more(6_000);
            w.run_for(SECOND);
            w.cut_off(&[0]);
            w.run_for(silence);
            w.readdress(0);
            w.run_for(4 * SECOND);
            w.heal();
            w.rule(|f| f.kind == FrameKind::Announce && f.multicast);
            w.settle(80 * SECOND);
            for s in w.subscribers() {
                assert_eq!((s.count(is_publisher_lost), s.count(is_publisher_back)), (1, 1));
                assert_eq!((s.messages() + s.lost_frames(), s.count(is_joined)), (6_000, 1));
            }
            assert_eq!(w.publisher().stats.receivers, 2);
        });
    }
}

/// A subscription opened while the publisher is silent begins when it speaks again.
#[test]
fn joining_a_silent_stream() {
    for silence in [5 * SECOND, 40 * SECOND] {
        each_seed(|seed| {
            let slow = paced().every(Duration::from_millis(10));
            let mut w = plain(seed, Fabric::default(), 2, slow);
            w.more(7_000);
            w.run_for(SECOND);
            w.cut_off(&[1]);
            w.run_for(silence);
            let late = w.subscribe(1, SubscriberConfig::default());
            w.run_for(SECOND);
            w.heal();
            w.settle(90 * SECOND);
            let s = &w.machines[1].subscribers[late];
            assert_eq!((s.count(is_joined), s.count(is_lost)), (1, 0), "{:?}", s.notices);
            let s = w.subscriber(1);
            assert_eq!(s.messages() + s.lost_frames(), 7_000);
            assert_eq!(s.count(|n| matches!(n, Notice::PublisherBack(_))), 1);
        });
    }
}
