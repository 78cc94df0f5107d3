//! Reading XDR.

use super::padding_bytes;
use crate::error::{DecodeError, Reason};

/// A cursor over received bytes.
///
/// Each `read_…` consumes what it returns, or consumes nothing and returns an error with the position where the field
/// begins. To look ahead, copy the reader, which is cheap.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    input_bytes: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `input`.
    #[inline]
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self {
            rest: input,
            input_bytes: input.len(),
        }
    }

    /// Byte offset of the next field from the start of the input.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.input_bytes - self.rest.len()
    }

    /// The bytes that were not yet read.
    #[inline]
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything was read.
    #[inline]
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// An error at the next field.
    #[inline]
    #[must_use]
    pub const fn error(&self, reason: Reason) -> DecodeError {
        DecodeError::new(self.position(), reason)
    }

    #[inline]
    fn read_array<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.rest = rest;
                Ok(array)
            }
            None => Err(self.error(Reason::Truncated)),
        }
    }

    /// An unsigned integer (RFC 4506 section 4.2).
    ///
    /// # Errors
    /// `Truncated` when fewer than four octets are left.
    #[inline]
    pub fn read_u32(&mut self) -> Result<u32, DecodeError> {
        self.read_array().map(|word| u32::from_be_bytes(*word))
    }

    /// An unsigned hyper integer (RFC 4506 section 4.5).
    ///
    /// # Errors
    /// `Truncated` when fewer than eight octets are left.
    #[inline]
    pub fn read_u64(&mut self) -> Result<u64, DecodeError> {
        self.read_array().map(|words| u64::from_be_bytes(*words))
    }

    /// A boolean, or the mark that says whether optional data follows (RFC 4506 sections 4.4 and 4.19).
    ///
    /// # Errors
    /// `Truncated`, and `InvalidBoolean` for a word other than 0 and 1.
    #[inline]
    pub fn read_bool(&mut self) -> Result<bool, DecodeError> {
        // The cursor moves only after the check: to reset it, one would have to copy it and wait for the stores of its
        // halves.
        let Some((word, rest)) = self.rest.split_first_chunk() else {
            return Err(self.error(Reason::Truncated));
        };
        let is_set = match u32::from_be_bytes(*word) {
            0 => false,
            1 => true,
            _ => return Err(self.error(Reason::InvalidBoolean)),
        };
        self.rest = rest;
        Ok(is_set)
    }

    /// The next `len_bytes` octets as they are, without padding.
    ///
    /// # Errors
    /// `Truncated` when fewer are left.
    #[inline]
    pub fn read_bytes(&mut self, len_bytes: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len_bytes) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.error(Reason::Truncated)),
        }
    }

    /// Fixed-length opaque data with its padding (RFC 4506 section 4.9).
    ///
    /// The content of the padding is not checked: it does not change the data.
    ///
    /// # Errors
    /// `Truncated` when data or padding are incomplete.
    #[inline]
    pub fn read_opaque_fixed(&mut self, len_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let before = *self;
        let data = self.read_bytes(len_bytes)?;
        if self.read_bytes(padding_bytes(len_bytes)).is_err() {
            *self = before;
            return Err(self.error(Reason::Truncated));
        }
        Ok(data)
    }

    /// Variable-length opaque data of at most `bytes_max` octets, with its padding (RFC 4506 section 4.10).
    ///
    /// # Errors
    /// `OpaqueTooLong` when the length exceeds `bytes_max`, `Truncated` when length, data or padding are incomplete.
    #[inline]
    pub fn read_opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], DecodeError> {
        let before = *self;
        let len_bytes = self.read_u32()?;
        let result = match usize::try_from(len_bytes) {
            Ok(len_bytes) if len_bytes <= bytes_max => self.read_opaque_fixed(len_bytes),
            _ => Err(before.error(Reason::OpaqueTooLong)),
        };
        if result.is_err() {
            *self = before;
        }
        result.map_err(|error| DecodeError::new(before.position(), error.reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_words_in_network_order_and_tells_where_it_is() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9, 7]);
        assert_eq!(reader.read_u32(), Ok(0x0102_0304));
        assert_eq!(reader.position(), 4);
        assert_eq!(reader.read_u64(), Ok(9));
        assert_eq!(
            reader.read_u32(),
            Err(DecodeError::new(12, Reason::Truncated))
        );
        assert_eq!(reader.rest(), &[7], "a failed read consumes nothing");
        assert!(!reader.is_at_end());
    }

    #[test]
    fn a_boolean_is_zero_or_one() {
        for (word, expected) in [(0_u32, Ok(false)), (1, Ok(true))] {
            assert_eq!(Reader::new(&word.to_be_bytes()).read_bool(), expected);
        }
        for word in [2_u32, 0x0100_0000, u32::MAX] {
            let bytes = word.to_be_bytes();
            let mut reader = Reader::new(&bytes);
            assert_eq!(
                reader.read_bool(),
                Err(DecodeError::new(0, Reason::InvalidBoolean))
            );
            assert_eq!(reader.position(), 0);
        }
    }

    #[test]
    fn opaque_data_takes_its_padding_along() {
        let bytes = [0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0, 0xff];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.read_opaque(5), Ok(&bytes[4..9]));
        assert_eq!(reader.rest(), &[0xff]);
        assert_eq!(
            Reader::new(&bytes).read_opaque(4),
            Err(DecodeError::new(0, Reason::OpaqueTooLong))
        );
        for end in 0..12 {
            let mut reader = Reader::new(&bytes[..end]);
            assert_eq!(
                reader.read_opaque(400),
                Err(DecodeError::new(0, Reason::Truncated)),
                "{end} bytes"
            );
            assert_eq!(reader.position(), 0);
        }
    }

    #[test]
    fn data_without_its_padding_is_not_consumed() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5, 0, 0]);
        let truncated = Err(DecodeError::new(0, Reason::Truncated));
        assert_eq!(reader.read_opaque_fixed(5), truncated);
        assert_eq!(reader.position(), 0);
        assert_eq!(reader.read_opaque_fixed(4), Ok(&[1, 2, 3, 4][..]));
    }

    #[test]
    fn a_length_of_almost_4_gib_does_not_wrap() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let truncated = Err(DecodeError::new(0, Reason::Truncated));
        assert_eq!(Reader::new(&bytes).read_opaque(usize::MAX), truncated);
        assert_eq!(Reader::new(&bytes).read_opaque_fixed(usize::MAX), truncated);
        assert_eq!(Reader::new(&bytes).read_bytes(usize::MAX), truncated);
    }
}
