//! What happens to members while they are watched.

use qcast_proto::time::{Duration, Instant};

use super::MembershipSimulationConfig;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Join,
    Leave,
    Crash,
    /// A crash, and a new life after so long.
    Restart(Duration),
    Pause(Duration),
}

/// The changes of a run, in the order of time.
#[derive(Debug)]
pub(super) struct Script {
    /// From when on there is calm.
    pub(super) ends: Instant,
    /// The group is cut in two between these.
    pub(super) cut: Option<(Instant, Instant)>,
    next: Instant,
    spacing: Duration,
    /// What comes next, from its end. All kinds come once before any comes again, but for two pauses: a short
    /// run has its crashes too.
    deck: Vec<u8>,
}

/// How long the group stays cut in two, and quiet around that: what is seen late then has a reason.
const CUT: Duration = Duration::from_secs(10);
const AROUND: Duration = Duration::from_secs(8);

impl Script {
    pub(super) fn new(config: &MembershipSimulationConfig) -> Self {
        let begins = Instant::ZERO + config.joining() + Duration::from_secs(3);
        let ends = Instant::ZERO + (config.duration - config.calm());
        let middle = Instant::ZERO + config.duration / 2;
        let room = begins + AROUND < middle && middle + CUT + AROUND < ends;
        let spacing = Duration::from_secs_f64(60.0 / config.churn.max(1e-6));
        Self {
            ends,
            cut: (config.partition && room).then_some((middle, middle + CUT)),
            next: begins,
            spacing,
            deck: Vec::new(),
        }
    }

    pub(super) fn is_cut(&self, now: Instant) -> bool {
        self.cut.is_some_and(|(from, to)| (from..to).contains(&now))
    }

    /// Whether the cut is near: views are about to differ, or still do.
    pub(super) fn is_near_cut(&self, now: Instant) -> bool {
        self.cut.is_some_and(|(from, to)| (from - AROUND..to + AROUND).contains(&now))
    }

    /// A change that is due.
    pub(super) fn next(&mut self, now: Instant, rng: &mut fastrand::Rng) -> Option<Change> {
        if now < self.next || now >= self.ends || self.is_near_cut(now) {
            return None;
        }
        self.next = now + self.spacing.mul_f64(0.5 + rng.f64());
        if self.deck.is_empty() {
            self.deck.extend(0..6);
            rng.shuffle(&mut self.deck);
        }
        Some(match self.deck.pop()? {
            0 => Change::Join,
            1 => Change::Leave,
            2 => Change::Crash,
            3 => Change::Restart(Duration::from_millis(rng.u64(10..=8000))),
            _ => Change::Pause(Duration::from_millis(rng.u64(200..=2500))),
        })
    }
}
