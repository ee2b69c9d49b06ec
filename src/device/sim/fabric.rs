//! The handle to a fabric: time, ports, and what can be observed.

use std::sync::Arc;

use parking_lot::Mutex;
use qcast_proto::time::Instant;

use super::config::{FabricConfig, PortConfig};
use super::device::SimDevice;
use super::net::Net;
use super::trace::{Outcome, Record};
use crate::device::{Completion, PortCounters};

/// A network in virtual time. Clones are handles to the same one.
///
/// One lock guards the whole of it, since time is the same everywhere; a simulation runs on one
/// thread. [Rules](Fabric::add_rule) run under that lock and must not use the fabric themselves.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(super) net: Arc<Mutex<Net>>,
}

impl Fabric {
    /// A fabric with no ports, its clock at zero.
    pub fn new(config: FabricConfig, seed: u64) -> Self {
        Self { net: Arc::new(Mutex::new(Net::new(config, seed))) }
    }

    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.net.lock().seed
    }

    /// Adds a port. Its index is the number of ports opened before it; it closes when the device is
    /// dropped, and its index is not used again.
    pub fn open(&self, config: PortConfig) -> SimDevice {
        SimDevice::open(self.clone(), config)
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        self.net.lock().now
    }

    /// When there is next something to do: now, if a port has something to poll. `None`: nothing will
    /// happen until a device does something.
    pub fn next_event(&self) -> Option<Instant> {
        self.net.lock().next_event()
    }

    /// Lets everything happen that is due by `to`, moves the clock there, and adds the ports that
    /// have something to poll to `ready`, each once.
    ///
    /// The clock never moves back: with a `to` in the past only what is due now happens.
    pub fn step_to(&self, to: Instant, ready: &mut Vec<usize>) {
        let mut net = self.net.lock();
        net.run(to);
        net.take_ready(ready);
    }

    /// How many events wait in the queue.
    pub fn pending_events(&self) -> usize {
        self.net.lock().queue.len()
    }

    /// A number that depends on everything that happened to every datagram so far, and on nothing else.
    pub fn digest(&self) -> u64 {
        self.net.lock().trace.digest()
    }

    /// How many datagrams came to this end, each counted at each of its receivers.
    pub fn tally(&self, outcome: Outcome) -> u64 {
        self.net.lock().trace.tally(outcome)
    }

    /// Takes what was logged since the last call, if [`FabricConfig::trace`] is set.
    pub fn take_log(&self) -> Vec<Record> {
        self.net.lock().trace.take_log()
    }

    /// Where a port's buffers are; `None` if it is closed.
    pub fn accounting(&self, port: usize) -> Option<Accounting> {
        let net = self.net.lock();
        let port = net.find(port)?;
        let ended = port.completions.len() - port.received;
        debug_assert_eq!(
            port.received,
            port.completions.iter().filter(|c| matches!(c, Completion::Recv { .. })).count()
        );
        Some(Accounting {
            posted: port.srq.bufs.len(),
            in_completion: port.received,
            sends_posted: port.qps.sends_posted(),
            sends_in_completion: ended,
        })
    }

    /// A port's counters; `None` if it is closed.
    pub fn counters(&self, port: usize) -> Option<PortCounters> {
        self.net.lock().find(port).map(|port| port.counters)
    }
}

/// Where the buffers are that a port's owner has given to it. What is not here, the owner has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Receives in the SRQ.
    pub posted: usize,
    /// Receives in completions that were not taken.
    pub in_completion: usize,
    /// Sends that have not left.
    pub sends_posted: usize,
    /// Sends in completions that were not taken.
    pub sends_in_completion: usize,
}
