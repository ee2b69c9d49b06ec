//! Frames for peers whose address is being resolved.
//!
//! Resolving can take a second, and whoever sends from an address that does not resolve starts it. So few
//! frames wait for each peer, and few in all: a peer that cannot be reached must not take the frames that
//! others are to be answered with. What does not wait is given back, and said again when it is missed.

use std::collections::BTreeMap;

use qcast_proto::addr::PeerAddr;
use qcast_proto::node::{FrameToken, GroupId};

use crate::device::{AhAttrs, SendBuf};

/// A frame that waits.
pub(super) struct Waiter {
    pub(super) group: GroupId,
    pub(super) peer: PeerAddr,
    pub(super) frame: SendBuf,
    pub(super) token: FrameToken,
}

/// All that wait.
pub(super) struct Waiting {
    by_way: BTreeMap<AhAttrs, Vec<Waiter>>,
    total: usize,
    limit: usize,
}

/// Frames that wait for one peer: a status, a request, and repairs of a small gap.
const PER_PEER: usize = 4;

impl Waiting {
    /// Room for so many frames in all.
    pub(super) fn new(limit: usize) -> Self {
        Self { by_way: BTreeMap::new(), total: 0, limit: limit.max(1) }
    }

    /// Lets a frame wait; gives it back if too many do.
    pub(super) fn add(&mut self, way: AhAttrs, waiter: Waiter) -> Result<(), Waiter> {
        let here = self.by_way.get(&way).map_or(0, Vec::len);
        if here >= PER_PEER || self.total >= self.limit {
            return Err(waiter);
        }
        self.by_way.entry(way).or_default().push(waiter);
        self.total += 1;
        Ok(())
    }

    /// Takes what waited for a peer.
    pub(super) fn release(&mut self, way: &AhAttrs) -> Vec<Waiter> {
        let released = self.by_way.remove(way).unwrap_or_default();
        self.total -= released.len();
        released
    }

    /// Takes everything.
    pub(super) fn release_all(&mut self) -> Vec<Waiter> {
        self.total = 0;
        std::mem::take(&mut self.by_way).into_values().flatten().collect()
    }

    /// Takes what waited in a group.
    pub(super) fn release_group(&mut self, group: GroupId) -> Vec<Waiter> {
        let (released, kept) =
            self.release_all().into_iter().partition::<Vec<_>, _>(|w| w.group == group);
        for waiter in kept {
            let way = AhAttrs { gid: waiter.peer.gid, udp_port: waiter.peer.udp_port };
            self.by_way.entry(way).or_default().push(waiter);
            self.total += 1;
        }
        released
    }
}
