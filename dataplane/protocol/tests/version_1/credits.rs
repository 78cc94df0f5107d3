//! Credits (RFC 8166 section 3.3.1, RFC 8167 section 4.1).

use rpcrdma_protocol::v1::connection::Connection;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{CloseReason, Event, Role, SendRefused};

use super::wire::{CALL, REPLY, client, config, handle, msg, send, send_call, server, words_of};

/// One call before the first reply, then as many as it grants: zero counts as one, and more than we have Receives for
/// as what we have.
#[test]
fn a_client_has_one_credit_until_it_is_granted_more() {
    for (granted, available) in [(0, 1), (1, 1), (5, 5), (8, 8), (9, 8), (u32::MAX, 8)] {
        let mut client = client();
        assert_eq!(client.calls_available(), 0);
        assert_eq!(send_call(&mut client, 2), Err(SendRefused::NoCredit));
        handle(&mut client, &msg(1, granted, REPLY));
        for xid in 0..available {
            assert_eq!(client.calls_available(), available - xid, "{granted}");
            let call = send_call(&mut client, xid).expect("a credit");
            assert_eq!(
                words_of(&call)[2],
                8,
                "what we ask for stands in every call"
            );
        }
        assert_eq!(send_call(&mut client, 99), Err(SendRefused::NoCredit));
    }
}

/// A reply that is kept in its Receive takes the place of a call.
#[test]
fn a_client_has_a_receive_for_each_reply() {
    let mut client = client();
    let reply = msg(1, 100, REPLY);
    client.handle_message(&reply);
    assert_eq!(client.receives_posted(), 8);
    assert_eq!(client.calls_available(), 8);
    let mut client = self::client();
    handle(&mut client, &reply);
    for xid in 2..4 {
        send_call(&mut client, xid).expect("a credit");
    }
    for xid in 2..4 {
        client.handle_message(&msg(xid, 100, REPLY));
    }
    assert_eq!(client.receives_posted(), 7);
    assert_eq!(client.calls_available(), 7, "one of them is the spare");
}

/// The grant stands in every reply and every error, never changes, and is never zero.
#[test]
fn a_server_grants_the_same_in_every_reply() {
    let mut server = server();
    for xid in 0..20 {
        assert!(matches!(
            handle(&mut server, &msg(xid, 1, CALL)),
            Event::Call { .. }
        ));
        let reply = send(&mut server, xid, REPLY).expect("a call waits");
        assert_eq!(words_of(&reply)[..3], [xid, 1, 8]);
    }
    assert_eq!(send(&mut server, 1, REPLY), Err(SendRefused::NoCredit));
    let mut least = Connection::new(&config(Role::Server, 2));
    handle(&mut least, &msg(1, 1, CALL));
    let reply = send(&mut least, 1, REPLY).expect("a call waits");
    assert_eq!(words_of(&reply)[2], 1);
}

/// A reply leaves when there is a Receive for the call that it allows, and not before.
#[test]
fn a_reply_waits_for_the_receive_that_it_grants() {
    let mut server = server();
    for xid in 0..8 {
        server.handle_message(&msg(xid, 8, CALL));
    }
    // Eight calls keep their Receives; the ninth is the spare, and the credit of the first reply.
    assert_eq!(server.receives_posted(), 1);
    send(&mut server, 0, REPLY).expect("the spare Receive is there");
    assert!(!server.may_reply());
    assert_eq!(send(&mut server, 1, REPLY), Err(SendRefused::NoCredit));
    server.handle_receives_posted(1);
    send(&mut server, 1, REPLY).expect("the first Receive is back");
}

/// The requester of Linux does not count a call whose task was killed, so that there may be a window of such calls, and
/// a new one. More than that is no way of counting.
#[test]
fn calls_beyond_the_grant_are_taken_up_to_twice_as_many() {
    let mut server = server();
    for xid in 0..16 {
        assert!(matches!(
            handle(&mut server, &msg(xid, 8, CALL)),
            Event::Call { .. }
        ));
        let beyond = (xid + 1).saturating_sub(8);
        assert_eq!(server.calls_beyond_grant_total(), beyond);
    }
    // They are answered as others are, and the grant stays.
    for xid in 0..16 {
        let reply = send(&mut server, xid, REPLY).expect("a call waits");
        assert_eq!(words_of(&reply)[..3], [xid, 1, 8]);
    }
    assert_eq!(send(&mut server, 16, REPLY), Err(SendRefused::NoCredit));
    for xid in 16..32 {
        handle(&mut server, &msg(xid, 8, CALL));
    }
    let call = msg(32, 8, CALL);
    let event = handle(&mut server, &call);
    assert_eq!(event, Event::Close(CloseReason::OverSend));
    assert_eq!(send(&mut server, 16, REPLY), Err(SendRefused::Over));
}

/// Nine Receives keep nine calls, with the spare one; the tenth has none of its own. Replies leave nevertheless, since a
/// peer beyond its grant may send nothing more.
#[test]
fn a_call_beyond_the_grant_needs_a_receive() {
    let mut server = server();
    for xid in 0..9 {
        let call = msg(xid, 8, CALL);
        let event = server.handle_message(&call);
        assert!(matches!(event, Event::Call { .. }));
    }
    assert_eq!(server.receives_posted(), 0);
    let mut other = server.clone();
    let call = msg(9, 8, CALL);
    let event = other.handle_message(&call);
    assert_eq!(event, Event::Close(CloseReason::OverSend));
    send(&mut server, 0, REPLY).expect("nothing may follow it");
    assert!(!server.may_reply(), "a call may follow the next one");
    server.handle_receives_posted(1);
    send(&mut server, 1, REPLY).expect("there is a Receive for it");
}

/// Receives for the replies to calls of ours are not for calls beyond the grant.
#[test]
fn a_call_beyond_the_grant_takes_no_receive_of_a_reply() {
    let mut config = config(Role::Server, 9);
    config.reverse_requests = ReverseRequestSupport::Inline;
    let mut server = Connection::new(&config);
    handle(&mut server, &msg(0, 8, CALL));
    send(&mut server, 0, REPLY).expect("a call waits");
    send_call(&mut server, 70).expect("one credit is implicit");
    // Six are granted, the spare Receive and one of those for replies are left.
    for xid in 1..9 {
        let call = msg(xid, 8, CALL);
        let event = server.handle_message(&call);
        assert!(matches!(event, Event::Call { .. }), "{xid}: {event:?}");
    }
    assert_eq!(server.receives_posted(), 1);
    let call = msg(9, 8, CALL);
    let event = server.handle_message(&call);
    assert_eq!(event, Event::Close(CloseReason::OverSend));
}

/// What is discarded in silence uses no credit of anybody, and the Receives do not run out.
#[test]
fn discarded_messages_use_no_credit() {
    let mut server = server();
    for _ in 0..100 {
        handle(&mut server, &[0; 12]);
    }
    for xid in 0..8 {
        assert!(matches!(
            handle(&mut server, &msg(xid, 8, CALL)),
            Event::Call { .. }
        ));
    }
}

/// RFC 8167 section 4.1: each direction has credits of its own, and neither takes the other's.
#[test]
fn directions_have_credits_of_their_own() {
    let with_reverse = |role| {
        let mut config = config(role, 9);
        config.reverse_requests = ReverseRequestSupport::Inline;
        Connection::new(&config)
    };
    let mut server = with_reverse(Role::Server);
    // Nine Receives: two for replies to reverse calls, one spare.
    for xid in 0..6 {
        assert!(matches!(
            handle(&mut server, &msg(xid, 8, CALL)),
            Event::Call { .. }
        ));
    }
    let call = send_call(&mut server, 70).expect("one credit is implicit");
    assert_eq!(words_of(&call)[2], 2, "what it asks for");
    assert_eq!(send_call(&mut server, 71), Err(SendRefused::NoCredit));
    assert!(matches!(
        handle(&mut server, &msg(70, 16, REPLY)),
        Event::Reply { xid: 70, .. }
    ));
    assert_eq!(
        server.calls_available(),
        2,
        "a grant beyond what it asked for"
    );
    let reply = send(&mut server, 0, REPLY).expect("a call waits");
    assert_eq!(words_of(&reply)[2], 6, "the grant of the forward direction");

    let mut client = with_reverse(Role::Client);
    send_call(&mut client, 1).expect("one credit is implicit");
    assert!(matches!(
        handle(&mut client, &msg(50, 16, CALL)),
        Event::Call { .. }
    ));
    let reply = send(&mut client, 50, REPLY).expect("a call waits");
    assert_eq!(words_of(&reply)[2], 2, "the grant of the reverse direction");
    handle(&mut client, &msg(1, 100, REPLY));
    assert_eq!(client.calls_available(), 6);
}
