//! Help for the tests of other crates, which may not contain `unsafe` code themselves.

mod counting_allocator;

pub use crate::shm::hostile_ring::HostileRing;
pub use counting_allocator::CountingAllocator;

/// What the handshake of `shm` takes for a message, written again; `None` for any other bytes.
///
/// Two messages with the same meaning, of which there are some among rejections, are written alike.
#[must_use]
pub fn shm_message_again(bytes: &[u8]) -> Option<Vec<u8>> {
    crate::shm::message_again(bytes)
}
