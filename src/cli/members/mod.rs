//! `qcast members`: who is in a group, once or as it changes.

mod board;
mod draw;
mod look;
mod progress;
mod row;
mod screen;
pub(crate) mod told;
pub(crate) mod watch;

use std::time::Duration;

use super::exit::{Exit, Outcome};
use super::listen::Teller;
use super::options::{NamedGroup, NodeOptions};
use super::output::Output;
use super::signals::Interrupt;
use super::values;

/// Shows who is in a group: one look, or live with --watch.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
To see a group it has to be joined: this is a member too, an observer, for as long as it
runs, and marked with * in the table. With --watch and a terminal the view is live: its
keys stand in its last line, and q ends it. Where standard output is no terminal, --watch
prints a line for each change, or with --json an object.

PROGRESS is what members say of themselves about once a second, in frames (datagrams; small
messages share one): out, what their publishers sent; in, what their subscribers received;
lost, what those miss for good; wait, what the application has not taken yet, or what comes
behind a gap. In the live view s sorts by what is behind, too.

Examples:
  qcast members news
  qcast members news --watch
  qcast members news --json | jq -r '.members[].name'
  qcast members news --watch --json | jq 'select(.change == \"failed\")'")]
pub(crate) struct MembersArgs {
    /// Show changes as they come, until Ctrl-C or q
    #[arg(long, short)]
    watch: bool,

    /// How long the members have to be heard before one look
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds,
          conflicts_with = "watch")]
    settle: Duration,

    /// Print JSON: the members as one object, each change as another
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    group: NamedGroup,
    #[command(flatten)]
    node: NodeOptions,
}

pub(crate) fn run(args: &MembersArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let node = args.node.open_observer()?;
    let events = node.events();
    let group = args.group.join(&node, &key, &[])?;
    let mut out = Output::new();
    if !args.watch {
        look::look(&group, &events, args.settle, args.json, &interrupt, &mut out)?;
        group.leave();
        return Ok(Exit::Done);
    }
    if watch::is_live(args.json) {
        let mut live = watch::Live::new(group.clone(), events, &interrupt)?;
        while live.step()? == watch::Next::More {}
        drop(live);
        group.leave();
        return Ok(Exit::Done);
    }
    let teller = Teller::new(args.json);
    teller.listening(&mut out, &node, &group)?;
    watch::lines(&group, &events, args.json, &interrupt, &mut out)?;
    group.leave();
    Ok(Exit::Done)
}
