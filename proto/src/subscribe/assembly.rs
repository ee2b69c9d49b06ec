//! Fragments into messages.

use alloc::collections::BTreeMap;
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
}

/// Puts together messages whose fragments come in any order, each once.
#[derive(Debug, Default)]
pub(crate) struct AnyOrder {
    partial: BTreeMap<Sequence, Partial>,
}

#[derive(Debug)]
struct Partial {
    message_len: u32,
    received: usize,
    bytes: Vec<u8>,
    /// The last fragment's sequence, once a fragment told the size of a piece.
    last: Option<Sequence>,
}

/// Messages of one stream that may be incomplete at once: the window of a publisher at the least path
/// MTU and one large message in it do not need more.
const MAX_PARTIAL: usize = 8;

impl AnyOrder {
    /// Takes a fragment; gives the message once it is whole.
    pub(crate) fn take(
        &mut self,
        sequence: Sequence,
        header: FragmentHeader,
        piece: &[u8],
    ) -> Option<Vec<u8>> {
        let first = Sequence(sequence.0.checked_sub(u64::from(header.index))?);
        if !self.partial.contains_key(&first) && self.partial.len() >= MAX_PARTIAL {
            self.partial.pop_first();
        }
        let partial = self.partial.entry(first).or_insert_with(|| Partial {
            message_len: header.message_len,
            received: 0,
            bytes: Vec::new(),
            last: None,
        });
        if partial.message_len != header.message_len {
            self.partial.remove(&first);
            return None;
        }
        let (start, end) = (header.offset as usize, header.offset as usize + piece.len());
        if partial.bytes.len() < end {
            partial.bytes.resize(end, 0);
        }
        partial.bytes[start..end].copy_from_slice(piece);
        partial.received += piece.len();
        if header.is_last(piece.len()) {
            partial.last = Some(sequence);
        } else if partial.last.is_none() {
            let pieces = u64::from(header.message_len).div_ceil(piece.len() as u64);
            partial.last = Some(first.plus(pieces - 1));
        }
        if partial.received < header.message_len as usize {
            return None;
        }
        self.partial.remove(&first).map(|p| p.bytes)
    }

    /// Drops the messages that a lost frame belongs to.
    pub(crate) fn lose(&mut self, lost: Sequence) {
        self.partial.retain(|first, p| lost < *first || p.last.is_some_and(|last| last < lost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

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
        let whole = a.take(Sequence(7), p[2].0, &p[2].1).unwrap();
        let expected: Vec<u8> = p.iter().flat_map(|(_, b)| b.clone()).collect();
        assert_eq!(whole, expected);
        assert!(a.partial.is_empty());
    }

    #[test]
    fn a_lost_frame_drops_its_own_message_only() {
        let p = pieces(1000, 300);
        let mut a = AnyOrder::default();
        for first in [0, 4, 8] {
            a.take(Sequence(first), p[0].0, &p[0].1);
        }
        a.lose(Sequence(6));
        assert_eq!(a.partial.keys().copied().collect::<Vec<_>>(), [Sequence(0), Sequence(8)]);
    }

    #[test]
    fn partial_messages_are_bounded() {
        let mut a = AnyOrder::default();
        for i in 0..1000u64 {
            let h = FragmentHeader { message_len: 1 << 20, offset: 1, index: 1 };
            assert!(a.take(Sequence(i * 10 + 1), h, &[1]).is_none());
        }
        assert_eq!(a.partial.len(), MAX_PARTIAL);
        let h = FragmentHeader { message_len: 5, offset: 1, index: 1 };
        assert!(a.take(Sequence(0), h, &[1]).is_none());
        let _ = vec![0];
    }
}
