//! Transmission groups that are wrong, and the Report Error that each of them gets (RTR section 9.5).

use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, DiscardReason, Event, TransmissionRefusal,
};
use rpcrdma_protocol::v2::rtr::{Mismatch, OutOfRange, Problem, ReportError, TransmissionId};
use rpcrdma_protocol::v2::{Properties, TransportError};

use super::groups::{
    CONTINUE, REQUEST, first, first_with, id, next, padded, properties, server, server_with, start,
    transmission,
};
use super::wire::{self, MORE, RESPONSE, bytes_of, rpc};

fn reported(event: Event<'_>) -> (ReportError, bool) {
    match event {
        Event::TransmissionRefused(TransmissionRefusal {
            report,
            group_given_up,
        }) => (report, group_given_up),
        other => panic!("no Report Error: {other:?}"),
    }
}

fn report(bad: TransmissionId, lead: Option<TransmissionId>, problem: Problem) -> ReportError {
    ReportError { bad, lead, problem }
}

fn mismatch(expected: u32, current: u32) -> Mismatch {
    Mismatch { expected, current }
}

fn range(value: u32, min: u32, max: u32) -> OutOfRange {
    OutOfRange { value, min, max }
}

/// The rest of a sequence is passed over in silence.
fn assert_discarded(connection: &mut Connection, message: &[u8]) {
    let event = connection.handle_message(message);
    assert_eq!(event, Event::Discarded(DiscardReason::SequenceRest));
}

/// A call is a call again: nothing of the group is left.
fn assert_is_idle(mut connection: Connection) {
    assert!(!connection.is_group_open());
    assert!(matches!(
        connection.handle_message(&rpc(7, 0)),
        Event::Call { xid: 7, .. }
    ));
    // And no continuation is discarded in silence.
    let stray = next(9, 0, 1, &[5]);
    let (found, given_up) = reported(connection.handle_message(&stray));
    assert_eq!(found, report(id(9, 0, 1), None, Problem::Continuation));
    assert!(!given_up);
}

#[test]
fn a_continuation_that_nothing_made_expect() {
    for flags in [0, RESPONSE] {
        let mut server = server();
        let (found, given_up) = reported(server.handle_message(&next(9, flags, 1, &[5])));
        assert_eq!(found, report(id(9, flags, 1), None, Problem::Continuation));
        assert!(!given_up);
        // Also behind the end of a group.
        transmission(server.handle_message(&first(9, flags, &[0], 2, &start(9, flags))));
        assert!(transmission(server.handle_message(&next(9, flags, 1, &[5]))).is_last());
        let (found, _) = reported(server.handle_message(&next(9, flags, 2, &[5])));
        assert_eq!(found, report(id(9, flags, 2), None, Problem::Continuation));
        assert_is_idle(server);
    }
}

#[test]
fn a_group_of_more_transmissions_than_we_receive() {
    let mut server = server();
    let (found, given_up) = reported(server.handle_message(&first(9, 0, &[0], 5, &start(9, 0))));
    assert_eq!(found, report(id(9, 0, 0), None, Problem::Continuation));
    assert!(!given_up);
    for sequence in 1..5 {
        assert_discarded(&mut server, &next(9, 0, sequence, &[5]));
    }
    assert_is_idle(server);
    // Of a reply, what its call allowed is the caller's; beyond the greatest number it never is.
    let mut server = server_with(properties(), 50);
    let long = first(9, RESPONSE, &[0], 64, &start(9, RESPONSE));
    transmission(server.handle_message(&long));
    let mut server = server_with(properties(), 50);
    let longer = first(9, RESPONSE, &[0], 65, &start(9, RESPONSE));
    let (found, _) = reported(server.handle_message(&longer));
    assert_eq!(
        found,
        report(id(9, RESPONSE, 0), None, Problem::Continuation)
    );
}

#[test]
fn another_xid_or_direction() {
    for (xid, flags) in [(8, 0), (9, RESPONSE)] {
        let mut server = server();
        transmission(server.handle_message(&first(9, 0, &[0], 3, &start(9, 0))));
        let (found, given_up) = reported(server.handle_message(&next(xid, flags, 1, &[5])));
        let problem = Problem::Xid(mismatch(9, xid));
        assert_eq!(found, report(id(xid, flags, 1), Some(id(9, 0, 0)), problem));
        assert!(given_up);
        // What is left of the group, to its end.
        for sequence in [1, 2] {
            assert_discarded(&mut server, &next(9, 0, sequence, &[5]));
        }
        assert_is_idle(server);
    }
}

#[test]
fn another_sequence_number() {
    for wrong in [0, 1, 3, u32::MAX] {
        let mut server = server();
        transmission(server.handle_message(&first(9, 0, &[0], 4, &start(9, 0))));
        transmission(server.handle_message(&next(9, 0, 1, &[5])));
        let (found, given_up) = reported(server.handle_message(&next(9, 0, wrong, &[5])));
        let problem = Problem::Sequence(mismatch(2, wrong));
        assert_eq!(found, report(id(9, 0, wrong), Some(id(9, 0, 1)), problem));
        assert!(given_up);
        // To the end that the number tells.
        for sequence in wrong.saturating_add(1)..4 {
            assert_discarded(&mut server, &next(9, 0, sequence, &[5]));
        }
        assert_is_idle(server);
    }
}

#[test]
fn any_other_message_in_the_midst_of_a_group() {
    #[rustfmt::skip]
    let intruders = [
        (rpc(8, 0), 0, 0),
        (rpc(8, RESPONSE), RESPONSE, 0),
        (wire::properties(8, 0, &[0]), 0, 5),
        (bytes_of(&[8, 2, 100 << 16, 1, 0, 0, 1, 0, 1, 2, 0, 3, 0, 0, 0]), 0, 1),
        (first(8, 0, &[0], 1, &start(8, 0)), 0, REQUEST),
        (first(8, RESPONSE, &[0], 1, &start(8, RESPONSE)), RESPONSE, 0x5254_5202),
    ];
    for (intruder, flags, header_type) in intruders {
        let mut server = server();
        transmission(server.handle_message(&first(9, 0, &[0], 4, &start(9, 0))));
        transmission(server.handle_message(&next(9, 0, 1, &[5])));
        let (found, given_up) = reported(server.handle_message(&intruder));
        let problem = Problem::HeaderType(mismatch(CONTINUE, header_type));
        assert_eq!(found, report(id(8, flags, 0), Some(id(9, 0, 1)), problem));
        assert!(given_up);
        if header_type & 0xffff_ff00 != REQUEST & 0xffff_ff00 {
            assert_discarded(&mut server, &next(9, 0, 2, &[5]));
        }
        assert_is_idle(server);
    }
}

/// An intruder that goes on is discarded to its end too.
#[test]
fn an_intruder_that_goes_on_is_discarded_to_its_end() {
    let mut server = server();
    transmission(server.handle_message(&first(9, 0, &[0], 3, &start(9, 0))));
    reported(server.handle_message(&first(8, 0, &[0], 3, &start(8, 0))));
    for sequence in [1, 2] {
        assert_discarded(&mut server, &next(8, 0, sequence, &[5]));
    }
    assert_is_idle(server);

    let mut server = self::server();
    transmission(server.handle_message(&first(9, 0, &[0], 3, &start(9, 0))));
    let part = wire::message(8, MORE, &bytes_of(&[8, 0, 1]));
    reported(server.handle_message(&part));
    for flags in [MORE, 0] {
        assert_discarded(&mut server, &wire::message(8, flags, &bytes_of(&[1])));
    }
    assert_is_idle(server);
}

#[test]
fn a_stream_that_reaches_beyond_its_message() {
    for flags in [0, RESPONSE] {
        let mut server = server();
        let mut message = first(9, flags, &[0], 1, &start(9, flags));
        let length_at = message.len() - 24;
        message[length_at..length_at + 4].copy_from_slice(&21_u32.to_be_bytes());
        let (found, _) = reported(server.handle_message(&message));
        let problem = Problem::StreamLength(range(21, 0, 20));
        assert_eq!(found, report(id(9, flags, 0), None, problem));

        transmission(server.handle_message(&first(9, flags, &[0], 2, &start(9, flags))));
        let mut message = next(9, flags, 1, &[5]);
        message[28..32].copy_from_slice(&u32::MAX.to_be_bytes());
        let (found, given_up) = reported(server.handle_message(&message));
        let problem = Problem::StreamLength(range(u32::MAX, 0, 4));
        assert_eq!(found, report(id(9, flags, 1), None, problem));
        assert!(given_up);
        assert_is_idle(server);
    }
}

/// What is wrong with the places of items, in a first transmission of 1792 octets: targetable segments begin at 256,
/// 768 and 1280, and go on in the second transmission. Header and stream end before 256 unless told.
#[test]
fn places_of_items_that_are_wrong() {
    let number = |value, min, max| Problem::SegmentNumber(range(value, min, max));
    let offset = |value, min, max| Problem::Offset(range(value, min, max));
    #[rustfmt::skip]
    let cases: [(&str, u32, &[u32], usize, Problem); 16] = [
        ("a number beyond the group", 1, &[1, 20, 4, 2, 0, 1, 3], 1792, number(3, 0, 2)),
        ("the same in a group of two", 2, &[1, 20, 4, 2, 0, 1, 6], 1792, number(6, 0, 5)),
        ("a number beyond all", 1, &[1, 20, 4, 2, 0, 1, u32::MAX], 1792, number(u32::MAX, 0, 2)),
        ("an offset at the end of the segment", 1, &[1, 20, 4, 2, 512, 1, 0], 1792, offset(512, 0, 511)),
        ("an offset far beyond", 1, &[1, 20, 4, 2, u32::MAX, 1, 0], 1792, offset(u32::MAX, 0, 511)),
        ("octets that did not come", 1, &[1, 20, 4, 2, 0, 1, 2], 1283, number(2, 0, 1)),
        ("a segment that did not come", 1, &[1, 20, 4, 2, 0, 1, 1], 256, number(1, 0, 0)),
        ("a tail that did not come", 1, &[1, 20, 1030, 2, 0, 3, 0, 1, 2], 1285, number(2, 0, 1)),
        ("numbers that end too early", 1, &[1, 20, 513, 2, 0, 1, 1], 1792, number(1, 2, 2)),
        ("no number at all", 1, &[1, 20, 1, 2, 0, 0], 1792, number(0, 0, 2)),
        ("numbers in falling order", 1, &[1, 20, 600, 2, 0, 2, 1, 0], 1792, number(0, 2, 2)),
        ("a number twice", 1, &[1, 20, 600, 2, 0, 2, 1, 1], 1792, number(1, 2, 2)),
        ("two items in one place", 1, &[2, 20, 8, 2, 4, 1, 1, 28, 8, 2, 11, 1, 1], 1792, offset(11, 12, 511)),
        ("two items in one segment that is full", 1, &[2, 20, 512, 2, 0, 1, 1, 532, 8, 2, 0, 1, 1], 1792, number(1, 2, 2)),
        ("items in falling order", 1, &[2, 20, 8, 2, 0, 1, 2, 28, 8, 2, 0, 1, 1], 1792, number(1, 3, 2)),
        ("memory that does not hold the item", 1, &[1, 20, 8, 1, 1, 7, 7, 0, 0], 1792, offset(8, 0, 7)),
    ];
    for (why, transmissions, items, message_bytes, problem) in cases {
        for flags in [0, RESPONSE] {
            let mut server = server();
            let message = first(9, flags, items, transmissions, &start(9, flags));
            let message = padded(message, message_bytes);
            let (found, given_up) = reported(server.handle_message(&message));
            assert_eq!(found, report(id(9, flags, 0), None, problem), "{why}");
            assert!(!given_up);
        }
    }
}

/// Header and payload stream take the first targetable segment, in part or whole.
#[test]
fn items_that_overlap_the_stream() {
    // The header has 68 octets: the stream ends at 308, or at 768.
    for (words, offset, numbers, problem) in [
        (60, 51, [0, 1], Problem::Offset(range(51, 52, 511))),
        (175, 511, [0, 1], Problem::SegmentNumber(range(0, 1, 2))),
    ] {
        let mut stream = vec![9, 0];
        stream.resize(words, 3);
        let items = [1, 20, 600, 2, offset, 2, numbers[0], numbers[1]];
        let mut server = server();
        let message = padded(first(9, 0, &items, 1, &stream), 1792);
        let (found, _) = reported(server.handle_message(&message));
        assert_eq!(found, report(id(9, 0, 0), None, problem));
        // One octet further, or in the next segment, it is right.
        let items = match words {
            60 => [1, 20, 600, 2, 52, 2, 0, 1],
            _ => [1, 20, 600, 2, 0, 2, 1, 2],
        };
        let message = padded(first(9, 0, &items, 1, &stream), 1792);
        transmission(server.handle_message(&message));
    }
}

#[test]
fn displacements_that_are_wrong() {
    let offset = |value, min, max| Problem::Offset(range(value, min, max));
    // The stream has 20 octets.
    #[rustfmt::skip]
    let cases: [(&str, &[u32], Problem); 7] = [
        ("the XID is no item", &[1, 0, 4, 2, 0, 1, 0], offset(0, 8, 20)),
        ("nor is the message type", &[1, 4, 4, 2, 0, 1, 0], offset(4, 8, 20)),
        ("behind the end of the message", &[1, 24, 4, 2, 0, 1, 0], offset(24, 8, 20)),
        ("no XDR item begins there", &[1, 18, 4, 2, 0, 1, 0], offset(18, 8, 20)),
        ("within the one before, with its round-up", &[2, 12, 5, 2, 0, 1, 0, 16, 4, 2, 0, 1, 1], offset(16, 20, 28)),
        ("before the one before", &[2, 20, 4, 2, 0, 1, 0, 16, 4, 2, 0, 1, 1], offset(16, 24, 24)),
        ("behind the end, with an item before", &[2, 20, 5, 2, 0, 1, 0, 32, 4, 2, 0, 1, 1], offset(32, 28, 28)),
    ];
    for (why, items, problem) in cases {
        for flags in [0, RESPONSE] {
            let mut server = server();
            let message = padded(first(9, flags, items, 1, &start(9, flags)), 1792);
            let (found, _) = reported(server.handle_message(&message));
            assert_eq!(found, report(id(9, flags, 0), None, problem), "{why}");
        }
    }
    // An end that 32 bits do not hold.
    let items = [1, 0xffff_fff8, 12, 1, 1, 7, 12, 0, 0];
    let mut server = server();
    let message = first(9, 0, &items, 2, &start(9, 0));
    let (found, _) = reported(server.handle_message(&message));
    let problem = Problem::Offset(range(0xffff_fff8, 8, 0xffff_fff4));
    assert_eq!(found, report(id(9, 0, 0), None, problem));
}

/// The first transmission says what the others bring: what is wrong is found on them, and it led to it.
#[test]
fn items_that_later_transmissions_do_not_bring() {
    // 100 octets in segment 4 of the group: in the second transmission from 768 on.
    let items = [1, 20, 100, 2, 0, 1, 4];
    let lead = Some(id(9, 0, 0));
    let mut server = server();
    transmission(server.handle_message(&first(9, 0, &items, 2, &start(9, 0))));
    let (found, given_up) = reported(server.handle_message(&padded(next(9, 0, 1, &[]), 867)));
    let problem = Problem::SegmentNumber(range(4, 0, 3));
    assert_eq!(found, report(id(9, 0, 1), lead, problem));
    assert!(given_up);
    assert_is_idle(server);

    // The stream of the second transmission reaches into the item.
    let mut server = self::server();
    transmission(server.handle_message(&first(9, 0, &items, 2, &start(9, 0))));
    let stream = [3; 185];
    let message = padded(next(9, 0, 1, &stream), 1792);
    let (found, _) = reported(server.handle_message(&message));
    let problem = Problem::SegmentNumber(range(4, 5, u32::MAX));
    assert_eq!(found, report(id(9, 0, 1), lead, problem));
    // One word less does not.
    transmission(server.handle_message(&first(9, 0, &items, 2, &start(9, 0))));
    let message = padded(next(9, 0, 1, &stream[1..]), 1792);
    assert!(transmission(server.handle_message(&message)).is_last());
    assert_is_idle(server);
}

/// Whether displacements are within the message is known with its last transmission.
#[test]
fn a_message_that_ends_before_its_items() {
    let items = [1, 40, 4, 2, 0, 1, 0];
    let lead = Some(id(9, 0, 0));
    let mut server = server();
    let begin = padded(first(9, 0, &items, 2, &start(9, 0)), 1792);
    transmission(server.handle_message(&begin));
    // 20 octets came, and 16: the item stands behind 40.
    let (found, given_up) = reported(server.handle_message(&next(9, 0, 1, &[1, 2, 3, 4])));
    let problem = Problem::StreamLength(range(16, 20, u32::MAX));
    assert_eq!(found, report(id(9, 0, 1), lead, problem));
    assert!(given_up);
    transmission(server.handle_message(&begin));
    assert!(transmission(server.handle_message(&next(9, 0, 1, &[1, 2, 3, 4, 5]))).is_last());
    assert_is_idle(server);
}

#[test]
fn ranges_that_overlap_or_fall() {
    let offset = |value, min| Problem::Offset(range(value, min, u32::MAX));
    #[rustfmt::skip]
    let cases: [(&[u32], Option<Problem>); 6] = [
        (&[2, 0, 10, 0, 10, 20, 0], None),
        (&[3, 0, 10, 0, 10, 10, 0, 10, 12, 0], None),
        (&[2, 0, 11, 0, 10, 20, 0], Some(offset(10, 11))),
        (&[2, 10, 20, 0, 0, 5, 0], Some(offset(0, 20))),
        (&[1, 10, 9, 0], Some(offset(9, 10))),
        (&[2, 0, 10, 0, 5, 5, 0], Some(offset(5, 10))),
    ];
    for (directions, problem) in cases {
        let mut server = server();
        let message = first_with(9, 0, &[0], directions, 1, &start(9, 0));
        let event = server.handle_message(&message);
        match problem {
            None => assert!(transmission(event).is_last()),
            Some(problem) => {
                let (found, _) = reported(event);
                assert_eq!(found, report(id(9, 0, 0), None, problem));
            }
        }
    }
}

/// F_MORE and groups are never mixed: INVAL_FLAG, which closes where a reply is wrong.
#[test]
fn f_more_has_no_place_in_groups() {
    let refused = |event: Event<'_>| match event {
        Event::Refused(refusal) => (refusal.error, refusal.sequence_given_up),
        other => panic!("not refused: {other:?}"),
    };
    let flag = TransportError::InvalFlag;
    let mut server = server();
    let begin = first(9, MORE, &[0], 2, &start(9, 0));
    assert_eq!(refused(server.handle_message(&begin)), (flag, false));
    assert_discarded(&mut server, &next(9, 0, 1, &[5]));
    transmission(server.handle_message(&first(9, 0, &[0], 3, &start(9, 0))));
    let more = next(9, MORE, 1, &[5]);
    assert_eq!(refused(server.handle_message(&more)), (flag, true));
    assert_discarded(&mut server, &next(9, 0, 2, &[5]));
    assert_is_idle(server);
    // A group in the midst of a continued message breaks that.
    let mut server = self::server();
    server.handle_message(&wire::message(8, MORE, &bytes_of(&[8, 0, 1])));
    let begin = first(9, 0, &[0], 2, &start(9, 0));
    assert_eq!(refused(server.handle_message(&begin)), (flag, true));
    assert_discarded(&mut server, &next(9, 0, 1, &[5]));
    assert_is_idle(server);
    // The flag of a Report Error, and the direction of a request.
    let mut server = self::server();
    let report = bytes_of(&[6, 2, 100 << 16, 0x5254_5204, MORE, 6, 0, 1, 0, 3]);
    assert_eq!(refused(server.handle_message(&report)), (flag, false));
    let mut message = first(9, 0, &[0], 1, &start(9, 0));
    message[19] = 1;
    assert_eq!(
        server.handle_message(&message),
        Event::Close(CloseReason::BadReply(flag))
    );
}

/// A header that does not decode is BAD_XDR, and what follows of its group is discarded, however much that is.
#[test]
fn the_rest_of_a_group_that_does_not_decode_is_discarded() {
    let mut server = server();
    let items = [1, 20, 4, 5];
    let message = first(9, 0, &items, 3, &start(9, 0));
    let event = server.handle_message(&message);
    let Event::Refused(refusal) = event else {
        panic!("TooShort in a request: {event:?}")
    };
    assert_eq!(refusal.error, TransportError::BadXdr);
    for sequence in [1, 2] {
        assert_discarded(&mut server, &next(9, 0, sequence, &[5]));
    }
    assert_is_idle(server);
    // The same of a reply costs the connection, as a wrong reply does.
    let mut server = self::server();
    let items = [1, 20, 4, 9];
    let message = first(9, RESPONSE, &items, 3, &start(9, RESPONSE));
    let event = server.handle_message(&message);
    assert_eq!(
        event,
        Event::Close(CloseReason::BadReply(TransportError::BadXdr))
    );
}

/// XID and message type at the start of the stream, which may come in the second transmission.
#[test]
fn a_stream_that_contradicts_its_header() {
    for (streams, at) in [
        ([vec![8, 0, 1], vec![5]], 0),
        ([vec![9, 1, 1], vec![5]], 0),
        ([vec![], vec![8, 0, 1]], 1),
        ([vec![9], vec![1, 1]], 1),
        ([vec![9], vec![]], 1),
    ] {
        let mut server = server();
        let begin = first(9, 0, &[0], 2, &streams[0]);
        let mut event = server.handle_message(&begin);
        let second = next(9, 0, 1, &streams[1]);
        if at == 1 {
            transmission(event);
            event = server.handle_message(&second);
        }
        let Event::Refused(refusal) = event else {
            panic!("{streams:?}")
        };
        assert_eq!(
            (refusal.xid, refusal.error, refusal.sequence_given_up),
            (9, TransportError::BadXdr, at == 1)
        );
        if at == 0 {
            assert_discarded(&mut server, &second);
        }
        assert_is_idle(server);
    }
    // A reply is dropped.
    let mut server = self::server();
    transmission(server.handle_message(&first(9, RESPONSE, &[0], 2, &[9])));
    assert_eq!(
        server.handle_message(&next(9, RESPONSE, 1, &[0, 1])),
        Event::Discarded(DiscardReason::ReplyMismatch { xid: 9 })
    );
    assert_is_idle(server);
}

/// A message longer than we put together is refused, and the rest of it discarded.
#[test]
fn a_stream_beyond_our_limit() {
    let short = Properties {
        request_transmissions_max: 64,
        ..properties()
    };
    for flags in [0, RESPONSE] {
        let mut server = server_with(short, 50);
        let begin = first(9, flags, &[0], 64, &start(9, flags));
        let mut event = server.handle_message(&begin);
        let part = next(9, flags, 1, &[3; 400]);
        let mut sequence = 0_u32;
        let mut messages = Vec::new();
        for number in 1..64_u32 {
            let mut message = part.clone();
            message[20..24].copy_from_slice(&number.to_be_bytes());
            messages.push(message);
        }
        for message in &messages {
            if !matches!(event, Event::Transmission(_)) {
                break;
            }
            sequence += 1;
            event = server.handle_message(message);
        }
        assert_eq!(sequence, 13, "20 000 octets are exceeded there");
        if flags == 0 {
            let Event::Refused(refusal) = event else {
                panic!("{event:?}")
            };
            assert_eq!(refusal.error, TransportError::System);
            assert!(refusal.sequence_given_up);
        } else {
            assert_eq!(
                event,
                Event::Discarded(DiscardReason::ReplyTooLong { xid: 9 })
            );
        }
        assert_discarded(&mut server, &next(9, flags, 14, &[5]));
        assert_discarded(&mut server, &next(9, flags, 63, &[5]));
        assert_is_idle(server);
    }
}

/// A message that is too short for its type leaves a gap, unless it stands apart.
#[test]
fn a_short_message_in_the_midst_of_a_group() {
    let mut server = server();
    transmission(server.handle_message(&first(9, 0, &[0], 3, &start(9, 0))));
    for apart in [
        bytes_of(&[0, 2, 100 << 16, 1, 0]),
        bytes_of(&[0, 2, 0, 4, 1]),
        bytes_of(&[0, 2, 100 << 16, 0x5254_5204, 0]),
    ] {
        assert_eq!(
            server.handle_message(&apart),
            Event::Discarded(DiscardReason::Short)
        );
        assert!(server.is_group_open());
    }
    assert_eq!(
        server.handle_message(&bytes_of(&[9, 2, 100 << 16, CONTINUE, 0])),
        Event::Discarded(DiscardReason::SequenceBroken { xid: 9 })
    );
    assert_discarded(&mut server, &next(9, 0, 2, &[5]));
    assert_is_idle(server);
}
