//! How verbs tell that they failed: four families, one adapter each.
//!
//! | family | verbs | failure |
//! | --- | --- | --- |
//! | [`pointer()`] | `ibv_create_*`, `ibv_reg_mr`, `ibv_alloc_pd`, `ibv_open_device` | NULL, and errno |
//! | [`returned`] | `ibv_modify_*`, `ibv_post_*`, `ibv_destroy_*`, `ibv_attach_mcast`, `ibv_query_port` | the error's number |
//! | [`minus_one`] | `ibv_get_*_event`, all of librdmacm | -1, and errno |
//! | [`count`] | `ibv_poll_cq`, `ibv_query_gid_table` | a negative number |
//!
//! After a verb of the second family errno may hold anything, also an earlier call's error, so it is not
//! looked at unless the verb returned -1, which some old providers do.

use std::io;
use std::os::raw::c_int;
use std::ptr::NonNull;

use nix::libc;

use crate::device::DeviceError;

/// NULL means failure, and errno says which.
pub(super) fn pointer<T>(call: &'static str, raw: *mut T) -> Result<NonNull<T>, DeviceError> {
    NonNull::new(raw).ok_or_else(|| DeviceError::Os { call, source: io::Error::last_os_error() })
}

/// The error's number is what was returned.
pub(super) fn returned(call: &'static str, code: c_int) -> Result<(), DeviceError> {
    match code {
        0 => Ok(()),
        -1 => Err(DeviceError::Os { call, source: io::Error::last_os_error() }),
        code => Err(os(call, code.saturating_abs())),
    }
}

/// -1 means failure, and errno says which.
pub(super) fn minus_one(call: &'static str, code: c_int) -> Result<(), DeviceError> {
    if code == 0 {
        Ok(())
    } else {
        Err(DeviceError::Os { call, source: io::Error::last_os_error() })
    }
}

/// A count, or a negative number: the error's with its sign turned, or -1 of which nothing is known.
pub(super) fn count(call: &'static str, code: isize) -> Result<usize, DeviceError> {
    usize::try_from(code).map_err(|_| match c_int::try_from(-code) {
        Ok(code) if code > 1 => os(call, code),
        _ => os(call, libc::EIO),
    })
}

fn os(call: &'static str, code: c_int) -> DeviceError {
    DeviceError::Os { call, source: io::Error::from_raw_os_error(code) }
}

/// The operating system's number of an error, if it is one of its.
pub(super) fn errno(error: &DeviceError) -> Option<c_int> {
    match error {
        DeviceError::Os { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    // Case 6: what was returned counts, not what errno happens to hold.
    #[test]
    fn a_returned_number_beats_a_stale_errno() {
        Errno::ENOENT.set();
        let error = returned("ibv_modify_qp", libc::EINVAL).unwrap_err();
        assert_eq!(errno(&error), Some(libc::EINVAL));
        assert!(error.to_string().starts_with("ibv_modify_qp failed"));
        assert_eq!(errno(&returned("x", -libc::EBUSY).unwrap_err()), Some(libc::EBUSY));
        Errno::ENOENT.set();
        assert_eq!(errno(&returned("x", -1).unwrap_err()), Some(libc::ENOENT));
        assert!(returned("x", 0).is_ok());
    }

    #[test]
    fn pointers_and_minus_one_read_errno() {
        Errno::ENOMEM.set();
        let error = pointer::<u8>("ibv_create_cq", std::ptr::null_mut()).unwrap_err();
        assert_eq!(errno(&error), Some(libc::ENOMEM));
        Errno::EAGAIN.set();
        assert_eq!(errno(&minus_one("rdma_get_cm_event", -1).unwrap_err()), Some(libc::EAGAIN));
        assert!(minus_one("x", 0).is_ok());
    }

    #[test]
    fn counts_are_never_negative() {
        assert_eq!(count("ibv_poll_cq", 3).unwrap(), 3);
        assert_eq!(errno(&count("ibv_poll_cq", -1).unwrap_err()), Some(libc::EIO));
        assert_eq!(errno(&count("x", -(libc::ENOSYS as isize)).unwrap_err()), Some(libc::ENOSYS));
    }
}
