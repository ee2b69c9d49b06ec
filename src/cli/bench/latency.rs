//! `qcast bench latency`: the time of a request and its answer, between two processes over two groups.

use std::time::{Duration, Instant};

use qcast::{Delivery, DeviceSpec, Group, Publisher, Subscriber};
use serde::Serialize;

use super::tally::{self, Mark, NUMBER};
use super::worker::{self, Job, Link, Stop, WARM_UP, report_ready};
use super::{Drive, udp, unique};
use crate::cli::clock::{Pace, now};
use crate::cli::exit::{Chain, Exit, Failure, Outcome};
use crate::cli::output::Output;
use crate::cli::signals::Interrupt;
use crate::cli::values;

/// Measures how long a message takes to another process and back.
///
/// Requests go out at a steady rate, whatever became of those before; each answer is timed from when its
/// request was sent.
#[derive(Debug, clap::Args)]
pub(crate) struct LatencyArgs {
    /// The device
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    device: DeviceSpec,

    /// The size of a message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(NUMBER as i64..=udp::MAX_SIZE as i64))]
    size: u32,

    /// Requests a second
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::rate)]
    rate: f64,

    /// How long to measure, after a warm-up
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    seconds: Duration,

    /// Who drives the nodes
    #[arg(long, value_enum, default_value_t, conflicts_with = "raw")]
    progress: Drive,

    /// Measure plain UDP multicast instead: the machine's limit
    #[arg(long)]
    raw: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a measurement showed.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) transport: &'static str,
    pub(crate) device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Drive>,
    pub(crate) size: u32,
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
    pub(crate) samples: u64,
    /// Requests without an answer.
    pub(crate) unanswered: u64,
    pub(crate) rtt_p50_us: f64,
    pub(crate) rtt_p99_us: f64,
    pub(crate) rtt_p999_us: f64,
}

/// Requests that are sent at most, so that their times fit in memory.
const MAX_REQUESTS: f64 = 2e7;

pub(crate) fn run(args: &LatencyArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let report = measure(args, &interrupt)?;
    let mut out = Output::new();
    if args.json {
        out.json(&report)?;
    } else {
        out.rows(&[
            ("p50", format!("{:.1} us", report.rtt_p50_us)),
            ("p99", format!("{:.1} us", report.rtt_p99_us)),
            ("p99.9", format!("{:.1} us", report.rtt_p999_us)),
            ("samples", report.samples.to_string()),
            ("unanswered", report.unanswered.to_string()),
        ])?;
    }
    out.flush()?;
    if report.samples == 0 {
        return Err(Failure::failed("no request was answered"));
    }
    Ok(if report.unanswered > 0 && !args.raw { Exit::Lost } else { Exit::Done })
}

impl LatencyArgs {
    /// As the command line would have it.
    pub(crate) fn new(device: DeviceSpec, size: u32, seconds: Duration, raw: bool) -> Self {
        Self { device, size, rate: 1000.0, seconds, progress: Drive::Thread, raw, json: false }
    }
}

pub(crate) fn measure(args: &LatencyArgs, interrupt: &Interrupt) -> Result<Report, Failure> {
    if args.rate * args.seconds.as_secs_f64() > MAX_REQUESTS {
        return Err(Failure::usage(format_args!(
            "--rate times --seconds is more than {MAX_REQUESTS:.0} requests"
        )));
    }
    let drive = (!args.raw).then_some(args.progress);
    let link = Link {
        device: args.device.to_string(),
        group: unique("latency"),
        drive,
        place: udp::Place::new(),
        credits: None,
        size: args.size,
        subscribers: 1,
        loss: 0.0,
    };
    let deadline = now() + args.seconds + Duration::from_secs(30);
    let mut echo =
        super::throughput::start("the echo".into(), &Job::Echo { link: link.clone() }, interrupt)?;
    echo.wait_for("ready", deadline)?;
    let mut conversation = match drive {
        Some(drive) => Conversation::Qcast(Box::new(Asking::open(&link, drive)?)),
        None => Conversation::Raw(udp::Ends::asking(&link)?),
    };
    let mut times = Times { answers: Vec::new(), sent: Vec::new(), first: 0 };
    let mut message = vec![0xa5; args.size as usize];
    ask(&mut conversation, &mut message, &mut times, args.rate, WARM_UP, interrupt)?;
    times.first = times.sent.len();
    times.answers.clear();
    ask(&mut conversation, &mut message, &mut times, args.rate, args.seconds, interrupt)?;
    let requests = (times.sent.len() - times.first) as u64;
    let mut answers = times.answers;
    answers.sort_unstable();
    let samples = answers.len() as u64;
    Ok(Report {
        transport: if args.raw { "raw" } else { "qcast" },
        device: link.device,
        progress: drive,
        size: args.size,
        rate: args.rate,
        seconds: args.seconds.as_secs_f64(),
        samples,
        unanswered: requests.saturating_sub(samples),
        rtt_p50_us: percentile(&answers, 0.5),
        rtt_p99_us: percentile(&answers, 0.99),
        rtt_p999_us: percentile(&answers, 0.999),
    })
}

/// When requests were sent, and how long their answers took.
struct Times {
    sent: Vec<Instant>,
    /// Requests before this one do not count.
    first: usize,
    answers: Vec<Duration>,
}

impl Times {
    fn take(&mut self, message: &[u8]) {
        let Some((number, _)) = tally::read(message) else { return };
        let Ok(number) = usize::try_from(number) else { return };
        if let Some(sent) = self.sent.get(number).filter(|_| number >= self.first) {
            self.answers.push(sent.elapsed());
        }
    }
}

/// After the last request, answers are waited for so long.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

fn ask(
    conversation: &mut Conversation,
    message: &mut [u8],
    times: &mut Times,
    rate: f64,
    seconds: Duration,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let end = now() + seconds;
    let mut pace = Pace::new(rate);
    loop {
        let due = pace.next();
        if due >= end {
            break;
        }
        if interrupt.is_asked() {
            return Err(Failure::failed("interrupted"));
        }
        conversation.receive_until(due, times)?;
        tally::stamp(message, times.sent.len() as u64, Mark::Counted);
        times.sent.push(now());
        conversation.send(message)?;
        pace.step();
    }
    let end = now() + LAST_ANSWERS;
    let wanted = times.sent.len() - times.first;
    while times.answers.len() < wanted && now() < end {
        conversation.receive_until(now() + LAST_ANSWERS / 50, times)?;
    }
    Ok(())
}

/// What carries requests and answers.
enum Conversation {
    Qcast(Box<Asking>),
    Raw(udp::Ends),
}

impl Conversation {
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Qcast(asking) => {
                asking.requests.send(message).map_err(|error| Failure::failed(Chain(&error)))
            }
            Self::Raw(ends) => ends.send(message),
        }
    }

    /// Takes answers until `due`.
    fn receive_until(&mut self, due: Instant, times: &mut Times) -> Result<(), Failure> {
        loop {
            let left = due.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(());
            }
            match self {
                Self::Qcast(asking) => match asking.answers.recv_timeout(left) {
                    Ok(Some(Delivery::Message(message))) => times.take(&message),
                    Ok(_) => {}
                    Err(error) => return Err(Failure::failed(Chain(&error))),
                },
                Self::Raw(ends) => {
                    if let Some(message) = ends.receive_within(left)? {
                        times.take(message);
                    }
                }
            }
        }
    }
}

/// The side that asks.
struct Asking {
    requests: Publisher,
    answers: Subscriber,
}

impl Asking {
    fn open(link: &Link, drive: Drive) -> Result<Self, Failure> {
        let (there, back) = join_both(link, drive)?;
        let (requests, answers) = (open_publisher(&there)?, open_subscriber(&back)?);
        if requests.wait_for(1, PATIENCE) == 0 {
            return Err(Failure::failed("the echo does not subscribe"));
        }
        Ok(Self { requests, answers })
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

fn join_both(link: &Link, drive: Drive) -> Result<(Group, Group), Failure> {
    let there = worker::join(link, drive, None)?;
    let back = there
        .node()
        .group(format!("{} back", link.group))
        .join()
        .map_err(|error| Failure::environment(Chain(&error)))?;
    Ok((there, back))
}

fn open_publisher(group: &Group) -> Result<Publisher, Failure> {
    group.publisher().open().map_err(|error| Failure::because("cannot publish", &error))
}

fn open_subscriber(group: &Group) -> Result<Subscriber, Failure> {
    group.subscriber().open().map_err(|error| Failure::because("cannot subscribe", &error))
}

/// Sends back what comes.
pub(crate) fn echo(link: &Link, drive: Drive, stop: &Stop) -> Result<(), Failure> {
    let (there, back) = join_both(link, drive)?;
    let (mut requests, mut answers) = (open_subscriber(&there)?, open_publisher(&back)?);
    report_ready()?;
    while !stop.is_asked() {
        match requests.recv_timeout(Duration::from_millis(50)) {
            Ok(Some(Delivery::Message(message))) => {
                answers.send(&message).map_err(|error| Failure::failed(Chain(&error)))?;
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::failed(Chain(&error))),
        }
    }
    Ok(())
}

/// The time in microseconds that a share of all stays within; 0 of none.
fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times: Vec<_> = (1..=1000).map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 0.5), 500.0);
        assert_eq!(percentile(&times, 0.99), 990.0);
        assert_eq!(percentile(&times, 0.999), 999.0);
        assert_eq!(percentile(&times[..1], 0.999), 1.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
