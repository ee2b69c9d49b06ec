//! The command line: one file per subcommand.
//!
//! What all commands have in common: [`options`] are read once, results go to standard output and
//! notes to standard error ([`output`]), the end is a code that scripts can tell apart ([`exit`]), and
//! the first `SIGINT` or `SIGTERM` asks for an end in good order ([`signals`]).

mod clock;
mod completions;
mod decode;
mod exit;
mod output;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::{Chain, Exit, Failure, Outcome};

/// Publish and subscribe over RDMA unreliable datagrams, with or without an RDMA device.
#[derive(Debug, Parser)]
#[command(name = "qcast", version, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Decode(decode::DecodeArgs),
    Completions(completions::CompletionsArgs),
}

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output, usage errors to standard error; a closed one is no news.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    exit::end(&run(cli))
}

fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Decode(args) => decode(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

fn decode(args: &decode::DecodeArgs) -> Outcome {
    let mut out = std::io::BufWriter::new(std::io::stdout());
    match decode::run(args, &mut out) {
        Ok(()) => Ok(Exit::Done),
        Err(error) => Err(Failure::failed(Chain(&error))),
    }
}
