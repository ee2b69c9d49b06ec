//! `qcast sim`: the keys that other tools rely on, and the same seed twice.

use serde_json::Value;

use crate::harness::{expect_keys, run};

const KEYS: [&str; 11] = [
    "subscribers",
    "messages",
    "loss",
    "seed",
    "violations",
    "lost_events",
    "naks_per_loss",
    "repairs_per_loss",
    "repair_p99_rtt",
    "wall_seconds",
    "digest",
];

fn simulate(more: &[&str]) -> Value {
    let args = ["sim", "--subscribers", "50", "--messages", "500", "--loss", "1%", "--json"];
    let ended = run(&[&args, more].concat()).expect(0);
    let [object] = &ended.objects()[..] else { panic!("{ended:#?}") };
    object.clone()
}

#[test]
fn a_seed_is_a_run() {
    let [first, again, other] =
        [&["--seed", "7"], &["--seed", "7"], &["--seed", "8"]].map(|seed| simulate(seed));
    expect_keys(&first, &KEYS);
    assert_eq!(first["digest"], again["digest"]);
    assert_ne!(first["digest"], other["digest"]);
    for report in [first, other] {
        assert_eq!((&report["violations"], &report["lost_events"]), (&0.into(), &0.into()));
        assert!(report["lost_frames"].as_u64() > Some(0), "{report}");
        assert!(report["naks_per_loss"].as_f64() < Some(10.0), "{report}");
    }
}

#[test]
fn messages_that_are_lost_for_good_are_told_and_end_with_4() {
    let args = ["sim", "--subscribers", "5", "--loss", "5%", "--reliability", "best-effort"];
    let ended = run(&args).expect(4);
    assert!(ended.stdout.iter().any(|line| line == "violations     0"), "{ended:#?}");
}
