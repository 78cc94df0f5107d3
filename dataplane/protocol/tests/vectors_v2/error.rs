//! RDMA2_ERROR, and ERR_VERS in the layout of version 1.

use rpcrdma_protocol::v2::{self, Body, ErrVers, Flags, Refusal, TransportError};
use rpcrdma_protocol::{DecodeError, Reason};

use crate::support::{encoded, hex};
use crate::{decoded, prefix, refused};

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
pub(crate) const ERROR_PREFIX: &str = "0badcafe 00000002 00000000 00000004 00000001";

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
