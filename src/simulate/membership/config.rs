//! What is simulated.

use qcast_proto::time::Duration;

use super::super::SimulationError;

/// What a [`MembershipSimulation`](super::MembershipSimulation) is of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MembershipSimulationConfig {
    /// Members when all have joined.
    pub members: usize,
    /// The share of datagrams that each receiver loses.
    pub loss: f64,
    /// Virtual time, the joining and the calm at the end included.
    pub duration: Duration,
    /// Members that come, leave, crash, restart or pause, a minute.
    pub churn: f64,
    /// Whether the group is cut in two for ten seconds half-way.
    pub partition: bool,
    /// How long a datagram takes at most; the step of time.
    pub step: Duration,
    /// Where all randomness comes from.
    pub seed: u64,
}

/// Groups of more members send less than a beacon a second each.
pub(super) const STEADY: usize = 1000;

/// How long members come and go at least, if nothing else is wanted: some crash, early enough for all to see it.
const CHANGES: Duration = Duration::from_secs(9);

impl MembershipSimulationConfig {
    /// So many members: for five minutes with a change a second and a partition; for 65
    /// seconds (75 with 12,000 members) with four changes a second and without the partition in groups above 2,000, where all
    /// that takes its time.
    pub fn new(members: usize, seed: u64) -> Self {
        let large = members > 2 * STEADY;
        let mut config = Self {
            members,
            loss: 0.0,
            duration: Duration::from_secs(if large { 65 } else { 300 }),
            churn: if large { 240.0 } else { 60.0 },
            partition: !large,
            step: Duration::from_millis(if large { 50 } else { 20 }),
            seed,
        };
        config.duration = config.duration.max(config.joining() + CHANGES + config.calm());
        config
    }

    /// The longest time between two beacons of a member.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis((self.members as u64).max(STEADY as u64) * 1000 / STEADY as u64)
    }

    /// How soon members join: at once in small groups, else a thousand a second.
    pub(super) fn joining(&self) -> Duration {
        Duration::from_millis(self.members as u64)
    }

    /// Within this time all must have seen a failure: three intervals of silence, the suspicion, and how late each
    /// looks.
    pub(super) fn failure_bound(&self) -> Duration {
        self.interval().mul_f64(3.2) + Duration::from_millis(1800)
    }

    /// Within this time all must have seen a join.
    pub(super) fn join_bound(&self) -> Duration {
        let large = self.members > STEADY;
        Duration::from_secs(2) + if large { self.interval() * 3 } else { Duration::ZERO }
    }

    /// The calm at the end.
    pub(super) fn calm(&self) -> Duration {
        self.failure_bound() + self.interval() + Duration::from_secs(2)
    }

    pub(super) fn check(&self) -> Result<(), SimulationError> {
        let refuse = |what, range| Err(SimulationError::OutOfRange { what, range });
        if !(2..=12_000).contains(&self.members) {
            return refuse("members", "2 to 12000");
        }
        if !(0.0..=0.5).contains(&self.loss) {
            return refuse("loss", "0 to 0.5");
        }
        if !(0.0..=6000.0).contains(&self.churn) {
            return refuse("churn", "0 to 6000 changes a minute");
        }
        let least = self.joining() + self.calm() + Duration::from_secs(1);
        if self.duration < least || self.duration > Duration::from_secs(86_400) {
            return refuse(
                "duration",
                "long enough for all to join and to settle (10 s, or 57 s for 10,000 members), to a day",
            );
        }
        if !(1..=50).contains(&self.step.as_millis()) {
            return refuse("step", "1 to 50 ms");
        }
        Ok(())
    }
}
