//! Received frames on loan.
//!
//! A completed receive becomes a [`Lease`]: a cheap handle that the protocol keeps in its reorder ring
//! and the application reads messages from. When the last clone is dropped, wherever that is, the
//! buffer goes back to the engine, which posts it again. The shells that carry the buffers are made
//! once, so that neither side allocates for a frame.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use qcast_proto::buf::RxFrame;

use crate::device::RecvBuf;

/// A received frame, shared by whoever still needs it.
pub(crate) struct Lease(Option<Held>);

enum Held {
    /// In a receive buffer.
    Buffer(Arc<Shell>),
    /// Copied out, so that its buffer could be posted again.
    Heap(Arc<[u8]>),
}

/// What carries a buffer. It is reused with its next one.
pub(super) struct Shell {
    buf: Option<RecvBuf>,
    home: Arc<Returns>,
}

/// Where shells come back to; `None` once the pool is gone, or they would keep each other for ever.
pub(super) struct Returns {
    shells: Mutex<Option<Vec<Arc<Shell>>>>,
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Some(Held::Buffer(shell)) => Some(Held::Buffer(Arc::clone(shell))),
            Some(Held::Heap(bytes)) => Some(Held::Heap(Arc::clone(bytes))),
            None => None,
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Every clone goes home; the engine finds the last one by its being alone.
        if let Some(Held::Buffer(shell)) = self.0.take() {
            let home = Arc::clone(&shell.home);
            let mut shells = home.shells.lock();
            match &mut *shells {
                Some(shells) => shells.push(shell),
                None => {
                    drop(shells);
                    drop(shell);
                }
            }
        }
    }
}

impl RxFrame for Lease {
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Some(Held::Buffer(shell)) => shell.buf.as_ref().map_or(&[], RecvBuf::payload),
            Some(Held::Heap(bytes)) => bytes,
            None => &[],
        }
    }

    fn copy_of(bytes: &[u8]) -> Self {
        Self(Some(Held::Heap(bytes.into())))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.bytes().len())
    }
}

/// The receive buffers of a node: posted, on loan, or waiting to be posted.
pub(super) struct RecvPool {
    /// To be posted.
    pub(super) free: Vec<RecvBuf>,
    shells: Vec<Arc<Shell>>,
    returns: Arc<Returns>,
    /// What the returns are swapped with, so that the lock is held for a moment only.
    incoming: Vec<Arc<Shell>>,
    capacity: usize,
    on_loan: usize,
}

impl RecvPool {
    pub(super) fn new(bufs: Vec<RecvBuf>) -> Self {
        let capacity = bufs.len();
        Self {
            free: bufs,
            shells: Vec::with_capacity(capacity),
            returns: Arc::new(Returns { shells: Mutex::new(Some(Vec::with_capacity(64))) }),
            incoming: Vec::with_capacity(64),
            capacity,
            on_loan: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Buffers that are on loan.
    pub(super) fn on_loan(&self) -> usize {
        self.on_loan
    }

    /// Lends a buffer out. When most of them are, the bytes are copied out instead: whoever holds
    /// frames for long cannot leave the receive queue dry.
    pub(super) fn lend(&mut self, buf: RecvBuf) -> Lease {
        if self.on_loan >= self.capacity - self.capacity / 4 {
            let lease = Lease::copy_of(buf.payload());
            self.free.push(buf);
            return lease;
        }
        let mut shell = self
            .shells
            .pop()
            .unwrap_or_else(|| Arc::new(Shell { buf: None, home: Arc::clone(&self.returns) }));
        Arc::get_mut(&mut shell).expect("a shell in the pool has one owner").buf = Some(buf);
        self.on_loan += 1;
        Lease(Some(Held::Buffer(shell)))
    }

    /// Takes back what was dropped since the last call.
    pub(super) fn collect(&mut self) {
        if let Some(shells) = &mut *self.returns.shells.lock() {
            std::mem::swap(shells, &mut self.incoming);
        }
        for mut shell in self.incoming.drain(..) {
            // Another clone is alive, or lies behind this one in the list: that one brings the buffer.
            let Some(inner) = Arc::get_mut(&mut shell) else { continue };
            if let Some(buf) = inner.buf.take() {
                self.on_loan -= 1;
                self.free.push(buf);
                self.shells.push(shell);
            }
        }
    }
}

impl Drop for RecvPool {
    fn drop(&mut self) {
        let shells = self.returns.shells.lock().take();
        drop(shells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(n: usize) -> RecvPool {
        RecvPool::new(RecvBuf::slab(n, 512))
    }

    fn fill(pool: &mut RecvPool, bytes: &[u8]) -> RecvBuf {
        let mut buf = pool.free.pop().unwrap();
        assert!(buf.fill(bytes));
        buf
    }

    #[test]
    fn the_last_clone_brings_the_buffer_back() {
        let mut p = pool(4);
        let buf = fill(&mut p, b"abc");
        let lease = p.lend(buf);
        let other = lease.clone();
        drop(lease);
        p.collect();
        assert_eq!((p.free.len(), p.on_loan()), (3, 1));
        assert_eq!(other.bytes(), b"abc");
        drop(other);
        p.collect();
        assert_eq!((p.free.len(), p.on_loan()), (4, 0));
    }

    #[test]
    fn clones_dropped_together_bring_it_back_once() {
        let mut p = pool(4);
        let buf = fill(&mut p, b"abc");
        let clones = vec![p.lend(buf); 5];
        drop(clones);
        p.collect();
        assert_eq!((p.free.len(), p.on_loan()), (4, 0));
    }

    #[test]
    fn nothing_is_left_of_a_pool_and_its_last_leases() {
        for pool_first in [true, false] {
            let mut p = pool(4);
            let (one, other) = (fill(&mut p, b"abc"), fill(&mut p, b"def"));
            let (one, other) = (p.lend(one), p.lend(other));
            let home = Arc::downgrade(&p.returns);
            drop(one);
            if pool_first {
                drop(p);
                assert_eq!(other.bytes(), b"def");
                drop(other);
            } else {
                drop((other, p));
            }
            assert!(home.upgrade().is_none(), "pool first: {pool_first}");
        }
    }

    #[test]
    fn under_pressure_frames_are_copied_out() {
        let mut p = pool(4);
        let mut kept = Vec::new();
        for i in 0..100u8 {
            p.collect();
            let buf = fill(&mut p, &[i]);
            kept.push(p.lend(buf));
        }
        assert_eq!(p.on_loan(), 3);
        assert!(kept.iter().enumerate().all(|(i, l)| l.bytes() == [i as u8]));
    }
}
