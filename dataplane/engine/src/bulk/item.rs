//! One item: a list of pieces of registered memory.

use std::fmt;

use rpcrdma_fabric::memory::Lease;

/// Pieces that one item is made of at most.
pub const ITEM_PARTS_MAX: usize = 32;

/// The bytes of one XDR item, without length and padding, in one or several pieces of registered
/// memory. It may go to any thread, and be kept as long as one likes; dropping it gives the memory
/// back to its core.
#[derive(Default)]
pub struct BulkItem {
    parts: [Option<Lease>; ITEM_PARTS_MAX],
    count: usize,
}

// Applications move items about: that is to cost less than a copy of their bytes would.
const _: () = assert!(size_of::<BulkItem>() < 1024);

impl BulkItem {
    /// An empty item.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a piece; gives it back when there are [`ITEM_PARTS_MAX`] already.
    ///
    /// # Errors
    /// The piece that found no room.
    pub fn push(&mut self, part: Lease) -> Result<(), Lease> {
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
    pub fn pop(&mut self) -> Option<Lease> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.parts.get_mut(last).and_then(Option::take)
    }

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

    /// The number of pieces.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.count
    }

    /// The pieces, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Lease> {
        self.parts.iter().take(self.count).flatten()
    }

    /// The pieces, to be filled.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.parts.iter_mut().take(self.count).flatten()
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

    /// Takes the pieces out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Lease> + '_ {
        let count = std::mem::take(&mut self.count);
        self.parts.iter_mut().take(count).filter_map(Option::take)
    }
}

impl From<Lease> for BulkItem {
    fn from(part: Lease) -> Self {
        let mut item = Self::new();
        // There is room for one.
        let _ = item.push(part);
        item
    }
}

impl fmt::Debug for BulkItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkItem({} bytes in {} pieces)", self.len(), self.count)
    }
}
