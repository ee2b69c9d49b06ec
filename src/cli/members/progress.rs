//! How far publishers are, as a subscriber sees it that nobody waits for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use qcast::{Group, NodeId, Reliability, Subscriber};

use super::super::clock::now;
use super::super::exit::Failure;

/// Follows all streams of a group, and drops what they carry.
#[derive(Debug)]
pub(super) struct Progress {
    subscriber: Subscriber,
    seen: BTreeMap<NodeId, Seen>,
    looked: Option<Instant>,
}

/// Frames of all streams of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    frames: u64,
    missing: u64,
    per_second: f64,
}

/// Rates are of so long.
const PERIOD: Duration = Duration::from_secs(1);

/// Messages that are dropped at one look.
const DROPPED: usize = 4096;

impl Progress {
    pub(super) fn follow(group: &Group) -> Result<Self, Failure> {
        let subscriber = group.subscriber().reliability(Reliability::Latest).queue(64).open();
        let subscriber =
            subscriber.map_err(|error| Failure::because("cannot subscribe", &error))?;
        Ok(Self { subscriber, seen: BTreeMap::new(), looked: None })
    }

    /// Takes in what came.
    pub(super) fn look(&mut self) {
        self.subscriber.poll(DROPPED, |_| {});
        let now = now();
        let passed = self.looked.map(|at| now.saturating_duration_since(at));
        if passed.is_some_and(|passed| passed < PERIOD) {
            return;
        }
        self.looked = Some(now);
        let mut sums: BTreeMap<NodeId, Seen> = BTreeMap::new();
        for (info, stats) in self.subscriber.streams() {
            let sum = sums.entry(info.node).or_default();
            sum.frames = sum.frames.saturating_add(stats.frames);
            sum.missing = sum.missing.saturating_add(stats.missing);
        }
        for (node, sum) in &mut sums {
            let before = self.seen.get(node).map_or(sum.frames, |seen| seen.frames);
            let seconds = passed.unwrap_or(PERIOD).as_secs_f64();
            sum.per_second = sum.frames.saturating_sub(before) as f64 / seconds;
        }
        self.seen = sums;
    }

    /// A node's progress, as it is shown; empty for one that does not publish.
    pub(super) fn of(&self, node: NodeId) -> String {
        self.seen.get(&node).map_or_else(String::new, |seen| {
            let missing = match seen.missing {
                0 => String::new(),
                n => format!(" -{n}"),
            };
            format!("{} fr {:.0}/s{missing}", seen.frames, seen.per_second)
        })
    }
}
