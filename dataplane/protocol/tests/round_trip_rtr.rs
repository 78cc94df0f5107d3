//! Property tests of the extension RTR: whatever is encoded decodes to itself, and whatever is cut is refused.

mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::rtr::{
    EncodeItems, EncodeResponseSets, Location, MessageItem, MessageItems, Mismatch, OutOfRange,
    Problem, ReportError, ResponseItem, ResponseLocation, ResponseSet, ResponseSets, RtrSupport,
    StreamRange, TransmissionId, TransmitContinue, TransmitRequest, TransmitResponse, write_items,
    write_response_sets,
};
use rpcrdma_protocol::v2::{self, Body, CreditWord, Direction, Flags, Prefix};
use rpcrdma_protocol::xdr::Writer;
use rpcrdma_protocol::{EncodeError, Reason};
use support::encoded;

type Item = MessageItem<Vec<Segment>, Vec<u32>>;
type Directions = ResponseItem<Vec<Segment>>;

/// Items that own what they name.
#[derive(Clone, Debug, PartialEq)]
struct Items(Vec<Item>);

impl Items {
    fn from_view(items: MessageItems<'_>) -> Self {
        Self(
            items
                .map(|item| MessageItem {
                    displacement: item.displacement,
                    length_bytes: item.length_bytes,
                    location: match item.location {
                        Location::Explicit(segments) => Location::Explicit(segments.collect()),
                        Location::Placed {
                            offset_bytes,
                            numbers,
                        } => Location::Placed {
                            offset_bytes,
                            numbers: numbers.collect(),
                        },
                        Location::TooShort => Location::TooShort,
                        Location::NoItem => Location::NoItem,
                    },
                })
                .collect(),
        )
    }
}

impl EncodeItems for Items {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_items(writer, self.0.iter().cloned())
    }
}

/// Directions that own what they name.
#[derive(Clone, Debug, PartialEq)]
struct Sets(Vec<ResponseSet<Vec<Directions>>>);

impl Sets {
    fn from_view(sets: ResponseSets<'_>) -> Self {
        let items = |set: v2::rtr::ResponseSetView<'_>| {
            set.items
                .map(|item| ResponseItem {
                    minimum_bytes: item.minimum_bytes,
                    location: match item.location {
                        ResponseLocation::Explicit(all) => {
                            ResponseLocation::Explicit(all.collect())
                        }
                        ResponseLocation::Choice(all) => ResponseLocation::Choice(all.collect()),
                        ResponseLocation::BySize {
                            explicit_from_bytes,
                            segments,
                        } => ResponseLocation::BySize {
                            explicit_from_bytes,
                            segments: segments.collect(),
                        },
                        ResponseLocation::Placed => ResponseLocation::Placed,
                    },
                })
                .collect()
        };
        Self(
            sets.map(|set| ResponseSet {
                range: set.range,
                items: items(set),
            })
            .collect(),
        )
    }
}

impl EncodeResponseSets for Sets {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_response_sets(writer, self.0.iter().cloned())
    }
}

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let segment = any::<(u32, u32, u64)>().prop_map(|(handle, length_bytes, offset)| Segment {
        handle,
        length_bytes,
        offset,
    });
    vec(segment, 0..5)
}

fn items(is_response: bool) -> impl Strategy<Value = Items> {
    let placed = (any::<u32>(), vec(any::<u32>(), 0..8)).prop_map(|(offset_bytes, numbers)| {
        Location::Placed {
            offset_bytes,
            numbers,
        }
    });
    let explicit = segments().prop_map(Location::Explicit);
    let location = if is_response {
        prop_oneof![
            explicit,
            placed,
            Just(Location::TooShort),
            Just(Location::NoItem)
        ]
        .boxed()
    } else {
        prop_oneof![explicit, placed].boxed()
    };
    let item = (any::<u32>(), any::<u32>(), location).prop_map(
        |(displacement, length_bytes, location)| MessageItem {
            displacement,
            length_bytes,
            location,
        },
    );
    vec(item, 0..6).prop_map(Items)
}

fn sets() -> impl Strategy<Value = Sets> {
    let location = prop_oneof![
        segments().prop_map(ResponseLocation::Explicit),
        segments().prop_map(ResponseLocation::Choice),
        (any::<u32>(), segments()).prop_map(|(explicit_from_bytes, segments)| {
            ResponseLocation::BySize {
                explicit_from_bytes,
                segments,
            }
        }),
        Just(ResponseLocation::Placed),
    ];
    let item = (any::<u32>(), location).prop_map(|(minimum_bytes, location)| ResponseItem {
        minimum_bytes,
        location,
    });
    let set =
        (any::<u32>(), any::<u32>(), vec(item, 0..4)).prop_map(|(begin, end, items)| ResponseSet {
            range: StreamRange { begin, end },
            items,
        });
    vec(set, 0..4).prop_map(Sets)
}

fn prefix() -> impl Strategy<Value = Prefix> {
    any::<(u32, u16, u16, bool)>().prop_map(|(xid, granted, maximum, is_response)| Prefix {
        xid,
        credit: CreditWord { granted, maximum },
        flags: if is_response {
            Flags::RESPONSE
        } else {
            Flags::NONE
        },
    })
}

fn id() -> impl Strategy<Value = TransmissionId> {
    any::<(u32, bool, u32)>().prop_map(|(xid, is_call, sequence)| TransmissionId {
        xid,
        direction: if is_call {
            Direction::Call
        } else {
            Direction::Reply
        },
        sequence,
    })
}

fn problem() -> impl Strategy<Value = Problem> {
    any::<(u32, u32, u32)>().prop_flat_map(|(a, b, c)| {
        let (expected, current) = (a, b);
        let found = Mismatch { expected, current };
        let range = OutOfRange {
            value: a,
            min: b,
            max: c,
        };
        prop_oneof![
            Just(Problem::HeaderType(found)),
            Just(Problem::OptionalType(found)),
            Just(Problem::Continuation),
            Just(Problem::Sequence(found)),
            Just(Problem::Xid(found)),
            Just(Problem::Offset(range)),
            Just(Problem::SegmentNumber(range)),
            Just(Problem::StreamLength(range)),
        ]
    })
}

fn all(message: &[u8]) -> v2::Header<'_> {
    v2::decode_with_rtr(message, RtrSupport::ALL).expect("our own")
}

/// A header that is cut is refused, wherever it is cut.
fn assert_cuts(message: &[u8]) {
    for end in (0..message.len()).step_by(message.len().div_ceil(40)) {
        let error = v2::decode_with_rtr(&message[..end], RtrSupport::ALL).expect_err("cut");
        assert!(matches!(
            error.reason,
            Reason::BelowLeastSize | Reason::Truncated
        ));
    }
}

proptest! {
    #[test]
    fn requests(
        prefix in prefix(),
        items in items(false),
        directions in sets(),
        (transmissions, response_transmissions_max, stream_bytes) in (1..u32::MAX, any::<u32>(), any::<u32>()),
    ) {
        let body = TransmitRequest {
            items,
            directions,
            transmissions,
            response_transmissions_max,
            stream_bytes,
        };
        let mut message = encoded(|space| v2::encode_transmit_request(space, prefix, &body));
        assert_cuts(&message);
        let header_bytes = message.len();
        message.extend_from_slice(b"the payload stream");
        let header = all(&message);
        prop_assert_eq!((header.prefix, header.header_bytes), (prefix, header_bytes));
        let Body::TransmitRequest(view) = header.body else { panic!("{header:?}") };
        let found = TransmitRequest {
            items: Items::from_view(view.items),
            directions: Sets::from_view(view.directions),
            transmissions: view.transmissions,
            response_transmissions_max: view.response_transmissions_max,
            stream_bytes: view.stream_bytes,
        };
        prop_assert_eq!(found, body);
        let again = encoded(|space| v2::encode_transmit_request(space, prefix, &view));
        prop_assert_eq!(&again[..], &message[..header_bytes]);
    }

    #[test]
    fn responses(
        prefix in prefix(),
        items in items(true),
        (transmissions, stream_bytes) in (1..u32::MAX, any::<u32>()),
    ) {
        let body = TransmitResponse { items, transmissions, stream_bytes };
        let message = encoded(|space| v2::encode_transmit_response(space, prefix, &body));
        assert_cuts(&message);
        let header = all(&message);
        prop_assert_eq!((header.prefix, header.header_bytes), (prefix, message.len()));
        let Body::TransmitResponse(view) = header.body else { panic!("{header:?}") };
        let found = TransmitResponse {
            items: Items::from_view(view.items),
            transmissions: view.transmissions,
            stream_bytes: view.stream_bytes,
        };
        prop_assert_eq!(found, body);
    }

    #[test]
    fn continuations(prefix in prefix(), (sequence, stream_bytes) in any::<(u32, u32)>()) {
        let body = TransmitContinue { sequence, stream_bytes };
        let message = encoded(|space| v2::encode_transmit_continue(space, prefix, body));
        assert_cuts(&message);
        prop_assert_eq!(all(&message).body, Body::TransmitContinue(body));
    }

    #[test]
    fn reports(
        (granted, maximum) in any::<(u16, u16)>(),
        bad in id(),
        lead in option::of(id()),
        problem in problem(),
    ) {
        let report = ReportError { bad, lead, problem };
        let credit = CreditWord { granted, maximum };
        let message = encoded(|space| v2::encode_report_error(space, credit, &report));
        assert_cuts(&message);
        let header = all(&message);
        prop_assert_eq!(header.body, Body::ReportError(report));
        prop_assert_eq!((header.prefix.xid, header.prefix.credit), (bad.xid, credit));
        prop_assert_eq!(header.prefix.flags.is_response(), bad.direction == Direction::Call);
    }

    #[test]
    fn no_octets_behind_a_valid_start_panic(
        number in 1..=4_u8,
        octets in vec(any::<u8>(), 0..200),
    ) {
        let mut message = vec![0, 0, 0, 7, 0, 0, 0, 2, 0, 1, 0, 1, 0x52, 0x54, 0x52, number, 0, 0, 0, 0];
        message.extend(octets);
        let _ = v2::decode_with_rtr(&message, RtrSupport::ALL);
    }
}

#[test]
fn an_encoder_refuses_what_a_decoder_would() {
    let none: MessageItem<Vec<Segment>, Vec<u32>> = MessageItem {
        displacement: 0,
        length_bytes: 0,
        location: Location::NoItem,
    };
    let with = |location| MessageItem {
        location,
        ..none.clone()
    };
    let mut space = vec![0; 64 * 1024];
    let mut try_items = |items: Vec<Item>| Items(items).encode(&mut Writer::new(&mut space));
    assert_eq!(try_items(vec![none.clone(); 256]), Ok(()));
    let too_long = Err(EncodeError::TooLong);
    assert_eq!(try_items(vec![none.clone(); 257]), too_long);
    let numbers = |count| Location::Placed {
        offset_bytes: 0,
        numbers: vec![0; count],
    };
    assert_eq!(try_items(vec![with(numbers(1024))]), Ok(()));
    assert_eq!(try_items(vec![with(numbers(1025))]), too_long);
    let segments = |count| Location::Explicit(vec![Segment::default(); count]);
    assert_eq!(try_items(vec![with(segments(1024))]), Ok(()));
    assert_eq!(try_items(vec![with(segments(1025))]), too_long);

    let direction = ResponseItem {
        minimum_bytes: 0,
        location: ResponseLocation::Placed,
    };
    let set = |count| ResponseSet {
        range: StreamRange::default(),
        items: vec![direction.clone(); count],
    };
    let mut try_sets = |sets| Sets(sets).encode(&mut Writer::new(&mut space));
    assert_eq!(try_sets(vec![set(256)]), Ok(()));
    assert_eq!(try_sets(vec![set(257)]), too_long);
    assert_eq!(try_sets(vec![set(0); 256]), Ok(()));
    assert_eq!(try_sets(vec![set(0); 257]), too_long);
}
