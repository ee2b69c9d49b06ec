//! `qcast demo members`: members that come, freeze, are killed, come again and leave, and one with another key;
//! and whether every other member saw it in time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use qcast::{DeviceSpec, Node, QKey};
use qcast_proto::diagnosis::key_check;
use serde_json::json;

use super::super::clock::time_of_day;
use super::super::exit::{Chain, Exit, Failure, Outcome};
use super::super::members::told::Told;
use super::super::members::watch::{Live, Next, is_live};
use super::super::output::{Notes, Output, Seconds};
use super::super::signals::Interrupt;
use super::crew::Crew;
use super::steps::{Row, play};

/// Shows eight members see each other come, freeze, die, come again and leave, and a stranger's wrong key.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each member is a process of this program (`qcast join`). One is frozen (SIGSTOP) and goes on
later, one is killed (SIGKILL) and starts again, one leaves, and one comes with another key.
On a terminal the live view of `qcast members --watch` is shown meanwhile. Exit code 0 says
that every member saw each of it in time, and nothing that did not happen.

Examples:
  qcast demo members
  qcast demo members --members 16 --json
  qcast demo members --device verbs:mlx5_0")]
pub(super) struct MembersDemoArgs {
    /// How many members
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(5..=64))]
    members: u16,

    /// Allow so many times as long for everything: for machines that are busy with other things
    #[arg(long, value_name = "TIMES", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    allow: u32,

    /// The device; given more than once, members take turns with them
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    device: Vec<DeviceSpec>,

    /// Print the log of every member, and not only what of it is new
    #[arg(long)]
    log: bool,

    /// Print events and results as JSON objects, one a line
    #[arg(long)]
    json: bool,
}

/// What the steps say while they go on.
pub(super) type Say = Sender<String>;

pub(super) fn run(args: &MembersDemoArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let group = format!("qcast demo members {}", std::process::id());
    let secrets = secrets(&group);
    let devices = args.device.iter().map(DeviceSpec::to_string).collect();
    let mut crew = Crew::new(&group, devices, &interrupt);
    let live = if is_live(args.json) {
        Some(observe(args, &group, &secrets.0, &interrupt)?)
    } else {
        None
    };
    let (say, said) = channel();
    let rows = thread::scope(|scope| {
        let crew = &mut crew;
        let playing = scope.spawn(move || play(crew, args.members, args.allow, &secrets, &say));
        match live {
            Some(live) => show(live, &said, || playing.is_finished(), &interrupt)?,
            None => said.iter().for_each(|text| Notes::default().say(text)),
        }
        playing.join().unwrap_or_else(|_| Err(Failure::failed("the demonstration panicked")))
    })?;

    let passed = rows.iter().all(Row::passed);
    let mut out = Output::new();
    if args.json {
        for event in crew.log() {
            out.json(&event.json())?;
        }
        for row in &rows {
            out.json(&row.json())?;
        }
        out.json(&json!({ "event": "demo", "members": args.members, "passed": passed }))?;
    } else {
        let lines = if args.log { crew.every_line() } else { crew.lines() };
        for line in lines {
            out.line(line.as_bytes())?;
        }
        out.line(b"")?;
        table(&rows, &mut out)?;
    }
    out.flush()?;
    if !passed {
        return Err(Failure::failed("not all of it was seen as it should be: see the last column"));
    }
    Ok(Exit::Done)
}

/// A secret for the members and another one for the stranger. Check values have 8 bits: of 256 pairs of keys one
/// looks the same, and would show nothing.
fn secrets(group: &str) -> (String, String) {
    let ours = format!("ours {group}");
    let check = |secret: &str| key_check(group, QKey::derive(group, secret.as_bytes()));
    let differs = |theirs: &String| check(theirs) != check(&ours);
    let theirs = (0..).map(|n| format!("theirs {n}")).find(differs);
    (ours, theirs.unwrap_or_default())
}

/// This process becomes a member too, to see the others.
fn observe<'a>(
    args: &MembersDemoArgs,
    group: &str,
    secret: &str,
    interrupt: &'a Interrupt,
) -> Result<Live<'a>, Failure> {
    let device = args.device.first().cloned().unwrap_or_default();
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::environment(Chain(error));
    let name = format!("observer {}", std::process::id());
    let node = Node::builder().device(device).name(name).open().map_err(|error| failed(&error))?;
    let events = node.events();
    let joined = node.group(group).secret(secret).join().map_err(|error| failed(&error))?;
    Live::new(joined, events, interrupt)
}

/// Shows the live view until the steps are over.
fn show(
    mut live: Live<'_>,
    said: &Receiver<String>,
    is_over: impl Fn() -> bool,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    while !is_over() {
        while let Ok(text) = said.try_recv() {
            live.note(Told::step(&text));
        }
        match live.step() {
            Ok(Next::More) => {}
            Ok(Next::Ended) => interrupt.ask(),
            Err(failure) => {
                interrupt.ask();
                return Err(failure);
            }
        }
    }
    Ok(())
}

fn table(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let wide = rows.iter().map(|row| row.title.chars().count()).max().unwrap_or(0);
    out.line(format!("{:wide$}   seen by    slowest   bound", "").as_bytes())?;
    for row in rows {
        let slowest = row.slowest.map_or("-".into(), |time| Seconds(time).to_string());
        let bound = row.bound.map_or("-".into(), |bound| format!("{} s", bound.as_secs()));
        let seen = match row.wanted {
            0 => "-".to_owned(),
            wanted => format!("{} of {wanted}", row.seen),
        };
        let verdict = row.failure.as_ref().map_or("ok".into(), |why| format!("FAILED: {why}"));
        out.line(
            format!("{:wide$}  {seen:>8}  {slowest:>9}  {bound:>6}  {verdict}", row.title)
                .as_bytes(),
        )?;
    }
    Ok(())
}

/// A time of the log.
pub(super) fn at(unix: Duration) -> String {
    time_of_day(unix)
}
