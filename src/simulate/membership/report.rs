//! What a simulation of members found.

use serde::Serialize;

/// What a simulation of members found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MembershipReport {
    /// Members when all had joined.
    pub members: usize,
    /// The share of datagrams that each receiver lost.
    pub loss: f64,
    /// The seed.
    pub seed: u64,
    /// Virtual time.
    pub virtual_seconds: f64,
    /// Members that joined, left, crashed, restarted and paused after all were there.
    pub changes: u64,
    /// How long it took a member to see another join, of 99 in 100.
    pub join_p99_ms: u64,
    /// The longest.
    pub join_max_ms: u64,
    /// How long it took a member to see another's crash, of 99 in 100.
    pub failure_detect_p99_ms: u64,
    /// The longest.
    pub failure_detect_max_ms: u64,
    /// Members that another one failed though they lived and could be reached.
    pub false_failures: u64,
    /// Suspicions that were refuted.
    pub refuted: u64,
    /// Members whose view is not the group at the end, after a calm.
    pub view_disagreements: u64,
    /// Bytes of frames that a member sent a second.
    pub bytes_per_member_per_second: f64,
    /// Bytes of frames that a member received a second.
    pub received_bytes_per_member_per_second: f64,
    /// The same of a member's beacons, probes and answers, and rosters and digests, in datagrams sent.
    pub datagrams_per_member_per_second: f64,
    /// A check value of all that was told: the same command gives the same.
    pub digest: String,
    /// What must hold and did not.
    pub violations: u64,
    /// The first of them, described.
    pub described: Vec<String>,
}

impl MembershipReport {
    /// Whether everything held.
    pub fn is_sound(&self) -> bool {
        self.violations == 0
    }
}
