//! `qcast chat`: lines between the members of a group. The smallest complete program: it publishes,
//! subscribes, and tells who is there.

use std::sync::Arc;
use std::time::Duration;

use qcast::{Delivery, Group, MemberEvent, Node, Notice, Progress, Publisher, ViewChange};
use serde_json::json;

use super::exit::{Chain, Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::input::{Cut, Input, Next};
use super::listen::{Names, Teller};
use super::members::told::Told;
use super::options::{NamedGroup, NodeOptions};
use super::output::Output;
use super::shown::shown;
use super::signals::Interrupt;

/// Talks with everybody in a group: lines that are typed go to all, and theirs are printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It ends with the end of its input (Ctrl-D) or Ctrl-C, when everybody has what was said.
`examples/chat.rs` is the same in less than 80 lines of the library.

Examples:
  qcast chat lunch --name ann
  echo 'back at two' | qcast chat lunch --name bob")]
pub(crate) struct ChatArgs {
    /// Print JSON: what is said, and who comes and goes, an object each
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    group: NamedGroup,
    #[command(flatten)]
    node: NodeOptions,
}

/// The longest line.
const MAX_LINE: usize = 64 << 10;

/// How long those that are there have to answer before the first line goes out.
const GREETING: Duration = Duration::from_millis(500);

/// How long to wait for a line before everything else is looked at.
const SLICE: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &ChatArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let key = args.group.key()?;
    let node = args.node.open(Progress::Thread)?;
    let happenings = Happenings::of(&node);
    let group = args.group.join(&node, &key, &[])?;
    let (mut out, teller) = (Output::new(), Teller::new(args.json));
    let mut talk = Talk::begin(&group, teller)?;
    talk.teller.listening(&mut out, &node, &group)?;
    talk.greet(&mut out)?;
    let publisher = talk.publisher.as_ref();
    publisher.map(|publisher| publisher.wait_for(1, GREETING));
    let mut input = Input::stdin(Cut::Lines, MAX_LINE);
    while !interrupt.is_asked() {
        talk.hear(&node, &mut out)?;
        // Whoever has another key hears nothing, and is to know why.
        happenings.tell(&mut out, &talk.teller)?;
        match input.next(SLICE)? {
            Next::Message(line) => talk.say(&line)?,
            Next::Pending => {}
            Next::End => break,
        }
    }
    let unconfirmed = talk.end();
    talk.hear(&node, &mut out)?;
    drop(talk.subscriber);
    drop(talk.changes);
    group.leave();
    if unconfirmed.is_empty() {
        return Ok(Exit::Done);
    }
    talk.teller
        .notes
        .say(format_args!("not all of it was heard by {}", shown(&unconfirmed.join(", "))));
    Ok(Exit::Lost)
}

struct Talk {
    publisher: Option<Publisher>,
    subscriber: qcast::Subscriber,
    changes: qcast::ViewChanges,
    teller: Teller,
    names: Names,
}

impl Talk {
    fn begin(group: &Group, teller: Teller) -> Result<Self, Failure> {
        let changes = group.view_changes();
        let subscriber = group.subscriber().open();
        let subscriber =
            subscriber.map_err(|error| Failure::because("cannot subscribe", &error))?;
        let publisher = group.publisher().open();
        let publisher = publisher.map_err(|error| Failure::because("cannot publish", &error))?;
        let publisher = Some(publisher);
        Ok(Self { publisher, subscriber, changes, teller, names: Names::default() })
    }

    /// Tells who was there already.
    fn greet(&self, out: &mut Output) -> Result<(), Failure> {
        let view = self.changes.start();
        for member in view.members.iter().filter(|member| !member.own) {
            let event = MemberEvent::Joined(Arc::clone(&member.info));
            let change = ViewChange::Member { event, version: view.version };
            if let Some(told) = Told::change(&change) {
                self.teller.tell(out, || told.json(), || format!("* {}", told.text))?;
            }
        }
        Ok(())
    }

    /// Says a line to all.
    fn say(&mut self, line: &[u8]) -> Result<(), Failure> {
        let Some(publisher) = &mut self.publisher else { return Ok(()) };
        let said = publisher.send(line).map(|()| publisher.flush());
        said.map_err(|error| Failure::because("cannot publish", &error))
    }

    /// Waits until all have what was said; names those that have not.
    fn end(&mut self) -> Vec<String> {
        self.publisher.take().map(|publisher| publisher.close().unconfirmed).unwrap_or_default()
    }

    /// Prints what was said meanwhile, and who came and went.
    fn hear(&mut self, node: &Node, out: &mut Output) -> Result<(), Failure> {
        let stopped = |error| Failure::environment(Chain(&error));
        while let Some(change) = self.changes.try_recv().map_err(stopped)? {
            // That somebody publishes and subscribes goes without saying.
            let own = matches!(&change, ViewChange::Member { event, .. }
                if event.info().node == node.id() || matches!(event, MemberEvent::Updated(_)));
            if let Some(told) = Told::change(&change).filter(|_| !own) {
                self.teller.tell(out, || told.json(), || format!("* {}", told.text))?;
            }
        }
        while let Some(delivery) = self.subscriber.try_recv().map_err(stopped)? {
            match delivery {
                Delivery::Message(message) => {
                    let name = &self.names.find(message.key(), &self.subscriber).publisher;
                    let text = String::from_utf8_lossy(&message);
                    let said = || json!({ "event": "said", "name": name, "text": text });
                    if self.teller.is_json() {
                        out.json(&said())?;
                    } else {
                        out.line(format!("{}: {}", shown(name), shown(&text)).as_bytes())?;
                    }
                }
                Delivery::Notice(notice @ Notice::Lost { .. }) => {
                    let (names, teller) = (&mut self.names, &self.teller);
                    teller.notice(out, &notice, names, &self.subscriber)?;
                }
                _ => {}
            }
        }
        out.flush()
    }
}
