//! The version 2 transport header: encoding (-00 sections 6.3 and 6.4).
//!
//! Every function writes at the start of `space` and returns the octets written. The RPC message then follows
//! directly behind the header, in the same buffer.

use super::application::{ApplicationProperties, write_property_set_with};
use super::error::{ErrVers, TransportError};
use super::header::{CreditWord, Flags, Prefix};
use super::properties::Property;
use super::rtr::{
    EncodeItems, EncodeResponseSets, ReportError, TransmitContinue, TransmitRequest,
    TransmitResponse,
};
use crate::chunks::EncodeChunkLists;
use crate::constants::{
    ERR_VERS, RDMA2_CONNPROP, RDMA2_ERROR, RDMA2_MSG, RDMA2_NOMSG, RPCRDMA_VERSION_2,
    RTR_REPORT_ERROR, RTR_TRANSMIT_CONTINUE, RTR_TRANSMIT_REQUEST, RTR_TRANSMIT_RESPONSE,
    V1_ERR_VERS_BYTES, V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_PREFIX_BYTES,
};
use crate::error::EncodeError;
use crate::rpc::Direction;
use crate::xdr::{Writer, put_word};

/// Writes prefix and header type: the first 20 octets of any version 2 message.
///
/// # Errors
/// `NoSpace`.
#[inline]
pub fn encode_prefix(
    space: &mut [u8],
    prefix: Prefix,
    header_type: u32,
) -> Result<usize, EncodeError> {
    let Some(out) = space.first_chunk_mut::<V2_PREFIX_BYTES>() else {
        return Err(EncodeError::NoSpace);
    };
    put_word(out, 0, prefix.xid);
    put_word(out, 1, RPCRDMA_VERSION_2);
    put_word(out, 2, prefix.credit.to_word());
    put_word(out, 3, header_type);
    put_word(out, 4, prefix.flags.to_word());
    Ok(V2_PREFIX_BYTES)
}

/// Writes the header of an RDMA2_MSG without chunks: 36 octets. The hot path of calls and replies.
///
/// # Errors
/// `NoSpace`.
#[inline]
pub fn encode_msg_header_without_chunks(
    space: &mut [u8],
    prefix: Prefix,
) -> Result<usize, EncodeError> {
    encode_header_without_chunks(space, prefix, RDMA2_MSG)
}

/// Writes the header of an RDMA2_MSG; the RPC message follows it. `inv_handle` is the handle that the responder may
/// invalidate with its reply, or 0.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_msg_header(
    space: &mut [u8],
    prefix: Prefix,
    inv_handle: u32,
    lists: &impl EncodeChunkLists,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RDMA2_MSG, |writer| {
        writer.write_u32(inv_handle)?;
        lists.encode(writer)
    })
}

/// Writes an RDMA2_NOMSG message, whose RPC message is in the chunks. `inv_handle` as in [`encode_msg_header`].
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_nomsg(
    space: &mut [u8],
    prefix: Prefix,
    inv_handle: u32,
    lists: &impl EncodeChunkLists,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RDMA2_NOMSG, |writer| {
        writer.write_u32(inv_handle)?;
        lists.encode(writer)
    })
}

/// Writes an asynchronous grant of credits, or with nothing granted a keep-alive: an RDMA2_NOMSG of 36 octets with
/// XID 0, no flags and no chunks (-00 section 6.4.2).
///
/// # Errors
/// `NoSpace`.
#[inline]
pub fn encode_credit_grant(space: &mut [u8], credit: CreditWord) -> Result<usize, EncodeError> {
    encode_header_without_chunks(
        space,
        Prefix {
            xid: 0,
            credit,
            flags: Flags::NONE,
        },
        RDMA2_NOMSG,
    )
}

/// Writes an RDMA2_ERROR message for the message `xid`.
///
/// F_RESPONSE is set and the credit word is 0: receivers ignore that word, so a grant in it would be lost.
///
/// # Errors
/// `NoSpace`.
pub fn encode_error(
    space: &mut [u8],
    xid: u32,
    error: &TransportError,
) -> Result<usize, EncodeError> {
    let prefix = Prefix {
        xid,
        credit: CreditWord::default(),
        flags: Flags::RESPONSE,
    };
    encode_with(space, prefix, RDMA2_ERROR, |writer| error.encode(writer))
}

/// Writes an RDMA2_CONNPROP message that ends its sequence.
///
/// A set that does not fit into one message is encoded by [`write_property_set`](super::write_property_set) into a
/// separate buffer and split into parts of any size, each sent behind an [`encode_prefix`].
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_connprop(
    space: &mut [u8],
    prefix: Prefix,
    properties: &[Property<'_>],
) -> Result<usize, EncodeError> {
    encode_connprop_with(space, prefix, properties, &ApplicationProperties::NONE)
}

/// As [`encode_connprop`], with the properties of an application behind the others.
///
/// # Errors
/// As there.
pub fn encode_connprop_with(
    space: &mut [u8],
    prefix: Prefix,
    properties: &[Property<'_>],
    application: &ApplicationProperties,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RDMA2_CONNPROP, |writer| {
        write_property_set_with(writer, properties, application)
    })
}

/// Writes the header of a Transmit Request of the extension RTR; the payload stream follows it.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_transmit_request<I: EncodeItems, D: EncodeResponseSets>(
    space: &mut [u8],
    prefix: Prefix,
    body: &TransmitRequest<I, D>,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RTR_TRANSMIT_REQUEST, |writer| {
        body.encode(writer)
    })
}

/// Writes the header of a Transmit Response of the extension RTR; the payload stream follows it.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn encode_transmit_response<I: EncodeItems>(
    space: &mut [u8],
    prefix: Prefix,
    body: &TransmitResponse<I>,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RTR_TRANSMIT_RESPONSE, |writer| {
        body.encode(writer)
    })
}

/// Writes the header of a Transmit Continue of the extension RTR, 32 octets; the payload stream follows it.
///
/// # Errors
/// `NoSpace`.
pub fn encode_transmit_continue(
    space: &mut [u8],
    prefix: Prefix,
    body: TransmitContinue,
) -> Result<usize, EncodeError> {
    encode_with(space, prefix, RTR_TRANSMIT_CONTINUE, |writer| {
        body.encode(writer)
    })
}

/// Writes a Report Error of the extension RTR. `credit` is its grant: unlike that of an RDMA2_ERROR it counts.
///
/// The XID is that of the bad transmission. F_RESPONSE is set if the receiver of this message chose it: if the bad
/// transmission is of a call.
///
/// # Errors
/// `NoSpace`.
pub fn encode_report_error(
    space: &mut [u8],
    credit: CreditWord,
    report: &ReportError,
) -> Result<usize, EncodeError> {
    let flags = match report.bad.direction {
        Direction::Call => Flags::RESPONSE,
        Direction::Reply => Flags::NONE,
    };
    let prefix = Prefix {
        xid: report.bad.xid,
        credit,
        flags,
    };
    encode_with(space, prefix, RTR_REPORT_ERROR, |writer| {
        report.encode(writer)
    })
}

/// Writes ERR_VERS: 28 octets in the version 1 layout, which every version can read (RFC 8166 section 7).
///
/// `xid` and `version` are copied from the message that is refused; `credit` is the credit word, which the receiver
/// ignores when it speaks version 2.
///
/// # Errors
/// `NoSpace`.
pub fn encode_err_vers_in_version_1_layout(
    space: &mut [u8],
    xid: u32,
    version: u32,
    credit: u32,
    supported: ErrVers,
) -> Result<usize, EncodeError> {
    let Some(out) = space.first_chunk_mut::<V1_ERR_VERS_BYTES>() else {
        return Err(EncodeError::NoSpace);
    };
    put_word(out, 0, xid);
    put_word(out, 1, version);
    put_word(out, 2, credit);
    put_word(out, 3, RDMA2_ERROR);
    put_word(out, 4, ERR_VERS);
    put_word(out, 5, supported.low);
    put_word(out, 6, supported.high);
    Ok(V1_ERR_VERS_BYTES)
}

#[inline]
fn encode_header_without_chunks(
    space: &mut [u8],
    prefix: Prefix,
    header_type: u32,
) -> Result<usize, EncodeError> {
    let Some(out) = space.first_chunk_mut::<V2_HEADER_BYTES_WITHOUT_CHUNKS>() else {
        return Err(EncodeError::NoSpace);
    };
    encode_prefix(out, prefix, header_type)?;
    // No handle to invalidate, no Read list, no Write list, no Reply chunk.
    out[V2_PREFIX_BYTES..].fill(0);
    Ok(V2_HEADER_BYTES_WITHOUT_CHUNKS)
}

#[inline(always)]
fn encode_with(
    space: &mut [u8],
    prefix: Prefix,
    header_type: u32,
    write_body: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let prefix_bytes = encode_prefix(space, prefix, header_type)?;
    let mut writer = Writer::new(&mut space[prefix_bytes..]);
    write_body(&mut writer)?;
    Ok(prefix_bytes + writer.position())
}
