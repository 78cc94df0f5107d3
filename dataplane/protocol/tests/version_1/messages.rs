//! What each message means to a responder and to a requester (RFC 8166 sections 4.2 to 4.6, RFC 8167).

use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::v1::connection::Connection;
use rpcrdma_protocol::v2::connection::{
    Direction, DiscardReason, Event, Refusal, Role, SendRefused,
};
use rpcrdma_protocol::v2::{ErrVers, ReverseRequestSupport, TransportError};

use super::wire::{
    CALL, DONE, ERROR, MSG, MSGP, NOMSG, REPLY, bytes_of, client, config, handle, msg, read,
    send_call, server, sizes, with_lists, words_of,
};

/// The answer of a server to a message that it refuses.
fn answer(server: &mut Connection, message: &[u8]) -> Vec<u32> {
    let refusal = match handle(server, message) {
        Event::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    };
    let mut space = [0; 64];
    let bytes = server.encode_error(&mut space, &refusal).expect("a reply");
    words_of(&space[..bytes])
}

/// RFC 8166 section 4.5: below 28 octets, and an error below 20, nothing is trusted.
#[test]
fn short_messages_are_discarded_by_both_ends() {
    let message = msg(1, 8, CALL);
    for bytes in 0..28 {
        let event = handle(&mut server(), &message[..bytes]);
        assert_eq!(event, Event::Discarded(DiscardReason::Short), "{bytes}");
        let event = handle(&mut client(), &message[..bytes]);
        assert_eq!(event, Event::Discarded(DiscardReason::Short), "{bytes}");
    }
    let error = bytes_of(&[1, 1, 8, ERROR, 2]);
    let event = handle(&mut client(), &error[..19]);
    assert_eq!(event, Event::Discarded(DiscardReason::Short));
}

/// Sections 4.5.1 and 7: the version is looked at first, and XID and version come back.
#[test]
fn a_server_of_version_1_alone_answers_others_with_err_vers() {
    for version in [0, 2, 3, u32::MAX] {
        let message = bytes_of(&[0xabcd, version, 32, 77, 0, 0, 0]);
        let words = answer(&mut server(), &message);
        assert_eq!(words, [0xabcd, version, 8, ERROR, 1, 1, 1]);
    }
    let other = bytes_of(&[1, 2, 8, MSG, 0, 0, 0]);
    let event = handle(&mut client(), &other);
    assert_eq!(event, Event::Discarded(DiscardReason::Unanswerable));
}

/// Sections 4.5.2 and 4.6: a responder answers with ERR_CHUNK, a requester drops it and gives up the call.
#[test]
fn wrong_messages_are_answered_by_a_responder_and_dropped_by_a_requester() {
    let good_rpc = [1, CALL, 2];
    let position_zero = read(0, 7, 64);
    let unaligned = read(6, 7, 64);
    let mut with_position_zero = position_zero.to_vec();
    with_position_zero.extend([0, 0, 0]);
    let mut with_unaligned = unaligned.to_vec();
    with_unaligned.extend([0, 0, 0]);
    #[rustfmt::skip]
    let cases = [
        ("type 5", with_lists(1, 5, &[0, 0, 0], &good_rpc)),
        ("RDMA_MSGP", with_lists(1, MSGP, &[0, 0, 0], &good_rpc)),
        ("a mark of 2", with_lists(1, MSG, &[2, 0, 0], &good_rpc)),
        ("no payload", with_lists(1, NOMSG, &[0, 0, 0], &[])),
        ("another XID", with_lists(1, MSG, &[0, 0, 0], &[2, CALL, 2])),
        ("no RPC message", with_lists(1, MSG, &[0, 0, 0], &[1])),
        ("message type 2", with_lists(1, MSG, &[0, 0, 0], &[1, 2, 2])),
        ("two payloads", with_lists(1, MSG, &with_position_zero, &good_rpc)),
        ("a position of 6", with_lists(1, MSG, &with_unaligned, &good_rpc)),
    ];
    for (what, message) in &cases {
        let words = answer(&mut server(), message);
        assert_eq!(words, [1, 1, 8, ERROR, 2], "{what}");
    }
    // Those of them that are no calls by what they say; a call is taken for one by a client too.
    for (what, message) in &cases[..4] {
        let event = handle(&mut client(), message);
        let dropped = Event::Discarded(DiscardReason::ReplyMismatch { xid: 1 });
        assert_eq!(event, dropped, "{what}");
    }
}

/// Section 4.6.2.
#[test]
fn rdma_done_is_discarded_in_silence() {
    let done = with_lists(1, DONE, &[0, 0, 0], &[]);
    for mut end in [server(), client()] {
        let event = handle(&mut end, &done);
        assert_eq!(event, Event::Discarded(DiscardReason::Unanswerable));
    }
}

/// Sections 4.5 and 4.5.1: an error ends the call at a requester, and is nothing to a responder.
#[test]
fn errors_end_calls_of_ours_and_nothing_else() {
    let chunk = bytes_of(&[1, 1, 8, ERROR, 2]);
    let vers = bytes_of(&[1, 1, 8, ERROR, 1, 2, 3]);
    let unknown = bytes_of(&[1, 1, 8, ERROR, 9]);
    for message in [&chunk, &vers, &unknown] {
        let event = handle(&mut server(), message);
        assert_eq!(event, Event::Discarded(DiscardReason::UnexpectedError));
    }
    let event = handle(&mut client(), &chunk);
    let error = TransportError::BadXdr;
    assert_eq!(event, Event::TransportError { xid: 1, error });
    let event = handle(&mut client(), &unknown);
    let dropped = Event::Discarded(DiscardReason::ReplyMismatch { xid: 1 });
    assert_eq!(event, dropped, "it cannot be decoded to its end");
    // Before the server has spoken version 1, ERR_VERS says that it does not.
    let mut first = client();
    let event = handle(&mut first, &vers);
    assert_eq!(event, Event::VersionMismatch { low: 2, high: 3 });
    assert_eq!(send_call(&mut first, 2), Err(SendRefused::Over));
    let mut later = client();
    handle(&mut later, &msg(1, 8, REPLY));
    send_call(&mut later, 1).expect("a credit");
    let error = TransportError::Vers(ErrVers { low: 2, high: 3 });
    assert_eq!(
        handle(&mut later, &vers),
        Event::TransportError { xid: 1, error }
    );
}

/// Sections 4.3.1 and 4.3.2: calls with Read, Write and Reply chunks, and long calls and replies.
#[test]
fn calls_and_replies_with_chunks_are_delivered() {
    let mut lists = read(40, 7, 64).to_vec();
    lists.extend([0, 1, 1, 8, 100, 0, 0, 0, 1, 1, 9, 200, 0, 0]);
    let message = with_lists(1, MSG, &lists, &[1, CALL, 2]);
    match handle(&mut server(), &message) {
        Event::Call {
            xid: 1,
            payload,
            chunks,
            invalidate_handle: 0,
        } => {
            assert_eq!(payload, &message[message.len() - 12..]);
            assert_eq!(chunks.reads.len(), 1);
            assert_eq!(chunks.writes.len(), 1);
            assert!(chunks.reply.is_some());
        }
        other => panic!("{other:?}"),
    }
    let mut position_zero = read(0, 7, 64).to_vec();
    position_zero.extend([0, 0, 0]);
    let long_call = with_lists(1, NOMSG, &position_zero, &[]);
    assert!(matches!(
        handle(&mut server(), &long_call),
        Event::Call { xid: 1, payload, .. } if payload.is_empty()
    ));
    let long_reply = with_lists(1, NOMSG, &[0, 0, 1, 1, 9, 200, 0, 0], &[]);
    assert!(matches!(
        handle(&mut client(), &long_reply),
        Event::Reply { xid: 1, payload, .. } if payload.is_empty()
    ));
    // A reply has no Read list (section 4.3).
    let message = with_lists(1, MSG, &lists, &[1, REPLY, 0]);
    assert_eq!(
        handle(&mut client(), &message),
        Event::Discarded(DiscardReason::ReplyMismatch { xid: 1 })
    );
}

/// RFC 8797 sections 4.1 and 5.2: both ends must have said so, and the handle must be the only one.
#[test]
fn the_only_handle_is_invalidated_where_both_ends_support_it() {
    let one_handle = {
        let mut lists = read(40, 7, 64).to_vec();
        lists.extend(read(40, 7, 32));
        lists.extend([0, 0, 0]);
        with_lists(1, MSG, &lists, &[1, CALL, 2])
    };
    let two_handles = {
        let mut lists = read(40, 7, 64).to_vec();
        lists.extend([0, 0, 1, 1, 9, 200, 0, 0]);
        with_lists(1, MSG, &lists, &[1, CALL, 2])
    };
    let supported = |remote_invalidation| PrivateData {
        remote_invalidation,
        ..sizes(4)
    };
    for (own, peer, message, handle_expected) in [
        (true, true, &one_handle, 7),
        (true, true, &two_handles, 0),
        (true, true, &msg(1, 8, CALL), 0),
        (true, false, &one_handle, 0),
        (false, true, &one_handle, 0),
    ] {
        let mut config = config(Role::Server, 9);
        (config.own, config.peer) = (supported(own), supported(peer));
        let mut server = Connection::new(&config);
        assert_eq!(server.may_invalidate(), own && peer);
        match handle(&mut server, message) {
            Event::Call {
                invalidate_handle, ..
            } => assert_eq!(invalidate_handle, handle_expected),
            other => panic!("{other:?}"),
        }
    }
}

/// RFC 8167 section 6: a client that takes no calls says so and goes on. One that does takes inline ones.
#[test]
fn reverse_calls_are_taken_where_they_are_enabled() {
    let refusal = |xid| {
        Event::Refused(Refusal {
            version: 1,
            ..Refusal::new(xid, TransportError::BadXdr)
        })
    };
    assert_eq!(handle(&mut client(), &msg(5, 8, CALL)), refusal(5));
    let mut config = config(Role::Client, 9);
    config.reverse_requests = ReverseRequestSupport::Inline;
    let mut client = Connection::new(&config);
    let call = msg(5, 8, CALL);
    assert!(matches!(
        handle(&mut client, &call),
        Event::Call { xid: 5, .. }
    ));
    let mut space = [0; 64];
    let encoded = client.encode_message(&mut space, 5, Direction::Reply, 12);
    assert_eq!(encoded, Ok(28));
    assert_eq!(words_of(&space[..28]), [5, 1, 2, MSG, 0, 0, 0]);
    // A server whose upper layer enabled nothing sends none, and no chunks where it did.
    assert_eq!(send_call(&mut server(), 1), Err(SendRefused::NotTaken));
    config.role = Role::Server;
    let mut server = Connection::new(&config);
    let none = rpcrdma_protocol::chunks::ChunkListsRepr::default();
    assert_eq!(
        server.encode_message_with_chunks(&mut space, 1, Direction::Call, &none, 12),
        Err(SendRefused::NotTaken)
    );
    let call = send_call(&mut server, 1).expect("one credit is implicit");
    assert_eq!(words_of(&call)[..4], [1, 1, 2, MSG]);
}

/// RFC 8166 section 3.3.2, RFC 8797 section 5.1: the smaller size counts, and without private data 1024.
#[test]
fn thresholds_are_the_smaller_sizes_of_both_ends() {
    for (own, peer, send, receive) in [
        (sizes(4), sizes(4), 4096, 4096),
        (sizes(4), PrivateData::default(), 1024, 1024),
        (
            sizes(4),
            PrivateData {
                remote_invalidation: false,
                send_bytes: 2048,
                receive_bytes: 8192,
            },
            4096,
            2048,
        ),
    ] {
        let mut config = config(Role::Client, 9);
        (config.own, config.peer) = (own, peer);
        let mut client = Connection::new(&config);
        assert_eq!(client.send_threshold_bytes(), send);
        assert_eq!(client.receive_threshold_bytes(), receive);
        let room = send as usize - 28;
        let mut space = [0; 64];
        let mut encode = |bytes| client.encode_message(&mut space, 1, Direction::Call, bytes);
        assert_eq!(encode(room + 1), Err(SendRefused::TooLong));
        assert_eq!(encode(4), Err(SendRefused::TooShort));
        assert_eq!(encode(room), Ok(28));
    }
}
