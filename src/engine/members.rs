//! Who is in a node's groups, as applications ask for it: views, and feeds of their changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use qcast_proto::membership::{MemberEvent, Profile, ProfileError, View};
use qcast_proto::node::GroupId;

use super::Engine;
use super::feed::{Entry, Feed, FeedQueue};

/// A change of a group's view. See [`Group::view_changes`](crate::Group::view_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViewChange {
    /// Something about a member.
    Member {
        /// What happened, and to whom.
        event: MemberEvent,
        /// The version that the view has with it.
        version: u64,
    },
    /// The listener was slow: this many changes were dropped, the oldest first.
    /// [`Group::members`](crate::Group::members) tells what has become of all of them.
    Missed {
        /// How many.
        changes: u64,
    },
}

impl Entry for ViewChange {
    fn missed(changes: u64) -> Self {
        Self::Missed { changes }
    }
}

/// Changes that wait for each listener of a group: enough for all of a thousand members to come and go.
const MAX_CHANGES: usize = 2048;

/// The feeds of groups that somebody listens to.
pub(super) type MemberFeeds = BTreeMap<GroupId, Feed<ViewChange>>;

impl Engine {
    /// Who is in a group now.
    pub(crate) fn view(&self, group: GroupId) -> View {
        self.node.view(group)
    }

    /// Who is in a group now, and what changes from now on.
    pub(crate) fn listen_members(&mut self, group: GroupId) -> (View, Arc<FeedQueue<ViewChange>>) {
        let feed = self.member_feeds.entry(group).or_insert_with(|| Feed::new(MAX_CHANGES));
        (self.node.view(group), feed.listen())
    }

    /// Sets what the node wants known of itself in a group.
    pub(crate) fn set_profile(
        &mut self,
        group: GroupId,
        profile: Profile,
    ) -> Result<(), ProfileError> {
        self.node.set_profile(group, profile)
    }

    /// Whether a group is there, be it only to be left.
    pub(crate) fn has_group(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Tells whoever listens to the group.
    pub(super) fn tell_members(&mut self, group: GroupId, event: MemberEvent, version: u64) {
        tracing::debug!(event = event.name(), member = event.info().name, version, "membership");
        if let Some(feed) = self.member_feeds.get_mut(&group) {
            feed.put(&ViewChange::Member { event, version }, &mut self.wakers);
        }
    }

    /// The group was left: nothing more is told.
    pub(super) fn close_members(&mut self, group: GroupId) {
        if let Some(mut feed) = self.member_feeds.remove(&group) {
            feed.close(&mut self.wakers);
        }
    }
}
