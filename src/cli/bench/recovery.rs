//! `qcast bench recovery`: what it costs to bring a queue pair back, and what a stream sees of it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use qcast::device::open::{DeviceOptions, open};
use qcast::device::{Device, DeviceError, DeviceEvent, QpId};
use qcast::proto::addr::{Gid, Psn, QKey, group_address, group_address_v6};
use qcast::proto::qp::{
    Attr, Path, QpAttrs, QpState, QpType, RawQKey, UdSetup, reset_walk, walk_to_rts,
};
use qcast::proto::time;
use qcast::{Delivery, DeviceSpec, Group, Node, Notice, Publisher, Subscriber};
use serde::Serialize;

use super::tally::{self, Mark, Tally};
use super::unique;
use crate::cli::clock::{Pace, now};
use crate::cli::exit::{Chain, Exit, Failure, Outcome};
use crate::cli::output::Output;
use crate::cli::signals::Interrupt;
use crate::cli::values;

/// Measures how a queue pair comes back from ERR, and how long a stream stands still meanwhile.
///
/// First, in turns: the walk through RESET on the same queue pair, which keeps its number and its
/// membership; and destroying it and making another, which has to join the group anew. Then a stream runs,
/// and first the publisher's queue pair, then the subscriber's is moved to ERR behind its node's back.
#[derive(Debug, clap::Args)]
pub(crate) struct RecoveryArgs {
    /// The device
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    device: DeviceSpec,

    /// How often each way is measured
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    samples: u16,

    /// How long the stream runs for each of the two queue pairs
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = values::seconds)]
    seconds: Duration,

    /// Messages a second of the stream
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::rate)]
    rate: f64,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a measurement showed.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    samples: u16,
    /// ERR to RTS on the same queue pair.
    reset_walk_p50_us: f64,
    /// Leave, destroy, create, walk to RTS, and join again.
    recreate_p50_us: f64,
    /// The second over the first.
    ratio: f64,
    /// Of the second, what is not the group's: destroy, create and walk.
    recreate_without_group_p50_us: f64,
    /// The longest pause between two messages when the publisher's queue pair went to ERR.
    stream_gap_ms: f64,
    /// The same when the subscriber's did.
    subscriber_gap_ms: f64,
    /// The longest pause before anything was disturbed.
    calm_gap_ms: f64,
    sent_messages: u64,
    lost_messages: u64,
    duplicate_messages: u64,
}

pub(crate) fn run(args: &RecoveryArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let mut times = Times::default();
    let mut bench = QueuePair::open(&args.device)?;
    // The first of each loads what is loaded once.
    for round in 0..=args.samples {
        if interrupt.is_asked() {
            return Err(Failure::failed("interrupted"));
        }
        let sample = bench.sample().map_err(|error| Failure::failed(Chain(&error)))?;
        if round > 0 {
            times.take(sample);
        }
    }
    drop(bench);
    let stream = Stream::open(&args.device)?.run(args.rate, args.seconds, &interrupt)?;
    let (walk, recreate) = (median(times.walk), median(times.recreate));
    let report = Report {
        device: args.device.to_string(),
        samples: args.samples,
        reset_walk_p50_us: walk,
        recreate_p50_us: recreate,
        ratio: if walk > 0.0 { recreate / walk } else { 0.0 },
        recreate_without_group_p50_us: median(times.recreate_without_group),
        stream_gap_ms: stream.gap[Phase::Publisher as usize],
        subscriber_gap_ms: stream.gap[Phase::Subscriber as usize],
        calm_gap_ms: stream.gap[Phase::Calm as usize],
        sent_messages: stream.sent,
        lost_messages: stream.sent.saturating_sub(stream.tally.received),
        duplicate_messages: stream.tally.duplicates,
    };
    print(&report, args.json)?;
    let whole = report.lost_messages == 0 && report.duplicate_messages == 0;
    Ok(if whole { Exit::Done } else { Exit::Lost })
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json(report)?;
        return out.flush();
    }
    out.rows(&[
        ("walk through RESET", format!("{:.1} us", report.reset_walk_p50_us)),
        ("another queue pair", format!("{:.1} us", report.recreate_p50_us)),
        ("without the group", format!("{:.1} us", report.recreate_without_group_p50_us)),
        ("ratio", format!("{:.1}", report.ratio)),
        ("publisher's gap", format!("{:.1} ms", report.stream_gap_ms)),
        ("subscriber's gap", format!("{:.1} ms", report.subscriber_gap_ms)),
        ("calm gap", format!("{:.1} ms", report.calm_gap_ms)),
        ("sent", report.sent_messages.to_string()),
        ("lost", report.lost_messages.to_string()),
        ("duplicates", report.duplicate_messages.to_string()),
    ])?;
    out.flush()
}

/// What each round took.
#[derive(Debug, Default)]
struct Times {
    walk: Vec<Duration>,
    recreate: Vec<Duration>,
    recreate_without_group: Vec<Duration>,
}

impl Times {
    fn take(&mut self, [walk, recreate, without_group]: [Duration; 3]) {
        self.walk.push(walk);
        self.recreate.push(recreate);
        self.recreate_without_group.push(without_group);
    }
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
}

/// A queue pair that is a member of a group, on a device without an engine.
struct QueuePair {
    device: Box<dyn Device>,
    qp: QpId,
    mgid: Gid,
    qkey: u32,
    start: Instant,
}

/// How long a join may take.
const PATIENCE: Duration = Duration::from_secs(10);

impl QueuePair {
    fn open(spec: &DeviceSpec) -> Result<Self, Failure> {
        let options = DeviceOptions { mtu: None, srq_depth: 256, fault: None };
        let mut device =
            open(spec, options).map_err(|error| Failure::environment(Chain(&error)))?;
        let name = unique("recovery");
        let mgid = match device.port().gid.ip() {
            IpAddr::V4(_) => Gid::from(IpAddr::from(group_address(&name))),
            IpAddr::V6(_) => Gid::from(IpAddr::from(group_address_v6(&name))),
        };
        let qkey = QKey::derive(&name, b"").get();
        let failed = |error: DeviceError| Failure::environment(Chain(&error));
        let qp = device.create_qp().map_err(failed)?;
        let mut made = Self { device, qp, mgid, qkey, start: now() };
        made.bring_up().and_then(|()| made.join()).map_err(failed)?;
        Ok(made)
    }

    /// One of each: the walk, the whole way with another queue pair, and the part of it that is not the group's.
    fn sample(&mut self) -> Result<[Duration; 3], DeviceError> {
        self.break_it()?;
        let start = now();
        self.walk(QpState::Err, &reset_walk(QpState::Err))?;
        let walk = start.elapsed();
        self.break_it()?;
        let start = now();
        self.device.leave(self.qp, self.mgid)?;
        let left = now();
        self.device.destroy_qp(self.qp)?;
        self.qp = self.device.create_qp()?;
        self.bring_up()?;
        let without_group = left.elapsed();
        self.join()?;
        Ok([walk, start.elapsed(), without_group])
    }

    fn break_it(&mut self) -> Result<(), DeviceError> {
        self.device.modify_qp(self.qp, &QpAttrs::to(QpState::Err))
    }

    fn bring_up(&mut self) -> Result<(), DeviceError> {
        match self.device.caps().new_qp {
            QpState::Rts => {
                let key = QpAttrs::new().with(Attr::QKey(RawQKey(self.qkey)));
                self.device.modify_qp(self.qp, &key)
            }
            state => self.walk(state, &walk_to_rts(state)),
        }
    }

    fn walk(&mut self, from: QpState, path: &Path) -> Result<(), DeviceError> {
        debug_assert_eq!(path.hops(QpType::Ud).next().map(|hop| hop.from), Some(from));
        let port = self.device.port().port;
        let setup = UdSetup { pkey_index: 0, port, qkey: RawQKey(self.qkey), sq_psn: Psn::new(0) };
        for hop in path.hops(QpType::Ud) {
            let attrs = setup.attrs(hop.from, hop.to).expect("every hop of a walk is legal");
            self.device.modify_qp(self.qp, &attrs)?;
        }
        Ok(())
    }

    fn join(&mut self) -> Result<(), DeviceError> {
        self.device.join(self.qp, self.mgid)?;
        let begun = now();
        while begun.elapsed() < PATIENCE {
            self.device.advance(time::Instant::ZERO + self.start.elapsed());
            match self.device.poll_event() {
                Some(DeviceEvent::Joined { qp, .. }) if qp == self.qp => return Ok(()),
                Some(DeviceEvent::JoinFailed { qp, error, .. }) if qp == self.qp => {
                    return Err(error);
                }
                _ => std::thread::yield_now(),
            }
        }
        Err(DeviceError::Os {
            call: "the join",
            source: std::io::Error::from(std::io::ErrorKind::TimedOut),
        })
    }
}

/// A publisher and a subscriber on nodes of their own.
struct Stream {
    publisher: Publisher,
    subscriber: Subscriber,
    groups: [Group; 2],
}

/// What a stream goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Calm,
    Publisher,
    Subscriber,
}

/// What came of it.
#[derive(Debug, Default)]
struct Seen {
    sent: u64,
    tally: Tally,
    /// The longest pause in each phase, in milliseconds.
    gap: [f64; 3],
    last: Option<Instant>,
    /// Messages that subscribers were told are lost.
    closed: bool,
}

impl Stream {
    fn open(device: &DeviceSpec) -> Result<Self, Failure> {
        let name = unique("recovery");
        let join = || {
            let node = Node::builder().device(device.clone()).open();
            let node = node.map_err(|error| Failure::environment(Chain(&error)))?;
            node.group(&name).join().map_err(|error| Failure::environment(Chain(&error)))
        };
        let groups = [join()?, join()?];
        let subscriber = groups[1]
            .subscriber()
            .open()
            .map_err(|error| Failure::because("cannot subscribe", &error))?;
        let publisher = groups[0]
            .publisher()
            .linger(PATIENCE)
            .open()
            .map_err(|error| Failure::because("cannot publish", &error))?;
        if publisher.wait_for(1, PATIENCE) == 0 {
            return Err(Failure::failed("the subscriber did not come"));
        }
        Ok(Self { publisher, subscriber, groups })
    }

    fn run(mut self, rate: f64, each: Duration, interrupt: &Interrupt) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        let mut message = [0xa5; 256];
        for phase in [Phase::Calm, Phase::Publisher, Phase::Subscriber] {
            let start = now();
            let mut pace = Pace::new(rate);
            let mut whole = true;
            while now() < start + each {
                if interrupt.is_asked() {
                    return Err(Failure::failed("interrupted"));
                }
                seen.take_until(&mut self.subscriber, pace.next(), phase)?;
                // In the middle, when the stream has come to its pace.
                if whole && phase != Phase::Calm && start.elapsed() > each / 3 {
                    let broken = &self.groups[usize::from(phase == Phase::Subscriber)];
                    broken.break_qp().map_err(|error| Failure::failed(Chain(&error)))?;
                    whole = false;
                }
                tally::stamp(&mut message, seen.sent, Mark::Counted);
                self.publisher
                    .send_timeout(&message, PATIENCE)
                    .map_err(|error| Failure::failed(Chain(&error)))?;
                seen.sent += 1;
                pace.step();
            }
            self.publisher.flush();
            // What is still on its way belongs to this phase.
            let end = now() + PATIENCE;
            while seen.tally.received < seen.sent && now() < end && !seen.closed {
                seen.take_until(&mut self.subscriber, now() + PATIENCE / 100, phase)?;
            }
            seen.last = None;
        }
        Ok(seen)
    }
}

impl Seen {
    /// Takes what comes until `due`.
    fn take_until(
        &mut self,
        subscriber: &mut Subscriber,
        due: Instant,
        phase: Phase,
    ) -> Result<(), Failure> {
        loop {
            let left = due.saturating_duration_since(now());
            if left.is_zero() || self.closed {
                return Ok(());
            }
            match subscriber.recv_timeout(left) {
                Ok(Some(Delivery::Message(message))) => self.take(&message, phase),
                Ok(Some(Delivery::Notice(
                    Notice::PublisherClosed(_) | Notice::PublisherLost(_),
                ))) => self.closed = true,
                Ok(_) => {}
                Err(error) => return Err(Failure::failed(Chain(&error))),
            }
        }
    }

    fn take(&mut self, message: &[u8], phase: Phase) {
        let Some((number, mark)) = tally::read(message) else { return };
        self.tally.note(number, mark);
        let at = now();
        if let Some(last) = self.last.replace(at) {
            let gap = (at - last).as_secs_f64() * 1e3;
            self.gap[phase as usize] = self.gap[phase as usize].max(gap);
        }
    }
}
