//! The command line: one file per subcommand.
//!
//! What all commands have in common: [`options`] are read once, results go to standard output and
//! notes to standard error ([`output`]), the end is a code that scripts can tell apart ([`exit`]), and
//! the first `SIGINT` or `SIGTERM` asks for an end in good order ([`signals`]).

mod ahead;
mod announce;
mod bench;
mod browse;
mod chat;
mod clock;
mod completions;
mod decode;
mod demo;
mod exit;
mod groups;
mod happenings;
mod incoming;
mod input;
mod join;
mod listen;
mod members;
mod options;
mod outgoing;
mod output;
mod process;
mod publish;
mod receive;
mod send;
mod shown;
mod signals;
mod sim;
mod subscribe;
mod transfer;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use exit::{Exit, Outcome};

/// Publish and subscribe over RDMA unreliable datagrams, with or without an RDMA device.
#[derive(Debug, Parser)]
#[command(name = "qcast", version, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Cli {
    /// Trace what the library does, on standard error; twice for decisions, three times for packets
    /// (RUST_LOG chooses in detail)
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Pub(publish::PubArgs),
    Sub(subscribe::SubArgs),
    Send(send::SendArgs),
    Receive(receive::ReceiveArgs),
    Members(members::MembersArgs),
    Join(join::JoinArgs),
    Chat(chat::ChatArgs),
    Decode(decode::DecodeArgs),
    Announce(announce::AnnounceArgs),
    Browse(browse::BrowseArgs),
    Resolve(browse::ResolveArgs),
    Groups(groups::GroupsArgs),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    Demo(demo::DemoArgs),
    Completions(completions::CompletionsArgs),
}

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let parsed = take_negatives(Cli::command()).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let error = brief(error);
            // Help goes to standard output, usage errors to standard error; a closed one is no news.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    exit::end(&run(cli))
}

/// Takes `-1` for a value where one is wanted, so that its option says what it can be, and not for a strange option.
fn take_negatives(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            let takes = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes)
        })
        .mut_subcommands(take_negatives)
}

/// An error about arguments that repeats them as they may be shown, and of long ones the beginning.
fn brief(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand]
    {
        let Some(ContextValue::String(value)) = error.get(kind) else { continue };
        let mut text: String = value.chars().take(REPEATED).collect();
        if text.len() < value.len() {
            text += "...";
        }
        let text = shown::shown(&text).into_owned();
        error.insert(kind, ContextValue::String(text));
    }
    error
}

/// Characters of an argument that an error about it repeats.
const REPEATED: usize = 60;

fn run(cli: Cli) -> Outcome {
    options::trace(cli.verbose)?;
    match cli.command {
        Command::Pub(args) => publish::run(&args),
        Command::Sub(args) => subscribe::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Members(args) => members::run(&args),
        Command::Join(args) => join::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Decode(args) => decode::run(&args),
        Command::Announce(args) => announce::run(&args),
        Command::Browse(args) => browse::run(&args),
        Command::Resolve(args) => browse::resolve(&args),
        Command::Groups(args) => groups::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}
