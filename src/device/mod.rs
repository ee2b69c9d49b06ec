//! The bottom of the house: UD verbs in small, and the providers that offer them.
//!
//! [`Device`] is what the engine drives: one SRQ and one receive queue of completions for the whole
//! node, a UD queue pair for each group, address handles, multicast, completions and asynchronous
//! events. `docs/device-contract.md` states the rules; one conformance suite runs them on every
//! provider. The rules that shape the trait:
//!
//! * **Buffers are owned tokens.** A post consumes one; its completion, or the error, gives it back.
//! * **No posted receive, no datagram.** It is dropped and counted, never queued.
//! * **A QKey that differs drops the datagram** and raises [`PortCounters::qkey_violations`].
//! * **Queue pair states are enforced** with [`qcast_proto::qp`] by every provider.
//! * **Nothing blocks.** What takes time on real devices (a join, the resolution of an address) ends
//!   in a [`DeviceEvent`].
//! * **Time is an argument**: [`Device::advance`] is called first in every turn.

pub(crate) mod absent;
mod agenda;
pub mod buf;
mod error;
pub mod fault;
pub mod impair;
pub mod open;
pub mod sim;
#[cfg(target_os = "linux")]
pub mod soft;
pub mod spec;
#[cfg(feature = "verbs")]
#[expect(
    unsafe_code,
    reason = "the one place where foreign functions are called, but for `soft::forks`"
)]
pub mod verbs;

use std::collections::VecDeque;
use std::os::fd::RawFd;

use qcast_proto::addr::{Gid, PKey, Qpn};
use qcast_proto::qp::{QpAttrs, QpState};
use qcast_proto::time::Instant;

pub use buf::{RecvBuf, SendBuf};
pub use error::DeviceError;

/// A queue pair of a device, by its place in the provider's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(pub usize);

/// An address handle of a device, by its place in the provider's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AhId(pub usize);

/// UD verbs in small. See the [module](self) for the rules that every provider keeps.
///
/// A device belongs to one engine and is driven by one thread at a time.
pub trait Device: Send {
    /// What the device can do, as found at open. Does not change.
    fn caps(&self) -> &DeviceCaps;

    /// The port as it is now: its GID, MTU and link.
    fn port(&self) -> PortInfo;

    /// Tells the device what time it is. Called first in every turn; on devices with a clock of their
    /// own it does nothing.
    fn advance(&mut self, now: Instant);

    /// When the device itself next wants a turn (a delayed datagram of the fault wrapper or the simulator).
    fn next_deadline(&self) -> Option<Instant>;

    /// Registers memory for `count` sends of up to [`DeviceCaps::max_payload`] bytes.
    ///
    /// # Errors
    /// The memory could not be had or registered. Nothing was allocated.
    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError>;

    /// Registers memory for `count` receives of up to [`DeviceCaps::max_payload`] bytes, each with 40
    /// bytes of GRH space before it.
    ///
    /// # Errors
    /// The memory could not be had or registered. Nothing was allocated.
    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError>;

    /// Creates a UD queue pair in RESET, on the node's SRQ.
    ///
    /// # Errors
    /// A limit of the device. Nothing was created.
    fn create_qp(&mut self) -> Result<QpId, DeviceError>;

    /// The number of a queue pair: what peers address.
    fn qpn(&self, qp: QpId) -> Qpn;

    /// Changes a queue pair. The caller has checked the step; the provider checks it again.
    ///
    /// # Errors
    /// The step is not legal, or the device refused it. The queue pair is as it was.
    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError>;

    /// Asks the device, not a cache, for a queue pair's state and key.
    ///
    /// # Errors
    /// The device did not answer.
    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError>;

    /// Destroys a queue pair. Buffers of sends still posted come back as flushed completions first.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while it is attached to a group: leave first. Nothing was destroyed.
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError>;

    /// Starts to join the multicast group `mgid` and to attach `qp` to it. The answer is
    /// [`DeviceEvent::Joined`] or [`DeviceEvent::JoinFailed`], also when it is known at once.
    ///
    /// # Errors
    /// The request itself is bad (not a multicast address, a family the device cannot join). Nothing
    /// was started.
    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError>;

    /// Leaves exactly what [`Device::join`] joined, or gives a pending join up. The group's address
    /// handle is destroyed with it once no send uses it.
    ///
    /// # Errors
    /// It was not joined, or the device refused.
    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError>;

    /// Creates an address handle for a peer. When the answer is [`AhStatus::Pending`] a
    /// [`DeviceEvent::AhReady`] or [`DeviceEvent::AhFailed`] follows; a send must wait for it.
    ///
    /// # Errors
    /// The device has no more handles ([`DeviceError::Exhausted`]: evict one and try again), or cannot
    /// reach such an address.
    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError>;

    /// Destroys an address handle. The caller makes sure that no posted send uses it.
    ///
    /// # Errors
    /// A send still uses it ([`DeviceError::Busy`]). It was not destroyed.
    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError>;

    /// Posts receives to the SRQ, from the end of `bufs`, as many as it takes; the rest stays.
    ///
    /// # Errors
    /// The device refused; what was not posted is still in `bufs`.
    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError>;

    /// Posts sends in order from the front of `sends` until it is empty or the queue is full (then the
    /// rest stays, with no error). Nothing is posted unless the queue pair is in RTS.
    ///
    /// # Errors
    /// The send at the front cannot be posted, as the error says; it and those behind it stay.
    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError>;

    /// Asks for one [`DeviceEvent::SrqLimit`] when fewer than `limit` receives are posted; 0 takes the
    /// request back. The event disarms it: ask again after each, and after a refill.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: watch [`Device::posted_recvs`] instead.
    fn arm_srq_limit(&mut self, limit: usize) -> Result<(), DeviceError> {
        let _ = limit;
        Err(DeviceError::Unsupported("an SRQ limit"))
    }

    /// Takes up to `budget` completions. Fewer means that there are no more now.
    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize);

    /// Takes one asynchronous event. Events are acknowledged when they are taken.
    fn poll_event(&mut self) -> Option<DeviceEvent>;

    /// The partition that queue pairs are in: entry 0 of the port's table.
    fn pkey(&self) -> PKey {
        PKey::DEFAULT
    }

    /// The port's counters, from the opening of the device on. Those that the hardware keeps are as they were when they
    /// were last looked at, a second ago at most: [`Device::refresh_counters`] looks now.
    fn counters(&self) -> PortCounters;

    /// Looks at the counters that the hardware keeps.
    fn refresh_counters(&mut self) {}

    /// How many receives are posted to the SRQ now.
    fn posted_recvs(&self) -> usize;

    /// The file descriptors whose readability means that [`Device::poll`] or [`Device::poll_event`] has something.
    /// `epoch` changes whenever the list does.
    fn sources(&self) -> Sources<'_>;

    /// Called before the thread sleeps: asks for a wake-up, then looks once more.
    /// [`Armed::Again`] means that something is there: poll, do not sleep. Wake-ups are edge-triggered.
    fn arm(&mut self) -> Armed;
}

/// What a device can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceCaps {
    /// The device's name: `soft:lo`, `verbs:mlx5_0/1`.
    pub name: String,
    /// The greatest payload of one datagram in bytes: the port's active MTU at open.
    pub max_payload: usize,
    /// The greatest number of receives that can be posted to the SRQ.
    pub max_srq_wr: usize,
    /// The greatest number of sends that can be posted to one queue pair.
    pub max_send_wr: usize,
    /// Address handles that may live at once.
    pub max_ah: usize,
    /// How many datagrams of full size the device holds between two polls before it drops some, beyond what is posted
    /// to the SRQ: for a software device the socket's buffer, for hardware nothing stands in the way (`usize::MAX`).
    pub backlog: usize,
    /// Whether one's own multicast is looped back to attached queue pairs: `None` if it is not known.
    pub loops_back: Option<bool>,
    /// Whether the link layer is Ethernet (RoCE), where every address handle needs a GRH.
    pub ethernet: bool,
    /// Whether the device counts the datagrams that it drops for want of a receive or of a queue pair that takes
    /// them ([`PortCounters::out_of_buffer`], [`PortCounters::malformed`]); many real ones do not.
    pub counts_drops: bool,
    /// Entries of the partition key table.
    pub pkeys: u16,
    /// Ports of the device.
    pub ports: u8,
    /// The state of a new queue pair: RESET, or RTS where rdma_cm makes it (C-STATE-1).
    pub new_qp: QpState,
}

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// The port's number, from 1.
    pub port: u8,
    /// The GID that peers reach this node by.
    pub gid: Gid,
    /// The UDP port that it is reached by: 4791 but for software endpoints that share a host.
    pub udp_port: u16,
    /// The greatest payload in bytes.
    pub mtu: usize,
    /// Whether the link is up.
    pub active: bool,
}

/// What [`Device::query_qp`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInfo {
    /// The state that the device holds.
    pub state: QpState,
    /// The queue key that the device holds.
    pub qkey: u32,
    /// In SQD: whether sends that were begun are not finished yet. Until they are a modify may be refused as
    /// [`DeviceError::Busy`].
    pub draining: bool,
}

/// Where an address handle leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AhAttrs {
    /// The destination's GID.
    pub gid: Gid,
    /// The destination's UDP port; real devices always send to 4791.
    pub udp_port: u16,
}

/// Whether a new address handle can be used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AhStatus {
    /// It can.
    Ready,
    /// Its address is being resolved; an event tells the end.
    Pending,
}

/// A send request.
#[derive(Debug)]
pub struct SendWr {
    /// The way to the destination.
    pub ah: AhId,
    /// The destination's queue pair: [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The key that the destination must hold. Bit 31 set means "the sending queue pair's own key".
    pub qkey: u32,
    /// The caller's own mark; the completion carries it back.
    pub token: u64,
    /// What to send: [`SendBuf::payload`].
    pub buf: SendBuf,
}

/// What became of a posted request.
#[derive(Debug)]
pub enum Completion {
    /// A send ended; on a UD queue pair success means "sent", not "received".
    Send {
        /// The queue pair.
        qp: QpId,
        /// The address handle that the send no longer uses.
        ah: AhId,
        /// The mark of the request.
        token: u64,
        /// The buffer, given back.
        buf: SendBuf,
        /// How it ended.
        status: WcStatus,
    },
    /// A receive ended.
    Recv {
        /// The queue pair that the datagram was for. `None` when the receive was flushed or failed.
        qp: Option<QpId>,
        /// The buffer, given back; [`RecvBuf::payload`] is the datagram's payload if the status is success.
        buf: RecvBuf,
        /// Who sent it, as far as the header tells.
        source: Source,
        /// How it ended.
        status: WcStatus,
    },
}

/// Who sent a datagram, from its GRH and DETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The sender's GID.
    pub gid: Gid,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The UDP port where the sender can be reached, as far as it can be seen.
    pub udp_port: u16,
    /// Whether it came by multicast.
    pub multicast: bool,
}

/// The status of a completion. Numbers are libibverbs' `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcStatus {
    /// 0.
    Success,
    /// 1: for a receive, the datagram was larger than the buffer.
    LocLenErr,
    /// 2.
    LocQpOpErr,
    /// 4.
    LocProtErr,
    /// 5: the queue pair went to ERR (or SQE) before this request's turn came.
    WrFlushErr,
    /// Any other.
    Other(u32),
}

/// An asynchronous event.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The join ended well: `ah` leads to the group.
    Joined {
        /// The queue pair.
        qp: QpId,
        /// The group.
        mgid: Gid,
        /// The group's address handle; [`Device::leave`] destroys it.
        ah: AhId,
    },
    /// The join failed; the queue pair is not attached.
    JoinFailed {
        /// The queue pair.
        qp: QpId,
        /// The group.
        mgid: Gid,
        /// Why.
        error: DeviceError,
    },
    /// A pending address handle can be used.
    AhReady {
        /// The handle.
        ah: AhId,
    },
    /// A pending address handle could not be resolved; it no longer exists.
    AhFailed {
        /// The handle.
        ah: AhId,
        /// Why.
        error: DeviceError,
    },
    /// A queue pair went to ERR or SQE by itself.
    QpFault {
        /// The queue pair.
        qp: QpId,
        /// The state it is in.
        state: QpState,
    },
    /// The SRQ fell below its limit.
    SrqLimit,
    /// The port's link, GID or MTU changed: ask [`Device::port`].
    PortChanged,
    /// The device is gone: nothing of it works any more. What is posted comes back when its queue pairs are destroyed.
    /// Drop it soon: whoever takes it away may wait for that.
    Lost {
        /// How that was noticed.
        cause: &'static str,
    },
}

/// A port's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams received into a posted buffer.
    pub received: u64,
    /// Datagrams dropped because their QKey differs from the queue pair's (`qkey_viol_cntr`).
    pub qkey_violations: u64,
    /// Datagrams dropped because no receive was posted (`out_of_buffer`).
    pub out_of_buffer: u64,
    /// Datagrams dropped by the operating system because the device was not polled in time. A batch that it kept
    /// together counts as one, and what was dropped last shows with the next datagram.
    pub overruns: u64,
    /// Datagrams dropped because their ICRC is wrong.
    pub icrc_errors: u64,
    /// Datagrams dropped for other faults in their headers, or sent to no queue pair of ours.
    pub malformed: u64,
    /// Datagrams that the fault wrapper dropped on purpose.
    pub injected_drops: u64,
}

impl std::ops::Add for PortCounters {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            sent: self.sent + more.sent,
            received: self.received + more.received,
            qkey_violations: self.qkey_violations + more.qkey_violations,
            out_of_buffer: self.out_of_buffer + more.out_of_buffer,
            overruns: self.overruns + more.overruns,
            icrc_errors: self.icrc_errors + more.icrc_errors,
            malformed: self.malformed + more.malformed,
            injected_drops: self.injected_drops + more.injected_drops,
        }
    }
}

/// See [`Device::sources`].
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Changes whenever `fds` does. Then register all of them anew: the number of a descriptor that was closed
    /// may stand for another one now.
    pub epoch: u64,
    /// The descriptors; they stay open until the epoch changes.
    pub fds: &'a [RawFd],
}

/// See [`Device::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing is there; a wake-up will come.
    Sleep,
    /// Something is there already.
    Again,
}
