//! When a node speaks of its groups.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use core::time::Duration;

use super::peers::Peers;
use crate::node::GroupId;
use crate::time::Instant;
use crate::wire::control::MAX_BODY;
use crate::wire::notice::{Checks, GroupEntry, GroupNotice, NOTICE_ROOM};

/// A group of this node's.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) name: String,
    pub(super) checks: Checks,
    /// When it is told of next.
    pub(super) next: Instant,
    /// How often it is soon told again.
    burst: u8,
    sent: Option<Instant>,
    /// What others with the same key said since there was something to answer.
    answered: Option<u32>,
}

/// A group that was left.
#[derive(Debug)]
pub(super) struct Parted {
    entry: GroupEntry,
    pub(super) next: Instant,
    left: u8,
}

/// A new group is told of so often in the beginning: with every twentieth notice lost, one node in three
/// million is not heard at once.
const BURST: u8 = 5;

/// The time after the first; then twice as long each.
const BURST_GAP: Duration = Duration::from_millis(60);

/// An answer is repeated so often.
const ANSWERS: u8 = 4;

/// That a group was left is said so often.
const PARTINGS: u8 = 3;

/// In groups up to this size everybody answers whoever has another key, so that he learns all names.
const ALL_ANSWER: u32 = 32;

/// In larger ones it is enough when so many did.
const ENOUGH: u32 = 8;

/// Answers are spread over so long.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);

impl Own {
    pub(super) fn new(now: Instant, name: String, checks: Checks) -> Self {
        Self { name, checks, next: now, burst: BURST, sent: None, answered: None }
    }

    /// Begins to speak as if it was new.
    pub(super) fn speak(&mut self, now: Instant) {
        (self.next, self.burst, self.answered) = (now, BURST, None);
    }

    /// Speaks soon because somebody asked.
    pub(super) fn hasten(
        &mut self,
        now: Instant,
        gap: Duration,
        within: Duration,
        times: u8,
        rng: &mut fastrand::Rng,
    ) {
        let soonest = self.sent.map_or(now, |sent| now.max(sent + gap));
        self.next = self.next.min(soonest + within.mul_f64(rng.f64()));
        self.burst = self.burst.max(times);
    }

    /// Speaks soon because somebody has another key.
    /// Requirements: `R-KEY-3`.
    pub(super) fn answer(&mut self, now: Instant, gap: Duration, rng: &mut fastrand::Rng) {
        self.answered.get_or_insert(0);
        self.hasten(now, gap, gap.max(ANSWER_WITHIN), ANSWERS, rng);
    }

    /// Whether there is something to answer that was not said often enough yet.
    pub(super) fn is_answering(&self) -> bool {
        self.answered.is_some()
    }

    /// Somebody else with the same key, of so many, spoke of the group.
    /// Requirements: `R-KEY-3`.
    pub(super) fn heard(&mut self, now: Instant, members: u32) {
        let Some(answers) = &mut self.answered else { return };
        *answers += 1;
        if *answers >= ENOUGH && members > ALL_ANSWER {
            // Others have said it: the rest of the burst is spared.
            (self.burst, self.answered) = (0, None);
            self.next = self.next.max(now + super::MIN_PERIOD);
        }
    }

    fn told(&mut self, now: Instant, period: Duration, gap: Duration, rng: &mut fastrand::Rng) {
        self.sent = Some(now);
        let jitter = 0.75 + rng.f64() / 2.0;
        self.next = now
            + if self.burst > 1 {
                self.burst -= 1;
                let step = BURST_GAP * 2u32.pow(u32::from(BURST.saturating_sub(self.burst + 1)));
                step.max(gap).mul_f64(jitter)
            } else {
                (self.burst, self.answered) = (0, None);
                period.mul_f64(jitter)
            };
    }
}

impl Parted {
    pub(super) fn new(now: Instant, own: Own) -> Self {
        let entry = GroupEntry { name: own.name, checks: own.checks, members: 0, left: true };
        Self { entry, next: now, left: PARTINGS }
    }
}

/// Puts into a notice what is due, then what is not, as much as fits: whoever is heard is up to date.
/// Requirements: `R-CONTROLGROUP-3`.
pub(super) fn fill(
    notice: &mut GroupNotice,
    now: Instant,
    period: Duration,
    own: &mut BTreeMap<GroupId, Own>,
    parted: &mut VecDeque<Parted>,
    peers: &Peers,
    rng: &mut fastrand::Rng,
) {
    let mut room = MAX_BODY - NOTICE_ROOM;
    let mut put = |notice: &mut GroupNotice, entry: GroupEntry| {
        let takes = entry.room();
        let fits = takes <= room && notice.groups.push(entry).is_ok();
        if fits {
            room -= takes;
        }
        fits
    };
    for p in parted.iter_mut().filter(|p| p.next <= now) {
        if put(notice, p.entry.clone()) {
            p.left -= 1;
            p.next = now + BURST_GAP * u32::from(PARTINGS - p.left);
        }
    }
    parted.retain(|p| p.left > 0);
    let gap = super::LEAST_GAP.max(super::PROVOKED * peers.len());
    let mut order: alloc::vec::Vec<(Instant, GroupId)> =
        own.iter().map(|(id, own)| (own.next, *id)).collect();
    order.sort();
    for (_, id) in order {
        let Some(own) = own.get_mut(&id) else { continue };
        let members = peers.members(&own.name, own.checks.key) + 1;
        let entry = GroupEntry { name: own.name.clone(), checks: own.checks, members, left: false };
        if !put(notice, entry) {
            break;
        }
        // What is soon told a few times keeps its times.
        if own.next <= now || own.burst <= 1 {
            own.told(now, period, gap, rng);
        }
    }
}
