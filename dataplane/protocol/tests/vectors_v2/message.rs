//! RDMA2_MSG: calls and replies with an RPC message behind the header.

use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::v2::{self, Body, Flags};

use crate::support::{encoded, hex};
use crate::{decoded, prefix};

/// A call without chunks, which asks for nothing: 36 octets of header, then the RPC message.
pub(crate) const MSG_CALL: &str = "
    d7811d8b    # rdma_xid
    00000002    # rdma_vers
    00400020    # rdma_credit: at most 64 outstanding, 32 newly granted
    00000000    # rdma_htype RDMA2_MSG
    00000000    # rdma_flags: none
    00000000    # rdma_inv_handle: none
    00000000    # rdma_reads: absent
    00000000    # rdma_writes: absent
    00000000    # rdma_reply: absent
    d7811d8b    # RPC: xid
    00000000    # RPC: CALL";

#[test]
fn msg_call_without_chunks() {
    let message = hex(MSG_CALL);
    let header = decoded(&message);
    assert_eq!(header.prefix, prefix(0xd781_1d8b, 64, 32, Flags::NONE));
    assert!(matches!(header.body, Body::Msg(_)));
    assert!(header.lists_are_empty() && !header.is_credit_grant());
    assert_eq!(header.chunks().unwrap().inv_handle, 0);
    assert_eq!((header.header_bytes, header.header_type()), (36, 0));
    assert_eq!(&message[header.header_bytes..], hex("d7811d8b 00000000"));
    let again = encoded(|space| v2::encode_msg_header_without_chunks(space, header.prefix));
    assert_eq!(again, message[..36]);
    let slow =
        encoded(|space| v2::encode_msg_header(space, header.prefix, 0, &ChunkListsRepr::default()));
    assert_eq!(slow, message[..36], "both encoders agree");
}

#[test]
fn msg_reply_that_continues() {
    let message = hex("
        00000007    # rdma_xid
        00000002    # rdma_vers
        00010000    # rdma_credit: at most 1 outstanding, nothing newly granted
        00000000    # rdma_htype RDMA2_MSG
        00000003    # rdma_flags: F_RESPONSE 1 and F_MORE 2
        00000000 00000000 00000000 00000000    # no handle, no lists
        00000007    # RPC: xid
        00000001    # RPC: REPLY
        abcdef      # a part may end anywhere");
    let header = decoded(&message);
    assert_eq!(
        header.prefix,
        prefix(7, 1, 0, Flags::RESPONSE.with(Flags::MORE))
    );
    assert!(header.prefix.flags.is_response() && header.prefix.flags.is_more());
    assert_eq!(message.len() - header.header_bytes, 11);
    let again = encoded(|space| v2::encode_msg_header_without_chunks(space, header.prefix));
    assert_eq!(again, message[..36]);
}

/// Two Read segments of one chunk, a Write list of two chunks of which the second is empty, and a Reply chunk.
pub(crate) const MSG_WITH_CHUNKS: &str = "
    00000011    # rdma_xid
    00000002    # rdma_vers
    00080001    # rdma_credit: at most 8 outstanding, 1 newly granted
    00000000    # rdma_htype RDMA2_MSG
    00000000    # rdma_flags
    0000a001    # rdma_inv_handle: the first Read segment's
    00000001    # rdma_reads: an entry follows
    00000078    #   rdma_position 120
    0000a001    #   rdma_handle
    00001000    #   rdma_length 4096
    00007f0012340000    #   rdma_offset
    00000001    # rdma_reads: another entry
    00000078    #   rdma_position 120: the same chunk
    0000a002    #   rdma_handle
    00000004    #   rdma_length 4
    ffffffffffffffff    #   rdma_offset: verbatim, all 64 bits
    00000000    # rdma_reads: end
    00000001    # rdma_writes: an entry follows
    00000001    #   one segment
    0000b001    #     rdma_handle
    00000200    #     rdma_length 512
    0000000000000000    #     rdma_offset
    00000001    # rdma_writes: another entry
    00000000    #   no segment
    00000000    # rdma_writes: end
    00000001    # rdma_reply: present
    00000002    #   two segments
    0000c001    #     rdma_handle
    00000000    #     rdma_length 0
    0000000000000001    #     rdma_offset
    0000c002    #     rdma_handle
    00010000    #     rdma_length 65536
    0000000100000000    #     rdma_offset
    00000011    # RPC: xid";

#[test]
fn msg_with_all_three_lists() {
    let message = hex(MSG_WITH_CHUNKS);
    let header = decoded(&message);
    let chunks = *header.chunks().unwrap();
    let segment = |handle, length_bytes, offset| Segment {
        handle,
        length_bytes,
        offset,
    };
    #[rustfmt::skip]
    let reads = [
        ReadSegment { position: 120, target: segment(0xa001, 4096, 0x7f00_1234_0000) },
        ReadSegment { position: 120, target: segment(0xa002, 4, u64::MAX) },
    ];
    let write = [segment(0xb001, 512, 0)];
    let reply = [segment(0xc001, 0, 1), segment(0xc002, 65536, 1 << 32)];
    assert_eq!(chunks.inv_handle, 0xa001);
    assert_eq!(chunks.lists.reads.len(), 2);
    assert_eq!(chunks.lists.reads.chunk_count(), 1);
    assert!(!chunks.lists.reads.has_position_zero() && chunks.lists.reads.positions_are_aligned());
    assert_eq!(chunks.lists.reads.collect::<Vec<_>>(), reads);
    let writes: Vec<Vec<Segment>> = chunks.lists.writes.map(Iterator::collect).collect();
    assert_eq!(chunks.lists.writes.len(), 2);
    assert_eq!(writes, [write.to_vec(), vec![]]);
    let reply_chunk = chunks.lists.reply.unwrap();
    assert_eq!((reply_chunk.len(), reply_chunk.total_bytes()), (2, 65536));
    assert_eq!(reply_chunk.collect::<Vec<_>>(), reply);
    // 36 octets without entries; 2 Read entries of 24; Write entries of 4+4+16 and 4+4; 4+32 of the Reply chunk.
    assert_eq!(header.header_bytes, 36 + 48 + 24 + 8 + 36);
    assert_eq!(message.len() - header.header_bytes, 4);

    let repr = ChunkListsRepr {
        reads: &reads,
        writes: &[&write, &[]],
        reply: Some(&reply),
    };
    assert_eq!(repr.encoded_bytes(), header.header_bytes - 24);
    let from_slices = encoded(|space| v2::encode_msg_header(space, header.prefix, 0xa001, &repr));
    let from_view =
        encoded(|space| v2::encode_msg_header(space, header.prefix, 0xa001, &chunks.lists));
    assert_eq!(from_slices, message[..header.header_bytes]);
    assert_eq!(from_view, message[..header.header_bytes]);
}
