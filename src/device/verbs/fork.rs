//! What a device's memory is to a forked child.

use std::sync::Once;

use rdma_sys as sys;

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
