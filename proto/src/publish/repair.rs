//! Repairs that are due: merged, lowest first, by unicast to one asker or by multicast to several.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::time::Duration;

use super::window::Window;
use crate::addr::{PeerAddr, Sequence};
use crate::time::Instant;

/// What a request is among those for its frame that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The first.
    First,
    /// The first of a second asker.
    Second,
    /// Another.
    Further,
}

/// Frames that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    wanted: BTreeMap<Sequence, Wanted>,
}

/// Whether losses of late were shared by several subscribers.
///
/// Where they are, the first request is answered to the group at once: each half round trip that
/// passes brings more requests. Where they are not, a repair is for its asker alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    asked: u32,
    shared: u32,
}

/// Requests that are remembered: older ones count half.
const MEMORY: u32 = 64;

impl Default for Shared {
    /// Before anything is known a loss counts as shared: to take it for one costs a repair that nobody
    /// else needs, to take it for none as many requests as there are subscribers.
    fn default() -> Self {
        Self { asked: 2, shared: 2 }
    }
}

impl Shared {
    /// A frame was asked for, by the first who lacks it.
    pub(crate) fn note_first(&mut self) {
        self.asked += 1;
        if self.asked >= MEMORY {
            self.asked /= 2;
            self.shared /= 2;
        }
    }

    /// It was asked for by a second one.
    pub(crate) fn note_second(&mut self) {
        self.shared = (self.shared + 1).min(self.asked);
    }

    /// Whether the next loss is likely to be shared.
    pub(crate) fn is_likely(self) -> bool {
        self.shared * 2 > self.asked
    }
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    due: Instant,
    /// The only asker so far; `None` once there are several.
    asker: Option<PeerAddr>,
    /// Whether it goes to the group though only one asked.
    to_all: bool,
}

impl Repairs {
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Notes that `asker` lacks `sequence`. The repair waits for `merge`, in case others ask too, or without
    /// one goes to the group at once; once a
    /// second one asks, it goes to the group, and at once: the loss is shared. Says what the request was.
    pub(crate) fn want(
        &mut self,
        now: Instant,
        sequence: Sequence,
        asker: PeerAddr,
        merge: Option<Duration>,
    ) -> Request {
        let due = now + merge.unwrap_or_default();
        match self.wanted.entry(sequence) {
            Entry::Vacant(entry) => {
                entry.insert(Wanted { due, asker: Some(asker), to_all: merge.is_none() });
                Request::First
            }
            Entry::Occupied(mut entry) => {
                let wanted = entry.get_mut();
                match wanted.asker {
                    Some(a) if a != asker => {
                        *wanted = Wanted { due: now, asker: None, to_all: true };
                        Request::Second
                    }
                    _ => {
                        wanted.due = wanted.due.min(due);
                        Request::Further
                    }
                }
            }
        }
    }

    /// Notes that the group lacks `sequence`: somebody asks whose loss is shared.
    pub(crate) fn want_for_all(&mut self, now: Instant, sequence: Sequence) {
        self.wanted.insert(sequence, Wanted { due: now, asker: None, to_all: true });
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
        let Wanted { asker, to_all, .. } = wanted;
        let (to, by) = if to_all { (None, asker) } else { (asker, None) };
        let frame = window.take_again(sequence, now, to, by)?;
        self.wanted.remove(&sequence);
        Some((sequence, to, frame))
    }

    /// When the next repair is due, of those whose frames are not held by the device.
    pub(crate) fn next_due<T>(&self, window: &Window<T>) -> Option<Instant> {
        self.wanted.iter().filter(|(s, _)| window.is_idle(**s)).map(|(_, w)| w.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_likely_follows_what_happens() {
        let mut s = Shared::default();
        assert!(s.is_likely());
        for _ in 0..3 {
            s.note_first();
        }
        assert!(!s.is_likely());
        for _ in 0..200 {
            s.note_first();
            s.note_second();
        }
        assert!(s.is_likely());
        for _ in 0..200 {
            s.note_first();
        }
        assert!(!s.is_likely());
    }
}
