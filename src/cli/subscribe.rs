//! `qcast sub`: prints what a group's publishers send.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::Duration;

use qcast::{Delivery, Message, Notice, Progress, Reliability, Subscriber};
use serde::Serialize;
use serde_json::json;

use super::clock::now;
use super::exit::{Chain, Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::listen::{Names, Teller, Watch, rejection};
use super::options::{GroupOptions, NodeOptions};
use super::output::{Output, Seconds, count};
use super::signals::Interrupt;
use super::values;

/// Subscribes to a group, and prints each message as a line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Results go to standard output, notes to standard error. It runs until Ctrl-C, or until
--count, --timeout or --until-closed ends it. Exit code 4 says that messages were lost
for good; every loss is told in its place.

Examples:
  qcast sub -g news                      on this host, with any number of publishers
  seq 100 | qcast pub -g news            (in another terminal)
  qcast sub -g news --json --topics 'sensor/*'
  qcast sub -g news --device soft:eth0 --secret-file key.txt")]
pub(crate) struct SubArgs {
    /// The topics to hear, with * for any run of characters [default: all]
    #[arg(long, value_name = "PATTERN")]
    topics: Option<String>,

    /// What to do about loss: ordered, unordered, best-effort or latest
    #[arg(long, value_name = "KIND", default_value = "ordered", value_parser = values::reliability)]
    reliability: Reliability,

    /// Begin with up to N frames of what publishers still hold
    #[arg(long, value_name = "N")]
    history: Option<u64>,

    /// A number that publishers with --policy tagged:N wait for
    #[arg(long, value_name = "N")]
    tag: Option<u32>,

    /// Frames that may wait to be printed before publishers are held back
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    queue: Option<u32>,

    /// End after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// End when nothing was heard for so long
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    timeout: Option<Duration>,

    /// End when every publisher that was heard has ended or is lost
    #[arg(long)]
    until_closed: bool,

    /// Print one JSON object a line: messages, and events (joined, lost, closed, ...) in their place
    #[arg(long, conflicts_with = "raw")]
    json: bool,

    /// Print the bytes of messages as they are, with nothing between them
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    group: GroupOptions,
}

/// How long a wait for a message may last before signals and counters are looked at.
const SLICE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &SubArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let node = args.node.open(Progress::Thread)?;
    let happenings = Happenings::of(&node);
    let group = args.group.join(&node, &key)?;
    let mut subscriber = subscribe(args, &group)?;
    let mut sub = Sub {
        form: Form::of(args),
        out: Output::new(),
        teller: Teller::new(args.json),
        names: Names::default(),
        messages: 0,
        bytes: 0,
        lost: false,
        open: 0,
    };
    sub.teller.listening(&mut sub.out, &node, &group)?;

    let (start, mut watch) = (now(), Watch::new(happenings));
    let mut ended_by_timeout = false;
    let worked = loop {
        if interrupt.is_asked() || args.count.is_some_and(|count| sub.messages >= count) {
            break Ok(());
        }
        if args.until_closed && sub.open == 0 && watch.ever_heard() {
            break Ok(());
        }
        match next(&mut subscriber, &mut sub.out) {
            Ok(Some(delivery)) => {
                let told = watch.heard(&mut sub.out, &sub.teller);
                if let Err(failure) = told.and_then(|()| sub.take(&delivery, &subscriber)) {
                    break Err(failure);
                }
            }
            Ok(None) => {
                if let Err(failure) = watch.look(&mut sub.out, &sub.teller, &node, &group) {
                    break Err(failure);
                }
                if args.timeout.is_some_and(|timeout| watch.silent_for() >= timeout) {
                    ended_by_timeout = true;
                    break Ok(());
                }
            }
            Err(failure) => break Err(failure),
        }
    };
    let stats = subscriber.stats();
    let rejected = node.counters().qkey_violations;
    drop(subscriber);
    worked?;

    let seconds = start.elapsed();
    sub.teller.tell(
        &mut sub.out,
        || {
            json!({
                "event": "summary", "messages": sub.messages, "bytes": sub.bytes,
                "seconds": seconds.as_secs_f64(), "naks": stats.naks, "repairs": stats.repaired,
                "lost_frames": stats.lost, "rejected_datagrams": rejected, "reason": rejection(rejected),
            })
        },
        || {
            format!(
                "{} in {}; {} sent, {} received, {} lost, {} rejected",
                count(sub.messages, "message"),
                Seconds(seconds),
                count(stats.naks, "NAK"),
                count(stats.repaired, "repair"),
                count(stats.lost, "frame"),
                count(rejected, "datagram"),
            )
        },
    )?;
    sub.out.flush()?;
    if sub.lost {
        Ok(Exit::Lost)
    } else if ended_by_timeout && (sub.messages == 0 || args.count.is_some()) {
        // It waited for something that did not come.
        Ok(Exit::Failed)
    } else {
        Ok(Exit::Done)
    }
}

fn subscribe(args: &SubArgs, group: &qcast::Group) -> Result<Subscriber, Failure> {
    let mut builder = group.subscriber().reliability(args.reliability);
    if let Some(pattern) = &args.topics {
        builder = builder.topics(pattern);
    }
    if let Some(frames) = args.history {
        builder = builder.history(frames);
    }
    if let Some(tag) = args.tag {
        builder = builder.tag(tag);
    }
    if let Some(queue) = args.queue {
        builder = builder.queue(queue as usize);
    }
    builder.open().map_err(|error| Failure::because("cannot subscribe", &error))
}

/// The next delivery. What was printed goes out before it waits.
fn next(subscriber: &mut Subscriber, out: &mut Output) -> Result<Option<Delivery>, Failure> {
    let received = match subscriber.try_recv() {
        Ok(None) => {
            out.flush()?;
            subscriber.recv_timeout(SLICE)
        }
        received => received,
    };
    received.map_err(|error| Failure::environment(Chain(&error)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Lines,
    /// Lines with nothing in them that a terminal obeys.
    SafeLines,
    Json,
    Raw,
}

impl Form {
    fn of(args: &SubArgs) -> Self {
        match (args.json, args.raw) {
            (true, _) => Self::Json,
            (_, true) => Self::Raw,
            _ if io::stdout().is_terminal() => Self::SafeLines,
            _ => Self::Lines,
        }
    }
}

struct Sub {
    form: Form,
    out: Output,
    teller: Teller,
    names: Names,
    messages: u64,
    bytes: u64,
    lost: bool,
    /// Streams that are followed.
    open: usize,
}

/// A message as a JSON object.
#[derive(Serialize)]
struct Printed<'a> {
    topic: &'a str,
    publisher: &'a str,
    session: &'a str,
    sequence: u64,
    /// What is not UTF-8 is in `data_hex` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_hex: Option<String>,
}

impl Sub {
    fn take(&mut self, delivery: &Delivery, subscriber: &Subscriber) -> Result<(), Failure> {
        match delivery {
            Delivery::Message(message) => self.print(message, subscriber),
            Delivery::Notice(notice) => {
                match notice {
                    Notice::Joined(_) | Notice::PublisherBack(_) => self.open += 1,
                    Notice::PublisherLost(_) | Notice::PublisherClosed(_) => {
                        self.open = self.open.saturating_sub(1);
                    }
                    Notice::Lost { .. } => self.lost = true,
                    _ => {}
                }
                self.teller.notice(&mut self.out, notice, &mut self.names, subscriber)
            }
            _ => Ok(()),
        }
    }

    fn print(&mut self, message: &Message, subscriber: &Subscriber) -> Result<(), Failure> {
        self.messages += 1;
        self.bytes += message.len() as u64;
        match self.form {
            Form::Raw => self.out.raw(message),
            Form::Lines => self.out.line(message),
            Form::SafeLines => self.out.line(safe(message).as_bytes()),
            Form::Json => {
                let stream = self.names.find(message.key(), subscriber);
                let data = std::str::from_utf8(message).ok();
                self.out.json(&Printed {
                    topic: &stream.topic,
                    publisher: &stream.publisher,
                    session: &stream.session,
                    sequence: message.sequence().0,
                    data,
                    data_hex: data.is_none().then(|| hex(message)),
                })
            }
        }
    }
}

/// Bytes as text without anything that a terminal obeys: a peer must not be able to write to the
/// user's screen as it likes.
fn safe(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c.is_control() && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_does_not_write_to_the_terminal() {
        assert_eq!(safe("plain é\ttext".as_bytes()), "plain é\ttext");
        assert_eq!(safe(b"a\x1b[2Jb\r"), "a\\u{1b}[2Jb\\r");
        assert_eq!(safe(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn bytes_as_digits() {
        assert_eq!(hex(&[0, 0xab, 0xff]), "00abff");
    }
}
