//! What streams keep of a node's memory: frames behind a gap, and pieces of messages that are not whole.
//!
//! Each stream has bounds of its own, but a peer can open many. So there is a bound on what a node's streams keep
//! together. While they keep more, each one above its even share gives up messages that are not whole, which their
//! subscriptions are told, and drops frames behind a gap, which it asks for again. A stream that keeps little is not
//! touched, whatever others do. Requirements: `R-BOUND-5`.

use alloc::collections::VecDeque;

use super::Reliability;
use super::stream::ReceiveStream;
use crate::buf::RxFrame;
use crate::node::Event;
use crate::time::Instant;

/// Bytes that a kept frame is counted with: the greatest path MTU.
const FRAME: usize = 4096;

impl<R: RxFrame> ReceiveStream<R> {
    /// About how many bytes the stream keeps.
    pub(crate) fn kept(&self) -> usize {
        let pieces: usize = self.attached.iter().map(|a| a.held()).sum();
        // Some slots of the ring are empty, which is cheaper to overlook than to count.
        self.ring.len() * FRAME + pieces
    }

    /// What [`Self::set_crowded`] said last.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Says whether the node's streams keep more than they may together, and this one more than its `share`.
    pub(crate) fn set_crowded(
        &mut self,
        now: Instant,
        crowded: Option<usize>,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.crowded = crowded.is_some();
        let Some(share) = crowded else { return };
        let (key, next) = (self.key, self.next);
        let shed: u64 = self.attached.iter_mut().map(|a| a.shed(key, next, out)).sum();
        self.stats.shed += shed;
        // Which frames an unordered subscription has had stands in the ring.
        let any = self.attached.iter().any(|a| a.reliability == Reliability::Unordered);
        if !any && self.ring.len() * FRAME > share {
            let (known, timing) = (self.known(), self.timing(true));
            self.ring.clear();
            self.gaps.reset(next);
            self.extend(now, known, timing, rng);
        }
    }
}
