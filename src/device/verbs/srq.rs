//! The shared receive queue and the buffers posted to it.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use nix::libc;
use rdma_sys as sys;
use slab::Slab;

use super::layout::Plain;
use super::pd::Pd;
use super::ret;
use crate::device::{DeviceError, RecvBuf};

/// The queue itself. Queue pairs hold it.
#[derive(Debug)]
pub(super) struct Srq {
    raw: NonNull<sys::ibv_srq>,
    pd: Arc<Pd>,
    gone: bool,
}

// SAFETY: libibverbs allows the calls on an SRQ from every thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(super) fn create(pd: &Arc<Pd>, depth: usize) -> Result<Arc<Self>, DeviceError> {
        let mut init = sys::ibv_srq_init_attr::zeroed();
        init.attr.max_wr = u32::try_from(depth).unwrap_or(u32::MAX);
        init.attr.max_sge = 1;
        // SAFETY: the PD lives on, since the SRQ holds it; `init` outlives the call.
        let raw = unsafe { sys::ibv_create_srq(pd.as_ptr(), &mut init) };
        let raw = ret::pointer("ibv_create_srq", raw)?;
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd), gone: false }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// Asks for one event when fewer than `limit` receives are posted.
    pub(super) fn arm_limit(&self, limit: usize) -> Result<(), DeviceError> {
        let mut attr = sys::ibv_srq_attr::zeroed();
        attr.srq_limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: the SRQ lives while `self` does; `attr` outlives the call, and the mask names what is set in it.
        let code = unsafe { sys::ibv_modify_srq(self.raw.as_ptr(), &mut attr, mask) };
        ret::returned("ibv_modify_srq", code)
    }
}

impl Srq {
    /// Destroys it; whether the device has let go of what was posted.
    fn destroy(&mut self) -> bool {
        if self.gone {
            return true;
        }
        // SAFETY: this is the one reference to the SRQ: queue pairs on it hold it in an Arc. It is destroyed once,
        // as `gone` tells.
        let code = unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        self.gone = code == 0 || code == libc::EIO;
        if let Err(error) = ret::returned("ibv_destroy_srq", code) {
            tracing::warn!(%error, "an SRQ was not destroyed");
        }
        self.gone
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// What is posted to the SRQ.
///
/// Its owner drops it after all queue pairs on the SRQ: until then the device may write to the buffers.
pub(super) struct Posted {
    srq: Arc<Srq>,
    bufs: Slab<RecvBuf>,
    depth: usize,
    wrs: Vec<sys::ibv_recv_wr>,
    sges: Vec<sys::ibv_sge>,
}

// SAFETY: the raw pointers in `wrs` and `sges` are written and read within one call of `post` only.
unsafe impl Send for Posted {}

/// Receives posted by one call of the verb.
const BATCH: usize = 64;

impl Posted {
    pub(super) fn new(srq: &Arc<Srq>, depth: usize) -> Self {
        Self {
            srq: Arc::clone(srq),
            bufs: Slab::with_capacity(depth),
            depth,
            wrs: Vec::with_capacity(BATCH),
            sges: Vec::with_capacity(BATCH),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bufs.len()
    }

    pub(super) fn srq(&self) -> &Arc<Srq> {
        &self.srq
    }

    /// The buffer of a completion.
    pub(super) fn take(&mut self, wr_id: u64) -> Option<RecvBuf> {
        self.bufs.try_remove(usize::try_from(wr_id).ok()?)
    }

    /// Posts from the end of `bufs` as many as fit.
    pub(super) fn post(&mut self, bufs: &mut Vec<RecvBuf>) -> Result<(), DeviceError> {
        loop {
            let count = (self.depth - self.bufs.len()).min(bufs.len()).min(BATCH);
            if count == 0 {
                return Ok(());
            }
            self.post_batch(bufs, count)?;
        }
    }

    fn post_batch(&mut self, bufs: &mut Vec<RecvBuf>, count: usize) -> Result<(), DeviceError> {
        let owner = self.srq.pd.as_ptr().addr();
        self.wrs.clear();
        self.sges.clear();
        let mut keys = [0; BATCH];
        for buf in bufs.iter_mut().rev().take(count) {
            let (addr, len, lkey) = buf.registered(owner).ok_or(DeviceError::Unregistered)?;
            self.sges.push(sys::ibv_sge { addr: addr as u64, length: len, lkey });
        }
        // From here on nothing can fail before the post.
        for key in &mut keys[..count] {
            let buf = bufs.pop().expect("as many as `count` are there");
            *key = self.bufs.insert(buf);
            let mut wr = sys::ibv_recv_wr::zeroed();
            wr.wr_id = *key as u64;
            wr.num_sge = 1;
            self.wrs.push(wr);
        }
        let sges = self.sges.as_mut_ptr();
        let wrs = self.wrs.as_mut_ptr();
        for (at, wr) in self.wrs.iter_mut().enumerate() {
            wr.sg_list = sges.wrapping_add(at);
            wr.next = if at + 1 < count { wrs.wrapping_add(at + 1) } else { null_mut() };
        }
        let mut bad = null_mut();
        // SAFETY: the list is `count` requests in `wrs`, each with one element in `sges`, and neither is touched
        // during the call. Each element lies in an MR of the SRQ's PD (`registered` checked it), and its buffer is in
        // `bufs` until its completion comes, so nobody else can touch it.
        let code = unsafe { sys::ibv_post_srq_recv(self.srq.as_ptr(), wrs, &mut bad) };
        let posted = ret::returned("ibv_post_srq_recv", code);
        if posted.is_err() {
            // Those from the bad one on were not posted; in doubt all were, and stay here.
            let first = (0..count).find(|at| wrs.wrapping_add(*at) == bad).unwrap_or(count);
            for &key in keys[first..count].iter().rev() {
                bufs.extend(self.bufs.try_remove(key));
            }
        }
        posted
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // While anything of the SRQ is left the device may write to what is posted, so its memory is given up then.
        let destroyed = Arc::get_mut(&mut self.srq).is_some_and(Srq::destroy);
        if !destroyed {
            tracing::warn!(buffers = self.bufs.len(), "receives were still posted");
            std::mem::forget(std::mem::take(&mut self.bufs));
        }
    }
}
