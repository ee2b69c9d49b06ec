//! One publisher's stream, as a node receives it: where each frame belongs, and what is delivered.
//!
//! Frames that come in order pass straight through. A gap opens the ring: frames behind it wait there
//! until what is missing has come or is lost. Requirements: `R-DELIVER-1` to `R-DELIVER-6`.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::attachment::{Attachment, Run};
use super::gaps::{Gaps, GroupTiming};
use super::speak::StatusTimer;
use super::{LossCause, Notice, Reliability, Sharers, StreamInfo, StreamKey, SubscriberConfig};
use crate::addr::{NodeId, PeerAddr, Sequence};
use crate::buf::RxFrame;
use crate::node::{Event, SubscriberId};
use crate::time::Instant;

/// One publisher's stream. See the [module](super).
#[derive(Debug)]
pub(crate) struct ReceiveStream<R> {
    pub(crate) key: StreamKey,
    pub(crate) publisher: PeerAddr,
    pub(crate) phase: Phase<R>,
    pub(crate) incarnation: u64,
    pub(crate) last_heard: Instant,
    /// When a frame last came.
    pub(super) last_frame: Option<Instant>,
    pub(crate) stats: StreamStats,
    pub(crate) attached: Vec<Attachment>,
    /// Everything before this was delivered or given up.
    pub(super) next: Sequence,
    /// Frames from `next` on.
    pub(super) ring: VecDeque<Slot<R>>,
    pub(super) gaps: Gaps,
    /// The first sequence that was not heard of.
    pub(super) end: Sequence,
    pub(super) repairs_wanted: bool,
    pub(super) capacity: usize,
    pub(super) echo: Option<(u32, Instant)>,
    pub(super) rtt: Duration,
    pub(super) receivers: u32,
    pub(super) losers: u32,
    /// Frames that the publisher retains at most.
    pub(super) window: u64,
    pub(super) status: StatusTimer,
    /// Where the stream ends, once that is known.
    pub(super) ended: Option<Sequence>,
    /// Whether the end was told.
    pub(super) closed: bool,
    pub(super) silent: bool,
    /// Whoever speaks for the stream from elsewhere is not asked who it is before this.
    pub(super) ask_elsewhere_at: Instant,
    /// A later life of the node, which is believed once this one is silent.
    pub(super) successor: Option<StreamInfo>,
    /// The last message of the stream was asked for up to here, for latest-only subscriptions.
    pub(super) caught: Sequence,
    /// How often in a row frames were no longer retained, with the live edge not reached between.
    pub(super) fell_behind: u32,
    /// How often the publisher is still told that the last subscription left.
    pub(super) farewells: u32,
    /// The node's memory is used up, and the stream's share of it too: frames behind a gap are not kept.
    pub(super) crowded: bool,
}

/// How far a stream is known.
#[derive(Debug)]
pub(crate) enum Phase<R> {
    /// Not described yet: frames wait until it is known whether and from where they are wanted.
    Unknown { held: VecDeque<(Sequence, R)>, query_at: Instant, queries: u32 },
    /// Described; wanted if something is attached.
    Known(StreamInfo),
}

impl<R> Phase<R> {
    /// Nothing is known, and a question is due.
    pub(super) fn unknown(now: Instant) -> Self {
        Self::Unknown { held: VecDeque::new(), query_at: now, queries: 0 }
    }
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
    /// Frames beyond the receive window.
    pub beyond: u64,
    /// Missing frames found.
    pub missing: u64,
    /// Frames given up.
    pub lost: u64,
    /// NAKs sent.
    pub naks: u64,
    /// Requests put off because somebody else's was heard.
    pub suppressed: u64,
    /// Messages that were given up before they were whole, because the node kept too much.
    pub shed: u64,
    /// Control bodies and frames that make no sense.
    pub refused: u64,
}

/// What a peer claims to have lost can be any number: sums end at the greatest.
impl core::ops::Add for StreamStats {
    type Output = Self;

    /// What a peer makes missing can be any number, and so can its sum (`R-BOUND-4`).
    fn add(self, other: Self) -> Self {
        Self {
            frames: self.frames.saturating_add(other.frames),
            repaired: self.repaired.saturating_add(other.repaired),
            duplicates: self.duplicates.saturating_add(other.duplicates),
            beyond: self.beyond.saturating_add(other.beyond),
            missing: self.missing.saturating_add(other.missing),
            lost: self.lost.saturating_add(other.lost),
            naks: self.naks.saturating_add(other.naks),
            suppressed: self.suppressed.saturating_add(other.suppressed),
            shed: self.shed.saturating_add(other.shed),
            refused: self.refused.saturating_add(other.refused),
        }
    }
}

#[derive(Debug)]
pub(super) enum Slot<R> {
    Missing,
    /// Received, and to be delivered in order.
    Have(R),
    /// Received, and delivered to all that want it.
    Done,
    Lost(LossCause),
}

/// What a subscription wants of a stream, as the node keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) id: SubscriberId,
    pub(crate) config: SubscriberConfig,
    pub(crate) opened: Instant,
    /// Frames that may still be handed over before the application must take some.
    pub(crate) room: usize,
    /// Live streams that share the room.
    pub(crate) sharers: Sharers,
    /// Frames that their publishers were promised room for, and that have not come yet.
    pub(crate) promised: usize,
}

impl Subscription {
    /// The room for one of its streams, whose publisher was promised `mine`: its part of the whole queue,
    /// if the others' promises leave as much. One frame there is always room for, so that a queue of fewer
    /// frames than there are streams does not stand still.
    pub(crate) fn share(&self, mine: usize, busy: bool) -> usize {
        if self.room == 0 {
            return 0;
        }
        let left = self.room.saturating_sub(self.promised.saturating_sub(mine));
        self.sharers.part(self.config.queue, busy).min(left).max(1)
    }

    /// Frames that were handed over and that the application has not taken.
    pub(crate) fn untaken(&self) -> usize {
        self.config.queue.saturating_sub(self.room)
    }
}

/// Frames that are kept of a stream that is not described yet: a round trip's worth. What does not fit
/// is asked for once the stream is known.
/// Requirements: `R-BOUND-2`.
const MAX_HELD: usize = 64;

/// A stream is quiet when no frame of it has come for so long.
const BUSY: Duration = Duration::from_millis(100);

/// A publisher that is silent for twelve idle heartbeats is lost.
pub(crate) const PUBLISHER_TIMEOUT: Duration = Duration::from_secs(3);

/// A lost or ended stream is looked after for so long: it knows its late frames, and answers its
/// publisher's last heartbeats.
pub(crate) const FORGET: Duration = Duration::from_secs(20);

impl<R: RxFrame> ReceiveStream<R> {
    pub(crate) fn new(now: Instant, key: StreamKey, publisher: PeerAddr, capacity: usize) -> Self {
        Self {
            key,
            publisher,
            phase: Phase::unknown(now),
            incarnation: 0,
            last_heard: now,
            last_frame: None,
            stats: StreamStats::default(),
            attached: Vec::new(),
            next: Sequence(0),
            ring: VecDeque::new(),
            gaps: Gaps::default(),
            end: Sequence(0),
            repairs_wanted: false,
            capacity: capacity.max(1),
            echo: None,
            rtt: crate::rtt::INITIAL_RTT,
            receivers: 1,
            losers: 1,
            window: u64::MAX,
            status: StatusTimer::new(now),
            ended: None,
            closed: false,
            silent: false,
            ask_elsewhere_at: now,
            successor: None,
            caught: Sequence(0),
            fell_behind: 0,
            farewells: 0,
            crowded: false,
        }
    }

    pub(crate) fn info(&self) -> Option<&StreamInfo> {
        match &self.phase {
            Phase::Known(info) => Some(info),
            Phase::Unknown { .. } => None,
        }
    }

    /// Whether it is not described yet.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.phase, Phase::Unknown { .. })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Whether frames of it may still come to a subscription.
    pub(crate) fn is_live(&self) -> bool {
        self.is_wanted() && !self.silent && !self.closed
    }

    /// Whether frames of it came of late.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.last_frame.is_some_and(|at| now.saturating_since(at) < BUSY)
    }

    /// A data or fragment frame.
    /// Requirements: `R-BOUND-4`.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        sequence: Sequence,
        frame: R,
        local: bool,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        // The last number has no successor; no publisher gets there.
        if sequence.0 == u64::MAX {
            self.stats.refused += 1;
            return;
        }
        self.heard(now, sequence, out);
        if let Phase::Unknown { held, .. } = &mut self.phase {
            if held.len() < MAX_HELD {
                held.push_back((sequence, frame));
            }
            return;
        }
        if self.attached.is_empty() || self.ended.is_some_and(|end| sequence >= end) {
            return;
        }
        self.last_frame = Some(now);
        let timing = self.timing(local);
        if self.repairs_wanted {
            self.place(now, sequence, frame, timing, rng, out);
            if !self.gaps.is_empty() {
                self.gaps.confirm(now, sequence, timing, rng);
            }
        } else {
            self.pass(now, sequence, &frame, timing, rng, out);
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
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        if sequence < self.next {
            self.stats.duplicates += 1;
            return;
        }
        let at = sequence.since(self.next);
        if at == 0 && self.ring.is_empty() {
            self.stats.frames += 1;
            self.on_arrival(sequence, &frame, timing.local, out);
            self.next = sequence.next();
            self.end = self.end.max(self.next);
            self.in_order(sequence, frame, out);
            return;
        }
        if at >= self.capacity as u64 || (at > 0 && self.crowded) {
            // The publisher does not wait for this node. What can be kept is asked for now, and the rest
            // once that has come or is lost.
            self.stats.beyond += 1;
            self.end = self.end.max(sequence.next());
            self.extend(now, self.end, timing, rng);
            self.on_loose_arrival(sequence, &frame, timing.local, out);
            return;
        }
        let at = usize::try_from(at).expect("it is below the capacity");
        if at >= self.ring.len() {
            self.extend(now, sequence, timing, rng);
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

    /// Hands on a frame of a stream of which nothing is kept: what is skipped is lost at once.
    fn pass(
        &mut self,
        now: Instant,
        sequence: Sequence,
        frame: &R,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        if sequence >= self.next {
            let lost = sequence.since(self.next);
            self.stats.frames += 1;
            self.stats.missing = self.stats.missing.saturating_add(lost);
            self.stats.lost = self.stats.lost.saturating_add(lost);
            self.on_arrival(sequence, frame, timing.local, out);
            self.next = sequence.next();
            self.end = self.end.max(self.next);
            if !self.gaps.is_empty() {
                self.gaps.reset(self.next);
            }
            return;
        }
        // Part of the newest message, which a latest-only subscription asked for.
        let Some((waited, asked)) = self.gaps.found(now, sequence) else {
            self.stats.duplicates += 1;
            return;
        };
        self.stats.frames += 1;
        if asked {
            self.stats.repaired += 1;
            out.push_back(Event::Repaired { waited });
        }
        self.on_arrival(sequence, frame, timing.local, out);
        self.catch_latest(now, Sequence(0), timing, rng);
    }

    /// Notes that frames before `end` exist: those that were not received are missing.
    pub(super) fn extend(
        &mut self,
        now: Instant,
        end: Sequence,
        timing: GroupTiming,
        rng: &mut fastrand::Rng,
    ) {
        let known = self.known();
        let end = end.min(self.next.plus(self.capacity as u64));
        if known >= end {
            return;
        }
        let count = end.since(known);
        self.gaps.add(now, known, end, timing, rng);
        self.ring.extend((0..count).map(|_| Slot::Missing));
        self.stats.missing = self.stats.missing.saturating_add(count);
        self.end = self.end.max(end);
    }

    /// The first sequence that the ring has no slot for.
    pub(super) fn known(&self) -> Sequence {
        self.next.plus(self.ring.len() as u64)
    }

    /// Delivers in order what has no gap before it.
    pub(super) fn advance(&mut self, out: &mut VecDeque<Event<R>>) {
        let lost = self.advance_to_gap(out);
        self.tell_lost(lost, Reliability::Ordered, out);
    }

    /// As [`ReceiveStream::advance`], and gives the lost frames at the end of it, which are not told yet.
    pub(super) fn advance_to_gap(&mut self, out: &mut VecDeque<Event<R>>) -> Option<Run> {
        let mut lost: Option<Run> = None;
        while let Some(front) = self.ring.front_mut() {
            let slot = match front {
                Slot::Missing => break,
                _ => core::mem::replace(front, Slot::Done),
            };
            self.ring.pop_front();
            let at = self.next;
            self.next = at.next();
            if let Slot::Lost(cause) = slot {
                let before = Run::merge(&mut lost, Run::of(at, cause));
                self.tell_lost(before, Reliability::Ordered, out);
                continue;
            }
            self.tell_lost(lost.take(), Reliability::Ordered, out);
            if let Slot::Have(frame) = slot {
                self.in_order(at, frame, out);
            }
        }
        lost
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
                self.attached[previous].take_in_order(key, at, frame.clone(), out);
            }
        }
        if let Some(i) = last {
            self.attached[i].take_in_order(key, at, frame, out);
        }
    }

    /// Hands a frame that has just come for the first time to the subscriptions that do not wait for
    /// order.
    fn on_arrival(&mut self, at: Sequence, frame: &R, local: bool, out: &mut VecDeque<Event<R>>) {
        let (key, next) = (self.key, self.next);
        for a in &mut self.attached {
            if a.reliability == Reliability::Unordered && at >= a.start {
                a.take_unordered(key, at, frame, next, out);
            }
        }
        self.on_loose_arrival(at, frame, local, out);
    }

    /// Hands a frame to the subscriptions that tell old from new themselves.
    fn on_loose_arrival(
        &mut self,
        at: Sequence,
        frame: &R,
        local: bool,
        out: &mut VecDeque<Event<R>>,
    ) {
        let key = self.key;
        for a in &mut self.attached {
            match a.reliability {
                Reliability::BestEffort if at >= a.start => {
                    let cause = if local { LossCause::Local } else { LossCause::Fabric };
                    a.take_best_effort(key, at, frame, cause, out);
                }
                Reliability::Latest if !a.waits => a.take_latest(key, at, frame, out),
                _ => {}
            }
        }
    }

    /// Ends the stream once everything before its end was delivered or given up.
    /// Requirements: `R-CLOSE-3`.
    pub(super) fn finish(&mut self, out: &mut VecDeque<Event<R>>) {
        let asking = !self.repairs_wanted && !self.gaps.is_empty();
        if self.attached.is_empty() || asking || self.ended.is_none_or(|end| self.next < end) {
            return;
        }
        // The attachments stay, to answer the publisher's last heartbeats.
        if !core::mem::replace(&mut self.closed, true) {
            self.tell_all(Notice::PublisherClosed, out);
            self.speak_soon();
        }
    }

    pub(super) fn tell_all(
        &self,
        notice: impl Fn(StreamInfo) -> Notice,
        out: &mut VecDeque<Event<R>>,
    ) {
        let Some(info) = self.info() else { return };
        for a in self.attached.iter().filter(|a| !a.waits) {
            out.push_back(Event::Notice { subscriber: a.subscriber, notice: notice(info.clone()) });
        }
    }

    /// Frames that wait for a gap before them, or for a description.
    pub(crate) fn waiting(&self) -> usize {
        match &self.phase {
            Phase::Unknown { held, .. } => held.len(),
            Phase::Known(_) => self.ring.iter().filter(|s| matches!(s, Slot::Have(_))).count(),
        }
    }

    pub(super) fn timing(&self, local: bool) -> GroupTiming {
        GroupTiming { rtt: self.rtt, losers: self.losers, receivers: self.receivers, local }
    }

    pub(crate) fn describe(&self, node: NodeId, name: &str, topic: &str) -> StreamInfo {
        StreamInfo { key: self.key, node, name: String::from(name), topic: String::from(topic) }
    }
}
