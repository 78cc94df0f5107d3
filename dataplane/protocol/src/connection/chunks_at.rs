//! The chunk lists of a message that was decoded before.

use crate::chunks::ListSpans;
use crate::common::CommonPrefix;
use crate::constants::{COMMON_PREFIX_BYTES, RPCRDMA_VERSION_1, V2_PREFIX_BYTES};
use crate::v1;
use crate::v2::header;
use crate::xdr::Reader;

/// The places of the chunk lists in a decoded message of either version, to read them from a copy of the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunksAt {
    pub(super) inv_handle: u32,
    pub(super) spans: ListSpans,
}

impl ChunksAt {
    /// `None` where the message does not decode, or has no chunk lists.
    #[must_use]
    pub fn find(message: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(message);
        if CommonPrefix::peek(message)?.version == RPCRDMA_VERSION_1 {
            reader.read_bytes(COMMON_PREFIX_BYTES).ok()?;
            v1::decode(message).ok()?.chunk_lists()?;
            let spans = ListSpans::decode(&mut reader).ok()?;
            let inv_handle = v1::connection::only_handle(&spans.lists(message));
            return Some(Self { inv_handle, spans });
        }
        header::decode(message).ok()?.chunks()?;
        reader.read_bytes(V2_PREFIX_BYTES).ok()?;
        let inv_handle = reader.read_u32().ok()?;
        let spans = ListSpans::decode(&mut reader).ok()?;
        Some(Self { inv_handle, spans })
    }

    /// The chunks, from the message or a copy of it.
    #[inline]
    #[must_use]
    pub fn chunks<'m>(&self, message: &'m [u8]) -> header::Chunks<'m> {
        header::Chunks {
            inv_handle: self.inv_handle,
            lists: self.spans.lists(message),
        }
    }
}

/// The chunk lists of a message of either version that was decoded before, with the handle that its reply may
/// invalidate. `None` where it does not decode, or has none.
#[must_use]
pub fn chunks_of(message: &[u8]) -> Option<header::Chunks<'_>> {
    if CommonPrefix::peek(message)?.version != RPCRDMA_VERSION_1 {
        return header::decode(message).ok()?.chunks().copied();
    }
    let lists = *v1::decode(message).ok()?.chunk_lists()?;
    Some(header::Chunks {
        inv_handle: v1::connection::only_handle(&lists),
        lists,
    })
}
