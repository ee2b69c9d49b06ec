//! One node of a simulation: its engine and the applications on it.

use std::collections::VecDeque;
use std::sync::Arc;

use qcast_proto::node::{GroupId, SubscriberId};
use qcast_proto::time::{Duration, Instant};

use super::judge::{Judge, Violations};
use super::traffic::Sender;
use crate::engine::Engine;
use crate::engine::outlet::{Item, Patience, SubscriberOutlet};

/// A node. Its place among the members is the index of its port.
pub(super) struct Member {
    pub(super) engine: Engine,
    pub(super) group: GroupId,
    pub(super) sender: Option<Box<Sender>>,
    pub(super) listener: Option<Box<Listener>>,
    /// When it wants its next turn.
    pub(super) due: Instant,
    /// When it can have it: it is busy with the last one.
    pub(super) free_at: Instant,
    /// For when it stands in the queue: not later than it is due.
    pub(super) queued: Instant,
    pub(super) paused: bool,
}

/// An application that subscribes.
pub(super) struct Listener {
    pub(super) id: SubscriberId,
    outlet: Arc<SubscriberOutlet>,
    pub(super) judge: Judge,
    items: VecDeque<Item>,
    /// How long it takes for a frame.
    pause: Duration,
    free_at: Instant,
}

/// Later than anything.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Member {
    pub(super) fn new(engine: Engine, group: GroupId) -> Self {
        Self {
            engine,
            group,
            sender: None,
            listener: None,
            due: NEVER,
            free_at: Instant::ZERO,
            queued: NEVER,
            paused: false,
        }
    }

    /// A turn of the node, then of its applications. Sets when the next is due.
    pub(super) fn turn(&mut self, now: Instant, takes: Duration, wrong: &mut Violations) -> u64 {
        let turn = self.engine.turn(now);
        self.free_at = now + takes;
        let mut due = if turn.more { now } else { turn.next.unwrap_or(NEVER) };
        if let Some(sender) = &mut self.sender
            && let Some(at) = sender.run(now, &mut self.engine)
        {
            due = due.min(at);
        }
        let mut delivered = 0;
        if let Some(listener) = &mut self.listener {
            let before = listener.judge.messages;
            if let Some(at) = listener.run(now, wrong) {
                due = due.min(at);
            }
            delivered = listener.judge.messages - before;
        }
        self.due = due.max(self.free_at);
        delivered
    }
}

impl Listener {
    pub(super) fn new(
        (id, outlet): (SubscriberId, Arc<SubscriberOutlet>),
        judge: Judge,
        pause: Duration,
    ) -> Self {
        Self { id, outlet, judge, items: VecDeque::new(), pause, free_at: Instant::ZERO }
    }

    /// Takes what there is, as fast as this application does. Gives when it, or the engine because of
    /// it, has something to do.
    fn run(&mut self, now: Instant, wrong: &mut Violations) -> Option<Instant> {
        self.outlet.take(&mut self.items, Patience::None);
        let mut engine_waits = false;
        while self.free_at <= now
            && let Some(item) = self.items.pop_front()
        {
            self.judge.take(now, &item, wrong);
            let weight = item.weight();
            drop(item);
            if weight > 0 {
                engine_waits |= self.outlet.done(weight, self.items.len());
                self.free_at = now + self.pause;
            }
        }
        if engine_waits {
            return Some(now);
        }
        (!self.items.is_empty()).then_some(self.free_at)
    }
}
