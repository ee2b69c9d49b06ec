//! Asynchronous events: read as plain numbers, copied, and acknowledged at once. An object with an event that is
//! not acknowledged cannot be destroyed: its destroyer would wait for ever.

use rdma_sys as sys;

use super::device::Context;
use super::layout::{Plain, RawAsyncEvent, RawElement};

/// An event, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncEvent {
    /// A queue pair has changed, or is about to: by its address.
    Qp { at: usize, what: &'static str },
    /// A completion queue was overrun.
    CqOverrun,
    /// The SRQ fell below its limit.
    SrqLimit,
    /// The SRQ is broken.
    SrqError,
    /// Something about the port: its link, GIDs, LID, keys or subnet manager.
    Port { port: u8, what: &'static str },
    /// The device is gone or dead.
    Fatal,
    /// A number that has no meaning here.
    Other(i32),
}

/// Takes one event, and acknowledges it.
pub(super) fn take(context: &Context) -> Option<AsyncEvent> {
    let mut raw = RawAsyncEvent::zeroed();
    let place = std::ptr::from_mut(&mut raw).cast::<sys::ibv_async_event>();
    // SAFETY: the context is open; `raw` has the layout of the struct asked for (asserted), and outlives the call.
    // Its type is written as a number there, and never read as the bindings' enum.
    let code = unsafe { sys::ibv_get_async_event(context.as_ptr(), place) };
    if code != 0 {
        return None;
    }
    let event = name(raw.event_type, raw.element);
    // SAFETY: the event was just taken and is acknowledged once; nothing of it is used afterwards but numbers.
    unsafe { sys::ibv_ack_async_event(place) };
    Some(event)
}

fn name(event_type: i32, element: RawElement) -> AsyncEvent {
    // SAFETY: the member is a pointer to an object, and only its address is used.
    let at = || unsafe { element.object }.addr();
    let port = |what| {
        // SAFETY: for an event of a port this member was written.
        let port = unsafe { element.port_num };
        AsyncEvent::Port { port: u8::try_from(port).unwrap_or(0), what }
    };
    match event_type {
        0 => AsyncEvent::CqOverrun,
        1 => AsyncEvent::Qp { at: at(), what: "QP_FATAL" },
        2 => AsyncEvent::Qp { at: at(), what: "QP_REQ_ERR" },
        3 => AsyncEvent::Qp { at: at(), what: "QP_ACCESS_ERR" },
        5 => AsyncEvent::Qp { at: at(), what: "SQ_DRAINED" },
        8 => AsyncEvent::Fatal,
        9 => port("PORT_ACTIVE"),
        10 => port("PORT_ERR"),
        11 => port("LID_CHANGE"),
        12 => port("PKEY_CHANGE"),
        13 => port("SM_CHANGE"),
        14 => AsyncEvent::SrqError,
        15 => AsyncEvent::SrqLimit,
        16 => AsyncEvent::Qp { at: at(), what: "QP_LAST_WQE_REACHED" },
        17 => port("CLIENT_REREGISTER"),
        18 => port("GID_CHANGE"),
        other => AsyncEvent::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A newer kernel's numbers are no reason to fall over.
    #[test]
    fn unknown_numbers_are_kept_as_such() {
        let element = RawElement { port_num: 1 };
        assert_eq!(name(18, element), AsyncEvent::Port { port: 1, what: "GID_CHANGE" });
        for unknown in [19, 99, -1] {
            assert_eq!(name(unknown, element), AsyncEvent::Other(unknown));
        }
    }
}
