//! What happens to the members of a group.

use alloc::sync::Arc;

use super::MemberInfo;
use crate::addr::PeerAddr;

/// A change of a group's view. Each is reported with the version that the view then has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberEvent {
    /// It is a member now.
    Joined(Arc<MemberInfo>),
    /// It said that it leaves, or a later life of it took its place.
    Left(Arc<MemberInfo>),
    /// It was silent for too long: it is asked whether it lives.
    Suspected(Arc<MemberInfo>),
    /// It was heard again.
    Refuted(Arc<MemberInfo>),
    /// It did not answer: it is no member any more.
    Failed(Arc<MemberInfo>),
    /// It answers when asked, and what it sends to the group is not heard here.
    Degraded(Arc<MemberInfo>),
    /// What it sends to the group is heard again.
    Restored(Arc<MemberInfo>),
    /// Its name, host, role, address or metadata changed.
    Updated(Arc<MemberInfo>),
    /// Two live nodes have one identity. The view does not change by this.
    Conflict {
        /// The one that is counted as the member: of two the one of the later life, else of the greater address.
        info: Arc<MemberInfo>,
        /// Where the other one is.
        other: PeerAddr,
    },
}

impl MemberEvent {
    /// Whom it is about.
    pub fn info(&self) -> &Arc<MemberInfo> {
        match self {
            Self::Joined(info)
            | Self::Left(info)
            | Self::Suspected(info)
            | Self::Refuted(info)
            | Self::Failed(info)
            | Self::Degraded(info)
            | Self::Restored(info)
            | Self::Updated(info)
            | Self::Conflict { info, .. } => info,
        }
    }

    /// The event's name: one lower-case word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Joined(_) => "joined",
            Self::Left(_) => "left",
            Self::Suspected(_) => "suspected",
            Self::Refuted(_) => "refuted",
            Self::Failed(_) => "failed",
            Self::Degraded(_) => "degraded",
            Self::Restored(_) => "restored",
            Self::Updated(_) => "updated",
            Self::Conflict { .. } => "conflict",
        }
    }

    /// Whether somebody is no member any more.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Left(_) | Self::Failed(_))
    }
}
