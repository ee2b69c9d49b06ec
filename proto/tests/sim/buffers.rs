//! Frames that are counted while they live, so that a run can show that none was lost or kept.

use std::cell::Cell;
use std::rc::Rc;

use qcast_proto::buf::{HeapFrame, RxFrame, TxFrame};

/// How many frames of one kind live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Living(Rc<Cell<usize>>);

impl Living {
    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }

    fn born(&self) -> Self {
        self.0.set(self.0.get() + 1);
        self.clone()
    }
}

/// A frame to be sent, as a device's registered slot.
#[derive(Debug)]
pub(crate) struct Slot {
    frame: HeapFrame,
    living: Living,
}

impl Slot {
    pub(crate) fn new(capacity: usize, living: &Living) -> Self {
        Self { frame: HeapFrame::new(capacity), living: living.born() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.living.0.set(self.living.0.get() - 1);
    }
}

impl TxFrame for Slot {
    fn capacity(&self) -> usize {
        self.frame.capacity()
    }

    fn bytes(&self) -> &[u8] {
        self.frame.bytes()
    }

    fn room(&self) -> &[u8] {
        self.frame.room()
    }

    fn room_mut(&mut self) -> &mut [u8] {
        self.frame.room_mut()
    }

    fn set_len(&mut self, len: usize) {
        self.frame.set_len(len);
    }
}

/// A received frame. Every clone is counted.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Rc<[u8]>,
    living: Option<Living>,
}

impl Received {
    pub(crate) fn new(bytes: Rc<[u8]>, living: &Living) -> Self {
        Self { bytes, living: Some(living.born()) }
    }
}

impl Clone for Received {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), living: self.living.as_ref().map(Living::born) }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(living) = &self.living {
            living.0.set(living.0.get() - 1);
        }
    }
}

impl RxFrame for Received {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn copy_of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), living: None }
    }
}
