//! What is to happen, in order of time and, within one instant, in the order in which it was added.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use qcast_proto::time::Instant;

/// Events of kind `E` by time.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
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
pub(crate) struct Place(u64);

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), next: 0 }
    }

    /// Adds an event behind those that are there for the same instant.
    pub(crate) fn push(&mut self, at: Instant, event: E) {
        let place = Place(self.next);
        self.next += 1;
        self.push_at(at, place, event);
    }

    /// Puts back an event that is not over yet, in the place it came from.
    pub(crate) fn push_at(&mut self, at: Instant, place: Place, event: E) {
        self.heap.push(Entry { at, place, event });
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the first event if it is due by `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Place, E)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.place, entry.event))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.heap.iter().map(|entry| &entry.event)
    }

    /// Takes the events that `is_one` tells of, in order.
    pub(crate) fn extract(&mut self, is_one: impl Fn(&E) -> bool) -> Vec<E> {
        let entries = std::mem::take(&mut self.heap).into_sorted_vec();
        let (taken, kept): (Vec<_>, Vec<_>) =
            entries.into_iter().rev().partition(|entry| is_one(&entry.event));
        self.heap = kept.into();
        taken.into_iter().map(|entry| entry.event).collect()
    }

    pub(crate) fn len(&self) -> usize {
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
        let mut queue = Agenda::new();
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

    #[test]
    fn some_can_be_taken_out_of_turn() {
        let mut queue = Agenda::new();
        for (micros, n) in [(3, 30), (1, 10), (2, 20), (1, 11)] {
            queue.push(Instant::from_micros(micros), n);
        }
        assert_eq!(queue.extract(|n| n % 10 == 0), [10, 20, 30]);
        assert_eq!(queue.iter().collect::<Vec<_>>(), [&11]);
    }
}
