//! `qcast sim --membership`: thousands of members of one group in virtual time.

use std::time::Duration;

use qcast::simulate::{
    MembershipProgress, MembershipReport, MembershipSimulation, MembershipSimulationConfig,
};

use super::watch::watch;
use super::{SimArgs, Sound, Timed, failure, tell};
use crate::cli::clock::now;
use crate::cli::exit::Outcome;
use crate::cli::output::{Notes, Row};
use crate::cli::values;

/// What a simulation of members is of, beside the loss and the seed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Membership")]
pub(super) struct MembershipArgs {
    /// Simulate the members of a group: who sees whom join, leave and fail
    #[arg(long)]
    pub(super) membership: bool,

    /// Members, each a node of its own
    #[arg(long, value_name = "N", default_value_t = 100, requires = "membership")]
    members: usize,

    /// Virtual time in seconds; 300, or 65 with more than 2000 members (75 with 12000), if it is not given
    #[arg(long, value_name = "T", value_parser = values::seconds, requires = "membership")]
    seconds: Option<Duration>,

    /// Virtual time in minutes
    #[arg(long, value_name = "T", value_parser = minutes, requires = "membership", conflicts_with = "seconds")]
    minutes: Option<Duration>,

    /// Members that come, leave, crash, restart or pause, a minute; 60, or 240 with more than 2000 members, if it is
    /// not given
    #[arg(long, value_name = "N", requires = "membership")]
    churn: Option<f64>,

    /// Do not cut the group in two for a while; larger groups than 2000 never are
    #[arg(long, requires = "membership")]
    no_partition: bool,
}

pub(super) fn run(args: &SimArgs) -> Outcome {
    let mut config = MembershipSimulationConfig::new(args.membership.members, args.seed);
    config.loss = args.loss;
    if let Some(churn) = args.membership.churn {
        config.churn = churn;
    }
    config.partition &= !args.membership.no_partition;
    if let Some(duration) = args.membership.seconds.or(args.membership.minutes) {
        config.duration = duration;
    }
    let simulation = MembershipSimulation::new(config).map_err(|error| failure(&error))?;
    let (started, notes) = (now(), Notes::default());
    let report = watch(&notes, words, |place| simulation.run(|progress| place.is(*progress)))?;
    tell(args, &notes, &Timed::of(&report, started), rows)
}

impl Sound for MembershipReport {
    fn violations(&self) -> (&[String], u64) {
        (&self.described, self.violations)
    }
}

fn words(progress: &MembershipProgress) -> String {
    let at = progress.now.as_nanos() as f64 / 1e9;
    format!("{at:.1} s: {} members, {} violations", progress.members, progress.violations)
}

fn rows(timed: &Timed<'_, MembershipReport>) -> Vec<Row> {
    let r = timed.report;
    let times = |p99, max| format!("p99 {p99} ms, at most {max} ms");
    vec![
        ("members", r.members.to_string()),
        ("changes", r.changes.to_string()),
        ("joins seen", times(r.join_p99_ms, r.join_max_ms)),
        ("failures seen", times(r.failure_detect_p99_ms, r.failure_detect_max_ms)),
        ("false failures", r.false_failures.to_string()),
        ("refuted", format!("{} suspicions", r.refuted)),
        ("views that differ", r.view_disagreements.to_string()),
        (
            "each sends",
            format!(
                "{:.0} bytes in {:.2} datagrams a second",
                r.bytes_per_member_per_second, r.datagrams_per_member_per_second
            ),
        ),
        ("each receives", format!("{:.0} bytes a second", r.received_bytes_per_member_per_second)),
        ("virtual time", format!("{:.0} s", r.virtual_seconds)),
        ("wall time", format!("{:.2} s", timed.wall_seconds)),
        ("peak memory", format!("{:.0} MB", timed.peak_memory_bytes as f64 / 1e6)),
        ("seed", r.seed.to_string()),
        ("digest", r.digest.clone()),
        ("violations", r.violations.to_string()),
    ]
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|m| (0.1..=1440.0).contains(m));
    minutes
        .map(|m: f64| Duration::from_secs_f64(m * 60.0))
        .ok_or_else(|| "give a number of minutes, from 0.1 to a day".into())
}
