//! This node's own services: how each comes by its name, and when it is announced.

use alloc::string::String;
use core::time::Duration;

use super::service::Service;
use crate::addr::Gid;
use crate::time::Instant;
use crate::wire::service::{MAX_INSTANCE, Record};

/// A service of this node's.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) service: Service,
    /// Its name, which may not be the one that was asked for.
    pub(super) name: String,
    pub(super) state: State,
    /// When it asks, or speaks, next.
    pub(super) next: Instant,
    sent: Option<Instant>,
    renamed: u32,
}

/// Where a service is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It asks whether its name is free: so often still.
    Probing(u8),
    /// The name is its own; it is soon announced so often again.
    Announced(u8),
    /// It found no name that is free.
    Refused,
}

/// A name is asked for so often before it is taken: with every twentieth datagram lost, both ways, one
/// name in a thousand that is not free is taken nevertheless, and given back as soon as that is heard.
pub(super) const PROBES: u8 = 3;

/// The time between two of these: an owner answers at once.
pub(super) const PROBE_GAP: Duration = Duration::from_millis(50);

/// A new service is announced so often in the beginning.
const BURST: u8 = 4;

/// The time after the first announcement; then twice as long each.
const BURST_GAP: Duration = Duration::from_millis(60);

/// The least time between two announcements that others provoke.
const LEAST_GAP: Duration = Duration::from_millis(100);

/// The least before a name is defended again.
const DEFENCE_GAP: Duration = Duration::from_millis(20);

/// Names that are tried one after the other before they are tried slowly.
const QUICK_NAMES: u32 = 8;

/// The time between slow ones: somebody takes every name.
const SLOW_NAME: Duration = Duration::from_secs(1);

/// Names that are tried.
pub(super) const MAX_NAMES: u32 = 64;

impl Own {
    pub(super) fn new(now: Instant, service: Service) -> Self {
        let name = service.name.clone();
        Self { service, name, state: State::Probing(PROBES), next: now, sent: None, renamed: 0 }
    }

    pub(super) fn is(&self, kind: &str, name: &str) -> bool {
        self.state != State::Refused && self.service.kind == kind && self.name == name
    }

    pub(super) fn record(&self, here: Gid) -> Record {
        self.service.record(&self.name, here)
    }

    /// Begins anew: nobody heard what was said before.
    pub(super) fn restart(&mut self, now: Instant) {
        if self.state != State::Refused {
            (self.state, self.next) = (State::Probing(PROBES), now);
        }
    }

    /// Announces it anew: it has changed.
    pub(super) fn announce(&mut self, now: Instant) {
        if let State::Announced(_) = self.state {
            (self.state, self.next) = (State::Announced(BURST), now);
        }
    }

    /// It asked for its name once more. Says whether the name is its own now.
    pub(super) fn probed(&mut self, now: Instant) {
        if let State::Probing(left) = &mut self.state {
            *left = left.saturating_sub(1);
            self.next = now + PROBE_GAP;
        }
    }

    /// Takes its name if nobody else has it by now. Says whether it did.
    pub(super) fn establish(&mut self, now: Instant) -> bool {
        let due = self.state == State::Probing(0) && self.next <= now;
        if due {
            (self.state, self.next) = (State::Announced(BURST), now);
        }
        due
    }

    /// It was announced.
    pub(super) fn told(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        self.sent = Some(now);
        let jitter = 0.75 + rng.f64() / 4.0;
        let State::Announced(left) = &mut self.state else { return };
        let step = if *left > 1 {
            *left -= 1;
            BURST_GAP * 2u32.pow(u32::from(BURST.saturating_sub(*left + 1)))
        } else {
            *left = 0;
            self.service.ttl / 3
        };
        self.next = now + step.mul_f64(jitter);
    }

    /// Speaks within `within` because somebody asked.
    /// Requirements: `R-SERVICE-4`.
    pub(super) fn answer(&mut self, now: Instant, within: Duration, rng: &mut fastrand::Rng) {
        let soonest = self.sent.map_or(now, |sent| now.max(sent + LEAST_GAP));
        self.next = self.next.min(soonest + within.mul_f64(rng.f64()));
    }

    /// Speaks at once because somebody wants its name.
    pub(super) fn defend(&mut self, now: Instant) {
        self.next = self.next.min(self.sent.map_or(now, |sent| now.max(sent + DEFENCE_GAP)));
    }

    /// Takes the next name that is not `taken`. Says whether there is one.
    /// Requirements: `R-SERVICE-3`.
    pub(super) fn rename(&mut self, now: Instant, taken: impl Fn(&str) -> bool) -> bool {
        loop {
            self.renamed += 1;
            if self.renamed > MAX_NAMES {
                self.state = State::Refused;
                return false;
            }
            self.name = numbered(&self.service.name, self.renamed + 1);
            if !taken(&self.name) {
                break;
            }
        }
        let pause = if self.renamed > QUICK_NAMES { SLOW_NAME } else { Duration::ZERO };
        (self.state, self.next) = (State::Probing(PROBES), now + pause);
        true
    }
}

/// "name (n)", with the name cut to fit.
fn numbered(name: &str, n: u32) -> String {
    let suffix = alloc::format!(" ({n})");
    let mut end = name.len().min(MAX_INSTANCE - suffix.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let (name, _) = name.split_at(end);
    alloc::format!("{name}{suffix}")
}

/// That a service has ended is said so often, with these times between.
pub(super) const PARTINGS: u8 = 3;
pub(super) const PARTING_GAP: Duration = Duration::from_millis(60);

/// A record that is withdrawn.
#[derive(Debug)]
pub(super) struct Parting {
    pub(super) record: Record,
    pub(super) next: Instant,
    pub(super) left: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-SERVICE-3.
    #[test]
    fn names_are_numbered_and_cut_between_characters() {
        assert_eq!(numbered("web", 2), "web (2)");
        let long = "é".repeat(32);
        assert_eq!(numbered(&long, 12), "é".repeat(29) + " (12)");
        let mut own = Own::new(Instant::ZERO, Service::new("t", "web", 1));
        assert!(own.rename(Instant::ZERO, |name| name == "web (2)"));
        assert_eq!(own.name, "web (3)");
        assert!(!own.rename(Instant::ZERO, |_| true));
        assert_eq!(own.state, State::Refused);
    }
}
