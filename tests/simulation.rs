//! Whole nodes in virtual time, over many seeds: `qcast::simulate` checks what must hold after each run.
//!
//! A few seeds run always; `QCAST_SEEDS=N` runs the first N of every test, `QCAST_SEED=N` that one alone.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::ops::Range;
use std::time::Duration;

use qcast::device::impair::Impairment;
use qcast::simulate::{Outage, OutageKind, Simulation, SimulationConfig, SimulationReport};
use qcast::{FlowPolicy, Reliability};

const MILLI: Duration = Duration::from_millis(1);

fn seeds(few: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n: String| n.parse::<u64>().ok());
    match (number("QCAST_SEED"), number("QCAST_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(many)) => 0..many,
        (None, None) => 0..few,
    }
}

/// Runs a simulation that must be sound. A failure tells how to run it again.
fn sound(test: &str, config: SimulationConfig) -> SimulationReport {
    let seed = config.seed;
    let report = Simulation::new(config).unwrap().run(|_| {}).unwrap();
    assert!(
        report.is_sound(),
        "seed {seed}: {:#?}\nagain: QCAST_SEED={seed} cargo test --test simulation {test}",
        report.described
    );
    report
}

/// As [`sound`], and no message was lost.
fn whole(test: &str, config: SimulationConfig) -> SimulationReport {
    let expected = (config.subscribers * config.publishers) as u64 * config.messages;
    let report = sound(test, config);
    assert_eq!((report.lost_events, report.delivered), (0, expected), "seed {}", report.seed);
    report
}

fn config(seed: u64, subscribers: usize, messages: u64, path: Impairment) -> SimulationConfig {
    let mut config = SimulationConfig::new(subscribers, messages, seed);
    config.path = path;
    config
}

/// A path that also reorders, repeats and delays.
fn bad(mut path: Impairment) -> Impairment {
    (path.reorder, path.duplicate, path.jitter) = (0.03, 0.03, Duration::from_micros(30));
    path
}

#[test]
fn nothing_is_asked_for_where_nothing_is_lost() {
    for seed in seeds(3) {
        let report = whole(
            "nothing_is_asked_for_where_nothing_is_lost",
            config(seed, 20, 2000, Impairment::default()),
        );
        assert_eq!((report.naks, report.repairs, report.unposted), (0, 0, 0), "seed {seed}");
    }
}

#[test]
fn loss_of_every_kind_is_repaired() {
    for seed in seeds(4) {
        for path in [
            Impairment::lossy(0.001),
            Impairment::lossy(0.05),
            Impairment::bursty(0.02, 10.0),
            Impairment::lossy(0.3),
        ] {
            let report = whole("loss_of_every_kind_is_repaired", config(seed, 12, 1000, path));
            assert!(report.lost_frames > 0 || path.loss < 0.01, "seed {seed}, {path:?}");
        }
    }
}

#[test]
fn a_bad_path_of_every_kind_at_once() {
    for seed in seeds(4) {
        let mut path = bad(Impairment::bursty(0.03, 4.0));
        path.corrupt = 0.01;
        for size in [16, 500, 4000, 20_000] {
            let mut config = config(seed, 6, 600, path);
            config.size = size;
            whole("a_bad_path_of_every_kind_at_once", config);
        }
    }
}

#[test]
fn several_publishers_share_a_group() {
    for seed in seeds(3) {
        let mut config = config(seed, 10, 500, Impairment::lossy(0.02));
        config.publishers = 4;
        whole("several_publishers_share_a_group", config);
    }
}

/// Slow applications hold messages, and publishers back, and lose nothing.
#[test]
fn slow_applications_hold_publishers_back() {
    for seed in seeds(3) {
        let mut config = config(seed, 8, 2000, Impairment::lossy(0.01));
        config.slow = 2;
        let fast = whole("slow_applications_hold_publishers_back", config.clone());
        config.slow_pause = Duration::from_micros(400);
        let slow = whole("slow_applications_hold_publishers_back", config);
        assert!(slow.virtual_seconds > fast.virtual_seconds * 2.0, "seed {seed}");
    }
}

#[test]
fn other_reliabilities_keep_their_own_word() {
    for seed in seeds(3) {
        let path = bad(Impairment::lossy(0.05));
        for (reliability, policy) in [
            (Reliability::Unordered, FlowPolicy::Slowest),
            (Reliability::BestEffort, FlowPolicy::Unlimited),
            (Reliability::Latest, FlowPolicy::Unlimited),
        ] {
            let mut config = config(seed, 6, 1000, path);
            (config.reliability, config.policy) = (reliability, policy);
            config.rate = Some(20_000.0);
            let report = sound("other_reliabilities_keep_their_own_word", config);
            let lost = report.lost_events > 0;
            assert_eq!(
                lost,
                reliability == Reliability::BestEffort,
                "seed {seed}, {reliability:?}"
            );
        }
    }
}

/// A pair at the border: an outage that is shorter than what counts as gone costs nothing, a longer one is told.
#[test]
fn an_outage_is_survived_or_told() {
    for seed in seeds(3) {
        for kind in [OutageKind::Partition, OutageKind::LinkDown, OutageKind::Pause] {
            let outage = |millis: u32| Outage::new(kind, 2..4, 20 * MILLI, MILLI * millis);
            let run = |millis| {
                let mut config = config(seed, 6, 1000, Impairment::lossy(0.01));
                config.rate = Some(1000.0);
                config.outages = vec![outage(millis)];
                sound("an_outage_is_survived_or_told", config)
            };
            let short = run(1000);
            let lost = (short.lost_events, short.partings, short.delivered);
            assert_eq!(lost, (0, 0, 6000), "seed {seed}, {kind:?}");
            let long = run(9000);
            assert!(
                long.delivered == 6000 || long.delivered >= 4000 && long.partings > 0,
                "seed {seed}, {kind:?}: {} delivered",
                long.delivered
            );
        }
    }
}

/// At the border of the receive queue: what is promised is never more than what is posted.
#[test]
fn receive_queues_of_any_depth_do_not_run_dry() {
    for seed in seeds(2) {
        for depth in [4, 5, 16, 17, 64] {
            let mut config = config(seed, 4, 600, Impairment::lossy(0.01));
            config.srq_depth = depth;
            whole("receive_queues_of_any_depth_do_not_run_dry", config);
        }
    }
}

/// Case 96 at whole-node scale.
#[test]
fn requests_and_repairs_stay_few_in_a_large_group() {
    for seed in seeds(1) {
        let report = whole(
            "requests_and_repairs_stay_few_in_a_large_group",
            config(seed, 1000, 500, Impairment::lossy(0.005)),
        );
        assert!(report.naks_per_loss < 6.0, "seed {seed}: {}", report.naks_per_loss);
        assert!(report.repairs_per_loss < 1.5, "seed {seed}: {}", report.repairs_per_loss);
        assert!(report.repair_p99_rtt < 10.0, "seed {seed}: {}", report.repair_p99_rtt);
    }
}

#[test]
fn one_seed_is_one_history() {
    let path = bad(Impairment::bursty(0.02, 3.0));
    let run = |seed| sound("one_seed_is_one_history", config(seed, 30, 800, path));
    let (first, again, other) = (run(1), run(1), run(2));
    assert_eq!(first, again);
    assert_ne!(first.digest, other.digest);
}

/// The checks can fail: a publisher that waits for nobody loses what its window lets go, and bounds that are too
/// narrow are broken.
#[test]
fn what_is_wrong_is_found() {
    let mut narrow = config(1, 20, 1000, Impairment::lossy(0.05));
    narrow.max_naks_per_loss = 0.01;
    let report = Simulation::new(narrow).unwrap().run(|_| {}).unwrap();
    assert!(!report.is_sound() && report.described[0].contains("NAKs for"), "{report:?}");
    let mut hasty = config(1, 4, 20_000, Impairment::bursty(0.1, 10.0));
    (hasty.policy, hasty.window, hasty.slow) = (FlowPolicy::Unlimited, 16, 1);
    hasty.slow_pause = MILLI;
    let report = Simulation::new(hasty).unwrap().run(|_| {}).unwrap();
    assert!(report.is_sound(), "{:?}", report.described);
    assert!(report.lost_events > 0 && report.delivered < 80_000);
}
