//! The truth about loss, as the fabric knows it: which frames did not reach a subscriber.

use std::collections::BTreeSet;
use std::ops::Range;

use qcast_proto::addr::{Sequence, SessionId, StreamId};
use qcast_proto::wire::frame::{Frame, FrameKind};

use crate::device::sim::{Outcome, Passing};

type Name = (SessionId, StreamId, Sequence);

/// Frames of data that were lost on the way to at least one subscriber, each once.
#[derive(Debug, Default)]
pub(super) struct Losses {
    frames: BTreeSet<Name>,
    /// The frame that was added last: losses of one frame come one after the other.
    last: Option<Name>,
    /// Datagrams with frames of data that did not arrive, counted at each subscriber.
    pub(super) datagrams: u64,
    /// Of those, datagrams that arrived while no receive was posted.
    pub(super) unposted: u64,
}

impl Losses {
    /// Frames lost, each once.
    pub(super) fn distinct(&self) -> u64 {
        self.frames.len() as u64
    }

    /// A datagram did not arrive. It counts if it carries data, has the group's key, and was for a
    /// subscriber.
    pub(super) fn note(
        &mut self,
        passing: &Passing<'_>,
        outcome: Outcome,
        qkey: u32,
        subscribers: &Range<usize>,
    ) {
        if passing.qkey != qkey || !subscribers.contains(&passing.to) {
            return;
        }
        let Ok(frame) = Frame::new_checked(passing.payload) else { return };
        let header = frame.header();
        if !matches!(header.kind, FrameKind::Data | FrameKind::Fragment) {
            return;
        }
        self.datagrams += 1;
        self.unposted += u64::from(outcome == Outcome::NoBuffer);
        let name = (header.session, header.stream, header.sequence);
        if self.last != Some(name) {
            self.last = Some(name);
            self.frames.insert(name);
        }
    }
}
