//! What happened, which is what members should be told.

use std::collections::BTreeMap;

use qcast_proto::addr::{NodeId, Qpn};
use qcast_proto::membership::MemberInfo;
use qcast_proto::time::{Duration, Instant};

use super::MembershipSimulationConfig;

/// What is known of a member's life.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) seat: usize,
    node: NodeId,
    incarnation: u64,
    pub(super) began: Instant,
    pub(super) ended: Option<Instant>,
}

/// All lives there were, whom a pause or a cut excuses, and how long it may take to be told.
#[derive(Debug)]
pub(super) struct Truth {
    /// By their queue pairs: each life has its own, and the first one has the first.
    lives: Vec<Life>,
    /// Until when a seat was last paused: what others then thought of it, and it of others, is no fault.
    paused: BTreeMap<usize, Instant>,
    /// Until when all were last cut off from some.
    cut: Option<Instant>,
    /// Within this time all must have seen a join.
    pub(super) join_bound: Duration,
    /// Within this time all must have seen a failure.
    pub(super) failure_bound: Duration,
}

/// The queue pair of the first life.
const FIRST: u32 = 1;

impl Truth {
    pub(super) fn new(config: &MembershipSimulationConfig) -> Self {
        Self {
            lives: Vec::new(),
            paused: BTreeMap::new(),
            cut: None,
            join_bound: config.join_bound() + config.step * 2,
            failure_bound: config.failure_bound(),
        }
    }

    /// A life begins, with this queue pair.
    pub(super) fn begins(
        &mut self,
        now: Instant,
        seat: usize,
        node: NodeId,
        incarnation: u64,
    ) -> Qpn {
        self.lives.push(Life { seat, node, incarnation, began: now, ended: None });
        let lives = u32::try_from(self.lives.len()).expect("there are fewer lives");
        Qpn::new(FIRST + lives - 1)
    }

    pub(super) fn ends(&mut self, now: Instant, qpn: Qpn) {
        if let Some(life) = place(qpn).and_then(|at| self.lives.get_mut(at)) {
            life.ended = Some(now);
        }
    }

    pub(super) fn pauses(&mut self, seat: usize, until: Instant) {
        self.paused.insert(seat, until);
    }

    pub(super) fn is_cut(&mut self, now: Instant) {
        self.cut = Some(now);
    }

    /// The life with this queue pair.
    pub(super) fn at(&self, qpn: Qpn) -> Option<&Life> {
        self.lives.get(place(qpn)?)
    }

    /// The life that is told of.
    pub(super) fn life(&self, info: &MemberInfo) -> Option<&Life> {
        let is = |l: &&Life| (l.node, l.incarnation) == (info.node, info.incarnation);
        self.at(info.address.qpn).filter(is)
    }

    /// Whether a seat was neither paused nor cut off since then.
    pub(super) fn is_calm(&self, seat: usize, since: Instant) -> bool {
        let excused = self.cut.max(self.paused.get(&seat).copied());
        excused.is_none_or(|until| until < since)
    }
}

fn place(qpn: Qpn) -> Option<usize> {
    Some(qpn.get().checked_sub(FIRST)? as usize)
}
