//! The version 1 transport header: encoding.
//!
//! RDMA_MSGP and RDMA_DONE are missing: no sender may use them.

use super::TransportError;
use crate::chunks::EncodeChunkLists;
use crate::constants::{
    COMMON_PREFIX_BYTES, ERR_CHUNK, ERR_VERS, RDMA_ERROR, RDMA_MSG, RDMA_NOMSG, RPCRDMA_VERSION_1,
    V1_HEADER_BYTES_WITHOUT_CHUNKS,
};
use crate::error::EncodeError;
use crate::xdr::{Writer, put_word};

/// Writes the header of an RDMA_MSG without chunks: 28 octets. The RPC message follows it.
///
/// # Errors
/// `NoSpace`.
#[inline]
pub fn encode_msg_header_without_chunks(
    space: &mut [u8],
    xid: u32,
    credit: u32,
) -> Result<usize, EncodeError> {
    let Some(out) = space.first_chunk_mut::<V1_HEADER_BYTES_WITHOUT_CHUNKS>() else {
        return Err(EncodeError::NoSpace);
    };
    encode_common(out, xid, RPCRDMA_VERSION_1, credit, RDMA_MSG)?;
    // No Read list, no Write list, no Reply chunk.
    out[COMMON_PREFIX_BYTES..].fill(0);
    Ok(V1_HEADER_BYTES_WITHOUT_CHUNKS)
}

/// Writes the header of an RDMA_MSG; the RPC message follows it.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_msg_header(
    space: &mut [u8],
    xid: u32,
    credit: u32,
    lists: &impl EncodeChunkLists,
) -> Result<usize, EncodeError> {
    encode_with_lists(space, xid, credit, RDMA_MSG, lists)
}

/// Writes an RDMA_NOMSG message, whose RPC message is in the chunks: at least one of the lists must not be empty.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_nomsg(
    space: &mut [u8],
    xid: u32,
    credit: u32,
    lists: &impl EncodeChunkLists,
) -> Result<usize, EncodeError> {
    encode_with_lists(space, xid, credit, RDMA_NOMSG, lists)
}

/// Writes an RDMA_ERROR message. `xid` and `version` are copied from the message that is refused (RFC 8166
/// section 4.5); `credit` is the grant of the connection.
///
/// # Errors
/// `NoSpace`.
pub fn encode_error(
    space: &mut [u8],
    xid: u32,
    version: u32,
    credit: u32,
    error: TransportError,
) -> Result<usize, EncodeError> {
    let prefix_bytes = encode_common(space, xid, version, credit, RDMA_ERROR)?;
    let mut writer = Writer::new(&mut space[prefix_bytes..]);
    match error {
        TransportError::Vers { low, high } => {
            writer.write_u32(ERR_VERS)?;
            writer.write_u32(low)?;
            writer.write_u32(high)?;
        }
        TransportError::Chunk => writer.write_u32(ERR_CHUNK)?,
        TransportError::Unknown { code } => writer.write_u32(code)?,
    }
    Ok(prefix_bytes + writer.position())
}

fn encode_with_lists(
    space: &mut [u8],
    xid: u32,
    credit: u32,
    header_type: u32,
    lists: &impl EncodeChunkLists,
) -> Result<usize, EncodeError> {
    let prefix_bytes = encode_common(space, xid, RPCRDMA_VERSION_1, credit, header_type)?;
    let mut writer = Writer::new(&mut space[prefix_bytes..]);
    lists.encode(&mut writer)?;
    Ok(prefix_bytes + writer.position())
}

#[inline]
fn encode_common(
    space: &mut [u8],
    xid: u32,
    version: u32,
    credit: u32,
    header_type: u32,
) -> Result<usize, EncodeError> {
    let Some(out) = space.first_chunk_mut::<COMMON_PREFIX_BYTES>() else {
        return Err(EncodeError::NoSpace);
    };
    put_word(out, 0, xid);
    put_word(out, 1, version);
    put_word(out, 2, credit);
    put_word(out, 3, header_type);
    Ok(COMMON_PREFIX_BYTES)
}
