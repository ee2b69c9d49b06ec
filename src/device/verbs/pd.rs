//! The protection domain, and memory registered in it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::device::Context;
use super::{memlock, ret};
use crate::device::DeviceError;
use crate::device::buf::Registration;

/// A protection domain. What is made in it keeps it.
#[derive(Debug)]
pub(super) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    #[expect(dead_code, reason = "it must outlive the PD")]
    context: Arc<Context>,
}

// SAFETY: libibverbs allows verbs on a PD from every thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the context is open, and stays so: the PD holds it.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_ptr()) };
        let raw = ret::pointer("ibv_alloc_pd", raw)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: all that was made in the PD holds it in an Arc, so nothing of it is left.
        let code = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if let Err(error) = ret::returned("ibv_dealloc_pd", code) {
            tracing::warn!(%error, "a PD was not freed");
        }
    }
}

/// A registered slab. Each buffer cut from the slab holds it.
#[derive(Debug)]
pub(super) struct Mr {
    raw: NonNull<sys::ibv_mr>,
    start: usize,
    len: usize,
    lkey: u32,
    pd: Arc<Pd>,
}

// SAFETY: after its registration an MR is a key and a range; deregistering is allowed from every thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers the memory from the first of `slots` to the end of the last: the slots of one slab, in order.
    ///
    /// The device touches what is posted, and only buffers that hold this can be posted with its key. So the slab,
    /// which its buffers keep, lives whenever the device may use it.
    pub(super) fn register(
        pd: &Arc<Pd>,
        slots: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Arc<dyn Registration>, DeviceError> {
        let (mut start, mut end) = (usize::MAX, 0);
        for (at, len) in slots {
            (start, end) = (start.min(at), end.max(at + len));
        }
        let len = end.checked_sub(start).ok_or(DeviceError::Unsupported("a slab of no buffers"))?;
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the range is one allocation, all of which belongs to buffers of the caller. Registering pins its
        // pages and touches none; the PD outlives the MR, which holds it.
        let raw = unsafe { sys::ibv_reg_mr(pd.as_ptr(), address, len, access) };
        let raw = ret::pointer("ibv_reg_mr", raw).map_err(|error| memlock::explain(error, len))?;
        // SAFETY: the MR was just made; the field is set once and for all.
        let lkey = unsafe { raw.as_ref() }.lkey;
        Ok(Arc::new(Self { raw, start, len, lkey, pd: Arc::clone(pd) }))
    }
}

impl Registration for Mr {
    fn key(&self, owner: usize, start: usize, len: usize) -> Option<u32> {
        let end = start.checked_add(len)?;
        let ours = owner == self.pd.as_ptr().addr();
        (ours && start >= self.start && end <= self.start + self.len).then_some(self.lkey)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: every buffer of the slab held this, so none is left, and none is posted.
        let code = unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        if let Err(error) = ret::returned("ibv_dereg_mr", code) {
            tracing::warn!(%error, "an MR was not freed");
        }
    }
}
