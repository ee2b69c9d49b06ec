//! Seeds: a few always, many by `QCAST_SEEDS=n`, one by `QCAST_SEED=s`.

use proptest::test_runner::Config as ProptestConfig;

/// Runs `scenario` with each seed, and says how to run a failing one again.
pub(crate) fn each_seed(scenario: impl Fn(u64)) {
    some_seeds(3, scenario);
}

/// As [`each_seed`], with `few` seeds when nothing else is asked for.
pub(crate) fn some_seeds(few: u64, scenario: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("QCAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("QCAST_SEEDS").unwrap_or(few).min(MOST_SEEDS),
    };
    for seed in seeds {
        let _told_on_panic = Told(seed);
        scenario(seed);
    }
}

/// More would be a loop that nobody waits for.
const MOST_SEEDS: u64 = 100_000;

/// Prints the seed and the command when a scenario panics.
pub(crate) struct Told(pub(crate) u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("");
            eprintln!(
                "seed {seed} failed; run it again with:\n  \
                 QCAST_SEED={seed} cargo test -p qcast-proto --test {} {name} -- --exact --nocapture",
                env!("CARGO_CRATE_NAME"),
            );
        }
    }
}

/// So many cases of a property, or as many as `PROPTEST_CASES` says. What fails is printed whole.
pub(crate) fn cases(few: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(few);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
