//! Version 2 messages computed by hand from the XDR of -00 section 7, word by word.
//!
//! Each vector is decoded to the expected value, and the expected value encoded to the same octets.

mod support;

use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::v2::{
    self, Body, CreditWord, ErrVers, Flags, Header, Prefix, Properties, Property, PropertySet,
    Refusal, ReverseRequestSupport, TransportError,
};
use rpcrdma_protocol::{DecodeError, EncodeError, Reason};
use support::{encoded, hex};

fn prefix(xid: u32, maximum: u16, granted: u16, flags: Flags) -> Prefix {
    Prefix {
        xid,
        credit: CreditWord { granted, maximum },
        flags,
    }
}

fn decoded(message: &[u8]) -> Header<'_> {
    v2::decode(message).expect("a valid message")
}

fn refused(message: &[u8]) -> (DecodeError, Refusal) {
    let error = v2::decode(message).expect_err("an invalid message");
    (error, v2::refusal(error))
}

// ---- RDMA2_MSG ----

/// A call without chunks, which asks for nothing: 36 octets of header, then the RPC message.
const MSG_CALL: &str = "
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
const MSG_WITH_CHUNKS: &str = "
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
    let reads = [
        ReadSegment {
            position: 120,
            target: segment(0xa001, 4096, 0x7f00_1234_0000),
        },
        ReadSegment {
            position: 120,
            target: segment(0xa002, 4, u64::MAX),
        },
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

// ---- RDMA2_NOMSG ----

#[test]
fn nomsg_call_with_position_zero_read_chunk() {
    let message = hex("
        00000012    # rdma_xid
        00000002    # rdma_vers
        00100000    # rdma_credit: at most 16 outstanding
        00000001    # rdma_htype RDMA2_NOMSG
        00000000    # rdma_flags
        00000000    # rdma_inv_handle
        00000001    # rdma_reads: an entry follows
        00000000    #   rdma_position 0: the message itself
        0000d001    #   rdma_handle
        00002000    #   rdma_length 8192
        0000000000001000    #   rdma_offset
        00000000    # rdma_reads: end
        00000000    # rdma_writes: absent
        00000000    # rdma_reply: absent");
    let header = decoded(&message);
    let chunks = *header.chunks().unwrap();
    assert!(chunks.lists.reads.has_position_zero());
    assert!(!header.is_credit_grant() && !header.lists_are_empty());
    assert_eq!((header.header_bytes, header.header_type()), (60, 1));
    let again = encoded(|space| v2::encode_nomsg(space, header.prefix, 0, &chunks.lists));
    assert_eq!(again, message);
}

/// -00 section 6.4.2 speaks of three zero words; the structure has four.
const CREDIT_GRANT: &str = "
    00000000    # rdma_xid: 0
    00000002    # rdma_vers
    00400020    # rdma_credit: at most 64 outstanding, 32 newly granted
    00000001    # rdma_htype RDMA2_NOMSG
    00000000    # rdma_flags: F_RESPONSE is clear
    00000000    # rdma_inv_handle
    00000000 00000000 00000000    # no lists";

#[test]
fn nomsg_credit_grant() {
    let message = hex(CREDIT_GRANT);
    assert_eq!(message.len(), 36);
    let header = decoded(&message);
    assert!(header.is_credit_grant());
    assert_eq!(header.prefix, prefix(0, 64, 32, Flags::NONE));
    assert_eq!(
        encoded(|space| v2::encode_credit_grant(space, header.prefix.credit)),
        message
    );
}

#[test]
fn nomsg_without_lists_is_a_grant_whatever_its_xid_and_flags() {
    let mut message = hex(CREDIT_GRANT);
    message[..4].copy_from_slice(&[1, 2, 3, 4]);
    message[19] = 1;
    assert!(decoded(&message).is_credit_grant());
    message.extend([0; 4]);
    let trailing = DecodeError::new(36, Reason::TrailingBytes);
    assert_eq!(
        refused(&message),
        (trailing, Refusal::BadXdr),
        "a grant has exactly 36 octets"
    );
}

#[test]
fn keep_alive_grants_nothing() {
    let message = encoded(|space| {
        v2::encode_credit_grant(
            space,
            CreditWord {
                granted: 0,
                maximum: 64,
            },
        )
    });
    assert_eq!(message[8..12], [0, 64, 0, 0]);
    assert!(decoded(&message).is_credit_grant());
}

// ---- RDMA2_ERROR ----

/// The body of each error from rdma_err on, and what it means.
const ERRORS: [(&str, TransportError); 11] = [
    // rdma_vers_low 1, rdma_vers_high 2
    (
        "00000001 00000001 00000002",
        TransportError::Vers(ErrVers { low: 1, high: 2 }),
    ),
    ("00000002", TransportError::BadXdr),
    ("00000003", TransportError::InvalHtype),
    ("00000004", TransportError::InvalFlag),
    // rdma_max_chunks 3
    (
        "00000005 00000003",
        TransportError::ReadChunks { max_chunks: 3 },
    ),
    // rdma_max_chunks 1
    (
        "00000006 00000001",
        TransportError::WriteChunks { max_chunks: 1 },
    ),
    // rdma_max_segments 16
    (
        "00000007 00000010",
        TransportError::Segments { max_segments: 16 },
    ),
    // rdma_chunk_index 2, rdma_length_needed 65536
    (
        "00000008 00000002 00010000",
        TransportError::WriteResource {
            chunk_index: 2,
            length_needed_bytes: 65536,
        },
    ),
    // rdma_length_needed 4294967295
    (
        "00000009 ffffffff",
        TransportError::ReplyResource {
            length_needed_bytes: u32::MAX,
        },
    ),
    ("0000000a", TransportError::System),
    // A code of a later revision.
    ("0000000b", TransportError::Unknown { code: 11 }),
];

/// xid, version, credit (0: it would be ignored), RDMA2_ERROR, F_RESPONSE.
const ERROR_PREFIX: &str = "0badcafe 00000002 00000000 00000004 00000001";

#[test]
fn every_error_code() {
    for (body, error) in ERRORS {
        let message = hex(&[ERROR_PREFIX, body].concat());
        let header = decoded(&message);
        assert_eq!(header.body, Body::Error(error));
        assert_eq!(header.prefix, prefix(0x0bad_cafe, 0, 0, Flags::RESPONSE));
        assert_eq!(
            (header.header_bytes, header.header_type()),
            (message.len(), 4)
        );
        assert!(!header.is_credit_grant() && header.chunks().is_none());
        assert_eq!(
            encoded(|space| v2::encode_error(space, 0x0bad_cafe, &error)),
            message
        );
    }
}

#[test]
fn an_error_lacks_its_argument_or_has_too_much() {
    for (body, error) in ERRORS {
        let message = hex(&[ERROR_PREFIX, body].concat());
        if message.len() > 24 {
            let cut = &message[..message.len() - 4];
            let truncated = DecodeError::new(cut.len(), Reason::Truncated);
            assert_eq!(refused(cut), (truncated, Refusal::BadXdr), "{error:?}");
        }
        let long = [message.as_slice(), &[0; 4]].concat();
        if let TransportError::Unknown { .. } = error {
            assert_eq!(
                decoded(&long).body,
                Body::Error(error),
                "its argument is not ours to judge"
            );
        } else {
            let trailing = DecodeError::new(message.len(), Reason::TrailingBytes);
            assert_eq!(refused(&long), (trailing, Refusal::BadXdr), "{error:?}");
        }
    }
}

/// ERR_VERS as every version reads it: 28 octets, without the flags word.
const ERR_VERS_VERSION_1_LAYOUT: &str = "
    00000021    # rdma_xid of the refused message
    00000009    # rdma_vers, copied from it
    00000000    # rdma_credit
    00000004    # RDMA_ERROR
    00000001    # ERR_VERS
    00000001    # rdma_vers_low
    00000002    # rdma_vers_high";

#[test]
fn err_vers_is_sent_in_the_version_1_layout() {
    let supported = ErrVers { low: 1, high: 2 };
    let message =
        encoded(|space| v2::encode_err_vers_in_version_1_layout(space, 0x21, 9, 0, supported));
    assert_eq!(message, hex(ERR_VERS_VERSION_1_LAYOUT));
}

#[test]
fn err_vers_in_version_1_layout_is_recognised() {
    // (rdma_vers, word 4, word 5, octets, before the first valid message) -> recognised
    #[rustfmt::skip]
    let cases = [
        (2, 1, 1, 28, true, true, "a Linux server copies our version 2"),
        (1, 1, 1, 28, true, true, "a server that answers as version 1"),
        (2, 1, 1, 28, false, false, "after a valid version 2 message the layout is version 2"),
        (1, 1, 1, 28, false, false, "so also with version 1"),
        (2, 1, 5, 28, true, false, "READ_CHUNKS with F_RESPONSE"),
        (2, 1, 6, 28, true, false, "WRITE_CHUNKS with F_RESPONSE"),
        (2, 1, 7, 28, true, false, "SEGMENTS with F_RESPONSE"),
        (2, 1, 9, 28, true, false, "REPLY_RESOURCE with F_RESPONSE"),
        (2, 1, 8, 28, true, true, "WRITE_RESOURCE has 32 octets, so 8 is a version here"),
        (1, 1, 5, 28, true, true, "version 1 has no such errors"),
        (2, 0, 1, 28, true, false, "F_RESPONSE is clear, and it is not ERR_VERS"),
        (2, 2, 1, 28, true, false, "ERR_CHUNK"),
        (2, 1, 1, 24, true, false, "too short"),
        (2, 1, 1, 32, true, false, "too long"),
        (3, 1, 1, 28, true, false, "not a version of ours"),
    ];
    for (version, word_4, word_5, message_bytes, before_first, recognised, why) in cases {
        let words: [u32; 8] = [0x21, version, 0, 4, word_4, word_5, 1, 0];
        let octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let expected = recognised.then_some(ErrVers {
            low: word_5,
            high: 1,
        });
        let found = v2::err_vers_in_version_1_layout(&octets[..message_bytes], before_first);
        assert_eq!(found, expected, "{why}");
    }
    let not_an_error: Vec<u8> = [0x21_u32, 2, 0, 5, 1, 1, 1]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    assert_eq!(
        v2::err_vers_in_version_1_layout(&not_an_error, true),
        None,
        "a CONNPROP"
    );
}

// ---- RDMA2_CONNPROP ----

/// Every property with a value.
const CONNPROP: &str = "
    00000022    # rdma_xid
    00000002    # rdma_vers
    00400020    # rdma_credit
    00000005    # rdma_htype RDMA2_CONNPROP
    00000000    # rdma_flags
    00000006    # rdma_props: six
    00000001 00000004 00002000    # SBSIZ, 4 octets: 8192
    00000002 00000004 00004000    # RBSIZ, 4 octets: 16384
    00000003 00000004 00400000    # RSSIZ, 4 octets: 4194304
    00000004 00000004 00000020    # RCSIZ, 4 octets: 32
    00000005 00000004 00000002    # BRS, 4 octets: GENL
    00000006 0000000c             # HOSTAUTH, 12 octets: an opaque of its own,
    00000005 68656c6c 6f000000    #   5 octets 'hello' and 3 of padding";

#[test]
fn connprop_with_all_six_properties() {
    let message = hex(CONNPROP);
    let header = decoded(&message);
    let Body::Connprop(body) = header.body else {
        panic!("{header:?}")
    };
    assert_eq!(
        (header.header_bytes, header.header_type()),
        (message.len(), 5)
    );
    assert_eq!(body, &message[20..]);
    let set = PropertySet::decode(body).unwrap();
    let properties = Properties {
        send_bytes_max: 8192,
        receive_buffer_bytes: 16384,
        segment_bytes_max: 4_194_304,
        segment_count_max: 32,
        reverse_requests: ReverseRequestSupport::General,
    };
    assert_eq!(set.properties(), properties);
    assert_eq!(set.host_authentication(), Some(&b"hello"[..]));
    let mut all = properties.to_properties().to_vec();
    all.push(Property::HostAuthentication(Some(b"hello")));
    assert_eq!(set.len(), 6);
    assert_eq!(set.collect::<Vec<_>>(), all);
    assert_eq!(
        encoded(|space| v2::encode_connprop(space, header.prefix, &all)),
        message
    );
}

/// A property set without the prefix, what it decodes to, and what of an endpoint it changes.
#[test]
fn every_property_alone() {
    let default = Properties::default();
    assert_eq!(
        default,
        Properties {
            send_bytes_max: 4096,
            receive_buffer_bytes: 4096,
            segment_bytes_max: 1_048_576,
            segment_count_max: 16,
            reverse_requests: ReverseRequestSupport::Inline,
        },
        "-00 section 5.2"
    );
    #[rustfmt::skip]
    let cases = [
        (
            "00000001 00000004 00000400",
            Property::SendSizeMax(Some(1024)),
            Properties {
                send_bytes_max: 1024,
                ..default
            },
        ),
        (
            "00000002 00000004 00010000",
            Property::ReceiveBufferSize(Some(65536)),
            Properties {
                receive_buffer_bytes: 65536,
                ..default
            },
        ),
        (
            "00000003 00000004 ffffffff",
            Property::SegmentSizeMax(Some(u32::MAX)),
            Properties {
                segment_bytes_max: u32::MAX,
                ..default
            },
        ),
        (
            "00000004 00000004 00000000",
            Property::SegmentCountMax(Some(0)),
            Properties {
                segment_count_max: 0,
                ..default
            },
        ),
        (
            "00000005 00000004 00000000",
            Property::ReverseRequestSupport(Some(0)),
            Properties {
                reverse_requests: ReverseRequestSupport::None,
                ..default
            },
        ),
        // A level that we cannot interpret: the default holds, and it is no error.
        ("00000005 00000004 00000003", Property::ReverseRequestSupport(Some(3)), default),
        ("00000006 00000004 00000000", Property::HostAuthentication(Some(&[])), default),
        // Length zero: the default value.
        ("00000001 00000000", Property::SendSizeMax(None), default),
        ("00000002 00000000", Property::ReceiveBufferSize(None), default),
        ("00000003 00000000", Property::SegmentSizeMax(None), default),
        ("00000004 00000000", Property::SegmentCountMax(None), default),
        ("00000005 00000000", Property::ReverseRequestSupport(None), default),
        ("00000006 00000000", Property::HostAuthentication(None), default),
        // Not ours: 5 octets and 3 of padding, skipped.
        (
            "52545204 00000005 01020304 05000000",
            Property::Unknown {
                id: 0x5254_5204,
                data: &[1, 2, 3, 4, 5],
            },
            default,
        ),
    ];
    for (text, property, properties) in cases {
        let body = hex(&["00000001", text].concat());
        let set = PropertySet::decode(&body).unwrap();
        assert_eq!(set.collect::<Vec<_>>(), [property]);
        assert_eq!(set.properties(), properties, "{property:?}");
        let again = encoded(|space| v2::encode_connprop(space, Prefix::default(), &[property]));
        assert_eq!(again[20..], body, "{property:?}");
    }
}

#[test]
fn a_property_set_may_be_empty_and_unordered_and_repeat_what_is_unknown() {
    let empty = hex("00000000");
    let set = PropertySet::decode(&empty).unwrap();
    assert_eq!((set.len(), set.properties()), (0, Properties::default()));
    let unordered = hex("
        00000004
        52545203 00000000             # not ours
        00000004 00000004 00000040    # RCSIZ 64
        52545203 00000001 ff000000    # not ours, again
        00000002 00000004 00008000    # RBSIZ 32768");
    let properties = PropertySet::decode(&unordered).unwrap().properties();
    assert_eq!(
        (
            properties.segment_count_max,
            properties.receive_buffer_bytes
        ),
        (64, 32768)
    );
    assert_eq!(properties.send_bytes_max, 4096);
}

#[test]
fn a_property_set_that_is_wrong() {
    #[rustfmt::skip]
    let cases = [
        ("", 0, Reason::Truncated, "no count"),
        ("00000001", 4, Reason::Truncated, "the entry is missing"),
        ("00000001 00000001", 8, Reason::Truncated, "no length"),
        ("00000001 00000001 00000004 0000", 8, Reason::Truncated, "data beyond the message"),
        ("00000001 00000063 ffffffff", 8, Reason::Truncated, "an unknown one beyond the message"),
        ("00000001 00000063 00000001 ff", 8, Reason::Truncated, "padding is missing"),
        ("ffffffff 00000063 00000000", 12, Reason::Truncated, "a count of 4 milliards"),
        ("00000000 00000000", 4, Reason::TrailingBytes, "more than the count says"),
        ("00000001 00000001 00000003 00000000", 12, Reason::InvalidPropertyValue, "SBSIZ of 3"),
        ("00000001 00000002 00000008 00000000 00001000", 12, Reason::InvalidPropertyValue, "RBSIZ of 8 octets"),
        ("00000001 00000003 00000001 01000000", 12, Reason::InvalidPropertyValue, "RSSIZ of 1"),
        ("00000001 00000004 00000002 00010000", 12, Reason::InvalidPropertyValue, "RCSIZ of 2"),
        ("00000001 00000005 00000001 01000000", 12, Reason::InvalidPropertyValue, "BRS of 1"),
        ("00000001 00000006 00000004 00000001", 12, Reason::InvalidPropertyValue, "HOSTAUTH: cut"),
        ("00000001 00000006 00000002 00000000", 12, Reason::InvalidPropertyValue, "no inner length"),
        (
            "00000001 00000006 00000008 00000000 00000000",
            12,
            Reason::InvalidPropertyValue,
            "more behind the inner opaque",
        ),
        ("00000002 00000001 00000000 00000001 00000004 00002000", 12, Reason::DuplicateProperty, "SBSIZ twice"),
    ];
    for (text, at, reason, why) in cases {
        let error = PropertySet::decode(&hex(text)).expect_err(why);
        assert_eq!(error, DecodeError::new(at, reason), "{why}");
        assert_eq!(v2::refusal(error), Refusal::BadXdr, "{why}");
        assert_eq!(error.within(20).at, at + 20);
    }
}

#[test]
fn a_continued_connprop_is_decoded_when_its_parts_are_joined() {
    let message = hex(CONNPROP);
    let (first, second) = message[20..].split_at(33);
    let mut joined = Vec::new();
    for (part, flags) in [(first, Flags::MORE), (second, Flags::NONE)] {
        let mut space = [0; 128];
        let prefix_bytes = v2::encode_prefix(&mut space, prefix(0x22, 1, 1, flags), 5).unwrap();
        space[prefix_bytes..][..part.len()].copy_from_slice(part);
        let header = decoded(&space[..prefix_bytes + part.len()]);
        assert_eq!(header.prefix.flags, flags);
        let Body::Connprop(body) = header.body else {
            panic!("{header:?}")
        };
        joined.extend_from_slice(body);
    }
    PropertySet::decode(first).expect_err("a part alone");
    assert_eq!(PropertySet::decode(&joined).unwrap().len(), 6);
}

// ---- What is refused, and how ----

#[test]
fn below_its_least_size_every_message_is_discarded() {
    for (header_type, least_bytes) in [(0, 40), (1, 36), (4, 24), (5, 24)] {
        let words: [u32; 11] = [
            1,
            2,
            0,
            header_type,
            u32::from(header_type == 4),
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let mut message: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        if header_type == 4 {
            message[23] = 2;
        }
        for message_bytes in 0..least_bytes {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            assert_eq!(
                refused(&message[..message_bytes]),
                (too_short, Refusal::Discard),
                "type {header_type}"
            );
        }
        v2::decode(&message[..least_bytes]).expect("the least message of its type");
    }
    // Of a type that is not known, the prefix is enough to be answered.
    let unknown_type = hex("00000001 00000002 00000000 00000009 00000000");
    let too_short = DecodeError::new(19, Reason::BelowLeastSize);
    assert_eq!(refused(&unknown_type[..19]), (too_short, Refusal::Discard));
    let unknown = DecodeError::new(12, Reason::UnknownHeaderType);
    assert_eq!(refused(&unknown_type), (unknown, Refusal::InvalHtype));
}

#[test]
fn below_28_octets_no_other_version_is_answered() {
    for version in ["00000001", "00000003", "ffffffff"] {
        let mut message = hex(MSG_CALL);
        message[4..8].copy_from_slice(&hex(version));
        for message_bytes in 0..28 {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            let cut = &message[..message_bytes];
            assert_eq!(refused(cut), (too_short, Refusal::Discard), "{version}");
        }
        let unsupported = DecodeError::new(4, Reason::UnsupportedVersion);
        assert_eq!(
            refused(&message[..28]),
            (unsupported, Refusal::Vers),
            "{version}"
        );
    }
}

#[test]
fn refusals_name_the_field() {
    #[rustfmt::skip]
    let cases = [
        ("1 00000001", 4, Reason::UnsupportedVersion, Refusal::Vers),
        ("1 00000003", 4, Reason::UnsupportedVersion, Refusal::Vers),
        ("3 00000002", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 00000003", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 00000006", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 52545201", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("4 00000004", 16, Reason::ReservedFlags, Refusal::InvalFlag),
        ("4 80000001", 16, Reason::ReservedFlags, Refusal::InvalFlag),
        ("6 00000002", 24, Reason::InvalidBoolean, Refusal::BadXdr),
        ("7 ffffffff", 28, Reason::InvalidBoolean, Refusal::BadXdr),
        ("8 00000100", 32, Reason::InvalidBoolean, Refusal::BadXdr),
        ("6 00000001", 28, Reason::Truncated, Refusal::BadXdr),
        ("7 00000001", 36, Reason::InvalidBoolean, Refusal::BadXdr),
        ("8 00000001", 36, Reason::TooManySegments, Refusal::Segments),
    ];
    for (change, at, reason, refusal) in cases {
        let (index, value) = change.split_once(' ').unwrap();
        let index: usize = index.parse().unwrap();
        let mut message = hex(MSG_CALL);
        message[4 * index..][..4].copy_from_slice(&hex(value));
        assert_eq!(
            refused(&message),
            (DecodeError::new(at, reason), refusal),
            "{change}"
        );
    }
}

#[test]
fn a_reserved_flag_is_refused_on_every_header_type() {
    for text in [
        MSG_CALL,
        CREDIT_GRANT,
        CONNPROP,
        &[ERROR_PREFIX, "00000002"].concat(),
    ] {
        for bit in 2..32 {
            let mut message = hex(text);
            let flags = 1_u32 << bit;
            message[16..20].copy_from_slice(&flags.to_be_bytes());
            let reserved = DecodeError::new(16, Reason::ReservedFlags);
            assert_eq!(refused(&message), (reserved, Refusal::InvalFlag));
        }
    }
}

#[test]
fn a_message_with_chunks_needs_a_word_of_payload() {
    let message = hex(MSG_WITH_CHUNKS);
    for missing in 1..=4 {
        let cut = &message[..message.len() - missing];
        let truncated = DecodeError::new(message.len() - 4, Reason::Truncated);
        assert_eq!(refused(cut), (truncated, Refusal::BadXdr));
    }
}

#[test]
fn lists_are_bounded_before_they_are_walked_on() {
    let head = hex("00000011 00000002 00000000 00000000 00000000 00000000");
    let with = |body: Vec<u8>| [head.as_slice(), &body].concat();
    let entry = [hex("00000001"), vec![0; 20]].concat();
    let end = hex("00000000");

    let reads = |count: usize| with([entry.repeat(count), end.repeat(4)].concat());
    assert_eq!(
        decoded(&reads(1024)).chunks().unwrap().lists.reads.len(),
        1024
    );
    let too_many = DecodeError::new(24 + 1024 * 24, Reason::TooManySegments);
    assert_eq!(refused(&reads(1025)), (too_many, Refusal::Segments));

    let empty_chunk = hex("00000001 00000000");
    let writes =
        |count: usize| with([end.clone(), empty_chunk.repeat(count), end.repeat(3)].concat());
    assert_eq!(
        decoded(&writes(256)).chunks().unwrap().lists.writes.len(),
        256
    );
    let too_many = DecodeError::new(28 + 256 * 8, Reason::TooManyWriteChunks);
    assert_eq!(refused(&writes(257)), (too_many, Refusal::WriteChunks));

    let reply = |count: u32| {
        let segments = vec![0; 16 * usize::try_from(count).unwrap()];
        with(
            [
                hex("00000000 00000000 00000001"),
                count.to_be_bytes().to_vec(),
                segments,
                end.clone(),
            ]
            .concat(),
        )
    };
    assert_eq!(
        decoded(&reply(1024))
            .chunks()
            .unwrap()
            .lists
            .reply
            .unwrap()
            .len(),
        1024
    );
    let too_many = DecodeError::new(36, Reason::TooManySegments);
    assert_eq!(refused(&reply(1025)), (too_many, Refusal::Segments));
    let mut huge = reply(4);
    huge[36..40].copy_from_slice(&[0xff; 4]);
    assert_eq!(
        refused(&huge),
        (too_many, Refusal::Segments),
        "a count that would wrap"
    );
}

#[test]
fn an_encoder_refuses_what_a_decoder_would() {
    let mut space = vec![0; 64 * 1024];
    let segments = vec![Segment::default(); 1025];
    let reads = vec![ReadSegment::default(); 1025];
    let chunks: Vec<&[Segment]> = vec![&[]; 257];
    let too_long = [
        ChunkListsRepr {
            reads: &reads,
            ..Default::default()
        },
        ChunkListsRepr {
            writes: &chunks,
            ..Default::default()
        },
        ChunkListsRepr {
            writes: &[&segments],
            ..Default::default()
        },
        ChunkListsRepr {
            reply: Some(&segments),
            ..Default::default()
        },
    ];
    for lists in too_long {
        let result = v2::encode_nomsg(&mut space, Prefix::default(), 0, &lists);
        assert_eq!(result, Err(EncodeError::TooLong));
    }
}

#[test]
fn the_credit_word_holds_two_halves() {
    for (word, granted, maximum) in [
        (0, 0, 0),
        (0x0000_0001, 1, 0),
        (0x0001_0000, 0, 1),
        (0xfffe_8001, 0x8001, 0xfffe),
    ] {
        let credit = CreditWord::from_word(word);
        assert_eq!((credit.granted, credit.maximum), (granted, maximum));
        assert_eq!(credit.to_word(), word);
    }
}
