//! `qcast bench throughput`: as fast as flow control lets it, with every message accounted for.

use std::time::Duration;

use qcast::DeviceSpec;
use serde::Serialize;
use serde_json::Value;

use super::tally::NUMBER;
use super::worker::{Job, Link, Published, Received};
use super::{Drive, unique};
use crate::cli::clock::now;
use crate::cli::exit::{Exit, Failure, Outcome};
use crate::cli::output::Output;
use crate::cli::process::{Process, Stderr};
use crate::cli::signals::Interrupt;
use crate::cli::values;
use qcast::proto::wire::frame::MAX_MESSAGE;

/// Measures how many messages a second reach every subscriber, and that none is lost on the way.
///
/// One process publishes as fast as it goes, others subscribe. Each message carries its number: what is
/// lost, comes twice or out of order is counted exactly, and makes the command end with 4.
#[derive(Debug, clap::Args)]
pub(crate) struct ThroughputArgs {
    #[command(flatten)]
    load: Load,

    /// Who drives the nodes
    #[arg(long, value_enum, default_value_t)]
    progress: Drive,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What is sent, to how many.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// The device
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    pub(crate) device: DeviceSpec,

    /// Subscribers, each a process
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) subscribers: u16,

    /// The size of a message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(NUMBER as i64..=MAX_MESSAGE as i64))]
    pub(crate) size: u32,

    /// How long to measure, after a warm-up
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    pub(crate) seconds: Duration,

    /// The share of datagrams that each subscriber loses
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share)]
    pub(crate) loss: f64,
}

/// What a measurement showed. Lists have an entry for each subscriber.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) transport: &'static str,
    pub(crate) device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Drive>,
    pub(crate) subscribers: u16,
    pub(crate) size: u32,
    pub(crate) seconds: f64,
    pub(crate) loss: f64,
    pub(crate) sent_messages: u64,
    pub(crate) received_messages: Vec<u64>,
    pub(crate) lost_messages: Vec<u64>,
    pub(crate) duplicate_messages: Vec<u64>,
    pub(crate) out_of_order_messages: Vec<u64>,
    /// Of the slowest subscriber.
    pub(crate) messages_per_second: f64,
    pub(crate) megabytes_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) naks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repairs: Option<u64>,
    pub(crate) cpu_seconds_per_million_messages: f64,
    /// Messages lost, repeated or disordered before those that count, at all subscribers together.
    pub(crate) warm_up_faults: u64,
    /// Datagrams that subscribers' operating system dropped because they were not taken in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overruns: Option<u64>,
}

impl Report {
    /// Messages that did not arrive once and in order.
    pub(crate) fn faults(&self) -> u64 {
        let lists = [&self.lost_messages, &self.duplicate_messages, &self.out_of_order_messages];
        lists.into_iter().flatten().sum::<u64>() + self.warm_up_faults
    }
}

pub(crate) fn run(args: &ThroughputArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let report = measure(&args.load, Transport::Qcast(args.progress), &interrupt)?;
    print(&report, args.json)?;
    Ok(if report.faults() == 0 { Exit::Done } else { Exit::Lost })
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// qcast.
    Qcast(Drive),
    /// Plain UDP multicast.
    Raw,
}

/// Time for processes to start and find each other, and for the last repairs.
const SLACK: Duration = Duration::from_secs(30);

/// Starts the processes, lets them run, and puts their numbers together.
pub(crate) fn measure(
    load: &Load,
    transport: Transport,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let deadline = now() + load.seconds + SLACK;
    let credits = match transport {
        Transport::Raw => Some(super::udp::CreditFile::create(load.subscribers)?),
        Transport::Qcast(_) => None,
    };
    let link = Link {
        device: load.device.to_string(),
        group: unique("throughput"),
        drive: match transport {
            Transport::Qcast(drive) => Some(drive),
            Transport::Raw => None,
        },
        place: super::udp::Place::new(),
        credits: credits.as_ref().map(|credits| credits.path().to_owned()),
        size: load.size,
        subscribers: load.subscribers,
        loss: load.loss,
    };
    let mut subscribers = Vec::new();
    for index in 0..load.subscribers {
        let job = Job::Subscribe { link: link.clone(), index };
        subscribers.push(start(format!("subscriber {index}"), &job, interrupt)?);
    }
    for subscriber in &mut subscribers {
        subscriber.wait_for("ready", deadline)?;
    }
    let job = Job::Publish { link, seconds: load.seconds.as_secs_f64() };
    let mut publisher = start("the publisher".into(), &job, interrupt)?;
    let published: Published = read(&publisher.wait_for("published", deadline)?)?;
    let mut received = Vec::new();
    for subscriber in &mut subscribers {
        // One that saw the end of the stream has reported already, and may be gone.
        let _ = subscriber.tell(&"stop");
        received.push(read::<Received>(&subscriber.wait_for("received", deadline)?)?);
    }
    Ok(put_together(load, transport, &published, &received))
}

/// Starts a worker with its job.
pub(crate) fn start(role: String, job: &Job, interrupt: &Interrupt) -> Result<Process, Failure> {
    // Faults and devices are the job's, not the environment's.
    let none = [("QCAST_FAULT", String::new())];
    let mut process = Process::start(role, &["bench", "worker"], &none, Stderr::Shown, interrupt)?;
    process.tell(job)?;
    Ok(process)
}

fn read<T: serde::de::DeserializeOwned>(report: &Value) -> Result<T, Failure> {
    T::deserialize(report)
        .map_err(|error| Failure::failed(format_args!("a process reported {report}: {error}")))
}

fn put_together(
    load: &Load,
    transport: Transport,
    published: &Published,
    received: &[Received],
) -> Report {
    let sent = published.messages;
    let list = |of: fn(&Received) -> u64| received.iter().map(of).collect::<Vec<_>>();
    let slowest = received.iter().map(Received::rate).fold(f64::INFINITY, f64::min);
    let cpu = published.cpu_seconds + received.iter().map(|r| r.cpu_seconds).sum::<f64>();
    let qcast = matches!(transport, Transport::Qcast(_));
    Report {
        transport: if qcast { "qcast" } else { "raw" },
        device: load.device.to_string(),
        progress: match transport {
            Transport::Qcast(drive) => Some(drive),
            Transport::Raw => None,
        },
        subscribers: load.subscribers,
        size: load.size,
        seconds: load.seconds.as_secs_f64(),
        loss: load.loss,
        sent_messages: sent,
        received_messages: list(|r| r.messages),
        lost_messages: received.iter().map(|r| sent.saturating_sub(r.messages)).collect(),
        duplicate_messages: list(|r| r.duplicates),
        out_of_order_messages: list(|r| r.out_of_order),
        messages_per_second: slowest,
        megabytes_per_second: slowest * f64::from(load.size) / 1e6,
        naks: qcast.then_some(published.naks),
        repairs: qcast.then_some(published.repairs),
        cpu_seconds_per_million_messages: if sent == 0 { 0.0 } else { cpu * 1e6 / sent as f64 },
        warm_up_faults: received.iter().map(|r| r.warm_faults).sum(),
        overruns: qcast.then(|| received.iter().map(|r| r.overruns).sum()),
    }
}

/// Prints a report.
pub(crate) fn print(report: &Report, json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json(report)?;
        return out.flush();
    }
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    let mut rows = vec![
        ("messages/s", format!("{:.0}", report.messages_per_second)),
        ("MB/s", format!("{:.1}", report.megabytes_per_second)),
        ("CPU", format!("{:.3} s per million messages", report.cpu_seconds_per_million_messages)),
        ("sent", report.sent_messages.to_string()),
        ("received", list(&report.received_messages)),
        ("lost", list(&report.lost_messages)),
        ("duplicates", list(&report.duplicate_messages)),
        ("out of order", list(&report.out_of_order_messages)),
    ];
    if let (Some(naks), Some(repairs)) = (report.naks, report.repairs) {
        rows.push(("NAKs", naks.to_string()));
        rows.push(("repairs", repairs.to_string()));
    }
    out.rows(&rows)?;
    out.flush()
}
