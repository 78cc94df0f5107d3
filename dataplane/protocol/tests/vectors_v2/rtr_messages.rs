//! The messages of the extension RTR: Transmit Request, Transmit Response, Transmit Continue, Report Error.

use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItem, MessageItemRepr, Mismatch, OutOfRange, Problem, ReportError,
    ResponseItem, ResponseItemRepr, ResponseLocation, ResponseSet, ResponseSetRepr, RtrSupport,
    StreamRange, TransmissionId, TransmitContinue, TransmitRequest, TransmitResponse,
};
use rpcrdma_protocol::v2::{self, Body, Direction, Flags, Header, Refusal};
use rpcrdma_protocol::{DecodeError, Reason};

use crate::prefix;
use crate::support::{encoded, hex};

const FIRST: Segment = Segment {
    handle: 0xa1,
    length_bytes: 4096,
    offset: 0x0001_0000_0000_2000,
};
const SECOND: Segment = Segment {
    handle: 0xb2,
    length_bytes: 512,
    offset: 0x40,
};

/// Two items, two ranges with all four kinds of direction, three transmissions.
pub(crate) const TRANSMIT_REQUEST: &str = "
    00000007    # rdma_xid
    00000002    # rdma_vers
    00200003    # rdma_credit: at most 32, 3 granted
    52545201    # rdma_htype Transmit Request
    00000000    # rdma_flags
    00000002    # optxrq_dp: two items
    00000064 00001200    #   at 100, 4608 octets
    00000001             #   XMPTYPE_EXRW
    00000002             #     two segments
    000000a1 00001000 00010000 00002000
    000000b2 00000200 00000000 00000040
    00001300 00010001    #   at 4864, 65537 octets
    00000002             #   XMPTYPE_TBSN
    00000010             #     16 octets into
    00000002             #     two target buffer segments:
    00000000 00000003    #       0 and 3
    00000002    # optxrq_rsd: two sets
    00000028 00000050    #   [40, 80)
    00000003             #   three directions
    00000100 00000001    #     from 256 octets on, XMPTYPE_EXRW
    00000001 000000a1 00001000 00010000 00002000
    00000000 00000003    #     from 0 octets on, XMPTYPE_CHOICE
    00000000             #       no segment
    00000200 00000004    #     from 512 octets on, XMPTYPE_BYSIZE
    00008000             #       explicit from 32768 on
    00000001 000000b2 00000200 00000000 00000040
    00000050 00000051    #   [80, 81)
    00000001             #   one direction
    00000001 00000002    #     from 1 octet on, XMPTYPE_TBSN
    00000003    # optxrq_count: three transmissions
    00000002    # optxrq_rsbuf: a reply of at most two
    00000028    # optxrq_pslen: 40 octets
    ";

/// One of each result.
pub(crate) const TRANSMIT_RESPONSE: &str = "
    00000007    # rdma_xid
    00000002    # rdma_vers
    00200001    # rdma_credit
    52545202    # rdma_htype Transmit Response
    00000001    # rdma_flags RESPONSE
    00000004    # optxrs_dp: four items
    00000020 00001000    #   at 32, 4096 octets
    00000001             #   XMPTYPE_EXRW
    00000001 000000a1 00001000 00010000 00002000
    00000000 00000000    #   nowhere
    00000006             #   XMPTYPE_NOITEM
    00001040 00000007    #   at 4160, 7 octets
    00000005             #   XMPTYPE_TOOSHORT
    00001050 00000400    #   at 4176, 1024 octets
    00000002             #   XMPTYPE_TBSN
    00000000             #     0 octets into
    00000001 00000001    #     target buffer segment 1
    00000001    # optxrs_count: one transmission
    0000001c    # optxrs_pslen: 28 octets
    ";

/// The second transmission of a call.
pub(crate) const TRANSMIT_CONTINUE: &str = "
    00000007    # rdma_xid
    00000002    # rdma_vers
    00200000    # rdma_credit
    52545203    # rdma_htype Transmit Continue
    00000000    # rdma_flags
    00000001    # optxc_xnum
    00000000    # optxc_itype
    00000800    # optxc_pslen: 2048 octets
    ";

/// A reported error that an earlier transmission led to.
pub(crate) const REPORT_ERROR: &str = "
    00000007    # rdma_xid
    00000002    # rdma_vers
    00200002    # rdma_credit
    52545204    # rdma_htype Report Error
    00000001    # rdma_flags RESPONSE: the receiver chose the XID
    00000007 00000000 00000002    # optre_bad: of the CALL 7, transmission 2
    00000001                      # optre_lead: there is one,
    00000007 00000000 00000000    #   of the CALL 7, transmission 0
    00000007                      # optre_info: OPTRERR_BADTBSN
    00000009 00000000 00000005    #   9, and not 0 to 5
    ";

fn decoded(message: &[u8]) -> Header<'_> {
    let header = v2::decode_with_rtr(message, RtrSupport::ALL).expect("a valid message");
    let plain = v2::decode(message).expect_err("a type that nothing announced");
    assert_eq!(plain, DecodeError::new(12, Reason::UnknownHeaderType));
    assert_eq!(v2::refusal(plain), Refusal::InvalHtype);
    header
}

#[test]
fn transmit_request() {
    let message = hex(TRANSMIT_REQUEST);
    let header = decoded(&message);
    assert_eq!(header.prefix, prefix(7, 32, 3, Flags::NONE));
    assert_eq!(
        (header.header_bytes, header.header_type()),
        (message.len(), 0x5254_5201)
    );
    let Body::TransmitRequest(body) = header.body else {
        panic!("{header:?}")
    };
    let items: [MessageItemRepr<'_>; 2] = [
        MessageItem {
            displacement: 100,
            length_bytes: 4608,
            location: Location::Explicit(&[FIRST, SECOND]),
        },
        MessageItem {
            displacement: 4864,
            length_bytes: 65537,
            location: Location::Placed {
                offset_bytes: 16,
                numbers: &[0, 3],
            },
        },
    ];
    #[rustfmt::skip]
    let first_set: [ResponseItemRepr<'_>; 3] = [
        ResponseItem { minimum_bytes: 256, location: ResponseLocation::Explicit(&[FIRST]) },
        ResponseItem { minimum_bytes: 0, location: ResponseLocation::Choice(&[]) },
        ResponseItem {
            minimum_bytes: 512,
            location: ResponseLocation::BySize {
                explicit_from_bytes: 32768,
                segments: &[SECOND],
            },
        },
    ];
    let directions: [ResponseSetRepr<'_>; 2] = [
        ResponseSet {
            range: StreamRange { begin: 40, end: 80 },
            items: &first_set,
        },
        ResponseSet {
            range: StreamRange { begin: 80, end: 81 },
            items: &[ResponseItem {
                minimum_bytes: 1,
                location: ResponseLocation::Placed,
            }],
        },
    ];
    assert_eq!(
        (
            body.transmissions,
            body.response_transmissions_max,
            body.stream_bytes
        ),
        (3, 2, 40)
    );
    assert_eq!((body.items.len(), body.directions.len()), (2, 2));
    assert!(!body.items.is_empty() && !body.directions.is_empty());

    let mut views = body.items;
    let Some(MessageItem {
        displacement: 100,
        length_bytes: 4608,
        location: Location::Explicit(segments),
    }) = views.next()
    else {
        panic!("the first item")
    };
    assert_eq!(segments.collect::<Vec<_>>(), [FIRST, SECOND]);
    let Some(MessageItem {
        displacement: 4864,
        length_bytes: 65537,
        location: Location::Placed {
            offset_bytes: 16,
            numbers,
        },
    }) = views.next()
    else {
        panic!("the second item")
    };
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 3]);
    assert_eq!(views.next(), None);

    let mut sets = body.directions;
    let set = sets.next().expect("the first set");
    assert_eq!(set.range, StreamRange { begin: 40, end: 80 });
    let found: Vec<_> = set
        .items
        .map(|item| {
            let segments = item.location.segments().map(|all| all.collect::<Vec<_>>());
            (item.minimum_bytes, segments)
        })
        .collect();
    assert_eq!(
        found,
        [
            (256, Some(vec![FIRST])),
            (0, Some(vec![])),
            (512, Some(vec![SECOND]))
        ]
    );
    let set = sets.next().expect("the second set");
    assert_eq!(set.range, StreamRange { begin: 80, end: 81 });
    assert_eq!(set.items.len(), 1);
    assert_eq!(sets.next(), None);

    let repr = TransmitRequest {
        items: &items[..],
        directions: &directions[..],
        transmissions: 3,
        response_transmissions_max: 2,
        stream_bytes: 40,
    };
    for again in [
        encoded(|space| v2::encode_transmit_request(space, header.prefix, &repr)),
        encoded(|space| v2::encode_transmit_request(space, header.prefix, &body)),
    ] {
        assert_eq!(again, message);
    }
}

#[test]
fn transmit_response() {
    let message = hex(TRANSMIT_RESPONSE);
    let header = decoded(&message);
    assert_eq!(header.prefix, prefix(7, 32, 1, Flags::RESPONSE));
    let Body::TransmitResponse(body) = header.body else {
        panic!("{header:?}")
    };
    #[rustfmt::skip]
    let items: [MessageItemRepr<'_>; 4] = [
        MessageItem { displacement: 32, length_bytes: 4096, location: Location::Explicit(&[FIRST]) },
        MessageItem { displacement: 0, length_bytes: 0, location: Location::NoItem },
        MessageItem { displacement: 4160, length_bytes: 7, location: Location::TooShort },
        MessageItem {
            displacement: 4176,
            length_bytes: 1024,
            location: Location::Placed {
                offset_bytes: 0,
                numbers: &[1],
            },
        },
    ];
    assert_eq!((body.transmissions, body.stream_bytes), (1, 28));
    let excised: Vec<bool> = body.items.map(|item| item.is_excised()).collect();
    assert_eq!(excised, [true, false, false, true]);
    let found: Vec<_> = body
        .items
        .map(|item| (item.displacement, item.length_bytes))
        .collect();
    assert_eq!(found, [(32, 4096), (0, 0), (4160, 7), (4176, 1024)]);
    let repr = TransmitResponse {
        items: &items[..],
        transmissions: 1,
        stream_bytes: 28,
    };
    for again in [
        encoded(|space| v2::encode_transmit_response(space, header.prefix, &repr)),
        encoded(|space| v2::encode_transmit_response(space, header.prefix, &body)),
    ] {
        assert_eq!(again, message);
    }
}

#[test]
fn transmit_continue() {
    let mut message = hex(TRANSMIT_CONTINUE);
    let header = decoded(&message);
    let body = TransmitContinue {
        sequence: 1,
        stream_bytes: 2048,
    };
    assert_eq!(header.body, Body::TransmitContinue(body));
    assert_eq!(header.header_bytes, 32);
    let prefix = header.prefix;
    assert_eq!(
        encoded(|space| v2::encode_transmit_continue(space, prefix, body)),
        message
    );
    // The word without meaning may hold anything.
    message[24..28].fill(0xff);
    assert_eq!(decoded(&message).body, Body::TransmitContinue(body));
}

#[test]
fn report_error() {
    let message = hex(REPORT_ERROR);
    let header = decoded(&message);
    let id = |sequence| TransmissionId {
        xid: 7,
        direction: Direction::Call,
        sequence,
    };
    let report = ReportError {
        bad: id(2),
        lead: Some(id(0)),
        problem: Problem::SegmentNumber(OutOfRange {
            value: 9,
            min: 0,
            max: 5,
        }),
    };
    assert_eq!(header.body, Body::ReportError(report));
    assert_eq!(header.header_bytes, message.len());
    let credit = header.prefix.credit;
    assert_eq!(
        encoded(|space| v2::encode_report_error(space, credit, &report)),
        message
    );
}

#[test]
fn every_reported_error_has_its_arm() {
    let found = Mismatch {
        expected: 0x11,
        current: 0x22,
    };
    let range = OutOfRange {
        value: 0x33,
        min: 0x44,
        max: 0x55,
    };
    #[rustfmt::skip]
    let cases = [
        ("00000001 00000011 00000022", Problem::HeaderType(found)),
        ("00000002 00000011 00000022", Problem::OptionalType(found)),
        ("00000003", Problem::Continuation),
        ("00000004 00000011 00000022", Problem::Sequence(found)),
        ("00000005 00000011 00000022", Problem::Xid(found)),
        ("00000006 00000033 00000044 00000055", Problem::Offset(range)),
        ("00000007 00000033 00000044 00000055", Problem::SegmentNumber(range)),
        ("00000008 00000033 00000044 00000055", Problem::StreamLength(range)),
    ];
    // Of a reply, whose XID the sender of this message chose: F_RESPONSE is clear.
    let start = "00000031 00000002 00100001 52545204 00000000 00000031 00000001 00000004 00000000";
    for (text, problem) in cases {
        let message = hex(&[start, text].concat());
        let report = ReportError {
            bad: TransmissionId {
                xid: 0x31,
                direction: Direction::Reply,
                sequence: 4,
            },
            lead: None,
            problem,
        };
        let header = decoded(&message);
        assert_eq!(header.body, Body::ReportError(report));
        let credit = header.prefix.credit;
        assert_eq!(
            encoded(|space| v2::encode_report_error(space, credit, &report)),
            message
        );
        assert_eq!(
            format!("{:08x}", problem.code()),
            text[..8],
            "{problem} has the code"
        );
    }
}

#[test]
fn messages_that_are_wrong() {
    let start = |header_type: u32| format!("00000007 00000002 00200001 525452{header_type:02x} ");
    #[rustfmt::skip]
    let cases = [
        // Transmit Request
        (1, "00000000 00000000 00000000 00000000 00000000 00000000", 36 - 8, Reason::NoTransmission, "a group of none"),
        (1, "00000000 00000101 00000000 00000000 00000000 00000000", 20, Reason::TooManyItems, "257 items"),
        (1, "00000000 00000000 00000101 00000000 00000000 00000000", 24, Reason::TooManyItems, "257 sets"),
        (1, "00000000 00000001 00000008 00000004 00000003 00000000", 32, Reason::InvalidPlacementType, "Choice is no place"),
        (1, "00000000 00000001 00000008 00000004 00000004 00000000", 32, Reason::InvalidPlacementType, "BySize is no place"),
        (1, "00000000 00000001 00000008 00000004 00000005 00000000", 32, Reason::InvalidPlacementType, "TooShort in a request"),
        (1, "00000000 00000001 00000008 00000004 00000006 00000000", 32, Reason::InvalidPlacementType, "NoItem in a request"),
        (1, "00000000 00000001 00000008 00000004 00000000 00000000", 32, Reason::InvalidPlacementType, "type 0"),
        (1, "00000000 00000001 00000008 00000004 00000007 00000000", 32, Reason::InvalidPlacementType, "type 7"),
        (1, "00000000 00000001 00000008 00000004 00000001 00000401", 36, Reason::TooManySegments, "1025 segments"),
        (1, "00000000 00000001 00000008 00000004 00000002 00000000 00000401", 40, Reason::TooManySegmentNumbers, "1025 numbers"),
        (1, "00000000 00000001 00000008 00000004 00000002 00000000 00000002 00000000", 44, Reason::Truncated, "a number is missing"),
        (1, "00000000 00000000 00000001 00000008 00000004 00000101", 36, Reason::TooManyItems, "257 directions"),
        (1, "00000000 00000000 00000001 00000008 00000004 00000001 00000000 00000005", 44, Reason::InvalidPlacementType, "TooShort directs nothing"),
        (1, "00000000 00000000 00000001 00000008 00000004 00000001 00000000 00000006", 44, Reason::InvalidPlacementType, "NoItem directs nothing"),
        (1, "00000000 00000000 00000001 00000008 00000004 00000001 00000000 00000009", 44, Reason::InvalidPlacementType, "type 9"),
        // Transmit Response
        (2, "00000000 00000000 00000000 00000000", 24, Reason::NoTransmission, "a group of none"),
        (2, "00000000 00000001 00000008 00000004 00000003 00000000", 32, Reason::InvalidPlacementType, "Choice is no result"),
        (2, "00000000 00000001 00000008 00000004 00000004 00000000", 32, Reason::InvalidPlacementType, "BySize is no result"),
        (2, "00000000 00000001 00000008 00000004 00000005 00000001", 40, Reason::Truncated, "the length is missing"),
        // Report Error
        (4, "00000000 00000007 00000002 00000000 00000000 00000003", 24, Reason::InvalidMessageType, "neither call nor reply"),
        (4, "00000000 00000007 00000000 00000000 00000002 00000003", 32, Reason::InvalidBoolean, "a mark of 2"),
        (4, "00000000 00000007 00000000 00000000 00000000 00000000", 36, Reason::InvalidReportedError, "code 0"),
        (4, "00000000 00000007 00000000 00000000 00000000 00000009", 36, Reason::InvalidReportedError, "code 9"),
        (4, "00000000 00000007 00000000 00000000 00000000 00000003 00000000", 40, Reason::TrailingBytes, "void has no field"),
        (4, "00000000 00000007 00000000 00000000 00000000 00000004 00000000", 44, Reason::Truncated, "what came is missing"),
        // Sizes and flags
        (1, "00000000 00000000 00000000 00000001 00000000", 36, Reason::BelowLeastSize, "a short request"),
        (2, "00000000 00000000 00000001", 28, Reason::BelowLeastSize, "a short response"),
        (3, "00000000 00000001 00000000", 28, Reason::BelowLeastSize, "a short continuation"),
        (4, "00000000 00000007 00000000 00000000 00000000", 36, Reason::BelowLeastSize, "a short report"),
        (3, "00000004 00000001 00000000 00000000", 16, Reason::ReservedFlags, "a reserved flag"),
    ];
    for (header_type, text, at, reason, why) in cases {
        let message = hex(&[&start(header_type), text].concat());
        let error = v2::decode_with_rtr(&message, RtrSupport::ALL).expect_err(why);
        assert_eq!(error, DecodeError::new(at, reason), "{why}");
        let refusal = match reason {
            Reason::BelowLeastSize => Refusal::Discard,
            Reason::ReservedFlags => Refusal::InvalFlag,
            Reason::TooManySegments => Refusal::Segments,
            _ => Refusal::BadXdr,
        };
        assert_eq!(v2::refusal(error), refusal, "{why}");
    }
}

#[test]
fn a_message_that_is_cut_anywhere_is_refused() {
    for text in [
        TRANSMIT_REQUEST,
        TRANSMIT_RESPONSE,
        TRANSMIT_CONTINUE,
        REPORT_ERROR,
    ] {
        let message = hex(text);
        for end in 0..message.len() {
            v2::decode_with_rtr(&message[..end], RtrSupport::ALL).expect_err("it is cut");
        }
    }
}
