//! `qcast decode`: the RoCEv2 datagrams of a capture, one a line.
//!
//! A pcap or pcapng file is read packet by packet ([`capture`]), each is taken apart down to its
//! RoCEv2 headers ([`dissect`]), and what was found is printed ([`record`]) as a line for a person
//! or as a JSON object for a program. Everything else in the capture is counted and summed up on
//! standard error.
//!
//! A file that is cut short or damaged prints what could be read before the error.

mod capture;
mod control_group;
mod dissect;
mod frame;
mod live;
mod record;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;

use qcast_proto::addr::ROCE_PORT;

use capture::{Capture, CaptureError};
use dissect::Dissector;
use live::Live;
use record::{IcrcVerdict, Record};

use super::exit::{Chain, Exit, Failure, Outcome};

/// Prints the RoCEv2 and qcast datagrams of a capture.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A summary of the capture goes to standard error.

Examples:
  tcpdump -i lo -w capture.pcap udp port 4791
  qcast decode capture.pcap
  tcpdump -i any -U -w - udp port 4791 | qcast decode - --json")]
pub(crate) struct DecodeArgs {
    /// The capture, pcap or pcapng; `-` reads it from standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// A UDP port that carries RoCEv2 besides 4791, as software endpoints that share a host use;
    /// may be given more than once
    #[arg(long = "port", value_name = "PORT")]
    pub(crate) ports: Vec<u16>,
}

impl DecodeArgs {
    /// Whether the capture comes while it is decoded.
    fn is_live(&self) -> bool {
        self.file.as_os_str() == "-"
    }
}

pub(crate) fn run(args: &DecodeArgs) -> Outcome {
    let live = if args.is_live() { Some(Live::open()?) } else { None };
    match run_to(args, live, &mut BufWriter::new(io::stdout())) {
        Ok(()) => Ok(Exit::Done),
        Err(error) => Err(Failure::failed(Chain(&error))),
    }
}

/// Prints the capture's datagrams to `out`, and a summary to standard error. A reader of `out` that
/// has seen enough and closes it is no error.
///
/// # Errors
/// Each variant of [`DecodeError`]. What could be read before it has been printed.
fn run_to(args: &DecodeArgs, live: Option<Live>, out: &mut dyn Write) -> Result<(), DecodeError> {
    let file: Box<dyn Read> = if let Some(live) = live {
        Box::new(live)
    } else {
        let file = File::open(&args.file)
            .map_err(|source| DecodeError::Open { file: args.file.clone(), source })?;
        Box::new(file)
    };
    let mut summary = Summary::default();
    let result = decode(file, args, out, &mut summary);
    // What was no capture at all has no summary.
    if result.is_ok() || summary.packets > 0 {
        // Nobody can be told that standard error is closed.
        let _ = writeln!(io::stderr(), "{summary}");
    }
    match result {
        Err(DecodeError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// [`run_to`] on a capture that is already open, with the summary as a value.
///
/// # Errors
/// Each variant of [`DecodeError`] but [`DecodeError::Open`].
fn decode(
    capture: impl Read,
    args: &DecodeArgs,
    out: &mut dyn Write,
    summary: &mut Summary,
) -> Result<(), DecodeError> {
    let dissector = Dissector::new([&[ROCE_PORT], &args.ports[..]].concat());
    let named = |error| DecodeError::Capture { file: args.file.clone(), source: error };
    let mut capture = Capture::open(capture).map_err(named)?;
    while let Some(packet) = capture.next_packet().map_err(named)? {
        summary.packets += 1;
        let mut is_roce = false;
        for record in dissector.records(&packet) {
            is_roce = true;
            summary.count(&record);
            print(&record, args.json, out).map_err(DecodeError::Write)?;
        }
        if !is_roce {
            summary.others += 1;
        }
        if args.is_live() {
            // Somebody watches; the next packet may take its time.
            out.flush().map_err(DecodeError::Write)?;
        }
    }
    out.flush().map_err(DecodeError::Write)
}

fn print(record: &Record, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, record)?;
        writeln!(out)
    } else {
        writeln!(out, "{record}")
    }
}

/// What a capture held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Packets that were read.
    pub(crate) packets: u64,
    /// Of them, those that have nothing to do with RoCEv2.
    pub(crate) others: u64,
    /// RoCEv2 datagrams: several may have been captured as one packet.
    pub(crate) datagrams: u64,
    /// Of them, those whose ICRC is wrong.
    pub(crate) bad: u64,
    /// Of them, those whose ICRC cannot be checked, since the capture does not hold all of them.
    pub(crate) unchecked: u64,
    /// UDP datagrams to a RoCEv2 port that are none.
    pub(crate) malformed: u64,
}

impl Summary {
    fn count(&mut self, record: &Record) {
        if record.error.is_some() {
            self.malformed += 1;
            return;
        }
        self.datagrams += 1;
        match record.icrc {
            IcrcVerdict::Ok => {}
            IcrcVerdict::Bad => self.bad += 1,
            IcrcVerdict::Unchecked => self.unchecked += 1,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { packets, others, datagrams, bad, unchecked, malformed } = self;
        write!(
            f,
            "{packets} packets: {datagrams} RoCEv2 datagrams ({bad} with a bad ICRC, {unchecked} \
             unchecked), {malformed} malformed, {others} packets of other kinds"
        )
    }
}

/// Why a capture was not decoded to its end. What precedes the error has been printed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DecodeError {
    /// The file cannot be opened.
    #[error("cannot open {}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a capture, is damaged, or ends too early.
    #[error("cannot decode {}", file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, and at which packet.
        source: CaptureError,
    },
    /// The output cannot be written.
    #[error("cannot write what was decoded")]
    Write(#[source] io::Error),
}
