//! One publisher's stream, as a node receives it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::assembly::{AnyOrder, InOrder};
use super::gaps::{Gaps, GroupTiming};
use super::{LossCause, Notice, Reliability, Start, StreamInfo, StreamKey, SubscriberConfig};
use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::buf::RxFrame;
use crate::node::{Event, SubscriberId};
use crate::time::Instant;
use crate::wire::control::{Announce, Heartbeat, Nak, Status};
use crate::wire::frame::fragment_of_checked;

/// One publisher's stream. See the [module](super).
#[derive(Debug)]
pub(crate) struct ReceiveStream<R> {
    pub(crate) key: StreamKey,
    pub(crate) publisher: PeerAddr,
    pub(crate) phase: Phase<R>,
    /// Everything before this was delivered or given up.
    next: Sequence,
    /// Frames from `next` on.
    ring: VecDeque<Slot<R>>,
    gaps: Gaps,
    /// The first sequence that was not heard of.
    end: Sequence,
    attached: Vec<Attachment>,
    repairs_wanted: bool,
    capacity: usize,
    pub(crate) last_heard: Instant,
    echo: Option<(u32, Instant)>,
    rtt: Duration,
    receivers: u32,
    losers: u32,
    status: StatusTimer,
    ended: Option<Sequence>,
    /// Whether the end was told.
    closed: bool,
    silent: bool,
    pub(crate) incarnation: u64,
    pub(crate) stats: StreamStats,
}

/// How far a stream is known.
#[derive(Debug)]
pub(crate) enum Phase<R> {
    /// Not described yet: frames wait until it is known whether and from where they are wanted.
    Unknown { held: VecDeque<(Sequence, R)>, query_at: Instant, queries: u32 },
    /// Described; wanted if something is attached.
    Known(StreamInfo),
}

/// A stream's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Frames received for the first time.
    pub frames: u64,
    /// Of those, frames that had been asked for.
    pub repaired: u64,
    /// Frames that had been received, or given up, before.
    pub duplicates: u64,
    /// Frames beyond the room that was promised.
    pub beyond: u64,
    /// Missing frames found.
    pub missing: u64,
    /// Frames given up.
    pub lost: u64,
    /// NAKs sent.
    pub naks: u64,
    /// Requests put off because somebody else's was heard.
    pub suppressed: u64,
    /// Control bodies that were refused.
    pub refused: u64,
}

impl core::ops::Add for StreamStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            repaired: self.repaired + other.repaired,
            duplicates: self.duplicates + other.duplicates,
            beyond: self.beyond + other.beyond,
            missing: self.missing + other.missing,
            lost: self.lost + other.lost,
            naks: self.naks + other.naks,
            suppressed: self.suppressed + other.suppressed,
            refused: self.refused + other.refused,
        }
    }
}

#[derive(Debug)]
enum Slot<R> {
    Missing,
    /// Received, and to be delivered in order.
    Have(R),
    /// Received, and delivered to all that want it.
    Done,
    Lost(LossCause),
}

#[derive(Debug)]
struct Attachment {
    subscriber: SubscriberId,
    reliability: Reliability,
    /// The first frame that it wants.
    start: Sequence,
    /// The first frame that it was not told of (arrival order).
    expected: Sequence,
    in_order: InOrder,
    any_order: AnyOrder,
}

#[derive(Clone, Copy, Debug)]
struct StatusTimer {
    due: Instant,
    last: Instant,
    edge: Sequence,
    wanted: bool,
}

/// What a subscription wants of a stream, as the node keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) id: SubscriberId,
    pub(crate) config: SubscriberConfig,
    pub(crate) opened: Instant,
    /// Frames that may still be handed over before the application must take some.
    pub(crate) room: usize,
}

/// What a stream wants to send to its publisher.
#[derive(Debug)]
pub(crate) enum Upstream {
    Query,
    Nak(Nak),
    Status(Status),
}

/// What a stream needs of its node to speak.
pub(crate) struct Speaker<'a> {
    pub(crate) node: NodeId,
    pub(crate) name: &'a str,
    pub(crate) headroom: u32,
    pub(crate) room: usize,
    pub(crate) backlog: usize,
    pub(crate) tag: Option<u32>,
    pub(crate) local_loss: bool,
}

/// Frames that are kept of a stream that is not described yet.
const MAX_HELD: usize = 64;

/// Questions that are asked about a stream before it is forgotten.
const MAX_QUERIES: u32 = 40;

/// A publisher that is silent for twelve idle heartbeats is lost.
pub(crate) const PUBLISHER_TIMEOUT: Duration = Duration::from_secs(3);

/// A lost or ended stream is remembered for so long, to know its late frames and to answer its
/// publisher's last heartbeats.
pub(crate) const FORGET: Duration = Duration::from_secs(20);

impl<R: RxFrame> ReceiveStream<R> {
    pub(crate) fn new(now: Instant, key: StreamKey, publisher: PeerAddr, capacity: usize) -> Self {
        Self {
            key,
            publisher,
            phase: Phase::Unknown { held: VecDeque::new(), query_at: now, queries: 0 },
            next: Sequence(0),
            ring: VecDeque::new(),
            gaps: Gaps::default(),
            end: Sequence(0),
            attached: Vec::new(),
            repairs_wanted: false,
            capacity,
            last_heard: now,
            echo: None,
            rtt: crate::rtt::INITIAL_RTT,
            receivers: 1,
            losers: 1,
            status: StatusTimer { due: now, last: now, edge: Sequence(0), wanted: true },
            ended: None,
            closed: false,
            silent: false,
            incarnation: 0,
            stats: StreamStats::default(),
        }
    }

    pub(crate) fn info(&self) -> Option<&StreamInfo> {
        match &self.phase {
            Phase::Known(info) => Some(info),
            Phase::Unknown { .. } => None,
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        !self.attached.is_empty()
    }

    /// A data or fragment frame.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        sequence: Sequence,
        frame: R,
        local: bool,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.heard(now, out);
        if let Phase::Unknown { held, .. } = &mut self.phase {
            if held.len() < MAX_HELD {
                held.push_back((sequence, frame));
            }
            return;
        }
        if self.attached.is_empty() || self.ended.is_some_and(|end| sequence >= end) {
            return;
        }
        let timing = self.timing(local);
        self.place(now, sequence, frame, timing, out);
        if !self.gaps.is_empty() {
            self.gaps.confirm(now, sequence, timing, rng);
        }
        self.finish(out);
    }

    /// Puts a frame where it belongs and delivers what that makes deliverable.
    fn place(
        &mut self,
        now: Instant,
        sequence: Sequence,
        frame: R,
        timing: GroupTiming,
        out: &mut VecDeque<Event<R>>,
    ) {
        if sequence < self.next {
            self.stats.duplicates += 1;
            return;
        }
        if !self.repairs_wanted {
            // Nothing is kept: what is skipped is lost at once.
            let lost = sequence.since(self.next);
            self.stats.frames += 1;
            self.stats.missing += lost;
            self.stats.lost += lost;
            self.on_arrival(sequence, &frame, timing.local, out);
            self.next = sequence.next();
            self.end = self.end.max(self.next);
            if !self.gaps.is_empty() {
                self.gaps.reset(self.next);
            }
            return;
        }
        let at = sequence.since(self.next);
        if at >= self.capacity as u64 {
            self.stats.beyond += 1;
            return;
        }
        if at == 0 && self.ring.is_empty() {
            self.stats.frames += 1;
            self.on_arrival(sequence, &frame, timing.local, out);
            self.next = sequence.next();
            self.end = self.end.max(self.next);
            self.in_order(sequence, frame, out);
            return;
        }
        let at = at as usize;
        if at >= self.ring.len() {
            self.extend(now, sequence, timing);
            self.ring.push_back(Slot::Missing);
            self.end = self.end.max(sequence.next());
        } else if !matches!(self.ring[at], Slot::Missing) {
            self.stats.duplicates += 1;
            return;
        } else if let Some((waited, true)) = self.gaps.found(now, sequence) {
            self.stats.repaired += 1;
            out.push_back(Event::Repaired { waited });
        }
        self.stats.frames += 1;
        self.on_arrival(sequence, &frame, timing.local, out);
        let ordered = self.attached.iter().any(|a| a.reliability == Reliability::Ordered);
        self.ring[at] = if ordered { Slot::Have(frame) } else { Slot::Done };
        self.advance(out);
    }

    /// Notes that frames before `end` exist: those that were not received are missing.
    fn extend(&mut self, now: Instant, end: Sequence, timing: GroupTiming) {
        let known = self.next.plus(self.ring.len() as u64);
        let end = end.min(self.next.plus(self.capacity as u64));
        let mut at = known;
        while at < end {
            self.ring.push_back(Slot::Missing);
            self.gaps.add(now, at, timing);
            self.stats.missing += 1;
            at = at.next();
        }
        self.end = self.end.max(end);
    }

    /// Delivers in order what has no gap before it.
    fn advance(&mut self, out: &mut VecDeque<Event<R>>) {
        let mut lost: Option<(Sequence, Sequence, LossCause)> = None;
        while let Some(front) = self.ring.front_mut() {
            let slot = match front {
                Slot::Missing => break,
                _ => core::mem::replace(front, Slot::Done),
            };
            self.ring.pop_front();
            let at = self.next;
            self.next = at.next();
            if let Slot::Lost(cause) = slot {
                lost = match lost {
                    Some((first, _, c)) if c == cause => Some((first, at, cause)),
                    other => {
                        self.tell_lost(other, Reliability::Ordered, out);
                        Some((at, at, cause))
                    }
                };
                continue;
            }
            self.tell_lost(lost.take(), Reliability::Ordered, out);
            if let Slot::Have(frame) = slot {
                self.in_order(at, frame, out);
            }
        }
        self.tell_lost(lost, Reliability::Ordered, out);
    }

    /// Hands a frame, the next one, to the ordered subscriptions.
    fn in_order(&mut self, at: Sequence, frame: R, out: &mut VecDeque<Event<R>>) {
        let key = self.key;
        let wanted = |a: &Attachment| a.reliability == Reliability::Ordered && at >= a.start;
        let mut last = None;
        for i in 0..self.attached.len() {
            if !wanted(&self.attached[i]) {
                continue;
            }
            if let Some(previous) = last.replace(i) {
                deliver(&mut self.attached[previous], key, at, frame.clone(), out);
            }
        }
        if let Some(i) = last {
            deliver(&mut self.attached[i], key, at, frame, out);
        }
    }

    /// Hands a frame that has just come to the subscriptions that do not wait for order.
    fn on_arrival(&mut self, at: Sequence, frame: &R, local: bool, out: &mut VecDeque<Event<R>>) {
        let key = self.key;
        for a in &mut self.attached {
            if at < a.start || a.reliability == Reliability::Ordered {
                continue;
            }
            if a.reliability == Reliability::Unordered {
                deliver_unordered(a, key, at, frame, out);
                continue;
            }
            if at < a.expected {
                // It was reported as lost, or replaced by a newer one.
                continue;
            }
            if at > a.expected && a.reliability == Reliability::BestEffort {
                let cause = if local { LossCause::Local } else { LossCause::Fabric };
                let last = Sequence(at.0 - 1);
                let notice = Notice::Lost { key, first: a.expected, last, cause };
                out.push_back(Event::Notice { subscriber: a.subscriber, notice });
            }
            a.expected = at.next();
            deliver(a, key, at, frame.clone(), out);
        }
    }

    fn tell_lost(
        &mut self,
        lost: Option<(Sequence, Sequence, LossCause)>,
        to: Reliability,
        out: &mut VecDeque<Event<R>>,
    ) {
        let Some((first, last, cause)) = lost else { return };
        for a in &mut self.attached {
            if a.reliability != to || last < a.start {
                continue;
            }
            a.in_order.clear();
            let first = first.max(a.start);
            let notice = Notice::Lost { key: self.key, first, last, cause };
            out.push_back(Event::Notice { subscriber: a.subscriber, notice });
        }
    }

    /// Gives up every missing frame before `end`.
    fn lose_before(&mut self, end: Sequence, cause: LossCause, out: &mut VecDeque<Event<R>>) {
        let lost: Vec<Sequence> = self.gaps.lose_before(end).collect();
        let mut run: Option<(Sequence, Sequence, LossCause)> = None;
        for at in lost {
            self.mark_lost(at, cause);
            run = match run {
                Some((first, last, _)) if last.next() == at => Some((first, at, cause)),
                other => {
                    self.tell_lost(other, Reliability::Unordered, out);
                    Some((at, at, cause))
                }
            };
        }
        self.tell_lost(run, Reliability::Unordered, out);
        self.advance(out);
        // Frames that were never heard of are gone too.
        let known = self.next.plus(self.ring.len() as u64);
        if self.repairs_wanted && end > known && self.ring.is_empty() {
            let run = Some((self.next, Sequence(end.0 - 1), cause));
            self.stats.lost += end.since(self.next);
            self.stats.missing += end.since(self.next);
            self.tell_lost(run, Reliability::Unordered, out);
            self.tell_lost(run, Reliability::Ordered, out);
            self.next = end;
            self.end = self.end.max(end);
            self.gaps.reset(end);
        }
    }

    fn mark_lost(&mut self, at: Sequence, cause: LossCause) {
        self.stats.lost += 1;
        if let Some(slot) = self.ring.get_mut(at.since(self.next) as usize) {
            *slot = Slot::Lost(cause);
        }
        for a in &mut self.attached {
            a.any_order.lose(at);
        }
    }

    pub(crate) fn handle_heartbeat(
        &mut self,
        now: Instant,
        beat: &Heartbeat,
        local: bool,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.heard(now, out);
        if beat.oldest > beat.next {
            self.stats.refused += 1;
            return;
        }
        self.echo = Some((beat.stamp, now));
        self.rtt = Duration::from_micros(u64::from(beat.rtt_us))
            .clamp(crate::rtt::MIN_RTT, crate::rtt::MAX_RTT);
        self.receivers = beat.receivers.max(1);
        self.losers = beat.losers.clamp(1, self.receivers);
        if self.attached.is_empty() {
            return;
        }
        let end = Sequence(beat.next);
        self.report_tail(end, out);
        if self.repairs_wanted {
            self.lose_before(Sequence(beat.oldest), LossCause::NotRetained, out);
            let timing = self.timing(local);
            self.extend(now, end, timing);
        } else if self.attached.iter().any(|a| a.reliability == Reliability::Latest) {
            self.catch_latest(now, end, local);
        } else {
            self.next = self.next.max(end);
        }
        self.end = self.end.max(end.min(self.next.plus(self.capacity as u64)));
        if beat.wanted {
            // Many answer one heartbeat: they spread over the time that their number deserves.
            let spread = super::status_spacing(self.receivers);
            let due = now + spread.mul_f64(rng.f64());
            self.status.due = self.status.due.min(due.max(self.status.last + spread));
            self.status.wanted = true;
        }
        if beat.end {
            self.ended = Some(Sequence(beat.next));
        }
        self.finish(out);
    }

    /// Tells best-effort subscriptions what they missed at the end of the stream.
    fn report_tail(&mut self, end: Sequence, out: &mut VecDeque<Event<R>>) {
        for a in &mut self.attached {
            if a.reliability != Reliability::BestEffort || a.expected >= end {
                continue;
            }
            let (first, last) = (a.expected, Sequence(end.0 - 1));
            a.expected = end;
            a.in_order.clear();
            let notice = Notice::Lost { key: self.key, first, last, cause: LossCause::Fabric };
            out.push_back(Event::Notice { subscriber: a.subscriber, notice });
        }
    }

    /// Asks for the last frame of the stream, if a latest-only subscription missed it: the newest value
    /// must not stay lost on a quiet stream. (A last message of several frames is not asked for.)
    fn catch_latest(&mut self, now: Instant, end: Sequence, local: bool) {
        if self.next < end && self.gaps.is_empty() {
            self.next = Sequence(end.0 - 1);
            self.gaps.reset(self.next);
            self.gaps.add(now, self.next, self.timing(local));
        }
    }

    pub(crate) fn handle_gone(
        &mut self,
        now: Instant,
        oldest: Sequence,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.heard(now, out);
        // A publisher cannot have let go what it has not sent.
        if oldest > self.end {
            self.stats.refused += 1;
            return;
        }
        self.lose_before(oldest, LossCause::NotRetained, out);
        self.finish(out);
    }

    pub(crate) fn handle_released(
        &mut self,
        now: Instant,
        waited: Duration,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.heard(now, out);
        for a in &self.attached {
            let notice = Notice::Released { key: self.key, waited };
            out.push_back(Event::Notice { subscriber: a.subscriber, notice });
        }
    }

    /// Somebody else's request for frames of this stream.
    pub(crate) fn handle_foreign_nak(&mut self, now: Instant, nak: &Nak) {
        let timing = self.timing(false);
        self.stats.suppressed += self.gaps.suppress(now, nak, timing);
    }

    /// The stream is described: attach whoever wants it, and take what was held.
    pub(crate) fn resolve(
        &mut self,
        now: Instant,
        announce: &Announce,
        subscriptions: &[&Subscription],
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.publisher = announce.address.into();
        let info = StreamInfo {
            key: self.key,
            node: NodeId(announce.node),
            name: announce.name.clone(),
            topic: announce.topic.clone(),
        };
        let Phase::Unknown { held, .. } =
            core::mem::replace(&mut self.phase, Phase::Known(info.clone()))
        else {
            return;
        };
        let beat = &announce.heartbeat;
        let first_held = held.iter().map(|(s, _)| *s).min();
        let live = first_held.unwrap_or(Sequence(beat.next)).min(Sequence(beat.next));
        let age = Duration::from_millis(announce.age_ms);
        for s in subscriptions.iter().filter(|s| s.config.topics.matches(&info.topic)) {
            let start = if now.saturating_since(s.opened) >= age {
                Sequence(0)
            } else {
                match s.config.start {
                    Start::Live => live,
                    Start::History(n) => {
                        Sequence(live.0.saturating_sub(n)).max(Sequence(beat.oldest)).min(live)
                    }
                }
            };
            self.push_attachment(s, start, &info, out);
        }
        let Some(start) = self.attached.iter().map(|a| a.start).min() else { return };
        self.next = start;
        self.end = start;
        self.gaps.reset(start);
        for (sequence, frame) in held {
            self.handle_frame(now, sequence, frame, false, rng, out);
        }
        self.handle_heartbeat(now, beat, false, rng, out);
        let spread = super::status_spacing(self.receivers);
        self.status.due = now + spread.mul_f64(rng.f64());
    }

    /// Attaches a subscription to a stream that is already followed: it begins with what comes next.
    pub(crate) fn attach(&mut self, now: Instant, s: &Subscription, out: &mut VecDeque<Event<R>>) {
        let Phase::Known(info) = &self.phase else { return };
        if !s.config.topics.matches(&info.topic) || self.ended.is_some() {
            return;
        }
        let info = info.clone();
        if self.attached.is_empty() {
            self.next = self.end;
            self.ring.clear();
            self.gaps.reset(self.end);
        }
        let start = self.next.plus(self.ring.len() as u64);
        self.push_attachment(s, start, &info, out);
        self.status.due = now;
    }

    fn push_attachment(
        &mut self,
        s: &Subscription,
        start: Sequence,
        info: &StreamInfo,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.attached.push(Attachment {
            subscriber: s.id,
            reliability: s.config.reliability,
            start,
            expected: start,
            in_order: InOrder::default(),
            any_order: AnyOrder::default(),
        });
        self.repairs_wanted = self.attached.iter().any(|a| a.reliability.wants_repair());
        let notice = Notice::Joined(info.clone());
        out.push_back(Event::Notice { subscriber: s.id, notice });
    }

    /// The next status is due at once.
    pub(crate) fn speak_soon(&mut self, now: Instant) {
        self.status.due = now;
    }

    /// Detaches a subscription. Says whether it was the last one.
    pub(crate) fn detach(&mut self, subscriber: SubscriberId) -> bool {
        let before = self.attached.len();
        self.attached.retain(|a| a.subscriber != subscriber);
        self.repairs_wanted = self.attached.iter().any(|a| a.reliability.wants_repair());
        if self.attached.is_empty() {
            self.ring.clear();
            self.gaps.reset(self.end);
            self.next = self.end;
        } else if !self.repairs_wanted {
            self.next = self.next.plus(self.ring.len() as u64);
            self.ring.clear();
            self.gaps.reset(self.next);
        }
        before > 0 && self.attached.is_empty()
    }

    /// A new life of the node replaces this one: what is missing stays missing.
    pub(crate) fn supersede(&mut self, by: &StreamInfo, out: &mut VecDeque<Event<R>>) {
        self.lose_before(self.end, LossCause::PublisherLost, out);
        for a in &self.attached {
            let notice = Notice::PublisherRestarted(by.clone());
            out.push_back(Event::Notice { subscriber: a.subscriber, notice });
        }
        self.ended = Some(self.next);
        self.attached.clear();
        self.repairs_wanted = false;
        self.ring.clear();
    }

    /// Frames that wait for a gap before them, or for a description.
    pub(crate) fn waiting(&self) -> usize {
        match &self.phase {
            Phase::Unknown { held, .. } => held.len(),
            Phase::Known(_) => self.ring.iter().filter(|s| matches!(s, Slot::Have(_))).count(),
        }
    }

    /// What is due by now other than sending. Says whether the stream is to be forgotten.
    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) -> bool {
        if let Phase::Unknown { queries, query_at, .. } = &self.phase {
            return *queries >= MAX_QUERIES && *query_at <= now;
        }
        let silence = now.saturating_since(self.last_heard);
        if silence >= PUBLISHER_TIMEOUT && !self.silent {
            self.silent = true;
            self.lose_before(self.end, LossCause::PublisherLost, out);
            if self.ended.is_none() {
                self.tell_all(Notice::PublisherLost, out);
            }
        }
        if silence >= FORGET {
            return true;
        }
        while let Some(lost) = self.gaps.give_up(now) {
            self.mark_lost(lost, LossCause::Unrepaired);
            self.tell_lost(Some((lost, lost, LossCause::Unrepaired)), Reliability::Unordered, out);
            self.advance(out);
        }
        self.finish(out);
        false
    }

    /// What to say to the publisher next. Ask again until it is `None`.
    pub(crate) fn poll_upstream(
        &mut self,
        now: Instant,
        who: &Speaker<'_>,
        rng: &mut fastrand::Rng,
    ) -> Option<Upstream> {
        if let Phase::Unknown { query_at, queries, .. } = &mut self.phase {
            if *query_at > now || *queries >= MAX_QUERIES {
                return None;
            }
            *queries += 1;
            // Doubling from a few round trips to 100 ms.
            let pause = Duration::from_millis(2) * (1 << (*queries).min(6));
            *query_at = now + pause.min(Duration::from_millis(100));
            return Some(Upstream::Query);
        }
        if self.attached.is_empty() {
            return None;
        }
        let timing = self.timing(who.local_loss);
        if !self.silent
            && let Some(nak) = self.gaps.poll_nak(now, timing, rng)
        {
            self.stats.naks += 1;
            return Some(Upstream::Nak(nak));
        }
        if !self.status_due(now, who) {
            return None;
        }
        let status = self.take_status(now, who);
        // Many that spoke at once, because they heard the same word, do not do so again: a publisher's
        // receive queue would lose most of it each time, and the same ones.
        let interval = super::status_interval(self.receivers);
        self.status.due = now + interval.mul_f64(0.75 + rng.f64() / 2.0);
        Some(Upstream::Status(status))
    }

    /// The word of a subscriber that leaves.
    pub(crate) fn farewell(&mut self, now: Instant, who: &Speaker<'_>) -> Status {
        Status { leaving: true, ..self.take_status(now, who) }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if let Phase::Unknown { query_at, .. } = &self.phase {
            return Some(*query_at);
        }
        let silence = self.last_heard + if self.silent { FORGET } else { PUBLISHER_TIMEOUT };
        if self.attached.is_empty() {
            return Some(silence);
        }
        let gaps = if self.silent { None } else { self.gaps.next_due() };
        let status = (!self.silent).then_some(self.status.due);
        [Some(silence), gaps, status].into_iter().flatten().min()
    }

    fn status_due(&self, now: Instant, who: &Speaker<'_>) -> bool {
        if self.silent {
            return false;
        }
        if self.status.due <= now {
            return true;
        }
        let step = (self.capacity as u64 / 8).max(1);
        self.edge(who).since(self.status.edge) >= step
            && now.saturating_since(self.status.last) >= super::status_spacing(self.receivers)
    }

    fn take_status(&mut self, now: Instant, who: &Speaker<'_>) -> Status {
        let edge = self.edge(who);
        self.status = StatusTimer {
            due: now + super::status_interval(self.receivers),
            last: now,
            edge,
            wanted: false,
        };
        let echo = self.echo.take();
        let held = echo.map_or(Duration::ZERO, |(_, at)| now.saturating_since(at));
        Status {
            node: who.node.0,
            name: who.name.into(),
            next: self.next.0,
            edge: edge.0,
            echo: echo.map(|(stamp, _)| stamp),
            held_us: u32::try_from(held.as_micros()).unwrap_or(u32::MAX),
            headroom: who.headroom,
            missing: self.stats.missing,
            reliable: self.repairs_wanted,
            leaving: false,
            tag: who.tag,
        }
    }

    /// The first sequence that there is no room for.
    ///
    /// Two bounds: what can be kept from the first missing frame on, and what can be on its way beyond the
    /// last one that came. With a gap open the second lets the stream go on past it.
    fn edge(&self, who: &Speaker<'_>) -> Sequence {
        let kept = self.next.plus(self.capacity.min(who.room) as u64);
        let coming = self.next.max(self.end).plus(who.backlog as u64);
        kept.min(coming)
    }

    fn timing(&self, local: bool) -> GroupTiming {
        GroupTiming { rtt: self.rtt, losers: self.losers, receivers: self.receivers, local }
    }

    fn heard(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) {
        self.last_heard = now;
        if self.silent {
            self.silent = false;
            self.status.due = now;
            if self.ended.is_none() {
                self.tell_all(Notice::PublisherBack, out);
            }
        }
    }

    /// Ends the stream once everything before its end was delivered or given up.
    fn finish(&mut self, out: &mut VecDeque<Event<R>>) {
        if self.attached.is_empty() || self.ended.is_none_or(|end| self.next < end) {
            return;
        }
        // The attachments stay, to answer the publisher's last heartbeats.
        if !core::mem::replace(&mut self.closed, true) {
            self.tell_all(Notice::PublisherClosed, out);
        }
    }

    fn tell_all(&self, notice: impl Fn(StreamInfo) -> Notice, out: &mut VecDeque<Event<R>>) {
        let Some(info) = self.info() else { return };
        for a in &self.attached {
            out.push_back(Event::Notice { subscriber: a.subscriber, notice: notice(info.clone()) });
        }
    }
}

/// Hands a frame to a subscription that gets its frames in rising order.
fn deliver<R: RxFrame>(
    a: &mut Attachment,
    key: StreamKey,
    at: Sequence,
    frame: R,
    out: &mut VecDeque<Event<R>>,
) {
    let subscriber = a.subscriber;
    match fragment_of_checked(frame.bytes()) {
        None => out.push_back(Event::Frame { subscriber, key, sequence: at, frame }),
        Some((header, piece)) => {
            if let Some(message) = a.in_order.take(at, header, piece) {
                out.push_back(Event::Message { subscriber, key, sequence: at, message });
            }
        }
    }
}

fn deliver_unordered<R: RxFrame>(
    a: &mut Attachment,
    key: StreamKey,
    at: Sequence,
    frame: &R,
    out: &mut VecDeque<Event<R>>,
) {
    let subscriber = a.subscriber;
    match fragment_of_checked(frame.bytes()) {
        None => {
            let frame = frame.clone();
            out.push_back(Event::Frame { subscriber, key, sequence: at, frame });
        }
        Some((header, piece)) => {
            if let Some(message) = a.any_order.take(at, header, piece) {
                out.push_back(Event::Message { subscriber, key, sequence: at, message });
            }
        }
    }
}
