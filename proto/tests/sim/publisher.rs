//! An application that publishes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use qcast_proto::buf::TxFrame;
use qcast_proto::node::{Node, PublisherId};
use qcast_proto::publish::{Closed, Outbox, PublisherEvent, PublisherStats, PushError};
use qcast_proto::subscribe::StreamKey;
use qcast_proto::time::Instant;

use crate::buffers::{Living, Received, Slot};
use crate::truth::{Sizes, Truth};

/// What it publishes, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Messages in all; more can be asked for later.
    pub(crate) total: u64,
    pub(crate) sizes: Sizes,
    /// The time between messages; zero is as fast as it can.
    pub(crate) pace: Duration,
    /// Bytes of a frame.
    pub(crate) mtu: usize,
    /// Frames beyond the window.
    pub(crate) spare: usize,
}

impl Plan {
    /// So many messages of 100 bytes, as fast as it can.
    pub(crate) fn of(total: u64) -> Self {
        Self { total, sizes: Sizes::Fixed(100), pace: Duration::ZERO, mtu: 1024, spare: 64 }
    }

    pub(crate) fn every(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }

    pub(crate) fn sized(self, sizes: Sizes) -> Self {
        Self { sizes, ..self }
    }

    /// One message fills a frame: a frame's number is the message's.
    pub(crate) fn whole_frames(self) -> Self {
        self.sized(Sizes::Fixed(self.mtu - 34))
    }
}

/// A publisher and its application.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) id: PublisherId,
    pub(crate) key: StreamKey,
    pub(crate) truth: Rc<RefCell<Truth>>,
    pub(crate) events: Vec<(Instant, PublisherEvent)>,
    pub(crate) closed: Option<Closed>,
    pub(crate) stats: PublisherStats,
    outbox: Option<Outbox<Slot>>,
    plan: Plan,
    pushed: u64,
    /// The next message, while it waits for room.
    message: Option<Vec<u8>>,
    due: Instant,
    slots: usize,
    living: Living,
}

impl Publisher {
    pub(crate) fn new(
        now: Instant,
        id: PublisherId,
        key: StreamKey,
        header: qcast_proto::wire::frame::FrameHeader,
        window: usize,
        plan: Plan,
        truth: Rc<RefCell<Truth>>,
    ) -> Self {
        let living = Living::default();
        let slots = window + plan.spare;
        let frames = (0..slots).map(|_| Slot::new(plan.mtu, &living)).collect();
        Self {
            id,
            key,
            truth,
            events: Vec::new(),
            closed: None,
            stats: PublisherStats::default(),
            outbox: Some(Outbox::new(header, plan.mtu, frames)),
            plan,
            pushed: 0,
            message: None,
            due: now,
            slots,
            living,
        }
    }

    /// Publishes so many more, from now on.
    pub(crate) fn more(&mut self, now: Instant, messages: u64) {
        self.due = self.due.max(now);
        self.plan.total += messages;
    }

    /// Whether all messages were handed over and sent.
    pub(crate) fn is_done(&self) -> bool {
        self.pushed == self.plan.total
            && self.outbox.as_ref().is_none_or(Outbox::is_empty)
            && self.truth.borrow().is_sent()
    }

    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// What it does in its turn; says whether it did anything.
    pub(crate) fn run(&mut self, now: Instant, node: &mut Node<Slot, Received>) -> bool {
        let Some(outbox) = &mut self.outbox else { return false };
        let mut acted = false;
        let mut freed = Vec::new();
        node.take_freed(self.id, &mut freed);
        acted |= !freed.is_empty();
        outbox.refill(freed);
        while self.pushed < self.plan.total && self.due <= now {
            let make = || self.truth.borrow().message(self.pushed);
            let message = self.message.get_or_insert_with(make);
            match outbox.push(message) {
                Ok(()) => {
                    self.message = None;
                    self.pushed += 1;
                    self.due =
                        if self.plan.pace.is_zero() { now } else { self.due + self.plan.pace };
                    acted = true;
                }
                Err(PushError::Full) => break,
                Err(e) => panic!("{e}"),
            }
        }
        while node.publisher_room(self.id) > 0 {
            if outbox.sealed() == 0 {
                outbox.seal();
            }
            let Some(frame) = outbox.take() else { break };
            self.truth.borrow_mut().note_sealed(frame.bytes());
            node.publish(self.id, frame);
            acted = true;
        }
        self.stats = node.publisher_stats(self.id).unwrap_or_default();
        acted
    }

    /// When it has something to do again of itself.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        (self.pushed < self.plan.total && self.due > now).then_some(self.due)
    }

    pub(crate) fn note(&mut self, now: Instant, event: PublisherEvent) {
        if let PublisherEvent::Closed(closed) = &event {
            assert!(self.closed.is_none(), "closed twice");
            self.closed = Some(closed.clone());
        }
        self.events.push((now, event));
    }

    /// Gives up its frames, after the stream was removed from its node.
    pub(crate) fn drop_outbox(&mut self) {
        self.outbox = None;
    }

    /// No frame was dropped, and each is where it belongs.
    pub(crate) fn check_frames(&self, in_flight: usize) {
        let Some(outbox) = &self.outbox else {
            assert_eq!(self.living.count(), in_flight, "frames outlive their stream");
            return;
        };
        assert_eq!(self.living.count(), self.slots, "frames were dropped");
        if in_flight == 0 {
            let open = usize::from(outbox.is_open());
            let here = outbox.free() + outbox.sealed() + open + self.stats.retained;
            assert_eq!(here, self.slots, "frames went astray: {outbox:?}");
        }
    }

    /// How often an event was told.
    pub(crate) fn count(&self, wanted: impl Fn(&PublisherEvent) -> bool) -> usize {
        self.events.iter().filter(|(_, e)| wanted(e)).count()
    }
}
