//! Forks of this process, counted in the child.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use rdma_sys as sys;

static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// How many forks lie between this process and the one that first asked.
pub(crate) fn count() -> u32 {
    WATCH.call_once(|| {
        // SAFETY: the handler is a function of this program, and does nothing but add to an atomic number, which is
        // allowed in the child of a process with threads.
        let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if code != 0 {
            tracing::warn!(code, "forks of this process will not be noticed");
        }
    });
    FORKS.load(Ordering::Relaxed)
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Sees that the pages which a device reads and writes stay this process's when it forks. Newer kernels do so anyway, and
/// then nothing is done. It must come before any memory is registered.
pub(super) fn keep_pages() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: it takes nothing. Slabs of buffers share no page with anything else (see `buf`), so that what older
        // kernels then keep from a child is memory of slabs alone.
        let code = unsafe { sys::ibv_fork_init() };
        if code != 0 {
            tracing::warn!(code, "do not fork while a device is open: ibv_fork_init failed");
        }
    });
}
