//! Counts lost, repeated and disordered messages exactly, by the number that each carries.

use std::collections::BTreeMap;

/// The least that a message can be: its number.
pub(crate) const NUMBER: usize = 8;

/// Set in the number of messages that count: those before it warm up.
const COUNTED: u64 = 1 << 63;

/// Set in the number of the last message, which does not count.
const END: u64 = 1 << 62;

/// What a message's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It warms up.
    Warm,
    /// It counts.
    Counted,
    /// Nothing follows.
    End,
}

/// Writes a message's number into its first bytes.
pub(crate) fn stamp(message: &mut [u8], number: u64, mark: Mark) {
    let flags = match mark {
        Mark::Warm => 0,
        Mark::Counted => COUNTED,
        Mark::End => END,
    };
    message[..NUMBER].copy_from_slice(&(number | flags).to_le_bytes());
}

/// Reads it back; `None` if there is none.
pub(crate) fn read(message: &[u8]) -> Option<(u64, Mark)> {
    let word = u64::from_le_bytes(*message.first_chunk()?);
    let mark = match (word & COUNTED != 0, word & END != 0) {
        (true, _) => Mark::Counted,
        (_, true) => Mark::End,
        _ => Mark::Warm,
    };
    Some((word & !(COUNTED | END), mark))
}

/// What arrived. The numbers of a run go up by one from 0.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    next: u64,
    /// Numbers that were passed over: first, and the one after the last.
    missing: BTreeMap<u64, u64>,
    /// Messages that count, each once.
    pub(crate) received: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    /// Messages that were passed over or repeated before the ones that count.
    pub(crate) warm_faults: u64,
}

impl Tally {
    /// A message arrived.
    pub(crate) fn note(&mut self, number: u64, mark: Mark) {
        let counts = mark == Mark::Counted;
        if number == self.next {
            self.next += 1;
        } else if number > self.next {
            self.missing.insert(self.next, number);
            self.next = number + 1;
        } else if self.take_missing(number) {
            self.count(counts, |tally| &mut tally.out_of_order);
        } else {
            self.count(counts, |tally| &mut tally.duplicates);
            return;
        }
        self.received += u64::from(counts);
    }

    /// All that count are from `first` on: what is missing before it was lost while warming up.
    pub(crate) fn warm_faults(&self, first: u64) -> u64 {
        let lost: u64 = self.missing.range(..first).map(|(&from, &to)| to.min(first) - from).sum();
        self.warm_faults + lost
    }

    fn count(&mut self, counts: bool, which: impl Fn(&mut Self) -> &mut u64) {
        if counts {
            *which(self) += 1;
        } else {
            self.warm_faults += 1;
        }
    }

    /// Takes a number out of the missing ones, if it is among them.
    fn take_missing(&mut self, number: u64) -> bool {
        let Some((&from, &to)) = self.missing.range(..=number).next_back() else { return false };
        if number >= to {
            return false;
        }
        self.missing.remove(&from);
        if from < number {
            self.missing.insert(from, number);
        }
        if number + 1 < to {
            self.missing.insert(number + 1, to);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(numbers: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for &number in numbers {
            tally.note(number, Mark::Counted);
        }
        tally
    }

    fn counts(numbers: &[u64]) -> (u64, u64, u64) {
        let tally = tally(numbers);
        (tally.received, tally.duplicates, tally.out_of_order)
    }

    #[test]
    fn every_kind_is_told_apart() {
        assert_eq!(counts(&[0, 1, 2, 3]), (4, 0, 0));
        assert_eq!(counts(&[0, 3]), (2, 0, 0), "lost");
        assert_eq!(counts(&[0, 1, 1, 0]), (2, 2, 0), "duplicates");
        assert_eq!(counts(&[0, 2, 1, 3]), (4, 0, 1), "out of order");
        assert_eq!(counts(&[5, 2, 2, 0, 4, 1, 3, 5]), (6, 2, 5), "all of it");
    }

    #[test]
    fn it_agrees_with_a_set() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..200 {
            let (mut seen, mut highest) = (std::collections::BTreeSet::new(), None);
            let mut expected = (0, 0, 0);
            let mut tally = Tally::default();
            for _ in 0..100 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let number = state % 64;
                tally.note(number, Mark::Counted);
                if !seen.insert(number) {
                    expected.1 += 1;
                } else {
                    expected.0 += 1;
                    expected.2 += u64::from(highest.is_some_and(|highest| number < highest));
                }
                highest = highest.max(Some(number));
            }
            assert_eq!((tally.received, tally.duplicates, tally.out_of_order), expected);
        }
    }

    #[test]
    fn what_warms_up_does_not_count() {
        let mut tally = Tally::default();
        for number in [0, 2, 2, 4] {
            tally.note(number, Mark::Warm);
        }
        tally.note(6, Mark::Counted);
        assert_eq!((tally.received, tally.duplicates), (1, 0));
        assert_eq!(tally.warm_faults(5), 3);
        assert_eq!(tally.warm_faults(6), 4);
    }

    #[test]
    fn numbers_and_marks_go_together() {
        let mut message = [0xa5; 9];
        for mark in [Mark::Warm, Mark::Counted, Mark::End] {
            stamp(&mut message, 7, mark);
            assert_eq!(read(&message), Some((7, mark)));
        }
        assert_eq!(message[8], 0xa5);
        assert_eq!(read(&[0; 7]), None);
    }
}
