//! Buffers as owned tokens.
//!
//! A provider cuts one page-aligned allocation into slots and hands each out once. Whoever holds the
//! token owns the slot: posting moves it into the provider, the completion moves it back. So a
//! buffer can be neither posted twice nor touched while the device may use it, with no unsafe code.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::DeviceError;

/// Bytes of GRH space before every received payload, as on every UD queue pair.
pub const GRH_BYTES: usize = 40;

/// Bytes before the payload of a send, where a software provider puts BTH and DETH: a cache line, so
/// that payloads stay aligned.
pub const HEADROOM: usize = 64;

/// Bytes after the payload of a send: up to 3 of padding, and the ICRC.
pub const TAILROOM: usize = 8;

const PAGE: usize = 4096;

/// What a device knows a slab by. Each buffer of the slab holds it, so it lasts as long as any.
pub(super) trait Registration: Send + Sync + fmt::Debug {
    /// The key to `len` bytes at the address `start`, if they are the slab's and the slab is `owner`'s.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only real devices register"))]
    fn key(&self, owner: usize, start: usize, len: usize) -> Option<u32>;

    /// Registers the slab with another device, after the one that it was registered with was closed. What `domain` is
    /// only the provider knows.
    ///
    /// # Errors
    /// It is still registered with the other, or this one refused.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only real devices register"))]
    fn renew(&self, domain: &dyn Any) -> Result<(), DeviceError>;
}

/// A send's memory: headroom, payload, tailroom.
#[derive(Debug)]
pub struct SendBuf {
    /// Before the memory: what is dropped last takes the registration back first.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only real devices register"))]
    registration: Option<Arc<dyn Registration>>,
    slot: u32,
    len: u32,
    mem: BytesMut,
}

impl SendBuf {
    /// Cuts one allocation into `count` buffers of `max_payload` bytes each. Pages are touched when they
    /// are first written.
    pub fn slab(count: usize, max_payload: usize) -> Vec<Self> {
        slots(count, HEADROOM + max_payload + TAILROOM)
            .map(|(slot, mem)| Self { registration: None, slot, len: 0, mem })
            .collect()
    }

    /// The address and the length of the slot.
    #[cfg(feature = "verbs")]
    pub(super) fn span(&mut self) -> (usize, usize) {
        (self.mem.as_mut_ptr().expose_provenance(), self.mem.len())
    }

    /// Notes what the device knows the slab by.
    #[cfg(feature = "verbs")]
    pub(super) fn register(&mut self, registration: &Arc<dyn Registration>) {
        self.registration = Some(Arc::clone(registration));
    }

    /// Has the slab registered with another device. See [`Registration::renew`].
    #[cfg(feature = "verbs")]
    pub(super) fn renew(&self, domain: &dyn Any) -> Result<(), DeviceError> {
        self.registration.as_ref().ok_or(DeviceError::Unregistered)?.renew(domain)
    }

    /// Address, length and key of the payload, if `owner` registered the slab.
    #[cfg(feature = "verbs")]
    pub(super) fn registered(&mut self, owner: usize) -> Option<(usize, u32, u32)> {
        let start = self.mem.as_mut_ptr().expose_provenance() + HEADROOM;
        let key = self.registration.as_ref()?.key(owner, start, self.len as usize)?;
        Some((start, self.len, key))
    }

    /// The slot's place in its slab.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The greatest payload in bytes.
    pub fn capacity(&self) -> usize {
        self.mem.len() - HEADROOM - TAILROOM
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.mem[HEADROOM..HEADROOM + self.len as usize]
    }

    /// All the room for a payload, to be read.
    pub fn room(&self) -> &[u8] {
        &self.mem[HEADROOM..self.mem.len() - TAILROOM]
    }

    /// All the room for a payload; set its length with [`SendBuf::set_len`].
    pub fn room_mut(&mut self) -> &mut [u8] {
        let end = self.mem.len() - TAILROOM;
        &mut self.mem[HEADROOM..end]
    }

    /// Sets the payload's length in bytes.
    ///
    /// # Panics
    /// `len` is more than [`SendBuf::capacity`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit a buffer of {}", self.capacity());
        self.len = u32::try_from(len).expect("a slot is far below 4 GiB");
    }

    /// The datagram in place: `header` bytes of headroom, the payload, `trailer` bytes of tailroom.
    pub fn datagram_mut(&mut self, header: usize, trailer: usize) -> &mut [u8] {
        let end = HEADROOM + self.len as usize + trailer;
        &mut self.mem[HEADROOM - header..end]
    }

    /// The datagram in place, to be read.
    pub fn datagram(&self, header: usize, trailer: usize) -> &[u8] {
        &self.mem[HEADROOM - header..HEADROOM + self.len as usize + trailer]
    }
}

/// A receive's memory: GRH space, then the payload.
#[derive(Debug)]
pub struct RecvBuf {
    /// Before the memory: what is dropped last takes the registration back first.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only real devices register"))]
    registration: Option<Arc<dyn Registration>>,
    slot: u32,
    len: u32,
    mem: Memory,
}

/// Where a received payload lies.
#[derive(Debug)]
enum Memory {
    /// In the slot itself, behind the GRH space.
    Slot(BytesMut),
    /// In memory that several receivers share: the simulator's way to carry one datagram to thousands of nodes.
    /// It holds the payload alone.
    Shared(Bytes),
}

impl RecvBuf {
    /// Cuts one allocation into `count` buffers of [`GRH_BYTES`] + `max_payload` bytes each. Pages are
    /// touched when they are first written.
    pub fn slab(count: usize, max_payload: usize) -> Vec<Self> {
        slots(count, GRH_BYTES + max_payload)
            .map(|(slot, mem)| Self { registration: None, slot, len: 0, mem: Memory::Slot(mem) })
            .collect()
    }

    /// `count` buffers with no memory of their own: the provider shares a datagram into them.
    pub fn shells(count: usize) -> Vec<Self> {
        (0..count)
            .map(|slot| Self {
                registration: None,
                slot: slot_number(slot),
                len: 0,
                mem: Memory::Shared(Bytes::new()),
            })
            .collect()
    }

    /// The address and the length of the slot, GRH space included.
    #[cfg(feature = "verbs")]
    pub(super) fn span(&mut self) -> (usize, usize) {
        let mem = self.slot_mut();
        (mem.as_mut_ptr().expose_provenance(), mem.len())
    }

    /// Notes what the device knows the slab by.
    #[cfg(feature = "verbs")]
    pub(super) fn register(&mut self, registration: &Arc<dyn Registration>) {
        self.registration = Some(Arc::clone(registration));
    }

    /// Address, length and key of the slot, GRH space included, if `owner` registered the slab.
    #[cfg(feature = "verbs")]
    pub(super) fn registered(&mut self, owner: usize) -> Option<(usize, u32, u32)> {
        let (start, len) = self.span();
        let key = self.registration.as_ref()?.key(owner, start, len)?;
        Some((start, slot_number(len), key))
    }

    /// The header space before the payload, as the device filled it. Empty for a shell.
    #[cfg(feature = "verbs")]
    pub(super) fn grh(&self) -> &[u8] {
        match &self.mem {
            Memory::Slot(mem) => &mem[..GRH_BYTES],
            Memory::Shared(_) => &[],
        }
    }

    /// The slot's place in its slab.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The received payload, without the GRH space.
    pub fn payload(&self) -> &[u8] {
        let len = self.len as usize;
        match &self.mem {
            Memory::Slot(mem) => &mem[GRH_BYTES..GRH_BYTES + len],
            Memory::Shared(bytes) => &bytes[..len],
        }
    }

    /// The greatest payload in bytes that fits; 0 for a shell.
    pub fn capacity(&self) -> usize {
        match &self.mem {
            Memory::Slot(mem) => mem.len() - GRH_BYTES,
            Memory::Shared(_) => 0,
        }
    }

    /// Copies a received payload into the slot; `false` (and an empty payload) if it does not fit.
    #[must_use]
    pub fn fill(&mut self, payload: &[u8]) -> bool {
        self.len = 0;
        let Memory::Slot(mem) = &mut self.mem else { return false };
        let Some(room) = mem.get_mut(GRH_BYTES..GRH_BYTES + payload.len()) else { return false };
        room.copy_from_slice(payload);
        self.len = slot_number(payload.len());
        true
    }

    /// Lets the buffer stand for a shared payload.
    pub fn share(&mut self, payload: Bytes) {
        self.len = slot_number(payload.len());
        self.mem = Memory::Shared(payload);
    }

    /// The whole slot, GRH space included, for a provider that fills it in place; see [`RecvBuf::set_len`].
    ///
    /// Empty for a shell.
    pub fn slot_mut(&mut self) -> &mut [u8] {
        match &mut self.mem {
            Memory::Slot(mem) => mem,
            Memory::Shared(_) => &mut [],
        }
    }

    /// Sets the payload's length in bytes after [`RecvBuf::slot_mut`] was filled.
    ///
    /// # Panics
    /// `len` is more than [`RecvBuf::capacity`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit a buffer of {}", self.capacity());
        self.len = slot_number(len);
    }
}

/// Cuts a zeroed, page-aligned allocation into equal slots, each a whole number of cache lines.
fn slots(count: usize, bytes: usize) -> impl Iterator<Item = (u32, BytesMut)> {
    let stride = bytes.next_multiple_of(64);
    let mut slab = BytesMut::zeroed(count * stride + PAGE);
    let start = slab.as_ptr().align_offset(PAGE).min(PAGE);
    drop(slab.split_to(start));
    (0..count).map(move |slot| {
        let mut mem = slab.split_to(stride);
        mem.truncate(bytes);
        (slot_number(slot), mem)
    })
}

fn slot_number(n: usize) -> u32 {
    u32::try_from(n).expect("slots and their sizes are far below 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_page_aligned_and_do_not_overlap() {
        let mut bufs = RecvBuf::slab(3, 1024);
        let start = bufs[0].slot_mut().as_ptr().addr();
        assert_eq!(start % PAGE, 0);
        for (i, buf) in bufs.iter_mut().enumerate() {
            assert!(buf.fill(&[i as u8; 1024]));
            assert_eq!(buf.slot_mut().as_ptr().addr(), start + i * 1088);
        }
        assert!(bufs.iter().enumerate().all(|(i, b)| b.payload() == [i as u8; 1024]));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_refused() {
        let mut buf = RecvBuf::slab(1, 100).remove(0);
        assert!(!buf.fill(&[1; 101]));
        assert!(buf.payload().is_empty());
    }

    #[test]
    fn a_datagram_lies_in_one_piece() {
        let mut buf = SendBuf::slab(2, 256).remove(1);
        buf.room_mut()[..3].copy_from_slice(b"abc");
        buf.set_len(3);
        let datagram = buf.datagram_mut(20, 5);
        assert_eq!(datagram.len(), 28);
        assert_eq!(&datagram[20..23], b"abc");
    }

    #[test]
    fn shells_share_a_payload() {
        let mut buf = RecvBuf::shells(1).remove(0);
        buf.share(Bytes::from_static(b"hello"));
        assert_eq!(buf.payload(), b"hello");
    }
}
