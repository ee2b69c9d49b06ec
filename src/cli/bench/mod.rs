//! `qcast bench`: what qcast does on this machine, and what the machine does without it.
//!
//! Publishers and subscribers are processes of their own ([`worker`]), that this one starts, tells what
//! to do, and asks for their numbers. Every message carries its number, so that each lost, repeated or
//! disordered one is counted exactly ([`tally`]).

mod floors;
mod latency;
mod raw;
mod recovery;
mod tally;
mod throughput;
mod udp;
mod usage;
mod worker;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::exit::Outcome;

/// Measures throughput and latency, and what plain UDP does on the same machine.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  qcast bench throughput --subscribers 3 --size 1024 --seconds 2
  qcast bench throughput --size 64 --loss 0.05 --json
  qcast bench raw --size 64
  qcast bench latency --size 64 --rate 2000
  qcast bench floors --reps 5
  qcast bench recovery --device verbs:mlx5_0 --json")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Throughput(throughput::ThroughputArgs),
    Latency(latency::LatencyArgs),
    Raw(raw::RawArgs),
    Floors(floors::FloorsArgs),
    Recovery(recovery::RecoveryArgs),
    /// A process of a measurement
    #[command(hide = true)]
    Worker,
}

pub(crate) fn run(args: &BenchArgs) -> Outcome {
    match &args.command {
        Command::Throughput(args) => throughput::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Raw(args) => raw::run(args),
        Command::Floors(args) => floors::run(args),
        Command::Recovery(args) => recovery::run(args),
        Command::Worker => worker::run(),
    }
}

/// Who drives a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Drive {
    /// A thread of the node's own
    #[default]
    Thread,
    /// The measuring loop itself, without a thread
    Manual,
}

impl From<Drive> for qcast::Progress {
    fn from(drive: Drive) -> Self {
        match drive {
            Drive::Thread => Self::Thread,
            Drive::Manual => Self::Manual,
        }
    }
}

/// A name for a group or file that no other measurement on this machine uses.
fn unique(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("qcast-bench-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
