//! `qcast send`: a file to all who receive.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use qcast::Progress;
use serde_json::json;

use super::clock::now;
use super::exit::{Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::listen::Teller;
use super::options::{GroupOptions, NodeOptions};
use super::outgoing::{Go, Outgoing};
use super::output::{Output, megabytes_per_second};
use super::signals::Interrupt;
use super::subscribe::hex;
use super::transfer::{Hash, Hasher, PIECE, Part, TOPIC};
use super::values;

/// Sends a file to every receiver of a group at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It waits for --wait-for receivers, sends, and stays until all of them have everything.
Exit code 4 says that some did not confirm it. What a receiver confirms is that everything
has reached it; whether it could keep the file is told there.

Examples:
  qcast receive -g files --dir incoming       (on as many hosts as you like)
  qcast send image.iso -g files --wait-for 3
  qcast send image.iso -g files --device soft:eth0 --secret-file key.txt")]
pub(crate) struct SendArgs {
    /// The file
    file: PathBuf,

    /// Begin when N receivers are there
    #[arg(long, value_name = "N", default_value_t = 1)]
    wait_for: usize,

    /// How long to wait for them [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    wait_timeout: Option<Duration>,

    /// How long to stay, at the end, for receivers that do not have everything
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = values::seconds)]
    linger: Duration,

    /// Print events and the summary as JSON objects, one a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    group: GroupOptions,
}

pub(crate) fn run(args: &SendArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let mut source = Source::open(&args.file)?;
    let node = args.node.open(Progress::Thread)?;
    let happenings = Happenings::of(&node);
    let group = args.group.join(&node, &key)?;
    let publisher = group
        .publisher()
        .topic(TOPIC)
        .linger(args.linger)
        .open()
        .map_err(|error| Failure::because("cannot publish", &error))?;
    let mut outgoing =
        Outgoing::new(publisher, happenings, Teller::new(args.json), Output::new(), &interrupt);

    let worked = send(args, &mut source, &mut outgoing);
    let stats = outgoing.publisher.stats();
    outgoing.teller.notes.hide_bar();
    let Outgoing { publisher, teller, mut out, joined, .. } = outgoing;
    let closed = publisher.close();
    let Some((start, hash)) = worked? else {
        return Err(Failure::failed(format_args!(
            "interrupted after {} of {} bytes",
            source.read, source.size
        )));
    };

    let seconds = start.elapsed();
    let rate = megabytes_per_second(source.size, seconds);
    if args.json {
        out.json(&json!({
            "event": "summary", "file": source.name, "bytes": source.size, "sha256": hex(&hash),
            "seconds": seconds.as_secs_f64(), "megabytes_per_second": rate, "receivers": joined,
            "naks": stats.naks, "repairs": stats.repairs, "unconfirmed": closed.unconfirmed,
        }))?;
    } else {
        out.rows(&[
            ("file", source.name.clone()),
            ("bytes", source.size.to_string()),
            ("sha256", hex(&hash)),
            ("time", format!("{:.2} s, {rate:.1} MB/s", seconds.as_secs_f64())),
            ("receivers", joined.into_iter().collect::<Vec<_>>().join(", ")),
            ("NAKs", stats.naks.to_string()),
            ("repairs", stats.repairs.to_string()),
        ])?;
    }
    out.flush()?;
    if closed.unconfirmed.is_empty() {
        return Ok(Exit::Done);
    }
    teller.notes.say(format_args!("not confirmed by {}", closed.unconfirmed.join(", ")));
    Ok(Exit::Lost)
}

/// Sends the file. `None` if a signal ended it; else when it began, and the file's hash.
fn send(
    args: &SendArgs,
    source: &mut Source,
    outgoing: &mut Outgoing<'_>,
) -> Result<Option<(Instant, Hash)>, Failure> {
    if outgoing.wait_for(args.wait_for, args.wait_timeout)? == Go::Stop {
        return Ok(None);
    }
    let start = now();
    if !args.json {
        outgoing.teller.notes.show_bar(source.size, &source.name);
    }
    let mut message = Vec::with_capacity(PIECE + 64);
    Part::Begin { name: &source.name, size: source.size }.emit(&mut message);
    if outgoing.send(&message)? == Go::Stop {
        return Ok(None);
    }
    let (mut piece, mut hasher) = (vec![0; PIECE], Hasher::default());
    loop {
        let offset = source.read;
        let len = source.next(&mut piece)?;
        if len == 0 {
            break;
        }
        hasher.update(&piece[..len]);
        Part::Piece { offset, bytes: &piece[..len] }.emit(&mut message);
        if outgoing.send(&message)? == Go::Stop {
            return Ok(None);
        }
        outgoing.teller.notes.progress(source.read);
    }
    let hash = hasher.finish();
    Part::End { size: source.size, hash }.emit(&mut message);
    if outgoing.send(&message)? == Go::Stop {
        return Ok(None);
    }
    outgoing.publisher.wait_confirmed(args.linger);
    Ok(Some((start, hash)))
}

/// The file that is sent.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    name: String,
    file: File,
    size: u64,
    read: u64,
}

impl Source {
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| {
            Failure::failed(format_args!("cannot send {}: {what}", path.display()))
        };
        let file = File::open(path).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if !metadata.is_file() {
            return Err(failed(&"it is not a regular file (qcast pub publishes a pipe)"));
        }
        let name = path
            .file_name()
            .ok_or_else(|| failed(&"it has no name"))?
            .to_string_lossy()
            .into_owned();
        Ok(Self { path: path.to_owned(), name, file, size: metadata.len(), read: 0 })
    }

    /// Fills `piece` as far as the file goes.
    ///
    /// # Errors
    /// The file cannot be read, or its size is not what it was at the beginning.
    fn next(&mut self, piece: &mut [u8]) -> Result<usize, Failure> {
        let mut len = 0;
        while len < piece.len() {
            match self.file.read(&mut piece[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.read += len as u64;
        let ended = len < piece.len();
        if self.read > self.size || (ended && self.read < self.size) {
            return Err(self.failed("its size changed while it was sent"));
        }
        Ok(len)
    }

    fn failed(&self, what: impl std::fmt::Display) -> Failure {
        Failure::failed(format_args!("cannot send {}: {what}", self.path.display()))
    }
}
