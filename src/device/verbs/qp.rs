//! Queue pairs and the sends posted to them.
//!
//! A queue pair has a completion queue of its own for its sends, as deep as its send queue, so that it cannot
//! overrun. Of the sends of one post the last is signalled, and one in [`SIGNAL_EVERY`] before it: completions
//! come in order, so one of them says that those before it have ended well too. Those that end badly
//! always have a completion.

use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use nix::libc;
use qcast_proto::addr::Qpn;
use qcast_proto::qp::{QpState, QpType};
use rdma_sys as sys;

use super::ah::AhTable;
use super::cm::CmId;
use super::cq::{Cq, WcRoom};
use super::layout::Plain;
use super::pd::Pd;
use super::ret;
use super::srq::Srq;
use crate::device::{AhId, Completion, DeviceError, QpId, SendBuf, SendWr, WcStatus};

/// A queue pair, and what is posted to it.
pub(super) struct Qp {
    raw: NonNull<sys::ibv_qp>,
    pub(super) number: Qpn,
    pub(super) kind: QpType,
    /// The state as far as it is known: the device may have moved it since.
    pub(super) state: QpState,
    /// The port that it was given in INIT.
    pub(super) port: Option<u8>,
    /// Groups that it is attached to.
    pub(super) attached: usize,
    /// Sends whose completions were not polled yet by the device's user.
    pub(super) unpolled: usize,
    /// Whether the next send is to fail: for tests.
    pub(super) spoil_next: bool,
    pub(super) cq: Arc<Cq>,
    /// Whether an event will tell of the next completion.
    pub(super) armed: bool,
    posted: VecDeque<Posted>,
    depth: usize,
    max_inline: usize,
    wrs: Vec<sys::ibv_send_wr>,
    sges: Vec<sys::ibv_sge>,
    /// Destroyed, and let go by the device.
    gone: bool,
    /// The id of rdma_cm that made it, if one did.
    id: Option<CmId>,
    pd: Arc<Pd>,
    #[expect(dead_code, reason = "it must outlive the queue pair")]
    srq: Arc<Srq>,
}

// SAFETY: libibverbs allows the calls on a QP from every thread, and the raw pointers in `wrs` and `sges` are written
// and read within one call of `post` only.
unsafe impl Send for Qp {}

/// A send that has not ended yet.
struct Posted {
    seq: u64,
    ah: AhId,
    token: u64,
    buf: SendBuf,
}

/// What a queue pair is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) kind: QpType,
    /// Sends that can be posted.
    pub(super) depth: usize,
    /// Bytes that a request can take in.
    pub(super) inline: usize,
}

/// How many sends one completion may speak for.
const SIGNAL_EVERY: usize = 16;

/// Sends posted by one call of the verb.
const BATCH: usize = 64;

impl Qp {
    /// A queue pair on the SRQ: in RESET, or in RTS with rdma_cm's key where an id of it is to make it.
    pub(super) fn create(
        pd: &Arc<Pd>,
        cq: Arc<Cq>,
        recv_cq: &Cq,
        srq: &Arc<Srq>,
        Shape { kind, depth, inline }: Shape,
        id: Option<CmId>,
    ) -> Result<Self, DeviceError> {
        let mut init = sys::ibv_qp_init_attr::zeroed();
        init.send_cq = cq.as_ptr();
        init.recv_cq = recv_cq.as_ptr();
        init.srq = srq.as_ptr();
        init.qp_type = match kind {
            QpType::Rc => sys::ibv_qp_type::IBV_QPT_RC,
            QpType::Uc => sys::ibv_qp_type::IBV_QPT_UC,
            QpType::Ud => sys::ibv_qp_type::IBV_QPT_UD,
        };
        // Nothing for receives: with an SRQ there are none of its own, and some drivers mind.
        init.cap.max_send_wr = u32::try_from(depth).unwrap_or(u32::MAX);
        init.cap.max_send_sge = 1;
        init.cap.max_inline_data = u32::try_from(inline).unwrap_or(u32::MAX);
        let (raw, state) = match &id {
            None => {
                // SAFETY: PD, CQs and SRQ live on: the queue pair holds its own, and the receive CQ is the device's, which
                // drops its queue pairs first. `init` outlives the call.
                let raw = unsafe { sys::ibv_create_qp(pd.as_ptr(), &mut init) };
                (ret::pointer("ibv_create_qp", raw)?, QpState::Reset)
            }
            Some(id) => (id.create_qp(pd, &mut init)?, QpState::Rts),
        };
        // SAFETY: the queue pair was just made; its number never changes.
        let number = Qpn::new(unsafe { raw.as_ref() }.qp_num);
        Ok(Self {
            raw,
            number,
            kind,
            state,
            port: id.as_ref().map(CmId::port),
            attached: 0,
            unpolled: 0,
            spoil_next: false,
            cq,
            armed: false,
            posted: VecDeque::with_capacity(depth),
            depth,
            // What was given counts, not what was asked for.
            max_inline: usize::try_from(init.cap.max_inline_data).unwrap_or(0),
            wrs: Vec::with_capacity(BATCH),
            sges: Vec::with_capacity(BATCH),
            gone: false,
            id,
            pd: Arc::clone(pd),
            srq: Arc::clone(srq),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// Posts from the front of `sends` until it is empty, the queue is full, or one cannot be posted.
    pub(super) fn post(
        &mut self,
        sends: &mut VecDeque<SendWr>,
        ahs: &mut AhTable,
        mtu: usize,
        next_seq: &mut u64,
    ) -> Result<(), DeviceError> {
        // Soft-RoCE refuses a send before RTS, and sends it later all the same.
        if !self.state.sends() {
            return Err(DeviceError::NotReady(self.state));
        }
        loop {
            let room = self.depth.saturating_sub(self.unpolled.max(self.posted.len()));
            let most = room.min(sends.len()).min(BATCH);
            if most == 0 {
                return Ok(());
            }
            let refused = self.prepare(sends, most, ahs, mtu);
            let count = self.wrs.len();
            if count > 0 {
                self.post_prepared(sends, ahs, next_seq)?;
            }
            refused?;
        }
    }

    /// Builds requests for the first `most` sends, up to one that cannot be posted.
    fn prepare(
        &mut self,
        sends: &mut VecDeque<SendWr>,
        most: usize,
        ahs: &AhTable,
        mtu: usize,
    ) -> Result<(), DeviceError> {
        self.wrs.clear();
        self.sges.clear();
        for send in sends.iter_mut().take(most) {
            let ah = ahs.usable(send.ah)?;
            let len = send.buf.payload().len();
            // A real device would say "success" and send nothing.
            if len > mtu {
                return Err(DeviceError::TooLarge { len, max: mtu });
            }
            let owner = self.pd.as_ptr().addr();
            let (addr, length, mut lkey) = match send.buf.registered(owner) {
                Some(registered) => registered,
                None => {
                    // Memory that was registered with a device that is gone: once for each slab.
                    send.buf.renew(&self.pd)?;
                    send.buf.registered(owner).ok_or(DeviceError::Unregistered)?
                }
            };
            let mut wr = sys::ibv_send_wr::zeroed();
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
            wr.num_sge = 1;
            if self.spoil_next {
                (self.spoil_next, lkey) = (false, !lkey);
            } else if len <= self.max_inline {
                wr.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
            }
            wr.wr.ud = sys::ud_t { ah, remote_qpn: send.qpn.get(), remote_qkey: send.qkey };
            self.sges.push(sys::ibv_sge { addr: addr as u64, length, lkey });
            self.wrs.push(wr);
        }
        Ok(())
    }

    /// Posts what was prepared, the first of `sends`.
    fn post_prepared(
        &mut self,
        sends: &mut VecDeque<SendWr>,
        ahs: &mut AhTable,
        next_seq: &mut u64,
    ) -> Result<(), DeviceError> {
        let count = self.wrs.len();
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for (at, wr) in self.wrs.iter_mut().enumerate() {
            let last = at + 1 == count;
            if last || (at + 1) % SIGNAL_EVERY == 0 {
                wr.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            wr.wr_id = *next_seq + at as u64;
            wr.sg_list = sges.wrapping_add(at);
            wr.next = if last { null_mut() } else { wrs.wrapping_add(at + 1) };
        }
        let mut bad = null_mut();
        // SAFETY: the list is `count` requests in `wrs`, each with one element in `sges`, and neither is touched during
        // the call. Each element lies in an MR of the queue pair's PD (`registered` checked it) but for one that a test
        // spoilt, whose key is nobody's. Its buffer is in `sends` now and in `posted` until its completion comes, so
        // nobody else can write to it. The handles are ready (`usable`), and counted as used until then.
        let code = unsafe { sys::ibv_post_send(self.raw.as_ptr(), wrs, &mut bad) };
        let result = ret::returned("ibv_post_send", code);
        let posted = match &result {
            Ok(()) => count,
            // Those before the bad one were posted. If none is named (Soft-RoCE, whose queue pair another has moved)
            // all are in the ring: they stay posted until the queue pair is reset.
            Err(_) => (0..count).find(|at| wrs.wrapping_add(*at) == bad).unwrap_or(count),
        };
        for send in sends.drain(..posted) {
            ahs.posted(send.ah);
            self.posted.push_back(Posted {
                seq: *next_seq,
                ah: send.ah,
                token: send.token,
                buf: send.buf,
            });
            *next_seq += 1;
        }
        self.unpolled += posted;
        match result {
            // No room after all.
            Err(error) if ret::errno(&error) == Some(libc::ENOMEM) => Ok(()),
            Err(error) if posted == count => {
                tracing::warn!(qpn = %self.number, %error, "the queue pair does not send");
                self.query()?;
                Ok(())
            }
            other => other,
        }
    }

    /// Posts one send to a connected queue pair, which needs no address.
    #[cfg(test)]
    pub(super) fn post_connected(
        &mut self,
        mut buf: SendBuf,
        next_seq: &mut u64,
    ) -> Result<(), DeviceError> {
        let owner = self.pd.as_ptr().addr();
        let (addr, length, lkey) = buf.registered(owner).ok_or(DeviceError::Unregistered)?;
        let mut sge = sys::ibv_sge { addr: addr as u64, length, lkey };
        let mut wr = sys::ibv_send_wr::zeroed();
        wr.wr_id = *next_seq;
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        let mut bad = null_mut();
        // SAFETY: one request with one element, both of which outlive the call; the memory is registered, and its buffer
        // stays in `posted` until the completion comes.
        let code = unsafe { sys::ibv_post_send(self.raw.as_ptr(), &mut wr, &mut bad) };
        ret::returned("ibv_post_send", code)?;
        self.posted.push_back(Posted { seq: *next_seq, ah: AhId(usize::MAX), token: 0, buf });
        *next_seq += 1;
        Ok(())
    }

    /// Takes the completions of sends until `done` has `enough`; whether one of them tells of a fault.
    pub(super) fn gather(
        &mut self,
        id: QpId,
        room: &mut WcRoom,
        done: &mut VecDeque<Completion>,
        enough: usize,
    ) -> bool {
        let mut fault = false;
        // With nothing posted only leftovers from before a reset can be there.
        while !self.posted.is_empty() && done.len() < enough {
            let wcs = room.upto(BATCH);
            let count = match self.cq.poll(wcs) {
                Ok(count) => count,
                Err(error) => {
                    tracing::warn!(qpn = %self.number, %error, "polling failed");
                    return true;
                }
            };
            for wc in &wcs[..count] {
                let status = status_of(wc.status);
                fault |= !matches!(status, WcStatus::Success);
                self.ended(id, wc.wr_id, status, done);
            }
            if count < BATCH {
                break;
            }
        }
        fault
    }

    /// The send `seq` has ended, and so have those before it, well. One from before a reset is unknown.
    fn ended(&mut self, id: QpId, seq: u64, status: WcStatus, done: &mut VecDeque<Completion>) {
        if self.posted.back().is_none_or(|last| seq > last.seq) {
            return;
        }
        while self.posted.front().is_some_and(|first| first.seq <= seq) {
            let Some(posted) = self.posted.pop_front() else { break };
            let status = if posted.seq == seq { status } else { WcStatus::Success };
            done.push_back(posted.completion(id, status));
        }
    }

    /// Ends everything that is still posted: after the queue pair was reset or destroyed no completion comes.
    pub(super) fn flush(&mut self, id: QpId, room: &mut WcRoom, done: &mut VecDeque<Completion>) {
        self.gather(id, room, done, usize::MAX);
        while let Some(posted) = self.posted.pop_front() {
            done.push_back(posted.completion(id, WcStatus::WrFlushErr));
        }
    }

    /// Destroys it. Sends that are posted stay in `posted`; [`Qp::flush`] ends them.
    pub(super) fn destroy(&mut self) -> Result<(), DeviceError> {
        if self.gone {
            return Ok(());
        }
        // SAFETY: the queue pair was not destroyed yet, as `gone` tells, and nothing refers to it: it is attached to no
        // group, or the kernel refuses; its asynchronous events are acknowledged as they are taken.
        let code = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        // The device is gone, and with it all that was on it.
        self.gone = matches!(code, 0 | libc::EIO | libc::ENODEV);
        if let (true, Some(id)) = (self.gone, &mut self.id) {
            id.forget_qp();
        }
        if self.gone { Ok(()) } else { ret::returned("ibv_destroy_qp", code) }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            // The device may still read what is posted, so its memory is given up.
            tracing::warn!(qpn = %self.number, %error, "a QP was not destroyed");
            std::mem::forget(std::mem::take(&mut self.posted));
            std::mem::forget(self.id.take());
        }
    }
}

impl Posted {
    fn completion(self, qp: QpId, status: WcStatus) -> Completion {
        Completion::Send { qp, ah: self.ah, token: self.token, buf: self.buf, status }
    }
}

/// What a work completion's status means here.
pub(super) fn status_of(raw: sys::ibv_wc_status::Type) -> WcStatus {
    use sys::ibv_wc_status as wc;
    match raw {
        wc::IBV_WC_SUCCESS => WcStatus::Success,
        wc::IBV_WC_LOC_LEN_ERR => WcStatus::LocLenErr,
        wc::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocQpOpErr,
        wc::IBV_WC_LOC_PROT_ERR => WcStatus::LocProtErr,
        wc::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlushErr,
        other => WcStatus::Other(other),
    }
}
