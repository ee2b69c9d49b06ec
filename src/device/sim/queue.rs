//! What is to happen on a fabric, in order of time and, within one instant, in order of arrival here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use qcast_proto::time::Instant;

/// Events of kind `E` by time.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Instant,
    place: Place,
    event: E,
}

/// An event's place among those of its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

impl<E> EventQueue<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), next: 0 }
    }

    /// Adds an event behind those that are there for the same instant.
    pub(super) fn push(&mut self, at: Instant, event: E) {
        let place = Place(self.next);
        self.next += 1;
        self.push_at(at, place, event);
    }

    /// Puts back an event that is not over yet, in the place it came from.
    pub(super) fn push_at(&mut self, at: Instant, place: Place, event: E) {
        self.heap.push(Entry { at, place, event });
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the first event if it is due by `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Place, E)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.place, entry.event))
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Instant, Place) {
        (self.at, self.place)
    }
}

// Reversed, since the standard heap has its greatest first.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_arrival() {
        let mut queue = EventQueue::new();
        for (micros, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            queue.push(Instant::from_micros(micros), name);
        }
        let now = Instant::from_micros(5);
        let (_, place, _) = queue.pop_due(now).unwrap();
        queue.push_at(now, place, "a again");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_due(now)).map(|(.., e)| e).collect();
        assert_eq!(order, ["b", "c", "a again", "d"]);
        queue.push(Instant::from_micros(6), "e");
        assert!(queue.pop_due(now).is_none());
    }
}
