//! RDMA2_NOMSG: messages whose RPC message is in chunks, credit grants and keep-alives.

use rpcrdma_protocol::v2::{self, CreditWord, Flags, Refusal};
use rpcrdma_protocol::{DecodeError, Reason};

use crate::support::{encoded, hex};
use crate::{decoded, prefix, refused};

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
pub(crate) const CREDIT_GRANT: &str = "
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
