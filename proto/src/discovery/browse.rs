//! What this node looks for, and when it asks.

use alloc::string::String;
use core::time::Duration;

use super::service::Found;
use crate::time::Instant;
use crate::wire::service::ServiceQuery;

/// Which services are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this type; empty for all.
    pub kind: String,
    /// With this instance name; empty for all.
    pub name: String,
}

impl Filter {
    /// Whether a service is looked for.
    pub fn wants(&self, kind: &str, name: &str) -> bool {
        (self.kind.is_empty() || self.kind == kind) && (self.name.is_empty() || self.name == name)
    }

    pub(super) fn wants_found(&self, found: &Found) -> bool {
        self.wants(&found.service.kind, &found.service.name)
    }
}

/// A search that goes on.
#[derive(Debug)]
pub(super) struct Browse {
    pub(super) filter: Filter,
    pub(super) next: Instant,
    asked: u32,
}

/// In the beginning it is asked so often.
const ASKS: u32 = 5;

/// The time after the first question; then twice as long each.
const ASK_GAP: Duration = Duration::from_millis(60);

/// The time between questions later on: whatever was missed, and the other half of a network that had
/// fallen apart, is found by then at the latest.
const LATER: Duration = Duration::from_secs(60);

/// Who asks the same within this time before one's own question has asked for both.
pub(super) const SOON: Duration = Duration::from_millis(100);

impl Browse {
    pub(super) fn new(now: Instant, filter: Filter) -> Self {
        Self { filter, next: now, asked: 0 }
    }

    /// Begins anew.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.next, self.asked) = (now, 0);
    }

    /// The question was asked, by this node or another.
    pub(super) fn asked(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        self.asked += 1;
        let pause = if self.asked < ASKS { ASK_GAP * 2u32.pow(self.asked - 1) } else { LATER };
        self.next = now + pause.mul_f64(0.75 + rng.f64() / 2.0);
    }

    /// Whether another's question is this one's.
    pub(super) fn is(&self, query: &ServiceQuery) -> bool {
        query.kind == self.filter.kind && query.name == self.filter.name && !query.probe
    }
}
