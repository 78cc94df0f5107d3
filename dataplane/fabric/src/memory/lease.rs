//! A buffer that left its core.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Buffer, Memory};

/// Bytes in registered memory that outlive the call they came with, or are to go out with one.
///
/// It is the only access to its bytes, so that its holder may write them as well. It keeps its
/// arena alive and may be dropped on any thread; dropping it returns the buffer to its pool by a
/// ring that holds every buffer of that pool, so that returning cannot fail.
///
/// It cannot be doubled, so that nobody reads what another holder writes:
///
/// ```compile_fail,E0599
/// # use rpcrdma_fabric::memory::Lease;
/// fn double(lease: &Lease) -> Lease {
///     lease.clone()
/// }
/// ```
///
/// A slice of it cannot outlive it, for its buffer is used again then:
///
/// ```compile_fail,E0505
/// # use rpcrdma_fabric::memory::Lease;
/// fn keep(lease: Lease) -> u8 {
///     let slice = &lease[..];
///     drop(lease);
///     slice[0]
/// }
/// ```
///
/// A buffer that was leased is no longer its core's to post:
///
/// ```compile_fail,E0382
/// # use rpcrdma_fabric::interface::Gather;
/// # use rpcrdma_fabric::memory::{Buffer, Pool};
/// fn both(pool: &mut Pool, buffer: Buffer, list: &mut Gather) {
///     let lease = pool.lease(buffer, 0, 64);
///     let _ = list.push(buffer, 0, 64);
/// }
/// ```
///
/// A Receive that was posted cannot be read, nor a segment taken out of it:
///
/// ```compile_fail,E0382
/// # use rpcrdma_fabric::interface::{Port, Receive};
/// # use rpcrdma_fabric::memory::Buffer;
/// fn late(port: &mut impl Port, mut receive: Receive, fresh: Buffer) {
///     port.post_receive(receive);
///     let _ = port.replace_segment(&mut receive, 1, fresh);
/// }
/// ```
#[derive(Debug)]
pub struct Lease {
    buffer: Option<Buffer>,
    offset: u32,
    bytes: u32,
    memory: Memory,
    returns: Arc<ArrayQueue<Buffer>>,
}

impl Lease {
    pub(super) fn new(
        buffer: Buffer,
        offset: u32,
        bytes: u32,
        memory: Memory,
        returns: Arc<ArrayQueue<Buffer>>,
    ) -> Self {
        Self {
            buffer: Some(buffer),
            offset,
            bytes,
            memory,
            returns,
        }
    }

    /// Bytes from its start to the end of its buffer: what [`Lease::set_len`] takes at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let buffer = self.buffer.as_ref().map_or(0, Buffer::capacity);
        buffer.saturating_sub(self.offset) as usize
    }

    /// Makes it `bytes` bytes long, at most its capacity; the bytes themselves stay as they are.
    /// What lies behind its former end may be of any earlier use of the buffer.
    pub fn set_len(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes.min(self.capacity())).unwrap_or(u32::MAX);
        self.bytes = bytes;
    }

    /// Where it begins in its buffer, in bytes.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Whether its buffer belongs to `memory`, and so to the port of that memory.
    #[must_use]
    pub fn is_of(&self, memory: &Memory) -> bool {
        self.buffer
            .as_ref()
            .is_some_and(|buffer| memory.owns(buffer))
    }

    /// The number of the pool that its buffer is of.
    pub(super) fn pool(&self) -> Option<u32> {
        self.buffer.as_ref().map(|buffer| buffer.pool)
    }

    /// Ends the lease on its core: the buffer, to be posted or given back to its pool, and the
    /// range of it that counts, as offset and bytes. `None` never comes from a lease that a pool
    /// made.
    #[must_use]
    pub fn into_buffer(mut self) -> Option<(Buffer, u32, u32)> {
        let buffer = self.buffer.take()?;
        Some((buffer, self.offset, self.bytes))
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.offset as usize..(self.offset + self.bytes) as usize;
        // As in `deref`.
        match &mut self.buffer {
            Some(buffer) => &mut self.memory.bytes_mut(buffer)[range],
            None => &mut [],
        }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.offset as usize..(self.offset + self.bytes) as usize;
        // The buffer is taken only in drop, and the range was checked when the lease was made.
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &self.memory.bytes(buffer)[range])
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let returned = self.returns.push(buffer);
            debug_assert!(
                returned.is_ok(),
                "the return ring holds every buffer of its pool"
            );
        }
    }
}
