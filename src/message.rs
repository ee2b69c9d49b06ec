//! Messages as an application reads and keeps them.

use std::ops::{Deref, Range};
use std::sync::Arc;

use qcast_proto::addr::Sequence;
use qcast_proto::buf::RxFrame;
use qcast_proto::subscribe::{Reliability, StreamKey};
use qcast_proto::wire::frame::{FRAME_HEADER, MESSAGE_HEADER, Messages};

use crate::engine::lease::Lease;
use crate::subscriber::Incoming;

/// A message: its bytes, for as long as it is kept. It costs no copy; many that are kept at once are
/// copied out by the node, so that its receive queue does not run dry. It outlives its subscriber and
/// its node.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Bytes,
    key: StreamKey,
    sequence: Sequence,
}

#[derive(Clone, Debug)]
enum Bytes {
    Frame(Lease, Range<usize>),
    Whole(Arc<Vec<u8>>),
}

impl Message {
    /// A message that was put together out of many frames.
    pub(crate) fn whole(key: StreamKey, sequence: Sequence, message: Vec<u8>) -> Self {
        Self { bytes: Bytes::Whole(Arc::new(message)), key, sequence }
    }

    /// The stream that the message is of; [`Subscriber::stream_info`](crate::Subscriber::stream_info) tells more of it.
    pub fn key(&self) -> StreamKey {
        self.key
    }

    /// The frame that it came in.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Frame(frame, range) => &frame.bytes()[range.clone()],
            Bytes::Whole(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The frame that messages are being read from.
#[derive(Debug)]
pub(crate) struct Current {
    key: StreamKey,
    sequence: Sequence,
    frame: Lease,
    at: usize,
}

impl Current {
    /// A frame to be read: from its first message on, or only its last if no other is wanted.
    pub(crate) fn new(
        key: StreamKey,
        sequence: Sequence,
        frame: Lease,
        reliability: Reliability,
    ) -> Self {
        let mut at = FRAME_HEADER;
        if reliability == Reliability::Latest {
            let mut next = at;
            for message in Messages::of_checked_at(frame.bytes(), at) {
                at = next;
                next += MESSAGE_HEADER + message.len();
            }
        }
        Self { key, sequence, frame, at }
    }

    /// The next message, to be kept.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        let bytes = self.frame.bytes();
        let len = Messages::of_checked_at(bytes, self.at).next()?.len();
        let start = self.at + MESSAGE_HEADER;
        self.at = start + len;
        let bytes = Bytes::Frame(self.frame.clone(), start..self.at);
        Some(Message { bytes, key: self.key, sequence: self.sequence })
    }

    /// Shows up to `limit` messages where they lie. Says how many.
    pub(crate) fn hand_over(&mut self, limit: usize, on: &mut impl FnMut(Incoming<'_>)) -> usize {
        let mut handed = 0;
        for bytes in Messages::of_checked_at(self.frame.bytes(), self.at).take(limit) {
            on(Incoming::Message { bytes, key: self.key, sequence: self.sequence });
            self.at += MESSAGE_HEADER + bytes.len();
            handed += 1;
        }
        handed
    }

    /// Whether there is no more in it.
    pub(crate) fn is_read(&self) -> bool {
        self.at + MESSAGE_HEADER > self.frame.bytes().len()
    }
}
