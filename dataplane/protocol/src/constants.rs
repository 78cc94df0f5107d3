//! All numbers of the wire formats, and all limits of this crate.
//!
//! "-00" is draft-ietf-nfsv4-rpcrdma-version-two-00, "RTR" is draft-dnoveck-nfsv4-rpcrdma-rtrext-03.

// ---- All versions (RFC 8166 section 7) ----

/// RPC-over-RDMA version 1 (RFC 8166 section 4.2.2).
pub const RPCRDMA_VERSION_1: u32 = 1;
/// RPC-over-RDMA version 2 (-00 section 6.3.1).
pub const RPCRDMA_VERSION_2: u32 = 2;
/// Octets of the four words that all versions share: XID, version, credit, header type.
pub const COMMON_PREFIX_BYTES: usize = 16;
/// Least octets of a message whose version is not the one decoded: below it, not even the XID can be trusted, and no
/// ERR_VERS answers it (RFC 8166 section 4.5).
pub const OTHER_VERSION_BYTES_LEAST: usize = 28;

// ---- Version 1 (RFC 8166 sections 4.1.2 and 4.2.4) ----

/// Version 1: the RPC message follows the header.
pub const RDMA_MSG: u32 = 0;
/// Version 1: the RPC message is in chunks.
pub const RDMA_NOMSG: u32 = 1;
/// Version 1: padded message. Never sent; answered with ERR_CHUNK (RFC 8166 section 4.6.1).
pub const RDMA_MSGP: u32 = 2;
/// Version 1: read done. Never sent; discarded in silence (RFC 8166 section 4.6.2).
pub const RDMA_DONE: u32 = 3;
/// Version 1: transport error.
pub const RDMA_ERROR: u32 = 4;
/// Version 1 error: version not supported.
pub const ERR_VERS: u32 = 1;
/// Version 1 error: the header could not be decoded, or a chunk list not be served.
pub const ERR_CHUNK: u32 = 2;

/// Octets of a version 1 header whose chunk lists are empty; also its least size, RDMA_ERROR apart.
pub const V1_HEADER_BYTES_WITHOUT_CHUNKS: usize = 28;
/// Least octets of a version 1 RDMA_ERROR message: prefix and error code.
pub const V1_ERROR_BYTES_LEAST: usize = 20;
/// Octets of a version 1 ERR_VERS message, whose layout is the same in all versions (RFC 8166 section 7).
pub const V1_ERR_VERS_BYTES: usize = 28;
/// Octets of a version 1 ERR_CHUNK message.
pub const V1_ERR_CHUNK_BYTES: usize = 20;

// ---- Version 2 header types and flags (-00 sections 6.2 to 6.4) ----

/// Version 2: the RPC message follows the header.
pub const RDMA2_MSG: u32 = 0;
/// Version 2: the RPC message is in chunks; with empty chunk lists, a grant of credits.
pub const RDMA2_NOMSG: u32 = 1;
/// Version 2: transport error.
pub const RDMA2_ERROR: u32 = 4;
/// Version 2: transport properties.
pub const RDMA2_CONNPROP: u32 = 5;
/// Version 2 flag: the XID was chosen by the receiver.
pub const RDMA2_F_RESPONSE: u32 = 0x0000_0001;
/// Version 2 flag: the payload continues in the next message.
pub const RDMA2_F_MORE: u32 = 0x0000_0002;
/// The flags that -00 defines; all others are reserved.
pub const RDMA2_F_DEFINED: u32 = RDMA2_F_RESPONSE | RDMA2_F_MORE;

/// Octets of the version 2 prefix: the common words and the flags.
pub const V2_PREFIX_BYTES: usize = 20;
/// Octets of a version 2 RDMA2_MSG or RDMA2_NOMSG header whose chunk lists are empty; least size of RDMA2_NOMSG.
pub const V2_HEADER_BYTES_WITHOUT_CHUNKS: usize = 36;
/// Least octets of a version 2 RDMA2_MSG: the header and the first word of the RPC message.
pub const V2_MSG_BYTES_LEAST: usize = 40;
/// Least octets of a version 2 RDMA2_ERROR: prefix and error code.
pub const V2_ERROR_BYTES_LEAST: usize = 24;
/// Least octets of a version 2 RDMA2_CONNPROP: prefix and property count.
pub const V2_CONNPROP_BYTES_LEAST: usize = 24;
/// Most octets that the first message of a version 2 connection may have (-00 section 4.3.3).
pub const V2_FIRST_MESSAGE_BYTES_MAX: usize = 1024;
/// Least octets of the first message of a version 2 client, so that a version 1 server answers it rather than
/// discards it.
pub const V2_FIRST_MESSAGE_BYTES_LEAST: usize = 28;

// ---- Version 2 error codes (-00 section 6.4.3) ----

/// Version not supported.
pub const RDMA2_ERR_VERS: u32 = 1;
/// The header cannot be parsed.
pub const RDMA2_ERR_BAD_XDR: u32 = 2;
/// Header type unknown or unsupported.
pub const RDMA2_ERR_INVAL_HTYPE: u32 = 3;
/// Combination of flags not recognised, or a broken continuation sequence.
pub const RDMA2_ERR_INVAL_FLAG: u32 = 4;
/// More Read chunks than the responder can read.
pub const RDMA2_ERR_READ_CHUNKS: u32 = 5;
/// More Write chunks than the responder can write.
pub const RDMA2_ERR_WRITE_CHUNKS: u32 = 6;
/// A chunk with more segments than the responder supports.
pub const RDMA2_ERR_SEGMENTS: u32 = 7;
/// A Write chunk is too small for its result.
pub const RDMA2_ERR_WRITE_RESOURCE: u32 = 8;
/// The reply fits neither inline nor the Reply chunk.
pub const RDMA2_ERR_REPLY_RESOURCE: u32 = 9;
/// Any other problem at the responder: permanent.
pub const RDMA2_ERR_SYSTEM: u32 = 10;

// ---- Version 2 transport properties (-00 section 5.2) ----

/// Property: Maximum Send Size, octets.
pub const RDMA2_PROPID_SBSIZ: u32 = 1;
/// Property: Receive Buffer Size, octets.
pub const RDMA2_PROPID_RBSIZ: u32 = 2;
/// Property: Maximum RDMA Segment Size, octets.
pub const RDMA2_PROPID_RSSIZ: u32 = 3;
/// Property: Maximum RDMA Segment Count.
pub const RDMA2_PROPID_RCSIZ: u32 = 4;
/// Property: Reverse Request Support.
pub const RDMA2_PROPID_BRS: u32 = 5;
/// Property: Host Authentication Message.
pub const RDMA2_PROPID_HOSTAUTH: u32 = 6;

/// Default of the Maximum Send Size, octets.
pub const SBSIZ_DEFAULT_BYTES: u32 = 4096;
/// Default of the Receive Buffer Size, octets.
pub const RBSIZ_DEFAULT_BYTES: u32 = 4096;
/// Default of the Maximum RDMA Segment Size, octets.
pub const RSSIZ_DEFAULT_BYTES: u32 = 1_048_576;
/// Default of the Maximum RDMA Segment Count.
pub const RCSIZ_DEFAULT: u32 = 16;

/// Reverse Request Support: none.
pub const RDMA2_RVREQSUP_NONE: u32 = 0;
/// Reverse Request Support: inline messages only. The default.
pub const RDMA2_RVREQSUP_INLINE: u32 = 1;
/// Reverse Request Support: as in the forward direction.
pub const RDMA2_RVREQSUP_GENL: u32 = 2;

/// Most octets of a property set, over all the messages of a continued CONNPROP. Ours: -00 sets no limit.
pub const CONNPROP_BYTES_MAX: usize = 64 * 1024;

/// Most octets of one message of host authentication. Ours: so it fits into the first message of a connection together
/// with all properties; a mechanism that needs more octets uses several messages.
pub const HOST_AUTHENTICATION_BYTES_MAX: usize = 512;

// ---- Numbers of applications ----
//
// -00 appendix B.3 mentions a range of property numbers for experiments, but the section that it refers to is missing.
// This is the range of draft-cel-nfsv4-rpcrdma-version-two-05 section 6.4.2, the revision before -00. No revision has
// such a range of header types: we use the same one, far from the small numbers of documents and from the block of RTR
// below.

/// The lowest header type, and the lowest property number, that an application may give a meaning.
pub const APPLICATION_NUMBER_FIRST: u32 = 0xffff_ff00;
/// The highest one.
pub const APPLICATION_NUMBER_LAST: u32 = 0xffff_ffff;
/// Most octets that the properties of an application take in a message, including their numbers, lengths and padding.
/// Ours: so they fit into the first message of a connection together with all properties and a message of host
/// authentication.
pub const APPLICATION_PROPERTIES_BYTES_MAX: usize = 192;

// ---- Round-trip reduction (RTR): numbers of ours ----
//
// RTR builds on an earlier revision of version 2, and its numbers mean other things in -00. These are a
// private block: "RTR" in ASCII and the draft's number.

/// RTR header type: Transmit Request (RTR section 9.2).
pub const RTR_TRANSMIT_REQUEST: u32 = 0x5254_5201;
/// RTR header type: Transmit Response (RTR section 9.3).
pub const RTR_TRANSMIT_RESPONSE: u32 = 0x5254_5202;
/// RTR header type: Transmit Continue (RTR section 9.4).
pub const RTR_TRANSMIT_CONTINUE: u32 = 0x5254_5203;
/// RTR header type: Report Error (RTR section 9.5).
pub const RTR_REPORT_ERROR: u32 = 0x5254_5204;
/// RTR property: RTR Support (RTR section 8.2).
pub const RTR_PROPID_SUPPORT: u32 = 0x5254_5203;
/// RTR property: Receive Buffer Structure (RTR section 8.3).
pub const RTR_PROPID_RECEIVE_BUFFER_STRUCTURE: u32 = 0x5254_5204;
/// RTR property: Request Transmission Receive Limit (RTR section 8.4).
pub const RTR_PROPID_REQUEST_RECEIVE_LIMIT: u32 = 0x5254_5205;
/// RTR property: Response Transmission Send Limit (RTR section 8.5).
pub const RTR_PROPID_RESPONSE_SEND_LIMIT: u32 = 0x5254_5206;

/// RTR Support: Transmit Request, and with it Transmit Response (RTRS_XREQ, RTR section 8.2).
pub const RTR_SUPPORT_REQUEST: u32 = 1;
/// RTR Support: Transmit Response (RTRS_XRESP).
pub const RTR_SUPPORT_RESPONSE: u32 = 2;
/// RTR Support: Transmit Continue (RTRS_XCONT).
pub const RTR_SUPPORT_CONTINUE: u32 = 4;
/// Default of the Request Transmission Receive Limit and of the Response Transmission Send Limit: no continuation.
pub const RTR_TRANSMISSIONS_DEFAULT: u32 = 1;

/// RTR placement type: by explicit RDMA (XMPTYPE_EXRW, RTR section 6.2).
pub const RTR_TYPE_EXPLICIT: u32 = 1;
/// RTR placement type: in targetable buffer segments (XMPTYPE_TBSN).
pub const RTR_TYPE_PLACED: u32 = 2;
/// RTR placement type: as the responder chooses (XMPTYPE_CHOICE; the enumeration of the draft has CHOOSE).
pub const RTR_TYPE_CHOICE: u32 = 3;
/// RTR placement type: depends on the length of the item (XMPTYPE_BYSIZE).
pub const RTR_TYPE_BY_SIZE: u32 = 4;
/// RTR placement type: not placed, too short (XMPTYPE_TOOSHORT).
pub const RTR_TYPE_TOO_SHORT: u32 = 5;
/// RTR placement type: not placed, no item (XMPTYPE_NOITEM).
pub const RTR_TYPE_NO_ITEM: u32 = 6;

/// RTR error: another header type was expected (OPTRERR_BADHMT, RTR section 9.5).
pub const RTR_ERR_BAD_HEADER_TYPE: u32 = 1;
/// RTR error: another optional type was expected (OPTRERR_BADOMT). Never sent: there are no optional types here.
pub const RTR_ERR_BAD_OPTIONAL_TYPE: u32 = 2;
/// RTR error: no continuation was expected (OPTRERR_BADCONT).
pub const RTR_ERR_BAD_CONTINUATION: u32 = 3;
/// RTR error: another sequence number was expected (OPTRERR_BADSEQ).
pub const RTR_ERR_BAD_SEQUENCE: u32 = 4;
/// RTR error: another XID was expected (OPTRERR_BADXID).
pub const RTR_ERR_BAD_XID: u32 = 5;
/// RTR error: a bad offset or displacement (OPTRERR_BADOFF).
pub const RTR_ERR_BAD_OFFSET: u32 = 6;
/// RTR error: a bad number of a targetable segment (OPTRERR_BADTBSN).
pub const RTR_ERR_BAD_SEGMENT_NUMBER: u32 = 7;
/// RTR error: a bad length of the payload stream (OPTRERR_BADPL).
pub const RTR_ERR_BAD_STREAM_LENGTH: u32 = 8;

/// Least octets of a Transmit Request: prefix, empty lists, two counts and the length of the payload stream.
pub const RTR_TRANSMIT_REQUEST_BYTES_LEAST: usize = 40;
/// Least octets of a Transmit Response: prefix, no item, count and length.
pub const RTR_TRANSMIT_RESPONSE_BYTES_LEAST: usize = 32;
/// Octets of a Transmit Continue header: prefix, number, an unused word and length.
pub const RTR_TRANSMIT_CONTINUE_HEADER_BYTES: usize = 32;
/// Least octets of a Report Error: prefix, one transmission, no other one, and a code.
pub const RTR_REPORT_ERROR_BYTES_LEAST: usize = 40;

/// Most transmissions of a group that we receive. Ours: 4 MiB of bulk data in segments of 64 KiB.
pub const RTR_TRANSMISSIONS_MAX: usize = 64;
/// Most items that the decoder accepts in a message. Ours: a bound on work, as the limits of chunk lists are.
pub const RTR_ITEMS_MAX: usize = 256;
/// Most segment numbers that the decoder accepts for one item. Ours, as above.
pub const RTR_ITEM_SEGMENT_NUMBERS_MAX: usize = 1024;
/// Most sets of directions that the decoder accepts in a request. Ours, as above.
pub const RTR_RESPONSE_SETS_MAX: usize = 256;
/// Most directions that the decoder accepts in one set. Ours, as above.
pub const RTR_RESPONSE_ITEMS_MAX: usize = 256;

/// RTR flag of a receive buffer segment: bulk data may be put there (XMRSFLAG_PLT, RTR section 7.2).
pub const RTR_SEGMENT_FLAG_TARGETABLE: u32 = 0x01;
/// Most groups of segments in a receive buffer structure. Ours; a peer's structure with more counts as one segment.
pub const RECEIVE_BUFFER_GROUPS_MAX: usize = 8;
/// Most segments in a receive buffer structure. Ours, as above: devices take 32 scatter entries at the most.
pub const RECEIVE_BUFFER_SEGMENTS_MAX: u32 = 64;

// ---- Chunk lists (RFC 8166 section 4.1.2) ----

/// Octets of a segment: handle, length, offset.
pub const SEGMENT_BYTES: usize = 16;
/// Octets of an entry of the Read list: mark, position, segment.
pub const READ_ENTRY_BYTES: usize = 24;
/// Most segments that the decoder accepts in the Read list, or in one chunk. Ours: a bound on work, and as many as a
/// payload of 4 MiB in pages of 4 KiB needs; what a service accepts is less.
pub const SEGMENTS_MAX: usize = 1024;
/// Most chunks that the decoder accepts in a Write list. Ours, as above.
pub const WRITE_CHUNKS_MAX: usize = 256;

/// Most bulk items, and most expected results, that a plan has a way for. Ours.
pub const PLAN_ITEMS_MAX: usize = 16;

// ---- CM private data (RFC 8797 section 4) ----

/// The identifier with which the private data of RPC-over-RDMA begins.
pub const PRIVATE_DATA_IDENTIFIER: u32 = 0xf6ab_0e18;
/// The version of the private data.
pub const PRIVATE_DATA_VERSION: u8 = 1;
/// Octets of the private data.
pub const PRIVATE_DATA_BYTES: usize = 8;
/// The flag that says that the sender supports remote invalidation: the least significant bit of octet 5.
pub const PRIVATE_DATA_FLAG_REMOTE_INVALIDATION: u8 = 0x01;
/// The unit of the encoded sizes, octets.
pub const PRIVATE_DATA_SIZE_UNIT_BYTES: u32 = 1024;
/// Inline threshold of both directions without private data, octets (RFC 8166 section 3.3.3).
pub const V1_INLINE_THRESHOLD_DEFAULT_BYTES: u32 = 1024;

// ---- ONC RPC (RFC 5531 section 9) ----

/// The RPC version.
pub const RPC_VERSION: u32 = 2;
/// RPC message type: call.
pub const RPC_CALL: u32 = 0;
/// RPC message type: reply.
pub const RPC_REPLY: u32 = 1;
/// Reply status: accepted.
pub const MSG_ACCEPTED: u32 = 0;
/// Reply status: denied.
pub const MSG_DENIED: u32 = 1;
/// Accept status: executed.
pub const SUCCESS: u32 = 0;
/// Accept status: the program does not exist here.
pub const PROG_UNAVAIL: u32 = 1;
/// Accept status: the program does not exist here in this version.
pub const PROG_MISMATCH: u32 = 2;
/// Accept status: the program has no such procedure.
pub const PROC_UNAVAIL: u32 = 3;
/// Accept status: the arguments cannot be decoded.
pub const GARBAGE_ARGS: u32 = 4;
/// Accept status: for instance no memory.
pub const SYSTEM_ERR: u32 = 5;
/// Reject status: RPC version not 2.
pub const RPC_MISMATCH: u32 = 0;
/// Reject status: the caller is not authenticated.
pub const AUTH_ERROR: u32 = 1;
/// Most octets of the body of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_BODY_BYTES_MAX: usize = 400;
/// Authentication flavor: none.
pub const AUTH_NONE: u32 = 0;
/// Authentication flavor: user and group numbers of the caller.
pub const AUTH_SYS: u32 = 1;
/// Flavor RPCSEC_GSS (RFC 5531 section 8.2; its credentials are in RFC 2203 section 5.2.2).
pub const RPCSEC_GSS: u32 = 6;
/// The procedure of an RPCSEC_GSS credential for calls in an established context (RFC 2203 section 5).
pub const RPCSEC_GSS_DATA: u32 = 0;
/// The service of an RPCSEC_GSS credential that protects only the header (RFC 2203 section 5.2.2).
pub const RPCSEC_GSS_SERVICE_NONE: u32 = 1;
/// Octets of a call header whose credential and verifier are empty.
pub const CALL_HEADER_BYTES_WITHOUT_AUTH: usize = 40;
/// Octets of the header of a successful reply whose verifier is empty.
pub const REPLY_HEADER_BYTES_WITHOUT_AUTH: usize = 24;

// Relations on which the formats depend.
const _: () = {
    assert!(V2_PREFIX_BYTES == COMMON_PREFIX_BYTES + 4);
    assert!(V1_HEADER_BYTES_WITHOUT_CHUNKS == COMMON_PREFIX_BYTES + 3 * 4);
    assert!(V2_HEADER_BYTES_WITHOUT_CHUNKS == V2_PREFIX_BYTES + 4 * 4);
    assert!(V2_MSG_BYTES_LEAST == V2_HEADER_BYTES_WITHOUT_CHUNKS + 4);
    assert!(READ_ENTRY_BYTES == 4 + 4 + SEGMENT_BYTES);
    assert!(V1_ERR_VERS_BYTES == COMMON_PREFIX_BYTES + 3 * 4);
    assert!(RTR_TRANSMIT_REQUEST_BYTES_LEAST == V2_PREFIX_BYTES + 5 * 4);
    assert!(RTR_TRANSMIT_RESPONSE_BYTES_LEAST == V2_PREFIX_BYTES + 3 * 4);
    assert!(RTR_TRANSMIT_CONTINUE_HEADER_BYTES == V2_PREFIX_BYTES + 3 * 4);
    assert!(RTR_REPORT_ERROR_BYTES_LEAST == V2_PREFIX_BYTES + 5 * 4);
};
