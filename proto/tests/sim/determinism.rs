//! The same seed gives the same run, to the nanosecond.

use std::time::Duration;

use qcast_proto::publish::PublisherConfig;
use qcast_proto::subscribe::{Reliability, SubscriberConfig};

use crate::fabric::{Burst, Fabric};
use crate::publisher::Plan;
use crate::scene::{SECOND, plain, reliability};
use crate::seeds::each_seed;
use crate::subscriber::Appetite;
use crate::truth::Sizes;
use crate::world::World;

/// Everything that can happen, in one run.
fn eventful(seed: u64) -> World {
    let fabric = Fabric {
        jitter: Duration::from_micros(7),
        loss: 0.03,
        burst: Some(Burst { enter: 0.002, leave: 0.1 }),
        reorder: 0.01,
        corruption: 0.005,
        ..Fabric::default()
    };
    let plan = Plan::of(0).every(Duration::from_micros(20)).sized(Sizes::Mixed);
    let mut w = plain(seed, fabric, 12, plan);
    w.log = Some(Vec::new());
    for (m, kind) in [(1, Reliability::Unordered), (2, Reliability::Latest)] {
        w.subscribe(m, reliability(kind));
    }
    w.machines[3].subscribers[0].appetite = Appetite::Every(Duration::from_micros(40));
    w.more(3_000);
    w.run_for(Duration::from_millis(20));
    w.cut_off(&[4, 5]);
    w.pause(6, true);
    w.run_for(Duration::from_millis(700));
    w.heal();
    w.resume(6);
    w.kill(7);
    w.close_subscriber(8, 0);
    w.run_for(SECOND);
    w.restart(0);
    w.publish(0, PublisherConfig::default(), Plan::of(500));
    let late = w.add();
    w.subscribe(late, SubscriberConfig::default());
    w.run_for(SECOND);
    w.close_publisher(0, 0);
    w.run_for(SECOND);
    w
}

impl World {
    /// The next number that each node would draw: equal ones have drawn as often before.
    fn next_draws(&mut self) -> Vec<u64> {
        let (now, address) = (self.now, self.address(0));
        let draw = |m: &mut crate::machine::Machine| {
            let probe = m.node.join(now, "probe", address);
            let opened = m.node.open_publisher(m.clock(now), probe, PublisherConfig::default());
            opened.expect("it has just joined").1.session.0
        };
        self.machines.iter_mut().map(draw).collect()
    }
}

#[test]
fn a_run_can_be_repeated() {
    each_seed(|seed| {
        let (mut a, mut b) = (eventful(seed), eventful(seed));
        let (log_a, log_b) = (a.log.take().expect("kept"), b.log.take().expect("kept"));
        for (n, (a, b)) in log_a.iter().zip(&log_b).enumerate() {
            assert_eq!(a, b, "line {n}");
        }
        assert!(log_a.len() == log_b.len() && log_a.len() > 10_000);
        assert_eq!((a.draws, a.next_draws()), (b.draws, b.next_draws()));
        assert_eq!(a.traffic, b.traffic);
        for (a, b) in a.machines.iter().zip(&b.machines) {
            for (a, b) in a.subscribers.iter().zip(&b.subscribers) {
                assert_eq!(a.notices, b.notices);
            }
        }
    });
}

/// Another seed gives another run: the log shows what happens, and not only that it does.
#[test]
fn seeds_make_a_difference() {
    assert_ne!(eventful(1).log, eventful(2).log);
}
