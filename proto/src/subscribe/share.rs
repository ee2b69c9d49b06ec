//! How streams share what a node has room for.
//!
//! Divided evenly, the room of a node that follows a hundred streams would let each of them send a few
//! frames a round trip, though all but one are quiet. So quiet streams keep a quarter of it, and those that
//! frames come of share the rest. Requirements: `R-STATUS-10`.

/// Streams that share something, and how many of them are busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharers {
    pub(crate) streams: usize,
    pub(crate) busy: usize,
}

/// So few streams share evenly: each can begin at once with what it will need.
const FEW: usize = 4;

/// The part of a fair share that a quiet stream keeps: enough to begin with.
const QUIET: usize = 4;

impl Sharers {
    /// Counts a stream.
    pub(crate) fn add(&mut self, busy: bool) {
        self.streams += 1;
        self.busy += usize::from(busy);
    }

    /// The part of `total` that one of them has: at least one, so that the parts are more than the whole
    /// if there are more streams than that.
    pub(crate) fn part(self, total: usize, busy: bool) -> usize {
        let fair = total / self.streams.max(1);
        if self.streams <= FEW {
            return fair.max(1);
        }
        let quiet = (fair / QUIET).max(1);
        if !busy {
            return quiet;
        }
        let kept = quiet.saturating_mul(self.streams - self.busy.min(self.streams));
        (total.saturating_sub(kept) / self.busy.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-STATUS-10.
    #[test]
    fn parts_make_the_whole_at_most() {
        for total in [1, 7, 64, 1024, usize::MAX] {
            for streams in 1..200 {
                for busy in [0, 1, 2, streams / 2, streams] {
                    let s = Sharers { streams, busy: busy.min(streams) };
                    let (b, q) = (s.part(total, true), s.part(total, false));
                    assert!(b >= 1 && q >= 1);
                    let all = b as u128 * s.busy as u128 + q as u128 * (streams - s.busy) as u128;
                    assert!(all <= total as u128 + streams as u128, "{s:?} of {total}: {b} {q}");
                }
            }
        }
        let s = Sharers { streams: 101, busy: 1 };
        assert!(s.part(1024, true) > 800 && s.part(1024, false) == 2);
        assert_eq!(Sharers { streams: 2, busy: 1 }.part(1024, false), 512);
    }
}
