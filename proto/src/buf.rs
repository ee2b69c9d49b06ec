//! What the protocol asks of the buffers that frames live in.
//!
//! The protocol moves frames about but never allocates their memory: on a device they lie in
//! registered slots, in tests in a `Vec`.

use alloc::rc::Rc;
use alloc::vec::Vec;

/// A buffer that a frame is written into and sent from.
pub trait TxFrame {
    /// The greatest frame in bytes.
    fn capacity(&self) -> usize;
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// All the room, as it was last written.
    fn room(&self) -> &[u8];
    /// All the room; the frame's length is set by [`TxFrame::set_len`].
    fn room_mut(&mut self) -> &mut [u8];
    /// Sets the frame's length in bytes, at most the capacity.
    fn set_len(&mut self, len: usize);
}

/// A received frame. A clone is cheap and shares the bytes.
pub trait RxFrame: Clone {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// A frame with these bytes, which this node sent itself (self-delivery).
    fn copy_of(bytes: &[u8]) -> Self;
}

/// A frame on the heap, for tests and simulations without a device.
#[derive(Clone, Debug)]
pub struct HeapFrame {
    bytes: Vec<u8>,
    capacity: usize,
}

impl HeapFrame {
    /// An empty frame with room for `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), capacity }
    }
}

impl TxFrame for HeapFrame {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn room(&self) -> &[u8] {
        &self.bytes
    }

    fn room_mut(&mut self) -> &mut [u8] {
        self.bytes.resize(self.capacity, 0);
        &mut self.bytes
    }

    fn set_len(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}

impl RxFrame for Rc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn copy_of(bytes: &[u8]) -> Self {
        bytes.into()
    }
}
