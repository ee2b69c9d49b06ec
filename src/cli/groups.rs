//! `qcast groups`: the groups that nodes are in, and whether a key fits.

use std::path::PathBuf;
use std::time::Duration;

use qcast::{Progress, QKey, SeenGroup};
use qcast_proto::diagnosis::key_check;
use serde_json::json;

use super::browse::width;
use super::exit::{Chain, Exit, Failure, Outcome};
use super::options::{Key, NodeOptions};
use super::output::Output;
use super::shown::shown;
use super::values;

/// Lists the groups that nodes say they are in, and whether your key fits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Members say it on the control group, whose key everybody has. Keys themselves are never
sent there: KEY compares check values of 8 bits, so \"yes\" is wrong for one of 256
other keys, and \"no\" never is. A group whose members differ has a line for each of
their keys.

Examples:
  qcast groups                           keys that follow from names alone
  qcast groups --secret-file key.txt     which of them this secret opens
  qcast groups --device soft:eth0 --json")]
pub(crate) struct GroupsArgs {
    /// Compare with this QKey, a number from 0x1 to 0x7fffffff [default: derived from each group's name]
    #[arg(long, value_name = "KEY", conflicts_with = "secret_file")]
    qkey: Option<QKey>,

    /// Compare with what follows from each group's name and the secret in this file; QCAST_SECRET holds the
    /// secret itself
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// How long to listen for answers
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    timeout: Duration,

    /// Print one JSON object a line for each group
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
}

pub(crate) fn run(args: &GroupsArgs) -> Outcome {
    let key = Key::of(args.qkey, args.secret_file.as_deref())?;
    args.node.needs_control("groups")?;
    let node = args.node.open(Progress::Thread)?;
    let groups =
        node.seen_groups(args.timeout).map_err(|error| Failure::environment(Chain(&error)))?;
    let fits = |g: &SeenGroup| key_check(&g.name, key.of_group(&g.name)) == g.checks.key;
    let mut out = Output::new();
    if args.json {
        for group in &groups {
            let names: Vec<_> = group.members.iter().map(|member| &member.name).collect();
            out.json(&json!({
                "group": group.name, "members": names.len(), "names": names, "key_fits": fits(group),
                "check": format!("{:02x}", group.checks.key), "mtu": group.checks.mtu,
            }))?;
        }
    } else if !groups.is_empty() {
        let wide = groups.iter().map(|g| width(&shown(&g.name))).max().unwrap_or(0).max(5);
        out.line(
            format!("{:<wide$}  {:>7}  KEY  CHECK    MTU  NAMES", "GROUP", "MEMBERS").as_bytes(),
        )?;
        for group in &groups {
            out.line(row(group, fits(group), wide).as_bytes())?;
        }
    }
    out.flush()?;
    if groups.is_empty() {
        super::output::Notes::default()
            .say(format_args!("no group is seen: nobody is in one; {}", NodeOptions::reach(&node)));
    }
    Ok(Exit::Done)
}

/// Names that are shown of a group's members.
const NAMES: usize = 4;

fn row(group: &SeenGroup, fits: bool, wide: usize) -> String {
    let mut names: Vec<_> =
        group.members.iter().take(NAMES).map(|member| shown(&member.name)).collect();
    if group.members.len() > NAMES {
        names.push("...".into());
    }
    let name = shown(&group.name);
    let padding = " ".repeat(wide.saturating_sub(width(&name)));
    format!(
        "{name}{padding}  {:>7}  {:<3}  {:02x}     {:>5}  {}",
        group.members.len(),
        if fits { "yes" } else { "no" },
        group.checks.key,
        group.checks.mtu,
        names.join(", ")
    )
}
