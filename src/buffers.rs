//! Registered memory for bulk data.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::{ExternalMemory, NotLeased};

use crate::error::{Error, Failure};
use crate::exchange::CoreShared;

/// Bytes in registered memory, in one or several pieces: data that is sent from where it is, or that came by RDMA.
///
/// It may go to any thread and be kept as long as needed; dropping it gives the memory back to its core. Memory that is
/// kept is not there for other calls: `bulk_buffers` of the profile is the number of pieces.
#[derive(Debug, Default)]
pub struct Buffer {
    pub(crate) item: BulkItem,
}

impl Buffer {
    /// The `bytes` bytes from `offset` on of memory that the program gave to the node: see
    /// [`NodeBuilder::memory`](crate::NodeBuilder::memory). They are sent from where they are, by any core of the node. Memory
    /// for the results of a call is given by [`Request::expect_bulk_into`](crate::Request::expect_bulk_into).
    ///
    /// The buffer has a piece for each block that the range touches, and all of these blocks until it is dropped, or what it
    /// was given to is done with it: the end of a call or a connection does not end a transfer early. At most 32 pieces.
    ///
    /// # Errors
    /// [`ErrorKind::NoBuffers`](crate::ErrorKind::NoBuffers) while another buffer has a part of one of the blocks, and
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) for a range that the memory does not have.
    pub fn of_memory(memory: &ExternalMemory, offset: u64, bytes: usize) -> Result<Self, Error> {
        let block_bytes = u64::from(memory.block_bytes());
        let mut item = BulkItem::new();
        let (mut at, mut left) = (offset, bytes);
        while left > 0 || item.part_count() == 0 {
            let to_end = block_bytes - at % block_bytes;
            let piece_bytes = left.min(usize::try_from(to_end).unwrap_or(left));
            // What was leased so far ends with an error.
            let piece = memory.lease(at, piece_bytes)?;
            item.push(piece).map_err(|_| NotLeased::NoSuchRange)?;
            at += piece_bytes as u64;
            left -= piece_bytes;
        }
        Ok(Self { item })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.item.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.item.is_empty()
    }

    /// Its pieces, in order. Most buffers have one: a piece has up to `bulk_buffer_bytes` of the profile.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.item.parts().map(|piece| &**piece)
    }

    /// Its pieces, to be written.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.item.parts_mut().map(|piece| &mut **piece)
    }

    /// Writes `bytes` from the start on, as far as there is room. Returns how many bytes were written.
    pub fn copy_from(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for piece in self.pieces_mut() {
            let count = piece.len().min(rest.len());
            let (now, later) = rest.split_at(count);
            if let Some(room) = piece.get_mut(..count) {
                room.copy_from_slice(now);
            }
            rest = later;
        }
        bytes.len() - rest.len()
    }

    /// Copies its bytes to the start of `out`, as far as there is room. Returns how many bytes were copied.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        self.item.copy_to(out)
    }

    /// A copy of its bytes in ordinary memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }
}

impl From<BulkItem> for Buffer {
    fn from(item: BulkItem) -> Self {
        Self { item }
    }
}

impl From<Buffer> for BulkItem {
    fn from(buffer: Buffer) -> Self {
        buffer.item
    }
}

/// The registered memory of one core, for threads to take buffers from.
///
/// The core keeps a few pieces ready for its threads. They go without a copy on the connections of that core alone, so
/// take them from the client or the call that they are for.
#[derive(Clone)]
pub struct Buffers {
    core: Arc<CoreShared>,
    piece_bytes: usize,
}

impl Buffers {
    #[inline]
    pub(crate) fn new(core: &Arc<CoreShared>) -> Self {
        core.want_stock();
        Self {
            core: Arc::clone(core),
            piece_bytes: core.bulk_piece_bytes(),
        }
    }

    /// A buffer of `bytes` bytes, which hold remains of earlier data. `None` while the core has too little to spare.
    ///
    /// The first call asks the core to keep pieces ready, which it brings when it next polls. So the first buffers of a client
    /// may be `None` although memory is free: use [`Buffers::wait`] for them. The core keeps a quarter of its memory for
    /// calls of peers, of a large pool less, so threads never get all `bulk_buffers` of the profile.
    ///
    /// It takes the pieces one by one, so several threads that ask for most of the memory can all get `None`.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Option<Buffer> {
        let mut item = BulkItem::new();
        let mut left = bytes;
        while left > 0 {
            let Some(mut piece) = self.core.take_piece() else {
                // What was taken so far ends here, and its memory goes back.
                self.core.wake();
                return None;
            };
            piece.set_len(left);
            left -= piece.len();
            item.push(piece).ok()?;
        }
        Some(Buffer { item })
    }

    /// As [`Buffers::take`], but waits until there is memory.
    ///
    /// # Errors
    /// [`ErrorKind::NoBuffers`](crate::ErrorKind::NoBuffers) after `timeout`, or immediately where the core can never
    /// have so much.
    pub fn wait(&self, bytes: usize, timeout: Duration) -> Result<Buffer, Error> {
        let no_buffers = || Error::from(Failure::NoBuffers { bytes });
        if bytes > self.bytes_max() {
            return Err(no_buffers());
        }
        // None when it is later than the clock can say.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(buffer) = self.take(bytes) {
                return Ok(buffer);
            }
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_late || self.core.is_closed() {
                return Err(no_buffers());
            }
            std::thread::yield_now();
        }
    }

    /// A buffer with a copy of `bytes`, or `None` as [`Buffers::take`].
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Buffer> {
        let mut buffer = self.take(bytes.len())?;
        buffer.copy_from(bytes);
        Some(buffer)
    }

    /// The longest buffer that [`Buffers::take`] can give: half of the core's memory for bulk data, and no more than 32
    /// pieces (`bulk_buffers` and `bulk_buffer_bytes` of the profile).
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.core.stock_max() * self.piece_bytes
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("piece_bytes", &self.piece_bytes)
            .finish_non_exhaustive()
    }
}
