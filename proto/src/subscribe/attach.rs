//! How subscriptions come to a stream and leave it.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::attachment::Attachment;
use super::stream::{Phase, ReceiveStream, Subscription};
use super::{LossCause, Notice, Reliability, Start, StreamInfo};
use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::buf::RxFrame;
use crate::node::{Event, SubscriberId};
use crate::time::Instant;
use crate::wire::control::Announce;

/// A last subscription that leaves says so this often, the first time at once and then when the
/// publisher is heard again.
const FAREWELLS: u32 = 4;

impl<R: RxFrame> ReceiveStream<R> {
    /// The stream is described: attach whoever wants it, and take what was held. Requirements:
    /// `R-JOIN-1` to `R-JOIN-4`.
    pub(crate) fn resolve<'a>(
        &mut self,
        now: Instant,
        announce: &Announce,
        subscriptions: impl Iterator<Item = &'a Subscription>,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        let info = self.describe(NodeId(announce.node), &announce.name, &announce.topic);
        let Phase::Unknown { held, .. } =
            core::mem::replace(&mut self.phase, Phase::Known(info.clone()))
        else {
            return;
        };
        let beat = &announce.heartbeat;
        let first_held = held.iter().map(|(s, _)| *s).min();
        let live = first_held.unwrap_or(Sequence(beat.next)).min(Sequence(beat.next));
        let age = Duration::from_micros(announce.age_us);
        for s in subscriptions.filter(|s| s.config.topics.matches(&info.topic)) {
            let young = now.saturating_since(s.opened) >= age;
            let start = match s.config.start {
                _ if young => Sequence(0),
                // What came before cannot be had without repairs.
                Start::History(n) if s.config.reliability != Reliability::BestEffort => {
                    Sequence(live.0.saturating_sub(n)).max(Sequence(beat.oldest)).min(live)
                }
                _ => live,
            };
            self.push(Attachment::new(s.id, s.config.reliability, start), &info, out);
        }
        let Some(start) = self.attached.iter().map(|a| a.start).min() else { return };
        self.begin_at(start);
        for (sequence, frame) in held {
            self.handle_frame(now, sequence, frame, false, rng, out);
        }
        self.handle_heartbeat(now, beat, false, rng, out);
        let spacing = super::status_spacing(self.receivers);
        self.status.introduce(now + spacing.mul_f64(rng.f64() / 2.0));
    }

    /// Attaches a subscription to a stream that is followed already: it begins with what comes next. A
    /// stream that nobody wanted until now is asked about anew, which tells where it is.
    pub(crate) fn attach(&mut self, now: Instant, s: &Subscription, out: &mut VecDeque<Event<R>>) {
        let Phase::Known(info) = &self.phase else { return };
        if !s.config.topics.matches(&info.topic) || self.ended.is_some() {
            return;
        }
        if self.attached.is_empty() {
            self.phase = Phase::unknown(now);
            return;
        }
        if self.silent {
            self.attached.push(Attachment::waiting(s.id, s.config.reliability));
            self.note_reliability();
            return;
        }
        let info = info.clone();
        let start = self.known();
        self.push(Attachment::new(s.id, s.config.reliability, start), &info, out);
        self.status.introduce(now);
    }

    fn push(&mut self, attachment: Attachment, info: &StreamInfo, out: &mut VecDeque<Event<R>>) {
        let notice = Notice::Joined(info.clone());
        out.push_back(Event::Notice { subscriber: attachment.subscriber, notice });
        self.attached.push(attachment);
        self.caught = Sequence(0);
        self.note_reliability();
    }

    fn note_reliability(&mut self) {
        let before = self.repairs_wanted;
        self.repairs_wanted = self.attached.iter().any(|a| a.reliability.wants_repair());
        if self.repairs_wanted != before {
            // Nothing is asked for any more, or what is asked for is not what the ring lacks.
            self.begin_at(self.known());
        }
    }

    /// Regards everything before `start` as settled.
    fn begin_at(&mut self, start: Sequence) {
        self.next = start;
        self.end = self.end.max(start);
        self.ring.clear();
        self.gaps.reset(start);
    }

    /// Detaches a subscription. Says whether it was the last one.
    /// Requirements: `R-LEAVE-1`, `R-LEAVE-2`.
    pub(crate) fn detach(&mut self, subscriber: SubscriberId) -> bool {
        let before = self.attached.len();
        self.attached.retain(|a| a.subscriber != subscriber);
        if self.attached.len() == before {
            return false;
        }
        let reliable = self.repairs_wanted;
        self.note_reliability();
        if self.attached.is_empty() {
            self.begin_at(self.known());
            self.farewells = FAREWELLS;
            return true;
        }
        if reliable != self.repairs_wanted {
            // The publisher waits in vain.
            self.speak_soon();
        }
        false
    }

    /// A later life of the node has announced itself from there.
    pub(crate) fn handle_successor(
        &mut self,
        now: Instant,
        from: PeerAddr,
        by: &StreamInfo,
        out: &mut VecDeque<Event<R>>,
    ) {
        if self.publisher.gid == from.gid || self.is_quiet(now) {
            self.supersede(by, out);
        } else {
            self.successor = Some(by.clone());
        }
    }

    /// A new life of the node replaces this one: what is missing stays missing.
    pub(crate) fn supersede(&mut self, by: &StreamInfo, out: &mut VecDeque<Event<R>>) {
        self.lose_before(self.end, LossCause::PublisherLost, out);
        self.tell_all(|_| Notice::PublisherRestarted(by.clone()), out);
        self.successor = None;
        self.ended = Some(self.next);
        self.attached.clear();
        self.repairs_wanted = false;
        self.begin_at(self.next);
    }
}
