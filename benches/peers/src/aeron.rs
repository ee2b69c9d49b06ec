//! Aeron: each process embeds its own C media driver (SHARED threading), as on a host of its own;
//! UDP multicast with min flow control, so that every subscriber is waited for. Buffers, window and
//! MTU are raised; `aeron` keeps the other defaults (backoff idling, NAK timers for wide groups),
//! `aeron-lan` shortens the NAK timers, `aeron-yield` does that and idles by yielding.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use rusteron_media_driver::bindings::*;

use crate::peer::{Backoff, OnMessage, Rx, Setup, Tx};

pub struct AeronTx {
    publication: *mut aeron_exclusive_publication_t,
    idle: Backoff,
    datagram: usize,
}

pub fn tx(setup: &Setup) -> AeronTx {
    let client = client(setup);
    let (uri, mut pending) = (channel(&format!("|fc=min,g:/{}", setup.n)), null_mut());
    let mut publication: *mut aeron_exclusive_publication_t = null_mut();
    // SAFETY: the client was started and is never closed; the results go to variables of this frame.
    unsafe {
        ok(aeron_async_add_exclusive_publication(&mut pending, client, uri.as_ptr(), STREAM));
        while publication.is_null() {
            ok(aeron_async_add_exclusive_publication_poll(&mut publication, pending));
        }
    }
    AeronTx { publication, idle: Backoff::new(yields(setup)), datagram: mtu(setup) }
}

impl Tx for AeronTx {
    fn datagram(&self) -> usize {
        self.datagram
    }

    fn ready(&mut self) -> bool {
        // SAFETY: the publication is never closed. True once `g` receivers are there.
        unsafe { aeron_exclusive_publication_is_connected(self.publication) }
    }

    fn send(&mut self, message: &[u8]) -> bool {
        let (at, len) = (message.as_ptr(), message.len());
        // SAFETY: the publication is never closed; the message is copied in the call.
        let rc = unsafe {
            aeron_exclusive_publication_offer(self.publication, at, len, None, null_mut())
        };
        let (back_pressured, admin_action) = (-2, -3);
        assert!(rc > 0 || rc == back_pressured || rc == admin_action, "aeron offer: {rc}");
        self.idle.idle(rc > 0);
        rc > 0
    }
}

pub struct AeronRx {
    subscription: *mut aeron_subscription_t,
    assembler: *mut aeron_fragment_assembler_t,
    /// What [`on_fragment`] gets: a pointer to the closure of the poll that runs.
    slot: Box<*mut c_void>,
    idle: Backoff,
}

pub fn rx(setup: &Setup) -> AeronRx {
    let client = client(setup);
    let (uri, mut pending, mut assembler) = (channel(""), null_mut(), null_mut());
    let mut subscription: *mut aeron_subscription_t = null_mut();
    let mut slot: Box<*mut c_void> = Box::new(null_mut());
    let arg = (&raw mut *slot).cast();
    // SAFETY: the client was started and is never closed; the results go to variables of this frame; the
    // slot lives on the heap for as long as the assembler is polled.
    unsafe {
        ok(aeron_async_add_subscription(
            &mut pending,
            client,
            uri.as_ptr(),
            STREAM,
            None,
            null_mut(),
            None,
            null_mut(),
        ));
        while subscription.is_null() {
            ok(aeron_async_add_subscription_poll(&mut subscription, pending));
        }
        ok(aeron_fragment_assembler_create(&mut assembler, Some(on_fragment), arg));
    }
    AeronRx { subscription, assembler, slot, idle: Backoff::new(yields(setup)) }
}

impl Rx for AeronRx {
    fn poll(&mut self, mut on: OnMessage) {
        *self.slot = (&raw mut on).cast();
        let assembler = self.assembler.cast();
        // SAFETY: subscription and assembler are never closed, and `on` outlives the call.
        let n =
            unsafe { aeron_subscription_poll(self.subscription, Some(assemble), assembler, 64) };
        ok(n);
        self.idle.idle(n > 0);
    }
}

unsafe extern "C-unwind" fn assemble(
    assembler: *mut c_void,
    at: *const u8,
    len: usize,
    header: *mut aeron_header_t,
) {
    // SAFETY: these are the arguments that Aeron called with, and `poll` gave it the assembler.
    unsafe { aeron_fragment_assembler_handler(assembler, at, len, header) }
}

unsafe extern "C-unwind" fn on_fragment(
    slot: *mut c_void,
    at: *const u8,
    len: usize,
    _: *mut aeron_header_t,
) {
    // SAFETY: the slot holds the closure of the poll that this runs in.
    let on = unsafe { &mut **slot.cast::<*mut OnMessage>() };
    // SAFETY: Aeron lends `len` bytes for the time of this call.
    on(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Sets the driver up by environment variables, and starts it with a client.
fn client(setup: &Setup) -> *mut aeron_t {
    let set = |key: &str, value: String| {
        // SAFETY: no other thread runs in this process yet.
        unsafe { std::env::set_var(format!("AERON_{key}"), value) }
    };
    if !setup.variant.is_empty() {
        for (key, value) in [
            ("NAK_MULTICAST_MAX_BACKOFF", "200us"),
            ("NAK_MULTICAST_GROUP_SIZE", "3"),
            ("RETRANSMIT_UNICAST_LINGER", "1ms"),
        ] {
            set(key, setup.env(&format!("AERON_{key}"), value));
        }
    }
    set("DIR", format!("{}/aeron-{}", setup.dir, setup.id));
    set("THREADING_MODE", "SHARED".into());
    set("SHARED_IDLE_STRATEGY", if yields(setup) { "yield" } else { "backoff" }.into());
    set("MTU_LENGTH", mtu(setup).to_string());
    set("SOCKET_SO_RCVBUF", (4 << 20).to_string());
    set("SOCKET_SO_SNDBUF", (4 << 20).to_string());
    set("RCV_INITIAL_WINDOW_LENGTH", setup.env("AERON_WINDOW", "2097152"));
    let (mut driver_context, mut driver) = (null_mut(), null_mut());
    let (mut context, mut client) = (null_mut(), null_mut());
    // SAFETY: each call gets what the one before it made, and the results go to variables of this frame;
    // nothing of it is ever closed.
    unsafe {
        ok(aeron_driver_context_init(&mut driver_context));
        ok(aeron_driver_init(&mut driver, driver_context));
        ok(aeron_driver_start(driver, false));
        ok(aeron_context_init(&mut context));
        ok(aeron_init(&mut client, context));
        ok(aeron_start(client));
    }
    client
}

fn channel(extra: &str) -> CString {
    let uri = format!("aeron:udp?endpoint=239.255.7.1:40100|interface=127.0.0.1{extra}");
    CString::new(uri).expect("it has no NUL")
}

fn yields(setup: &Setup) -> bool {
    setup.variant == "yield"
}

/// Aeron wants a multiple of 32.
fn mtu(setup: &Setup) -> usize {
    setup.dgram / 32 * 32
}

fn ok(rc: i32) {
    // SAFETY: the message is a string of the calling thread.
    assert!(rc >= 0, "aeron: {}", unsafe { CStr::from_ptr(aeron_errmsg()) }.to_string_lossy());
}

const STREAM: i32 = 7;
