//! One subscription's place in a stream: what it has had, and what it is given next.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::assembly::{AnyOrder, InOrder, first_of};
use super::{LossCause, Notice, Reliability, StreamKey};
use crate::addr::Sequence;
use crate::buf::RxFrame;
use crate::node::{Event, SubscriberId};
use crate::wire::frame::fragment_of_checked;

/// A subscription that follows a stream.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) subscriber: SubscriberId,
    pub(crate) reliability: Reliability,
    /// The first frame that it wants.
    pub(super) start: Sequence,
    /// The first frame that it was not told of (arrival order), or that is newer than its newest message.
    pub(super) expected: Sequence,
    /// It was opened while the publisher was silent, and begins when that speaks again.
    pub(super) waits: bool,
    in_order: InOrder,
    any_order: AnyOrder,
}

/// Frames that are missing for good.
/// Requirements: `R-LOSS-1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: Sequence,
    pub(super) last: Sequence,
    pub(super) cause: LossCause,
}

impl Run {
    pub(super) fn of(at: Sequence, cause: LossCause) -> Self {
        Self { first: at, last: at, cause }
    }

    /// Takes in a run that follows at once and has the same cause; gives back one that does not.
    pub(super) fn merge(run: &mut Option<Self>, next: Self) -> Option<Self> {
        match run {
            Some(run) if run.last.next() == next.first && run.cause == next.cause => {
                run.last = next.last;
                None
            }
            _ => run.replace(next),
        }
    }
}

/// Messages in pieces that a latest-only subscription keeps: the newest, and one that a newer one's
/// first piece overtook.
const LATEST_PARTS: usize = 2;

impl Attachment {
    pub(super) fn new(subscriber: SubscriberId, reliability: Reliability, start: Sequence) -> Self {
        Self {
            subscriber,
            reliability,
            start,
            expected: start,
            waits: false,
            in_order: InOrder::default(),
            any_order: AnyOrder::default(),
        }
    }

    /// One that begins with what its publisher says next.
    pub(super) fn waiting(subscriber: SubscriberId, reliability: Reliability) -> Self {
        Self { waits: true, ..Self::new(subscriber, reliability, Sequence(u64::MAX)) }
    }

    /// The publisher speaks again, and is at `edge`.
    pub(super) fn begin(&mut self, edge: Sequence) {
        (self.start, self.expected, self.waits) = (edge, edge, false);
    }

    /// Takes the next frame of those that come in order.
    pub(super) fn take_in_order<R: RxFrame>(
        &mut self,
        key: StreamKey,
        at: Sequence,
        frame: R,
        out: &mut VecDeque<Event<R>>,
    ) {
        let subscriber = self.subscriber;
        match fragment_of_checked(frame.bytes()) {
            None => out.push_back(Event::Frame { subscriber, key, sequence: at, frame }),
            Some((header, piece)) => {
                if let Some(message) = self.in_order.take(at, header, piece) {
                    out.push_back(Event::Message { subscriber, key, sequence: at, message });
                }
            }
        }
    }

    /// Takes a frame that came for the first time, as soon as it came. `next` is the first frame of the
    /// stream that is still missing.
    pub(super) fn take_unordered<R: RxFrame>(
        &mut self,
        key: StreamKey,
        at: Sequence,
        frame: &R,
        next: Sequence,
        out: &mut VecDeque<Event<R>>,
    ) {
        let subscriber = self.subscriber;
        let Some((header, piece)) = fragment_of_checked(frame.bytes()) else {
            let frame = frame.clone();
            out.push_back(Event::Frame { subscriber, key, sequence: at, frame });
            return;
        };
        // A message that began before the subscription can never be whole.
        if first_of(at, header).is_none_or(|first| first < self.start) {
            return;
        }
        self.any_order.drop_before(next);
        if let Some(whole) = self.any_order.take(at, header, piece) {
            let (sequence, message) = (whole.last, whole.bytes);
            out.push_back(Event::Message { subscriber, key, sequence, message });
        }
    }

    /// Takes a frame as it comes, unless a later one came before; what it skips is lost at once.
    pub(super) fn take_best_effort<R: RxFrame>(
        &mut self,
        key: StreamKey,
        at: Sequence,
        frame: &R,
        cause: LossCause,
        out: &mut VecDeque<Event<R>>,
    ) {
        if at < self.expected {
            return;
        }
        self.skip_to(key, at, cause, out);
        self.expected = at.next();
        self.take_in_order(key, at, frame.clone(), out);
    }

    /// Everything of a best-effort subscription before `at` that has not come is lost.
    pub(super) fn skip_to<R>(
        &mut self,
        key: StreamKey,
        at: Sequence,
        cause: LossCause,
        out: &mut VecDeque<Event<R>>,
    ) {
        if self.expected < at {
            let (first, last) = (self.expected, Sequence(at.0 - 1));
            self.expected = at;
            self.tell_lost(key, Run { first, last, cause }, out);
        }
    }

    /// Takes a frame of a message that is newer than the newest so far.
    pub(super) fn take_latest<R: RxFrame>(
        &mut self,
        key: StreamKey,
        at: Sequence,
        frame: &R,
        out: &mut VecDeque<Event<R>>,
    ) {
        if at < self.expected && !self.any_order.covers(at) {
            return;
        }
        let subscriber = self.subscriber;
        let Some((header, piece)) = fragment_of_checked(frame.bytes()) else {
            self.had_newest(at);
            let frame = frame.clone();
            out.push_back(Event::Frame { subscriber, key, sequence: at, frame });
            return;
        };
        if let Some(whole) = self.any_order.take(at, header, piece) {
            self.had_newest(whole.last);
            let (sequence, message) = (whole.last, whole.bytes);
            out.push_back(Event::Message { subscriber, key, sequence, message });
        }
        self.any_order.keep_newest(LATEST_PARTS);
    }

    fn had_newest(&mut self, last: Sequence) {
        self.expected = last.next();
        self.any_order.drop_before(self.expected);
    }

    /// What a latest-only subscription lacks of the newest message, whose last frame is `newest`; of a
    /// message that nothing came of, only that frame. Stops once there are more than `most`.
    pub(super) fn lacks_of_newest(&self, newest: Sequence, most: usize) -> Vec<Sequence> {
        if self.expected > newest {
            return Vec::new();
        }
        self.any_order.missing(newest, most).unwrap_or_else(|| vec![newest])
    }

    /// Drops messages that lost frames are part of.
    pub(super) fn lose(&mut self, first: Sequence, last: Sequence) {
        self.any_order.lose(first, last);
    }

    /// Tells of lost frames, as far as they are the subscription's.
    pub(super) fn tell_lost<R>(&mut self, key: StreamKey, run: Run, out: &mut VecDeque<Event<R>>) {
        if run.last < self.start {
            return;
        }
        self.in_order.clear();
        let first = run.first.max(self.start);
        let notice = Notice::Lost { key, first, last: run.last, cause: run.cause };
        out.push_back(Event::Notice { subscriber: self.subscriber, notice });
    }

    /// Bytes of messages that are not whole yet.
    pub(super) fn held(&self) -> usize {
        self.in_order.held() + self.any_order.held()
    }

    /// Drops the pieces of messages that are not whole yet, and tells of it; gives how many messages.
    /// `next` is the first frame that did not come in order.
    pub(super) fn shed<R>(
        &mut self,
        key: StreamKey,
        next: Sequence,
        out: &mut VecDeque<Event<R>>,
    ) -> u64 {
        let (cause, mut messages) = (LossCause::NoMemory, 0);
        if let Some(first) = self.in_order.begun() {
            let end = if self.reliability == Reliability::Ordered { next } else { self.expected };
            self.tell_lost(key, Run { first, last: Sequence(end.0 - 1), cause }, out);
            messages += 1;
        }
        for (first, last) in self.any_order.shed() {
            messages += 1;
            // A latest-only subscription is promised the newest, and gets the next one.
            if self.reliability == Reliability::Unordered {
                self.tell_lost(key, Run { first, last, cause }, out);
            }
        }
        messages
    }
}
