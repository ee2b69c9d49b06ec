//! How long frames were missing: a histogram that does not grow with their number.

use qcast_proto::time::Duration;

/// Times between finding that a frame is missing and having it, of frames that were asked for.
///
/// Eight buckets an octave: a quantile is right to an eighth. Memory grows with the logarithm of the
/// longest time, to 1.3 kB at most.
#[derive(Clone, Debug, Default)]
pub struct RepairTimes {
    counts: Vec<u32>,
    count: u64,
    longest: Duration,
}

/// Buckets an octave, as a power of two.
const BITS: u32 = 3;

/// Longer times count as this long: 18 minutes, beyond any time after which a frame is given up.
const LONGEST: u64 = 1 << 40;

impl RepairTimes {
    pub(super) fn record(&mut self, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let bucket = bucket_of(nanos);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.count += 1;
        self.longest = self.longest.max(waited);
    }

    /// Adds another node's times.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (ours, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *ours = ours.saturating_add(*theirs);
        }
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The time that a share of `q` of them did not exceed (rounded up to its bucket); `None` if there are none.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank
        })?;
        Some(Duration::from_nanos(end_of(bucket)).min(self.longest))
    }
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min(LONGEST);
    if nanos < 1 << BITS {
        return nanos as usize;
    }
    let octave = nanos.ilog2();
    let place = (nanos >> (octave - BITS)) & ((1 << BITS) - 1);
    ((octave - BITS + 1) << BITS) as usize + place as usize
}

/// The greatest number of nanoseconds in a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let (octave, place) = (bucket >> BITS, bucket & ((1 << BITS) - 1));
    if octave == 0 {
        return place;
    }
    (((1 << BITS) + place + 1) << (octave - 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_gapless_and_rising() {
        let mut last = 0;
        for bucket in 0..bucket_of(LONGEST) {
            assert_eq!(bucket_of(end_of(bucket)), bucket);
            assert_eq!(bucket_of(end_of(bucket) + 1), bucket + 1);
            assert!(bucket == 0 || end_of(bucket) > last);
            last = end_of(bucket);
        }
    }

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let mut times = RepairTimes::default();
        assert_eq!(times.quantile(0.5), None);
        let mut half = RepairTimes::default();
        for micros in 1..=1000 {
            let of = if micros % 2 == 0 { &mut times } else { &mut half };
            of.record(Duration::from_micros(micros));
        }
        times.merge(&half);
        assert_eq!((times.count(), times.longest()), (1000, Duration::from_millis(1)));
        for (q, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
            let got = times.quantile(q).unwrap().as_secs_f64() * 1e6;
            assert!((micros..=micros * 1.125).contains(&got), "{q}: {got}");
        }
        times.record(Duration::MAX);
        assert!(times.counts.len() < 330);
    }
}
