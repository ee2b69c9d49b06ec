//! Completion queues and the channel that tells of them.
//!
//! The order that misses nothing: take the events that are there, arm, poll until empty, and only then sleep.
//! Events are acknowledged in batches, since each acknowledgement takes a mutex, and the rest before the queue is
//! destroyed, which waits for them.

use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys as sys;

use super::device::{Borrowed, Context, set_nonblocking};
use super::layout::Plain;
use super::ret;
use crate::device::DeviceError;

/// A completion channel, non-blocking from birth.
#[derive(Debug)]
pub(super) struct Channel {
    raw: NonNull<sys::ibv_comp_channel>,
    fd: RawFd,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows the calls on a channel from every thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn create(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the context is open, and stays so: the channel holds it.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_ptr()) };
        let raw = ret::pointer("ibv_create_comp_channel", raw)?;
        // SAFETY: the channel was just made; its descriptor is set once and for all.
        let fd = unsafe { raw.as_ref() }.fd;
        let channel = Self { raw, fd, context: Arc::clone(context) };
        set_nonblocking(&Borrowed(fd), "fcntl of a completion channel")?;
        Ok(Arc::new(channel))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Takes one event: the queue it is of, by its address.
    pub(super) fn event(&self) -> Option<usize> {
        let (mut cq, mut cq_context) = (null_mut(), null_mut());
        // SAFETY: the channel lives while `self` does; both places outlive the call.
        let code = unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut cq_context) };
        (code == 0).then(|| cq.addr())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every queue of the channel holds it in an Arc, so none is left.
        let code = unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if let Err(error) = ret::returned("ibv_destroy_comp_channel", code) {
            tracing::warn!(%error, device = ?self.context, "a completion channel was not destroyed");
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    raw: NonNull<sys::ibv_cq>,
    /// Events taken and not acknowledged yet.
    unacked: AtomicU32,
    #[expect(dead_code, reason = "it must outlive the queue")]
    channel: Arc<Channel>,
}

// SAFETY: libibverbs allows the calls on a CQ from every thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// Events acknowledged at once.
const ACK_BATCH: u32 = 64;

impl Cq {
    /// A queue for `depth` completions.
    pub(super) fn create(
        context: &Context,
        channel: &Arc<Channel>,
        depth: usize,
    ) -> Result<Arc<Self>, DeviceError> {
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        // SAFETY: context and channel live on, since the queue holds the channel and that the context; the first
        // vector is there on every device.
        let raw = unsafe {
            sys::ibv_create_cq(context.as_ptr(), depth, null_mut(), channel.raw.as_ptr(), 0)
        };
        let raw = ret::pointer("ibv_create_cq", raw)?;
        Ok(Arc::new(Self { raw, unacked: AtomicU32::new(0), channel: Arc::clone(channel) }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Asks for an event with the next completion.
    pub(super) fn arm(&self) -> Result<(), DeviceError> {
        // SAFETY: the queue lives while `self` does.
        let code = unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) };
        ret::returned("ibv_req_notify_cq", code)
    }

    /// Takes up to as many completions as `into` has room for; how many.
    pub(super) fn poll(&self, into: &mut [sys::ibv_wc]) -> Result<usize, DeviceError> {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives while `self` does, and `into` has room for as many entries as is said.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        ret::count("ibv_poll_cq", count as isize)
    }

    /// Notes that an event of this queue was taken.
    pub(super) fn took_event(&self) {
        if self.unacked.fetch_add(1, Ordering::Relaxed) + 1 >= ACK_BATCH {
            self.ack();
        }
    }

    fn ack(&self) {
        let count = self.unacked.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: as many events of this queue were taken from its channel and not acknowledged yet.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), count) };
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.ack();
        // SAFETY: every queue pair that completes here holds the queue in an Arc, so none is left.
        let code = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if let Err(error) = ret::returned("ibv_destroy_cq", code) {
            tracing::warn!(%error, "a CQ was not destroyed");
        }
    }
}

/// Room to poll into.
pub(super) struct WcRoom(Box<[sys::ibv_wc]>);

impl WcRoom {
    pub(super) fn new(entries: usize) -> Self {
        Self((0..entries).map(|_| sys::ibv_wc::zeroed()).collect())
    }

    pub(super) fn upto(&mut self, entries: usize) -> &mut [sys::ibv_wc] {
        let entries = entries.min(self.0.len());
        &mut self.0[..entries]
    }
}
