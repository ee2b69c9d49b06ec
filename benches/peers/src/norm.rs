//! NORM (RFC 5740) through libnorm: one stream, NACKs from the receivers, and the positive-ack
//! watermarks that NORM offers for flow control, so that every subscriber is waited for.

use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::time::Duration;

use crate::peer::{OnMessage, Rx, Setup, Tx};

type H = *const c_void;

#[repr(C)]
struct Event {
    kind: u32,
    session: H,
    sender: H,
    object: H,
}
const TX_WATERMARK_COMPLETED: u32 = 4;
const RX_OBJECT_UPDATED: u32 = 19;
const ACK_SUCCESS: u32 = 3;
const SYNC_STREAM: u32 = 1;
const FLUSH_ACTIVE: u32 = 2;

// SAFETY: as declared in normApi.h of libnorm 1.5.
unsafe extern "C" {
    fn NormCreateInstance(boost: bool) -> H;
    fn NormGetNextEvent(inst: H, ev: *mut Event, wait: bool) -> bool;
    fn NormGetDescriptor(inst: H) -> i32;
    fn NormCreateSession(inst: H, addr: *const c_char, port: u16, id: u32) -> H;
    fn NormSetRxPortReuse(s: H, on: bool, bind: *const c_char, from: *const c_char, port: u16);
    fn NormSetMulticastInterface(s: H, name: *const c_char) -> bool;
    fn NormSetMulticastLoopback(s: H, on: bool) -> bool;
    fn NormSetTxOnly(s: H, on: bool, connect: bool);
    fn NormSetDefaultUnicastNack(s: H, on: bool);
    fn NormSetTxRate(s: H, bits: f64);
    fn NormSetTxSocketBuffer(s: H, n: u32) -> bool;
    fn NormSetRxSocketBuffer(s: H, n: u32) -> bool;
    fn NormSetFlowControl(s: H, factor: f64);
    fn NormSetGrttEstimate(s: H, secs: f64);
    fn NormSetGrttMax(s: H, secs: f64);
    fn NormSetBackoffFactor(s: H, f: f64);
    fn NormSetGroupSize(s: H, n: u32);
    fn NormStartSender(
        s: H,
        inst: u16,
        space: u32,
        seg: u16,
        data: u16,
        parity: u16,
        fec: u8,
    ) -> bool;
    fn NormStartReceiver(s: H, space: u32) -> bool;
    fn NormAddAckingNode(s: H, id: u32) -> bool;
    fn NormSetDefaultSyncPolicy(s: H, p: u32);
    fn NormStreamOpen(s: H, size: u32, info: *const c_char, n: u32) -> H;
    fn NormStreamWrite(st: H, p: *const u8, n: u32) -> u32;
    fn NormStreamFlush(st: H, eom: bool, mode: u32);
    fn NormStreamSetPushEnable(st: H, on: bool);
    fn NormStreamRead(st: H, p: *mut u8, n: *mut u32) -> bool;
    fn NormSetWatermark(s: H, st: H, override_flush: bool) -> bool;
    fn NormResetWatermark(s: H) -> bool;
    fn NormGetAckingStatus(s: H, id: u32) -> u32;
}

/// The stream's buffer at either end; half of it may be unacknowledged.
fn buffer(setup: &Setup) -> u32 {
    setup.number("NORM_BUF", 8 << 20)
}

fn session(setup: &Setup) -> (H, H) {
    let (addr, lo) = (c"239.255.7.3", c"lo");
    // SAFETY: the strings are copied in the calls; instance and session are never destroyed.
    unsafe {
        let inst = NormCreateInstance(false);
        let s = NormCreateSession(inst, addr.as_ptr(), 40300, setup.id as u32 + 1);
        assert!(!s.is_null());
        NormSetRxPortReuse(s, true, null(), null(), 0);
        assert!(NormSetMulticastInterface(s, lo.as_ptr()));
        NormSetMulticastLoopback(s, true);
        (inst, s)
    }
}

/// Waits up to 10 ms for an event.
fn event(inst: H) -> Option<Event> {
    let mut ev = Event { kind: 0, session: null(), sender: null(), object: null() };
    // SAFETY: the instance is never destroyed; `ev` and `p` are of this frame.
    unsafe {
        if !NormGetNextEvent(inst, &mut ev, false) {
            let mut p =
                libc::pollfd { fd: NormGetDescriptor(inst), events: libc::POLLIN, revents: 0 };
            libc::poll(&mut p, 1, 10);
            if !NormGetNextEvent(inst, &mut ev, false) {
                return None;
            }
        }
    }
    Some(ev)
}

pub struct NormTx {
    inst: H,
    s: H,
    stream: H,
    window: u64,
    off: usize,   // of the message being written
    written: u64, // stream bytes
    mark: u64,    // the pending watermark, or the last acknowledged one
    acked: u64,
    datagram: usize,
}

pub fn tx(setup: &Setup) -> NormTx {
    let (inst, s) = session(setup);
    let buf = buffer(setup);
    // SAFETY: the session is never destroyed, nor is what is opened here.
    unsafe {
        NormSetTxOnly(s, true, false); // feedback by unicast: its own data does not come back to it
        NormSetTxRate(s, setup.number("NORM_MBPS", 4000.0) * 1e6);
        NormSetFlowControl(s, 0.0); // not by timers: acknowledged watermarks below
        NormSetGrttMax(s, 0.1);
        NormSetGrttEstimate(s, setup.number("NORM_GRTT", 0.001));
        NormSetBackoffFactor(s, setup.number("NORM_BACKOFF", 0.0));
        NormSetGroupSize(s, 10);
        let seg = setup.dgram - 48;
        assert!(NormStartSender(s, 1, 2 * buf, seg as u16, 64, setup.number("NORM_PARITY", 0), 0));
        NormSetTxSocketBuffer(s, 4 << 20);
        for id in 0..setup.n as u32 {
            NormAddAckingNode(s, id + 2);
        }
        let stream = NormStreamOpen(s, buf, null(), 0);
        NormStreamSetPushEnable(stream, false);
        NormTx {
            inst,
            s,
            stream,
            window: buf as u64 / 2,
            off: 0,
            written: 0,
            mark: 0,
            acked: 0,
            datagram: setup.dgram,
        }
    }
}

impl NormTx {
    fn watermark(&mut self) {
        if self.mark == self.acked && self.written > self.acked {
            self.mark = self.written;
            // SAFETY: session and stream are never closed.
            unsafe { NormSetWatermark(self.s, self.stream, true) };
        }
    }
    fn wait(&mut self) {
        let Some(ev) = event(self.inst) else { return };
        if ev.kind == TX_WATERMARK_COMPLETED {
            // SAFETY: the session is never destroyed.
            if unsafe { NormGetAckingStatus(self.s, u32::MAX) } == ACK_SUCCESS {
                self.acked = self.mark;
            } else {
                // SAFETY: as above.
                unsafe { NormResetWatermark(self.s) };
            }
        }
    }
}

impl Tx for NormTx {
    fn datagram(&self) -> usize {
        self.datagram
    }

    fn send(&mut self, m: &[u8]) -> bool {
        let room = self.window.saturating_sub(self.written - self.acked);
        let want = (m.len() - self.off).min(room as usize);
        // SAFETY: the stream is never closed; the call copies `want` bytes, which the message has left.
        let n = unsafe { NormStreamWrite(self.stream, m[self.off..].as_ptr(), want as u32) };
        self.off += n as usize;
        self.written += n as u64;
        if self.written - self.acked >= self.window / 2 {
            self.watermark();
        }
        if self.off < m.len() {
            self.wait();
            return false;
        }
        self.off = 0;
        true
    }
    fn flush(&mut self) -> bool {
        // SAFETY: the stream is never closed.
        unsafe { NormStreamFlush(self.stream, false, FLUSH_ACTIVE) };
        true
    }
    fn drain(&mut self) -> bool {
        self.flush();
        self.watermark();
        self.wait();
        self.acked == self.written
    }
    fn idle(&mut self, left: Duration) {
        if left >= Duration::from_millis(1) {
            self.wait();
        } else {
            std::thread::sleep(left);
        }
    }
}

pub struct NormRx {
    inst: H,
    buf: Vec<u8>,
    have: usize,
    size: usize,
}

pub fn rx(setup: &Setup) -> NormRx {
    let (inst, s) = session(setup);
    // SAFETY: the session is never destroyed.
    unsafe {
        NormSetDefaultUnicastNack(s, true);
        NormSetDefaultSyncPolicy(s, SYNC_STREAM);
        assert!(NormStartReceiver(s, 2 * buffer(setup)));
        NormSetRxSocketBuffer(s, 4 << 20);
    }
    NormRx { inst, buf: vec![0; 1 << 16], have: 0, size: setup.size }
}

impl Rx for NormRx {
    fn poll(&mut self, on: OnMessage) {
        let Some(ev) = event(self.inst) else { return };
        if ev.kind != RX_OBJECT_UPDATED {
            return;
        }
        loop {
            let mut n = (self.buf.len() - self.have) as u32;
            // SAFETY: the object is that of an event not yet followed by another; the buffer has room for `n`.
            let whole =
                unsafe { NormStreamRead(ev.object, self.buf[self.have..].as_mut_ptr(), &mut n) };
            if !whole {
                eprintln!("norm: stream broken"); // shows as out-of-order messages
                self.have = 0;
                continue;
            }
            if n == 0 {
                return;
            }
            self.have += n as usize;
            let used = self.have / self.size * self.size;
            self.buf[..used].chunks(self.size).for_each(&mut *on);
            self.buf.copy_within(used..self.have, 0);
            self.have -= used;
        }
    }
}
