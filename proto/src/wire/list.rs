//! Lists of structures in control bodies.
//!
//! On the wire they are lists as any other: a length, then the elements. But a decoder that sets memory
//! aside for elements before they came would have to know how large they are in memory, which a peer
//! cannot: here it grows with what came, up to a number that is the reader's own.
//! Requirements: `R-CONTROL-1`, `R-CONTROL-5`.

use alloc::vec::Vec;
use core::ops::Deref;

use bincode::de::{BorrowDecode, BorrowDecoder, Decoder};
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

/// At most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Adds an element; gives it back when the list is full.
    ///
    /// # Errors
    /// The list is full, and as it was.
    pub fn push(&mut self, element: T) -> Result<(), T> {
        if self.0.len() == MAX {
            return Err(element);
        }
        self.0.push(element);
        Ok(())
    }

    /// Takes the last element away.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// The elements.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: usize> FromIterator<T> for List<T, MAX> {
    /// The first `MAX` elements.
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(elements.into_iter().take(MAX).collect())
    }
}

impl<T: Encode, const MAX: usize> Encode for List<T, MAX> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.0.len() as u64).encode(encoder)?;
        self.0.iter().try_for_each(|element| element.encode(encoder))
    }
}

impl<Context, T: Decode<Context>, const MAX: usize> Decode<Context> for List<T, MAX> {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let len = u64::decode(decoder)?;
        if len > MAX as u64 {
            return Err(DecodeError::LimitExceeded);
        }
        let mut elements = Vec::new();
        for _ in 0..len {
            elements.push(T::decode(decoder)?);
        }
        Ok(Self(elements))
    }
}

// What the derived decoders of the bodies ask for.
impl<'de, Context, T: Decode<Context>, const MAX: usize> BorrowDecode<'de, Context>
    for List<T, MAX>
{
    fn borrow_decode<D: BorrowDecoder<'de, Context = Context>>(
        decoder: &mut D,
    ) -> Result<Self, DecodeError> {
        Self::decode(decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{MAX_BODY, decode, encode};
    use std::string::{String, ToString};

    type Names = List<(String, String), 100>;

    /// R-CONTROL-1, R-CONTROL-5.
    #[test]
    fn lists_hold_what_fits_whatever_it_takes_in_memory() {
        let names: Names = (0..100).map(|n| (n.to_string(), String::new())).collect();
        let mut out = [0; MAX_BODY];
        let len = encode(&names, &mut out).unwrap();
        assert_eq!(decode::<Names>(&out[..len]).unwrap(), names);
        let plain = std::vec::Vec::from_iter(names.iter().take(3).cloned());
        let short: Names = plain.iter().cloned().collect();
        let mut other = [0; MAX_BODY];
        let len = encode(&short, &mut out).unwrap();
        assert_eq!(encode(&plain, &mut other), Ok(len));
        assert_eq!(out[..len], other[..len]);
        assert_eq!(short.len(), 3);
    }

    /// R-CONTROL-5.
    #[test]
    fn a_list_that_claims_more_than_its_bound_is_refused() {
        assert!(decode::<List<u8, 3>>(&[3, 1, 2, 3]).is_ok());
        assert!(decode::<List<u8, 3>>(&[4, 1, 2, 3, 4]).is_err());
        assert!(decode::<List<u8, 3>>(&[253, 0, 0, 0, 0, 0, 0, 0, 16]).is_err());
        let mut full: List<u8, 1> = List::default();
        assert_eq!((full.push(1), full.push(2)), (Ok(()), Err(2)));
    }
}
