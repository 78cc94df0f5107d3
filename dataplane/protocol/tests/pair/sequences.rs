//! Continued messages, both ways (-00 sections 6.3.2.2 and 4.5.2).

use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, Direction, DiscardReason, Event, Refusal, Role, SendRefused,
};

use super::connections::{established, rpc_message};
use super::wire::{self, MORE, RESPONSE, bytes_of, credit, rpc, words_of};

fn server() -> Connection {
    established(Role::Server, 50)
}

/// Offset and last flag of a part.
fn part(event: Event<'_>) -> (u32, bool) {
    match event {
        Event::Fragment { offset, last, .. } => (offset, last),
        other => panic!("not a part: {other:?}"),
    }
}

fn refused(event: Event<'_>) -> (u32, TransportError, bool) {
    match event {
        Event::Refused(refusal) => (refusal.xid, refusal.error, refusal.sequence_given_up),
        other => panic!("not refused: {other:?}"),
    }
}

fn first_part(xid: u32, flags: u32) -> Vec<u8> {
    let payload = bytes_of(&[xid, flags & RESPONSE, 1, 2]);
    wire::message(xid, flags | MORE, &payload)
}

fn rest(xid: u32, flags: u32) -> Vec<u8> {
    wire::message(xid, flags, &bytes_of(&[3, 4]))
}

#[test]
fn parts_come_with_their_offsets() {
    for flags in [0, RESPONSE] {
        let mut server = server();
        assert_eq!(
            part(server.handle_message(&first_part(9, flags))),
            (0, false)
        );
        assert_eq!(
            part(server.handle_message(&rest(9, flags | MORE))),
            (16, false)
        );
        assert_eq!(part(server.handle_message(&rest(9, flags))), (24, true));
        // The next one begins anew.
        assert_eq!(
            part(server.handle_message(&first_part(8, flags))),
            (0, false)
        );
    }
}

/// Grants and errors may stand inside a sequence and do not break it.
#[test]
fn grants_and_errors_inside_a_sequence_do_not_break_it() {
    let mut server = server();
    server.handle_message(&first_part(9, 0));
    assert_eq!(server.handle_message(&wire::grant(1, 100)), Event::Credits);
    let error = wire::error(77, TransportError::System);
    assert!(matches!(
        server.handle_message(&error),
        Event::TransportError { xid: 77, .. }
    ));
    assert_eq!(part(server.handle_message(&rest(9, 0))), (16, true));
    server.handle_receives_posted(4);

    // And the same the other way.
    let mut space = [0; 64];
    let (call, reply) = (Direction::Call, Direction::Reply);
    server
        .encode_message(&mut space, 1, call, true, 12)
        .expect("a credit is there");
    assert!(server.sequence_open());
    server.encode_grant(&mut space).expect("none is on its way");
    let refusal = Refusal::new(5, TransportError::System);
    server.encode_error(&mut space, &refusal).expect("a credit");
    // No other payload may.
    for result in [
        server.encode_message(&mut space, 2, call, false, 12),
        server.encode_message(&mut space, 1, reply, false, 12),
        server.encode_properties(&mut space, 1),
        server.encode_long_message(&mut space, 1, call, 0, &ChunkListsRepr::default()),
    ] {
        assert_eq!(result, Err(SendRefused::SequenceOpen));
    }
    assert_eq!(
        server.encode_message(&mut space, 1, call, false, 12),
        Ok(36)
    );
    assert!(!server.sequence_open());
}

/// Another XID, header type or direction breaks the sequence. A message without F_MORE is its end all the same.
#[test]
fn a_message_that_does_not_fit_breaks_the_sequence() {
    let breakers = [
        rpc(8, 0),
        wire::properties(9, 0, &[0]),
        bytes_of(&[9, 2, credit(0, 100), 1, 0, 0, 1, 0, 1, 2, 0, 3, 0, 0, 0]),
    ];
    for breaker in breakers {
        let mut server = server();
        server.handle_message(&first_part(9, 0));
        let xid = words_of(&breaker)[0];
        assert_eq!(
            refused(server.handle_message(&breaker)),
            (xid, TransportError::InvalFlag, true)
        );
        // The sequence is over: the next call is a call.
        assert!(matches!(
            server.handle_message(&rpc(7, 0)),
            Event::Call { xid: 7, .. }
        ));
    }
    // One with F_MORE goes on, and is discarded to its end; what stands between is refused in turn.
    let mut server = server();
    server.handle_message(&first_part(9, 0));
    assert_eq!(
        refused(server.handle_message(&first_part(8, 0))),
        (8, TransportError::InvalFlag, true)
    );
    let discarded = Event::Discarded(DiscardReason::SequenceRest);
    assert_eq!(server.handle_message(&rest(8, MORE)), discarded);
    assert_eq!(server.handle_message(&rest(8, 0)), discarded);
    assert!(matches!(
        server.handle_message(&rpc(7, 0)),
        Event::Call { xid: 7, .. }
    ));
}

/// The rest of a call whose sequence was cut off does not begin with its XID: it is refused too, so that no call waits
/// for ever.
#[test]
fn the_rest_of_a_broken_call_is_refused() {
    let mut server = server();
    server.handle_message(&first_part(9, 0));
    refused(server.handle_message(&rpc(8, 0)));
    assert_eq!(
        refused(server.handle_message(&rest(9, 0))),
        (9, TransportError::BadXdr, false)
    );
}

/// A requester may not answer with an error: a broken reply closes the connection, whichever side broke it.
#[test]
fn a_broken_reply_closes() {
    let close = Event::Close(CloseReason::BadReply(TransportError::InvalFlag));
    for (first, second) in [
        (first_part(9, RESPONSE), rpc(8, RESPONSE)),
        (first_part(9, RESPONSE), rpc(9, 0)),
        (first_part(9, 0), rpc(9, RESPONSE)),
        (first_part(9, RESPONSE), wire::properties(9, 0, &[0])),
    ] {
        let mut server = server();
        server.handle_message(&first);
        assert_eq!(server.handle_message(&second), close);
    }
}

/// F_MORE on RDMA2_NOMSG, on a grant, or with chunks is INVAL_FLAG.
#[test]
fn more_where_it_may_not_be() {
    let grant = bytes_of(&[0, 2, credit(1, 100), 1, MORE, 0, 0, 0, 0]);
    let long = bytes_of(&[9, 2, credit(1, 100), 1, MORE, 0, 1, 0, 1, 2, 0, 3, 0, 0, 0]);
    let with_chunk = [
        9,
        2,
        credit(1, 100),
        0,
        MORE,
        0,
        1,
        8,
        1,
        2,
        0,
        3,
        0,
        0,
        0,
        9,
        0,
    ];
    for (message, xid) in [(grant, 0), (long, 9), (bytes_of(&with_chunk), 9)] {
        let mut server = server();
        let before = server.credits();
        assert_eq!(
            refused(server.handle_message(&message)),
            (xid, TransportError::InvalFlag, false)
        );
        assert_eq!(server.credits().unused(), before.unused() + 1);
    }
}

/// A wrong grant inside a sequence is refused, and the sequence goes on; it used no credit.
#[test]
fn a_wrong_grant_leaves_the_sequence_alone() {
    for flags in [MORE, 0x4000] {
        let mut server = server();
        server.handle_message(&first_part(9, RESPONSE));
        let before = server.credits().consumed_total;
        let grant = bytes_of(&[0, 2, credit(1, 100), 1, flags, 0, 0, 0, 0]);
        assert_eq!(
            refused(server.handle_message(&grant)),
            (0, TransportError::InvalFlag, false)
        );
        assert_eq!(server.credits().consumed_total, before);
        assert_eq!(part(server.handle_message(&rest(9, RESPONSE))), (16, true));
    }
}

/// An error with F_MORE cannot be answered.
#[test]
fn more_on_an_error_closes() {
    let mut server = server();
    let message = bytes_of(&[9, 2, 0, 4, RESPONSE | MORE, 10]);
    assert_eq!(
        server.handle_message(&message),
        Event::Close(CloseReason::BadError)
    );
}

/// Beyond our limit a call is ERR_SYSTEM, and the rest is discarded to its end; a reply ends without an answer.
#[test]
fn beyond_the_limit_the_rest_is_discarded() {
    // The limit is 20000 octets.
    for (flags, direction) in [(0, Direction::Call), (RESPONSE, Direction::Reply)] {
        let mut server = server();
        let message = rpc_message(9, direction, 24_000, 0);
        let parts: Vec<&[u8]> = message.chunks(4000).collect();
        for (index, payload) in parts[..5].iter().enumerate() {
            let offset = 4000 * u32::try_from(index).expect("small");
            let message = wire::message(9, flags | MORE, payload);
            assert_eq!(part(server.handle_message(&message)), (offset, false));
        }
        let message = wire::message(9, flags | MORE, &[0; 4]);
        let event = server.handle_message(&message);
        if flags == 0 {
            assert_eq!(refused(event), (9, TransportError::System, true));
        } else {
            let reason = DiscardReason::ReplyTooLong { xid: 9 };
            assert_eq!(event, Event::Discarded(reason));
        }
        let discarded = Event::Discarded(DiscardReason::SequenceRest);
        let more = wire::message(9, flags | MORE, parts[5]);
        assert_eq!(server.handle_message(&more), discarded);
        let last = wire::message(9, flags, parts[5]);
        assert_eq!(server.handle_message(&last), discarded);
        assert!(matches!(
            server.handle_message(&rpc(7, 0)),
            Event::Call { .. }
        ));
    }
}

/// A message of exactly the limit is put together.
#[test]
fn up_to_the_limit_a_message_is_put_together() {
    let mut server = server();
    let message = rpc_message(9, Direction::Call, 20_000, 0);
    for (index, payload) in message.chunks(4000).enumerate() {
        let flags = if index < 4 { MORE } else { 0 };
        let message = wire::message(9, flags, payload);
        assert_eq!(part(server.handle_message(&message)).1, index == 4);
    }
}

/// XID and message type are checked wherever the sender cut the message.
#[test]
fn the_start_is_checked_across_parts() {
    for (flags, right, wrong) in [(0, 0, 1), (RESPONSE, 1, 0)] {
        for cut in 4..8 {
            for (message_type, is_right) in [(right, true), (wrong, false)] {
                let mut server = server();
                let payload = bytes_of(&[9, message_type, 5, 6]);
                let (first, second) = payload.split_at(cut);
                let message = wire::message(9, flags | MORE, first);
                assert_eq!(part(server.handle_message(&message)), (0, false));
                let message = wire::message(9, flags, second);
                let event = server.handle_message(&message);
                match (is_right, flags) {
                    (true, _) => assert!(part(event).1),
                    (false, 0) => {
                        assert_eq!(refused(event), (9, TransportError::BadXdr, true));
                    }
                    (false, _) => {
                        let reason = DiscardReason::ReplyMismatch { xid: 9 };
                        assert_eq!(event, Event::Discarded(reason));
                    }
                }
            }
        }
    }
    // A first part with another XID is refused at once, and its rest discarded.
    let mut server = server();
    let message = wire::message(9, MORE, &bytes_of(&[8, 0]));
    assert_eq!(
        refused(server.handle_message(&message)),
        (9, TransportError::BadXdr, false)
    );
    let discarded = Event::Discarded(DiscardReason::SequenceRest);
    assert_eq!(server.handle_message(&rest(9, 0)), discarded);
}

/// A part that is too short leaves a gap, so the sequence is given up in silence, and nothing is put together wrongly.
#[test]
fn a_short_part_gives_the_sequence_up() {
    let broken = Event::Discarded(DiscardReason::SequenceBroken { xid: 9 });
    let discarded = Event::Discarded(DiscardReason::SequenceRest);
    for short in [
        wire::message(9, MORE, &[1, 2, 3]),
        vec![0; 3],
        bytes_of(&[9, 2, credit(0, 100), 0]),
    ] {
        let mut server = server();
        server.handle_message(&first_part(9, 0));
        assert_eq!(server.handle_message(&short), broken, "{short:?}");
        assert_eq!(server.handle_message(&rest(9, MORE)), discarded);
        assert_eq!(server.handle_message(&rest(9, 0)), discarded);
        assert!(matches!(
            server.handle_message(&rpc(7, 0)),
            Event::Call { .. }
        ));
    }
    // The last part too short: the sequence is over.
    let mut server = server();
    server.handle_message(&first_part(9, 0));
    let short = wire::message(9, 0, &[]);
    assert_eq!(server.handle_message(&short), broken);
    assert!(matches!(
        server.handle_message(&rpc(7, 0)),
        Event::Call { .. }
    ));
    // A short grant or error was no part of it.
    for short in [
        bytes_of(&[0, 2, credit(0, 100), 1, 0]),
        bytes_of(&[0, 2, 0, 4, 1]),
    ] {
        server.handle_message(&first_part(9, 0));
        assert_eq!(
            server.handle_message(&short),
            Event::Discarded(DiscardReason::Short)
        );
        assert_eq!(part(server.handle_message(&rest(9, 0))), (16, true));
    }
}

/// The last message of a sequence may have chunks; the others were checked to have none.
#[test]
fn chunks_come_with_the_last_part() {
    let mut server = server();
    let mut client = established(Role::Client, 100);
    let mut space = [0; 256];
    let payload = bytes_of(&[9, 0, 1, 2]);
    let call = Direction::Call;
    client
        .encode_message(&mut space, 9, call, true, 16)
        .expect("a credit is there");
    space[36..52].copy_from_slice(&payload);
    assert_eq!(part(server.handle_message(&space[..52])), (0, false));
    let reads = [ReadSegment {
        position: 16,
        target: Segment {
            handle: 7,
            length_bytes: 100,
            offset: 1 << 40,
        },
    }];
    let lists = ChunkListsRepr {
        reads: &reads,
        ..ChunkListsRepr::default()
    };
    let header_bytes = client
        .encode_message_with_chunks(&mut space, 9, call, 7, &lists, 16)
        .expect("a credit is there");
    assert!(!client.sequence_open());
    let event = server.handle_message(&space[..header_bytes + 16]);
    let Event::Fragment {
        last: true,
        chunks,
        invalidate_handle: 7,
        ..
    } = event
    else {
        panic!("{event:?}");
    };
    assert!(chunks.reads.eq(reads));
}

/// Long calls have a Position-Zero Read chunk, long replies a Reply chunk; what has neither carries no RPC message.
#[test]
fn long_messages_need_their_chunk() {
    let segment = Segment {
        handle: 7,
        length_bytes: 100_000,
        offset: 64,
    };
    let read = |position| ReadSegment {
        position,
        target: segment,
    };
    let chunk = [segment];
    let (at_zero, at_eight, at_odd) = ([read(0)], [read(8)], [read(0), read(6)]);
    let lists = |reads, reply| ChunkListsRepr {
        reads,
        reply,
        ..ChunkListsRepr::default()
    };
    let (call, reply) = (Direction::Call, Direction::Reply);
    for (direction, lists, is_right) in [
        (call, lists(&at_zero, None), true),
        (call, lists(&at_zero, Some(&chunk[..])), true),
        (call, lists(&at_eight, None), false),
        (call, lists(&at_odd, None), false),
        (call, lists(&[], Some(&chunk[..])), false),
        (reply, lists(&[], Some(&chunk[..])), true),
        (reply, lists(&at_zero, Some(&chunk[..])), false),
        (reply, lists(&at_zero, None), false),
    ] {
        let mut client = established(Role::Client, 100);
        let mut server = server();
        let mut space = [0; 256];
        let bytes = client
            .encode_long_message(&mut space, 9, direction, 0, &lists)
            .expect("a credit is there");
        let event = server.handle_message(&space[..bytes]);
        match (is_right, direction) {
            (true, Direction::Call) => {
                assert!(matches!(
                    event,
                    Event::Call {
                        xid: 9,
                        payload: [],
                        ..
                    }
                ));
            }
            (true, Direction::Reply) => {
                assert!(matches!(
                    event,
                    Event::Reply {
                        xid: 9,
                        payload: [],
                        ..
                    }
                ));
            }
            (false, Direction::Call) => {
                assert_eq!(refused(event), (9, TransportError::BadXdr, false));
            }
            (false, Direction::Reply) => {
                let reason = CloseReason::BadReply(TransportError::BadXdr);
                assert_eq!(event, Event::Close(reason));
            }
        }
    }
    // In an RDMA2_MSG a Position-Zero Read chunk would leave open where the message is.
    let mut client = established(Role::Client, 100);
    let mut space = [0; 256];
    let lists = lists(&at_zero, None);
    let bytes = client
        .encode_message_with_chunks(&mut space, 9, call, 0, &lists, 12)
        .expect("a credit is there");
    space[bytes..bytes + 12].copy_from_slice(&bytes_of(&[9, 0, 0]));
    assert_eq!(
        refused(server().handle_message(&space[..bytes + 12])),
        (9, TransportError::BadXdr, false)
    );
}

/// The parts of a message fill the threshold, and none is too short for its receiver.
#[test]
fn parts_fill_the_threshold_and_none_is_too_short() {
    let connection = server();
    assert_eq!(connection.fragment_bytes(0), 0);
    assert_eq!(connection.fragment_bytes(4060), 4060);
    for length in 4061..30_000 {
        let mut remaining = length;
        while remaining > 0 {
            let bytes = connection.fragment_bytes(remaining);
            assert!((4..=4060).contains(&bytes), "{bytes} of {remaining}");
            remaining -= bytes;
        }
    }
}

/// A property set in several messages: their bodies are one set. XID 0 or any, but one.
#[test]
fn property_sets_are_continued() {
    for xid in [0, 5] {
        let mut server = server();
        for (flags, offset, last) in [(MORE, 0, false), (MORE, 8, false), (0, 16, true)] {
            let message = wire::properties(xid, flags, &[1, 2]);
            let event = server.handle_message(&message);
            let expected = Event::PropertiesFragment {
                xid,
                offset,
                bytes: &message[20..],
                last,
            };
            assert_eq!(event, expected);
        }
    }
    let mut server = server();
    server.handle_message(&wire::properties(5, MORE, &[1, 2]));
    assert_eq!(
        refused(server.handle_message(&wire::properties(6, 0, &[1, 2]))),
        (6, TransportError::InvalFlag, true)
    );
}

/// A property set of more than 64 KiB is refused, and its rest discarded.
#[test]
fn property_sets_are_limited() {
    let mut server = server();
    let body = [0; 2048];
    for _ in 0..8 {
        let message = wire::properties(5, MORE, &body);
        let event = server.handle_message(&message);
        assert!(matches!(event, Event::PropertiesFragment { .. }));
    }
    let message = wire::properties(5, MORE, &[0]);
    assert_eq!(
        refused(server.handle_message(&message)),
        (5, TransportError::System, true)
    );
    assert_eq!(
        server.handle_message(&wire::properties(5, 0, &[0])),
        Event::Discarded(DiscardReason::SequenceRest)
    );
}

/// Ours too can be continued, and nothing else is sent in between.
#[test]
fn property_sets_are_sent_in_parts() {
    let mut server = server();
    let mut space = [0; 64];
    assert_eq!(
        server.encode_properties_part(&mut space, 0, true, 4),
        Ok(20)
    );
    assert_eq!(words_of(&space[..20])[3..], [5, MORE]);
    assert_eq!(
        server.encode_message(&mut space, 0, Direction::Call, false, 12),
        Err(SendRefused::SequenceOpen)
    );
    assert_eq!(
        server.encode_properties_part(&mut space, 0, false, 4),
        Ok(20)
    );
    assert_eq!(
        server.encode_properties_part(&mut space, 0, false, 3),
        Err(SendRefused::TooShort)
    );
}
