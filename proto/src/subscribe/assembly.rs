//! Fragments into messages. Requirements: `R-FRAG-3`, `R-FRAG-4`.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use crate::addr::Sequence;
use crate::wire::frame::FragmentHeader;

/// Puts together one message whose fragments come in order.
///
/// Memory grows with what has arrived, never with what a header claims.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    first: Sequence,
    message_len: u32,
    bytes: Vec<u8>,
}

impl InOrder {
    /// Takes the next fragment; gives the message once it is whole. A fragment that does not continue
    /// the message drops it.
    pub(crate) fn take(
        &mut self,
        sequence: Sequence,
        header: FragmentHeader,
        piece: &[u8],
    ) -> Option<Vec<u8>> {
        let index = u64::from(header.index);
        if index == 0 {
            self.bytes.clear();
            self.first = sequence;
            self.message_len = header.message_len;
        } else if self.bytes.is_empty()
            || self.first.plus(index) != sequence
            || header.message_len != self.message_len
            || header.offset as usize != self.bytes.len()
        {
            self.clear();
            return None;
        }
        self.bytes.extend_from_slice(piece);
        header.is_last(piece.len()).then(|| core::mem::take(&mut self.bytes))
    }

    /// Drops what has been gathered.
    pub(crate) fn clear(&mut self) {
        self.bytes = Vec::new();
    }

    /// Bytes set aside.
    pub(crate) fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// The first frame of the message whose pieces are being gathered.
    pub(crate) fn begun(&self) -> Option<Sequence> {
        (!self.bytes.is_empty()).then_some(self.first)
    }
}

/// Puts together messages whose fragments come in any order, each once.
///
/// Memory grows with what has arrived, never with what a header claims. The frames of a message follow
/// each other, so a fragment that contradicts an earlier one drops that one's message: only a publisher
/// that lies does that.
#[derive(Debug, Default)]
pub(crate) struct AnyOrder {
    /// By the first fragment's sequence.
    partial: BTreeMap<Sequence, Partial>,
}

#[derive(Debug)]
struct Partial {
    message_len: u32,
    /// The last fragment's sequence.
    last: Sequence,
    /// The message up to the first piece that lacks.
    bytes: Vec<u8>,
    /// That piece's index.
    lacks: u32,
    /// Pieces after it, with their offsets.
    later: BTreeMap<u32, (u32, Vec<u8>)>,
    /// Their bytes.
    later_bytes: usize,
}

/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    /// The last fragment's sequence.
    pub(crate) last: Sequence,
    pub(crate) bytes: Vec<u8>,
}

impl AnyOrder {
    /// Takes a fragment; gives the message once it is whole.
    pub(crate) fn take(
        &mut self,
        sequence: Sequence,
        header: FragmentHeader,
        piece: &[u8],
    ) -> Option<Whole> {
        let first = first_of(sequence, header)?;
        let last = if header.is_last(piece.len()) {
            sequence
        } else {
            // All pieces but the last are of one size.
            let pieces = u64::from(header.message_len).div_ceil(piece.len() as u64);
            first.plus(pieces - 1)
        };
        self.drop_contradicted(first, last);
        let partial = self.partial.entry(first).or_insert_with(|| Partial {
            message_len: header.message_len,
            last,
            bytes: Vec::new(),
            lacks: 0,
            later: BTreeMap::new(),
            later_bytes: 0,
        });
        let same = (partial.message_len, partial.last) == (header.message_len, last);
        if !same || !partial.take(header, piece) {
            self.partial.remove(&first);
            return None;
        }
        if partial.bytes.len() < header.message_len as usize {
            return None;
        }
        let Partial { last, bytes, .. } = self.partial.remove(&first)?;
        Some(Whole { last, bytes })
    }

    /// Drops messages other than `first` that would share frames with it.
    fn drop_contradicted(&mut self, first: Sequence, last: Sequence) {
        if let Some((before, partial)) = self.partial.range(..first).next_back()
            && partial.last >= first
        {
            let before = *before;
            self.partial.remove(&before);
        }
        while let Some((within, _)) =
            self.partial.range(first.next()..=last.max(first.next())).next()
        {
            let within = *within;
            self.partial.remove(&within);
        }
    }

    /// Drops the messages that the lost frames `first` to `last` belong to.
    pub(crate) fn lose(&mut self, first: Sequence, last: Sequence) {
        self.partial.retain(|begin, p| last < *begin || p.last < first);
    }

    /// Drops messages that end before `sequence`.
    pub(crate) fn drop_before(&mut self, sequence: Sequence) {
        while self.partial.first_key_value().is_some_and(|(_, p)| p.last < sequence) {
            self.partial.pop_first();
        }
    }

    /// Keeps the newest `n` messages.
    pub(crate) fn keep_newest(&mut self, n: usize) {
        while self.partial.len() > n {
            self.partial.pop_first();
        }
    }

    /// The frames that are missing of the message that `sequence` belongs to, or `most` and one of them;
    /// `None` if no fragment of it is here.
    pub(crate) fn missing(&self, sequence: Sequence, most: usize) -> Option<Vec<Sequence>> {
        let (first, p) = self.partial.range(..=sequence).next_back()?;
        if p.last < sequence {
            return None;
        }
        let here = |at: &u64| u32::try_from(at - first.0).is_ok_and(|i| p.later.contains_key(&i));
        let lacking = (first.0 + u64::from(p.lacks)..=p.last.0).filter(|at| !here(at));
        Some(lacking.map(Sequence).take(most + 1).collect())
    }

    /// Whether a fragment of the message that `sequence` belongs to is here.
    pub(crate) fn covers(&self, sequence: Sequence) -> bool {
        self.partial.range(..=sequence).next_back().is_some_and(|(_, p)| sequence <= p.last)
    }

    /// Bytes set aside.
    pub(crate) fn held(&self) -> usize {
        self.partial.values().map(|p| p.bytes.capacity() + p.later_bytes).sum()
    }

    /// Drops what has been gathered; gives the first and last frame of each message.
    pub(crate) fn shed(&mut self) -> impl Iterator<Item = (Sequence, Sequence)> + use<> {
        core::mem::take(&mut self.partial).into_iter().map(|(first, p)| (first, p.last))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.partial.len()
    }
}

impl Partial {
    /// Takes a piece; false if it contradicts the others.
    fn take(&mut self, header: FragmentHeader, piece: &[u8]) -> bool {
        if header.index > self.lacks {
            if let Entry::Vacant(slot) = self.later.entry(header.index) {
                slot.insert((header.offset, piece.into()));
                self.later_bytes += piece.len();
            }
            return true;
        }
        if header.index < self.lacks {
            return true;
        }
        if !self.append(header.offset, piece) {
            return false;
        }
        while let Some((offset, piece)) = self.later.remove(&self.lacks) {
            self.later_bytes -= piece.len();
            if !self.append(offset, &piece) {
                return false;
            }
        }
        true
    }

    fn append(&mut self, offset: u32, piece: &[u8]) -> bool {
        if offset as usize != self.bytes.len() {
            return false;
        }
        self.bytes.extend_from_slice(piece);
        self.lacks += 1;
        true
    }
}

/// The sequence of the first fragment of a fragment's message.
pub(crate) fn first_of(sequence: Sequence, header: FragmentHeader) -> Option<Sequence> {
    sequence.0.checked_sub(u64::from(header.index)).map(Sequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::MAX_MESSAGE;

    fn pieces(len: usize, piece: usize) -> Vec<(FragmentHeader, Vec<u8>)> {
        let message: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        message
            .chunks(piece)
            .enumerate()
            .map(|(i, c)| {
                let header = FragmentHeader {
                    message_len: len as u32,
                    offset: (i * piece) as u32,
                    index: i as u32,
                };
                (header, c.to_vec())
            })
            .collect()
    }

    #[test]
    fn fragments_in_order_make_a_message_and_a_gap_drops_it() {
        let p = pieces(1000, 300);
        let mut a = InOrder::default();
        let mut whole = None;
        for (i, (h, bytes)) in p.iter().enumerate() {
            whole = a.take(Sequence(10 + i as u64), *h, bytes);
            assert_eq!(whole.is_some(), i == 3);
        }
        assert_eq!(whole.unwrap().len(), 1000);
        a.take(Sequence(20), p[0].0, &p[0].1);
        assert!(a.take(Sequence(22), p[2].0, &p[2].1).is_none());
        assert!(a.take(Sequence(23), p[3].0, &p[3].1).is_none());
    }

    #[test]
    fn fragments_in_any_order_make_a_message() {
        let p = pieces(1000, 300);
        let mut a = AnyOrder::default();
        for i in [3, 1, 0] {
            assert!(a.take(Sequence(5 + i as u64), p[i].0, &p[i].1).is_none());
        }
        assert_eq!(a.missing(Sequence(6), 9), Some(std::vec![Sequence(7)]));
        let whole = a.take(Sequence(7), p[2].0, &p[2].1).unwrap();
        let bytes: Vec<u8> = p.iter().flat_map(|(_, b)| b.clone()).collect();
        assert_eq!(whole, Whole { last: Sequence(8), bytes });
        assert_eq!(a.len(), 0);
    }

    /// R-FRAG-4.
    #[test]
    fn a_lost_frame_drops_its_own_message_only() {
        let p = pieces(1000, 300);
        let mut a = AnyOrder::default();
        for first in [0, 4, 8] {
            a.take(Sequence(first), p[0].0, &p[0].1);
        }
        a.lose(Sequence(6), Sequence(7));
        assert_eq!(a.partial.keys().copied().collect::<Vec<_>>(), [Sequence(0), Sequence(8)]);
    }

    /// R-FRAG-3: a stream of first fragments of large messages, one frame after the other.
    #[test]
    fn claims_take_no_memory_and_contradictions_drop_what_they_contradict() {
        let mut a = AnyOrder::default();
        let h = FragmentHeader { message_len: MAX_MESSAGE as u32, offset: 0, index: 0 };
        for i in 0..1000u64 {
            assert!(a.take(Sequence(i), h, &[1]).is_none());
        }
        assert_eq!(a.len(), 1);
        // The last byte of a large message takes one byte.
        let index = MAX_MESSAGE as u32 - 1;
        let h = FragmentHeader { message_len: MAX_MESSAGE as u32, offset: index, index };
        assert!(a.take(Sequence(1 << 40), h, &[1]).is_none());
        assert!(a.partial.values().all(|p| p.bytes.capacity() < 1024));
        // Before the beginning of the stream.
        let h = FragmentHeader { message_len: 5, offset: 1, index: 1 };
        assert!(a.take(Sequence(0), h, &[1]).is_none());
        // Pieces of other sizes than the first told.
        let p = pieces(1000, 300);
        a.take(Sequence(4), p[0].0, &p[0].1);
        let odd = FragmentHeader { message_len: 1000, offset: 299, index: 1 };
        assert!(a.take(Sequence(5), odd, &[0; 300]).is_none());
        assert!(!a.covers(Sequence(4)));
    }
}
