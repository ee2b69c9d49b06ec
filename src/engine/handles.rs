//! What applications hold of an engine: publishers and subscriptions, with their outlets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use qcast_proto::addr::NodeId;
use qcast_proto::node::{Event, GroupId, PublisherId, StreamStats, SubscriberId};
use qcast_proto::publish::{
    Hold, Outbox, PublisherConfig, PublisherEvent, PublisherStats, Receiver,
};
use qcast_proto::subscribe::SubscriberConfig;
use qcast_proto::time::{Duration, Instant};

use super::outlet::{Item, PublisherOutlet, SubscriberOutlet};
use super::{Engine, SEND_BUDGET};
use crate::device::{DeviceError, SendBuf};

/// A publisher of this node.
pub(super) struct Publisher {
    pub(super) group: GroupId,
    outlet: Arc<PublisherOutlet>,
    closing: bool,
    confirmed: bool,
    /// Frames that could not be given back while the outbox was claimed.
    freed: Vec<SendBuf>,
}

/// A subscription of this node.
pub(super) struct Subscriber {
    group: GroupId,
    outlet: Arc<SubscriberOutlet>,
    items: Vec<Item>,
}

/// Frames that an outbox has beyond the window, so that the application can fill some while others wait to be sent.
const OUTBOX_FRAMES: usize = 128;

/// How often numbers are copied to where applications read them.
const REPORT_EVERY: Duration = Duration::from_millis(20);

impl Engine {
    /// Opens a publisher's stream in a group.
    ///
    /// # Errors
    /// The device refused the memory.
    pub(crate) fn open_publisher(
        &mut self,
        now: Instant,
        group: GroupId,
        config: PublisherConfig,
    ) -> Result<(PublisherId, Arc<PublisherOutlet>), DeviceError> {
        let frames = self.device.alloc_send(config.window + OUTBOX_FRAMES)?;
        let (id, header) =
            self.node.open_publisher(now, group, config).ok_or(DeviceError::NoSuch("group"))?;
        let outbox = Outbox::new(header, self.max_frame, frames);
        let outlet = Arc::new(PublisherOutlet::new(outbox));
        let publisher = Publisher {
            group,
            outlet: Arc::clone(&outlet),
            closing: false,
            confirmed: true,
            freed: Vec::new(),
        };
        self.publishers.insert(id, publisher);
        Ok((id, outlet))
    }

    /// Starts to close a publisher; its report says when it is closed.
    pub(crate) fn close_publisher(&mut self, id: PublisherId) {
        if let Some(p) = self.publishers.get_mut(&id) {
            p.closing = true;
            p.outlet.dirty.store(true, Ordering::Release);
        }
    }

    /// Opens a subscription in a group.
    pub(crate) fn open_subscriber(
        &mut self,
        now: Instant,
        group: GroupId,
        config: SubscriberConfig,
    ) -> Option<(SubscriberId, Arc<SubscriberOutlet>)> {
        let outlet = Arc::new(SubscriberOutlet::new(config.queue, config.reliability));
        let id = self.node.open_subscriber(now, group, config)?;
        let subscriber = Subscriber { group, outlet: Arc::clone(&outlet), items: Vec::new() };
        self.subscribers.insert(id, subscriber);
        Some((id, outlet))
    }

    /// Closes a subscription at once; publishers are told with the next turn.
    pub(crate) fn close_subscriber(&mut self, now: Instant, id: SubscriberId) {
        self.node.close_subscriber(now, id);
        if let Some(s) = self.subscribers.remove(&id) {
            self.wakers.extend(s.outlet.close());
        }
    }

    /// Nothing more will come: whoever waits is told. Tasks are given out, to be woken without any lock.
    pub(crate) fn close_outlets(&mut self) -> Vec<Waker> {
        let mut wakers = self.take_wakers();
        wakers.extend(self.subscribers.values().filter_map(|s| s.outlet.close()));
        self.events.close(&mut wakers);
        self.member_feeds.values_mut().for_each(|feed| feed.close(&mut wakers));
        self.close_control();
        wakers.append(&mut self.wakers);
        for p in self.publishers.values() {
            p.outlet.room.notify_all();
            p.outlet.changed.notify_all();
        }
        wakers
    }

    /// Tasks that the turn had something for; wake them once the engine is not locked any more.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// A publisher's live subscribers.
    pub(crate) fn receivers(&mut self, publisher: PublisherId) -> Vec<(NodeId, Receiver)> {
        self.node.receivers(publisher)
    }

    /// Who holds a publisher back.
    pub(crate) fn hold(&mut self, publisher: PublisherId) -> Option<Hold> {
        self.node.hold(publisher)
    }

    /// A publisher's numbers, unless it is closed.
    pub(crate) fn publisher_stats(&mut self, publisher: PublisherId) -> Option<PublisherStats> {
        self.node.publisher_stats(publisher)
    }

    /// The numbers of all streams that were ever followed in a group.
    pub(crate) fn stream_stats(&self, group: GroupId) -> StreamStats {
        self.node.stream_totals(group)
    }

    pub(super) fn take_room(&mut self) {
        for (id, s) in &self.subscribers {
            self.node.set_room(*id, s.outlet.room());
        }
    }

    /// Moves frames from outboxes to the node, and freed ones back. A frame that is not full is closed
    /// and taken only when nothing waits before it: while the link is busy it goes on filling.
    pub(super) fn take_outboxes(&mut self, now: Instant) -> bool {
        let mut more = false;
        for (id, p) in &mut self.publishers {
            self.node.take_freed(*id, &mut self.freed);
            let dirty = p.outlet.dirty.swap(false, Ordering::AcqRel);
            if !dirty && self.freed.is_empty() {
                continue;
            }
            let mut outbox = match p.outlet.try_outbox() {
                Ok(outbox) => outbox,
                Err(again) => {
                    p.outlet.dirty.store(true, Ordering::Release);
                    p.freed.append(&mut self.freed);
                    more |= again;
                    continue;
                }
            };
            self.freed.append(&mut p.freed);
            let freed = !self.freed.is_empty();
            outbox.refill(self.freed.drain(..));
            let room = self.node.publisher_room(*id);
            let mut budget = room.min(SEND_BUDGET);
            while budget > 0 {
                if outbox.sealed() == 0 {
                    outbox.seal();
                }
                let Some(frame) = outbox.take() else { break };
                self.node.publish(*id, frame);
                budget -= 1;
            }
            let (empty, free) = (outbox.is_empty(), outbox.free());
            drop(outbox);
            if !empty {
                // Held back, or out of budget: what is left is taken when there is room.
                p.outlet.dirty.store(true, Ordering::Release);
                more |= room > SEND_BUDGET;
            }
            p.confirmed = false;
            if p.closing && empty {
                p.closing = false;
                self.node.close_publisher(now, *id);
            }
            // Waking it for every frame would make the application's thread the bottleneck.
            if freed && free >= OUTBOX_FRAMES / 2 {
                p.outlet.room.notify_one();
            }
        }
        more
    }

    /// Hands events to whom they are for. Says whether a subscriber got any.
    pub(super) fn hand_out(&mut self, now: Instant) -> bool {
        while let Some(event) = self.node.poll_event() {
            let (subscriber, item) = match event {
                Event::Frame { subscriber, key, sequence, frame } => {
                    (subscriber, Item::Frame { key, sequence, frame })
                }
                Event::Message { subscriber, key, sequence, message } => {
                    let weight = message.len().div_ceil(self.max_frame) as u64;
                    (subscriber, Item::Message { key, sequence, message, weight })
                }
                Event::Notice { subscriber, notice } => (subscriber, Item::Notice(notice)),
                Event::Publisher { publisher, event } => {
                    self.tell_publisher(publisher, event);
                    continue;
                }
                Event::Repaired { waited } => {
                    self.repair_times.record(waited);
                    continue;
                }
                Event::Diagnosis(event) => {
                    self.tell_diagnosis(event);
                    continue;
                }
                Event::Discovery(event) => {
                    self.tell_discovery(event);
                    continue;
                }
                Event::Member { group, event, version } => {
                    self.view_changed(now, group, event, version);
                    continue;
                }
                Event::Rejoin { group } => {
                    self.rejoining.push(group);
                    continue;
                }
                _ => continue,
            };
            if let Some(s) = self.subscribers.get_mut(&subscriber) {
                s.items.push(item);
            }
        }
        let mut handed = false;
        for s in self.subscribers.values_mut() {
            if !s.items.is_empty() {
                self.wakers.extend(s.outlet.put(&mut s.items));
                handed = true;
            }
        }
        handed
    }

    pub(super) fn tell_publisher(&mut self, id: PublisherId, event: PublisherEvent) {
        let Some(p) = self.publishers.get(&id) else { return };
        let closed = matches!(event, PublisherEvent::Closed(_));
        let stats = self.node.publisher_stats(id).unwrap_or_default();
        let mut report = p.outlet.report.lock();
        report.stats = stats;
        report.take(event);
        drop(report);
        p.outlet.changed.notify_all();
        if closed {
            p.outlet.room.notify_all();
            self.node.remove_publisher(id);
            self.publishers.remove(&id);
        }
    }

    /// Copies numbers to where applications read them: now and then, and whenever somebody waits.
    pub(super) fn report(&mut self, now: Instant) {
        let all = now.saturating_since(self.reported) >= REPORT_EVERY;
        for (id, p) in &mut self.publishers {
            if !all && p.confirmed {
                continue;
            }
            let Some(stats) = self.node.publisher_stats(*id) else { continue };
            let confirmed = self.node.is_sent(*id)
                && stats.confirmed == stats.head
                && p.outlet.try_outbox().is_ok_and(|outbox| outbox.is_empty());
            if !all && !confirmed {
                continue;
            }
            p.confirmed = confirmed;
            let hold = self.node.hold(*id);
            let mut report = p.outlet.report.lock();
            report.stats = stats;
            report.hold = hold;
            report.confirmed = confirmed;
            drop(report);
            p.outlet.changed.notify_all();
        }
        if !all {
            return;
        }
        self.reported = now;
        for s in self.subscribers.values() {
            let streams = self.node.streams(s.group);
            s.outlet.streams.store(streams.len() as u64, Ordering::Relaxed);
            s.outlet.report.lock().streams = streams;
        }
    }
}
