//! `qcast sim`: the keys that other tools rely on, and the same seed twice.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{DEADLINE, Run, expect_keys, now, run};

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
    assert!(ended.stdout.iter().any(|line| line == "violations    0"), "{ended:#?}");
}

/// A simulation of `args` that would take many minutes is asked to end once it has said how far it is.
fn interrupted(args: &[&str], signal: Signal, how_far: &str) {
    let mut run = Run::start(args);
    run.says(how_far);
    run.signal(signal);
    let asked = now();
    let ended = run.end().expect(1);
    // Not to the end of what it was at; no machine is so slow.
    assert!(asked.elapsed() < DEADLINE / 2, "{:?}", asked.elapsed());
    assert!(ended.stdout.is_empty(), "{ended:#?}");
    let last = ended.stderr.last().map_or("", |line| line);
    assert!(last.starts_with("qcast: interrupted at ") && last.contains(how_far), "{ended:#?}");
}

#[test]
fn a_signal_ends_it_and_it_says_how_far_it_was() {
    let large = ["sim", "--subscribers", "300", "--messages", "10000000", "--json"];
    interrupted(&large, Signal::SIGINT, "% delivered");
    let long = ["sim", "--membership", "--members", "300", "--minutes", "1440"];
    interrupted(&long, Signal::SIGTERM, " members, 0 violations");
}

#[test]
fn a_signal_ends_it_before_it_has_begun() {
    let run = Run::start(&["sim", "--subscribers", "16000", "--messages", "1000000"]);
    let begun = now();
    while !catches_sigint(run.id()) {
        assert!(begun.elapsed() < DEADLINE, "it took no signal over");
        std::thread::yield_now();
    }
    run.signal(Signal::SIGINT);
    let ended = run.end().expect(1);
    assert!(ended.said().contains("interrupted "), "{ended:#?}");
}

/// Whether the process has taken the signal over.
fn catches_sigint(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.expect("Linux says it").trim(), 16).expect("a mask");
    caught & (1 << (Signal::SIGINT as u32 - 1)) != 0
}
