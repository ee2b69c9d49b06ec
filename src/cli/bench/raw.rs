//! `qcast bench raw`: plain UDP multicast, one message a datagram, with no protocol: the machine's limit.

use super::throughput::{Load, Transport, measure, print};
use super::udp::MAX_SIZE;
use crate::cli::exit::{Exit, Failure, Outcome};
use crate::cli::signals::Interrupt;

/// Measures plain UDP multicast: what this machine carries without any protocol.
///
/// A datagram for each message, in batches of 32 for each system call. Receivers tell how far they are
/// beside the network, so that the sender does not overrun them; nothing is repaired.
#[derive(Debug, clap::Args)]
pub(crate) struct RawArgs {
    #[command(flatten)]
    load: Load,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RawArgs) -> Outcome {
    if args.load.size as usize > MAX_SIZE {
        return Err(Failure::usage(format_args!(
            "--size {}: a datagram holds at most {MAX_SIZE} bytes",
            args.load.size
        )));
    }
    let interrupt = Interrupt::install()?;
    let report = measure(&args.load, Transport::Raw, &interrupt)?;
    print(&report, args.json)?;
    // Nothing was promised about loss.
    Ok(Exit::Done)
}
