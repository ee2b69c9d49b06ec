//! qcast's own frame: what one datagram's payload holds.
//!
//! ```text
//!  0       2       3       4       5       6         8             12            16
//!  | magic | vers. | kind  | flags | zero  | domain  | group tag   | stream      |
//!  16                              24                              32
//!  | session                       | sequence                      | body …
//! ```
//! All numbers are in network order. A [`FrameKind::Data`] body is a run of messages, each a 16-bit
//! length and its bytes; a [`FrameKind::Fragment`] body is one piece of a larger message behind a
//! [`FragmentHeader`]; every other body is a [`control`](super::control) body.
//! Requirements: `R-FRAME-1` to `R-FRAME-4` of `docs/protocol.md`.

use crate::addr::{Domain, GroupTag, Sequence, SessionId, StreamId};

/// Bytes of the header of every frame.
pub const FRAME_HEADER: usize = 32;

/// Bytes before each message in a data frame: its length.
pub const MESSAGE_HEADER: usize = 2;

/// Bytes between the frame header and the piece in a fragment frame.
pub const FRAGMENT_HEADER: usize = 12;

/// The greatest message in bytes. It bounds what a receiver sets aside for one reassembly.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The smallest path MTU that qcast runs on: the largest control body and its header fit.
pub const MIN_MTU: usize = 512;

/// The first two bytes of every frame, "qc": a datagram of another program is told apart at once.
pub const MAGIC: [u8; 2] = *b"qc";

/// The version of the frame format.
pub const VERSION: u8 = 1;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FrameKind {
    /// Messages.
    Data = 1,
    /// A piece of a message that is larger than a frame.
    Fragment = 2,
    /// A publisher's sign of life: how far it is, and what it retains.
    Heartbeat = 3,
    /// A publisher's description of a stream.
    Announce = 4,
    /// A subscriber's question for a description.
    Query = 5,
    /// A subscriber's progress.
    Status = 6,
    /// A subscriber's list of what it lacks.
    Nak = 7,
    /// A publisher's answer that a frame is no longer retained.
    Gone = 8,
    /// A publisher's word to a subscriber that stayed behind: it is no longer waited for.
    Released = 9,
    /// A member's sign of life.
    Beacon = 10,
    /// The question whether a member lives.
    Probe = 11,
    /// Some of the members that the sender sees.
    Roster = 12,
    /// The sums of the members that the sender sees.
    Digest = 13,
    /// A node's word about the groups that it is in.
    GroupNotice = 16,
    /// A node's services.
    Service = 17,
    /// A question for services.
    ServiceQuery = 18,
}

impl FrameKind {
    /// The kind with this number.
    pub const fn from_number(n: u8) -> Option<Self> {
        Some(match n {
            1 => Self::Data,
            2 => Self::Fragment,
            3 => Self::Heartbeat,
            4 => Self::Announce,
            5 => Self::Query,
            6 => Self::Status,
            7 => Self::Nak,
            8 => Self::Gone,
            9 => Self::Released,
            10 => Self::Beacon,
            11 => Self::Probe,
            12 => Self::Roster,
            13 => Self::Digest,
            16 => Self::GroupNotice,
            17 => Self::Service,
            18 => Self::ServiceQuery,
            _ => return None,
        })
    }

    /// The kind's name, as `qcast decode` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Fragment => "fragment",
            Self::Heartbeat => "heartbeat",
            Self::Announce => "announce",
            Self::Query => "query",
            Self::Status => "status",
            Self::Nak => "nak",
            Self::Gone => "gone",
            Self::Released => "released",
            Self::Beacon => "beacon",
            Self::Probe => "probe",
            Self::Roster => "roster",
            Self::Digest => "digest",
            Self::GroupNotice => "group-notice",
            Self::Service => "service",
            Self::ServiceQuery => "service-query",
        }
    }
}

/// The header of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What follows.
    pub kind: FrameKind,
    /// The deployment that the frame belongs to.
    pub domain: Domain,
    /// A check value of the group's name.
    pub group: GroupTag,
    /// The stream of the session.
    pub stream: StreamId,
    /// The publisher's life; in frames to a publisher, the one that they are about.
    pub session: SessionId,
    /// The frame's place in the stream (data and fragments), else zero.
    pub sequence: Sequence,
}

impl FrameHeader {
    /// Writes the header into the first [`FRAME_HEADER`] bytes of `out`.
    ///
    /// # Panics
    /// `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) {
        let out: &mut [u8; FRAME_HEADER] =
            out.first_chunk_mut().expect("the caller gives room for a header");
        out[0..2].copy_from_slice(&MAGIC);
        out[2] = VERSION;
        out[3] = self.kind as u8;
        out[4..6].fill(0);
        out[6..8].copy_from_slice(&self.domain.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.group.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.stream.0.to_be_bytes());
        out[16..24].copy_from_slice(&self.session.0.to_be_bytes());
        out[24..32].copy_from_slice(&self.sequence.0.to_be_bytes());
    }
}

/// A received frame: checked once, then read without failing.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: FrameHeader,
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks the bytes of a frame: magic, version, kind, and that a data or fragment body is whole.
    /// The bodies of control frames are checked by their decoder.
    ///
    /// # Errors
    /// [`FrameError`] says what is wrong. Nothing was kept.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let Some((h, body)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
            return Err(if bytes.len() >= 2 && bytes[..2] != MAGIC {
                FrameError::Foreign
            } else {
                FrameError::Short(bytes.len())
            });
        };
        if h[..2] != MAGIC {
            return Err(FrameError::Foreign);
        }
        if h[2] != VERSION {
            return Err(FrameError::Version(h[2]));
        }
        let kind = FrameKind::from_number(h[3]).ok_or(FrameError::Kind(h[3]))?;
        // Flags are for later versions: a receiver of this one ignores them (R-FRAME-3).
        let header = FrameHeader {
            kind,
            domain: Domain(u16::from_be_bytes([h[6], h[7]])),
            group: GroupTag(u32::from_be_bytes([h[8], h[9], h[10], h[11]])),
            stream: StreamId(u32::from_be_bytes([h[12], h[13], h[14], h[15]])),
            session: SessionId(be64(h, 16)),
            sequence: Sequence(be64(h, 24)),
        };
        match kind {
            FrameKind::Data => check_messages(body)?,
            FrameKind::Fragment => FragmentHeader::new_checked(body).map(|_| ())?,
            _ => {}
        }
        Ok(Self { header, body })
    }

    /// The header.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// What follows the header.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The messages of a data frame; none for other kinds.
    pub fn messages(&self) -> Messages<'a> {
        Messages { rest: if self.header.kind == FrameKind::Data { self.body } else { &[] } }
    }

    /// The piece of a fragment frame.
    pub fn fragment(&self) -> Option<(FragmentHeader, &'a [u8])> {
        if self.header.kind != FrameKind::Fragment {
            return None;
        }
        let header = FragmentHeader::new_checked(self.body).ok()?;
        Some((header, &self.body[FRAGMENT_HEADER..]))
    }
}

/// Where a fragment's piece belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Bytes of the whole message.
    pub message_len: u32,
    /// Bytes of the message before this piece.
    pub offset: u32,
    /// Fragments of the message before this one: the message began `index` frames earlier.
    pub index: u32,
}

impl FragmentHeader {
    /// Writes the header into the first [`FRAGMENT_HEADER`] bytes of `out`.
    ///
    /// # Panics
    /// `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) {
        out[0..4].copy_from_slice(&self.message_len.to_be_bytes());
        out[4..8].copy_from_slice(&self.offset.to_be_bytes());
        out[8..12].copy_from_slice(&self.index.to_be_bytes());
    }

    /// Reads the header of a fragment body, and checks that the piece lies within its message.
    ///
    /// # Errors
    /// The body is short, or its numbers contradict each other.
    /// Requirements: `R-FRAG-2`.
    pub fn new_checked(body: &[u8]) -> Result<Self, FrameError> {
        let Some((h, piece)) = body.split_first_chunk::<FRAGMENT_HEADER>() else {
            return Err(FrameError::Short(FRAME_HEADER + body.len()));
        };
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let header = Self { message_len: word(0), offset: word(4), index: word(8) };
        let end = u64::from(header.offset) + piece.len() as u64;
        let sound = !piece.is_empty()
            && header.message_len as usize <= MAX_MESSAGE
            && end <= u64::from(header.message_len)
            // Every piece before this one held at least a byte.
            && header.index <= header.offset
            && (header.index == 0) == (header.offset == 0);
        if sound { Ok(header) } else { Err(FrameError::Fragment) }
    }

    /// Whether a piece of `len` bytes is the last of its message.
    pub fn is_last(&self, len: usize) -> bool {
        self.offset as usize + len == self.message_len as usize
    }
}

/// The messages of a data frame, in order.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages of a frame that has been checked before.
    ///
    /// Bytes that were not checked give fewer messages, never a panic.
    pub fn of_checked(frame: &'a [u8]) -> Self {
        Self::of_checked_at(frame, FRAME_HEADER)
    }

    /// Those of them from byte `at` of the frame on, where a message begins.
    pub fn of_checked_at(frame: &'a [u8], at: usize) -> Self {
        Self { rest: frame.get(at..).unwrap_or(&[]) }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.rest.split_first_chunk::<MESSAGE_HEADER>()?;
        let (message, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        self.rest = rest;
        Some(message)
    }
}

/// The sequence of a frame that has been checked, or written, before.
///
/// # Panics
/// The frame is shorter than its header.
pub fn sequence_of_checked(frame: &[u8]) -> Sequence {
    let header = frame.first_chunk().expect("a checked frame has a whole header");
    Sequence(be64(header, 24))
}

/// The piece of a fragment frame that has been checked before; `None` for every other frame.
pub fn fragment_of_checked(frame: &[u8]) -> Option<(FragmentHeader, &[u8])> {
    if frame.get(3).copied() != Some(FrameKind::Fragment as u8) {
        return None;
    }
    let body = frame.get(FRAME_HEADER..)?;
    Some((FragmentHeader::new_checked(body).ok()?, &body[FRAGMENT_HEADER..]))
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It does not begin with [`MAGIC`]: another program's datagram.
    #[error("not a qcast frame")]
    Foreign,
    /// It is cut short.
    #[error("cut short: {0} bytes")]
    Short(usize),
    /// Another version of the format.
    #[error("frame version {0}, and this is version {VERSION}")]
    Version(u8),
    /// No such kind.
    #[error("no frame kind {0}")]
    Kind(u8),
    /// A message's length leads beyond the frame, or the frame holds none.
    #[error("the messages do not fill the frame")]
    Messages,
    /// A fragment's numbers contradict each other.
    #[error("the fragment's numbers contradict each other")]
    Fragment,
    /// A control body cannot be decoded, or bytes follow it.
    #[error("the control body cannot be decoded")]
    Body,
}

fn check_messages(mut body: &[u8]) -> Result<(), FrameError> {
    if body.is_empty() {
        return Err(FrameError::Messages);
    }
    while let Some((len, rest)) = body.split_first_chunk::<MESSAGE_HEADER>() {
        body = rest.get(usize::from(u16::from_be_bytes(*len))..).ok_or(FrameError::Messages)?;
    }
    if body.is_empty() { Ok(()) } else { Err(FrameError::Messages) }
}

fn be64(h: &[u8; FRAME_HEADER], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&h[at..at + 8]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use std::vec;

    const HEADER: FrameHeader = FrameHeader {
        kind: FrameKind::Data,
        domain: Domain(0x0102),
        group: GroupTag(0x0304_0506),
        stream: StreamId(7),
        session: SessionId(0x1122_3344_5566_7788),
        sequence: Sequence(0x99),
    };

    fn golden() -> Vec<u8> {
        vec![
            b'q', b'c', 1, 1, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 7, 0x11, 0x22, 0x33, 0x44, 0x55,
            0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0, 0x99, 0, 2, b'h', b'i', 0, 0, 0, 1, b'x',
        ]
    }

    /// R-FRAME-1.
    #[test]
    fn a_frame_reads_and_writes_its_golden_bytes() {
        let bytes = golden();
        let frame = Frame::new_checked(&bytes).unwrap();
        assert_eq!(*frame.header(), HEADER);
        assert_eq!(frame.messages().collect::<Vec<_>>(), [&b"hi"[..], b"", b"x"]);
        let mut out = [0xa5; FRAME_HEADER];
        HEADER.emit(&mut out);
        assert_eq!(out, bytes[..FRAME_HEADER]);
    }

    /// R-FRAME-4.
    #[test]
    fn every_prefix_is_refused_or_holds_fewer_messages() {
        let bytes = golden();
        for n in 0..bytes.len() {
            if let Ok(frame) = Frame::new_checked(&bytes[..n]) {
                assert!(frame.messages().count() < 3);
            }
        }
    }

    /// R-FRAME-2, R-FRAME-4.
    #[test]
    fn bad_headers_are_told_apart() {
        let change = |at: usize, to: u8| {
            let mut bytes = golden();
            bytes[at] = to;
            Frame::new_checked(&bytes).unwrap_err()
        };
        assert_eq!(change(0, b'x'), FrameError::Foreign);
        assert_eq!(change(2, 9), FrameError::Version(9));
        assert_eq!(change(3, 0), FrameError::Kind(0));
        assert_eq!(change(33, 200), FrameError::Messages);
        assert_eq!(Frame::new_checked(b"qc").unwrap_err(), FrameError::Short(2));
        assert_eq!(Frame::new_checked(b"other").unwrap_err(), FrameError::Foreign);
    }

    /// R-FRAG-2.
    #[test]
    fn fragments_must_lie_within_their_message() {
        let body = |h: FragmentHeader, piece: usize| {
            let mut out = vec![0xa5; FRAGMENT_HEADER + piece];
            h.emit(&mut out);
            FragmentHeader::new_checked(&out)
        };
        let good = FragmentHeader { message_len: 1000, offset: 900, index: 9 };
        assert_eq!(body(good, 100), Ok(good));
        assert!(good.is_last(100));
        for bad in [
            (good, 101),
            (good, 0),
            (FragmentHeader { message_len: u32::MAX, ..good }, 100),
            (FragmentHeader { offset: u32::MAX, ..good }, 100),
            (FragmentHeader { index: 901, ..good }, 100),
            (FragmentHeader { offset: 0, ..good }, 100),
        ] {
            assert_eq!(body(bad.0, bad.1), Err(FrameError::Fragment), "{bad:?}");
        }
    }
}
