//! Helpers for the tests of other crates, which may not contain `unsafe` code.

mod counting_allocator;

pub use crate::shm::hostile_ring::HostileRing;
pub use counting_allocator::CountingAllocator;

/// Parses a handshake message of `shm` and encodes it again; `None` if the bytes are not a message.
///
/// Messages with the same meaning give the same bytes. Some rejections have several encodings.
#[must_use]
pub fn shm_message_again(bytes: &[u8]) -> Option<Vec<u8>> {
    crate::shm::message_again(bytes)
}
