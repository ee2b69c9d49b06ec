//! Asynchronous events: read as plain numbers, copied, and acknowledged at once. An object with an event that is
//! not acknowledged cannot be destroyed: its destroyer would wait for ever.
//!
//! Devices may share a context (see [`cm`](super::cm)), and with it the one queue of its events. So whoever reads it gives
//! each event to all of them, and each finds out whether it is about something of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
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
    /// An SRQ fell below its limit: by its address.
    SrqLimit { at: usize },
    /// An SRQ is broken.
    SrqError,
    /// Something about the port: its link, GIDs, LID, keys or subnet manager.
    Port { port: u8, what: &'static str },
    /// The device is gone or dead.
    Fatal,
    /// A number that has no meaning here.
    Other(i32),
}

/// Those who read the events of a context.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Inboxes>);

#[derive(Debug, Default)]
struct Inboxes {
    next: u64,
    by_reader: BTreeMap<u64, VecDeque<AsyncEvent>>,
}

/// One who reads the events of a context.
#[derive(Debug)]
pub(super) struct Reader {
    context: Arc<Context>,
    key: u64,
}

/// Events kept for one who does not read. All they say is that it should look, so the oldest can go.
const MAX_UNREAD: usize = 256;

impl Reader {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        let mut inboxes = context.readers.0.lock();
        inboxes.next += 1;
        let key = inboxes.next;
        inboxes.by_reader.insert(key, VecDeque::new());
        Self { context: Arc::clone(context), key }
    }

    /// Takes one event. Whoever is woken up by one that another reads finds it here: it is handed out under the lock.
    pub(super) fn take(&self) -> Option<AsyncEvent> {
        let mut inboxes = self.context.readers.0.lock();
        while let Some(event) = take(&self.context) {
            inboxes.give(event);
        }
        inboxes.by_reader.get_mut(&self.key)?.pop_front()
    }
}

impl Inboxes {
    fn give(&mut self, event: AsyncEvent) {
        for inbox in self.by_reader.values_mut() {
            if inbox.len() >= MAX_UNREAD {
                inbox.pop_front();
            }
            inbox.push_back(event);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.context.readers.0.lock().by_reader.remove(&self.key);
    }
}

/// Takes one event, and acknowledges it.
fn take(context: &Context) -> Option<AsyncEvent> {
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
        15 => AsyncEvent::SrqLimit { at: at() },
        16 => AsyncEvent::Qp { at: at(), what: "QP_LAST_WQE_REACHED" },
        17 => port("CLIENT_REREGISTER"),
        18 => port("GID_CHANGE"),
        other => AsyncEvent::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_gets_every_event_and_the_idle_keep_few() {
        let mut inboxes = Inboxes::default();
        inboxes.by_reader.insert(1, VecDeque::new());
        inboxes.by_reader.insert(2, VecDeque::new());
        for at in 0..MAX_UNREAD + 3 {
            inboxes.give(AsyncEvent::SrqLimit { at });
            assert_eq!(inboxes.by_reader[&1].back(), Some(&AsyncEvent::SrqLimit { at }));
            inboxes.by_reader.get_mut(&1).unwrap().clear();
        }
        assert_eq!(inboxes.by_reader[&2].len(), MAX_UNREAD);
        assert_eq!(inboxes.by_reader[&2].front(), Some(&AsyncEvent::SrqLimit { at: 3 }));
    }

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
