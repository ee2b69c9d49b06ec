//! What happened on a fabric: a digest of everything, tallies, and the log itself if it was asked for.

use qcast_proto::time::Instant;

/// One datagram at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub at: Instant,
    /// The sender's port; `None` for a stranger's datagram.
    pub from: Option<u32>,
    /// The receiver's port; `None` if it did not come that far.
    pub to: Option<u32>,
    /// Whether it came by multicast.
    pub multicast: bool,
    /// Its payload in bytes.
    pub bytes: u32,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a datagram at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It left its sender.
    Sent,
    /// It is in a buffer of the receiver.
    Delivered,
    /// The path lost it.
    Lost,
    /// Its ICRC was wrong.
    Corrupted,
    /// A partition, a link that is down, or a block kept it off.
    Blocked,
    /// A rule dropped it.
    Ruled,
    /// Its QKey was not the queue pair's.
    WrongQkey,
    /// It was for no queue pair that takes datagrams.
    NoQueuePair,
    /// It was larger than the receiver's buffers.
    TooLarge,
    /// No receive was posted.
    NoBuffer,
}

impl Outcome {
    const COUNT: usize = Self::NoBuffer as usize + 1;
}

/// Collects [`Record`]s.
#[derive(Debug)]
pub(super) struct Trace {
    digest: u64,
    tallies: [u64; Outcome::COUNT],
    log: Option<Vec<Record>>,
}

impl Trace {
    pub(super) fn new(keep: bool) -> Self {
        Self { digest: 0, tallies: [0; Outcome::COUNT], log: keep.then(Vec::new) }
    }

    pub(super) fn record(&mut self, record: Record) {
        self.tallies[record.outcome as usize] += 1;
        let from = record.from.map_or(u64::MAX, u64::from);
        let to = record.to.map_or(u64::MAX, u64::from);
        let rest = u64::from(record.bytes) << 16
            | u64::from(record.multicast) << 8
            | record.outcome as u64;
        for word in [record.at.as_nanos(), from.rotate_left(32) ^ to, rest] {
            // Fx hashing: enough to tell two runs apart, and nearly free.
            self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if let Some(log) = &mut self.log {
            log.push(record);
        }
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn tally(&self, outcome: Outcome) -> u64 {
        self.tallies[outcome as usize]
    }

    pub(super) fn take_log(&mut self) -> Vec<Record> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
