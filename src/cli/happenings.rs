//! What is told of the node's members while a command does its work: keys and paths that differ.

use std::time::{Duration, Instant};

use qcast::{Node, NodeEvent, NodeEvents, Noticed, PathDifference};
use serde_json::{Value, json};

use super::clock::now;
use super::exit::Failure;
use super::listen::Teller;
use super::output::Output;
use super::shown::shown;

/// Listens to what happens to a node from its opening on.
#[derive(Debug)]
pub(crate) struct Happenings {
    events: NodeEvents,
    looked: Instant,
}

/// How often it is looked for news.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Happenings {
    pub(crate) fn of(node: &Node) -> Self {
        Self { events: node.events(), looked: now() }
    }

    /// Tells what is new, if it is time to look.
    pub(crate) fn look(
        &mut self,
        at: Instant,
        out: &mut Output,
        teller: &Teller,
    ) -> Result<(), Failure> {
        if at.saturating_duration_since(self.looked) < LOOK_EVERY {
            return Ok(());
        }
        self.looked = at;
        self.tell(out, teller)
    }

    /// Tells what is new.
    pub(crate) fn tell(&self, out: &mut Output, teller: &Teller) -> Result<(), Failure> {
        // A node that has stopped says so elsewhere.
        while let Ok(Some(event)) = self.events.try_recv() {
            if let Some(object) = object(&event) {
                teller.tell(out, || object, || shown(&event.to_string()).into_owned())?;
            }
        }
        Ok(())
    }
}

/// The object of an event that is told.
pub(crate) fn object(event: &NodeEvent) -> Option<Value> {
    let member = |m: &Noticed| json!({ "name": m.name, "node": m.node.to_string(), "address": m.address.gid.ip() });
    let check = |check: &u8| format!("{check:02x}");
    Some(match event {
        NodeEvent::KeyMismatch { group, members, theirs, ours, rejected } => json!({
            "event": "key_mismatch", "group": group, "members": members.iter().map(member).collect::<Vec<_>>(),
            "theirs": check(theirs), "ours": check(ours), "rejected_datagrams": rejected,
            "reason": event.to_string(),
        }),
        NodeEvent::PathMismatch { group, member: m, what } => {
            let (kind, theirs, ours) = match what {
                PathDifference::Partition { theirs, ours } => {
                    ("partition", json!(check(theirs)), json!(check(ours)))
                }
                PathDifference::Address { theirs, ours } => {
                    ("address", json!(check(theirs)), json!(check(ours)))
                }
                PathDifference::Mtu { theirs, ours } => ("mtu", json!(theirs), json!(ours)),
                _ => ("path", Value::Null, Value::Null),
            };
            json!({
                "event": "path_mismatch", "group": group, "member": member(m), "what": kind,
                "theirs": theirs, "ours": ours, "reason": event.to_string(),
            })
        }
        NodeEvent::MismatchOver { group, member: m } => {
            json!({ "event": "mismatch_over", "group": group, "member": member(m) })
        }
        NodeEvent::IdentityConflict { other } => {
            json!({ "event": "identity_conflict", "member": member(other), "reason": event.to_string() })
        }
        _ => return None,
    })
}
