//! Forks of this process, counted in the child.
//!
//! The one use of foreign code outside the provider of real devices: every message that is published or taken looks at
//! the count, and asking the kernel for the process's number instead takes several times as long as publishing a
//! small message.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;

static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// How many forks lie between this process and the one that first asked.
pub(crate) fn forks() -> u32 {
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
