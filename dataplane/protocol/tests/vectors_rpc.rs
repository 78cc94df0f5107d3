//! RPC headers computed by hand from the XDR of RFC 5531 section 9, word by word.

mod support;

use rpcrdma_protocol::rpc::{
    self, AcceptStatus, AuthStatus, CallHeader, Direction, OpaqueAuth, RejectStatus, ReplyBody,
    ReplyHeader,
};
use rpcrdma_protocol::{DecodeError, EncodeError, Reason};
use support::{encoded, hex};

/// A call with AUTH_SYS and AUTH_NONE.
const CALL: &str = "
    d8811d8b    # xid
    00000000    # CALL
    00000002    # rpcvers
    000186a3    # prog 100003
    00000003    # vers 3
    00000013    # proc 19
    00000001    # cred flavor AUTH_SYS
    00000018    #   24 octets
    00000000 00000001 61000000 00000000 00000000 00000000
    00000000    # verf flavor AUTH_NONE
    00000000    #   0 octets";

#[test]
fn call_with_a_credential() {
    let message = hex(CALL);
    let expected = CallHeader {
        xid: 0xd881_1d8b,
        program: 100_003,
        version: 3,
        procedure: 19,
        credential: OpaqueAuth {
            flavor: 1,
            body: &message[32..56],
        },
        verifier: OpaqueAuth::NONE,
    };
    assert_eq!(CallHeader::decode(&message), Ok((expected, 64)));
    assert_eq!(expected.encoded_bytes(), 64);
    assert_eq!(encoded(|space| expected.encode(space)), message);
    assert_eq!(rpc::peek(&message), Ok((expected.xid, Direction::Call)));
}

#[test]
fn call_without_credential() {
    let message = hex("
        00000001 00000000 00000002 20000001 00000001 00000007
        00000000 00000000 00000000 00000000    # AUTH_NONE twice
        cafebabe    # the arguments");
    let (header, header_bytes) = CallHeader::decode(&message).unwrap();
    assert_eq!(
        (header.program, header.version, header.procedure),
        (0x2000_0001, 1, 7)
    );
    assert_eq!(
        (header.credential, header.verifier),
        (OpaqueAuth::NONE, OpaqueAuth::default())
    );
    assert_eq!(message[header_bytes..], hex("cafebabe"));
    assert_eq!(encoded(|space| header.encode(space)), message[..40]);
    assert_eq!(header.encoded_bytes(), 40);
}

#[test]
fn flavors_and_bodies_are_carried_whatever_they_are() {
    let message = hex("
        00000001 00000000 00000002 00000001 00000001 00000000
        deadbeef 00000000             # an unknown flavor with an empty body
        00000006 00000005 0102030405000000    # RPCSEC_GSS, 5 octets and 3 of padding");
    let (header, header_bytes) = CallHeader::decode(&message).unwrap();
    assert_eq!(
        header.credential,
        OpaqueAuth {
            flavor: 0xdead_beef,
            body: &[]
        }
    );
    assert_eq!(
        header.verifier,
        OpaqueAuth {
            flavor: 6,
            body: &[1, 2, 3, 4, 5]
        }
    );
    assert_eq!(header_bytes, message.len());
    assert_eq!(encoded(|space| header.encode(space)), message);
}

#[test]
fn a_body_has_at_most_400_octets() {
    let body = vec![0xab; 401];
    let call = |body| CallHeader {
        xid: 1,
        program: 2,
        version: 3,
        procedure: 4,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth { flavor: 6, body },
    };
    let longest = encoded(|space| call(&body[..400]).encode(space));
    assert_eq!(CallHeader::decode(&longest), Ok((call(&body[..400]), 440)));
    assert_eq!(
        call(&body).encode(&mut [0; 1024]),
        Err(EncodeError::TooLong)
    );
    let mut too_long = [longest.as_slice(), &[0; 4]].concat();
    too_long[36..40].copy_from_slice(&401_u32.to_be_bytes());
    let error = DecodeError::new(36, Reason::OpaqueTooLong);
    assert_eq!(CallHeader::decode(&too_long), Err(error));
}

#[test]
fn every_reply() {
    let verifier = OpaqueAuth {
        flavor: 6,
        body: &[7; 3],
    };
    let accepted = |status| ReplyBody::Accepted {
        verifier: OpaqueAuth::NONE,
        status,
    };
    let denied = ReplyBody::Denied;
    // xid and REPLY stand before each; then MSG_ACCEPTED 0, verifier, accept_stat; or MSG_DENIED 1, reject_stat.
    #[rustfmt::skip]
    let cases = [
        ("00000000 00000000 00000000 00000000", accepted(AcceptStatus::Success)),
        ("00000000 00000000 00000000 00000001", accepted(AcceptStatus::ProgUnavail)),
        ("00000000 00000000 00000000 00000002 00000002 00000004", accepted(AcceptStatus::ProgMismatch { low: 2, high: 4 })),
        ("00000000 00000000 00000000 00000003", accepted(AcceptStatus::ProcUnavail)),
        ("00000000 00000000 00000000 00000004", accepted(AcceptStatus::GarbageArgs)),
        ("00000000 00000000 00000000 00000005", accepted(AcceptStatus::SystemErr)),
        ("00000000 00000006 00000003 07070700 00000000", ReplyBody::Accepted { verifier, status: AcceptStatus::Success }),
        ("00000001 00000000 00000002 00000002", denied(RejectStatus::RpcMismatch { low: 2, high: 2 })),
        ("00000001 00000001 00000001", denied(RejectStatus::AuthError(AuthStatus::BAD_CREDENTIAL))),
        ("00000001 00000001 00000002", denied(RejectStatus::AuthError(AuthStatus::REJECTED_CREDENTIAL))),
        ("00000001 00000001 00000003", denied(RejectStatus::AuthError(AuthStatus::BAD_VERIFIER))),
        ("00000001 00000001 00000004", denied(RejectStatus::AuthError(AuthStatus::REJECTED_VERIFIER))),
        ("00000001 00000001 00000005", denied(RejectStatus::AuthError(AuthStatus::TOO_WEAK))),
        ("00000001 00000001 00000006", denied(RejectStatus::AuthError(AuthStatus::INVALID_RESPONSE))),
        ("00000001 00000001 00000007", denied(RejectStatus::AuthError(AuthStatus::FAILED))),
        ("00000001 00000001 0000000d", denied(RejectStatus::AuthError(AuthStatus::GSS_CREDENTIAL_PROBLEM))),
        ("00000001 00000001 0000000e", denied(RejectStatus::AuthError(AuthStatus::GSS_CONTEXT_PROBLEM))),
        ("00000001 00000001 000000ff", denied(RejectStatus::AuthError(AuthStatus(255)))),
    ];
    for (text, body) in cases {
        let message = hex(&["d7811d8b 00000001", text].concat());
        let expected = ReplyHeader {
            xid: 0xd781_1d8b,
            body,
        };
        assert_eq!(ReplyHeader::decode(&message), Ok((expected, message.len())));
        assert_eq!(encoded(|space| expected.encode(space)), message);
        assert_eq!(rpc::peek(&message), Ok((expected.xid, Direction::Reply)));
        for cut in 0..message.len() {
            let error = ReplyHeader::decode(&message[..cut]).expect_err("a cut message");
            assert_eq!(error.reason, Reason::Truncated, "{cut} of {text}");
            assert!(error.at <= cut, "{cut} of {text}");
        }
    }
    let success = ReplyHeader {
        xid: 3,
        body: accepted(AcceptStatus::Success),
    };
    assert_eq!(ReplyHeader::success(3), success);
}

#[test]
fn refusals_name_the_field() {
    #[rustfmt::skip]
    let calls = [
        (1, "00000001", 4, Reason::NotACall),
        (1, "00000002", 4, Reason::InvalidMessageType),
        (2, "00000001", 8, Reason::UnsupportedRpcVersion),
        (2, "00000003", 8, Reason::UnsupportedRpcVersion),
        (7, "00000191", 28, Reason::OpaqueTooLong),
        (7, "ffffffff", 28, Reason::OpaqueTooLong),
        (7, "00000190", 28, Reason::Truncated),
        (15, "00000001", 60, Reason::Truncated),
    ];
    for (index, value, at, reason) in calls {
        let mut message = hex(CALL);
        message[4 * index..][..4].copy_from_slice(&hex(value));
        assert_eq!(
            CallHeader::decode(&message),
            Err(DecodeError::new(at, reason)),
            "{index} {value}"
        );
    }
    #[rustfmt::skip]
    let replies = [
        ("00000000", 4, Reason::NotAReply),
        ("00000003", 4, Reason::InvalidMessageType),
        ("00000001 00000002", 8, Reason::InvalidReplyStatus),
        ("00000001 00000000 00000000 00000000 00000006", 20, Reason::InvalidAcceptStatus),
        ("00000001 00000001 00000002", 12, Reason::InvalidRejectStatus),
        ("00000001 00000000 00000000 00000191", 16, Reason::OpaqueTooLong),
    ];
    for (text, at, reason) in replies {
        let message = hex(&["00000001", text].concat());
        assert_eq!(
            ReplyHeader::decode(&message),
            Err(DecodeError::new(at, reason)),
            "{text}"
        );
    }
    assert_eq!(
        rpc::peek(&hex("00000001 00000002")),
        Err(DecodeError::new(4, Reason::InvalidMessageType))
    );
    assert_eq!(
        rpc::peek(&hex("00000001 000000")),
        Err(DecodeError::new(4, Reason::Truncated))
    );
}

#[test]
fn a_cut_call_is_truncated_and_never_something_else() {
    let message = hex(CALL);
    for cut in 0..message.len() {
        let error = CallHeader::decode(&message[..cut]).expect_err("a cut message");
        assert_eq!(error.reason, Reason::Truncated, "{cut}");
        assert!(error.at <= cut);
    }
}

#[test]
fn the_short_way_for_empty_bodies_checks_as_much() {
    let call = hex("
        00000001 00000000 00000002 20000001 00000001 00000007
        00000000 00000000 00000000 00000000");
    #[rustfmt::skip]
    let wrong = [
        (1, "00000001", 4, Reason::NotACall),
        (1, "00000100", 4, Reason::InvalidMessageType),
        (2, "00000003", 8, Reason::UnsupportedRpcVersion),
        (7, "00000001", 40, Reason::Truncated),
        (9, "00000001", 36, Reason::Truncated),
    ];
    for (index, value, at, reason) in wrong {
        let mut message = call.clone();
        message[4 * index..][..4].copy_from_slice(&hex(value));
        let error = DecodeError::new(at, reason);
        assert_eq!(CallHeader::decode(&message), Err(error), "{index} {value}");
    }

    // A verifier of four octets that are zero, as the word of SUCCESS is, and then SYSTEM_ERR.
    let reply = hex("00000001 00000001 00000000 00000006 00000004 00000000 00000005");
    let body = ReplyBody::Accepted {
        verifier: OpaqueAuth {
            flavor: 6,
            body: &[0; 4],
        },
        status: AcceptStatus::SystemErr,
    };
    assert_eq!(
        ReplyHeader::decode(&reply),
        Ok((ReplyHeader { xid: 1, body }, 28))
    );
}
