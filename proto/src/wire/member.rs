//! Bodies by which the members of a group know each other.
//!
//! They are control bodies in every respect (encoding, limit, soundness), and their frames carry the
//! *sender's* session. What the fields mean to a receiver is the affair of
//! [`membership`](crate::membership). Requirements: `R-MEMBER-1`, `R-MEMBER-2`.

use alloc::string::String;
use alloc::vec::Vec;
use bincode::{Decode, Encode};

use super::control::Address;

/// The most entries in one roster; with the header they fit the smallest path MTU.
pub const MAX_ENTRIES: usize = 8;

/// Parts that a view is divided into, for comparing two.
pub const BUCKETS: usize = 64;

/// A member's sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Beacon {
    /// The node.
    pub node: u128,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// Its own clock in microseconds: of two beacons of one life, the one with the greater is newer.
    pub at: u64,
    /// When the next one follows at the latest, in milliseconds.
    pub interval_ms: u32,
    /// How many members it sees, itself among them.
    pub members: u32,
    /// The sum of the members it sees; two that see the same have the same.
    pub sum: u32,
    /// Whether it is new and would like to know who is there.
    pub fresh: bool,
    /// Whether it leaves.
    pub leaving: bool,
    /// The stamp of the probe that this answers.
    pub echo: Option<u32>,
    /// How far it is with what it publishes and subscribes to; none if it never did either.
    pub progress: Option<Progress>,
    /// What else is to be known of it; not in every beacon.
    pub detail: Option<Detail>,
}

/// How far a member is, in frames. Only shown: nothing follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Progress {
    /// Sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Missing for good.
    pub lost: u64,
    /// Received and not taken by the application yet, or behind a gap.
    pub waiting: u64,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Detail {
    /// Its name.
    pub name: String,
    /// The host that it runs on.
    pub host: String,
    /// Where it is reached.
    pub address: Address,
    /// 0 observer, 1 subscriber, 2 publisher, 3 both.
    pub role: u8,
    /// Keys and values in turn, each ended by a line feed, which is part of none.
    pub metadata: String,
}

impl Detail {
    /// Keys and values as a body carries them.
    pub fn join(pairs: &[(String, String)]) -> String {
        pairs.iter().flat_map(|(key, value)| [key.as_str(), "\n", value.as_str(), "\n"]).collect()
    }

    /// The keys and values of a body; `None` if a key has no value or the last end is missing. At most
    /// `max` are read.
    pub fn split(joined: &str, max: usize) -> Option<Vec<(String, String)>> {
        let mut pairs = Vec::new();
        let mut rest = joined;
        while !rest.is_empty() {
            let (key, after) = rest.split_once('\n')?;
            let (value, after) = after.split_once('\n')?;
            if pairs.len() == max {
                return None;
            }
            pairs.push((key.into(), value.into()));
            rest = after;
        }
        Some(pairs)
    }
}

/// The question whether a member lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Probe {
    /// Who asks.
    pub node: u128,
    /// The asker's life.
    pub incarnation: u64,
    /// Who is meant: whoever else gets it does not answer.
    pub to: u128,
    /// The asker's clock in microseconds; the answer echoes it.
    pub stamp: u32,
    /// Whether the asker suspects the other.
    pub suspect: bool,
    /// Whether the asker does not hear what the other sends to the group.
    pub unheard: bool,
    /// Whether the answer should say everything.
    pub detail: bool,
}

/// Some of the members that the sender sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Roster {
    /// The sender.
    pub node: u128,
    /// The part of the view that they are of.
    pub bucket: u8,
    /// Whether the sender would like to know what the other sees of it.
    pub ask: bool,
    /// The members.
    pub entries: Vec<Entry>,
}

/// A member as another one introduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// The node.
    pub node: u128,
    /// Its life.
    pub incarnation: u64,
    /// Where it is reached.
    pub address: Address,
}

/// The sums of the parts of a view, for finding out where two differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Digest {
    /// The sender.
    pub node: u128,
    /// A sum for each part.
    pub sums: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, PeerAddr, Qpn};
    use crate::membership::{MAX_HOST, MAX_METADATA, MAX_PAIRS};
    use crate::wire::control::{MAX_BODY, MAX_NAME, decode, encode};
    use crate::wire::frame::FrameError;
    use std::vec;

    fn address() -> Address {
        PeerAddr { gid: Gid::from_bytes([0xff; 16]), qpn: Qpn::new(u32::MAX), udp_port: 0xffff }
            .into()
    }

    fn largest_beacon() -> Beacon {
        let mut metadata = vec![("k".into(), String::new()); MAX_PAIRS];
        metadata[0].1 = "v".repeat(MAX_METADATA - MAX_PAIRS);
        let metadata = Detail::join(&metadata);
        Beacon {
            node: u128::MAX,
            incarnation: u64::MAX,
            at: u64::MAX,
            interval_ms: u32::MAX,
            members: u32::MAX,
            sum: u32::MAX,
            fresh: true,
            leaving: true,
            echo: Some(u32::MAX),
            // Left out where there is no room for it.
            progress: None,
            detail: Some(Detail {
                name: "n".repeat(MAX_NAME),
                host: "h".repeat(MAX_HOST),
                address: address(),
                role: 3,
                metadata,
            }),
        }
    }

    /// R-MEMBER-2, R-CONTROL-2.
    #[test]
    fn the_largest_bodies_fit_the_smallest_mtu() {
        let mut out = [0; MAX_BODY];
        let len = encode(&largest_beacon(), &mut out).unwrap();
        assert_eq!(decode::<Beacon>(&out[..len]), Ok(largest_beacon()));
        let entry = Entry { node: u128::MAX, incarnation: u64::MAX, address: address() };
        let entries = vec![entry; MAX_ENTRIES];
        let roster = Roster { node: u128::MAX, bucket: 255, ask: true, entries };
        assert!(encode(&roster, &mut out).is_ok());
        let digest = Digest { node: u128::MAX, sums: vec![u32::MAX; BUCKETS] };
        assert!(encode(&digest, &mut out).is_ok());
    }

    /// R-MEMBER-2.
    #[test]
    fn metadata_comes_back() {
        let pairs = vec![("k".into(), "v".into()), ("l".into(), String::new())];
        assert_eq!(Detail::split(&Detail::join(&pairs), 8), Some(pairs.clone()));
        assert_eq!(Detail::split("", 8), Some(vec![]));
        for bad in ["k", "k\n", "k\nv", "k\nv\nl\n"] {
            assert_eq!(Detail::split(bad, 8), None, "{bad:?}");
        }
        assert_eq!(Detail::split(&Detail::join(&pairs), 1), None);
    }

    /// R-CONTROL-2: a list that claims 2^60 entries, and bytes behind a body.
    #[test]
    fn claimed_lengths_and_trailing_bytes_are_refused() {
        let huge = [7, 253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert_eq!(decode::<Digest>(&huge), Err(FrameError::Body));
        let mut out = [0; 64];
        let len = encode(&Probe::default(), &mut out).unwrap();
        assert_eq!(decode::<Probe>(&out[..len + 1]), Err(FrameError::Body));
    }
}
