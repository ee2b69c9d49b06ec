//! A port's state: its queue pairs, its SRQ, its completions and its place in the fabric.

use std::collections::VecDeque;

use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::qp::QpState;
use qcast_proto::time::Instant;
use slab::Slab;

use super::config::{Personality, PortConfig};
use crate::device::buf::RecvBuf;
use crate::device::impair::{Channel, Fate, Impairment, mix};
use crate::device::{
    AhAttrs, AhId, Completion, DeviceError, DeviceEvent, PortCounters, QpId, SendWr, WcStatus,
};

/// A port. Its place in the fabric's table is its index and is never used again.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) gid: Gid,
    pub(super) udp_port: u16,
    pub(super) mtu: usize,
    pub(super) link_up: bool,
    /// The process does not run: nothing is taken from the port, everything still arrives.
    pub(super) paused: bool,
    /// The device is gone.
    pub(super) lost: bool,
    /// It is in the fabric's list of ports that have something.
    pub(super) listed: bool,
    /// Its side of a partition, for unicast and for multicast.
    pub(super) sides: Sides,
    pub(super) rx: Path,
    pub(super) tx: Path,
    pub(super) qps: QueuePairs,
    pub(super) ahs: Slab<Ah>,
    pub(super) joins: Vec<Join>,
    pub(super) srq: Srq,
    pub(super) completions: VecDeque<Completion>,
    /// How many of the completions are receives.
    pub(super) received: usize,
    pub(super) events: VecDeque<DeviceEvent>,
    pub(super) counters: PortCounters,
    /// When the last send that was begun has left.
    pub(super) idle_at: Instant,
    pub(super) config: Box<PortConfig>,
}

impl Port {
    pub(super) fn new(config: PortConfig, gid: Gid, seed: u64) -> Self {
        Self {
            gid,
            udp_port: config.udp_port,
            mtu: config.mtu,
            link_up: true,
            paused: false,
            lost: false,
            listed: false,
            sides: Sides::default(),
            rx: Path::new(config.rx, mix(seed, 0)),
            tx: Path::new(config.tx, mix(seed, 1)),
            qps: QueuePairs::default(),
            ahs: Slab::new(),
            joins: Vec::new(),
            srq: Srq::default(),
            completions: VecDeque::new(),
            received: 0,
            events: VecDeque::new(),
            counters: PortCounters::default(),
            idle_at: Instant::ZERO,
            config: Box::new(config),
        }
    }

    /// Whether `poll` or `poll_event` would give something.
    pub(super) fn has_something(&self) -> bool {
        let nothing = self.completions.is_empty() && self.events.is_empty();
        !self.paused && !nothing
    }

    /// The device as an error, once it is lost.
    pub(super) fn check(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.lost { Err(refusal(call, EIO)) } else { Ok(()) }
    }

    /// Posts receives from the end of `bufs`.
    pub(super) fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) {
        let room = self.config.max_srq_wr.saturating_sub(self.srq.bufs.len());
        let keep = bufs.len().saturating_sub(room);
        for mut buf in bufs.drain(keep..) {
            if buf.capacity() == 0 {
                // A posted shell must not keep the last payload alive.
                buf.share(bytes::Bytes::new());
            }
            self.srq.bufs.push(buf);
        }
    }

    /// Takes the receive that was posted last: with many ports the one that is still in the cache.
    pub(super) fn take_recv(&mut self) -> Option<RecvBuf> {
        let buf = self.srq.bufs.pop()?;
        if self.srq.bufs.len() < self.srq.limit {
            self.srq.limit = 0;
            self.events.push_back(DeviceEvent::SrqLimit);
        }
        Some(buf)
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        self.received += usize::from(matches!(completion, Completion::Recv { .. }));
        self.completions.push_back(completion);
    }

    /// Takes up to `budget` completions; what their sends used is free from then on.
    pub(super) fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        if self.paused {
            return;
        }
        for _ in 0..budget {
            let Some(completion) = self.completions.pop_front() else { break };
            match &completion {
                Completion::Send { qp, ah, .. } => {
                    if let Some(qp) = self.qps.find_mut(*qp) {
                        qp.outstanding = qp.outstanding.saturating_sub(1);
                    }
                    self.release_ah(*ah);
                }
                Completion::Recv { .. } => self.received -= 1,
            }
            out.push(completion);
        }
    }

    fn release_ah(&mut self, ah: AhId) {
        let Some(entry) = self.ahs.get_mut(ah.0) else { return };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0 && entry.left {
            self.ahs.remove(ah.0);
        }
    }

    /// Ends every send that `qp` still has, oldest first.
    pub(super) fn flush(&mut self, qp: QpId) {
        let Some(entry) = self.qps.find_mut(qp) else { return };
        entry.departs = None;
        for wr in std::mem::take(&mut entry.sends) {
            let SendWr { ah, token, buf, .. } = wr;
            self.complete(Completion::Send { qp, ah, token, buf, status: WcStatus::WrFlushErr });
        }
    }

    /// Moves a queue pair to SQE or ERR as if by itself.
    pub(super) fn fault(&mut self, qp: QpId, state: QpState, announced: bool) {
        let Some(entry) = self.qps.find_mut(qp) else { return };
        entry.state = state;
        self.flush(qp);
        if announced {
            self.events.push_back(DeviceEvent::QpFault { qp, state });
        }
    }

    /// The state that a failed send leads to, and whether an event tells.
    pub(super) fn after_failed_send(&self) -> (QpState, bool) {
        match self.config.personality {
            Personality::Hardware => (QpState::Sqe, true),
            Personality::SoftRoce => (QpState::Err, false),
        }
    }
}

/// One direction of a port's path, with a note on whether anything happens on it.
#[derive(Debug)]
pub(super) struct Path {
    impairment: Impairment,
    clear: bool,
    pub(super) channel: Channel,
}

impl Path {
    fn new(impairment: Impairment, seed: u64) -> Self {
        Self { impairment, clear: impairment.is_clear(), channel: Channel::new(seed) }
    }

    pub(super) fn set(&mut self, impairment: Impairment) {
        self.impairment = impairment;
        self.clear = impairment.is_clear();
    }

    /// What becomes of a datagram; `None` on a clear path: nothing.
    pub(super) fn fate(&mut self, at: Instant) -> Option<Fate> {
        (!self.clear).then(|| self.channel.pass(&self.impairment, at))
    }
}

/// On which side of a partition a port is, and what it is deaf to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sides {
    pub(super) unicast: u16,
    pub(super) multicast: u16,
    pub(super) deaf_to_unicast: bool,
    pub(super) deaf_to_multicast: bool,
}

impl Sides {
    /// Where strangers stand: on every side.
    pub(super) const ANYWHERE: Self = Self {
        unicast: u16::MAX,
        multicast: u16::MAX,
        deaf_to_unicast: false,
        deaf_to_multicast: false,
    };

    /// Whether a datagram from `self` gets to `other`.
    pub(super) fn reaches(self, other: Self, multicast: bool) -> bool {
        let (ours, theirs, deaf) = if multicast {
            (self.multicast, other.multicast, other.deaf_to_multicast)
        } else {
            (self.unicast, other.unicast, other.deaf_to_unicast)
        };
        !deaf && (ours == theirs || ours == u16::MAX)
    }
}

/// The shared receive queue.
#[derive(Debug, Default)]
pub(super) struct Srq {
    pub(super) bufs: Vec<RecvBuf>,
    /// Below which an event tells, once; 0 when it has, or was not asked for.
    pub(super) limit: usize,
}

/// A port's queue pairs. Their places are not used again, so that a late completion of one that is gone
/// cannot be taken for another's.
#[derive(Debug, Default)]
pub(super) struct QueuePairs {
    table: Vec<Option<Qp>>,
}

impl QueuePairs {
    pub(super) fn add(&mut self, qp: Qp) -> QpId {
        self.table.push(Some(qp));
        QpId(self.table.len() - 1)
    }

    pub(super) fn live(&self) -> usize {
        self.table.iter().flatten().count()
    }

    pub(super) fn find(&self, qp: QpId) -> Option<&Qp> {
        self.table.get(qp.0)?.as_ref()
    }

    pub(super) fn find_mut(&mut self, qp: QpId) -> Option<&mut Qp> {
        self.table.get_mut(qp.0)?.as_mut()
    }

    pub(super) fn get(&self, qp: QpId) -> Result<&Qp, DeviceError> {
        self.find(qp).ok_or(DeviceError::NoSuch("queue pair"))
    }

    pub(super) fn get_mut(&mut self, qp: QpId) -> Result<&mut Qp, DeviceError> {
        self.find_mut(qp).ok_or(DeviceError::NoSuch("queue pair"))
    }

    pub(super) fn remove(&mut self, qp: QpId) {
        if let Some(place) = self.table.get_mut(qp.0) {
            *place = None;
        }
    }

    pub(super) fn by_number(&self, qpn: Qpn) -> Option<QpId> {
        let number = |qp: &Option<Qp>| qp.as_ref().is_some_and(|qp| qp.qpn == qpn);
        self.table.iter().position(number).map(QpId)
    }

    pub(super) fn sends_posted(&self) -> usize {
        self.table.iter().flatten().map(|qp| qp.sends.len()).sum()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = QpId> + use<> {
        (0..self.table.len()).map(QpId)
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) state: QpState,
    pub(super) qkey: u32,
    /// The port number it was given in INIT.
    pub(super) port: Option<u8>,
    /// Sends that have not left.
    pub(super) sends: VecDeque<SendWr>,
    /// When the first of them leaves, once that is settled.
    pub(super) departs: Option<Instant>,
    /// Sends whose completions were not taken.
    pub(super) outstanding: usize,
    /// How the next send ends, if it is to fail.
    pub(super) failure: Option<WcStatus>,
    /// How many modifies are refused from now on, and the errno.
    pub(super) refusals: Option<(u32, i32)>,
}

impl Qp {
    pub(super) fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            state: QpState::Reset,
            qkey: 0,
            port: None,
            sends: VecDeque::new(),
            departs: None,
            outstanding: 0,
            failure: None,
            refusals: None,
        }
    }
}

/// An address handle.
#[derive(Debug)]
pub(super) struct Ah {
    pub(super) to: AhTo,
    /// The resolution of its address that has not ended.
    pub(super) pending: Option<Ticket>,
    /// Sends that use it and whose completions were not taken.
    pub(super) uses: usize,
    /// Its group was left: it goes with its last send.
    pub(super) left: bool,
}

/// Where an address handle leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AhTo {
    /// To one port.
    Peer(AhAttrs),
    /// To a group.
    Group(Gid),
}

/// A queue pair's membership in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) ticket: Ticket,
    pub(super) qp: QpId,
    pub(super) mgid: Gid,
    /// The group's address handle; `None` until the join has ended.
    pub(super) ah: Option<AhId>,
}

/// Tells a join or a resolution from an earlier one that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

/// A refusal by the operating system that the simulator plays.
pub(super) fn refusal(call: &'static str, errno: i32) -> DeviceError {
    DeviceError::Os { call, source: std::io::Error::from_raw_os_error(errno) }
}

/// Linux's number for an I/O error: what a device that is gone answers.
const EIO: i32 = 5;
