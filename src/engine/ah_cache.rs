//! Address handles by peer: bounded, pinned while sends use them, with a memory for failures.

use std::collections::BTreeMap;
use std::time::Duration;

use qcast_proto::time::Instant;
use slab::Slab;

use crate::device::{AhAttrs, AhId, AhStatus, Device, DeviceError};

/// A bounded cache of address handles, least recently used first out.
pub(super) struct AhCache {
    entries: Slab<Entry>,
    by_peer: BTreeMap<AhAttrs, usize>,
    by_ah: BTreeMap<AhId, usize>,
    failed: BTreeMap<AhAttrs, Instant>,
    capacity: usize,
    clock: u64,
    pub(super) stats: AhStats,
}

struct Entry {
    peer: AhAttrs,
    ah: AhId,
    ready: bool,
    /// Sends that use the handle. On some devices destroying it under them takes the queue pair to ERR.
    pins: u32,
    used: u64,
}

/// What became of a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The handle can be used; it is pinned.
    Ready(AhId),
    /// It is being resolved: try again later.
    Pending,
    /// It cannot be had now.
    Failed,
}

/// The cache's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AhStats {
    /// Look-ups that found a handle.
    pub hits: u64,
    /// Look-ups that had to create one.
    pub misses: u64,
    /// Handles destroyed to make room.
    pub evictions: u64,
    /// Look-ups that found a recent failure.
    pub refused: u64,
}

/// How long a peer that did not resolve is left alone: resolving blocks some devices for a second.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);

/// Failures that are remembered.
const MAX_FAILED: usize = 256;

impl AhCache {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Slab::new(),
            by_peer: BTreeMap::new(),
            by_ah: BTreeMap::new(),
            failed: BTreeMap::new(),
            capacity: capacity.max(1),
            clock: 0,
            stats: AhStats::default(),
        }
    }

    /// Forgets every handle, with the device that had them; its numbers go on.
    pub(super) fn restart(&mut self, capacity: usize) {
        *self = Self { stats: self.stats, ..Self::new(capacity) };
    }

    /// Finds or creates a peer's handle, and pins it.
    pub(super) fn pin(&mut self, now: Instant, device: &mut dyn Device, peer: AhAttrs) -> Lookup {
        self.clock += 1;
        if let Some(&at) = self.by_peer.get(&peer) {
            let entry = &mut self.entries[at];
            entry.used = self.clock;
            if !entry.ready {
                return Lookup::Pending;
            }
            entry.pins += 1;
            self.stats.hits += 1;
            return Lookup::Ready(entry.ah);
        }
        if self.failed.get(&peer).is_some_and(|until| now < *until) {
            self.stats.refused += 1;
            return Lookup::Failed;
        }
        self.failed.remove(&peer);
        self.stats.misses += 1;
        if self.entries.len() >= self.capacity && !self.evict(device) {
            return Lookup::Failed;
        }
        let created = match device.create_ah(&peer) {
            // The device's own limit is below ours: make room and try once more.
            Err(DeviceError::Exhausted { .. }) if self.evict(device) => device.create_ah(&peer),
            other => other,
        };
        match created {
            Ok((ah, status)) => {
                let ready = status == AhStatus::Ready;
                let entry = Entry { peer, ah, ready, pins: u32::from(ready), used: self.clock };
                let at = self.entries.insert(entry);
                self.by_peer.insert(peer, at);
                self.by_ah.insert(ah, at);
                if ready { Lookup::Ready(ah) } else { Lookup::Pending }
            }
            Err(error) => {
                tracing::debug!(gid = %peer.gid, %error, "no address handle");
                self.remember_failure(now, peer);
                Lookup::Failed
            }
        }
    }

    /// A send that used the handle has ended.
    pub(super) fn unpin(&mut self, ah: AhId) {
        if let Some(&at) = self.by_ah.get(&ah) {
            let pins = &mut self.entries[at].pins;
            *pins = pins.saturating_sub(1);
        }
    }

    /// A pending handle can be used. Says whose it is.
    pub(super) fn resolved(&mut self, ah: AhId) -> Option<AhAttrs> {
        let entry = &mut self.entries[*self.by_ah.get(&ah)?];
        entry.ready = true;
        Some(entry.peer)
    }

    /// A pending handle could not be resolved; the device has destroyed it. Says whose it was.
    pub(super) fn unresolved(&mut self, now: Instant, ah: AhId) -> Option<AhAttrs> {
        let entry = self.entries.remove(self.by_ah.remove(&ah)?);
        self.by_peer.remove(&entry.peer);
        self.remember_failure(now, entry.peer);
        Some(entry.peer)
    }

    /// Destroys every handle that no send uses: the port's address changed, or the node closes.
    pub(super) fn flush(&mut self, device: &mut dyn Device) {
        let idle: Vec<usize> =
            self.entries.iter().filter(|(_, e)| e.pins == 0).map(|(at, _)| at).collect();
        for at in idle {
            self.destroy(device, at);
        }
        self.failed.clear();
    }

    /// A peer is gone: its handle makes room, unless a send uses it.
    pub(super) fn forget(&mut self, device: &mut dyn Device, peer: &AhAttrs) {
        self.failed.remove(peer);
        if let Some(&at) = self.by_peer.get(peer)
            && self.entries[at].pins == 0
            && self.entries[at].ready
        {
            self.stats.evictions += 1;
            self.destroy(device, at);
        }
    }

    fn evict(&mut self, device: &mut dyn Device) -> bool {
        let oldest = self
            .entries
            .iter()
            .filter(|(_, e)| e.pins == 0 && e.ready)
            .min_by_key(|(_, e)| e.used)
            .map(|(at, _)| at);
        let Some(at) = oldest else { return false };
        self.stats.evictions += 1;
        self.destroy(device, at);
        true
    }

    fn destroy(&mut self, device: &mut dyn Device, at: usize) {
        let entry = self.entries.remove(at);
        self.by_peer.remove(&entry.peer);
        self.by_ah.remove(&entry.ah);
        if let Err(error) = device.destroy_ah(entry.ah) {
            tracing::warn!(gid = %entry.peer.gid, %error, "an address handle was not destroyed");
        }
    }

    fn remember_failure(&mut self, now: Instant, peer: AhAttrs) {
        if self.failed.len() >= MAX_FAILED {
            self.failed.pop_first();
        }
        self.failed.insert(peer, now + NEGATIVE_TTL);
    }
}
