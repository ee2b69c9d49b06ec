//! What a subscriber says to a publisher: questions, requests, and how far it is.
//!
//! A status is due when a good part of the window was taken in, when room came back that the publisher
//! may wait for, when the publisher asks, and now and then. All subscribers of a stream together send
//! a bounded number a second. Requirements: `R-STATUS-5` to `R-STATUS-8`, `R-STATUS-10`.

use core::time::Duration;

use super::stream::{Phase, ReceiveStream};
use crate::addr::{NodeId, Sequence};
use crate::buf::RxFrame;
use crate::time::Instant;
use crate::wire::control::{Nak, Status};

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
    pub(crate) incarnation: u64,
    pub(crate) name: &'a str,
    pub(crate) headroom: u32,
    pub(crate) room: usize,
    pub(crate) backlog: usize,
    pub(crate) tag: Option<u32>,
    pub(crate) local_loss: bool,
}

/// When the next status is due, and what the last one said.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusTimer {
    due: Instant,
    last: Instant,
    next: Sequence,
    edge: Sequence,
    wanted: bool,
    /// There is news beside progress.
    news: bool,
    /// Statuses that still follow each other closely, so that a new subscriber is known though one is lost.
    first: u32,
}

impl StatusTimer {
    pub(super) fn new(now: Instant) -> Self {
        let (next, edge) = (Sequence(0), Sequence(0));
        Self { due: now, last: now, next, edge, wanted: true, news: false, first: FIRST_STATUSES }
    }

    /// There is a reason to speak. Many have it at the same moment, so each draws its time, and only once: if
    /// they spoke together they would go on doing so, and the publisher's receive queue would take the same
    /// ones each time and drop the others (`R-STATUS-8`).
    pub(super) fn want(&mut self, now: Instant, spacing: Duration, rng: &mut fastrand::Rng) {
        if !core::mem::replace(&mut self.wanted, true) {
            let earliest = now.max(self.last + spacing * 3 / 4);
            self.due = self.due.min(earliest + spacing.mul_f64(rng.f64() / 2.0));
        }
    }

    /// A stream that is over needs no word but those that are wanted.
    pub(super) fn due(&self, closed: bool) -> Option<Instant> {
        (!closed || self.wanted).then_some(self.due)
    }

    /// A subscription has just joined.
    pub(super) fn introduce(&mut self, due: Instant) {
        (self.due, self.wanted, self.first) = (due, true, FIRST_STATUSES);
    }
}

/// Questions that are asked about a stream before it is forgotten.
pub(super) const MAX_QUERIES: u32 = 40;

/// A question is repeated after twice as long each time, from a few round trips on.
const MIN_QUERY: Duration = Duration::from_millis(2);
const MAX_QUERY: Duration = Duration::from_millis(100);

/// A subscriber introduces itself so often in a small group: the publisher waits only for those that it
/// knows, and the next regular status is a quarter of a second away.
const FIRST_STATUSES: u32 = 3;
const FIRST_INTERVAL: Duration = Duration::from_millis(4);
const SMALL_GROUP: u32 = 32;

/// A status is due for every such part of the window.
const STEPS: u64 = 8;

impl<R: RxFrame> ReceiveStream<R> {
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
            let pause = (MIN_QUERY * (1 << (*queries).min(6))).min(MAX_QUERY);
            *query_at = now + pause;
            *queries += 1;
            return Some(Upstream::Query);
        }
        if self.attached.is_empty() || self.silent {
            return None;
        }
        let timing = self.timing(who.local_loss);
        if let Some(nak) = self.gaps.poll_nak(now, timing, rng) {
            self.stats.naks += 1;
            return Some(Upstream::Nak(nak));
        }
        self.status_due(now, who, rng).then(|| Upstream::Status(self.take_status(now, who, rng)))
    }

    /// Whether the publisher has not been told yet that the last subscription left, and seems not to know.
    pub(crate) fn owes_farewell(&self) -> bool {
        self.attached.is_empty() && self.farewells > 0
    }

    /// The word of a subscriber that leaves.
    pub(crate) fn farewell(&mut self, now: Instant, who: &Speaker<'_>) -> Status {
        self.farewells = self.farewells.saturating_sub(1);
        Status { leaving: true, ..self.status(now, who) }
    }

    /// The publisher is to hear of a change soon.
    pub(crate) fn speak_soon(&mut self) {
        self.status.news = true;
    }

    fn status_due(&mut self, now: Instant, who: &Speaker<'_>, rng: &mut fastrand::Rng) -> bool {
        if core::mem::take(&mut self.status.news) || !self.closed && self.has_progress(who) {
            self.status.want(now, super::status_spacing(self.receivers), rng);
        }
        self.status.due(self.closed).is_some_and(|due| due <= now)
    }

    /// Whether the publisher would gain from knowing how far this subscriber is.
    fn has_progress(&self, who: &Speaker<'_>) -> bool {
        let said = &self.status;
        let edge = self.edge(who);
        let step = ((self.capacity as u64).min(self.window) / STEPS).max(1);
        // What is left of the room that the publisher knows of, and what there is.
        let (left, room) = (said.edge.since(self.next), edge.since(self.next));
        self.next.since(said.next) >= step
            || edge.since(said.edge) >= step
            || edge > said.edge && left <= room / 2
            // Other streams need the room as well.
            || said.edge > edge && room < left / 2
    }

    /// Frames that the publisher was promised room for, and that have not come yet.
    pub(crate) fn promised(&self) -> usize {
        usize::try_from(self.status.edge.since(self.next)).unwrap_or(usize::MAX)
    }

    fn take_status(&mut self, now: Instant, who: &Speaker<'_>, rng: &mut fastrand::Rng) -> Status {
        let status = self.status(now, who);
        // A group that heard one announcement must not go on in step.
        let mut pause = super::status_interval(self.receivers);
        let first = self.status.first.saturating_sub(1);
        if first > 0 && self.receivers <= SMALL_GROUP {
            pause = FIRST_INTERVAL * (1 << (FIRST_STATUSES - first));
        }
        self.status = StatusTimer {
            due: now + pause.mul_f64(0.75 + rng.f64() / 2.0),
            last: now,
            next: self.next,
            edge: self.edge(who),
            wanted: false,
            news: false,
            first,
        };
        status
    }

    fn status(&mut self, now: Instant, who: &Speaker<'_>) -> Status {
        let echo = self.echo.take();
        let held = echo.map_or(Duration::ZERO, |(_, at)| now.saturating_since(at));
        Status {
            node: who.node.0,
            incarnation: who.incarnation,
            at: now.as_micros(),
            name: who.name.into(),
            next: self.next.0,
            edge: self.edge(who).0,
            lost: if self.repairs_wanted { self.stats.lost } else { 0 },
            echo: echo.map(|(stamp, _)| stamp),
            held_us: u32::try_from(held.as_micros()).unwrap_or(u32::MAX),
            headroom: who.headroom,
            missing: self.stats.missing,
            reliable: self.repairs_wanted,
            leaving: false,
            ended: self.closed,
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
}
