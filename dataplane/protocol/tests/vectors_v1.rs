//! Version 1 messages computed by hand from the XDR of RFC 8166 section 4.1.2, word by word.

mod support;

use rpcrdma_protocol::chunks::{ChunkLists, ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::v1::{self, Body, Header, Refusal, TransportError};
use rpcrdma_protocol::{DecodeError, Reason};
use support::{encoded, hex};

fn decoded(message: &[u8]) -> Header<'_> {
    v1::decode(message).expect("a valid message")
}

fn refused(message: &[u8]) -> (DecodeError, Refusal) {
    let error = v1::decode(message).expect_err("an invalid message");
    (error, v1::refusal(error))
}

/// What a Linux client sends first: NFS NULL.
const MSG_CALL: &str = "
    d7811d8b    # rdma_xid
    00000001    # rdma_vers
    00000080    # rdma_credit: 128 requested
    00000000    # RDMA_MSG
    00000000    # rdma_reads: absent
    00000000    # rdma_writes: absent
    00000000    # rdma_reply: absent
    d7811d8b    # RPC: xid";

#[test]
fn msg_without_chunks() {
    let message = hex(MSG_CALL);
    let header = decoded(&message);
    let expected = Header {
        xid: 0xd781_1d8b,
        credit: 128,
        body: Body::Msg(ChunkLists::default()),
        header_bytes: 28,
    };
    assert_eq!(header, expected);
    assert_eq!(header.header_type(), 0);
    let fast = encoded(|space| v1::encode_msg_header_without_chunks(space, header.xid, 128));
    let slow =
        encoded(|space| v1::encode_msg_header(space, header.xid, 128, &ChunkListsRepr::default()));
    assert_eq!(fast, message[..28]);
    assert_eq!(slow, message[..28]);
    decoded(&message[..28]);
}

#[test]
fn msg_with_a_read_chunk_and_a_write_chunk() {
    let message = hex("
        00000005 00000001 00000020 00000000
        00000001    # rdma_reads: an entry follows
        00000094    #   rdma_position 148
        00000101    #   rdma_handle
        00001000    #   rdma_length 4096
        d98b1d8b00001000    #   rdma_offset: Linux keeps an XID in its high half
        00000000    # rdma_reads: end
        00000001    # rdma_writes: an entry follows
        00000002    #   two segments, the second for padding
        00000102    #     rdma_handle
        00000003    #     rdma_length 3
        0000000000002000    #     rdma_offset
        00000103    #     rdma_handle
        00000001    #     rdma_length 1
        0000000000003000    #     rdma_offset
        00000000    # rdma_writes: end
        00000000    # rdma_reply: absent");
    let header = decoded(&message);
    let lists = *header.chunk_lists().unwrap();
    let target = Segment {
        handle: 0x101,
        length_bytes: 4096,
        offset: 0xd98b_1d8b_0000_1000,
    };
    let reads = [ReadSegment {
        position: 148,
        target,
    }];
    #[rustfmt::skip]
    let write = [
        Segment { handle: 0x102, length_bytes: 3, offset: 0x2000 },
        Segment { handle: 0x103, length_bytes: 1, offset: 0x3000 },
    ];
    assert_eq!(lists.reads.collect::<Vec<_>>(), reads);
    assert_eq!(
        lists.writes.map(Iterator::collect).collect::<Vec<Vec<_>>>(),
        [write.to_vec()]
    );
    assert_eq!((lists.reply, header.header_bytes), (None, message.len()));
    let repr = ChunkListsRepr {
        reads: &reads,
        writes: &[&write],
        reply: None,
    };
    assert_eq!(
        encoded(|space| v1::encode_msg_header(space, 5, 32, &repr)),
        message
    );
    assert_eq!(
        encoded(|space| v1::encode_msg_header(space, 5, 32, &lists)),
        message
    );
}

#[test]
fn nomsg_reply_in_the_reply_chunk() {
    let message = hex("
        00000006 00000001 00000040
        00000001    # RDMA_NOMSG
        00000000    # rdma_reads: absent
        00000000    # rdma_writes: absent
        00000001    # rdma_reply: present
        00000001    #   one segment
        00000201 00000400 0000000000000010");
    let header = decoded(&message);
    assert!(matches!(header.body, Body::Nomsg(_)));
    let lists = *header.chunk_lists().unwrap();
    assert_eq!(lists.reply.unwrap().total_bytes(), 1024);
    assert!(!lists.are_empty());
    assert_eq!(
        encoded(|space| v1::encode_nomsg(space, 6, 64, &lists)),
        message
    );
}

#[test]
fn errors() {
    // xid, version, credit, RDMA_ERROR; then code and arguments.
    #[rustfmt::skip]
    let cases = [
        ("00000009 00000001 00000040 00000004 00000001 00000001 00000001", TransportError::Vers { low: 1, high: 1 }),
        ("00000009 00000001 00000040 00000004 00000002", TransportError::Chunk),
        ("00000009 00000001 00000040 00000004 00000003", TransportError::Unknown { code: 3 }),
    ];
    for (text, error) in cases {
        let message = hex(text);
        let header = decoded(&message);
        assert_eq!(
            (header.xid, header.credit, header.body),
            (9, 64, Body::Error(error))
        );
        assert_eq!(
            (header.header_type(), header.header_bytes),
            (4, message.len())
        );
        assert!(header.chunk_lists().is_none());
        assert_eq!(
            encoded(|space| v1::encode_error(space, 9, 1, 64, error)),
            message
        );
    }
}

#[test]
fn an_error_copies_the_version_that_is_refused() {
    let error = TransportError::Vers { low: 1, high: 1 };
    let message = encoded(|space| v1::encode_error(space, 9, 7, 64, error));
    assert_eq!(
        message,
        hex("00000009 00000007 00000040 00000004 00000001 00000001 00000001")
    );
    let prefix = CommonPrefix {
        xid: 9,
        version: 7,
        credit: 64,
        header_type: 4,
    };
    assert_eq!(CommonPrefix::peek(&message), Some(prefix));
    assert_eq!(CommonPrefix::peek(&message[..16]), Some(prefix));
    assert_eq!(CommonPrefix::peek(&message[..15]), None);
}

#[test]
fn msgp_and_done_are_recognised_and_not_looked_into() {
    for (header_type, body) in [(2, Body::Msgp), (3, Body::Done)] {
        let mut message = hex(MSG_CALL);
        message[15] = header_type;
        message[16..28].fill(0xff);
        let header = decoded(&message);
        assert_eq!(
            (header.body, header.header_type()),
            (body, u32::from(header_type))
        );
        assert!(header.chunk_lists().is_none());
    }
}

#[test]
fn below_its_least_size_every_message_is_discarded() {
    for (header_type, least_bytes) in [(0, 28), (1, 28), (2, 28), (3, 28), (4, 20), (5, 28)] {
        let mut message = hex(MSG_CALL);
        message[15] = header_type;
        message[19] = if header_type == 4 { 2 } else { 0 };
        for message_bytes in 0..least_bytes {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            assert_eq!(
                refused(&message[..message_bytes]),
                (too_short, Refusal::Discard)
            );
        }
        let reason = v1::decode(&message[..least_bytes]).map_err(|error| error.reason);
        let expected = match header_type {
            1 => Err(Reason::NoPayload),
            5 => Err(Reason::UnknownHeaderType),
            _ => Ok(()),
        };
        assert_eq!(reason.map(drop), expected, "type {header_type}");
    }
}

#[test]
fn below_28_octets_no_other_version_is_answered() {
    for header_type in [0, 1, 4, 9] {
        let mut message = hex(MSG_CALL);
        (message[7], message[15]) = (2, header_type);
        for message_bytes in 0..28 {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            assert_eq!(
                refused(&message[..message_bytes]),
                (too_short, Refusal::Discard)
            );
        }
        let unsupported = DecodeError::new(4, Reason::UnsupportedVersion);
        assert_eq!(refused(&message[..28]), (unsupported, Refusal::Vers));
    }
}

#[test]
fn refusals_name_the_field() {
    #[rustfmt::skip]
    let cases = [
        (1, "00000002", 4, Reason::UnsupportedVersion, Refusal::Vers),
        (1, "00000000", 4, Reason::UnsupportedVersion, Refusal::Vers),
        (3, "00000005", 12, Reason::UnknownHeaderType, Refusal::Chunk),
        (4, "00000002", 16, Reason::InvalidBoolean, Refusal::Chunk),
        (5, "ffffffff", 20, Reason::InvalidBoolean, Refusal::Chunk),
        (6, "00000100", 24, Reason::InvalidBoolean, Refusal::Chunk),
        (4, "00000001", 20, Reason::Truncated, Refusal::Chunk),
        (6, "00000001", 28, Reason::TooManySegments, Refusal::Chunk),
    ];
    for (index, value, at, reason, refusal) in cases {
        let mut message = hex(MSG_CALL);
        message[4 * index..][..4].copy_from_slice(&hex(value));
        assert_eq!(
            refused(&message),
            (DecodeError::new(at, reason), refusal),
            "{index} {value}"
        );
    }
    let mut nomsg_without_chunks = hex(MSG_CALL);
    nomsg_without_chunks[15] = 1;
    let no_payload = DecodeError::new(16, Reason::NoPayload);
    assert_eq!(refused(&nomsg_without_chunks), (no_payload, Refusal::Chunk));
}

#[test]
fn an_error_that_breaks_off_is_discarded_and_not_answered() {
    let err_vers = hex("00000009 00000001 00000040 00000004 00000001 00000001 00000001");
    for message_bytes in 20..28 {
        let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
        assert_eq!(
            refused(&err_vers[..message_bytes]),
            (too_short, Refusal::Discard)
        );
    }
    decoded(&err_vers);
}
