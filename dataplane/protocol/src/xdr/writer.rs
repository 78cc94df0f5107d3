//! Writing XDR.

use super::padding_bytes;
use crate::error::EncodeError;

/// A cursor that writes into given space and never beyond it.
///
/// A `write_…` that fails does not change the position.
#[derive(Debug)]
pub struct Writer<'a> {
    space: &'a mut [u8],
    position: usize,
}

impl<'a> Writer<'a> {
    /// A writer at the start of `space`.
    #[inline]
    #[must_use]
    pub const fn new(space: &'a mut [u8]) -> Self {
        Self { space, position: 0 }
    }

    /// How many octets were written.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// How many octets still fit.
    #[inline]
    #[must_use]
    pub const fn remaining_bytes(&self) -> usize {
        self.space.len() - self.position
    }

    /// An array of octets, with a single check of the space.
    #[inline]
    pub(crate) fn write_array<const N: usize>(
        &mut self,
        array: [u8; N],
    ) -> Result<(), EncodeError> {
        let Some(slot) = self
            .space
            .get_mut(self.position..)
            .and_then(<[u8]>::first_chunk_mut)
        else {
            return Err(EncodeError::NoSpace);
        };
        *slot = array;
        self.position += N;
        Ok(())
    }

    /// An unsigned integer (RFC 4506 section 4.2).
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn write_u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.write_array(value.to_be_bytes())
    }

    /// An unsigned hyper integer (RFC 4506 section 4.5).
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn write_u64(&mut self, value: u64) -> Result<(), EncodeError> {
        self.write_array(value.to_be_bytes())
    }

    /// A boolean, or the mark before optional data (RFC 4506 sections 4.4 and 4.19).
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn write_bool(&mut self, value: bool) -> Result<(), EncodeError> {
        self.write_u32(u32::from(value))
    }

    /// A length or count.
    ///
    /// # Errors
    /// `TooLong` when it does not fit 32 bits, `NoSpace`.
    #[inline]
    pub fn write_count(&mut self, count: usize) -> Result<(), EncodeError> {
        self.write_u32(u32::try_from(count).map_err(|_| EncodeError::TooLong)?)
    }

    /// Octets as they are, without padding.
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let slot = self
            .space
            .get_mut(self.position..)
            .and_then(|rest| rest.get_mut(..bytes.len()));
        slot.ok_or(EncodeError::NoSpace)?.copy_from_slice(bytes);
        self.position += bytes.len();
        Ok(())
    }

    /// Fixed-length opaque data, padded with zeroes (RFC 4506 section 4.9).
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn write_opaque_fixed(&mut self, data: &[u8]) -> Result<(), EncodeError> {
        let padding = padding_bytes(data.len());
        if self.remaining_bytes() < data.len() + padding {
            return Err(EncodeError::NoSpace);
        }
        self.write_bytes(data)?;
        self.write_bytes(&[0; 3][..padding])
    }

    /// Variable-length opaque data: length, data, zeroes up to a multiple of four (RFC 4506 section 4.10).
    ///
    /// # Errors
    /// `TooLong` when the length does not fit 32 bits, `NoSpace`.
    #[inline]
    pub fn write_opaque(&mut self, data: &[u8]) -> Result<(), EncodeError> {
        let before = self.position;
        let result = self
            .write_count(data.len())
            .and_then(|()| self.write_opaque_fixed(data));
        if result.is_err() {
            self.position = before;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_words_in_network_order() {
        let mut space = [0xee; 20];
        let mut writer = Writer::new(&mut space);
        writer.write_u32(0x0102_0304).unwrap();
        writer.write_u64(0x0506_0708_090a_0b0c).unwrap();
        writer.write_bool(true).unwrap();
        assert_eq!((writer.position(), writer.remaining_bytes()), (16, 4));
        assert_eq!(
            space,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 1, 0xee, 0xee, 0xee, 0xee
            ]
        );
    }

    #[test]
    fn pads_opaque_data_with_zeroes() {
        let mut space = [0xee; 12];
        let mut writer = Writer::new(&mut space);
        writer.write_opaque(&[1, 2, 3, 4, 5]).unwrap();
        assert_eq!(writer.position(), 12);
        assert_eq!(space, [0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]);
    }

    #[test]
    fn never_writes_beyond_its_space_and_stays_where_it_was() {
        for space_bytes in 0..12 {
            let mut space = [0xee; 12];
            let (given, beyond) = space.split_at_mut(space_bytes);
            let mut writer = Writer::new(given);
            assert_eq!(
                writer.write_opaque(&[1, 2, 3, 4, 5]),
                Err(EncodeError::NoSpace)
            );
            assert_eq!(writer.position(), 0);
            assert!(beyond.iter().all(|byte| *byte == 0xee));
        }
        let mut writer = Writer::new(&mut []);
        assert_eq!(writer.write_u32(1), Err(EncodeError::NoSpace));
        assert_eq!(writer.write_u64(1), Err(EncodeError::NoSpace));
        assert_eq!(writer.write_bytes(&[1]), Err(EncodeError::NoSpace));
        assert_eq!(writer.write_bytes(&[]), Ok(()));
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_count_beyond_32_bits_is_too_long() {
        let mut space = [0; 8];
        let mut writer = Writer::new(&mut space);
        assert_eq!(writer.write_count(1 << 32), Err(EncodeError::TooLong));
    }
}
