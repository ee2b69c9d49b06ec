//! The retained window: frames that were sent, and may be asked for again.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::addr::{PeerAddr, Sequence};
use crate::time::Instant;

/// Frames from `base` on, one after the other: first those that were sent, then those that wait.
#[derive(Debug)]
pub(crate) struct Window<T> {
    base: Sequence,
    slots: VecDeque<Slot<T>>,
    /// How many slots, from the front, were sent at least once.
    sent: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// Absent while the device holds it.
    frame: Option<T>,
    /// The last repair, and whom it went to (`None`: the group).
    repaired: Option<(Instant, Option<PeerAddr>)>,
}

impl<T> Window<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { base: Sequence(0), slots: VecDeque::with_capacity(capacity), sent: 0, capacity }
    }

    /// The oldest frame that is retained.
    pub(crate) fn base(&self) -> Sequence {
        self.base
    }

    /// The first frame that was not sent yet.
    pub(crate) fn head(&self) -> Sequence {
        self.base.plus(self.sent as u64)
    }

    /// The sequence of the next frame to be queued.
    pub(crate) fn end(&self) -> Sequence {
        self.base.plus(self.slots.len() as u64)
    }

    pub(crate) fn queued(&self) -> usize {
        self.slots.len() - self.sent
    }

    /// How many more frames fit once everything before `confirmed` is let go.
    pub(crate) fn room(&self, confirmed: Sequence) -> usize {
        let free = self.capacity.saturating_sub(self.slots.len());
        let releasable = confirmed.since(self.base).min(self.sent as u64);
        free + usize::try_from(releasable).unwrap_or(usize::MAX)
    }

    /// Queues the next frame, and gives back the oldest if its place is needed and the device does not
    /// hold it. The caller has asked [`Window::room`].
    pub(crate) fn push(&mut self, frame: T) -> Option<T> {
        let released = (self.slots.len() >= self.capacity).then(|| self.pop()).flatten();
        self.slots.push_back(Slot { frame: Some(frame), repaired: None });
        released
    }

    /// Lets the oldest sent frame go, if the device does not hold it.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.sent == 0 {
            return None;
        }
        let frame = self.slots.front_mut()?.frame.take()?;
        self.slots.pop_front();
        self.sent -= 1;
        self.base = self.base.next();
        Some(frame)
    }

    /// Takes the next frame that was not sent yet.
    pub(crate) fn take_new(&mut self) -> Option<(Sequence, T)> {
        let sequence = self.head();
        let frame = self.slots.get_mut(self.sent)?.frame.take()?;
        self.sent += 1;
        Some((sequence, frame))
    }

    /// Takes a sent frame for a repair, if the device does not hold it.
    pub(crate) fn take_again(
        &mut self,
        sequence: Sequence,
        now: Instant,
        to: Option<PeerAddr>,
    ) -> Option<T> {
        let slot = self.slot_mut(sequence)?;
        let frame = slot.frame.take()?;
        slot.repaired = Some((now, to));
        Some(frame)
    }

    /// Whether a sent frame is retained and not held by the device.
    pub(crate) fn is_idle(&self, sequence: Sequence) -> bool {
        self.slot(sequence).is_some_and(|s| s.frame.is_some())
    }

    /// Whether a repair of the frame is still on its way to `to`: it went to the group less than `hold` ago,
    /// or to `to` itself less than a quarter of that. (An asker that asks again after more than that has
    /// seen later repairs come.)
    pub(crate) fn is_damped(
        &self,
        sequence: Sequence,
        now: Instant,
        hold: Duration,
        to: PeerAddr,
    ) -> bool {
        self.slot(sequence).and_then(|s| s.repaired).is_some_and(|(at, whom)| {
            let hold = if whom.is_none() { hold } else { hold / 4 };
            now.saturating_since(at) < hold && whom.is_none_or(|w| w == to)
        })
    }

    /// Whether a retained frame was ever repaired.
    pub(crate) fn was_repaired(&self, sequence: Sequence) -> bool {
        self.slot(sequence).is_some_and(|s| s.repaired.is_some())
    }

    /// Puts a frame back that the device is done with; gives it out again if it is not retained.
    pub(crate) fn put_back(&mut self, sequence: Sequence, frame: T) -> Option<T> {
        match self.slot_mut(sequence) {
            Some(slot) if slot.frame.is_none() => {
                slot.frame = Some(frame);
                None
            }
            _ => Some(frame),
        }
    }

    fn slot(&self, sequence: Sequence) -> Option<&Slot<T>> {
        if sequence < self.base || sequence >= self.head() {
            return None;
        }
        self.slots.get(usize::try_from(sequence.since(self.base)).ok()?)
    }

    fn slot_mut(&mut self, sequence: Sequence) -> Option<&mut Slot<T>> {
        if sequence < self.base || sequence >= self.head() {
            return None;
        }
        self.slots.get_mut(usize::try_from(sequence.since(self.base)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, Qpn};

    #[test]
    fn frames_go_round() {
        let mut w = Window::new(2);
        assert!(w.push('a').is_none());
        assert!(w.push('b').is_none());
        assert_eq!(w.room(Sequence(9)), 0, "nothing was sent");
        assert_eq!(w.take_new(), Some((Sequence(0), 'a')));
        assert!(!w.is_idle(Sequence(0)));
        assert!(w.put_back(Sequence(0), 'a').is_none());
        assert_eq!((w.room(Sequence(0)), w.room(Sequence(1))), (0, 1));
        assert_eq!(w.push('c'), Some('a'));
        assert_eq!((w.base(), w.head(), w.end()), (Sequence(1), Sequence(1), Sequence(3)));
        // Not retained any more, so it is given out again.
        assert_eq!(w.put_back(Sequence(0), 'z'), Some('z'));
    }

    #[test]
    fn a_repair_is_damped_for_those_it_reached() {
        let peer = |n| PeerAddr { gid: Gid::default(), qpn: Qpn::new(n), udp_port: 1 };
        let mut w = Window::new(4);
        w.push('a');
        w.take_new();
        assert!(w.take_again(Sequence(0), Instant::ZERO, None).is_none(), "still in flight");
        w.put_back(Sequence(0), 'a');
        let (hold, now) = (Duration::from_micros(40), Instant::from_micros(5));
        assert_eq!(w.take_again(Sequence(0), Instant::ZERO, Some(peer(1))), Some('a'));
        assert!(w.is_damped(Sequence(0), now, hold, peer(1)));
        assert!(!w.is_damped(Sequence(0), now, hold, peer(2)));
        assert!(!w.is_damped(Sequence(0), Instant::from_micros(10), hold, peer(1)));
    }
}
