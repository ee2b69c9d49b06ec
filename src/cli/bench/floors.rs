//! `qcast bench floors`: the rates that qcast is held to, each against plain UDP in the same run.

use std::time::Duration;

use qcast::DeviceSpec;
use serde::Serialize;
use serde_json::json;

use super::Drive;
use super::latency::{self, LatencyArgs};
use super::throughput::{Load, Report, Transport, measure};
use crate::cli::exit::{Exit, Failure, Outcome};
use crate::cli::output::{Notes, Output, count};
use crate::cli::signals::Interrupt;
use crate::cli::values;

/// Measures everything that there is a floor for, in turns, and compares.
///
/// Throughput at 64, 1024 and 8192 bytes without loss and with 1 and 5 percent, for 1 and 3 subscribers,
/// plain UDP beside it, and latency. Measurements take turns, so that a busy minute of the machine hits
/// all of them; of the repetitions the median counts.
#[derive(Debug, clap::Args)]
pub(crate) struct FloorsArgs {
    /// The device
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    device: DeviceSpec,

    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    reps: u16,

    /// How long each is measured
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    seconds: Duration,

    /// Who drives the nodes
    #[arg(long, value_enum, default_value_t)]
    progress: Drive,

    /// Print the results as JSON objects, one a line
    #[arg(long)]
    json: bool,
}

const SIZES: [u32; 3] = [64, 1024, 8192];
const LOSSES: [f64; 3] = [0.0, 0.01, 0.05];
const SUBSCRIBERS: [u16; 2] = [1, 3];

/// One thing that is measured again and again.
struct Cell {
    load: Load,
    transport: Transport,
    reports: Vec<Report>,
}

impl Cell {
    fn is_qcast(&self) -> bool {
        matches!(self.transport, Transport::Qcast(_))
    }

    fn median(&self, of: impl Fn(&Report) -> f64) -> f64 {
        median(self.reports.iter().map(of).collect())
    }

    fn rate(&self) -> f64 {
        self.median(|report| report.messages_per_second)
    }

    fn faults(&self) -> u64 {
        self.reports.iter().map(Report::faults).sum()
    }
}

pub(crate) fn run(args: &FloorsArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let notes = Notes::default();
    let mut cells = cells(args);
    let latencies =
        [false, true].map(|raw| LatencyArgs::new(args.device.clone(), 64, args.seconds, raw));
    let mut p50 = [Vec::new(), Vec::new()];
    for rep in 1..=args.reps {
        notes.say(format_args!("round {rep} of {}", args.reps));
        for cell in &mut cells {
            cell.reports.push(measure(&cell.load, cell.transport, &interrupt)?);
        }
        for (args, p50) in latencies.iter().zip(&mut p50) {
            p50.push(latency::measure(args, &interrupt)?.rtt_p50_us);
        }
    }
    let [ours, raw] = p50.map(median);

    let mut out = Output::new();
    for cell in &cells {
        print_cell(cell, args.json, &mut out)?;
    }
    let mut all_held = true;
    let floors = floors(&cells, ours / raw);
    for floor in &floors {
        all_held &= floor.holds();
        if args.json {
            out.json(&json!({
                "event": "floor", "what": floor.what, "ratio": floor.ratio, "at_least": floor.at_least,
                "at_most": floor.at_most, "holds": floor.holds(),
            }))?;
        }
    }
    let faults: u64 = cells.iter().filter(|cell| cell.is_qcast()).map(Cell::faults).sum();
    if !args.json {
        out.line(b"")?;
        for floor in &floors {
            out.line(floor.line().as_bytes())?;
        }
        out.line(format!("latency p50: {ours:.1} us, plain UDP {raw:.1} us").as_bytes())?;
        out.line(
            format!("messages lost, repeated or out of order in all runs of qcast: {faults}")
                .as_bytes(),
        )?;
    }
    out.flush()?;
    Ok(match (faults, all_held) {
        (0, true) => Exit::Done,
        (0, false) => Exit::Failed,
        _ => Exit::Lost,
    })
}

/// Everything that is measured. What is compared stands together, so that it is measured together.
fn cells(args: &FloorsArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for subscribers in SUBSCRIBERS {
        for size in SIZES {
            let load = |size, loss| Load {
                device: args.device.clone(),
                subscribers,
                size,
                seconds: args.seconds,
                loss,
            };
            for loss in LOSSES {
                let transport = Transport::Qcast(args.progress);
                cells.push(Cell { load: load(size, loss), transport, reports: Vec::new() });
            }
            // A datagram of plain UDP is at most as large as the path MTU.
            let load = load(size.min(PATH_MTU), 0.0);
            cells.push(Cell { load, transport: Transport::Raw, reports: Vec::new() });
        }
    }
    cells
}

/// The largest path MTU that RoCE has.
const PATH_MTU: u32 = 4096;

fn print_cell(cell: &Cell, json: bool, out: &mut Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Printed<'a> {
        event: &'a str,
        transport: &'a str,
        subscribers: u16,
        size: u32,
        loss: f64,
        messages_per_second: f64,
        megabytes_per_second: f64,
        cpu_seconds_per_million_messages: f64,
        faults: u64,
    }
    let Load { subscribers, size, loss, .. } = cell.load;
    let printed = Printed {
        event: "cell",
        transport: if cell.is_qcast() { "qcast" } else { "raw" },
        subscribers,
        size,
        loss,
        messages_per_second: cell.rate(),
        megabytes_per_second: cell.median(|report| report.megabytes_per_second),
        cpu_seconds_per_million_messages: cell
            .median(|report| report.cpu_seconds_per_million_messages),
        faults: cell.faults(),
    };
    if json {
        return out.json(&printed);
    }
    let line = format!(
        "{:<6} {subscribers} x {size:>4} B  loss {:>3} %  {:>10.0} messages/s  {:>7.1} MB/s  {:>7.3} CPU s/M  {} faults",
        printed.transport,
        loss * 100.0,
        printed.messages_per_second,
        printed.megabytes_per_second,
        printed.cpu_seconds_per_million_messages,
        printed.faults,
    );
    out.line(line.as_bytes())
}

/// A ratio, and what it has to be.
#[derive(Debug)]
struct Floor {
    what: String,
    ratio: f64,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl Floor {
    fn at_least(what: String, ratio: f64, floor: f64) -> Self {
        Self { what, ratio, at_least: Some(floor), at_most: None }
    }

    fn holds(&self) -> bool {
        self.at_least.is_none_or(|floor| self.ratio >= floor)
            && self.at_most.is_none_or(|ceiling| self.ratio <= ceiling)
    }

    fn line(&self) -> String {
        let Self { what, ratio, at_least, at_most } = self;
        let bound = match (at_least, at_most) {
            (Some(floor), _) => format!("at least {floor}"),
            (_, Some(ceiling)) => format!("at most {ceiling}"),
            _ => "no floor yet".to_owned(),
        };
        let verdict = if self.holds() { "ok" } else { "NOT REACHED" };
        format!("{what}: {ratio:.2} ({bound}) {verdict}")
    }
}

fn floors(cells: &[Cell], latency: f64) -> Vec<Floor> {
    let find = |subscribers: u16, size: u32, loss: f64, qcast: bool| {
        let wanted = |cell: &&Cell| {
            cell.load.subscribers == subscribers
                && cell.load.size == size
                && cell.load.loss == loss
                && cell.is_qcast() == qcast
        };
        cells.iter().find(wanted).map_or(f64::NAN, Cell::rate)
    };
    let mut floors = Vec::new();
    for (size, raw_size, floor) in [(64, 64, 10.0), (1024, 1024, 1.5), (8192, PATH_MTU, 0.6)] {
        // In bytes a second, since the sizes may differ.
        let ours = find(1, size, 0.0, true) * f64::from(size);
        let raw = find(1, raw_size, 0.0, false) * f64::from(raw_size);
        let what = format!("{size} B, 1 subscriber, against plain UDP of {raw_size} B");
        floors.push(Floor::at_least(what, ours / raw, floor));
    }
    for subscribers in SUBSCRIBERS {
        for size in SIZES {
            let ratio = find(subscribers, size, 0.05, true) / find(subscribers, size, 0.0, true);
            let what = format!(
                "{size} B, {}, 5 % loss against none",
                count(subscribers.into(), "subscriber")
            );
            floors.push(Floor::at_least(what, ratio, 0.5));
        }
    }
    let what = "latency p50, 64 B, against plain UDP".to_owned();
    floors.push(Floor { what, ratio: latency, at_least: None, at_most: None });
    floors
}

/// The middle one; of an even number the lower of the two. Not a number of none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.0);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn a_ratio_that_is_no_number_holds_no_floor() {
        assert!(!Floor::at_least(String::new(), f64::NAN, 0.5).holds());
        assert!(Floor::at_least(String::new(), 0.5, 0.5).holds());
    }

    #[test]
    fn every_floor_finds_its_cells() {
        let args = FloorsArgs {
            device: DeviceSpec::Auto,
            reps: 1,
            seconds: Duration::from_secs(1),
            progress: Drive::Thread,
            json: false,
        };
        let mut cells = cells(&args);
        for cell in &mut cells {
            cell.reports.push(Report {
                transport: "",
                device: String::new(),
                progress: None,
                subscribers: 1,
                size: 1,
                seconds: 1.0,
                loss: 0.0,
                sent_messages: 1,
                received_messages: vec![1],
                lost_messages: vec![0],
                duplicate_messages: vec![0],
                out_of_order_messages: vec![0],
                messages_per_second: 1.0,
                megabytes_per_second: 1.0,
                naks: None,
                repairs: None,
                cpu_seconds_per_million_messages: 0.0,
                warm_up_faults: 0,
                overruns: None,
            });
        }
        for floor in floors(&cells, 1.0) {
            assert!(floor.ratio.is_finite(), "{floor:?}");
        }
    }
}
