//! One stream of a publisher: what it does on each [`input`], and what its [`output`] is next.

mod input;
mod output;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::company::Company;
use super::config::PublisherConfig;
use super::flow::{Flow, Hold};
use super::repair::Repairs;
use super::report::{PublisherEvent, PublisherStats};
use super::table::Receiver;
use super::window::Window;
use crate::addr::{NodeId, PeerAddr, Sequence, SessionId, StreamId};
use crate::rtt::GroupRtt;
use crate::time::Instant;
use crate::wire::control::{Gone, Heartbeat, Released};

/// What a stream wants to send.
#[derive(Debug)]
pub(crate) enum Outgoing<T> {
    /// A frame of the window, to the group or to one subscriber.
    Frame { sequence: Sequence, to: Option<PeerAddr>, frame: T, again: bool },
    /// A heartbeat to the group.
    Heartbeat(Heartbeat),
    /// A description, to the group or to one subscriber.
    Announce(Option<PeerAddr>, Heartbeat, bool),
    /// "No longer retained", to one subscriber.
    Gone(PeerAddr, Gone),
    /// "No longer waited for", to one subscriber.
    Released(PeerAddr, Released),
}

/// One stream of a publisher. See the [module](super).
#[derive(Debug)]
pub struct PublishStream<T> {
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(crate) config: PublisherConfig,
    pub(crate) born: Instant,
    window: Window<T>,
    flow: Flow,
    repairs: Repairs,
    rtt: GroupRtt,
    company: Company,
    freed: Vec<T>,
    events: VecDeque<PublisherEvent>,
    /// Answers that wait to be sent; bounded by [`MAX_REPLIES`].
    replies: VecDeque<Outgoing<T>>,
    heartbeat: HeartbeatTimer,
    announce: Option<AnnounceTimer>,
    ready: bool,
    closing: Option<Closing>,
    /// Names of subscribers that were lost while it closed, and lacked something.
    parted: Vec<String>,
    /// Frames sent in the current run: repairs and new frames take turns in runs, because a run of
    /// equal frames to one destination is cheap on every device.
    run: u32,
    in_repairs: bool,
    /// Subscribers that are expected, until those that are there have spoken.
    expected: u32,
    stats: PublisherStats,
}

#[derive(Clone, Copy, Debug)]
struct HeartbeatTimer {
    due: Instant,
    interval: Duration,
    last: Instant,
}

#[derive(Clone, Copy, Debug)]
struct AnnounceTimer {
    due: Instant,
    interval: Duration,
    /// How often it is repeated though the publisher is ready.
    more: u32,
}

impl AnnounceTimer {
    fn at(due: Instant) -> Self {
        Self { due, interval: ANNOUNCE_INTERVAL, more: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Closing {
    deadline: Instant,
    heartbeats: u32,
    done: bool,
}

/// Answers to peers that may wait at once: more come from a flood, and asking again is cheap.
/// Requirements: `R-BOUND-3`.
const MAX_REPLIES: usize = 64;

/// A first announcement is repeated so soon while the publisher is not ready, and then ever more slowly,
/// up to the other: a join takes some ten milliseconds to reach all switches.
/// Requirements: `R-READY-2`.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(20);
const MAX_ANNOUNCE_INTERVAL: Duration = Duration::from_millis(250);
/// A new address is announced so often: subscribers believe it once the old one has been silent.
const READDRESS_ANNOUNCES: u32 = 30;
const READDRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A publisher that is held back, or closes, sends a heartbeat at least this often: whoever holds it is
/// asked often enough to be found dead soon.
const HELD_HEARTBEAT: Duration = Duration::from_millis(20);

/// A closing stream says so at least this often, for subscribers that are not waited for.
const END_HEARTBEATS: u32 = 3;

/// The time between those when no subscriber is known: nothing else keeps the stream.
const END_TO_NOBODY: Duration = Duration::from_millis(10);

impl<T> PublishStream<T> {
    pub(crate) fn new(
        now: Instant,
        session: SessionId,
        stream: StreamId,
        config: PublisherConfig,
    ) -> Self {
        let config = config.bounded();
        let interval = config.heartbeat_min;
        Self {
            session,
            stream,
            born: now,
            window: Window::new(config.window),
            flow: Flow::new(config.policy, config.max_receivers, config.window),
            config,
            repairs: Repairs::default(),
            rtt: GroupRtt::default(),
            company: Company::new(),
            freed: Vec::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            heartbeat: HeartbeatTimer { due: now + interval, interval, last: now },
            announce: Some(AnnounceTimer::at(now)),
            ready: false,
            closing: None,
            parted: Vec::new(),
            run: 0,
            in_repairs: false,
            expected: 0,
            stats: PublisherStats::default(),
        }
    }

    /// How many frames [`PublishStream::publish`] would take now.
    pub(crate) fn room(&mut self) -> usize {
        let confirmed = self.flow.confirmed();
        self.window.room(confirmed)
    }

    /// Queues the next frame. The caller has asked for room.
    pub(crate) fn publish(&mut self, frame: T) {
        self.window.push(frame);
        self.trim();
    }

    /// Lets go what is beyond the window's capacity and needed no more.
    fn trim(&mut self) {
        let confirmed = self.flow.confirmed();
        while let Some(old) = self.window.trim(confirmed) {
            self.freed.push(old);
        }
    }

    /// Gives back frames that are no longer retained.
    pub(crate) fn take_freed(&mut self, out: &mut Vec<T>) {
        out.append(&mut self.freed);
    }

    pub(crate) fn handle_sent(&mut self, sequence: Sequence, frame: T) {
        if let Some(frame) = self.window.put_back(sequence, frame) {
            self.freed.push(frame);
        }
        self.trim();
    }

    /// This node is reached elsewhere now.
    /// Requirements: `R-MOVE-1`.
    pub(crate) fn readdress(&mut self, now: Instant) {
        self.announce = Some(AnnounceTimer {
            due: now,
            interval: READDRESS_INTERVAL,
            more: READDRESS_ANNOUNCES,
        });
    }

    /// Starts to close: what was published is sent, and retained until subscribers have it or
    /// [`PublisherConfig::linger`] is over. Then [`PublisherEvent::Closed`].
    pub(crate) fn close(&mut self, now: Instant) {
        if self.closing.is_none() {
            let deadline = now + self.config.linger;
            self.closing = Some(Closing { deadline, heartbeats: 0, done: false });
            self.heartbeat.interval = self.config.heartbeat_min;
            self.heartbeat.due = now;
        }
    }

    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        self.stats.bytes += bytes as u64;
    }

    pub(crate) fn poll_event(&mut self) -> Option<PublisherEvent> {
        self.events.pop_front()
    }

    /// When [`PublishStream::handle_timeout`] or [`PublishStream::poll_transmit`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed() {
            return None;
        }
        let closing = self.closing.map(|c| c.deadline);
        [
            Some(self.heartbeat.due),
            self.announce.map(|timer| timer.due),
            self.repairs.next_due(&self.window),
            self.flow.table.next_expiry(),
            closing,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether frames wait that flow control does not let go.
    fn is_held(&mut self) -> bool {
        if self.window.queued() > 0 {
            self.window.head() >= self.flow.limit()
        } else {
            self.room() == 0
        }
    }

    /// Why the publisher stands still, if it does.
    pub(crate) fn hold(&mut self) -> Option<Hold> {
        let at = if self.window.queued() > 0 { self.window.head() } else { self.window.end() };
        self.flow.hold(at)
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = (NodeId, &Receiver)> {
        self.flow.table.receivers().iter().map(|(node, r)| (*node, r))
    }

    pub(crate) fn receiver(&self, node: NodeId) -> Option<&Receiver> {
        self.flow.table.receivers().get(&node)
    }

    /// New frames sent.
    pub(crate) fn frames(&self) -> u64 {
        self.stats.frames
    }

    pub(crate) fn stats(&mut self) -> PublisherStats {
        let head = self.window.head();
        PublisherStats {
            receivers: self.flow.table.count(),
            rtt: self.rtt.get(),
            confirmed: self.flow.confirmed().min(head),
            head,
            retained: self.window.len(),
            ..self.stats.clone()
        }
    }

    /// Whether everything published has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.window.queued() == 0
    }

    fn is_closed(&self) -> bool {
        self.closing.is_some_and(|c| c.done)
    }

    /// Live subscribers that want repairs, or as many as are expected.
    fn group_size(&self) -> u32 {
        u32::try_from(self.flow.table.reliable()).unwrap_or(u32::MAX).max(self.expected)
    }
}

/// A clock that wraps after 71 minutes: enough for a round trip.
fn micros(now: Instant) -> u32 {
    (now.as_micros() & u64::from(u32::MAX)) as u32
}
