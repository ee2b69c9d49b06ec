//! `qcast completions`: what a shell needs to complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use super::exit::{Exit, Outcome};
use super::output::Output;

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qcast completions bash > ~/.local/share/bash-completion/completions/qcast
  qcast completions zsh > ~/.zfunc/_qcast        (with ~/.zfunc in fpath)
  qcast completions fish > ~/.config/fish/completions/qcast.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "qcast", &mut script);
    let mut out = Output::new();
    out.raw(&script)?;
    out.flush()?;
    Ok(Exit::Done)
}
