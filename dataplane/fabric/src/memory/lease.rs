//! A buffer that left its core.

use std::ops::Deref;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Buffer, Memory};

/// Read access to bytes in registered memory that outlives the call they came with.
///
/// It keeps its arena alive and may be dropped on any thread; dropping it returns the buffer to
/// its pool by a ring that holds every buffer of that pool, so that returning cannot fail.
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
