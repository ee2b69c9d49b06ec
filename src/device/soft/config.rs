//! What to open, and how large.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::spec::SoftAddress;

/// How a [`SoftDevice`](super::SoftDevice) is opened.
///
/// # Examples
/// ```
/// use qcast::device::soft::{SoftAddress, SoftConfig};
///
/// let config = SoftConfig::new(SoftAddress::Loopback).mtu(1024).srq_depth(256);
/// assert_eq!(config.mtu, Some(1024));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoftConfig {
    /// Where it lives.
    pub address: SoftAddress,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096. The largest that fits the interface if not given.
    pub mtu: Option<usize>,
    /// Bytes of receive buffer to ask the kernel for, for each socket.
    pub recv_buffer: usize,
    /// Bytes of send buffer to ask the kernel for.
    pub send_buffer: usize,
    /// The greatest number of receives that can be posted.
    pub srq_depth: usize,
    /// The greatest number of sends of one queue pair whose completions were not polled yet.
    pub send_depth: usize,
    /// Address handles that may live at once, those of groups included.
    pub max_ah: usize,
    /// How many routers a multicast may pass, plus one.
    pub multicast_ttl: u8,
    /// Whether to let the kernel cut batches into datagrams (UDP GSO) and to take them whole (UDP GRO). On by
    /// default; the kernel is asked, and done without if it refuses.
    pub offload: bool,
    /// Draws the address on loopback and the queue pair numbers.
    pub seed: u64,
}

impl SoftConfig {
    /// The defaults, at `address`: 4 MiB of buffer for each socket (enough for about a thousand full datagrams between
    /// two polls), an SRQ of 4096, 1024 sends a queue pair, 4096 address handles, and multicast that stays on
    /// its link: a TTL of 1, since a group that routers carry should be asked for.
    pub fn new(address: SoftAddress) -> Self {
        Self {
            address,
            mtu: None,
            recv_buffer: 4 << 20,
            send_buffer: 4 << 20,
            srq_depth: 4096,
            send_depth: 1024,
            max_ah: 4096,
            multicast_ttl: 1,
            offload: true,
            seed: next_seed(),
        }
    }

    /// Sets [`SoftConfig::mtu`].
    #[must_use]
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets [`SoftConfig::srq_depth`].
    #[must_use]
    pub fn srq_depth(mut self, receives: usize) -> Self {
        self.srq_depth = receives;
        self
    }

    /// Sets [`SoftConfig::recv_buffer`].
    #[must_use]
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.recv_buffer = bytes;
        self
    }

    /// Sets [`SoftConfig::multicast_ttl`].
    #[must_use]
    pub fn multicast_ttl(mut self, ttl: u8) -> Self {
        self.multicast_ttl = ttl;
        self
    }

    /// Sets [`SoftConfig::offload`].
    #[must_use]
    pub fn offload(mut self, on: bool) -> Self {
        self.offload = on;
        self
    }

    /// Sets [`SoftConfig::seed`].
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Another one for each device of a process, and for each process. Two that draw the same address cost a second
/// try, no more.
fn next_seed() -> u64 {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    u64::from(std::process::id()) << 32 | OPENED.fetch_add(1, Ordering::Relaxed)
}

/// A stream of well-mixed numbers (splitmix64).
#[derive(Debug)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
