//! `qcast sim`: thousands of nodes in virtual time, on a fabric that loses what it is told to.

mod membership;
mod watch;

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use qcast::device::impair::Impairment;
use qcast::simulate::{
    Phase, Progress, Simulation, SimulationConfig, SimulationError, SimulationReport,
};
use qcast::{FlowPolicy, Reliability};
use serde::Serialize;

use super::clock::now;
use super::exit::{Chain, Exit, Failure, Outcome};
use super::output::{Notes, Output, Row, count};
use super::values;
use membership::MembershipArgs;
use watch::watch;

/// Simulates publishers and thousands of subscribers in virtual time.
///
/// The nodes are real, from the protocol down to queue pairs and receive queues; the fabric between them
/// is not. It loses, delays and repeats datagrams as it is told to, drawn from the seed: the same
/// command gives the same run. At the end everything that must hold is checked: every subscriber got each
/// message once and in order, or was told of the gap; nothing of another key reached anybody; all buffers are
/// back; requests and repairs stayed within bounds.
///
/// With --membership it simulates the members of a group instead, which come, leave, crash, restart and pause, and
/// are cut in two once. Of the other options only --loss, --seed and --json count then. What must hold: nobody
/// that lives is failed; joins and failures are seen by all in time; at the end all see the same members.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qcast sim --subscribers 100 --messages 10000 --loss 0.01
  qcast sim --subscribers 10000 --loss 0.1% --seed 7 --json
  qcast sim --subscribers 50 --loss 0.02 --burst 8 --reorder 0.01 --jitter 20us
  qcast sim --subscribers 200 --rate 5000 --slow 3
  qcast sim --membership --members 1000 --loss 0.05 --minutes 10 --json

Exit codes: 0 everything held, 1 something did not, 4 messages were lost and subscribers were told.")]
pub(crate) struct SimArgs {
    /// Subscribers, each a node of its own
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    subscribers: usize,

    /// Messages of each publisher
    #[arg(long, short, value_name = "N", default_value_t = 1000)]
    messages: u64,

    /// The size of a message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    size: usize,

    /// Publishers, each a node of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    publishers: usize,

    /// Messages a second of each publisher; as many as subscribers can take if it is not given
    #[arg(long, value_name = "N", value_parser = values::rate)]
    rate: Option<f64>,

    /// The share of datagrams that each receiver loses, such as 0.02 or 2%
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share)]
    loss: f64,

    /// How many are lost in a row, on average
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = burst)]
    burst: f64,

    /// The share of datagrams that later ones overtake
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share)]
    reorder: f64,

    /// The share of datagrams that come twice
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share)]
    duplicate: f64,

    /// The share of datagrams that arrive damaged
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share)]
    corrupt: f64,

    /// How long a datagram takes across the fabric; a round trip is twice that
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = span)]
    latency: Duration,

    /// Up to how much longer a datagram takes
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = span)]
    jitter: Duration,

    /// How long a node is busy with one turn
    #[arg(long, value_name = "TIME", default_value = "10us", value_parser = span)]
    turn: Duration,

    /// The path MTU in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    mtu: usize,

    /// Receives posted by each subscriber
    #[arg(long, value_name = "N", default_value_t = 512)]
    receives: usize,

    /// Frames that publishers retain for repairs
    #[arg(long, value_name = "FRAMES", default_value_t = 1024)]
    window: usize,

    /// Whom publishers wait for: slowest, quorum:N or unlimited
    #[arg(long, value_name = "POLICY", default_value = "slowest", value_parser = values::policy)]
    policy: FlowPolicy,

    /// How subscribers treat loss: ordered, unordered, best-effort or latest
    #[arg(long, value_name = "HOW", default_value = "ordered", value_parser = values::reliability)]
    reliability: Reliability,

    /// How many subscribers take their time
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow: usize,

    /// How long those take for each frame
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = span)]
    slow_pause: Duration,

    /// Where all that is drawn comes from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    membership: MembershipArgs,
}

/// The report, and what it took to get it.
#[derive(Debug, Serialize)]
struct Timed<'a, R: Serialize> {
    #[serde(flatten)]
    report: &'a R,
    wall_seconds: f64,
    peak_memory_bytes: u64,
}

impl<'a, R: Serialize> Timed<'a, R> {
    fn of(report: &'a R, started: Instant) -> Self {
        let wall_seconds = (now() - started).as_secs_f64();
        Self { report, wall_seconds, peak_memory_bytes: peak_memory() }
    }
}

/// What must hold of every simulation.
trait Sound: Serialize {
    /// What did not hold, how often in all.
    fn violations(&self) -> (&[String], u64);
}

impl Sound for SimulationReport {
    fn violations(&self) -> (&[String], u64) {
        (&self.described, self.violations)
    }
}

/// Prints a report as JSON, or else in `rows`; says what did not hold, and how to see it again.
fn tell<R: Sound>(
    args: &SimArgs,
    notes: &Notes,
    timed: &Timed<'_, R>,
    rows: fn(&Timed<'_, R>) -> Vec<Row>,
) -> Outcome {
    let mut out = Output::new();
    if args.json {
        out.json(timed)?;
    } else {
        out.rows(&rows(timed))?;
    }
    out.flush()?;
    let (described, violations) = timed.report.violations();
    if violations == 0 {
        return Ok(Exit::Done);
    }
    for violation in described {
        notes.say(violation);
    }
    let more = violations - described.len() as u64;
    if more > 0 {
        notes.say(format_args!("and {more} more"));
    }
    notes.say(format_args!("again: {}", again(args.seed)));
    Ok(Exit::Failed)
}

pub(crate) fn run(args: &SimArgs) -> Outcome {
    if args.membership.membership {
        return membership::run(args);
    }
    let simulation = Simulation::new(args.config()).map_err(|error| failure(&error))?;
    let (started, notes) = (now(), Notes::default());
    let report = watch(&notes, words, |place| simulation.run(|progress| place.is(*progress)))?
        .map_err(|error| failure(&error))?;
    let told = tell(args, &notes, &Timed::of(&report, started), rows)?;
    Ok(if told == Exit::Done && report.lost_events > 0 { Exit::Lost } else { told })
}

impl SimArgs {
    fn config(&self) -> SimulationConfig {
        let mut config = SimulationConfig::new(self.subscribers, self.messages, self.seed);
        config.size = self.size;
        config.publishers = self.publishers;
        config.rate = self.rate;
        config.path = Impairment::bursty(self.loss, self.burst);
        config.path.reorder = self.reorder;
        config.path.duplicate = self.duplicate;
        config.path.corrupt = self.corrupt;
        config.path.jitter = self.jitter;
        config.latency = self.latency;
        config.turn = self.turn;
        config.mtu = self.mtu;
        config.srq_depth = self.receives;
        config.window = self.window;
        config.policy = self.policy;
        config.reliability = self.reliability;
        config.slow = self.slow;
        config.slow_pause = self.slow_pause;
        config
    }
}

fn failure(error: &SimulationError) -> Failure {
    match error {
        SimulationError::OutOfRange { .. } => Failure::usage(error),
        _ => Failure::failed(Chain(error)),
    }
}

fn words(progress: &Progress) -> String {
    let at = progress.now.as_nanos() as f64 / 1e9;
    match progress.phase {
        Phase::Joining => format!("{at:.3} s: subscribers join"),
        Phase::Publishing => {
            let share = progress.delivered as f64 / progress.expected.max(1) as f64 * 100.0;
            format!("{at:.3} s: {share:.1}% delivered")
        }
        _ => format!("{at:.3} s: all leave"),
    }
}

fn rows(timed: &Timed<'_, SimulationReport>) -> Vec<Row> {
    let r = timed.report;
    vec![
        ("subscribers", r.subscribers.to_string()),
        (
            "messages",
            format!("{} of {} bytes, in {}", r.messages, r.size, count(r.frames, "frame")),
        ),
        ("delivered", count(r.delivered, "message")),
        (
            "lost",
            format!("{}, {} told", count(r.lost_frames, "frame"), count(r.lost_events, "gap")),
        ),
        ("NAKs", format!("{}, {:.2} a loss", r.naks, r.naks_per_loss)),
        (
            "repairs",
            format!(
                "{}, {:.2} a loss, {} to the group",
                r.repairs, r.repairs_per_loss, r.multicast_repairs
            ),
        ),
        (
            "repair time",
            format!("p50 {:.1}, p99 {:.1} round trips", r.repair_p50_rtt, r.repair_p99_rtt),
        ),
        ("wrong key", count(r.wrong_key, "datagram")),
        ("virtual time", format!("{:.3} s", r.virtual_seconds)),
        ("wall time", format!("{:.2} s", timed.wall_seconds)),
        ("peak memory", format!("{:.0} MB", timed.peak_memory_bytes as f64 / 1e6)),
        ("seed", r.seed.to_string()),
        ("digest", r.digest.clone()),
        ("violations", r.violations.to_string()),
    ]
}

/// The command that was given, with the seed in it.
fn again(seed: u64) -> String {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let seeded = given.iter().any(|arg| arg == "--seed" || arg.starts_with("--seed="));
    let mut command = format!("qcast {}", given.join(" "));
    if !seeded {
        command += &format!(" --seed {seed}");
    }
    command
}

/// The most memory that this process has had resident; 0 if the system does not say.
fn peak_memory() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0) * 1024)
}

/// A short time: a number with ns, us, ms or s.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || "give a time with its unit, such as 50us, 2ms or 0.5s".to_owned();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let nanos = match &text[at..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let number: f64 = text[..at].trim().parse().map_err(|_| wrong())?;
    // A minute: far beyond any fabric, and far from where times overflow.
    let span = Some(number * nanos).filter(|nanos| (0.0..=60e9).contains(nanos));
    span.map(|nanos| Duration::from_nanos(nanos as u64)).ok_or_else(wrong)
}

fn burst(text: &str) -> Result<f64, String> {
    let burst = text.parse().ok().filter(|burst| (1.0..=1e6).contains(burst));
    burst.ok_or_else(|| "give how many are lost in a row on average, 1 or more".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(span("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(span("0.5 s"), Ok(Duration::from_millis(500)));
        assert_eq!(span("0ns"), Ok(Duration::ZERO));
        for bad in ["", "50", "us", "-1us", "61s", "1m", "nans", "1e30s"] {
            assert!(span(bad).is_err(), "{bad}");
        }
        assert_eq!(burst("8"), Ok(8.0));
        for bad in ["0.5", "nan", "x", "1e9"] {
            assert!(burst(bad).is_err(), "{bad}");
        }
    }
}
