//! What a fabric and its ports are like.

use qcast_proto::addr::{Gid, ROCE_PORT};
use qcast_proto::time::Duration;

use crate::device::impair::Impairment;

/// What a [`Fabric`](super::Fabric) is like.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FabricConfig {
    /// How long a datagram takes from any port to any other, before what ports add.
    pub latency: Duration,
    /// How long a multicast join takes.
    pub join_delay: Duration,
    /// How long the address of a peer that answers takes to resolve. At zero an address handle is
    /// ready at once.
    pub ah_delay: Duration,
    /// How long the address of a peer that does not answer takes to fail: a second in the kernel.
    pub ah_timeout: Duration,
    /// Whether every [`Record`](super::Record) is kept. Without it only the digest and the tallies are.
    pub trace: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(5),
            join_delay: Duration::ZERO,
            ah_delay: Duration::ZERO,
            ah_timeout: Duration::from_secs(1),
            trace: false,
        }
    }
}

/// What a port of a fabric is like.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortConfig {
    /// Its GID; without one it gets an address of its own in 10.0.0.0/8. A port that takes the GID
    /// and UDP port of an older one replaces it, as a restarted process does.
    pub gid: Option<Gid>,
    /// Its UDP port.
    pub udp_port: u16,
    /// The greatest payload it sends and takes, in bytes.
    pub mtu: usize,
    /// Queue pairs that may live at once.
    pub max_qp: usize,
    /// The greatest number of receives in the SRQ.
    pub max_srq_wr: usize,
    /// The greatest number of sends of a queue pair whose completions were not taken.
    pub max_send_wr: usize,
    /// Address handles that may live at once, those of groups included.
    pub max_ah: usize,
    /// What happens to datagrams on their way in, after [`FabricConfig::latency`].
    pub rx: Impairment,
    /// What happens to datagrams on their way out, before they part: a loss here is everyone's.
    pub tx: Impairment,
    /// Bytes a second that the port sends; without a limit sends take no time.
    pub rate: Option<u64>,
    /// Whether its own multicast comes back to it.
    pub loops_back: bool,
    /// Whose habits it has where devices differ.
    pub personality: Personality,
    /// Whether it may set QKeys with bit 31 set.
    pub privileged: bool,
    /// Whether receives have memory of their own, as on a real device, or share the sender's copy of
    /// the payload: with many ports that saves most of the memory and time.
    pub own_memory: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            gid: None,
            udp_port: ROCE_PORT,
            mtu: 4096,
            max_qp: 256,
            max_srq_wr: 4096,
            max_send_wr: 256,
            max_ah: 1024,
            rx: Impairment::default(),
            tx: Impairment::default(),
            rate: None,
            loops_back: true,
            personality: Personality::Hardware,
            privileged: false,
            own_memory: false,
        }
    }
}

/// Whose habits a port has where devices differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// What the specification says: a send that fails moves a UD queue pair to SQE with an event, and
    /// a QKey with bit 31 set in a send means the queue pair's own.
    Hardware,
    /// What Soft-RoCE does: a send that fails moves the queue pair to ERR, no event tells, and a
    /// QKey is sent as given.
    SoftRoce,
}
