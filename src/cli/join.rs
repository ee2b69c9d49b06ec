//! `qcast join`: being a member of a group until interrupted.

use std::io::Read;
use std::thread;

use serde_json::json;

use super::exit::{Exit, Outcome};
use super::listen::Teller;
use super::members::watch;
use super::options::{NamedGroup, NodeOptions};
use super::output::{Output, count};
use super::signals::Interrupt;
use super::values;

/// Is a member of a group until Ctrl-C, and prints who comes and goes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It neither publishes nor subscribes: an observer. SIGINT and SIGTERM make it leave, which
the others hear at once; a member that is killed is found to have failed within seconds.
Changes go to standard output, a line each, with the time of day (UTC).

Examples:
  qcast join cluster --name worker-7 --meta rack=7 --meta gpu=2
  qcast join cluster --json | jq 'select(.event == \"member\")'
  QCAST_GROUP=cluster qcast join --device soft:eth0 --secret-file key.txt")]
pub(crate) struct JoinArgs {
    /// Something that the others are to know, as KEY=VALUE; may be given up to 8 times
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = values::pair)]
    metadata: Vec<(String, String)>,

    /// Leave at the end of standard input too: with whoever started it, however that ended
    #[arg(long)]
    until_eof: bool,

    /// Print JSON: who is there as one object, then each change as another
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    group: NamedGroup,
    #[command(flatten)]
    node: NodeOptions,
}

pub(crate) fn run(args: &JoinArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let node = args.node.open_observer()?;
    let events = node.events();
    let group = args.group.join(&node, &key, &args.metadata)?;
    if args.until_eof {
        ask_at_end(std::io::stdin(), interrupt.clone());
    }
    let (mut out, teller) = (Output::new(), Teller::new(args.json));
    teller.listening(&mut out, &node, &group)?;
    watch::lines(&group, &events, args.json, &interrupt, &mut out)?;
    let others = group.members().members.iter().filter(|member| !member.own).count();
    // The others are to hear it before this process is gone.
    group.leave();
    teller.tell(
        &mut out,
        || json!({ "event": "summary", "members": others }),
        || format!("{} leaves {} behind", node.name(), count(others as u64, "member")),
    )?;
    Ok(Exit::Done)
}

/// Asks for an end of this process when there is nothing more to read.
fn ask_at_end(mut stdin: impl Read + Send + 'static, interrupt: Interrupt) {
    thread::spawn(move || {
        let mut bytes = [0; 256];
        while matches!(stdin.read(&mut bytes), Ok(1..)) {}
        interrupt.ask();
    });
}
