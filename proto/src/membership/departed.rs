//! Members that are none any more: what they said before must not bring them back.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::addr::NodeId;
use crate::time::Instant;

/// The last words of those that left, by node. Requirements: `R-MEMBER-6`, `R-MEMBER-15`.
#[derive(Debug, Default)]
pub(super) struct Departed(BTreeMap<NodeId, Last>);

#[derive(Debug)]
struct Last {
    incarnation: u64,
    at: u64,
    when: Instant,
    /// Whether it said that it leaves, or a later life took its place.
    left: bool,
    /// Until when nothing at all is believed of it.
    barred: Instant,
}

/// How one came to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It said so, or a later life took its place.
    Left,
    /// It was silent.
    Failed,
    /// It never answered.
    Barred,
}

/// For so long nothing is believed of one that never answered.
const BARRED: Duration = Duration::from_secs(30);

/// So many are remembered, for so long.
const MAX: usize = 1024;
const KEPT: Duration = Duration::from_secs(60);

/// A word of an earlier life than the one that ended is a late one for so long. One that comes still later is no
/// echo: that node lives. The host's clock may have been set back between its lives, or of two nodes
/// with one name the one that counted was stopped; neither must keep a name from ever being heard again.
const LATE: Duration = Duration::from_secs(5);

impl Last {
    /// Whether the life that ended, not long ago, was a later one than this.
    fn was_later(&self, now: Instant, incarnation: u64) -> bool {
        incarnation < self.incarnation && now.saturating_since(self.when) < LATE
    }
}

impl Departed {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn note(
        &mut self,
        now: Instant,
        node: NodeId,
        (incarnation, at): (u64, u64),
        end: End,
    ) {
        if self.0.len() >= MAX && !self.0.contains_key(&node) {
            let kept = |l: &Last| now.saturating_since(l.when) < KEPT || l.barred > now;
            self.0.retain(|_, l| kept(l));
            let oldest = self.0.iter().min_by_key(|(_, l)| l.when).map(|(node, _)| *node);
            if let (true, Some(oldest)) = (self.0.len() >= MAX, oldest) {
                self.0.remove(&oldest);
            }
        }
        let barred = if end == End::Barred { now + BARRED } else { now };
        let left = end == End::Left;
        self.0.insert(node, Last { incarnation, at, when: now, left, barred });
    }

    /// Whether a word of this life and clock is from before the node left, or nothing of it is believed.
    pub(super) fn refuses(&self, now: Instant, node: NodeId, word: (u64, u64)) -> bool {
        self.0.get(&node).is_some_and(|l| {
            now < l.barred
                || l.was_later(now, word.0)
                || (word.0 == l.incarnation && word.1 <= l.at)
        })
    }

    /// Whether nothing is believed of the node, or this life of it is over.
    pub(super) fn knows(&self, now: Instant, node: NodeId, incarnation: u64) -> bool {
        self.0.get(&node).is_some_and(|l| {
            now < l.barred
                || l.was_later(now, incarnation)
                || (incarnation == l.incarnation && l.left && now.saturating_since(l.when) < KEPT)
        })
    }
}
