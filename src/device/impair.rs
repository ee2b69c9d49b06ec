//! What a path does to datagrams: loss, delay, reordering, duplication, corruption.
//!
//! The simulator has one [`Channel`] for each direction of each port, the fault wrapper one for each
//! direction of its device. An [`Impairment`] says how bad the path is; the channel holds what it
//! remembers: its own generator, whether it is in a burst of loss, and the last arrival. The same
//! seed and the same datagrams give the same fates.

use qcast_proto::time::{Duration, Instant};

/// How bad a path is. The default is a perfect one.
///
/// Probabilities are from 0 to 1 and for each datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Impairment {
    /// How often a datagram is lost, on average.
    pub loss: f64,
    /// How many datagrams in a row are lost, on average (Gilbert-Elliott, all lost in the bad state
    /// and none in the good). Up to 1, losses are independent.
    pub burst: f64,
    /// How long every datagram is held.
    pub delay: Duration,
    /// Up to how much longer, drawn anew for each. By itself it does not change the order.
    pub jitter: Duration,
    /// How often a datagram is held back so that later ones overtake it.
    pub reorder: f64,
    /// For how long it is.
    pub reorder_by: Duration,
    /// How often a datagram comes twice; the second comes up to [`Impairment::reorder_by`] later.
    pub duplicate: f64,
    /// How often a datagram is damaged on the way and its ICRC tells.
    pub corrupt: f64,
    /// How often a datagram is damaged and its ICRC does not tell, so that the bytes reach the node.
    pub mangle: f64,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            loss: 0.0,
            burst: 1.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: 0.0,
            reorder_by: Self::REORDER_BY,
            duplicate: 0.0,
            corrupt: 0.0,
            mangle: 0.0,
        }
    }
}

impl Impairment {
    /// Long enough that several datagrams of a busy stream overtake the one held back, and far below
    /// a round trip between hosts under load.
    pub const REORDER_BY: Duration = Duration::from_micros(100);

    /// A path that loses this share of the datagrams, each by itself.
    pub fn lossy(loss: f64) -> Self {
        Self { loss, ..Self::default() }
    }

    /// A path that loses this share of the datagrams, `burst` in a row on average.
    pub fn bursty(loss: f64, burst: f64) -> Self {
        Self { loss, burst, ..Self::default() }
    }

    /// Whether nothing happens on the path, so that it need not be asked.
    pub fn is_clear(&self) -> bool {
        let chances = [self.loss, self.reorder, self.duplicate, self.corrupt, self.mangle];
        self.delay.is_zero() && self.jitter.is_zero() && chances.iter().all(|&p| p <= 0.0)
    }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is lost.
    Lost,
    /// It arrives with a wrong ICRC.
    Corrupted,
    /// It arrives.
    Arrives {
        /// When.
        at: Instant,
        /// When it arrives once more, if it does.
        again: Option<Instant>,
        /// Whether its bytes are damaged without a trace.
        mangled: bool,
    },
}

/// One direction of a path: what it remembers from datagram to datagram.
#[derive(Clone, Debug)]
pub struct Channel {
    rng: fastrand::Rng,
    in_burst: bool,
    latest: Instant,
}

impl Channel {
    /// A channel that draws from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), in_burst: false, latest: Instant::ZERO }
    }

    /// What becomes of a datagram that enters the path at `at`.
    pub fn pass(&mut self, path: &Impairment, at: Instant) -> Fate {
        if self.loses(path) {
            return Fate::Lost;
        }
        if self.draws(path.corrupt) {
            return Fate::Corrupted;
        }
        let mut arrival = at + path.delay + self.up_to(path.jitter);
        if self.draws(path.reorder) {
            arrival += path.reorder_by;
        } else {
            arrival = arrival.max(self.latest);
            self.latest = arrival;
        }
        let again = self.draws(path.duplicate).then(|| arrival + self.up_to(path.reorder_by));
        Fate::Arrives { at: arrival, again, mangled: self.draws(path.mangle) }
    }

    /// Damages `bytes`: bits flip in one of them, or (once in four) the end is cut off. Returns the
    /// length that is left.
    pub fn mangle(&mut self, bytes: &mut [u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        if self.rng.u8(..4) == 0 {
            return self.rng.usize(..bytes.len());
        }
        let at = self.rng.usize(..bytes.len());
        bytes[at] ^= self.rng.u8(1..);
        bytes.len()
    }

    fn loses(&mut self, path: &Impairment) -> bool {
        if path.loss <= 0.0 {
            return false;
        }
        if path.burst <= 1.0 {
            return self.draws(path.loss);
        }
        // The share of time in the bad state is loss, the mean stay in it is burst.
        let leave = 1.0 / path.burst;
        let enter = path.loss * leave / (1.0 - path.loss).max(f64::MIN_POSITIVE);
        if self.draws(if self.in_burst { leave } else { enter }) {
            self.in_burst = !self.in_burst;
        }
        self.in_burst || path.loss >= 1.0
    }

    fn draws(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if nanos == 0 { 0 } else { self.rng.u64(..=nanos) })
    }
}

/// A seed for the `n`th of many generators that all come from one seed and shall not be alike.
pub(crate) fn mix(seed: u64, n: u64) -> u64 {
    // The finaliser of SplitMix64: neighbouring inputs differ in half of the output's bits.
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u32 = 200_000;

    /// How many are lost, and in how many runs.
    fn losses(path: Impairment, seed: u64) -> (u32, u32) {
        let mut channel = Channel::new(seed);
        let (mut lost, mut runs, mut before) = (0, 0, false);
        for _ in 0..N {
            let now = channel.pass(&path, Instant::ZERO) == Fate::Lost;
            lost += u32::from(now);
            runs += u32::from(now && !before);
            before = now;
        }
        (lost, runs)
    }

    #[test]
    fn independent_loss_is_as_asked() {
        for (seed, loss) in [(1, 0.001), (2, 0.02), (3, 0.5)] {
            let (lost, _) = losses(Impairment::lossy(loss), seed);
            let (mean, sigma) = (f64::from(N) * loss, (f64::from(N) * loss * (1.0 - loss)).sqrt());
            assert!((f64::from(lost) - mean).abs() < 5.0 * sigma, "seed {seed}: {lost} of {mean}");
        }
        assert_eq!(losses(Impairment::lossy(1.0), 4).0, N);
        assert_eq!(losses(Impairment::lossy(0.0), 5).0, 0);
    }

    #[test]
    fn bursts_have_the_length_and_the_rate_asked_for() {
        let (lost, runs) = losses(Impairment::bursty(0.02, 8.0), 6);
        let mean_run = f64::from(lost) / f64::from(runs);
        assert!((0.017..0.023).contains(&(f64::from(lost) / f64::from(N))), "{lost} lost");
        assert!((7.0..9.0).contains(&mean_run), "runs of {mean_run}");
        assert_eq!(losses(Impairment::bursty(1.0, 8.0), 7).0, N);
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let arrivals = |path: &Impairment| {
            let mut channel = Channel::new(8);
            let mut arrivals = Vec::new();
            for i in 0..1000 {
                match channel.pass(path, Instant::from_micros(i)) {
                    Fate::Arrives { at, again: None, mangled: false } => arrivals.push(at),
                    other => panic!("{other:?}"),
                }
            }
            arrivals
        };
        let jitter = Impairment { jitter: Duration::from_micros(50), ..Default::default() };
        assert!(arrivals(&jitter).is_sorted());
        let reorder = Impairment { reorder: 0.1, ..jitter };
        assert!(!arrivals(&reorder).is_sorted());
    }

    #[test]
    fn a_clear_path_changes_nothing() {
        let path = Impairment::default();
        assert!(path.is_clear());
        assert!(!Impairment::lossy(0.1).is_clear());
        let at = Instant::from_millis(3);
        let fate = Channel::new(9).pass(&path, at);
        assert_eq!(fate, Fate::Arrives { at, again: None, mangled: false });
    }

    #[test]
    fn mangling_always_changes_something() {
        let mut channel = Channel::new(10);
        for _ in 0..1000 {
            let mut bytes = [0x5a; 32];
            let len = channel.mangle(&mut bytes);
            assert!(bytes[..len] != [0x5a; 32]);
        }
        assert_eq!(channel.mangle(&mut []), 0);
    }
}
