//! `qcast demo`: what qcast is for, shown with real processes, and checked.

mod crew;
mod file;
mod members;
mod steps;

use clap::Subcommand;

use super::exit::Outcome;

/// Shows a file reach three subscribers whole through loss, and not reach a fourth with another key.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Five processes of this program run on this host: one `qcast send` and four `qcast receive`.
Exit code 0 says that all of it is true: three whole files, repaired where they were
damaged, and nothing but a reason for the fourth. `qcast demo members` is about who is in
a group instead.

Examples:
  qcast demo
  qcast demo --loss 0.1 --file image.iso
  qcast demo members"
)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    other: Option<Other>,

    #[command(flatten)]
    file: file::FileArgs,
}

#[derive(Debug, Subcommand)]
enum Other {
    Members(members::MembersDemoArgs),
}

pub(crate) fn run(args: &DemoArgs) -> Outcome {
    match &args.other {
        Some(Other::Members(args)) => members::run(args),
        None => file::run(&args.file),
    }
}
