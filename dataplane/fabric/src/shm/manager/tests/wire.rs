//! Tests of the messages: fixed vectors, round trips and arbitrary bytes.

use proptest::prelude::*;

use crate::interface::RejectReason;
use crate::shm::manager::wire::*;
use crate::shm::{CoreIdentity, QueuePairNumber};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn core() -> CoreIdentity {
    CoreIdentity {
        process: *b"0123456789abcdef",
        port: 0x0102_0304,
    }
}

#[test]
fn request_by_hand() {
    let request = Message::Request(Request {
        core: core(),
        queue_pair: QueuePairNumber(0x000a_000b),
        seen_up_to: 0x1122_3344_5566_7788,
        alive: vec![5],
        private_data: vec![0xee, 0xff],
    });
    let bytes = request.encode();
    assert_eq!(
        hex(&bytes),
        "5253484d 0100 0100 30313233343536373839616263646566 04030201 0b000a00 \
         8877665544332211 0100 0200 0500000000000000 eeff"
            .replace(' ', "")
    );
    assert_eq!(Message::parse(&bytes), Ok(request));
}

#[test]
fn reply_confirm_and_reject_by_hand() {
    let reply = Message::Reply(Reply {
        core: core(),
        queue_pair: QueuePairNumber(1),
        doorbell_number: 2,
        channel: 3,
        private_data: vec![9],
    });
    assert_eq!(
        hex(&reply.encode()),
        "5253484d010002003031323334353637383961626364656604030201010000000200000003000000000000000100\
         09"
    );
    let confirm = Message::Confirm(Confirm { doorbell_number: 7 });
    assert_eq!(hex(&confirm.encode()), "5253484d0100030007000000");
    let reject = Message::Reject(Reject {
        version: VERSION,
        reason: RejectReason::Other(0x99),
        private_data: vec![1, 2],
    });
    assert_eq!(
        hex(&reject.encode()),
        "5253484d01000400060000009900000002000102"
    );
}

#[test]
fn a_rejection_of_another_version_is_understood() {
    let bytes = Message::Reject(Reject {
        version: 9,
        reason: RejectReason::VersionMismatch,
        private_data: Vec::new(),
    })
    .encode();
    let Ok(Message::Reject(reject)) = Message::parse(&bytes) else {
        panic!("not understood");
    };
    assert_eq!(
        (reject.version, reject.reason),
        (9, RejectReason::VersionMismatch)
    );
}

#[test]
fn other_messages_of_another_version_are_told_as_such() {
    let mut bytes = Message::Confirm(Confirm { doorbell_number: 7 }).encode();
    bytes[4] = 2;
    assert_eq!(Message::parse(&bytes), Err(ParseError::Version(2)));
    // The rest of the message may be anything, because the other version defines it.
    assert_eq!(Message::parse(&bytes[..8]), Err(ParseError::Version(2)));
    let text = ParseError::Version(2).to_string();
    assert!(
        text.contains("version 2") && text.contains("version 1"),
        "{text}"
    );
}

#[test]
fn unknown_reason_is_reported_too() {
    let mut bytes = Message::Reject(Reject {
        version: VERSION,
        reason: RejectReason::Draining,
        private_data: Vec::new(),
    })
    .encode();
    bytes[8] = 77;
    let Ok(Message::Reject(reject)) = Message::parse(&bytes) else {
        panic!("not understood");
    };
    assert_eq!(reject.reason, RejectReason::Other(77));
}

#[test]
fn errors_by_kind() {
    assert_eq!(Message::parse(b""), Err(ParseError::NotOurs));
    assert_eq!(Message::parse(b"RSH"), Err(ParseError::NotOurs));
    assert_eq!(Message::parse(b"HTTP/1.1"), Err(ParseError::NotOurs));
    assert_eq!(Message::parse(b"RSHM"), Err(ParseError::Length));
    assert_eq!(
        Message::parse(b"RSHM\x01\0\x09\0"),
        Err(ParseError::Kind(9))
    );
    let mut long = Message::Confirm(Confirm { doorbell_number: 7 }).encode();
    long.push(0);
    assert_eq!(Message::parse(&long), Err(ParseError::Length));
    // A request with one channel more than the limit.
    let mut request = Message::Request(Request {
        core: core(),
        queue_pair: QueuePairNumber(0),
        seen_up_to: 0,
        alive: vec![1; ALIVE_CHANNELS_MAX],
        private_data: Vec::new(),
    })
    .encode();
    request[40] = u8::try_from(ALIVE_CHANNELS_MAX).unwrap() + 1;
    request.extend_from_slice(&[0; 8]);
    assert_eq!(Message::parse(&request), Err(ParseError::TooLong));
    let mut reply = Message::Reply(Reply {
        core: core(),
        queue_pair: QueuePairNumber(0),
        doorbell_number: 0,
        channel: 0,
        private_data: vec![0; REPLY_PRIVATE_BYTES_MAX],
    })
    .encode();
    reply[44] += 1;
    reply.push(0);
    assert_eq!(Message::parse(&reply), Err(ParseError::TooLong));
}

fn any_core() -> impl Strategy<Value = CoreIdentity> {
    (any::<[u8; 16]>(), any::<u32>()).prop_map(|(process, port)| CoreIdentity { process, port })
}

fn any_bytes(limit: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=limit)
}

fn any_reason() -> impl Strategy<Value = RejectReason> {
    prop_oneof![
        Just(RejectReason::ConnectionsExhausted),
        Just(RejectReason::PeerLimit),
        Just(RejectReason::Draining),
        Just(RejectReason::VersionMismatch),
        Just(RejectReason::NotPermitted),
        any::<u32>().prop_map(RejectReason::Other),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let request = (
        any_core(),
        any::<u32>(),
        any::<u64>(),
        prop::collection::vec(any::<u64>(), 0..=ALIVE_CHANNELS_MAX),
        any_bytes(REQUEST_PRIVATE_BYTES_MAX),
    )
        .prop_map(|(core, number, seen_up_to, alive, private_data)| {
            Message::Request(Request {
                core,
                queue_pair: QueuePairNumber(number),
                seen_up_to,
                alive,
                private_data,
            })
        });
    let reply = (
        any_core(),
        any::<(u32, u32, u64)>(),
        any_bytes(REPLY_PRIVATE_BYTES_MAX),
    )
        .prop_map(|(core, (number, doorbell_number, channel), private_data)| {
            Message::Reply(Reply {
                core,
                queue_pair: QueuePairNumber(number),
                doorbell_number,
                channel,
                private_data,
            })
        });
    let confirm =
        any::<u32>().prop_map(|doorbell_number| Message::Confirm(Confirm { doorbell_number }));
    let reject = (
        any::<u16>(),
        any_reason(),
        any_bytes(REJECT_PRIVATE_BYTES_MAX),
    )
        .prop_map(|(version, reason, private_data)| {
            Message::Reject(Reject {
                version,
                reason,
                private_data,
            })
        });
    prop_oneof![request, reply, confirm, reject]
}

proptest! {
    #[test]
    fn messages_survive_the_wire(message in any_message()) {
        let bytes = message.encode();
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Message::parse(&bytes), Ok(message));
    }

    #[test]
    fn a_message_that_is_cut_is_refused(message in any_message(), cut in any::<prop::sample::Index>()) {
        let bytes = message.encode();
        let cut = cut.index(bytes.len());
        prop_assert!(Message::parse(&bytes[..cut]).is_err());
    }

    #[test]
    fn a_message_with_a_tail_is_refused(message in any_message(), tail in 1_usize..64) {
        let mut bytes = message.encode();
        bytes.resize(bytes.len() + tail, 0);
        prop_assert!(Message::parse(&bytes).is_err());
    }

    /// An accepted message keeps all bytes. Other bytes are refused without a panic.
    #[test]
    fn arbitrary_bytes_are_refused_or_meant(
        head in prop::sample::select(vec![
            b"RSHM\x01\0\x01\0".to_vec(), b"RSHM\x01\0\x02\0".to_vec(), b"RSHM\x01\0\x03\0".to_vec(),
            b"RSHM\x01\0\x04\0".to_vec(), b"RSHM\x02\0\x01\0".to_vec(), Vec::new(),
        ]),
        body in prop::collection::vec(prop_oneof![3 => Just(0_u8), 1 => 0_u8..4, 1 => any::<u8>()], 0..128),
    ) {
        let bytes = [head, body].concat();
        if let Ok(message) = Message::parse(&bytes) {
            let again = message.encode();
            let lossy = matches!(&message, Message::Reject(_));
            // A rejection keeps neither unknown reasons nor unused codes.
            prop_assert!(lossy || again == bytes);
        }
    }
}
