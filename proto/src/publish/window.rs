//! The retained window: frames that were sent, and may be asked for again.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::addr::{PeerAddr, Sequence};
use crate::time::Instant;

/// Frames from `base` on, one after the other: first those that were sent, then those that wait.
///
/// It may hold more than its capacity while the device holds the oldest frame; [`Window::trim`] makes
/// up for it.
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

/// What is known of a frame that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// Nobody asked before.
    None,
    /// A repair that reaches the asker was sent within a round trip.
    OnItsWay,
    /// Somebody else asked a short while ago: the loss is shared, and more will ask.
    AskedByAnother,
    /// It was repaired before.
    Repaired,
}

/// Requests for one frame within so many round trips are for one loss: back-offs spread over
/// [`BACKOFF_RTTS`](crate::rtt::BACKOFF_RTTS), and words travel.
const SHARED_RTTS: u32 = crate::rtt::BACKOFF_RTTS + 2;

impl<T> Window<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
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

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn queued(&self) -> usize {
        self.slots.len() - self.sent
    }

    /// How many more frames fit once everything before `confirmed` is let go. Frames that wait take a
    /// quarter of the window at most: the rest is for those that were sent, or an application that is
    /// faster than the line would leave nothing to repair from.
    pub(crate) fn room(&self, confirmed: Sequence) -> usize {
        let free = self.capacity.saturating_sub(self.slots.len());
        let releasable = confirmed.since(self.base).min(self.sent as u64);
        let fits = free + usize::try_from(releasable).unwrap_or(usize::MAX);
        fits.min((self.capacity / 4).max(1).saturating_sub(self.queued()))
    }

    /// Queues the next frame. The caller has asked [`Window::room`], and trims.
    pub(crate) fn push(&mut self, frame: T) {
        self.slots.push_back(Slot { frame: Some(frame), repaired: None });
    }

    /// Lets the oldest frame go if there are more than the capacity, it was sent, it is before
    /// `confirmed`, and the device does not hold it. Ask until it is `None` when one of these changed.
    /// Requirements: `R-PUBLISH-2`.
    pub(crate) fn trim(&mut self, confirmed: Sequence) -> Option<T> {
        if self.slots.len() <= self.capacity || self.sent == 0 || self.base >= confirmed {
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

    /// What became of the last request for a frame, now that `asker` lacks it.
    pub(crate) fn earlier(
        &self,
        sequence: Sequence,
        now: Instant,
        rtt: Duration,
        asker: PeerAddr,
    ) -> Earlier {
        let Some((at, whom)) = self.slot(sequence).and_then(|s| s.repaired) else {
            return Earlier::None;
        };
        let age = now.saturating_since(at);
        if whom.is_none() && age < rtt || whom == Some(asker) && age < rtt / 4 {
            // One who asks again after more than that has seen later repairs come.
            Earlier::OnItsWay
        } else if age < rtt * SHARED_RTTS && whom.is_some_and(|w| w != asker) {
            Earlier::AskedByAnother
        } else {
            Earlier::Repaired
        }
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

    /// R-PUBLISH-2.
    #[test]
    fn frames_go_round() {
        let mut w = Window::new(2);
        w.push('a');
        assert_eq!(w.room(Sequence(9)), 0, "one waits");
        w.push('b');
        assert_eq!(w.room(Sequence(9)), 0, "nothing was sent");
        assert_eq!(w.take_new(), Some((Sequence(0), 'a')));
        assert!(!w.is_idle(Sequence(0)));
        assert!(w.put_back(Sequence(0), 'a').is_none());
        assert_eq!(w.room(Sequence(1)), 0, "one waits");
        w.take_new();
        assert_eq!((w.room(Sequence(0)), w.room(Sequence(1))), (0, 1));
        w.put_back(Sequence(1), 'b');
        w.push('c');
        assert_eq!(w.trim(Sequence(0)), None, "not confirmed");
        assert_eq!(w.trim(Sequence(1)), Some('a'));
        assert_eq!(w.trim(Sequence(1)), None);
        assert_eq!((w.base(), w.head(), w.end()), (Sequence(1), Sequence(2), Sequence(3)));
        // Not retained any more, so it is given out again.
        assert_eq!(w.put_back(Sequence(0), 'z'), Some('z'));
    }

    #[test]
    fn what_the_device_holds_is_let_go_when_it_comes_back() {
        let mut w = Window::new(1);
        w.push('a');
        w.take_new();
        w.push('b');
        assert_eq!(w.trim(Sequence(1)), None, "the device holds it");
        w.put_back(Sequence(0), 'a');
        assert_eq!(w.trim(Sequence(1)), Some('a'));
    }

    /// R-REPAIR-3.
    #[test]
    fn a_repair_is_damped_for_those_it_reached() {
        let peer = |n| PeerAddr { gid: Gid::default(), qpn: Qpn::new(n), udp_port: 1 };
        let mut w = Window::new(4);
        w.push('a');
        w.take_new();
        assert!(w.take_again(Sequence(0), Instant::ZERO, None).is_none(), "still in flight");
        w.put_back(Sequence(0), 'a');
        let (rtt, now) = (Duration::from_micros(10), Instant::from_micros(2));
        assert_eq!(w.take_again(Sequence(0), Instant::ZERO, Some(peer(1))), Some('a'));
        let earlier = |at, who| w.earlier(Sequence(0), at, rtt, peer(who));
        assert_eq!(earlier(now, 1), Earlier::OnItsWay);
        assert_eq!(earlier(now, 2), Earlier::AskedByAnother);
        assert_eq!(earlier(Instant::from_micros(3), 1), Earlier::Repaired);
        assert_eq!(earlier(Instant::from_micros(100), 2), Earlier::Repaired);
    }
}
