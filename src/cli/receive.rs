//! `qcast receive`: files that `send` sends, into a folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use qcast::{Delivery, Node, Notice, Progress, StreamKey, Subscriber};
use serde_json::json;

use super::clock::now;
use super::exit::{Chain, Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::incoming::{Incoming, Taken};
use super::listen::{Names, Teller, Watch, rejection};
use super::options::{GroupOptions, NodeOptions};
use super::output::{Output, megabytes_per_second};
use super::signals::Interrupt;
use super::subscribe::hex;
use super::transfer::{Part, TOPIC, safe_name};
use super::values;

/// Receives files that others send to a group.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file appears under its name once it is whole and its SHA-256 is right; until then
there is a hidden temporary file, which is removed if anything goes wrong. Exit code 4
says that parts were lost for good, 1 that the file is not whole or not right for
another reason.

Examples:
  qcast receive -g files --dir incoming
  qcast receive -g files --count 0            every file, until Ctrl-C
  qcast receive -g files --timeout 30 --json  for a script")]
pub(crate) struct ReceiveArgs {
    /// The folder for the files
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    dir: PathBuf,

    /// End after N files; 0 goes on until Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,

    /// Replace files that exist
    #[arg(long)]
    force: bool,

    /// End when nothing was heard for so long
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    timeout: Option<Duration>,

    /// Print events, files and the summary as JSON objects, one a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    group: GroupOptions,
}

/// Files that are received at once; more senders are told of and ignored.
const MAX_TRANSFERS: usize = 16;

/// Why a file is not kept though nothing is wrong with it.
const EXISTS: &str = "there is a file of this name; --force replaces it";

/// How long a wait may last before signals and counters are looked at.
const SLICE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &ReceiveArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    if !args.dir.is_dir() {
        return Err(Failure::failed(format_args!("{} is not a folder", args.dir.display())));
    }
    let node = args.node.open(Progress::Thread)?;
    let happenings = Happenings::of(&node);
    let group = args.group.join(&node, &key)?;
    let mut subscriber = group
        .subscriber()
        .topics(TOPIC)
        .open()
        .map_err(|error| Failure::because("cannot subscribe", &error))?;
    let mut receiver = Receiver {
        args,
        out: Output::new(),
        teller: Teller::new(args.json),
        names: Names::default(),
        transfers: BTreeMap::new(),
        done: 0,
        exit: Exit::Done,
    };
    receiver.teller.listening(&mut receiver.out, &node, &group)?;

    let (start, mut watch) = (now(), Watch::new(happenings));
    let worked = loop {
        if interrupt.is_asked() || (args.count > 0 && receiver.done >= args.count) {
            break Ok(());
        }
        match subscriber.recv_timeout(SLICE) {
            Ok(Some(delivery)) => {
                let told = watch.heard(&mut receiver.out, &receiver.teller);
                if let Err(failure) =
                    told.and_then(|()| receiver.take(&delivery, &subscriber, &node))
                {
                    break Err(failure);
                }
            }
            Ok(None) => {
                if let Err(failure) = watch.look(&mut receiver.out, &receiver.teller, &node, &group)
                {
                    break Err(failure);
                }
                if args.timeout.is_some_and(|timeout| watch.silent_for() >= timeout) {
                    break Ok(());
                }
            }
            Err(error) => break Err(Failure::environment(Chain(&error))),
        }
    };
    let stats = subscriber.stats();
    let rejected = node.counters().qkey_violations;
    drop(subscriber);
    worked.and_then(|()| receiver.end())?;

    let Receiver { mut out, teller, done, exit, .. } = receiver;
    if args.json {
        out.json(&json!({
            "event": "summary", "files": done, "seconds": start.elapsed().as_secs_f64(),
            "naks": stats.naks, "repairs": stats.repaired, "lost": stats.lost,
            "rejected_datagrams": rejected, "reason": rejection(rejected),
        }))?;
    } else if done == 0 {
        let why = rejection(rejected).unwrap_or_else(|| "nothing came".into());
        teller.notes.say(format_args!("no file was received: {why}"));
    }
    out.flush()?;
    Ok(if done < args.count && exit == Exit::Done { Exit::Failed } else { exit })
}

/// What is being received, and what came of it.
struct Receiver<'a> {
    args: &'a ReceiveArgs,
    out: Output,
    teller: Teller,
    names: Names,
    transfers: BTreeMap<StreamKey, Transfer>,
    /// Files that ended, well or not.
    done: u64,
    /// The worst that happened.
    exit: Exit,
}

struct Transfer {
    incoming: Incoming,
    from: String,
    began: Instant,
    before: Counts,
}

/// The subscription's numbers at some time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    naks: u64,
    repairs: u64,
    lost: u64,
}

impl Counts {
    fn of(subscriber: &Subscriber) -> Self {
        let stats = subscriber.stats();
        Self { naks: stats.naks, repairs: stats.repaired, lost: stats.lost }
    }
}

impl Receiver<'_> {
    fn take(
        &mut self,
        delivery: &Delivery,
        subscriber: &Subscriber,
        node: &Node,
    ) -> Result<(), Failure> {
        match delivery {
            Delivery::Message(message) => match Part::parse(message) {
                Some(Part::Begin { name, size }) => {
                    self.begin(message.key(), name, size, subscriber)
                }
                Some(part) => self.go_on(message.key(), &part, subscriber, node),
                // Another program's message: not a transfer's, so no transfer suffers from it.
                None => Ok(()),
            },
            Delivery::Notice(notice) => {
                self.teller.notice(&mut self.out, notice, &mut self.names, subscriber)?;
                match notice {
                    Notice::Lost { key, .. } => {
                        self.give_up(*key, Exit::Lost, "parts of it were lost")
                    }
                    Notice::PublisherLost(info) => {
                        self.give_up(info.key, Exit::Failed, "its sender is not heard any more")
                    }
                    Notice::PublisherRestarted(info) | Notice::PublisherClosed(info) => {
                        self.give_up(info.key, Exit::Failed, "its sender ended before it was whole")
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        key: StreamKey,
        said: &str,
        size: u64,
        subscriber: &Subscriber,
    ) -> Result<(), Failure> {
        self.give_up(key, Exit::Failed, "its sender began another one before it was whole")?;
        let from = self.names.find(key, subscriber).publisher.clone();
        if self.transfers.len() >= MAX_TRANSFERS {
            self.teller.notes.say(format_args!(
                "a file from {from} is ignored: {MAX_TRANSFERS} are being received already"
            ));
            return Ok(());
        }
        let name = safe_name(said);
        let Some(incoming) = Incoming::create(&self.args.dir, &name, size, self.args.force)? else {
            return self.fail(&name, &from, 0, Exit::Failed, EXISTS);
        };
        self.teller.tell(
            &mut self.out,
            || json!({ "event": "begin", "file": name, "bytes": size, "from": from }),
            || {
                let renamed = if name == said { "" } else { ", renamed for safety" };
                format!("receiving {name} ({size} bytes) from {from}{renamed}")
            },
        )?;
        if !self.args.json && self.transfers.is_empty() {
            self.teller.notes.show_bar(size, &name);
        }
        let (began, before) = (now(), Counts::of(subscriber));
        self.transfers.insert(key, Transfer { incoming, from, began, before });
        Ok(())
    }

    fn go_on(
        &mut self,
        key: StreamKey,
        part: &Part<'_>,
        subscriber: &Subscriber,
        node: &Node,
    ) -> Result<(), Failure> {
        // Without a beginning it is the rest of a transfer that began before this receiver did, or
        // that was given up.
        let Some(transfer) = self.transfers.get_mut(&key) else { return Ok(()) };
        let taken = match transfer.incoming.take(part) {
            Ok(taken) => taken,
            Err(failure) => {
                // It ends the command, which says why; who reads objects is told of the file.
                if self.args.json {
                    self.give_up(key, Exit::Failed, &failure.to_string())?;
                }
                return Err(failure);
            }
        };
        match taken {
            Taken::More => {
                self.teller.notes.progress(transfer.incoming.written());
                Ok(())
            }
            Taken::Torn => self.give_up(key, Exit::Failed, "its parts do not fit together"),
            Taken::Wrong => self.give_up(key, Exit::Failed, "its SHA-256 is wrong"),
            Taken::Whole => match self.transfers.remove(&key) {
                Some(transfer) => self.finish(transfer, subscriber, node),
                None => Ok(()),
            },
        }
    }

    /// Keeps a whole file, and tells about it.
    fn finish(
        &mut self,
        transfer: Transfer,
        subscriber: &Subscriber,
        node: &Node,
    ) -> Result<(), Failure> {
        self.teller.notes.hide_bar();
        let Transfer { incoming, from, began, before } = transfer;
        let (name, written) = (incoming.name().to_owned(), incoming.written());
        let Some(kept) = incoming.keep()? else {
            return self.fail(&name, &from, written, Exit::Failed, EXISTS);
        };
        self.done += 1;
        let (time, now) = (began.elapsed(), Counts::of(subscriber));
        let rate = megabytes_per_second(kept.size, time);
        let (naks, repairs) =
            (now.naks.saturating_sub(before.naks), now.repairs.saturating_sub(before.repairs));
        let (lost, rejected) =
            (now.lost.saturating_sub(before.lost), node.counters().qkey_violations);
        if self.args.json {
            self.out.json(&json!({
                "event": "file", "file": kept.name, "path": kept.path, "from": from,
                "bytes": kept.size, "sha256": hex(&kept.hash), "verified": true,
                "seconds": time.as_secs_f64(), "megabytes_per_second": rate, "naks": naks,
                "repairs": repairs, "lost": lost, "rejected_datagrams": rejected,
            }))?;
        } else {
            self.out.rows(&[
                ("file", kept.path.display().to_string()),
                ("from", from),
                ("bytes", kept.size.to_string()),
                ("sha256", format!("{} (verified)", hex(&kept.hash))),
                ("time", format!("{:.2} s, {rate:.1} MB/s", time.as_secs_f64())),
                ("NAKs", naks.to_string()),
                ("repairs", repairs.to_string()),
                ("lost", lost.to_string()),
                ("rejected", rejected.to_string()),
            ])?;
        }
        self.out.flush()
    }

    /// Ends the transfer of a stream, if there is one, without a file.
    fn give_up(&mut self, key: StreamKey, exit: Exit, why: &str) -> Result<(), Failure> {
        let Some(transfer) = self.transfers.remove(&key) else { return Ok(()) };
        let (name, from) = (transfer.incoming.name(), &transfer.from);
        self.fail(name, from, transfer.incoming.written(), exit, why)
    }

    /// Tells of a file that is not kept.
    fn fail(
        &mut self,
        name: &str,
        from: &str,
        written: u64,
        exit: Exit,
        why: &str,
    ) -> Result<(), Failure> {
        self.teller.notes.hide_bar();
        self.done += 1;
        if self.exit != Exit::Lost {
            self.exit = exit;
        }
        self.teller.tell(
            &mut self.out,
            || {
                json!({
                    "event": "file", "file": name, "from": from, "bytes": written,
                    "verified": false, "reason": why,
                })
            },
            || format!("{name} from {from} is not kept: {why}"),
        )
    }

    /// Gives up what is not whole when the command ends.
    fn end(&mut self) -> Result<(), Failure> {
        while let Some((&key, _)) = self.transfers.first_key_value() {
            self.give_up(key, Exit::Failed, "this receiver ended before it was whole")?;
        }
        Ok(())
    }
}
