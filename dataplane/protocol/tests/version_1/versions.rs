//! Which version a connection speaks (RFC 8166 section 7, -00 section 4.3.3).

use rpcrdma_protocol::connection::{Connection, Terms, Versions, chunks_of};
use rpcrdma_protocol::v2::connection::{
    Config, Direction, Event, Refusal, Role, SendRefused, Tick,
};
use rpcrdma_protocol::v2::{ErrVers, Properties, ReverseRequestSupport, TransportError};

use super::wire::{CALL, ERROR, MSG, REPLY, bytes_of, msg, read, sizes, with_lists, words_of};

fn connection(role: Role, versions: Versions) -> Connection {
    let config = Config {
        role,
        receive_reserve: 9,
        properties: Properties {
            reverse_requests: ReverseRequestSupport::None,
            ..Properties::default()
        },
        message_bytes_max: 1 << 16,
    };
    let terms = Terms {
        versions,
        own: sizes(4),
        peer: sizes(2),
    };
    Connection::new(&config, &terms)
}

/// Handles a message whose Receive is posted again at once.
fn handle<'m>(connection: &mut Connection, message: &'m [u8]) -> Event<'m> {
    let event = connection.handle_message(message);
    connection.handle_receives_posted(1);
    event
}

/// A version 2 call: an RDMA2_MSG with a grant.
fn call_2(xid: u32) -> Vec<u8> {
    bytes_of(&[xid, 2, 8 << 16 | 7, 0, 0, 0, 0, 0, 0, xid, CALL, 2])
}

fn refusal(event: Event<'_>) -> Refusal {
    match event {
        Event::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_server_of_both_speaks_the_version_of_the_first_message() {
    let mut server = connection(Role::Server, Versions::Both);
    assert_eq!(server.version(), None);
    let call = msg(1, 32, CALL);
    assert!(server.begins_version_1(&call));
    assert!(matches!(
        handle(&mut server, &call),
        Event::Call { xid: 1, .. }
    ));
    assert_eq!(server.version(), Some(1));
    assert!(server.is_version_1());
    assert_eq!(server.send_threshold_bytes(), 2048);
    assert_eq!(server.receive_threshold_bytes(), 2048);
    assert_ne!(server.credits_for_replies(), 0);
    let mut space = [0; 1024];
    let encoded = server.encode_message(&mut space, 1, Direction::Reply, false, 24);
    assert_eq!(encoded, Ok(28));
    assert_eq!(words_of(&space[..28]), [1, 1, 8, MSG, 0, 0, 0]);
    // Nothing of version 2 is left.
    assert!(!server.grant_due());
    assert_eq!(server.handle_tick(3), Tick::Quiet);
    assert_eq!(
        server.version_2_mut().encode_properties(&mut space, 0),
        Err(SendRefused::Over)
    );
    assert_eq!(
        refusal(handle(&mut server, &call_2(2))).error,
        TransportError::Vers(ErrVers { low: 1, high: 1 })
    );

    let mut server = connection(Role::Server, Versions::Both);
    let call = call_2(1);
    assert!(!server.begins_version_1(&call));
    assert!(matches!(
        handle(&mut server, &call),
        Event::Call { xid: 1, .. }
    ));
    assert_eq!(server.version(), Some(2));
    assert!(!server.begins_version_1(&msg(2, 1, CALL)));
    assert!(matches!(
        handle(&mut server, &msg(2, 1, CALL)),
        Event::Close(_)
    ));
}

/// ERR_VERS tells what is supported; a client may try another version after it, on the same connection.
#[test]
fn a_server_tells_the_versions_that_it_has() {
    for (versions, low, high) in [
        (Versions::One, 1, 1),
        (Versions::Two, 2, 2),
        (Versions::Both, 1, 2),
    ] {
        let mut server = connection(Role::Server, versions);
        let mut wanted = bytes_of(&[0xabcd, 3, 32, 0, 0, 0, 0]);
        let refused = refusal(handle(&mut server, &wanted));
        let mut space = [0; 64];
        let bytes = server.encode_error(&mut space, &refused).expect("a credit");
        let words = words_of(&space[..bytes]);
        assert_eq!(
            (words[0], words[1], &words[3..]),
            (0xabcd, 3, &[ERROR, 1, low, high][..])
        );
        assert_eq!(bytes, 28);
        wanted = if low == 1 { msg(1, 8, CALL) } else { call_2(1) };
        assert!(matches!(handle(&mut server, &wanted), Event::Call { .. }));
        assert_eq!(server.version(), Some(low));
        assert!(!server.awaits_first_answer(), "the client spoke first");
    }
}

/// A client of both asks for version 2, and goes on with version 1 when the server says that this is what it has.
#[test]
fn a_client_of_both_falls_back_to_version_1() {
    let mut space = [0; 1024];
    let answer = |low, high| bytes_of(&[0, 2, 64, ERROR, 1, low, high]);
    for (versions, low, high, falls_back) in [
        (Versions::Both, 1, 1, true),
        (Versions::Both, 3, 4, false),
        (Versions::Two, 1, 1, false),
    ] {
        let mut client = connection(Role::Client, versions);
        assert_eq!(client.version(), None);
        assert!(!client.awaits_first_answer(), "nothing was sent");
        let probe = client.version_2_mut().encode_properties(&mut space, 0);
        assert!(probe.is_ok());
        assert!(client.awaits_first_answer());
        let answer = answer(low, high);
        let event = handle(&mut client, &answer);
        if !falls_back {
            assert_eq!(event, Event::VersionMismatch { low, high });
            assert_eq!(client.credits_available(), 0);
            continue;
        }
        assert_eq!(event, Event::FellBack);
        assert_eq!(client.version(), Some(1));
        assert_eq!(client.credits_available(), 1);
        assert!(
            !client.awaits_first_answer(),
            "the server refused version 2"
        );
        let encoded = client.encode_message(&mut space, 7, Direction::Call, false, 40);
        assert_eq!(encoded, Ok(28));
        assert_eq!(words_of(&space[..28]), [7, 1, 8, MSG, 0, 0, 0]);
        assert!(client.awaits_first_answer());
        assert!(matches!(
            handle(&mut client, &msg(7, 64, REPLY)),
            Event::Reply { xid: 7, .. }
        ));
        assert!(!client.awaits_first_answer());
        assert_eq!(
            client.credits_available(),
            8,
            "the Receive of the probe's answer is back"
        );
        assert_eq!(client.messages_passed(), (1, 2));
    }
}

#[test]
fn a_client_of_version_1_alone_begins_with_it() {
    let mut client = connection(Role::Client, Versions::One);
    assert_eq!(client.version(), Some(1));
    let mut space = [0; 1024];
    let encoded = client.encode_message(&mut space, 7, Direction::Call, false, 40);
    assert_eq!(encoded, Ok(28));
    assert!(client.fits_in_one_message(2020, 0) && !client.fits_in_one_message(2020, 4));
    assert!(!client.can_send_without_chunks(2021));
    assert!(connection(Role::Client, Versions::Two).can_send_without_chunks(5000));
}

/// Lists are read again from kept headers of either version.
#[test]
fn kept_headers_of_either_version_are_read() {
    let mut lists = read(40, 7, 64).to_vec();
    lists.extend([0, 0, 0]);
    let one = with_lists(1, MSG, &lists, &[1, CALL, 2]);
    let chunks = chunks_of(&one).expect("it decodes");
    assert_eq!((chunks.inv_handle, chunks.lists.reads.len()), (7, 1));
    let mut words = vec![1, 2, 0, 0, 0, 9];
    words.extend(&lists);
    words.extend([1, CALL, 2]);
    let two = bytes_of(&words);
    let chunks = chunks_of(&two).expect("it decodes");
    assert_eq!((chunks.inv_handle, chunks.lists.reads.len()), (9, 1));
    assert!(chunks_of(&one[..20]).is_none());
}

/// Before its first message a connection may have any number of its Receives taken; later, in version 1, none. More may
/// be added at any time, and are for calls of the client.
#[test]
fn a_credit_limit_is_lowered_before_the_first_message_alone() {
    for versions in [Versions::One, Versions::Both] {
        let mut server = connection(Role::Server, versions);
        assert_eq!(server.lower_credit_limit(2), 6);
        handle(&mut server, &msg(1, 32, CALL));
        assert_eq!(server.credits_granted(), 2);
        assert_eq!(server.lower_credit_limit(1), 0, "{versions:?}");
        assert_eq!(
            (server.raise_credit_limit(5), server.credits_granted()),
            (3, 5)
        );
        assert_eq!(
            (server.raise_credit_limit(99), server.credits_granted()),
            (3, 8)
        );
    }
    let mut client = connection(Role::Client, Versions::One);
    assert_eq!(client.lower_credit_limit(2), 6);
    assert_eq!(client.raise_credit_limit(3), 1);
    let mut space = [0; 1024];
    client
        .encode_message(&mut space, 1, Direction::Call, false, 24)
        .expect("one credit is implicit");
    assert_eq!(words_of(&space[..12])[2], 3, "what it asks for");
}
