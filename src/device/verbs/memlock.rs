//! The limit on locked memory: what is registered is pinned, and counts against it.

use nix::libc;
use nix::sys::resource::{Resource, getrlimit};

use super::error::VerbsOpenError;
use super::ret;
use crate::device::DeviceError;

/// Whether `need` bytes can be locked, before anything is; those with CAP_IPC_LOCK have no limit.
pub(super) fn check(need: u64) -> Result<(), VerbsOpenError> {
    match limit() {
        Some(limit) if need > limit => Err(VerbsOpenError::MemlockTooLow { need, limit }),
        _ => Ok(()),
    }
}

/// Tells "no memory" from "not allowed to lock as much": both are ENOMEM.
pub(super) fn explain(error: DeviceError, need: usize) -> DeviceError {
    match limit() {
        Some(limit) if ret::errno(&error) == Some(libc::ENOMEM) => {
            DeviceError::Memlock { need: need as u64, limit }
        }
        _ => error,
    }
}

/// The limit, if this process has one.
fn limit() -> Option<u64> {
    if may_lock_at_will() {
        return None;
    }
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft != libc::RLIM_INFINITY => Some(soft),
        _ => None,
    }
}

fn may_lock_at_will() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}
