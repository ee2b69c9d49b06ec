//! What members say, read and checked once.

use alloc::sync::Arc;

use super::member::is_sound;
use super::{MAX_PAIRS, MemberInfo, Role};
use crate::addr::NodeId;
use crate::wire::control::{self, MAX_BODY};
use crate::wire::frame::{FrameError, FrameKind};
use crate::wire::member::{self as wire, Detail, Digest, Probe, Progress, Roster};

/// A frame between members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A sign of life.
    Beacon(Beacon),
    /// A question.
    Probe(Probe),
    /// Some of the members that the sender sees.
    Roster(Roster),
    /// The sums of the members that the sender sees.
    Digest(Digest),
}

/// A member's sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: u64,
    /// Its own clock in microseconds.
    pub at: u64,
    /// When the next one follows at the latest, in milliseconds.
    pub interval_ms: u32,
    /// How many members it sees.
    pub members: u32,
    /// The sum of them.
    pub sum: u32,
    /// Whether it is new.
    pub fresh: bool,
    /// Whether it leaves.
    pub leaving: bool,
    /// The stamp of the probe that this answers.
    pub echo: Option<u32>,
    /// How far it is; none if it neither published nor subscribed.
    pub progress: Option<Progress>,
    /// What it says of itself; not in every beacon. Of the same node and life.
    pub info: Option<Arc<MemberInfo>>,
}

impl Word {
    /// The kind of frame that carries it.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Beacon(_) => FrameKind::Beacon,
            Self::Probe(_) => FrameKind::Probe,
            Self::Roster(_) => FrameKind::Roster,
            Self::Digest(_) => FrameKind::Digest,
        }
    }

    /// Writes it to the start of `out` and gives its length.
    ///
    /// # Errors
    /// It does not fit: it was not made by a [`Membership`](super::Membership).
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, FrameError> {
        match self {
            Self::Beacon(beacon) => {
                let mut body = beacon.body();
                control::encode(&body, out).or_else(|_| {
                    // The longest names and metadata leave no room for it; a beacon without details has it.
                    body.progress = None;
                    control::encode(&body, out)
                })
            }
            Self::Probe(body) => control::encode(body, out),
            Self::Roster(body) => control::encode(body, out),
            Self::Digest(body) => control::encode(body, out),
        }
    }

    /// Reads the body of a frame of this kind, and checks that what is said may be kept and shown.
    ///
    /// # Errors
    /// The kind is none of members, or the body is malformed.
    /// Requirements: `R-MEMBER-2`.
    pub fn decode(kind: FrameKind, body: &[u8]) -> Result<Self, FrameError> {
        Ok(match kind {
            FrameKind::Beacon => Self::Beacon(Beacon::of(control::decode(body)?)?),
            FrameKind::Probe => Self::Probe(control::decode(body)?),
            FrameKind::Roster => {
                let roster: Roster = control::decode(body)?;
                if roster.entries.len() > wire::MAX_ENTRIES {
                    return Err(FrameError::Body);
                }
                Self::Roster(roster)
            }
            FrameKind::Digest => {
                let digest: Digest = control::decode(body)?;
                if digest.sums.len() != wire::BUCKETS {
                    return Err(FrameError::Body);
                }
                Self::Digest(digest)
            }
            _ => return Err(FrameError::Body),
        })
    }
}

impl Beacon {
    fn of(body: wire::Beacon) -> Result<Self, FrameError> {
        let (node, incarnation) = (NodeId(body.node), body.incarnation);
        let info = match body.detail {
            Some(d) => {
                let metadata = Detail::split(&d.metadata, MAX_PAIRS).ok_or(FrameError::Body)?;
                if !is_sound(&d.name, &d.host, &metadata) {
                    return Err(FrameError::Body);
                }
                Some(Arc::new(MemberInfo {
                    node,
                    incarnation,
                    name: d.name,
                    host: d.host,
                    address: d.address.into(),
                    role: role(d.role)?,
                    metadata,
                }))
            }
            None => None,
        };
        Ok(Self {
            node,
            incarnation,
            at: body.at,
            interval_ms: body.interval_ms,
            members: body.members,
            sum: body.sum,
            fresh: body.fresh,
            leaving: body.leaving,
            echo: body.echo,
            progress: body.progress,
            info,
        })
    }

    fn body(&self) -> wire::Beacon {
        wire::Beacon {
            node: self.node.0,
            incarnation: self.incarnation,
            at: self.at,
            interval_ms: self.interval_ms,
            members: self.members,
            sum: self.sum,
            fresh: self.fresh,
            leaving: self.leaving,
            echo: self.echo,
            progress: self.progress,
            detail: self.info.as_ref().map(|info| Detail {
                name: info.name.clone(),
                host: info.host.clone(),
                address: info.address.into(),
                role: match info.role {
                    Role::Observer => 0,
                    Role::Subscriber => 1,
                    Role::Publisher => 2,
                    Role::Both => 3,
                },
                metadata: Detail::join(&info.metadata),
            }),
        }
    }
}

fn role(number: u8) -> Result<Role, FrameError> {
    Ok(match number {
        0 => Role::Observer,
        1 => Role::Subscriber,
        2 => Role::Publisher,
        3 => Role::Both,
        _ => return Err(FrameError::Body),
    })
}

/// A body never needs more.
pub const MAX_WORD: usize = MAX_BODY;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, PeerAddr, Qpn};
    use alloc::string::String;
    use std::vec;
    use std::vec::Vec;

    fn beacon(name: &str, metadata: Vec<(String, String)>) -> Word {
        let info = MemberInfo {
            node: NodeId(7),
            incarnation: 3,
            name: name.into(),
            host: "h".into(),
            address: PeerAddr { gid: Gid::from_bytes([1; 16]), qpn: Qpn::new(5), udp_port: 4791 },
            role: Role::Both,
            metadata,
        };
        Word::Beacon(Beacon {
            node: NodeId(7),
            incarnation: 3,
            at: 9,
            interval_ms: 1000,
            members: 2,
            sum: 8,
            fresh: true,
            leaving: false,
            echo: None,
            progress: None,
            info: Some(Arc::new(info)),
        })
    }

    fn again(word: &Word) -> Result<Word, FrameError> {
        let mut out = [0; MAX_WORD];
        let len = word.encode(&mut out)?;
        Word::decode(word.kind(), &out[..len])
    }

    /// R-MEMBER-22: what a member says of itself comes first.
    #[test]
    fn progress_gives_way_to_details() {
        let all =
            Progress { sent: u64::MAX, received: u64::MAX, lost: u64::MAX, waiting: u64::MAX };
        let metadata: Vec<_> =
            (0..8).map(|i| (String::from(char::from(b'a' + i)), "v".repeat(24))).collect();
        for (name, metadata, fits) in [("n", vec![], true), (&*"n".repeat(96), metadata, false)] {
            let mut word = beacon(name, metadata);
            let Word::Beacon(said) = &mut word else { unreachable!("it was made as one") };
            (said.progress, said.at, said.incarnation) = (Some(all), u64::MAX, u64::MAX);
            (said.node, said.echo) = (NodeId(u128::MAX), Some(u32::MAX));
            (said.interval_ms, said.members, said.sum) = (u32::MAX, u32::MAX, u32::MAX);
            let info = Arc::make_mut(said.info.as_mut().unwrap());
            (info.node, info.incarnation) = (NodeId(u128::MAX), u64::MAX);
            info.host = "h".repeat(64);
            let Ok(Word::Beacon(heard)) = again(&word) else { panic!("{word:?} is not read") };
            let Word::Beacon(said) = word else { unreachable!("it was made as one") };
            assert_eq!(heard.progress, fits.then_some(all));
            assert_eq!(heard.info, said.info);
        }
    }

    /// R-MEMBER-2.
    #[test]
    fn only_what_is_sound_is_read() {
        let pair = |k: &str, v: &str| (String::from(k), String::from(v));
        for good in [beacon("n", vec![]), beacon("é", vec![pair("k", ""), pair("l", "v")])] {
            assert_eq!(again(&good).as_ref(), Ok(&good));
        }
        for bad in [
            beacon("a\u{1b}[2J", vec![]),
            beacon("n", vec![pair("", "v")]),
            beacon("n", vec![pair("k", "1"), pair("k", "2")]),
            beacon("n", vec![pair("k", "\n")]),
            beacon("n", vec![pair("k", &"v".repeat(201))]),
            beacon("n", (0..9).map(|i| pair(&std::format!("{i}"), "")).collect()),
        ] {
            assert_eq!(again(&bad), Err(FrameError::Body));
        }
        assert!(again(&beacon(&"n".repeat(10_000), vec![])).is_err());
        assert_eq!(Word::decode(FrameKind::Data, &[]), Err(FrameError::Body));
    }
}
