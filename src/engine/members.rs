//! What the engine does about a group's members: it tells applications of them, says farewell before a group is left, forgets the
//! addresses of those that are gone, and joins anew where multicast fails. Requirements: `R-MEMBER-4`,
//! `R-MEMBER-12`, `R-MEMBER-20`.

use std::collections::BTreeMap;
use std::sync::Arc;

use qcast_proto::membership::{MemberEvent, Profile, ProfileError, View};
use qcast_proto::node::GroupId;
use qcast_proto::time::Instant;

use super::Engine;
use super::feed::{Entry, Feed, FeedQueue};
use crate::device::AhAttrs;

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
    /// Who is in a group. Costs the number of members.
    pub(crate) fn view(&self, group: GroupId) -> View {
        self.node.view(group)
    }

    /// Sets what this node wants known of itself in a group.
    ///
    /// # Errors
    /// The profile breaks a bound, or the group was left.
    pub(crate) fn set_profile(
        &mut self,
        group: GroupId,
        profile: Profile,
    ) -> Result<(), ProfileError> {
        self.node.set_profile(group, profile)
    }

    /// Who is in a group now, and what changes from now on.
    pub(crate) fn listen_members(&mut self, group: GroupId) -> (View, Arc<FeedQueue<ViewChange>>) {
        let feed = self.member_feeds.entry(group).or_insert_with(|| Feed::new(MAX_CHANGES));
        (self.node.view(group), feed.listen())
    }

    /// Whether a group is there, be it only to be left.
    pub(crate) fn has_group(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// The group was left: nothing more is told.
    pub(super) fn close_members(&mut self, group: GroupId) {
        if let Some(mut feed) = self.member_feeds.remove(&group) {
            feed.close(&mut self.wakers);
        }
    }

    pub(super) fn view_changed(
        &mut self,
        now: Instant,
        group: GroupId,
        event: MemberEvent,
        version: u64,
    ) {
        let info = event.info();
        tracing::debug!(member = info.name, node = %info.node, event = event.name(), version, "view");
        if event.is_end() {
            let address = info.address;
            self.ah.forget(
                &mut *self.device,
                &AhAttrs { gid: address.gid, udp_port: address.udp_port },
            );
        }
        if let MemberEvent::Failed(info) = &event {
            // What it offered ended with it.
            self.node.handle_failure(now, info.node, info.incarnation);
        }
        if let Some(feed) = self.member_feeds.get_mut(&group) {
            feed.put(&ViewChange::Member { event, version }, &mut self.wakers);
        }
    }

    /// Another queue pair joins in the place of one that multicast does not reach, or does not leave.
    pub(super) fn join_anew(&mut self, now: Instant) {
        while let Some(group) = self.rejoining.pop() {
            let Some(g) = self.groups.get(&group) else { continue };
            if g.recovery.is_under_way() || self.leaving.contains_key(&group) {
                continue;
            }
            tracing::warn!(group = g.setup.name, "multicast fails and unicast works; joining anew");
            self.replace(now, group);
        }
    }
}
