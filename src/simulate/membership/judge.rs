//! What the members are told, against what happened.
//!
//! Each member judges what it is told itself, in its own turn, so that this is done on all processors; what is
//! found is added up afterwards, in the order of the members.

use std::collections::{BTreeMap, BTreeSet};

use qcast_proto::addr::NodeId;
use qcast_proto::membership::MemberEvent;
use qcast_proto::time::{Duration, Instant};

use super::MembershipReport;
use super::truth::Truth;

/// Times in milliseconds, counted.
#[derive(Debug, Default)]
struct Times(BTreeMap<u64, u64>);

impl Times {
    fn note(&mut self, time: Duration) {
        *self.0.entry(time.as_millis() as u64).or_default() += 1;
    }

    fn add(&mut self, others: Self) {
        for (ms, n) in others.0 {
            *self.0.entry(ms).or_default() += n;
        }
    }

    fn max(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(ms, _)| *ms)
    }

    fn p99(&self) -> u64 {
        let all: u64 = self.0.values().sum();
        let mut seen = 0;
        for (ms, n) in &self.0 {
            seen += n;
            if seen * 100 >= all * 99 {
                return *ms;
            }
        }
        0
    }
}

/// What was found, by some members or by all.
#[derive(Debug, Default)]
pub(super) struct Findings {
    joins: Times,
    failures: Times,
    false_failures: u64,
    refuted: u64,
    disagreements: u64,
    pub(super) violations: u64,
    described: Vec<String>,
}

/// Described violations; more are counted.
const DESCRIBED: usize = 20;

impl Findings {
    /// Adds what members found that come after those of this.
    pub(super) fn add(&mut self, others: Self) {
        self.joins.add(others.joins);
        self.failures.add(others.failures);
        self.false_failures += others.false_failures;
        self.refuted += others.refuted;
        self.disagreements += others.disagreements;
        self.violations += others.violations;
        self.described.extend(others.described);
        self.described.truncate(DESCRIBED);
    }

    /// A view is not the group at the end.
    pub(super) fn disagrees(&mut self, seat: usize, has: usize, members: usize) {
        self.disagreements += 1;
        self.describe(format!("member {seat} sees {has} members and there are {members}"));
    }

    pub(super) fn tell(self, r: &mut MembershipReport) {
        (r.join_p99_ms, r.join_max_ms) = (self.joins.p99(), self.joins.max());
        r.failure_detect_p99_ms = self.failures.p99();
        r.failure_detect_max_ms = self.failures.max();
        (r.false_failures, r.refuted) = (self.false_failures, self.refuted);
        r.view_disagreements = self.disagreements;
        (r.violations, r.described) = (self.violations, self.described);
    }

    fn violation(&mut self, now: Instant, by: usize, event: &MemberEvent, why: &str) {
        let ms = now.as_micros() / 1000;
        let (what, name) = (event.name(), &event.info().name);
        self.describe(format!("at {ms} ms member {by} was told that {name} {what}: {why}"));
    }

    fn describe(&mut self, what: String) {
        self.violations += 1;
        if self.described.len() < DESCRIBED {
            self.described.push(what);
        }
    }
}

/// A member that judges what it is told.
#[derive(Debug)]
pub(super) struct Witness {
    seat: usize,
    node: NodeId,
    /// When this life joined.
    joined: Instant,
    /// Whom it has failed and may meet again.
    failed: BTreeSet<NodeId>,
    /// All that it was told, and when.
    pub(super) digest: Check,
}

impl Witness {
    pub(super) fn new(seat: usize, node: NodeId) -> Self {
        let digest = Check::default();
        Self { seat, node, joined: Instant::ZERO, failed: BTreeSet::new(), digest }
    }

    /// It begins another life.
    pub(super) fn joins(&mut self, now: Instant) {
        self.joined = now;
        self.failed.clear();
    }

    /// It was told something.
    pub(super) fn told(
        &mut self,
        now: Instant,
        event: &MemberEvent,
        truth: &Truth,
        found: &mut Findings,
    ) {
        let (by, info) = (self.seat, event.info());
        self.digest.absorb(now.as_nanos());
        self.digest.absorb(info.node.0 as u64);
        let name = event.name().as_bytes();
        self.digest.absorb(u64::from(name[0]) << 8 | u64::from(name[1]));
        if self.node == info.node && !matches!(event, MemberEvent::Conflict { .. }) {
            return;
        }
        let Some(life) = truth.life(info) else {
            return found.violation(now, by, event, "nobody of this life was ever there");
        };
        // What happened around a pause or a cut of either is no fault.
        let calm = |since| truth.is_calm(by, since) && truth.is_calm(life.seat, since);
        match event {
            MemberEvent::Joined(_) => {
                if self.failed.remove(&info.node) || self.joined > life.began || !calm(life.began) {
                    return;
                }
                let took = now.saturating_since(life.began);
                found.joins.note(took);
                if took > truth.join_bound {
                    found.violation(now, by, event, "it was seen late");
                }
            }
            MemberEvent::Failed(_) => {
                self.failed.insert(info.node);
                let Some(ended) = life.ended else {
                    if calm(now - truth.failure_bound * 2) {
                        found.false_failures += 1;
                        found.violation(now, by, event, "it lives");
                    }
                    return;
                };
                if self.joined < ended && calm(ended - truth.failure_bound) {
                    let took = now.saturating_since(ended);
                    found.failures.note(took);
                    if took > truth.failure_bound {
                        found.violation(now, by, event, "it was found late");
                    }
                }
            }
            MemberEvent::Left(_) if life.ended.is_none() => {
                found.violation(now, by, event, "it did not leave");
            }
            MemberEvent::Refuted(_) => found.refuted += 1,
            MemberEvent::Conflict { .. } => {
                found.violation(now, by, event, "nobody else has its identity");
            }
            _ => {}
        }
    }
}

/// What a run is known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check(pub(super) u64);

impl Default for Check {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Check {
    pub(super) fn absorb(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use qcast_proto::addr::{Gid, PeerAddr, ROCE_PORT};
    use qcast_proto::membership::{MemberInfo, Role};

    use super::super::MembershipSimulationConfig;
    use super::*;

    #[test]
    fn one_that_lives_is_falsely_failed_however_early() {
        let mut truth = Truth::new(&MembershipSimulationConfig::new(2, 1));
        let node = NodeId::of_name("other");
        let qpn = truth.begins(Instant::ZERO, 1, node, 1);
        let info = MemberInfo {
            node,
            incarnation: 1,
            name: "other".into(),
            host: "h".into(),
            address: PeerAddr { gid: Gid::default(), qpn, udp_port: ROCE_PORT },
            role: Role::Both,
            metadata: Vec::new(),
        };
        let failed = MemberEvent::Failed(Arc::new(info));
        let told = |truth: &Truth| {
            let mut found = Findings::default();
            let mut witness = Witness::new(0, NodeId::of_name("one"));
            witness.told(Instant::from_millis(1), &failed, truth, &mut found);
            found.false_failures
        };
        assert_eq!(told(&truth), 1);
        truth.pauses(1, Instant::from_millis(1));
        assert_eq!(told(&truth), 0);
        truth.ends(Instant::ZERO, qpn);
        assert_eq!(told(&truth), 0);
    }
}
