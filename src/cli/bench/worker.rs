//! A process of a measurement: it reads its job as a line of JSON, and reports in lines of JSON.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use qcast::{DeviceSpec, FaultPlan, Group, Incoming, Node, Notice};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::tally::{self, Mark, Tally};
use super::udp::{self, Place};
use super::usage::cpu_time;
use super::{Drive, latency};
use crate::cli::clock::now;
use crate::cli::exit::{Chain, Exit, Failure, Outcome};
use crate::cli::process::end_with_parent;

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Publish for so long, after a warm-up.
    Publish { link: Link, seconds: f64 },
    /// Count what comes.
    Subscribe { link: Link, index: u16 },
    /// Send back what comes.
    Echo { link: Link },
}

/// How the processes of a measurement are joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) device: String,
    pub(crate) group: String,
    /// Who drives the nodes; none for plain UDP.
    pub(crate) drive: Option<Drive>,
    /// Where plain UDP goes.
    pub(crate) place: Place,
    /// Where receivers of plain UDP tell how far they are.
    pub(crate) credits: Option<PathBuf>,
    pub(crate) size: u32,
    pub(crate) subscribers: u16,
    pub(crate) loss: f64,
}

/// What a publisher reports, of the messages that count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) messages: u64,
    pub(crate) naks: u64,
    pub(crate) repairs: u64,
    pub(crate) cpu_seconds: f64,
}

/// What a subscriber reports, of the messages that count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) messages: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    pub(crate) warm_faults: u64,
    /// From the first to the last.
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) overruns: u64,
}

impl Received {
    /// Messages a second.
    pub(crate) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.messages as f64 / self.seconds } else { 0.0 }
    }
}

/// How long messages warm up before they count.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);

/// How long a publisher waits for its subscribers, and for their last word.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one wait is before it is looked whether to stop.
const SLICE: Duration = Duration::from_millis(20);

/// Messages between two looks at the clock.
const RUN: u64 = 64;

pub(crate) fn run() -> Outcome {
    let stdin = io::stdin();
    let mut line = String::new();
    stdin
        .lock()
        .read_line(&mut line)
        .map_err(|error| Failure::failed(format_args!("cannot read the job: {error}")))?;
    let job: Job = serde_json::from_str(&line).map_err(|error| {
        Failure::usage(format_args!(
            "this is a part of `qcast bench`; it is not run by hand: {error}"
        ))
    })?;
    let stop = Stop::watch();
    match job {
        Job::Publish { link, seconds } => {
            let seconds = Duration::from_secs_f64(seconds);
            let published = match link.drive {
                Some(drive) => publish(&link, drive, seconds)?,
                None => udp::publish(&link, seconds)?,
            };
            report("published", &published)?;
        }
        Job::Subscribe { link, index } => {
            let received = match link.drive {
                Some(drive) => subscribe(&link, drive, index, &stop)?,
                None => udp::subscribe(&link, index, &stop)?,
            };
            report("received", &received)?;
        }
        Job::Echo { link } => match link.drive {
            Some(drive) => latency::echo(&link, drive, &stop)?,
            None => udp::echo(&link, &stop)?,
        },
    }
    Ok(Exit::Done)
}

/// Whether the parent wants the numbers.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A line from the parent means "stop"; the end of its lines that it is gone.
    fn watch() -> Self {
        struct Watched(io::Stdin, Arc<AtomicBool>);
        impl io::Read for Watched {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                let len = self.0.read(buf)?;
                self.1.store(len > 0, Ordering::Relaxed);
                Ok(len)
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        end_with_parent(Watched(io::stdin(), Arc::clone(&stop)));
        Self(stop)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reports to the parent.
pub(crate) fn report(event: &str, what: &impl Serialize) -> Result<(), Failure> {
    let mut object = serde_json::to_value(what)
        .map_err(|error| Failure::failed(format_args!("cannot report: {error}")))?;
    object["event"] = event.into();
    let mut out = io::stdout().lock();
    writeln!(out, "{object}").and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}

/// Reports that messages may come.
pub(crate) fn report_ready() -> Result<(), Failure> {
    report("ready", &json!({}))
}

/// Opens the node, and joins the group.
pub(crate) fn join(link: &Link, drive: Drive, loss_seed: Option<u64>) -> Result<Group, Failure> {
    let device: DeviceSpec =
        link.device.parse().map_err(|error: qcast::SpecError| Failure::usage(Chain(&error)))?;
    let fault = loss_seed.filter(|_| link.loss > 0.0).map(|seed| {
        let mut plan = FaultPlan::default();
        plan.path.loss = link.loss;
        plan.seed = seed;
        plan
    });
    let node = Node::builder()
        .device(device)
        .progress(drive.into())
        .fault(fault)
        .open()
        .map_err(|error| Failure::environment(Chain(&error)))?;
    node.group(&link.group).join().map_err(|error| Failure::environment(Chain(&error)))
}

fn publish(link: &Link, drive: Drive, seconds: Duration) -> Result<Published, Failure> {
    let group = join(link, drive, None)?;
    let mut publisher = group
        .publisher()
        .linger(PATIENCE)
        .open()
        .map_err(|error| Failure::because("cannot publish", &error))?;
    let wanted = usize::from(link.subscribers);
    let have = publisher.wait_for(wanted, PATIENCE);
    if have < wanted {
        return Err(Failure::failed(format_args!("only {have} of {wanted} subscribers came")));
    }
    let mut message = vec![0xa5; link.size as usize];
    let mut number = 0;
    let mut send = |mark: Mark, until: Option<Instant>| {
        loop {
            for _ in 0..if mark == Mark::End { 1 } else { RUN } {
                tally::stamp(&mut message, number, mark);
                publisher.send(&message).map_err(|error| Failure::failed(Chain(&error)))?;
                number += 1;
            }
            if until.is_none_or(|until| now() >= until) {
                return Ok::<_, Failure>((number, publisher.stats()));
            }
        }
    };
    let (first, before) = send(Mark::Warm, Some(now() + WARM_UP))?;
    let cpu = cpu_time();
    let (end, _) = send(Mark::Counted, Some(now() + seconds))?;
    send(Mark::End, None)?;
    publisher.wait_confirmed(PATIENCE);
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    let after = publisher.stats();
    publisher.close();
    Ok(Published {
        messages: end - first,
        naks: after.naks - before.naks,
        repairs: after.repairs - before.repairs,
        cpu_seconds,
    })
}

fn subscribe(link: &Link, drive: Drive, index: u16, stop: &Stop) -> Result<Received, Failure> {
    let group = join(link, drive, Some(u64::from(index) + 1))?;
    let mut subscriber =
        group.subscriber().open().map_err(|error| Failure::because("cannot subscribe", &error))?;
    report_ready()?;
    let mut counting = Counting::default();
    let mut closed = false;
    let mut idle_since_stop = None;
    while !closed {
        let mut take = |incoming: Incoming<'_>| match incoming {
            Incoming::Message { bytes, .. } => counting.take(bytes),
            Incoming::Notice(Notice::PublisherClosed(_) | Notice::PublisherLost(_)) => {
                closed = true
            }
            _ => {}
        };
        let handed = subscriber.poll(1024, &mut take);
        counting.mark_time();
        if handed > 0 {
            idle_since_stop = None;
            continue;
        }
        // The publisher is done, and nothing comes any more: what is missing is lost.
        if stop.is_asked() && *idle_since_stop.get_or_insert_with(now) + PATIENCE / 20 < now() {
            break;
        }
        match subscriber.recv_timeout(SLICE) {
            Ok(Some(qcast::Delivery::Message(message))) => {
                counting.take(&message);
                counting.mark_time();
            }
            Ok(Some(qcast::Delivery::Notice(notice))) => {
                closed |= matches!(notice, Notice::PublisherClosed(_) | Notice::PublisherLost(_));
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::failed(Chain(&error))),
        }
    }
    let counters = group.node().counters();
    Ok(Received { overruns: counters.overruns + counters.out_of_buffer, ..counting.received() })
}

/// What a subscriber counts and times.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    tally: Tally,
    /// The number, time and processor time of the first message that counts.
    first: Option<(u64, Instant, Duration)>,
    last: Option<Instant>,
    /// The processor time at the end.
    end: Option<Duration>,
    /// Messages that counted when the time was last taken.
    timed: u64,
}

impl Counting {
    /// A message came.
    pub(crate) fn take(&mut self, message: &[u8]) {
        let Some((number, mark)) = tally::read(message) else { return };
        match mark {
            Mark::Counted if self.first.is_none() => {
                self.first = Some((number, now(), cpu_time()));
            }
            Mark::End if self.end.is_none() => self.end = Some(cpu_time()),
            _ => {}
        }
        self.tally.note(number, mark);
    }

    /// Takes the time once for all messages since the last call.
    pub(crate) fn mark_time(&mut self) {
        if self.timed != self.tally.received {
            self.timed = self.tally.received;
            self.last = Some(now());
        }
    }

    /// Whether the last message was seen.
    pub(crate) fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// The numbers.
    pub(crate) fn received(&self) -> Received {
        let Some(((number, first, cpu), last)) = self.first.zip(self.last) else {
            return Received {
                warm_faults: self.tally.warm_faults(u64::MAX),
                ..Received::default()
            };
        };
        Received {
            messages: self.tally.received,
            duplicates: self.tally.duplicates,
            out_of_order: self.tally.out_of_order,
            warm_faults: self.tally.warm_faults(number),
            seconds: (last - first).as_secs_f64(),
            cpu_seconds: (self.end.unwrap_or_else(cpu_time) - cpu).as_secs_f64(),
            overruns: 0,
        }
    }
}
