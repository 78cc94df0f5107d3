//! One item: a list of pieces of registered memory.

use std::fmt;
use std::ops::Deref;

use arrayvec::ArrayVec;
use rpcrdma_fabric::memory::Lease;

/// The most pieces of one item.
pub const ITEM_PARTS_MAX: usize = 32;

/// The bytes of one XDR item, without length and padding, in one or several pieces of registered
/// memory. It may be sent to any thread and kept for any time; dropping it gives the memory
/// back to its core.
///
/// The holder owns its pieces alone; those of a `BulkItem<SharedLease>` are read by others as well.
pub struct BulkItem<T = Lease> {
    // Not an array of options: making or dropping an item would have to visit each of them.
    parts: ArrayVec<T, ITEM_PARTS_MAX>,
}

// Applications move items by value: a move has to cost less than a copy of the bytes would.
const _: () = assert!(size_of::<BulkItem>() < 1024);

impl<T> Default for BulkItem<T> {
    fn default() -> Self {
        Self {
            parts: ArrayVec::new(),
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
        self.parts.try_push(part).map_err(|full| full.element())
    }

    /// Takes the last piece off.
    pub fn pop(&mut self) -> Option<T> {
        self.parts.pop()
    }

    /// The number of pieces.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// The pieces, in order.
    pub fn parts(&self) -> impl Iterator<Item = &T> {
        self.parts.iter()
    }

    /// The pieces, to be filled.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.parts.iter_mut()
    }

    /// The last piece, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.parts.last_mut()
    }

    /// Takes the pieces out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.parts.drain(..)
    }

    /// Appends all pieces of `other`. An item without pieces has room for any other's.
    pub(crate) fn take_from(&mut self, other: &mut Self) {
        let fits = other.move_to(&mut self.parts);
        debug_assert!(fits, "it was empty");
    }

    /// Moves the pieces to the end of `list`. False, and nothing is moved, when it lacks the room.
    #[inline(always)]
    pub(crate) fn move_to<const N: usize>(&mut self, list: &mut ArrayVec<T, N>) -> bool {
        let fits = self.parts.len() <= list.remaining_capacity();
        if fits {
            // Nearly all have a single piece.
            match self.parts.len() {
                1 => list.extend(self.parts.pop()),
                _ => list.extend(self.parts.drain(..)),
            }
        }
        fits
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

    /// Copies its bytes to the start of `out`, as many as fit. Returns how many were copied.
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
    type IntoIter = ItemParts<T>;

    fn into_iter(self) -> Self::IntoIter {
        ItemParts(self.parts.into_iter())
    }
}

/// The pieces of an item that was taken apart.
#[derive(Debug)]
pub struct ItemParts<T>(arrayvec::IntoIter<T, ITEM_PARTS_MAX>);

impl<T> Iterator for ItemParts<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
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
        let (bytes, pieces) = (self.len(), self.parts.len());
        write!(f, "BulkItem({bytes} bytes in {pieces} pieces)")
    }
}
