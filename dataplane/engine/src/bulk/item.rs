//! One item: a list of pieces of registered memory.

use std::fmt;
use std::ops::Deref;

use rpcrdma_fabric::memory::Lease;

/// Pieces that one item is made of at most.
pub const ITEM_PARTS_MAX: usize = 32;

/// The bytes of one XDR item, without length and padding, in one or several pieces of registered
/// memory. It may go to any thread, and be kept as long as one likes; dropping it gives the memory
/// back to its core.
///
/// Its pieces are the holder's alone, or, as a `BulkItem<SharedLease>`, read by others as well.
pub struct BulkItem<T = Lease> {
    parts: [Option<T>; ITEM_PARTS_MAX],
    count: usize,
}

// Applications move items about: that is to cost less than a copy of their bytes would.
const _: () = assert!(size_of::<BulkItem>() < 1024);

impl<T> Default for BulkItem<T> {
    fn default() -> Self {
        Self {
            parts: [const { None }; ITEM_PARTS_MAX],
            count: 0,
        }
    }
}

impl<T> BulkItem<T> {
    /// An empty item.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a piece; gives it back when there are [`ITEM_PARTS_MAX`] already.
    ///
    /// # Errors
    /// The piece that found no room.
    pub fn push(&mut self, part: T) -> Result<(), T> {
        match self.parts.get_mut(self.count) {
            Some(place) => {
                *place = Some(part);
                self.count += 1;
                Ok(())
            }
            None => Err(part),
        }
    }

    /// Takes the last piece off.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.parts.get_mut(last).and_then(Option::take)
    }

    /// The number of pieces.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.count
    }

    /// The pieces, in order.
    pub fn parts(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().take(self.count).flatten()
    }

    /// The pieces, to be filled.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.parts.iter_mut().take(self.count).flatten()
    }

    /// The last piece, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        let last = self.count.checked_sub(1)?;
        self.parts.get_mut(last).and_then(Option::as_mut)
    }

    /// Takes the pieces out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let count = std::mem::take(&mut self.count);
        self.parts.iter_mut().take(count).filter_map(Option::take)
    }
}

impl<T: Deref<Target = [u8]>> BulkItem<T> {
    /// Its bytes, all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts().map(|part| part.len()).sum()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies its bytes to the start of `out`, as far as that reaches; how many were copied.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for part in self.parts() {
            let room = out.get_mut(copied..).unwrap_or(&mut []);
            let count = part.len().min(room.len());
            if let (Some(room), Some(part)) = (room.get_mut(..count), part.get(..count)) {
                room.copy_from_slice(part);
                copied += count;
            }
        }
        copied
    }
}

/// Its pieces, in order.
impl<T> IntoIterator for BulkItem<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<T>, ITEM_PARTS_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter().flatten()
    }
}

impl<T> From<T> for BulkItem<T> {
    fn from(part: T) -> Self {
        let mut item = Self::new();
        // There is room for one.
        let _ = item.push(part);
        item
    }
}

impl<T: Deref<Target = [u8]>> fmt::Debug for BulkItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkItem({} bytes in {} pieces)", self.len(), self.count)
    }
}
