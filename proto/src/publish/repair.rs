//! Repairs that are due: merged, lowest first, by unicast to one asker or by multicast to several.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::time::Duration;

use super::window::Window;
use crate::addr::{PeerAddr, Sequence};
use crate::time::Instant;

/// Frames that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    wanted: BTreeMap<Sequence, Wanted>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    due: Instant,
    /// The only asker so far; `None` once there are several.
    asker: Option<PeerAddr>,
}

impl Repairs {
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Notes that `asker` lacks `sequence`. The repair waits for `merge`, in case others ask too; once a
    /// second one asks, it goes to the group, and at once: the loss is shared, and every moment brings
    /// more requests. Says whether nobody had asked yet.
    pub(crate) fn want(
        &mut self,
        now: Instant,
        sequence: Sequence,
        asker: PeerAddr,
        merge: Duration,
    ) -> bool {
        let due = now + merge;
        match self.wanted.entry(sequence) {
            Entry::Vacant(entry) => {
                entry.insert(Wanted { due, asker: Some(asker) });
                true
            }
            Entry::Occupied(mut entry) => {
                let wanted = entry.get_mut();
                if wanted.asker == Some(asker) {
                    wanted.due = wanted.due.min(due);
                } else {
                    *wanted = Wanted { due: now, asker: None };
                }
                false
            }
        }
    }

    /// Notes that the group lacks `sequence`: somebody asks whose loss is shared. Says whether nobody had
    /// asked yet.
    pub(crate) fn want_for_all(&mut self, now: Instant, sequence: Sequence) -> bool {
        self.wanted.insert(sequence, Wanted { due: now, asker: None }).is_none()
    }

    /// Takes the lowest frame that is due and idle, and says whom it goes to (`None`: the group).
    pub(crate) fn take<T>(
        &mut self,
        now: Instant,
        window: &mut Window<T>,
    ) -> Option<(Sequence, Option<PeerAddr>, T)> {
        // Whatever fell out of the window was answered "gone" when it was asked for, or will be.
        while self.wanted.first_key_value().is_some_and(|(s, _)| *s < window.base()) {
            self.wanted.pop_first();
        }
        let (sequence, wanted) = self
            .wanted
            .iter()
            .find(|(s, w)| w.due <= now && window.is_idle(**s))
            .map(|(s, w)| (*s, *w))?;
        let frame = window.take_again(sequence, now, wanted.asker)?;
        self.wanted.remove(&sequence);
        Some((sequence, wanted.asker, frame))
    }

    /// When the next repair is due, of those whose frames are not held by the device.
    pub(crate) fn next_due<T>(&self, window: &Window<T>) -> Option<Instant> {
        self.wanted.iter().filter(|(s, _)| window.is_idle(**s)).map(|(_, w)| w.due).min()
    }
}
