//! What a publisher says beside its messages, and what its silence means.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::stream::{FORGET, PUBLISHER_TIMEOUT, Phase, ReceiveStream};
use super::{LossCause, Notice, Reliability};
use crate::addr::{PeerAddr, Sequence};
use crate::buf::RxFrame;
use crate::node::Event;
use crate::rtt::{MAX_RTT, MIN_RTT};
use crate::time::Instant;
use crate::wire::control::{Heartbeat, Nak};

/// A publisher that speaks from a new address is believed when the old one has been silent for more than
/// two idle heartbeats: a stranger cannot take a live one's place.
const MOVE_SILENCE: Duration = Duration::from_millis(600);

/// How often such a peer is asked.
const ASK_ELSEWHERE: Duration = Duration::from_millis(100);

/// What becomes of a stream after its timers were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on.
    Stays,
    /// Its publisher has been silent for long; should it come back, the stream goes on where it was.
    Sleeps,
    /// It is over.
    Ends,
}

impl<R: RxFrame> ReceiveStream<R> {
    /// Requirements: `R-HEARTBEAT-1` to `R-HEARTBEAT-3`.
    pub(crate) fn handle_heartbeat(
        &mut self,
        now: Instant,
        beat: &Heartbeat,
        local: bool,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        if beat.oldest > beat.next {
            self.stats.refused += 1;
            return;
        }
        let end = Sequence(beat.next);
        self.heard(now, end, out);
        self.echo = Some((beat.stamp, now));
        self.rtt = Duration::from_micros(u64::from(beat.rtt_us)).clamp(MIN_RTT, MAX_RTT);
        self.receivers = beat.receivers.max(1);
        self.losers = beat.losers.clamp(1, self.receivers);
        self.window = u64::from(beat.window.max(1));
        if self.attached.is_empty() {
            return;
        }
        self.end = self.end.max(end);
        let timing = self.timing(local);
        self.report_tail(end, out);
        if self.repairs_wanted {
            self.lose_unretained(now, Sequence(beat.oldest), timing, rng, out);
        } else {
            if self.attached.iter().any(|a| a.reliability == Reliability::Latest) {
                self.catch_latest(now, Sequence(beat.oldest), timing, rng);
            }
            self.next = self.next.max(end);
        }
        if beat.wanted {
            self.status.want(now, super::status_spacing(self.receivers), rng);
        }
        if beat.end {
            self.ended = Some(end);
        }
        self.finish(out);
    }

    /// Requirements: `R-LOSS-2`.
    pub(crate) fn handle_gone(
        &mut self,
        now: Instant,
        oldest: Sequence,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<Event<R>>,
    ) {
        // A publisher cannot have let go what it has not sent.
        if oldest > self.end {
            self.stats.refused += 1;
            return;
        }
        self.heard(now, oldest, out);
        let timing = self.timing(false);
        if self.repairs_wanted {
            self.lose_unretained(now, oldest, timing, rng, out);
        } else {
            self.lose_before(oldest, LossCause::NotRetained, out);
        }
        self.finish(out);
    }

    pub(crate) fn handle_released(
        &mut self,
        now: Instant,
        waited: Duration,
        out: &mut VecDeque<Event<R>>,
    ) {
        self.heard(now, self.end, out);
        let key = self.key;
        self.tell_all(|_| Notice::Released { key, waited }, out);
    }

    /// Somebody else's request for frames of this stream.
    pub(crate) fn handle_foreign_nak(&mut self, now: Instant, nak: &Nak) {
        let timing = self.timing(false);
        self.stats.suppressed += self.gaps.suppress(now, nak, timing);
    }

    /// The publisher spoke, and is at `edge` or further.
    pub(super) fn heard(&mut self, now: Instant, edge: Sequence, out: &mut VecDeque<Event<R>>) {
        self.last_heard = now;
        if !core::mem::replace(&mut self.silent, false) {
            return;
        }
        self.speak_soon();
        if self.ended.is_some() {
            return;
        }
        self.tell_all(Notice::PublisherBack, out);
        let Some(info) = self.info().cloned() else { return };
        for a in self.attached.iter_mut().filter(|a| a.waits) {
            a.begin(edge);
            let notice = Notice::Joined(info.clone());
            out.push_back(Event::Notice { subscriber: a.subscriber, notice });
        }
    }

    /// What is due by now other than sending.
    /// Requirements: `R-SILENCE-1`, `R-SILENCE-2`.
    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut VecDeque<Event<R>>) -> Fate {
        if let Phase::Unknown { queries, query_at, .. } = &self.phase {
            let over = *queries >= super::speak::MAX_QUERIES && *query_at <= now;
            return if over { Fate::Ends } else { Fate::Stays };
        }
        if self.is_quiet(now)
            && let Some(by) = self.successor.take()
        {
            self.supersede(&by, out);
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
            let over = self.attached.is_empty() || self.ended.is_some();
            return if over { Fate::Ends } else { Fate::Sleeps };
        }
        self.give_up(now, out);
        self.finish(out);
        Fate::Stays
    }

    /// Whether an announcement from there is to be believed: the publisher is there, or it has been silent
    /// where it was, or it was not known.
    pub(crate) fn may_speak(&self, now: Instant, from: PeerAddr) -> bool {
        self.publisher == from || self.is_unknown() || self.is_quiet(now)
    }

    /// Whether to ask a peer that speaks for this stream from elsewhere who it is: the publisher is silent
    /// where it was, and what it announced when it moved may have been lost.
    pub(crate) fn asks_elsewhere(&mut self, now: Instant) -> bool {
        let asks = self.is_quiet(now) && !self.is_unknown() && now >= self.ask_elsewhere_at;
        if asks {
            self.ask_elsewhere_at = now + ASK_ELSEWHERE;
        }
        asks
    }

    /// Whether the publisher has been silent for so long that it may have gone elsewhere.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_since(self.last_heard) >= MOVE_SILENCE
    }

    /// This node slept for `pause`: that was not the publisher's silence.
    pub(crate) fn forgive(&mut self, now: Instant, pause: Duration) {
        self.last_heard = (self.last_heard + pause).min(now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if let Phase::Unknown { query_at, .. } = &self.phase {
            return Some(*query_at);
        }
        let silence = self.last_heard + if self.silent { FORGET } else { PUBLISHER_TIMEOUT };
        if self.attached.is_empty() || self.silent {
            return Some(silence);
        }
        let moved = self.successor.as_ref().map(|_| self.last_heard + MOVE_SILENCE);
        let due = [Some(silence), self.gaps.next_due(), self.status.due(self.closed), moved];
        due.into_iter().flatten().min()
    }
}
