//! Rules: what a test does to chosen datagrams.

use qcast_proto::time::{Duration, Instant};

use super::trace::Outcome;

/// A datagram that is about to arrive at a port.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Passing<'a> {
    /// When.
    pub at: Instant,
    /// The sender's port; `None` for a stranger's datagram.
    pub from: Option<usize>,
    /// The receiver's port.
    pub to: usize,
    /// Whether it comes by multicast.
    pub multicast: bool,
    /// The QKey that it carries.
    pub qkey: u32,
    /// Its payload.
    pub payload: &'a [u8],
}

/// What a rule does to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; the next rule is asked.
    Pass,
    /// It does not arrive, and no other rule is asked.
    Drop,
    /// It arrives so much later, and no other rule is asked. Others may overtake it.
    Delay(Duration),
}

/// Told of every datagram that does not reach a port's buffers, and why.
pub(super) struct Watch(pub(super) Told);

type Told = Box<dyn FnMut(&Passing<'_>, Outcome) + Send>;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// Names a rule of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(pub(super) u64);

type Rule = Box<dyn FnMut(&Passing<'_>) -> Verdict + Send>;

/// The rules of a fabric, in the order in which they were made.
#[derive(Default)]
pub(super) struct Rules {
    rules: Vec<(RuleId, Rule)>,
    next: u64,
}

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        self.rules.push((id, rule));
        id
    }

    pub(super) fn remove(&mut self, id: RuleId) -> bool {
        let before = self.rules.len();
        self.rules.retain(|(other, _)| *other != id);
        self.rules.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(super) fn judge(&mut self, passing: &Passing<'_>) -> Verdict {
        let mut verdicts = self.rules.iter_mut().map(|(_, rule)| rule(passing));
        verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass)
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|(id, _)| id)).finish()
    }
}
