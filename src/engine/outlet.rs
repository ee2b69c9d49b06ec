//! What an application thread shares with the engine: a publisher's outbox, a subscriber's queue.
//!
//! Each is one lock that is held for a few lines, plus atomics that save taking it. Per message an
//! application thread takes a lock that nobody else wants; the engine takes it once a turn.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::{Condvar, Mutex, MutexGuard};
use qcast_proto::addr::Sequence;
use qcast_proto::node::StreamStats;
use qcast_proto::publish::{Closed, Hold, Outbox, PublisherEvent, PublisherStats};
use qcast_proto::subscribe::{LossCause, Notice, Reliability, StreamInfo, StreamKey};

use super::lease::Lease;
use crate::device::SendBuf;

/// A publisher, as both sides see it.
#[derive(Debug)]
pub(crate) struct PublisherOutlet {
    pub(crate) outbox: Mutex<Outbox<SendBuf>>,
    /// The application holds the outbox for a claim: for how long is its own affair.
    pub(crate) claimed: AtomicBool,
    /// The engine passed by while the outbox was claimed.
    pub(crate) passed_by: AtomicBool,
    /// Frames have come free.
    pub(crate) room: Condvar,
    /// Something was put into the outbox that the engine has not seen.
    pub(crate) dirty: AtomicBool,
    pub(crate) report: Mutex<PublisherReport>,
    /// The report has changed.
    pub(crate) changed: Condvar,
}

/// What the engine tells about a publisher.
#[derive(Debug, Default)]
pub(crate) struct PublisherReport {
    pub(crate) ready: bool,
    pub(crate) hold: Option<Hold>,
    pub(crate) stats: PublisherStats,
    pub(crate) events: VecDeque<PublisherEvent>,
    pub(crate) closed: Option<Closed>,
    /// Everything that was published has been sent, and confirmed by all that are waited for.
    pub(crate) confirmed: bool,
}

/// Events that wait for an application that does not ask; the oldest go first.
const MAX_EVENTS: usize = 1024;

impl PublisherOutlet {
    pub(crate) fn new(outbox: Outbox<SendBuf>) -> Self {
        Self {
            outbox: Mutex::new(outbox),
            claimed: AtomicBool::new(false),
            passed_by: AtomicBool::new(false),
            room: Condvar::new(),
            dirty: AtomicBool::new(false),
            report: Mutex::new(PublisherReport::default()),
            changed: Condvar::new(),
        }
    }
}

impl PublisherOutlet {
    /// The outbox, for the engine: never waits for the end of a claim. `Err` says whether to come again
    /// at once; if not, the end of the claim kicks the node.
    pub(super) fn try_outbox(&self) -> Result<MutexGuard<'_, Outbox<SendBuf>>, bool> {
        if let Some(outbox) = self.outbox.try_lock() {
            return Ok(outbox);
        }
        // The mark first, then a second look: the claim's end takes its own mark back before it looks.
        self.passed_by.store(true, Ordering::SeqCst);
        Err(!self.claimed.load(Ordering::SeqCst))
    }
}

impl PublisherReport {
    pub(super) fn take(&mut self, event: PublisherEvent) {
        match &event {
            PublisherEvent::Ready => self.ready = true,
            PublisherEvent::Closed(closed) => self.closed = Some(closed.clone()),
            _ => {}
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// A subscriber, as both sides see it.
#[derive(Debug)]
pub(crate) struct SubscriberOutlet {
    pub(crate) queue: Mutex<Queue>,
    /// Something was put into the queue.
    pub(crate) ready: Condvar,
    /// Weights of what the application is done with.
    taken: AtomicU64,
    /// The engine found the queue fuller than half, and wants to hear when it is not.
    pub(crate) low: AtomicBool,
    pub(crate) limit: usize,
    pub(crate) reliability: Reliability,
    pub(crate) report: Mutex<SubscriberReport>,
    /// How many streams the group follows.
    pub(super) streams: AtomicU64,
}

/// A frame for each of as many streams as are followed at most.
const PROMISED: u64 = 1024;

/// The largest message in frames of a path MTU of 4096, which most have; of a smaller one it waits alone.
const LARGE: u64 = 2 * (16 << 20) / 4096;

/// What waits for the application.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    put: u64,
    waiters: usize,
    pub(crate) waker: Option<Waker>,
    pub(crate) closed: bool,
}

/// Numbers of a subscriber's streams, at the engine's last turn.
#[derive(Debug, Default)]
pub(crate) struct SubscriberReport {
    pub(crate) streams: Vec<(StreamInfo, StreamStats)>,
}

/// Something for the application.
#[derive(Debug)]
pub(crate) enum Item {
    Frame { key: StreamKey, sequence: Sequence, frame: Lease },
    Message { key: StreamKey, sequence: Sequence, message: Vec<u8>, weight: u64 },
    Notice(Notice),
}

impl Item {
    /// How many frames of the queue it takes.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Self::Frame { .. } => 1,
            Self::Message { weight, .. } => *weight,
            Self::Notice(_) => 0,
        }
    }

    fn dropped(key: StreamKey, first: Sequence, last: Sequence) -> Self {
        Self::Notice(Notice::Lost { key, first, last, cause: LossCause::QueueFull })
    }

    fn is_drop_of(&self, of: StreamKey) -> bool {
        matches!(self, Self::Notice(Notice::Lost { key, cause: LossCause::QueueFull, .. }) if *key == of)
    }
}

impl SubscriberOutlet {
    pub(crate) fn new(limit: usize, reliability: Reliability) -> Self {
        Self {
            queue: Mutex::new(Queue::default()),
            ready: Condvar::new(),
            taken: AtomicU64::new(0),
            low: AtomicBool::new(false),
            limit,
            reliability,
            report: Mutex::new(SubscriberReport::default()),
            streams: AtomicU64::new(0),
        }
    }

    /// Puts what one turn brought into the queue, and notifies whoever waits for it. A task's waker is
    /// given out, to be woken without any lock.
    pub(super) fn put(&self, items: &mut Vec<Item>) -> Option<Waker> {
        let mut queue = self.queue.lock();
        for item in items.drain(..) {
            self.put_one(&mut queue, item);
        }
        let wake = queue.waiters > 0;
        let waker = queue.waker.take();
        drop(queue);
        if wake {
            self.ready.notify_one();
        }
        waker
    }

    fn put_one(&self, queue: &mut Queue, item: Item) {
        queue.put += item.weight();
        if self.reliability == Reliability::Latest && item.weight() > 0 {
            self.drop_older(queue, &item);
        } else {
            while queue.outstanding(&self.taken) > self.most() && self.drop_oldest(queue) {}
        }
        queue.items.push_back(item);
    }

    /// What may wait. Publishers that wait for a reliable subscription keep to its limit, but for what was
    /// promised to several of them at once and a large message of each that is whole by then. Those
    /// that do not wait, by their policy or because they let this node go, are not to fill the memory.
    fn most(&self) -> u64 {
        let limit = self.limit as u64;
        if !self.reliability.wants_repair() {
            return limit;
        }
        limit + PROMISED + LARGE * self.streams.load(Ordering::Relaxed).max(1)
    }

    /// A newer message replaces those of its stream that were not taken.
    fn drop_older(&self, queue: &mut Queue, newer: &Item) {
        let (Item::Frame { key, .. } | Item::Message { key, .. }) = newer else { return };
        queue.items.retain(|old| {
            let replaced = matches!(old, Item::Frame { key: k, .. } | Item::Message { key: k, .. } if k == key);
            if replaced {
                self.taken.fetch_add(old.weight(), Ordering::Relaxed);
            }
            !replaced
        });
    }

    /// Drops the oldest frame or message; a notice in its place says so. One notice of a stream grows with
    /// all that is dropped of it, so that a queue nobody reads stays bounded.
    fn drop_oldest(&self, queue: &mut Queue) -> bool {
        let Some(at) = queue.items.iter().position(|i| i.weight() > 0) else { return false };
        let item = &queue.items[at];
        self.taken.fetch_add(item.weight(), Ordering::Relaxed);
        let (Item::Frame { key, sequence, .. } | Item::Message { key, sequence, .. }) = item else {
            return false;
        };
        let (key, sequence) = (*key, *sequence);
        let Some(told) = queue.items.iter().take(at).position(|i| i.is_drop_of(key)) else {
            queue.items[at] = Item::dropped(key, sequence, sequence);
            return true;
        };
        queue.items.remove(at);
        // Losses of the same stream in between are part of the range now.
        for between in (told + 1..at).rev() {
            if matches!(&queue.items[between], Item::Notice(Notice::Lost { key: k, .. }) if *k == key)
            {
                queue.items.remove(between);
            }
        }
        if let Item::Notice(Notice::Lost { last, .. }) = &mut queue.items[told] {
            *last = sequence;
        }
        true
    }

    /// Takes everything that waits. With nothing there it waits for `patience`, for ever if `None`.
    pub(crate) fn take(&self, into: &mut VecDeque<Item>, patience: Patience) -> bool {
        let mut queue = self.queue.lock();
        if queue.items.is_empty() && !queue.closed {
            queue.waiters += 1;
            match patience {
                Patience::None => {}
                Patience::Until(deadline) => {
                    while queue.items.is_empty()
                        && !queue.closed
                        && !self.ready.wait_until(&mut queue, deadline).timed_out()
                    {
                    }
                }
                Patience::Forever => {
                    while queue.items.is_empty() && !queue.closed {
                        self.ready.wait(&mut queue);
                    }
                }
            }
            queue.waiters -= 1;
        }
        into.append(&mut queue.items);
        !into.is_empty()
    }

    /// The application is done with something of this weight. Says whether the engine wants to know.
    pub(crate) fn done(&self, weight: u64, backlog: usize) -> bool {
        self.taken.fetch_add(weight, Ordering::Release);
        self.low.load(Ordering::Relaxed)
            && backlog <= self.limit / 2
            && self.low.swap(false, Ordering::AcqRel)
    }

    /// How many more frames the queue takes.
    pub(super) fn room(&self) -> usize {
        let outstanding = self.queue.lock().outstanding(&self.taken);
        let room = self.limit.saturating_sub(usize::try_from(outstanding).unwrap_or(usize::MAX));
        if room < self.limit / 2 {
            self.low.store(true, Ordering::Release);
        }
        room
    }

    /// Has `waker` woken when something is put into the queue. Says whether there is something to look at
    /// already.
    #[cfg(feature = "async")]
    pub(crate) fn wake_when_ready(&self, waker: &Waker) -> bool {
        let mut queue = self.queue.lock();
        let is_known = queue.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        // What it replaces may be the last of another task: it is dropped without the lock.
        let _replaced = if is_known { None } else { queue.waker.replace(waker.clone()) };
        let ready = !queue.items.is_empty() || queue.closed;
        drop(queue);
        ready
    }

    /// Nothing more comes. A task's waker is given out, to be woken without any lock.
    pub(super) fn close(&self) -> Option<Waker> {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let waker = queue.waker.take();
        drop(queue);
        self.ready.notify_all();
        waker
    }
}

impl Queue {
    fn outstanding(&self, taken: &AtomicU64) -> u64 {
        self.put.saturating_sub(taken.load(Ordering::Acquire))
    }
}

/// How long to wait for something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// Until then.
    Until(std::time::Instant),
    /// As long as it takes.
    Forever,
}
