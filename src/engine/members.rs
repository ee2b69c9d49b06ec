//! What the engine does about a group's members: it says farewell before a group is left, forgets the
//! addresses of those that are gone, and joins anew where multicast fails. Requirements: `R-MEMBER-4`,
//! `R-MEMBER-12`, `R-MEMBER-20`.

use std::collections::VecDeque;

use qcast_proto::membership::{MemberEvent, Profile, ProfileError, View};
use qcast_proto::node::GroupId;
use qcast_proto::time::{Duration, Instant};

use super::Engine;
use crate::device::AhAttrs;

/// A change of a group's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ViewChange {
    pub(crate) group: GroupId,
    pub(crate) event: MemberEvent,
    /// The version that the view has with it.
    pub(crate) version: u64,
}

/// Changes until somebody takes them: of more the oldest are dropped, and counted.
#[derive(Debug, Default)]
pub(super) struct ViewChanges {
    changes: VecDeque<ViewChange>,
    dropped: u64,
}

/// Changes that wait. A group of ten thousand that falls apart makes more, and whoever misses some
/// reads the view.
const MAX_CHANGES: usize = 1024;

/// A farewell that could not be said within this time is not said.
const FAREWELL: Duration = Duration::from_millis(250);

#[cfg_attr(not(test), expect(dead_code, reason = "the public API reads it"))]
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

    /// The changes of views since the last call, in order, and how many are missing before them.
    pub(crate) fn take_view_changes(&mut self) -> (Vec<ViewChange>, u64) {
        let dropped = std::mem::take(&mut self.view_changes.dropped);
        (self.view_changes.changes.drain(..).collect(), dropped)
    }
}

impl Engine {
    pub(super) fn view_changed(&mut self, change: ViewChange) {
        let info = change.event.info();
        tracing::debug!(member = info.name, node = %info.node, event = change.event.name(), "view");
        if change.event.is_end() {
            let address = info.address;
            self.ah.forget(
                &mut *self.device,
                &AhAttrs { gid: address.gid, udp_port: address.udp_port },
            );
        }
        if self.view_changes.changes.len() >= MAX_CHANGES {
            self.view_changes.changes.pop_front();
            self.view_changes.dropped += 1;
        }
        self.view_changes.changes.push_back(change);
    }

    /// Another queue pair joins in the place of one that multicast does not reach, or does not leave.
    pub(super) fn rejoin(&mut self, now: Instant) {
        while let Some(group) = self.rejoining.pop() {
            let Some(g) = self.groups.get(&group) else { continue };
            if g.recovery.is_under_way() || self.leaving.contains_key(&group) {
                continue;
            }
            tracing::warn!(group = g.setup.name, "multicast fails and unicast works; joining anew");
            self.replace(now, group);
        }
    }

    /// Leaves a group once its publishers are closed and the others were told.
    pub(crate) fn leave(&mut self, group: GroupId) {
        self.leaving.entry(group).or_insert(None);
    }

    pub(super) fn leave_groups(&mut self, now: Instant) {
        let mut done = Vec::new();
        for (id, deadline) in &mut self.leaving {
            let Some(g) = self.groups.get(id) else {
                done.push(*id);
                continue;
            };
            if self.publishers.values().any(|p| p.group == *id) || !g.queue.is_empty() {
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| {
                self.node.part(now, *id);
                now + FAREWELL
            });
            if self.node.has_parted(*id) || deadline <= now {
                done.push(*id);
            }
        }
        for id in done {
            self.leaving.remove(&id);
            self.leave_group(id);
        }
    }

    pub(super) fn next_farewell(&self) -> Option<Instant> {
        self.leaving.values().flatten().min().copied()
    }
}
