//! Nodes that were heard of, and are asked who they are.
//!
//! A beacon without details from a node that is not known, or an entry of another's roster, makes nobody a
//! member. It makes this node ask, and the answer, from the address that was asked, does.
//! Requirements: `R-MEMBER-5`, `R-MEMBER-15`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::Membership;
use super::speak::Said;
use crate::addr::{NodeId, PeerAddr};
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Candidates {
    by_address: BTreeMap<PeerAddr, Candidate>,
    /// When a first question was last asked, and how many more may be: a storm of strangers is left to
    /// its own beacons.
    budget: (Instant, u32),
}

#[derive(Debug)]
struct Candidate {
    node: NodeId,
    tries: u8,
    due: Instant,
}

/// Questions to one candidate, and the time between them.
const TRIES: u8 = 4;
const PAUSE: Duration = Duration::from_millis(200);

/// First questions in [`PAUSE`] at most.
const BUDGET: u32 = 16;

impl Candidates {
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.by_address.values().map(|c| c.due).min()
    }

    pub(super) fn forget(&mut self, address: PeerAddr) {
        self.by_address.remove(&address);
    }

    fn spend(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.budget.0) >= PAUSE {
            self.budget = (now, BUDGET);
        }
        let may = self.budget.1 > 0;
        self.budget.1 -= u32::from(may);
        may
    }
}

impl Membership {
    /// There may be a node at this address.
    pub(super) fn introduce(&mut self, now: Instant, node: NodeId, address: PeerAddr) {
        let known = self.candidates.by_address.contains_key(&address);
        if known || address == self.own.address || node == self.own.node {
            return;
        }
        let full = self.candidates.len() >= self.config.max_candidates
            || self.count() >= self.config.max_members;
        if full {
            self.counters.refused += 1;
            return;
        }
        if self.candidates.spend(now) {
            let candidate = Candidate { node, tries: 0, due: now };
            self.candidates.by_address.insert(address, candidate);
            self.stirred = true;
        }
    }

    pub(super) fn ask_candidates(&mut self, now: Instant) {
        if self.candidates.next().is_none_or(|due| due > now) {
            return;
        }
        let mut ask = Vec::new();
        self.candidates.by_address.retain(|address, c| {
            if c.due > now {
                return true;
            }
            if c.tries == TRIES {
                return false;
            }
            c.tries += 1;
            c.due = now + PAUSE;
            ask.push((c.node, *address));
            true
        });
        for (node, to) in ask {
            self.say(Said::Probe { to, node, suspect: false, unheard: false, detail: true });
        }
    }
}
