//! C structs that start out as zeroes, and what is assumed of the layout of some.
//!
//! The bindings are made from the installed headers, but some structs with unions in them are written by
//! hand there. Their sizes and offsets are compared with those of the C headers on 64-bit Linux when this is
//! compiled.

use std::mem::{offset_of, size_of};
use std::os::raw::{c_int, c_void};

use rdma_sys as sys;

/// A C struct all of whose bytes may be zero.
///
/// # Safety
/// Implementors are made of integers, raw pointers, optional function pointers and unions and arrays of these.
pub(super) unsafe trait Plain: Sized {
    /// The struct with nothing set.
    fn zeroed() -> Self {
        // SAFETY: zero is a value of integers, raw pointers and optional function pointers, and by the trait's
        // contract, which each implementation below upholds, there is nothing else in it.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: a struct of the verbs API without references, Rust enums or other types that have no zero.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(
    sys::ibv_ah_attr,
    sys::ibv_device_attr,
    sys::ibv_gid_entry,
    sys::ibv_port_attr,
    sys::ibv_qp_attr,
    sys::ibv_qp_init_attr,
    sys::ibv_recv_wr,
    sys::ibv_send_wr,
    sys::ibv_srq_attr,
    sys::ibv_srq_init_attr,
    sys::ibv_wc,
    RawAsyncEvent,
);

/// `struct ibv_async_event` with its type as a number: in the bindings it is an enum, and to read a number that
/// this build does not know as one would be undefined.
#[repr(C)]
pub(super) struct RawAsyncEvent {
    /// A pointer to the object, or a port's number.
    pub(super) element: RawElement,
    pub(super) event_type: c_int,
}

/// What an event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union RawElement {
    pub(super) object: *mut c_void,
    pub(super) port_num: c_int,
}

const _: () = {
    assert!(size_of::<RawAsyncEvent>() == size_of::<sys::ibv_async_event>());
    assert!(offset_of!(RawAsyncEvent, event_type) == offset_of!(sys::ibv_async_event, event_type));
    assert!(size_of::<sys::ibv_gid>() == 16);
    assert!(size_of::<sys::ibv_gid_entry>() == 32);
    assert!(offset_of!(sys::ibv_gid_entry, gid_type) == 24);
    assert!(size_of::<sys::ibv_sge>() == 16);
};

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<sys::ibv_global_route>() == 24);
    assert!(size_of::<sys::ibv_ah_attr>() == 32);
    assert!(offset_of!(sys::ibv_ah_attr, dlid) == 24);
    assert!(offset_of!(sys::ibv_ah_attr, port_num) == 30);
    assert!(size_of::<sys::ibv_wc>() == 48);
    assert!(offset_of!(sys::ibv_wc, byte_len) == 20);
    assert!(offset_of!(sys::ibv_wc, wc_flags) == 36);
    assert!(size_of::<sys::ibv_recv_wr>() == 32);
    assert!(size_of::<sys::ibv_send_wr>() == 128);
    assert!(offset_of!(sys::ibv_send_wr, send_flags) == 32);
    assert!(offset_of!(sys::ibv_send_wr, wr) == 40);
    assert!(size_of::<sys::ibv_qp_attr>() == 144);
    assert!(offset_of!(sys::ibv_qp_attr, ah_attr) == 56);
    assert!(size_of::<sys::ibv_port_attr>() >= 52);
    assert!(offset_of!(sys::ibv_port_attr, qkey_viol_cntr) == 28);
    assert!(offset_of!(sys::rdma_cm_event, event) == 16);
    assert!(offset_of!(sys::rdma_cm_event, param) == 24);
    assert!(offset_of!(sys::rdma_ud_param, ah_attr) == 16);
};
