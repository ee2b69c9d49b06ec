//! A member as peers know it.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::MemberProgress;
use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;
use crate::wire::control::is_sound_name;

/// The most pairs of metadata.
pub const MAX_PAIRS: usize = 8;

/// The most bytes of metadata, keys and values together: with the longest names a beacon still fits the
/// smallest path MTU.
pub const MAX_METADATA: usize = 200;

/// The longest host name in bytes, as Linux has it.
pub const MAX_HOST: usize = 64;

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its node's identity.
    pub node: NodeId,
    /// Its life: a later one has a greater number.
    pub incarnation: u64,
    /// Its name.
    pub name: String,
    /// The host that it runs on.
    pub host: String,
    /// Where it is reached in the group.
    pub address: PeerAddr,
    /// What it does in the group.
    pub role: Role,
    /// What else it wants known, as keys and values.
    pub metadata: Vec<(String, String)>,
}

/// What a member does in a group: it follows from what it has open there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Neither publishes nor subscribes.
    #[default]
    Observer,
    /// Subscribes.
    Subscriber,
    /// Publishes.
    Publisher,
    /// Publishes and subscribes.
    Both,
}

impl Role {
    /// The role of a member that publishes, and subscribes, or not.
    pub const fn of(publishes: bool, subscribes: bool) -> Self {
        match (publishes, subscribes) {
            (false, false) => Self::Observer,
            (false, true) => Self::Subscriber,
            (true, false) => Self::Publisher,
            (true, true) => Self::Both,
        }
    }

    /// Whether the member has a publisher open.
    pub const fn publishes(self) -> bool {
        matches!(self, Self::Publisher | Self::Both)
    }

    /// Whether the member has a subscriber open.
    pub const fn subscribes(self) -> bool {
        matches!(self, Self::Subscriber | Self::Both)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Observer => "observer",
            Self::Subscriber => "subscriber",
            Self::Publisher => "publisher",
            Self::Both => "both",
        })
    }
}

/// How a member does, as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// It is heard.
    Alive,
    /// It answers when asked, and what it sends to the group is not heard.
    Degraded,
    /// It was silent for too long and is being asked whether it lives.
    Suspect,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Alive => "alive",
            Self::Degraded => "degraded",
            Self::Suspect => "suspect",
        })
    }
}

/// A member of a [`View`](super::View).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What it says of itself.
    pub info: Arc<MemberInfo>,
    /// How it does.
    pub state: MemberState,
    /// When it was last heard of.
    pub heard: Instant,
    /// How long its last answer took.
    pub rtt: Option<Duration>,
    /// How far it is with what it publishes and subscribes to, as it said with its last beacon; `None` if it never did
    /// either.
    pub progress: Option<MemberProgress>,
    /// Whether it is this node itself.
    pub own: bool,
}

/// What a node wants known of itself in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Keys and values: at most [`MAX_PAIRS`], of [`MAX_METADATA`] bytes in all, no key empty or twice, none
    /// with a control character.
    pub metadata: Vec<(String, String)>,
}

impl Profile {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`ProfileError`] says which is broken.
    pub fn check(&self) -> Result<(), ProfileError> {
        check_metadata(&self.metadata)
    }
}

/// Why a profile is refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Too many pairs.
    #[error("{0} pairs of metadata; give at most {MAX_PAIRS}")]
    Pairs(usize),
    /// Too many bytes.
    #[error("{0} bytes of metadata; keys and values together have at most {MAX_METADATA}")]
    Bytes(usize),
    /// A key is empty or there twice.
    #[error("the metadata key {0:?} is empty or given twice")]
    Key(String),
    /// A key or value holds a control character.
    #[error("the metadata of {0:?} holds a control character")]
    Control(String),
    /// There is no such group.
    #[error("the group was left")]
    Left,
}

/// Requirements: `R-MEMBER-2`.
pub(crate) fn check_metadata(metadata: &[(String, String)]) -> Result<(), ProfileError> {
    if metadata.len() > MAX_PAIRS {
        return Err(ProfileError::Pairs(metadata.len()));
    }
    let bytes = metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
    if bytes > MAX_METADATA {
        return Err(ProfileError::Bytes(bytes));
    }
    for (at, (key, value)) in metadata.iter().enumerate() {
        if key.is_empty() || metadata[..at].iter().any(|(k, _)| k == key) {
            return Err(ProfileError::Key(key.clone()));
        }
        if key.chars().chain(value.chars()).any(char::is_control) {
            return Err(ProfileError::Control(key.escape_default().collect()));
        }
    }
    Ok(())
}

/// Whether what a peer says of itself may be kept and shown.
/// Requirements: `R-MEMBER-2`.
pub(crate) fn is_sound(name: &str, host: &str, metadata: &[(String, String)]) -> bool {
    is_sound_name(name)
        && is_sound_name(host)
        && host.len() <= MAX_HOST
        && check_metadata(metadata).is_ok()
}

/// The longest beginning of a name that is sound, for a host or a node that is called otherwise.
pub(crate) fn sound_prefix(name: &str, max: usize) -> String {
    let mut out = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if out.len() + c.len_utf8() > max {
            break;
        }
        out.push(c);
    }
    out
}
