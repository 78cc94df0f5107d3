//! Lists that a header carries as a count and so many entries, which are decoded while one iterates.

use core::marker::PhantomData;

use crate::error::{DecodeError, Reason};
use crate::xdr::Reader;

/// An entry of such a list.
pub trait Entry<'a>: Sized {
    /// Entries of one list at most.
    const MOST: usize;

    /// Reads one entry.
    ///
    /// # Errors
    /// Those of the entry's own fields.
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A list of a received message, in order: framing, bounds and types were checked.
#[derive(Debug)]
pub struct CountedList<'a, T> {
    /// The octets of the entries in the header, without the count.
    bytes: &'a [u8],
    count: usize,
    entries: PhantomData<fn() -> T>,
}

impl<'a, T: Entry<'a>> CountedList<'a, T> {
    /// Reads a list, and calls `check` with the position and value of each entry.
    pub(super) fn decode_with(
        reader: &mut Reader<'a>,
        mut check: impl FnMut(usize, &T) -> Result<(), DecodeError>,
    ) -> Result<Self, DecodeError> {
        let count_field = *reader;
        let count = usize::try_from(reader.read_u32()?).unwrap_or(usize::MAX);
        if count > T::MOST {
            return Err(count_field.error(Reason::TooManyItems));
        }
        let start = *reader;
        for _ in 0..count {
            let at = reader.position();
            check(at, &T::read(reader)?)?;
        }
        let bytes = start
            .rest()
            .get(..reader.position() - start.position())
            .unwrap_or_default();
        Ok(Self {
            bytes,
            count,
            entries: PhantomData,
        })
    }
}

impl<'a, T> CountedList<'a, T> {
    /// The list of a count and octets that were decoded before: they are not checked again.
    #[inline]
    pub(super) const fn decoded(bytes: &'a [u8], count: usize) -> Self {
        Self {
            bytes,
            count,
            entries: PhantomData,
        }
    }

    /// The octets of the entries, without the count.
    #[inline]
    pub(super) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are no entries.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a, T: Entry<'a>> Iterator for CountedList<'a, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        // Every entry was decoded once, so this cannot fail.
        self.count = self.count.checked_sub(1)?;
        let mut reader = Reader::new(self.bytes);
        let entry = T::read(&mut reader).ok()?;
        self.bytes = reader.rest();
        Some(entry)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl<'a, T: Entry<'a>> ExactSizeIterator for CountedList<'a, T> {}
impl<'a, T: Entry<'a>> core::iter::FusedIterator for CountedList<'a, T> {}

// Not derived: a derive would demand the same traits of the entries, but a list is only bytes and a count.

impl<T> Clone for CountedList<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CountedList<'_, T> {}

impl<T> Default for CountedList<'_, T> {
    fn default() -> Self {
        Self {
            bytes: &[],
            count: 0,
            entries: PhantomData,
        }
    }
}

impl<T> PartialEq for CountedList<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        (self.bytes, self.count) == (other.bytes, other.count)
    }
}

impl<T> Eq for CountedList<'_, T> {}
