//! `qcast pub`: publishes lines of standard input, or a file in pieces.

use std::path::PathBuf;
use std::time::Duration;

use qcast::{FlowPolicy, Progress};
use qcast_proto::wire::frame::MAX_MESSAGE;
use serde_json::json;

use super::clock::{Pace, now};
use super::exit::{Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::input::{Cut, Input, Next};
use super::listen::Teller;
use super::options::{GroupOptions, NodeOptions};
use super::outgoing::{Go, Outgoing};
use super::output::{Output, Seconds, count};
use super::signals::Interrupt;
use super::values;

/// Publishes to a group: each line of standard input is a message.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
At the end of the input, or at Ctrl-C, it stays until the subscribers have everything
(--linger). Exit code 4 says that some did not confirm it, 1 that Ctrl-C came before the
end of --file.

Examples:
  date | qcast pub -g news --wait-for 1
  tail -f app.log | qcast pub -g logs --topic app
  qcast pub -g bulk --file data.bin --size 60000 --wait-for 3
  seq 1000 | qcast pub -g ticks --rate 10 --policy unlimited")]
pub(crate) struct PubArgs {
    /// The topic; subscribers choose by it
    #[arg(long, value_name = "NAME", default_value = "", value_parser = topic)]
    topic: String,

    /// Publish this file instead, in messages of --size bytes
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// The size of a message of --file in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024, requires = "file",
          value_parser = clap::value_parser!(u32).range(1..=MAX_MESSAGE as i64))]
    size: u32,

    /// Begin when N subscribers are there [default: give those that are there a moment to answer]
    #[arg(long, value_name = "N")]
    wait_for: Option<usize>,

    /// How long to wait for them [default: for ever]
    #[arg(long, value_name = "SECONDS", requires = "wait_for", value_parser = values::seconds)]
    wait_timeout: Option<Duration>,

    /// Whom to wait for while sending: slowest, quorum:N, tagged:T or unlimited
    #[arg(long, value_name = "POLICY", default_value = "slowest", value_parser = values::policy)]
    policy: FlowPolicy,

    /// Messages a second [default: as fast as it goes]
    #[arg(long, value_name = "N", value_parser = values::rate)]
    rate: Option<f64>,

    /// End after N messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Frames kept for repairs and late joiners
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    window: Option<u32>,

    /// How long to stay, at the end, for subscribers that do not have everything
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = values::seconds)]
    linger: Duration,

    /// Print events and the summary as JSON objects, one a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    group: GroupOptions,
}

/// A topic may be empty: that is the default one.
fn topic(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { values::name(text) }
}

/// How long subscribers have to answer before the first message.
const GREETING: Duration = Duration::from_millis(500);

/// How long to wait for input before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &PubArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let mut input = match &args.file {
        Some(file) => Input::file(file, Cut::Pieces(args.size as usize), MAX_MESSAGE)?,
        None => Input::stdin(Cut::Lines, MAX_MESSAGE),
    };
    let node = args.node.open(Progress::Thread)?;
    let happenings = Happenings::of(&node);
    let group = args.group.join(&node, &key)?;
    let mut builder = group.publisher().topic(&args.topic).policy(args.policy).linger(args.linger);
    if let Some(window) = args.window {
        builder = builder.window(window as usize);
    }
    let publisher = builder.open().map_err(|error| Failure::because("cannot publish", &error))?;
    let mut outgoing =
        Outgoing::new(publisher, happenings, Teller::new(args.json), Output::new(), &interrupt);

    let mut sent = Sent::default();
    let start = now();
    let worked = publish(args, &mut input, &mut outgoing, &mut sent);
    // What was published before an error is still delivered.
    let stats = outgoing.publisher.stats();
    let told = outgoing.tell_events();
    let Outgoing { publisher, teller, mut out, joined, .. } = outgoing;
    // Those that were there, though some may have had enough by now.
    let subscribers = stats.receivers.max(joined.len());
    let closed = publisher.close();
    let seconds = start.elapsed();
    let go = worked?;
    told?;
    if let (Go::Stop, Some(file)) = (go, &args.file) {
        return Err(Failure::failed(format_args!(
            "interrupted after {} of {}",
            count(sent.bytes, "byte"),
            file.display()
        )));
    }

    teller.tell(
        &mut out,
        || {
            json!({
                "event": "summary", "messages": sent.messages, "bytes": sent.bytes,
                "seconds": seconds.as_secs_f64(), "subscribers": subscribers,
                "naks": stats.naks, "repairs": stats.repairs, "unconfirmed": closed.unconfirmed,
            })
        },
        || {
            format!(
                "published {} ({}) in {} to {}; {} received, {} sent",
                count(sent.messages, "message"),
                count(sent.bytes, "byte"),
                Seconds(seconds),
                count(subscribers as u64, "subscriber"),
                count(stats.naks, "NAK"),
                count(stats.repairs, "repair"),
            )
        },
    )?;
    out.flush()?;
    if closed.unconfirmed.is_empty() {
        return Ok(Exit::Done);
    }
    teller.notes.say(format_args!(
        "not confirmed by {} after {}",
        closed.unconfirmed.join(", "),
        Seconds(args.linger)
    ));
    Ok(Exit::Lost)
}

#[derive(Debug, Default)]
struct Sent {
    messages: u64,
    bytes: u64,
}

/// Publishes the input; [`Go::Stop`] says that a signal ended it.
fn publish(
    args: &PubArgs,
    input: &mut Input,
    outgoing: &mut Outgoing<'_>,
    sent: &mut Sent,
) -> Result<Go, Failure> {
    match args.wait_for {
        Some(wanted) => {
            if outgoing.wait_for(wanted, args.wait_timeout)? == Go::Stop {
                return Ok(Go::Stop);
            }
        }
        // Subscribers that are there already would miss a stream that ends before they have answered.
        None => {
            if outgoing.publisher.wait_for(1, GREETING) == 0 {
                outgoing.teller.tell(
                    &mut outgoing.out,
                    || json!({ "event": "alone" }),
                    || "nobody subscribes yet; --wait-for N waits for them".into(),
                )?;
            }
        }
    }
    let mut pace = args.rate.map(Pace::new);
    while args.count.is_none_or(|count| sent.messages < count) {
        let message = match input.next(SLICE)? {
            Next::Message(message) => message,
            Next::End => break,
            Next::Pending => {
                // An idle pause does not make a burst afterwards.
                pace = args.rate.map(Pace::new);
                if outgoing.look()? == Go::Stop {
                    return Ok(Go::Stop);
                }
                continue;
            }
        };
        if let Some(pace) = &mut pace {
            if outgoing.sleep_until(pace.next())? == Go::Stop {
                return Ok(Go::Stop);
            }
            pace.step();
        }
        if outgoing.send(&message)? == Go::Stop {
            return Ok(Go::Stop);
        }
        sent.messages += 1;
        sent.bytes += message.len() as u64;
    }
    Ok(Go::On)
}
