//! Real devices: UD verbs through rdma-sys, the bindings of libibverbs and librdmacm.
//!
//! The only unsafe code of the crate is here, one file for each kind of object. An object holds what it was made of
//! in an `Arc`, so that nothing is destroyed before what depends on it, whatever the order of drops; `Drop`
//! logs what fails and panics never.
//!
//! | file | what |
//! | --- | --- |
//! | `ret` | the four ways in which verbs tell that they failed |
//! | `layout` | C structs that start as zeroes, and checks of their layout |
//! | `device`, `presence` | the list of devices, an open one, and why there is none |
//! | `gid` | the GID table: chosen by type and address, found again by value |
//! | `pd`, `memlock` | memory: one registration for each slab |
//! | `cq`, `srq`, `qp`, `modify` | queues, what is posted to them, and the walk of states |
//! | `ah` | address handles, resolved by helper threads |
//! | `cm` | rdma_cm: its events, its ids, and the devices that it opened |
//! | `mcast`, `ipoib` | groups, through rdma_cm or by a plain attach; where rdma_cm finds an InfiniBand port |
//! | `event` | asynchronous events |
//! | `fork` | children of this process, and pages that stay ours |
//!
//! # What Soft-RoCE taught
//! An address handle must have a GRH. A send above the MTU is told as a success and never sent, and one that was
//! refused before RTS is sent later: both are refused here, by what is known. A send that fails takes its queue pair
//! to ERR with no event: so a bad completion asks for the state, and [`Device::advance`] does once a second.
//! `qkey_viol_cntr` counts the port's violations, whoever's queue pair they were for. Datagrams that are dropped
//! for want of a receive are counted nowhere.

mod ah;
mod cm;
mod cq;
mod device;
mod error;
mod event;
mod fork;
mod gid;
mod ipoib;
mod layout;
mod mcast;
mod memlock;
mod modify;
#[cfg(test)]
mod on_devices;
mod open;
mod pd;
mod port;
mod presence;
mod qp;
mod receive;
mod ret;
mod srq;
mod wake;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use nix::libc;
use qcast_proto::addr::{Gid, PKey, Qpn, ROCE_PORT};
use qcast_proto::qp::{ModifyContext, QpAttrs, QpState, QpType};
use qcast_proto::time::Instant;
use slab::Slab;

use self::ah::AhTable;
use self::cm::{CmChannel, CmId};
use self::cq::{Channel, Cq, WcRoom};
use self::device::Context;
pub use self::device::list_devices;
pub use self::error::VerbsOpenError;
use self::event::Reader;
use self::mcast::Membership;
use self::open::Port;
pub use self::open::VerbsConfig;
use self::pd::{Mr, Pd, Slabs};
use self::qp::{Qp, Shape};
use self::srq::Posted;
pub use super::spec::{JoinBy, QpBy};
use super::{
    AhAttrs, AhId, AhStatus, Armed, Completion, Device, DeviceCaps, DeviceError, DeviceEvent,
    PortCounters, PortInfo, QpId, QpInfo, RecvBuf, SendBuf, SendWr, Sources,
};

/// A real device; see the [module](self).
///
/// Dropping it leaves its groups and destroys what is its own, and the device is closed, as soon as an address that is
/// just being resolved has been or has not. Buffers that are still held keep their memory and lose its registration.
pub struct VerbsDevice {
    // In the order in which they are to be dropped: what refers to others comes before them.
    memberships: Vec<Membership>,
    qps: Slab<Qp>,
    /// None if neither queue pairs nor groups need rdma_cm.
    cm: Option<CmChannel>,
    numbers: BTreeMap<Qpn, QpId>,
    ahs: AhTable,
    posted: Posted,
    #[expect(dead_code, reason = "it takes memory back when it is dropped, after the queues")]
    slabs: Slabs,
    recv_cq: Arc<Cq>,
    /// Whether an event will tell of the next receive.
    recv_armed: bool,
    done: VecDeque<Completion>,
    events: VecDeque<DeviceEvent>,
    counters: PortCounters,
    /// The port's counter of QKey violations when it was last read.
    violations: u32,
    room: WcRoom,
    next_seq: u64,
    now: Instant,
    /// When to look after port and queue pairs again.
    look_at: Instant,
    lost: bool,
    context_of_modifies: ModifyContext,
    port: Port,
    max_inline: usize,
    /// The payload that a receive has room for.
    recv_capacity: usize,
    qp_by: QpBy,
    join: JoinBy,
    /// Groups, queue pairs in one of them, and attachments in all, as the device has them.
    mcast_limits: [u32; 3],
    caps: DeviceCaps,
    sources: Vec<RawFd>,
    channel: Arc<Channel>,
    pd: Arc<Pd>,
    reader: Reader,
    context: Arc<Context>,
}

impl fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsDevice")
            .field("name", &self.caps.name)
            .field("gid", &self.port.gid)
            .field("mtu", &self.port.mtu)
            .field("memberships", &self.memberships)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Device for VerbsDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn port(&self) -> PortInfo {
        PortInfo {
            port: self.port.number,
            gid: self.port.gid.gid,
            udp_port: ROCE_PORT,
            mtu: self.port.mtu,
            active: self.port.active,
        }
    }

    fn advance(&mut self, now: Instant) {
        self.now = now;
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.look_after();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        // A queue pair that moved by itself, with no event, is found by looking.
        (!self.lost && !self.qps.is_empty()).then_some(self.look_at)
    }

    fn alloc_send(&mut self, count: usize) -> Result<Vec<SendBuf>, DeviceError> {
        let mut bufs = SendBuf::slab(count, self.caps.max_payload);
        let registration = Mr::register(&self.pd, bufs.iter_mut().map(SendBuf::span))?;
        bufs.iter_mut().for_each(|buf| buf.register(&registration));
        Ok(bufs)
    }

    fn alloc_recv(&mut self, count: usize) -> Result<Vec<RecvBuf>, DeviceError> {
        // Room for the largest datagram of the port, whatever is allowed here: on Soft-RoCE one that does not fit takes
        // the queue pair to ERR, which no peer should be able to.
        let mut bufs = RecvBuf::slab(count, self.recv_capacity);
        let registration = Mr::register(&self.pd, bufs.iter_mut().map(RecvBuf::span))?;
        bufs.iter_mut().for_each(|buf| buf.register(&registration));
        Ok(bufs)
    }

    fn create_qp(&mut self) -> Result<QpId, DeviceError> {
        let id = match self.qp_by {
            QpBy::Verbs => None,
            QpBy::RdmaCm => {
                let id = CmId::create(self.cm_channel()?)?;
                id.bind(self.cm_address()?)?;
                Some(id)
            }
        };
        self.make_qp(QpType::Ud, id)
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        self.qps.get(qp.0).map_or(Qpn::default(), |qp| qp.number)
    }

    fn modify_qp(&mut self, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
        let context = self.context_of_modifies;
        let found = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
        found.modify(attrs, &context)?;
        if found.state == QpState::Reset {
            found.flush(qp, &mut self.room, &mut self.done);
        }
        Ok(())
    }

    fn query_qp(&mut self, qp: QpId) -> Result<QpInfo, DeviceError> {
        self.qps.get_mut(qp.0).ok_or(NO_QP)?.query()
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), DeviceError> {
        let found = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
        if found.attached > 0 {
            return Err(DeviceError::Busy("a queue pair that is attached to a group"));
        }
        // Its receives first: once it is gone nobody knows whose they were.
        self.gather_receives(usize::MAX);
        let Some(found) = self.qps.get_mut(qp.0) else { return Err(NO_QP) };
        found.destroy()?;
        found.flush(qp, &mut self.room, &mut self.done);
        let number = found.number;
        self.numbers.remove(&number);
        self.qps.remove(qp.0);
        Ok(())
    }

    fn join(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.begin_join(qp, mgid)
    }

    fn leave(&mut self, qp: QpId, mgid: Gid) -> Result<(), DeviceError> {
        self.leave_group(qp, mgid)
    }

    fn create_ah(&mut self, to: &AhAttrs) -> Result<(AhId, AhStatus), DeviceError> {
        self.begin_ah(to)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), DeviceError> {
        self.ahs.destroy(ah)
    }

    fn post_recv(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        self.posted.post(bufs)
    }

    fn post_send(&mut self, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
        let found = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
        let before = found.state;
        let result = found.post(sends, &mut self.ahs, self.port.mtu, &mut self.next_seq);
        self.note_state(qp, before);
        result
    }

    fn arm_srq_limit(&mut self, limit: usize) -> Result<(), DeviceError> {
        self.posted.srq().arm_limit(limit)
    }

    fn poll(&mut self, out: &mut Vec<Completion>, budget: usize) {
        self.gather(budget);
        for completion in self.done.drain(..budget.min(self.done.len())) {
            if let Completion::Send { qp, ah, .. } = &completion {
                self.ahs.polled(*ah);
                if let Some(qp) = self.qps.get_mut(qp.0) {
                    qp.unpolled = qp.unpolled.saturating_sub(1);
                }
            }
            out.push(completion);
        }
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        if self.events.is_empty() {
            self.take_events();
        }
        self.events.pop_front()
    }

    fn pkey(&self) -> PKey {
        let entry = self.context.pkey(self.port.number, 0);
        entry.map_or(PKey::DEFAULT, PKey)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn refresh_counters(&mut self) {
        if !self.lost {
            match self.context.query_port(self.port.number) {
                Ok(attr) => self.note_violations(&attr),
                Err(error) => tracing::debug!(device = %self.caps.name, %error, "no counters"),
            }
        }
    }

    fn posted_recvs(&self) -> usize {
        self.posted.len()
    }

    fn sources(&self) -> Sources<'_> {
        Sources { epoch: 1, fds: &self.sources }
    }

    fn arm(&mut self) -> Armed {
        self.arm_all()
    }
}

impl VerbsDevice {
    fn cm_channel(&self) -> Result<&CmChannel, DeviceError> {
        self.cm.as_ref().ok_or(DeviceError::NoSuch("channel of rdma_cm"))
    }

    /// A queue pair of this kind in RESET.
    #[cfg(test)]
    fn create_qp_of(&mut self, kind: QpType) -> Result<QpId, DeviceError> {
        self.make_qp(kind, None)
    }

    fn make_qp(&mut self, kind: QpType, id: Option<CmId>) -> Result<QpId, DeviceError> {
        let depth = self.caps.max_send_wr;
        let cq = Cq::create(&self.context, &self.channel, depth)?;
        let srq = self.posted.srq();
        let shape = Shape { kind, depth, inline: self.max_inline };
        let qp = Qp::create(&self.pd, cq, &self.recv_cq, srq, shape, id)?;
        let number = qp.number;
        let id = QpId(self.qps.insert(qp));
        self.numbers.insert(number, id);
        Ok(id)
    }

    /// Tells of a queue pair that is no longer in `before`, if it moved by itself to where it cannot send.
    fn note_state(&mut self, id: QpId, before: QpState) {
        let Some(qp) = self.qps.get(id.0) else { return };
        if qp.state != before && matches!(qp.state, QpState::Sqe | QpState::Err) {
            tracing::debug!(qpn = %qp.number, %before, now = %qp.state, "the queue pair moved by itself");
            self.events.push_back(DeviceEvent::QpFault { qp: id, state: qp.state });
        }
    }

    /// Asks a queue pair for its state, and tells if it moved.
    fn examine(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id.0) else { return };
        let before = qp.state;
        if let Err(error) = qp.query() {
            tracing::debug!(qpn = %qp.number, %error, "a queue pair could not be queried");
            if is_gone(&error) {
                return self.lose("ibv_query_qp says so");
            }
        }
        self.note_state(id, before);
    }

    /// Lets the next send of a queue pair fail, by a key that no memory has: for tests of recovery.
    ///
    /// # Errors
    /// There is no such queue pair. Nothing was changed.
    pub fn fail_next_send(&mut self, qp: QpId) -> Result<(), DeviceError> {
        self.qps.get_mut(qp.0).ok_or(NO_QP)?.spoil_next = true;
        Ok(())
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        let left: Vec<(QpId, Gid)> =
            self.memberships.iter().map(|group| (group.qp, group.mgid)).collect();
        for (qp, mgid) in left {
            if let Err(error) = self.leave_group(qp, mgid) {
                tracing::warn!(mgid = %mgid.ip(), %error, "a group was not left");
            }
        }
    }
}

/// Whether an error means that there is no device any more.
fn is_gone(error: &DeviceError) -> bool {
    matches!(ret::errno(error), Some(libc::EIO | libc::ENODEV))
}

const NO_QP: DeviceError = DeviceError::NoSuch("queue pair");

/// How often port and queue pairs are looked at: what changes without an event is seen by then.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
