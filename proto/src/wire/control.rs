//! Control bodies: what publishers and subscribers tell each other beside the messages.
//!
//! Encoded by bincode 2.0.1 in one configuration with a limit. That crate's maintenance has ended, so
//! it is used here alone and can be replaced in this file. Decoding never sets memory aside for a
//! length that was only claimed, and bytes after the body are an error.
//! Requirements: `R-CONTROL-1` to `R-CONTROL-4`.

use alloc::string::String;
use alloc::vec::Vec;
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::{Decode, Encode};

use super::frame::{FRAME_HEADER, FrameError, MIN_MTU};
use crate::addr::{Gid, PeerAddr, Qpn};

/// The greatest control body in bytes: it fits the smallest path MTU.
pub const MAX_BODY: usize = MIN_MTU - FRAME_HEADER;

/// The longest node, topic or tag name in bytes.
pub const MAX_NAME: usize = 96;

/// The most ranges in one NAK; what does not fit is asked for with the next.
pub const MAX_RANGES: usize = 44;

/// What a body may claim while it is read: a number counts there with its size in memory, which for one of 16
/// bytes can be as little as one on the wire. So nothing that fits is refused, and no more than this is ever set
/// aside for what has not come.
const MAX_CLAIM: usize = 16 * MAX_BODY;

type Config = Configuration<LittleEndian, Varint, Limit<MAX_CLAIM>>;

const CONFIG: Config = bincode::config::standard().with_limit::<MAX_CLAIM>();

/// A publisher's sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Heartbeat {
    /// The sequence that the next new frame will have.
    pub next: u64,
    /// The oldest frame that is still retained.
    pub oldest: u64,
    /// The publisher's clock in microseconds; a status echoes it. Means nothing to others.
    pub stamp: u32,
    /// The round-trip time of the group in microseconds, as the publisher measures it.
    pub rtt_us: u32,
    /// Live subscribers.
    pub receivers: u32,
    /// How many of them lose the same frame, as far as the publisher knows: NAK back-off is for so many.
    pub losers: u32,
    /// Frames that the publisher can retain: it is held back when a subscriber is that far behind.
    pub window: u32,
    /// Whether statuses are wanted now, because the publisher is held back or closing.
    pub wanted: bool,
    /// Whether no frame follows `next`: the stream ends here.
    pub end: bool,
}

/// A publisher's description of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Announce {
    /// The node's identity.
    pub node: u128,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// The node's name.
    pub name: String,
    /// The stream's name.
    pub topic: String,
    /// Where the publisher is reached.
    pub address: Address,
    /// How long the stream has existed, in microseconds.
    pub age_us: u64,
    /// The heartbeat of the moment.
    pub heartbeat: Heartbeat,
    /// Whether the answer of every member is welcome (a first announcement).
    pub first: bool,
}

/// An address as it is advertised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Address {
    gid: [u8; 16],
    qpn: u32,
    udp_port: u16,
}

impl From<PeerAddr> for Address {
    fn from(a: PeerAddr) -> Self {
        Self { gid: a.gid.to_bytes(), qpn: a.qpn.get(), udp_port: a.udp_port }
    }
}

impl From<Address> for PeerAddr {
    fn from(a: Address) -> Self {
        Self { gid: Gid::from_bytes(a.gid), qpn: Qpn::new(a.qpn), udp_port: a.udp_port }
    }
}

/// A subscriber's progress, sent to the publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Status {
    /// The subscriber's node.
    pub node: u128,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// Its clock in microseconds: of two statuses of one life, the one with the greater is newer.
    pub at: u64,
    /// Its name.
    pub name: String,
    /// Everything before this sequence has been received or given up.
    pub next: u64,
    /// The first sequence that the subscriber has no room for.
    pub edge: u64,
    /// Frames of the stream that it gave up.
    pub lost: u64,
    /// The heartbeat's stamp that is echoed, if one was heard.
    pub echo: Option<u32>,
    /// How long the echo was held, in microseconds.
    pub held_us: u32,
    /// Receives posted to the subscriber's SRQ.
    pub headroom: u32,
    /// Frames that it has missed so far.
    pub missing: u64,
    /// Whether it wants repairs, and so is waited for.
    pub reliable: bool,
    /// Whether it leaves.
    pub leaving: bool,
    /// Whether it knows that the stream ended, and has all of it.
    pub ended: bool,
    /// The subscriber's tag, for [`Tagged`](crate::publish::FlowPolicy::Tagged) flow control.
    pub tag: Option<u32>,
}

/// What a subscriber lacks, as runs from `base` on: skip so many, lack so many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Nak {
    /// The first missing sequence.
    pub base: u64,
    /// `(skip, lack)` pairs.
    pub runs: Vec<(u32, u32)>,
    /// Whether the loss is the asker's own (its SRQ ran dry, or it asks for history): unicast repair is enough.
    pub local: bool,
}

impl Nak {
    /// The ranges of missing sequences, `(first, count)`; at most [`MAX_RANGES`], none past the number space.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let mut at = self.base;
        self.runs.iter().take(MAX_RANGES).filter_map(move |&(skip, lack)| {
            let first = at.checked_add(u64::from(skip))?;
            at = first.checked_add(u64::from(lack))?;
            (lack > 0).then_some((first, lack))
        })
    }

    /// A NAK for as many of the `missing` sequences, given in rising order, as one body holds.
    pub fn of(missing: impl Iterator<Item = u64>, local: bool) -> Option<Self> {
        let mut missing = missing.peekable();
        let base = *missing.peek()?;
        let mut nak = Self { base, runs: Vec::new(), local };
        let mut end = base;
        for sequence in missing {
            match nak.runs.last_mut() {
                Some((_, lack)) if sequence == end && *lack < u32::MAX => *lack += 1,
                _ => {
                    let Ok(skip) = u32::try_from(sequence - end) else { break };
                    if nak.runs.len() == MAX_RANGES {
                        break;
                    }
                    nak.runs.push((skip, 1));
                }
            }
            end = sequence + 1;
        }
        Some(nak)
    }
}

/// A publisher's answer that frames are no longer retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Gone {
    /// Everything before this sequence is gone.
    pub oldest: u64,
}

/// A publisher's word to a subscriber that stayed behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Released {
    /// The node that it is meant for.
    pub node: u128,
    /// How long the publisher waited, in milliseconds.
    pub waited_ms: u64,
}

/// Writes `body` to the start of `out` and gives its length.
///
/// # Errors
/// It does not fit `out` or [`MAX_BODY`].
pub fn encode(body: &impl Encode, out: &mut [u8]) -> Result<usize, FrameError> {
    let room = out.len().min(MAX_BODY);
    bincode::encode_into_slice(body, &mut out[..room], CONFIG).map_err(|_| FrameError::Body)
}

/// Reads a whole body.
///
/// # Errors
/// The bytes are no such body, are more than [`MAX_BODY`], claim what they cannot hold, or go on after it.
pub fn decode<B: Decode<()>>(bytes: &[u8]) -> Result<B, FrameError> {
    if bytes.len() > MAX_BODY {
        return Err(FrameError::Body);
    }
    match bincode::decode_from_slice(bytes, CONFIG) {
        Ok((body, used)) if used == bytes.len() => Ok(body),
        _ => Err(FrameError::Body),
    }
}

/// Whether a peer's name may be kept and shown: not too long, and nothing that a terminal obeys.
pub fn is_sound_name(name: &str) -> bool {
    name.len() <= MAX_NAME && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn announce(name: usize) -> Announce {
        Announce {
            node: u128::MAX,
            incarnation: u64::MAX,
            name: "n".repeat(name),
            topic: "t".repeat(name),
            address: PeerAddr { gid: Gid::from_bytes([0xff; 16]), qpn: Qpn::new(1), udp_port: 9 }
                .into(),
            age_us: u64::MAX,
            heartbeat: Heartbeat {
                next: u64::MAX,
                oldest: u64::MAX,
                stamp: u32::MAX,
                rtt_us: u32::MAX,
                receivers: u32::MAX,
                losers: u32::MAX,
                window: u32::MAX,
                wanted: true,
                end: true,
            },
            first: true,
        }
    }

    /// R-CONTROL-2.
    #[test]
    fn the_largest_bodies_fit_the_smallest_mtu() {
        let mut out = [0; MAX_BODY];
        assert!(encode(&announce(MAX_NAME), &mut out).is_ok());
        let status = Status {
            node: u128::MAX,
            incarnation: u64::MAX,
            at: u64::MAX,
            name: "n".repeat(MAX_NAME),
            next: u64::MAX,
            edge: u64::MAX,
            lost: u64::MAX,
            echo: Some(u32::MAX),
            held_us: u32::MAX,
            headroom: u32::MAX,
            missing: u64::MAX,
            reliable: true,
            leaving: true,
            ended: true,
            tag: Some(u32::MAX),
        };
        assert!(encode(&status, &mut out).is_ok());
        let every_other = (0..10_000u64).map(|i| i * 0x1_0000_0000 / 3);
        let nak = Nak::of(every_other, true).unwrap();
        let len = encode(&nak, &mut out);
        assert!(len.is_ok(), "{} runs", nak.runs.len());
        assert_eq!(encode(&announce(400), &mut out), Err(FrameError::Body));
    }

    /// R-CONTROL-2.
    #[test]
    fn trailing_bytes_and_claimed_lengths_are_refused() {
        let mut out = [0; 64];
        let n = encode(&Gone { oldest: 7 }, &mut out).unwrap();
        assert_eq!(decode::<Gone>(&out[..n]), Ok(Gone { oldest: 7 }));
        assert_eq!(decode::<Gone>(&out[..n + 1]), Err(FrameError::Body));
        // A NAK that claims 2^60 runs.
        let huge = [7, 253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert_eq!(decode::<Nak>(&huge), Err(FrameError::Body));
    }

    /// R-CONTROL-4.
    #[test]
    fn a_nak_lists_what_it_was_given() {
        let missing = vec![5u64, 6, 7, 10, 12, 13];
        let nak = Nak::of(missing.iter().copied(), false).unwrap();
        assert_eq!(nak.runs, [(0, 3), (2, 1), (1, 2)]);
        let back: Vec<u64> = nak.ranges().flat_map(|(s, n)| s..s + u64::from(n)).collect();
        assert_eq!(back, missing);
        assert_eq!(Nak::of(core::iter::empty(), false), None);
    }

    /// R-CONTROL-4.
    #[test]
    fn hostile_ranges_end_at_the_number_space() {
        let nak =
            Nak { base: u64::MAX - 1, runs: vec![(0, u32::MAX), (u32::MAX, 5)], local: false };
        assert_eq!(nak.ranges().count(), 0);
    }

    /// R-CONTROL-3.
    #[test]
    fn names_with_control_characters_are_not_sound() {
        assert!(is_sound_name("node-1 é"));
        assert!(!is_sound_name("a\u{1b}[2J"));
        assert!(!is_sound_name(&"x".repeat(MAX_NAME + 1)));
    }
}
