//! What the medium does to datagrams.

use std::time::Duration;

use qcast_proto::addr::Sequence;
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::FrameKind;

/// The faults of the medium, the same for all links. Rules add to them for some.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    /// Every datagram takes this long.
    pub(crate) latency: Duration,
    /// And up to this much longer: with more than the spacing of frames it reorders them.
    pub(crate) jitter: Duration,
    /// Chance that a receiver loses a datagram, each on its own.
    pub(crate) loss: f64,
    /// Losses that come together.
    pub(crate) burst: Option<Burst>,
    /// Chance that a datagram is held back by [`Fabric::reorder_by`].
    pub(crate) reorder: f64,
    /// See [`Fabric::reorder`].
    pub(crate) reorder_by: Duration,
    /// Copies of every datagram: 1 is the honest fabric.
    pub(crate) copies: u32,
    /// Chance that a bit flips: the ICRC shows it, and the datagram is dropped.
    pub(crate) corruption: f64,
    /// Whether one's own multicast comes back.
    pub(crate) echo: bool,
    /// How long a device holds a frame that it sends: the line rate.
    pub(crate) per_frame: Duration,
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(20),
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            reorder_by: Duration::from_micros(50),
            copies: 1,
            corruption: 0.0,
            echo: true,
            per_frame: Duration::from_micros(1),
        }
    }
}

impl Fabric {
    /// An honest fabric that loses this share of datagrams.
    pub(crate) fn losing(loss: f64) -> Self {
        Self { loss, ..Self::default() }
    }
}

/// A two-state loss process: while it is bad, everything is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    /// Chance that a datagram starts a burst.
    pub(crate) enter: f64,
    /// Chance that a datagram ends it.
    pub(crate) leave: f64,
}

/// A datagram on its way to one receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) now: Instant,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) multicast: bool,
    pub(crate) kind: FrameKind,
    pub(crate) sequence: Sequence,
    /// Whether a frame of a stream is sent again.
    pub(crate) repair: bool,
}

impl Flight {
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.kind, FrameKind::Data | FrameKind::Fragment)
    }

    /// The first sending of the stream's frame `n`.
    pub(crate) fn is_first_of(&self, n: u64) -> bool {
        self.is_data() && !self.repair && self.sequence == Sequence(n)
    }
}

/// Says whether a datagram is lost.
pub(crate) type Rule = Box<dyn FnMut(&Flight) -> bool>;

/// What was sent and lost, over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: [u64; KINDS],
    pub(crate) delivered: [u64; KINDS],
    pub(crate) lost: [u64; KINDS],
    /// Frames of streams that were sent again.
    pub(crate) repairs: u64,
    pub(crate) multicast_repairs: u64,
    /// Datagrams that were late by the fabric's doing.
    pub(crate) late: u64,
    /// Data that a receiver did not get at first, by the fabric's doing.
    pub(crate) data_lost_first: u64,
}

const KINDS: usize = 10;

impl Traffic {
    pub(crate) fn sent(&self, kind: FrameKind) -> u64 {
        self.sent[kind as usize]
    }

    pub(crate) fn delivered(&self, kind: FrameKind) -> u64 {
        self.delivered[kind as usize]
    }

    pub(crate) fn lost(&self, kind: FrameKind) -> u64 {
        self.lost[kind as usize]
    }

    pub(crate) fn data_lost(&self) -> u64 {
        self.lost(FrameKind::Data) + self.lost(FrameKind::Fragment)
    }
}
