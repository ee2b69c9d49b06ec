//! The protection domain, and memory registered in it.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use nix::libc;
use parking_lot::Mutex;
use rdma_sys as sys;

use super::device::Context;
use super::{memlock, ret};
use crate::device::DeviceError;
use crate::device::buf::Registration;

/// A protection domain. What is made in it keeps it, but for memory: that is taken back when its device is closed.
#[derive(Debug)]
pub(super) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    /// The slabs that were registered in it.
    slabs: Mutex<Vec<Weak<Mr>>>,
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
        Ok(Arc::new(Self { raw, slabs: Mutex::default(), context: Arc::clone(context) }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    fn add(&self, slab: Weak<Mr>) {
        let mut slabs = self.slabs.lock();
        slabs.retain(|slab| slab.strong_count() > 0);
        slabs.push(slab);
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

/// Takes all memory of a PD back when it is dropped: a device that closes has it dropped after the queues whose
/// requests lie in that memory. Buffers that others still hold keep their bytes, and do not keep the device.
pub(super) struct Slabs(pub(super) Arc<Pd>);

impl Drop for Slabs {
    fn drop(&mut self) {
        let slabs = std::mem::take(&mut *self.0.slabs.lock());
        slabs.iter().filter_map(Weak::upgrade).for_each(|slab| slab.take_back());
    }
}

/// A slab's registration. Each buffer cut from the slab holds it.
#[derive(Debug)]
pub(super) struct Mr {
    start: usize,
    len: usize,
    /// The PD that the slab is registered in, by its address, and the key that it has there; 0 if it is in none. Only
    /// a PD that `registered` holds is named, so another at the same address is not taken for it.
    owner: AtomicUsize,
    lkey: AtomicU32,
    registered: Mutex<Option<Registered>>,
    me: Weak<Self>,
}

#[derive(Debug)]
struct Registered {
    raw: NonNull<sys::ibv_mr>,
    pd: Arc<Pd>,
}

// SAFETY: after its registration an MR is a key and a range; deregistering is allowed from every thread.
unsafe impl Send for Registered {}

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
        let mr = Arc::new_cyclic(|me| Self {
            start,
            len,
            owner: AtomicUsize::new(0),
            lkey: AtomicU32::new(0),
            registered: Mutex::new(None),
            me: Weak::clone(me),
        });
        mr.register_in(pd)?;
        Ok(mr)
    }

    /// Registers the slab in a PD. The caller holds a buffer of it, so that its memory is there.
    fn register_in(&self, pd: &Arc<Pd>) -> Result<(), DeviceError> {
        let mut registered = self.registered.lock();
        if registered.is_some() {
            return Err(DeviceError::Unregistered);
        }
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(self.start);
        // SAFETY: the range is one allocation, which lives as long as any buffer of the slab, and the caller holds one.
        // Registering pins its pages and touches none; the PD outlives the MR, which is kept with it.
        let raw = unsafe { sys::ibv_reg_mr(pd.as_ptr(), address, self.len, access) };
        let raw =
            ret::pointer("ibv_reg_mr", raw).map_err(|error| memlock::explain(error, self.len))?;
        // SAFETY: the MR was just made; the field is set once and for all.
        self.lkey.store(unsafe { raw.as_ref() }.lkey, Ordering::Relaxed);
        *registered = Some(Registered { raw, pd: Arc::clone(pd) });
        self.owner.store(pd.as_ptr().addr(), Ordering::Release);
        drop(registered);
        pd.add(Weak::clone(&self.me));
        Ok(())
    }

    /// Ends the registration. Nothing of the slab is posted any more.
    fn take_back(&self) {
        self.owner.store(0, Ordering::Release);
        let Some(Registered { raw, pd }) = self.registered.lock().take() else { return };
        // SAFETY: the MR is deregistered once, since it was just taken out. Nothing of it is posted: its last buffer is
        // gone, or the device that closes has destroyed all queues of the PD (see `Slabs`).
        let code = unsafe { sys::ibv_dereg_mr(raw.as_ptr()) };
        // EIO: the device is gone, and with it what was on it.
        if code != libc::EIO
            && let Err(error) = ret::returned("ibv_dereg_mr", code)
        {
            tracing::warn!(%error, "an MR was not freed");
        }
        drop(pd);
    }
}

impl Registration for Mr {
    fn key(&self, owner: usize, start: usize, len: usize) -> Option<u32> {
        let end = start.checked_add(len)?;
        let ours = owner == self.owner.load(Ordering::Acquire);
        (ours && start >= self.start && end <= self.start + self.len)
            .then(|| self.lkey.load(Ordering::Relaxed))
    }

    fn renew(&self, domain: &dyn Any) -> Result<(), DeviceError> {
        let pd = domain.downcast_ref::<Arc<Pd>>().ok_or(DeviceError::Unregistered)?;
        self.register_in(pd)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.take_back();
    }
}
