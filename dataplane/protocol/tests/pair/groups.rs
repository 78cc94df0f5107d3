//! Transmission groups of the extension RTR, both ways (RTR sections 4 and 9.2 to 9.4).

use rpcrdma_protocol::v2::connection::{
    Config, Connection, Direction, DiscardReason, Event, Role, SendRefused, Transmission,
    TransmissionPart,
};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, Location, MessageItem, MessageItemRepr, PlacedPiece, Problem,
    ReceiveBufferStructure, ReportError, RtrSupport, SegmentGroup, TransmissionId, TransmitRequest,
    TransmitResponse, placed_pieces,
};
use rpcrdma_protocol::v2::{Properties, TransportError};

use super::wire::{self, RESPONSE, bytes_of, credit, rpc};

/// A receive buffer of 256 octets that are not targetable, and three targetable segments of 512.
pub(crate) fn structure() -> ReceiveBufferStructure {
    let segment = |length_bytes, is_targetable| BufferSegment {
        length_bytes,
        align_bytes: 0,
        is_targetable,
    };
    let group = |count, segment| SegmentGroup { count, segment };
    ReceiveBufferStructure::new(&[group(1, segment(256, false)), group(3, segment(512, true))])
        .expect("it is sound")
}

/// An endpoint that does all of the extension, with calls of at most four transmissions.
pub(crate) fn properties() -> Properties {
    Properties {
        send_bytes_max: 4096,
        receive_buffer_bytes: structure().length_bytes(),
        rtr_support: RtrSupport::ALL,
        receive_buffer_structure: Some(structure()),
        request_transmissions_max: 4,
        response_transmissions_max: 3,
        ..Properties::default()
    }
}

/// A server with these properties, whose client has the same ones and has left `credits` credits.
pub(crate) fn server_with(properties: Properties, credits: u32) -> Connection {
    let mut server = Connection::new(&Config {
        role: Role::Server,
        receive_reserve: 100,
        properties,
        message_bytes_max: 20_000,
    });
    let call = bytes_of(&[1, 0, 0]);
    let first = wire::message_with_credit(1, 0, credit(credits, 100), &call);
    assert!(matches!(
        server.handle_message(&first),
        Event::Call { xid: 1, .. }
    ));
    server.handle_receives_posted(1);
    server.handle_peer_properties(&properties);
    // All Receives but the spare are granted.
    server
        .encode_properties(&mut [0; 1024], 0)
        .expect("a credit is there");
    server
}

pub(crate) fn server() -> Connection {
    server_with(properties(), 50)
}

pub(crate) const REQUEST: u32 = 0x5254_5201;
pub(crate) const RESPONSE_TYPE: u32 = 0x5254_5202;
pub(crate) const CONTINUE: u32 = 0x5254_5203;

/// A Transmit Request or Response by hand: items as words, then directions and reservation of a request.
pub(crate) fn first(
    xid: u32,
    flags: u32,
    items: &[u32],
    transmissions: u32,
    stream: &[u32],
) -> Vec<u8> {
    first_with(xid, flags, items, &[0], transmissions, stream)
}

/// As [`first`], with directions.
pub(crate) fn first_with(
    xid: u32,
    flags: u32,
    items: &[u32],
    directions: &[u32],
    transmissions: u32,
    stream: &[u32],
) -> Vec<u8> {
    let is_response = flags & RESPONSE != 0;
    let header_type = if is_response { RESPONSE_TYPE } else { REQUEST };
    let mut words = vec![xid, 2, credit(0, 100), header_type, flags];
    words.extend(items);
    if !is_response {
        words.extend(directions);
    }
    words.push(transmissions);
    if !is_response {
        words.push(2);
    }
    words.push(u32::try_from(4 * stream.len()).expect("short"));
    words.extend(stream);
    bytes_of(&words)
}

/// The start of an RPC message with three more words.
pub(crate) fn start(xid: u32, flags: u32) -> [u32; 5] {
    [xid, flags & RESPONSE, 11, 12, 13]
}

/// A Transmit Continue by hand.
pub(crate) fn next(xid: u32, flags: u32, sequence: u32, stream: &[u32]) -> Vec<u8> {
    let stream_bytes = u32::try_from(4 * stream.len()).expect("short");
    let mut words = vec![xid, 2, credit(0, 100), CONTINUE, flags];
    words.extend([sequence, 0, stream_bytes]);
    words.extend(stream);
    bytes_of(&words)
}

pub(crate) fn id(xid: u32, flags: u32, sequence: u32) -> TransmissionId {
    TransmissionId {
        xid,
        direction: if flags & RESPONSE == 0 {
            Direction::Call
        } else {
            Direction::Reply
        },
        sequence,
    }
}

/// Pads a message with zeroes to `bytes` octets.
pub(crate) fn padded(mut message: Vec<u8>, bytes: usize) -> Vec<u8> {
    assert!(message.len() <= bytes, "it is longer");
    message.resize(bytes, 0);
    message
}

pub(crate) fn transmission<'m>(event: Event<'m>) -> Transmission<'m> {
    match event {
        Event::Transmission(transmission) => transmission,
        other => panic!("no transmission: {other:?}"),
    }
}

#[test]
fn a_group_comes_in_order_with_the_offsets_of_its_stream() {
    for flags in [0, RESPONSE] {
        let mut server = server();
        let message = first(9, flags, &[0], 3, &start(9, flags));
        let found = transmission(server.handle_message(&message));
        assert_eq!((found.id, found.transmissions), (id(9, flags, 0), 3));
        assert_eq!((found.stream_offset, found.payload.len()), (0, 20));
        assert!(!found.is_last() && server.is_group_open());
        match found.part {
            TransmissionPart::Request {
                items,
                directions,
                response_transmissions_max,
            } => {
                assert_eq!(flags, 0);
                assert!(items.is_empty() && directions.is_empty());
                assert_eq!(response_transmissions_max, 2);
            }
            TransmissionPart::Response { items } => {
                assert_eq!(flags, RESPONSE);
                assert!(items.is_empty());
            }
            TransmissionPart::Continue => panic!("it is the first"),
        }
        // A continuation may have no stream.
        let message = next(9, flags, 1, &[]);
        let found = transmission(server.handle_message(&message));
        assert_eq!((found.id, found.stream_offset), (id(9, flags, 1), 20));
        assert!(found.payload.is_empty() && !found.is_last());
        // Padding and items behind the stream are not the stream.
        let message = padded(next(9, flags, 2, &[21, 22]), 1000);
        let found = transmission(server.handle_message(&message));
        assert_eq!((found.id, found.stream_offset), (id(9, flags, 2), 20));
        assert_eq!(found.payload, &bytes_of(&[21, 22])[..]);
        assert_eq!(found.arrival.message_bytes, 1000);
        assert!(found.is_last() && !server.is_group_open());
        // The next one begins anew.
        let message = first(9, flags, &[0], 1, &start(9, flags));
        let found = transmission(server.handle_message(&message));
        assert!(found.is_last() && !server.is_group_open());
    }
}

/// RTR section 5.4 and 9.2: a reply of one transmission, and no reservation at all, is 1.
#[test]
fn a_reservation_of_none_is_one() {
    let mut server = server();
    let mut words = vec![9, 2, credit(0, 100), REQUEST, 0, 0, 0, 1, 0, 20];
    words.extend(start(9, 0));
    let message = bytes_of(&words);
    let found = transmission(server.handle_message(&message));
    let TransmissionPart::Request {
        response_transmissions_max,
        ..
    } = found.part
    else {
        panic!("{found:?}")
    };
    assert_eq!(response_transmissions_max, 1);
}

/// Asynchronous grants, RDMA2_ERROR and Report Error, in both directions; nothing else.
#[test]
fn only_grants_and_errors_may_stand_inside_a_group() {
    let mut server = server();
    transmission(server.handle_message(&first(9, 0, &[0], 2, &start(9, 0))));
    assert_eq!(server.handle_message(&wire::grant(1, 100)), Event::Credits);
    let error = wire::error(77, TransportError::System);
    assert!(matches!(
        server.handle_message(&error),
        Event::TransportError { xid: 77, .. }
    ));
    let report = bytes_of(&[66, 2, credit(0, 100), 0x5254_5204, 1, 66, 0, 1, 0, 3]);
    assert_eq!(
        server.handle_message(&report),
        Event::ErrorReported(ReportError {
            bad: id(66, 0, 1),
            lead: None,
            problem: Problem::Continuation,
        })
    );
    assert!(server.is_group_open());
    assert!(transmission(server.handle_message(&next(9, 0, 1, &[5]))).is_last());
}

fn request(transmissions: u32) -> TransmitRequest<&'static [MessageItemRepr<'static>], NoSets> {
    TransmitRequest {
        items: &[],
        directions: &[],
        transmissions,
        response_transmissions_max: 1,
        stream_bytes: 12,
    }
}

type NoSets = &'static [rpcrdma_protocol::v2::rtr::ResponseSetRepr<'static>];

fn response(transmissions: u32) -> TransmitResponse<&'static [MessageItemRepr<'static>]> {
    TransmitResponse {
        items: &[],
        transmissions,
        stream_bytes: 12,
    }
}

/// A header of the same form needs not be put together again, and is refused where that would be.
#[test]
fn a_header_that_is_written_again_is_the_same() {
    for direction in [Direction::Call, Direction::Reply] {
        let mut anew = server_with(properties(), 4);
        let (mut before, mut space) = ([0; 512], [0xee; 512]);
        let encode = |connection: &mut Connection, space: &mut [u8], xid, bytes| match direction {
            Direction::Call => connection.encode_transmit_request(space, xid, &request(1), bytes),
            Direction::Reply => {
                connection.encode_transmit_response(space, xid, &response(1), bytes)
            }
        };
        let header_bytes = encode(&mut anew, &mut before, 7, 12).expect("a credit");
        let body = &before[20..header_bytes];
        for behind_bytes in [12, 100_000] {
            let mut again = anew.clone();
            let mut expected = [0xee; 512];
            let result = encode(&mut anew, &mut expected, 8, behind_bytes);
            let told =
                again.encode_transmission_again(&mut space, 8, direction, body, behind_bytes);
            assert_eq!(told, result);
            if told.is_ok() {
                assert_eq!(space, expected);
            }
            assert_eq!(format!("{again:?}"), format!("{anew:?}"));
            let short = &mut space[..header_bytes - 1];
            let told = again.encode_transmission_again(short, 9, direction, body, 12);
            assert_eq!(told, Err(SendRefused::NoSpace));
        }
        let mut without = server_with(Properties::default(), 4);
        let told = without.encode_transmission_again(&mut space, 8, direction, body, 12);
        assert_eq!(told, Err(SendRefused::NotAnnounced));
    }
}

/// All or nothing: once begun, a group has all its credits.
#[test]
fn a_group_begins_with_a_credit_for_each_transmission_and_keeps_them() {
    // The implicit credit went with the properties.
    let mut server = server_with(properties(), 4);
    let mut space = [0; 512];
    assert_eq!(server.credits_available(), 4);
    server
        .encode_message(&mut space, 1, Direction::Reply, false, 12)
        .expect("a credit");
    assert_eq!(
        server.encode_transmit_request(&mut space, 7, &request(4), 12),
        Err(SendRefused::NoCredit),
        "three are left"
    );
    assert_eq!(
        server.encode_transmit_request(&mut space, 7, &request(3), 12),
        Ok(40)
    );
    assert_eq!(server.group_remaining(), 2);
    assert!(server.sequence_open());
    // Errors wait, for all that is left belongs to the group.
    let refusal = rpcrdma_protocol::v2::connection::Refusal::new(5, TransportError::System);
    assert_eq!(
        server.encode_error(&mut space, &refusal),
        Err(SendRefused::NoCredit)
    );
    let report = ReportError {
        bad: id(3, 0, 1),
        lead: None,
        problem: Problem::Continuation,
    };
    assert_eq!(
        server.encode_report_error(&mut space, &report),
        Err(SendRefused::NoCredit)
    );
    // With one more they need not.
    server.handle_message(&wire::grant(2, 100));
    server.handle_receives_posted(1);
    assert_eq!(server.encode_error(&mut space, &refusal), Ok(24));
    assert_eq!(server.encode_report_error(&mut space, &report), Ok(40));
    assert_eq!(
        server.encode_report_error(&mut space, &report),
        Err(SendRefused::NoCredit)
    );
    // Nothing else comes between.
    let reply = Direction::Reply;
    for result in [
        server.encode_message(&mut space, 8, reply, false, 12),
        server.encode_message(&mut space, 7, Direction::Call, true, 12),
        server.encode_properties(&mut space, 1),
        server.encode_transmit_request(&mut space, 8, &request(1), 12),
        server.encode_transmit_response(&mut space, 8, &response(1), 12),
    ] {
        assert_eq!(result, Err(SendRefused::SequenceOpen));
    }
    assert_eq!(server.encode_transmit_continue(&mut space, 0, 0), Ok(32));
    assert_eq!(&space[..4], &7_u32.to_be_bytes(), "the XID of the group");
    assert_eq!(&space[20..24], &1_u32.to_be_bytes(), "number 1");
    assert_eq!(server.encode_transmit_continue(&mut space, 12, 12), Ok(32));
    assert_eq!(&space[20..24], &2_u32.to_be_bytes(), "number 2");
    assert_eq!(server.group_remaining(), 0);
    assert!(!server.sequence_open());
    assert_eq!(
        server.encode_transmit_continue(&mut space, 0, 0),
        Err(SendRefused::NoGroup)
    );
    assert_eq!(server.credits_available(), 0);
}

/// The spare Receive stays spare: a group waits while our own is in use, and goes on when it is posted again.
#[test]
fn a_group_waits_while_the_spare_receive_is_in_use() {
    let mut server = server();
    let mut space = [0; 512];
    server
        .encode_transmit_request(&mut space, 7, &request(2), 12)
        .expect("there are credits");
    server.handle_message(&wire::grant(1, 100));
    assert_eq!(
        server.encode_transmit_continue(&mut space, 12, 12),
        Err(SendRefused::NoCredit)
    );
    server.handle_receives_posted(1);
    assert_eq!(server.encode_transmit_continue(&mut space, 12, 12), Ok(32));
}

#[test]
fn unannounced_rtr_messages_are_refused_on_send() {
    let with = |support| Properties {
        rtr_support: support,
        ..properties()
    };
    let mut space = [0; 512];
    let refused = Err(SendRefused::NotAnnounced);
    // Own support, the peer's, and which of request, response, continued request, continued response may be sent.
    let (all, none) = (RtrSupport::ALL, RtrSupport::NONE);
    let (req, resp) = (RtrSupport::REQUEST, RtrSupport::RESPONSE);
    #[rustfmt::skip]
    let cases = [
        (all,  all,  [true,  true,  true,  true]),
        (all,  none, [false, false, false, false]),
        (none, all,  [false, false, false, false]),
        (all,  req,  [true,  true,  false, false]),
        (req,  all,  [true,  true,  false, false]),
        (all,  resp, [false, true,  false, false]),
        (all,  resp.with(RtrSupport::CONTINUE), [false, true, false, true]),
    ];
    for (own, peers, may) in cases {
        let fresh = || {
            let mut server = server_with(with(own), 50);
            server.handle_peer_properties(&with(peers));
            server
        };
        let found = [
            fresh().encode_transmit_request(&mut space, 7, &request(1), 12),
            fresh().encode_transmit_response(&mut space, 7, &response(1), 12),
            fresh().encode_transmit_request(&mut space, 7, &request(2), 12),
            fresh().encode_transmit_response(&mut space, 7, &response(2), 12),
        ];
        for (result, may) in found.into_iter().zip(may) {
            assert_eq!(result.is_ok(), may, "{own:?} to {peers:?}: {result:?}");
            assert!(may || result == refused);
        }
    }
}

#[test]
fn a_group_is_no_longer_than_its_receiver_and_its_sender_said() {
    let mut space = [0; 512];
    let too_many = Err(SendRefused::TooManyTransmissions);
    for (transmissions, as_request, as_response) in [
        (0, false, false),
        (3, true, true),
        (4, true, false),
        (5, false, false),
    ] {
        let found = server().encode_transmit_request(&mut space, 7, &request(transmissions), 12);
        assert_eq!(found, if as_request { Ok(40) } else { too_many });
        let found = server().encode_transmit_response(&mut space, 7, &response(transmissions), 12);
        assert_eq!(found, if as_response { Ok(32) } else { too_many });
    }
}

#[test]
fn a_transmission_is_no_longer_than_the_threshold() {
    let mut server = server();
    let mut space = [0; 512];
    let threshold = server.send_threshold_bytes() as usize;
    assert_eq!(threshold, 1792, "the receive buffers of the peer");
    let before = server.credits();
    for result in [
        server.encode_transmit_request(&mut space, 7, &request(2), threshold - 39),
        server.encode_transmit_response(&mut space, 7, &response(2), threshold - 31),
    ] {
        assert_eq!(result, Err(SendRefused::TooLong));
    }
    assert_eq!(server.credits(), before, "nothing has changed");
    assert!(!server.sequence_open());
    server
        .encode_transmit_request(&mut space, 7, &request(2), threshold - 40)
        .expect("it fits");
    assert_eq!(
        server.encode_transmit_continue(&mut space, 12, threshold - 31),
        Err(SendRefused::TooLong)
    );
    assert_eq!(
        server.encode_transmit_continue(&mut space, 12, threshold - 32),
        Ok(32)
    );
}

#[test]
fn a_drained_connection_begins_no_call_and_ends_its_groups() {
    let mut server = server();
    let mut space = [0; 512];
    server
        .encode_transmit_request(&mut space, 7, &request(2), 12)
        .expect("it does not drain yet");
    server.handle_drain();
    assert_eq!(server.encode_transmit_continue(&mut space, 0, 0), Ok(32));
    assert_eq!(
        server.encode_transmit_request(&mut space, 8, &request(1), 12),
        Err(SendRefused::Draining)
    );
    assert_eq!(
        server.encode_transmit_response(&mut space, 9, &response(1), 12),
        Ok(32)
    );
}

/// Of an end that announced nothing, the header types are unknown, and the rest of a group makes no difference.
#[test]
fn a_plain_endpoint_does_not_know_the_header_types() {
    let mut server = server_with(Properties::default(), 50);
    for message in [first(9, 0, &[0], 2, &start(9, 0)), next(9, 0, 1, &[5])] {
        let Event::Refused(refusal) = server.handle_message(&message) else {
            panic!("it is unknown")
        };
        assert_eq!(refusal.error, TransportError::InvalHtype);
        assert!(!refusal.sequence_given_up);
    }
    assert!(matches!(
        server.handle_message(&rpc(7, 0)),
        Event::Call { xid: 7, .. }
    ));
}

/// An item that begins in the first transmission and ends in the second, and one behind it.
#[test]
fn items_are_found_where_they_were_placed() {
    let mut server = server();
    // Numbers 0, 1, 2 are in the first transmission, 3, 4, 5 in the second.
    #[rustfmt::skip]
    let items = [
        2,
        20, 600, 2, 0, 2, 2, 3,         // at 20: 512 octets in segment 2, 88 in segment 3
        620, 30, 2, 100, 1, 3,          // at 620: 30 octets in segment 3, from octet 100 on
    ];
    let message = padded(first(9, 0, &items, 2, &start(9, 0)), 1792);
    let found = transmission(server.handle_message(&message));
    let TransmissionPart::Request { items, .. } = found.part else {
        panic!("{found:?}")
    };
    let pieces: Vec<Vec<PlacedPiece>> = items
        .map(|item| {
            let Location::Placed {
                offset_bytes,
                numbers,
            } = item.location
            else {
                panic!("it is placed")
            };
            placed_pieces(&structure(), offset_bytes, numbers, item.length_bytes).collect()
        })
        .collect();
    let piece = |transmission, offset_bytes, length_bytes| PlacedPiece {
        transmission,
        offset_bytes,
        length_bytes,
    };
    assert_eq!(
        pieces,
        [
            vec![piece(0, 1280, 512), piece(1, 256, 88)],
            vec![piece(1, 356, 30)]
        ]
    );
    assert_eq!(server.receive_structure(), structure());
    // The second one brings exactly what is needed.
    let message = padded(next(9, 0, 1, &[]), 386);
    assert!(transmission(server.handle_message(&message)).is_last());
}

/// The caller knows what its call allowed.
#[test]
fn a_reply_of_too_many_transmissions_is_given_up_by_the_caller() {
    let mut server = server();
    transmission(server.handle_message(&first(9, RESPONSE, &[0], 3, &start(9, RESPONSE))));
    let report = server.handle_group_refused(Problem::Continuation);
    assert_eq!(
        report,
        Some(ReportError {
            bad: id(9, RESPONSE, 0),
            lead: None,
            problem: Problem::Continuation,
        })
    );
    for sequence in 1..3 {
        assert_eq!(
            server.handle_message(&next(9, RESPONSE, sequence, &[5])),
            Event::Discarded(DiscardReason::SequenceRest)
        );
    }
    assert_eq!(server.handle_group_refused(Problem::Continuation), None);
    assert!(matches!(
        server.handle_message(&rpc(7, 0)),
        Event::Call { xid: 7, .. }
    ));
}

/// An item of every kind in a reply.
#[test]
fn results_that_were_not_placed_are_not_looked_at() {
    let mut server = server();
    #[rustfmt::skip]
    let items = [
        4,
        0, 0, 6,                                // no item
        u32::MAX, u32::MAX, 5,                  // too short, wherever that is
        20, 7, 1, 1, 0xa1, 4096, 0, 0,          // written
        28, 100, 2, 0, 1, 0,                    // placed
    ];
    let message = first(9, RESPONSE, &items, 1, &start(9, RESPONSE));
    let message = padded(message, 256 + 100);
    let found = transmission(server.handle_message(&message));
    let TransmissionPart::Response { items } = found.part else {
        panic!("{found:?}")
    };
    let excised: Vec<bool> = items.map(|item| item.is_excised()).collect();
    assert_eq!(excised, [false, false, true, true]);
    let none: MessageItemRepr<'_> = MessageItem {
        displacement: 0,
        length_bytes: 0,
        location: Location::NoItem,
    };
    assert!(!none.is_excised());
}
