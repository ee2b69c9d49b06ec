//! How far members are, as they say themselves, and how fast.

use std::collections::BTreeMap;
use std::time::Duration;

use qcast::{MemberProgress, NodeId, View};

/// Rates of members, from one word of theirs to a later one.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<NodeId, Seen>);

#[derive(Debug)]
struct Seen {
    progress: MemberProgress,
    rate: Option<Rate>,
}

/// Frames a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    sent: f64,
    received: f64,
}

/// Words that are closer to each other say little of a rate.
const APART: Duration = Duration::from_millis(500);

impl Rates {
    /// Takes in what the members of a view said of late. Those that are gone are forgotten.
    pub(super) fn look(&mut self, view: &View) {
        self.0.retain(|node, _| view.member(*node).is_some());
        for member in &view.members {
            let Some(progress) = member.progress else { continue };
            let seen = self.0.entry(member.info.node).or_insert(Seen { progress, rate: None });
            let apart = progress.at.saturating_since(seen.progress.at);
            if apart < APART {
                continue;
            }
            let of = |now: u64, before: u64| {
                // A new life begins at nothing.
                now.saturating_sub(before) as f64 / apart.as_secs_f64()
            };
            let rate = Rate {
                sent: of(progress.sent, seen.progress.sent),
                received: of(progress.received, seen.progress.received),
            };
            *seen = Seen { progress, rate: Some(rate) };
        }
    }

    /// A member's rate, once it has said twice how far it is.
    pub(super) fn of(&self, node: NodeId) -> Option<Rate> {
        self.0.get(&node)?.rate
    }
}

/// How far a member is, in a few words: what its publishers sent and its subscribers received, in frames.
pub(super) fn words(progress: &MemberProgress, rate: Option<Rate>) -> String {
    let mut words = Vec::new();
    let per_second = |rate: f64| format!("{}/s", brief(rate.round() as u64));
    for (name, count, rate) in [
        ("out", progress.sent, rate.map(|rate| rate.sent)),
        ("in", progress.received, rate.map(|rate| rate.received)),
    ] {
        if count > 0 {
            words.push(format!("{name} {}", brief(count)));
            words.extend(rate.map(per_second));
        }
    }
    for (name, count) in [("lost", progress.lost), ("wait", progress.waiting)] {
        if count > 0 {
            words.push(format!("{name} {}", brief(count)));
        }
    }
    if words.is_empty() { "nothing yet".to_owned() } else { words.join(" ") }
}

/// A count in at most five characters: `9999`, `12.3k`, `118k`, `1.20M`.
fn brief(count: u64) -> String {
    if count < 10_000 {
        return count.to_string();
    }
    let units = ["k", "M", "G", "T", "P", "E"];
    let mut value = count as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fit() {
        for (count, text) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (12_345, "12.3k"),
            (99_960, "100k"),
            (118_400, "118k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (9_994_999, "9.99M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(brief(count), text, "{count}");
            assert!(brief(count).len() <= 5);
        }
    }
}
