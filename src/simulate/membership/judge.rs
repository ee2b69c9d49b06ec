//! What the members are told, against what happened.

use std::collections::{BTreeMap, BTreeSet};

use qcast_proto::addr::NodeId;
use qcast_proto::membership::MemberEvent;
use qcast_proto::time::{Duration, Instant};

use super::seat::Seat;
use super::{MembershipReport, MembershipSimulationConfig};

/// Times in milliseconds, counted.
#[derive(Debug, Default)]
struct Times(BTreeMap<u64, u64>);

impl Times {
    fn note(&mut self, time: Duration) {
        *self.0.entry(time.as_millis() as u64).or_default() += 1;
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

/// What is known of a member's life.
#[derive(Debug)]
struct Life {
    seat: usize,
    began: Instant,
    ended: Option<Instant>,
    /// Whether it said farewell.
    left: bool,
}

#[derive(Debug)]
pub(super) struct Judge {
    lives: BTreeMap<(NodeId, u64), Life>,
    /// Whom each seat's member has failed and may meet again.
    failed: BTreeSet<(usize, NodeId)>,
    joins: Times,
    failures: Times,
    join_bound: Duration,
    failure_bound: Duration,
    digest: u64,
    pub(super) report: MembershipReport,
}

/// Described violations; more are counted.
const DESCRIBED: usize = 20;

impl Judge {
    pub(super) fn new(config: &MembershipSimulationConfig) -> Self {
        let report = MembershipReport {
            members: config.members,
            loss: config.loss,
            seed: config.seed,
            ..MembershipReport::default()
        };
        Self {
            lives: BTreeMap::new(),
            failed: BTreeSet::new(),
            joins: Times::default(),
            failures: Times::default(),
            join_bound: config.join_bound() + config.step * 2,
            failure_bound: config.failure_bound(),
            digest: 0xcbf2_9ce4_8422_2325,
            report,
        }
    }

    pub(super) fn began(&mut self, now: Instant, seat: &Seat) {
        let life = Life { seat: seat.index, began: now, ended: None, left: false };
        self.lives.insert((seat.node, seat.incarnation), life);
        self.failed.retain(|(by, _)| *by != seat.index);
    }

    pub(super) fn ended(&mut self, now: Instant, seat: &Seat, left: bool) {
        if let Some(life) = self.lives.get_mut(&(seat.node, seat.incarnation)) {
            (life.ended, life.left) = (Some(now), left);
        }
    }

    /// A member was told something.
    pub(super) fn told(&mut self, now: Instant, by: usize, seats: &[Seat], event: &MemberEvent) {
        let info = event.info();
        self.absorb(now, by, event);
        if seats[by].node == info.node && !matches!(event, MemberEvent::Conflict { .. }) {
            return;
        }
        let Some(life) = self.lives.get(&(info.node, info.incarnation)) else {
            return self.violation(now, by, event, "nobody of this life was ever there");
        };
        let other = &seats[life.seat];
        // What happened around a pause or a cut of either is no fault.
        let calm = |since: Instant| seats[by].excused < since && other.excused < since;
        match event {
            MemberEvent::Joined(_) => {
                if self.failed.remove(&(by, info.node)) || seats[by].joined > life.began {
                    return;
                }
                let took = now.saturating_since(life.began);
                if !calm(life.began) {
                    return;
                }
                self.joins.note(took);
                if took > self.join_bound {
                    self.violation(now, by, event, "it was seen late");
                }
            }
            MemberEvent::Failed(_) => {
                self.failed.insert((by, info.node));
                let Some(ended) = life.ended else {
                    if calm(now - self.failure_bound * 2) {
                        self.report.false_failures += 1;
                        self.violation(now, by, event, "it lives");
                    }
                    return;
                };
                if seats[by].joined < ended && calm(ended - self.failure_bound) {
                    let took = now.saturating_since(ended);
                    self.failures.note(took);
                    if took > self.failure_bound {
                        self.violation(now, by, event, "it was found late");
                    }
                }
            }
            MemberEvent::Left(_) if life.ended.is_none() => {
                self.violation(now, by, event, "it did not leave");
            }
            MemberEvent::Refuted(_) => self.report.refuted += 1,
            MemberEvent::Conflict { .. } => {
                self.violation(now, by, event, "nobody else has its identity");
            }
            _ => {}
        }
    }

    /// A view is not the group at the end.
    pub(super) fn disagrees(&mut self, seat: &Seat, has: usize, members: usize) {
        self.report.view_disagreements += 1;
        let what = format!("member {} sees {has} members and there are {members}", seat.index);
        self.describe(what);
    }

    pub(super) fn into_report(mut self) -> MembershipReport {
        let r = &mut self.report;
        (r.join_p99_ms, r.join_max_ms) = (self.joins.p99(), self.joins.max());
        r.failure_detect_p99_ms = self.failures.p99();
        r.failure_detect_max_ms = self.failures.max();
        r.digest = format!("{:016x}", self.digest);
        self.report
    }

    fn violation(&mut self, now: Instant, by: usize, event: &MemberEvent, why: &str) {
        let ms = now.as_micros() / 1000;
        let (what, name) = (event.name(), &event.info().name);
        self.describe(format!("at {ms} ms member {by} was told that {name} {what}: {why}"));
    }

    fn describe(&mut self, what: String) {
        self.report.violations += 1;
        if self.report.described.len() < DESCRIBED {
            self.report.described.push(what);
        }
    }

    /// What a run is known by: who was told what, and when.
    fn absorb(&mut self, now: Instant, by: usize, event: &MemberEvent) {
        let node = event.info().node.0;
        let words = [
            now.as_nanos(),
            by as u64,
            node as u64,
            u64::from(event.name().as_bytes()[0]) << 8 | u64::from(event.name().as_bytes()[1]),
        ];
        for word in words {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
    }
}
