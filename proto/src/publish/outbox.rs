//! Messages into frames: batching, fragmentation, sequence numbers.
//!
//! The outbox is the application's side of a stream. It fills one open frame with small messages and
//! cuts large ones into fragments; a frame that is full, or that somebody seals, waits to be taken.
//! When to seal a frame that is not full is the runtime's decision (an idle link: at once).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::addr::Sequence;
use crate::buf::TxFrame;
use crate::wire::frame::{
    FRAGMENT_HEADER, FRAME_HEADER, FragmentHeader, FrameHeader, FrameKind, MAX_MESSAGE,
    MESSAGE_HEADER,
};

/// The application's side of a stream.
#[derive(Debug)]
pub struct Outbox<T> {
    header: FrameHeader,
    capacity: usize,
    free: Vec<T>,
    open: Option<T>,
    filled: usize,
    /// Bytes that were claimed and not committed.
    claimed: Option<usize>,
    sealed: VecDeque<T>,
    large: Option<Large>,
    messages: u64,
}

/// A message that is being cut into fragments as frames come free.
#[derive(Debug)]
struct Large {
    bytes: Vec<u8>,
    offset: usize,
    index: u32,
}

impl<T: TxFrame> Outbox<T> {
    /// An outbox for the stream that `header` names, with `frames` of `capacity` bytes each.
    pub fn new(header: FrameHeader, capacity: usize, frames: Vec<T>) -> Self {
        Self {
            header: FrameHeader { sequence: Sequence(0), ..header },
            capacity,
            sealed: VecDeque::with_capacity(frames.len()),
            free: frames,
            open: None,
            filled: 0,
            claimed: None,
            large: None,
            messages: 0,
        }
    }

    /// The greatest message that travels in a frame with others, in bytes; a larger one is cut.
    pub fn max_whole(&self) -> usize {
        self.capacity - FRAME_HEADER - MESSAGE_HEADER
    }

    /// Takes a message.
    ///
    /// # Errors
    /// [`PushError`]; the message was not taken.
    pub fn push(&mut self, message: &[u8]) -> Result<(), PushError> {
        if message.len() > self.max_whole() {
            return self.push_large(message);
        }
        let at = self.reserve(message.len())?;
        let frame = self.open.as_mut().expect("reserve opened a frame");
        frame.room_mut()[at..at + message.len()].copy_from_slice(message);
        self.claimed = Some(message.len());
        self.commit(message.len());
        Ok(())
    }

    /// Room for a message of `len` bytes in place; [`Outbox::commit`] sends it.
    ///
    /// # Errors
    /// [`PushError`]; a message that would have to be cut cannot be claimed.
    pub fn claim(&mut self, len: usize) -> Result<&mut [u8], PushError> {
        if len > self.max_whole() {
            return Err(PushError::TooLarge { len, max: self.max_whole() });
        }
        let at = self.reserve(len)?;
        self.claimed = Some(len);
        let frame = self.open.as_mut().expect("reserve opened a frame");
        Ok(&mut frame.room_mut()[at..at + len])
    }

    /// Sends the `len` bytes that were claimed last, or fewer of them; never more.
    pub fn commit(&mut self, len: usize) {
        let (Some(frame), Some(claimed)) = (self.open.as_mut(), self.claimed.take()) else {
            return;
        };
        let len = len.min(claimed);
        let at = self.filled;
        let prefix = u16::try_from(len).expect("a whole message is below the path MTU");
        frame.room_mut()[at..at + MESSAGE_HEADER].copy_from_slice(&prefix.to_be_bytes());
        self.filled = at + MESSAGE_HEADER + len;
        self.messages += 1;
        if self.filled + MESSAGE_HEADER >= self.capacity {
            self.seal();
        }
    }

    /// The `len` bytes that were claimed last.
    pub fn claimed(&self, len: usize) -> Option<&[u8]> {
        let at = self.filled + MESSAGE_HEADER;
        // The frame's length is set when it is sealed; until then its room is what there is.
        self.open.as_ref()?.room().get(at..at + len)
    }

    /// The `len` bytes that were claimed last, to be written.
    pub fn claimed_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.filled + MESSAGE_HEADER;
        self.open.as_mut()?.room_mut().get_mut(at..at + len)
    }

    /// Frames that are free to be filled.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Closes the open frame, so that it can be taken though it is not full.
    pub fn seal(&mut self) {
        self.claimed = None;
        if self.filled == FRAME_HEADER {
            return;
        }
        if let Some(frame) = self.open.take() {
            let filled = self.filled;
            self.filled = 0;
            self.push_sealed(frame, FrameKind::Data, filled);
        }
    }

    /// The oldest frame that is ready to be sent.
    pub fn take(&mut self) -> Option<T> {
        self.sealed.pop_front()
    }

    /// Gives frames back that are no longer retained.
    pub fn refill(&mut self, frames: impl IntoIterator<Item = T>) {
        self.free.extend(frames);
        self.cut();
    }

    /// Whether a message waits in the open frame.
    pub fn is_open(&self) -> bool {
        self.open.is_some() && self.filled > FRAME_HEADER
    }

    /// Frames that are ready to be taken.
    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    /// Whether nothing waits here: no open frame, no sealed one, no large message.
    pub fn is_empty(&self) -> bool {
        !self.is_open() && self.sealed.is_empty() && self.large.is_none()
    }

    /// Messages taken so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The sequence of the next frame to be sealed.
    pub fn next(&self) -> Sequence {
        self.header.sequence
    }

    /// Finds room for a message of `len` bytes and says where its bytes begin.
    fn reserve(&mut self, len: usize) -> Result<usize, PushError> {
        if self.large.is_some() {
            return Err(PushError::Full);
        }
        if self.open.is_some() && self.filled + MESSAGE_HEADER + len > self.capacity {
            self.seal();
        }
        if self.open.is_none() {
            self.open = Some(self.free.pop().ok_or(PushError::Full)?);
            self.filled = FRAME_HEADER;
        }
        Ok(self.filled + MESSAGE_HEADER)
    }

    fn push_large(&mut self, message: &[u8]) -> Result<(), PushError> {
        if message.len() > MAX_MESSAGE {
            return Err(PushError::TooLarge { len: message.len(), max: MAX_MESSAGE });
        }
        if self.large.is_some() || self.free.is_empty() {
            return Err(PushError::Full);
        }
        self.seal();
        self.large = Some(Large { bytes: message.into(), offset: 0, index: 0 });
        self.messages += 1;
        self.cut();
        Ok(())
    }

    /// Cuts the large message into as many fragments as there are free frames.
    /// Requirements: `R-FRAG-1`.
    fn cut(&mut self) {
        let Some(mut large) = self.large.take() else { return };
        // Equal pieces: a run of equal datagrams costs a device, or a system call, much less than large
        // ones with a small one between them.
        let most = self.capacity - FRAME_HEADER - FRAGMENT_HEADER;
        let piece = large.bytes.len().div_ceil(large.bytes.len().div_ceil(most));
        while large.offset < large.bytes.len() {
            let Some(mut frame) = self.free.pop() else {
                self.large = Some(large);
                return;
            };
            let end = large.bytes.len().min(large.offset + piece);
            let header = FragmentHeader {
                message_len: narrow(large.bytes.len()),
                offset: narrow(large.offset),
                index: large.index,
            };
            let bytes = &large.bytes[large.offset..end];
            let body = &mut frame.room_mut()[FRAME_HEADER..];
            header.emit(body);
            body[FRAGMENT_HEADER..FRAGMENT_HEADER + bytes.len()].copy_from_slice(bytes);
            let len = FRAME_HEADER + FRAGMENT_HEADER + bytes.len();
            self.push_sealed(frame, FrameKind::Fragment, len);
            large.offset = end;
            large.index += 1;
        }
    }

    /// Requirements: `R-PUBLISH-1`.
    fn push_sealed(&mut self, mut frame: T, kind: FrameKind, len: usize) {
        FrameHeader { kind, ..self.header }.emit(frame.room_mut());
        frame.set_len(len);
        self.header.sequence = self.header.sequence.next();
        self.sealed.push_back(frame);
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// No frame is free until subscribers have confirmed some.
    #[error("all frames wait to be sent or confirmed")]
    Full,
    /// The message is larger than can be sent this way.
    #[error("a message of {len} bytes is too large; {max} is the most")]
    TooLarge {
        /// The message in bytes.
        len: usize,
        /// The most in bytes.
        max: usize,
    },
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("a message is at most MAX_MESSAGE")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Domain, GroupTag, SessionId, StreamId};
    use crate::buf::HeapFrame;
    use crate::wire::frame::Frame;
    use std::vec;

    fn outbox(frames: usize) -> Outbox<HeapFrame> {
        let header = FrameHeader {
            kind: FrameKind::Data,
            domain: Domain(0),
            group: GroupTag(1),
            stream: StreamId(0),
            session: SessionId(2),
            sequence: Sequence(0),
        };
        Outbox::new(header, 256, (0..frames).map(|_| HeapFrame::new(256)).collect())
    }

    /// R-PUBLISH-1.
    #[test]
    fn small_messages_share_a_frame() {
        let mut o = outbox(2);
        for m in [&b"a"[..], b"", b"ccc"] {
            o.push(m).unwrap();
        }
        assert_eq!(o.sealed(), 0);
        o.seal();
        let frame = o.take().unwrap();
        let read = Frame::new_checked(frame.bytes()).unwrap();
        assert_eq!(read.messages().collect::<Vec<_>>(), [&b"a"[..], b"", b"ccc"]);
        assert!(o.is_empty());
        o.seal();
        assert!(o.take().is_none());
    }

    #[test]
    fn a_full_frame_seals_itself_and_a_full_outbox_says_so() {
        let mut o = outbox(2);
        let whole = vec![7; o.max_whole()];
        o.push(&whole).unwrap();
        o.push(&whole).unwrap();
        assert_eq!(o.push(b"x"), Err(PushError::Full));
        assert_eq!(o.sealed(), 2);
        let first = o.take().unwrap();
        o.refill([first]);
        o.push(b"x").unwrap();
        assert_eq!(o.messages(), 3);
    }

    /// R-FRAG-1.
    #[test]
    fn a_large_message_is_cut_as_frames_come_free() {
        let mut o = outbox(3);
        let message: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
        o.push(b"before").unwrap();
        o.push(&message).unwrap();
        assert_eq!(o.push(b"after"), Err(PushError::Full));
        let mut whole = Vec::new();
        let mut frames = 0;
        while let Some(frame) = o.take() {
            let read = Frame::new_checked(frame.bytes()).unwrap();
            assert_eq!(read.header().sequence, Sequence(frames));
            if let Some((h, piece)) = read.fragment() {
                assert_eq!(h.offset as usize, whole.len());
                assert_eq!(u64::from(h.index) + 1, frames);
                whole.extend_from_slice(piece);
                assert_eq!(h.is_last(piece.len()), whole.len() == message.len());
            }
            frames += 1;
            o.refill([frame]);
        }
        assert_eq!(whole, message);
        o.push(b"after").unwrap();
    }

    #[test]
    fn a_claim_can_be_shortened() {
        let mut o = outbox(1);
        o.claim(100).unwrap()[..2].copy_from_slice(b"ok");
        o.commit(2);
        o.seal();
        let frame = o.take().unwrap();
        let read = Frame::new_checked(frame.bytes()).unwrap();
        assert_eq!(read.messages().collect::<Vec<_>>(), [b"ok"]);
        o.commit(5);
        o.refill([frame]);
        o.commit(5);
        assert!(!o.is_open(), "nothing was claimed");
        o.claim(3).unwrap().copy_from_slice(b"abc");
        o.commit(300);
        o.seal();
        assert_eq!(o.take().unwrap().bytes().len(), FRAME_HEADER + MESSAGE_HEADER + 3);
        assert!(matches!(o.claim(300), Err(PushError::TooLarge { max: 222, .. })));
        assert!(matches!(o.push(&vec![0; MAX_MESSAGE + 1]), Err(PushError::TooLarge { .. })));
    }
}
