//! The private data of RPC-over-RDMA in the messages that set up a connection (RFC 8797).

use crate::constants::{
    PRIVATE_DATA_BYTES, PRIVATE_DATA_FLAG_REMOTE_INVALIDATION, PRIVATE_DATA_IDENTIFIER,
    PRIVATE_DATA_SIZE_UNIT_BYTES, PRIVATE_DATA_VERSION,
};
use crate::error::EncodeError;

/// What one end announces. The default is the rule for a peer that announces nothing (RFC 8797 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrivateData {
    /// The R flag: the end supports remote invalidation as a version 1 requester or responder.
    pub remote_invalidation: bool,
    /// Octets of the largest Send that the end transmits.
    pub send_bytes: u32,
    /// Octets of the largest Send that it can receive.
    pub receive_bytes: u32,
}

impl Default for PrivateData {
    fn default() -> Self {
        Self {
            remote_invalidation: false,
            send_bytes: PRIVATE_DATA_SIZE_UNIT_BYTES,
            receive_bytes: PRIVATE_DATA_SIZE_UNIT_BYTES,
        }
    }
}

impl PrivateData {
    /// Searches the received private data for ours, at any offset (RFC 8797 section 5.2).
    ///
    /// The first identifier found decides. `None`, that is "absent", when there is none, when octets are missing
    /// behind it, or when its version is not 1. The length that RDMA-CM reports is that of the whole area, so that
    /// zeroes may follow. Reserved bits are ignored.
    #[must_use]
    pub fn find(received: &[u8]) -> Option<Self> {
        let identifier = PRIVATE_DATA_IDENTIFIER.to_be_bytes();
        let at = received
            .windows(identifier.len())
            .position(|window| window == identifier)?;
        let [_, _, _, _, version, flags, send, receive] =
            *received.get(at..)?.first_chunk::<PRIVATE_DATA_BYTES>()?;
        (version == PRIVATE_DATA_VERSION).then(|| Self {
            remote_invalidation: flags & PRIVATE_DATA_FLAG_REMOTE_INVALIDATION != 0,
            send_bytes: decode_size(send),
            receive_bytes: decode_size(receive),
        })
    }

    /// The octets to send.
    ///
    /// Sizes are encoded in units of 1024 octets and rounded down, so that a peer never sends too much. A size below
    /// 1024, the smallest size that the format can express, is encoded as 1024, and one above 262144 as 262144.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PRIVATE_DATA_BYTES] {
        let [i0, i1, i2, i3] = PRIVATE_DATA_IDENTIFIER.to_be_bytes();
        let flags = if self.remote_invalidation {
            PRIVATE_DATA_FLAG_REMOTE_INVALIDATION
        } else {
            0
        };
        let (send, receive) = (
            encode_size(self.send_bytes),
            encode_size(self.receive_bytes),
        );
        [i0, i1, i2, i3, PRIVATE_DATA_VERSION, flags, send, receive]
    }

    /// Writes [`to_bytes`](Self::to_bytes) at the start of `space`, and returns the octets written.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn encode(self, space: &mut [u8]) -> Result<usize, EncodeError> {
        *space.first_chunk_mut().ok_or(EncodeError::NoSpace)? = self.to_bytes();
        Ok(PRIVATE_DATA_BYTES)
    }
}

/// A size field counts units beyond the first (RFC 8797 section 4.2).
fn decode_size(field: u8) -> u32 {
    (u32::from(field) + 1) * PRIVATE_DATA_SIZE_UNIT_BYTES
}

fn encode_size(size_bytes: u32) -> u8 {
    let beyond_the_first = (size_bytes / PRIVATE_DATA_SIZE_UNIT_BYTES).saturating_sub(1);
    u8::try_from(beyond_the_first).unwrap_or(u8::MAX)
}
