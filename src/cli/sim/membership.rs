//! `qcast sim --membership`: thousands of members of one group in virtual time.

use std::io::IsTerminal;
use std::time::Duration;

use qcast::simulate::{MembershipReport, MembershipSimulation, MembershipSimulationConfig};

use super::super::clock::{Every, now};
use super::super::exit::{Exit, Failure, Outcome};
use super::super::output::{Notes, Output};
use super::super::values;
use super::{SimArgs, Timed, failure, tell_violations};

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
    let started = now();
    let mut told = Every::new(Duration::from_secs(2));
    let mut notes = Notes::default();
    if std::io::stderr().is_terminal() {
        told = Every::new(Duration::from_millis(200));
    }
    let report = simulation.run(|progress| {
        if told.is_due() {
            let at = progress.now.as_nanos() as f64 / 1e9;
            let (members, violations) = (progress.members, progress.violations);
            notes.say(format_args!("{at:.1} s: {members} members, {violations} violations"));
        }
    });
    notes.hide_bar();
    let timed = Timed::of(&report, started);
    let mut out = Output::new();
    if args.json {
        out.json(&timed)?;
    } else {
        table(&mut out, &timed)?;
    }
    out.flush()?;
    if report.is_sound() {
        return Ok(Exit::Done);
    }
    tell_violations(&mut notes, &report.described, report.violations, args.seed);
    Ok(Exit::Failed)
}

fn table(out: &mut Output, timed: &Timed<'_, MembershipReport>) -> Result<(), Failure> {
    let r = timed.report;
    let times = |p99, max| format!("p99 {p99} ms, at most {max} ms");
    let rows = [
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
    ];
    for (label, value) in rows {
        out.line(format!("{label:<17} {value}").as_bytes())?;
    }
    Ok(())
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|m| (0.1..=1440.0).contains(m));
    minutes
        .map(|m: f64| Duration::from_secs_f64(m * 60.0))
        .ok_or_else(|| "give a number of minutes, from 0.1 to a day".into())
}
