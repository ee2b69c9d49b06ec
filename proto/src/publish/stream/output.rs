//! What a stream sends next: answers, announcements, frames, heartbeats.

use core::time::Duration;

use super::{
    AnnounceTimer, END_TO_NOBODY, HELD_HEARTBEAT, MAX_ANNOUNCE_INTERVAL, MAX_REPLIES, Outgoing,
    PublishStream, micros,
};
use crate::time::Instant;
use crate::wire::control::Heartbeat;

/// Frames of one kind before the other gets its turn.
const RUN: u32 = 32;

/// A busy publisher sends a heartbeat this often, so that the round trip stays measured.
const BUSY_HEARTBEAT: Duration = Duration::from_millis(50);

impl<T> PublishStream<T> {
    /// What to send next. Ask again until it is `None`, after every input and timeout. Without a control
    /// frame (`can_control`) only frames of the window can be sent; without room for own messages
    /// (`may_send_new`) only those that were sent before.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        can_control: bool,
        may_send_new: bool,
    ) -> Option<Outgoing<T>> {
        if self.is_closed() {
            return None;
        }
        if !can_control {
            return self.poll_frame(now, may_send_new);
        }
        if let Some(reply) = self.replies.pop_front() {
            return Some(reply);
        }
        if self.announce.is_some_and(|timer| timer.due <= now) {
            self.announce = self.announce.and_then(|timer| self.announce_again(now, timer));
            return Some(Outgoing::Announce(None, self.beat(now), true));
        }
        if let Some(frame) = self.poll_frame(now, may_send_new) {
            return Some(frame);
        }
        if self.heartbeat.due <= now {
            return Some(Outgoing::Heartbeat(self.take_heartbeat(now)));
        }
        None
    }

    fn announce_again(&self, now: Instant, timer: AnnounceTimer) -> Option<AnnounceTimer> {
        let AnnounceTimer { interval, more, .. } = timer;
        if more > 0 {
            return Some(AnnounceTimer { due: now + interval, interval, more: more - 1 });
        }
        let slower = (interval * 2).min(MAX_ANNOUNCE_INTERVAL);
        (!self.ready).then(|| AnnounceTimer { due: now + interval, interval: slower, more })
    }

    /// A frame: repairs and new ones in turn, in runs.
    fn poll_frame(&mut self, now: Instant, may_send_new: bool) -> Option<Outgoing<T>> {
        if self.run >= RUN {
            self.run = 0;
            self.in_repairs = !self.in_repairs;
        }
        self.run += 1;
        for _ in 0..2 {
            let next = if self.in_repairs {
                self.poll_repair(now)
            } else if may_send_new {
                self.poll_new(now)
            } else {
                None
            };
            if next.is_some() {
                return next;
            }
            self.in_repairs = !self.in_repairs;
            self.run = 1;
        }
        None
    }

    fn poll_repair(&mut self, now: Instant) -> Option<Outgoing<T>> {
        if self.repairs.is_empty() {
            return None;
        }
        let (sequence, to, frame) = self.repairs.take(now, &mut self.window)?;
        self.stats.repairs += 1;
        self.stats.multicast_repairs += u64::from(to.is_none());
        Some(Outgoing::Frame { sequence, to, frame, again: true })
    }

    fn poll_new(&mut self, now: Instant) -> Option<Outgoing<T>> {
        if self.window.queued() == 0 || self.window.head() >= self.flow.limit() {
            return None;
        }
        let (sequence, frame) = self.window.take_new()?;
        self.stats.frames += 1;
        self.heartbeat.interval = self.config.heartbeat_min;
        self.heartbeat.due =
            (now + self.config.heartbeat_min).min(self.heartbeat.last + BUSY_HEARTBEAT);
        Some(Outgoing::Frame { sequence, to: None, frame, again: false })
    }

    /// Requirements: `R-HEARTBEAT-4`, `R-HEARTBEAT-5`.
    fn take_heartbeat(&mut self, now: Instant) -> Heartbeat {
        let held = self.is_held();
        let max = if self.closing.is_some() && self.flow.table.receivers().is_empty() {
            END_TO_NOBODY
        } else if held || self.closing.is_some() {
            // In large groups each may answer less often.
            let spacing = crate::subscribe::status_spacing(self.group_size());
            (spacing / 4).clamp(HELD_HEARTBEAT, self.config.heartbeat_max.max(HELD_HEARTBEAT))
        } else {
            self.config.heartbeat_max
        };
        self.heartbeat.last = now;
        // Whoever was idle until now, and is held, does not wait for as long as the idle do.
        let interval = self.heartbeat.interval.min(max);
        self.heartbeat.due = now + interval;
        self.heartbeat.interval = (interval * 2).min(max);
        self.stats.heartbeats += 1;
        if self.window.queued() == 0
            && let Some(closing) = &mut self.closing
        {
            closing.heartbeats += 1;
        }
        self.beat(now)
    }

    pub(super) fn beat(&mut self, now: Instant) -> Heartbeat {
        let wanted = self.is_held() || self.closing.is_some();
        Heartbeat {
            next: self.window.head().0,
            oldest: self.window.base().0,
            stamp: micros(now),
            rtt_us: u32::try_from(self.rtt.get().as_micros()).unwrap_or(u32::MAX),
            receivers: self.group_size(),
            losers: self.company.losers(self.group_size()),
            window: u32::try_from(self.config.window).unwrap_or(u32::MAX),
            wanted,
            end: self.closing.is_some() && self.window.queued() == 0,
        }
    }

    pub(super) fn reply(&mut self, reply: Outgoing<T>) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(reply);
        }
    }
}
