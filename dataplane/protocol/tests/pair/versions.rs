//! Version negotiation, first messages, thresholds, transport errors and their roles (-00 sections 4.3, 5.2, 6.4.3).

use rpcrdma_protocol::constants::{HOST_AUTHENTICATION_BYTES_MAX, RTR_TRANSMISSIONS_MAX};
use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, Direction, DiscardReason, Event, Phase, Refusal, Role, SendRefused,
};
use rpcrdma_protocol::v2::{ApplicationProperties, ErrVers, Properties, TransportError};

use super::connections::{config, established};
use super::wire::{self, MORE, RESPONSE, bytes_of, credit, rpc, words_of};

fn client_that_waits() -> Connection {
    let mut client = Connection::new(&config(Role::Client, 10));
    let mut space = [0; 1024];
    client
        .encode_properties(&mut space, 0)
        .expect("one credit is implicit");
    assert_eq!(client.phase(), Phase::ClientWaiting);
    client
}

fn refused(event: Event<'_>) -> (u32, TransportError) {
    match event {
        Event::Refused(refusal) => (refusal.xid, refusal.error),
        other => panic!("not refused: {other:?}"),
    }
}

/// The probe: version 2, at least 28 octets so that a version 1 server answers it, at most 1024.
#[test]
fn first_message_is_between_28_and_1024_octets() {
    let mut client = Connection::new(&config(Role::Client, 10));
    let mut space = [0; 2048];
    assert_eq!(
        client.encode_message(&mut space, 1, Direction::Call, false, 989),
        Err(SendRefused::TooLong)
    );
    assert_eq!(
        client.encode_properties_part(&mut space, 1, false, 4),
        Err(SendRefused::TooShort)
    );
    assert_eq!(client.phase(), Phase::ClientStart);
    let mut properties_first = client.clone();
    let bytes = properties_first
        .encode_properties(&mut space, 3)
        .expect("one credit is implicit");
    assert!((28..=1024).contains(&bytes));
    assert_eq!(words_of(&space[..20]), [3, 2, credit(8, 9), 5, 0]);
    assert_eq!(
        client.encode_message(&mut space, 1, Direction::Call, false, 988),
        Ok(36)
    );
}

/// A client sends at most 1024 octets until the server has spoken version 2, then 4096; the server 4096 at once.
#[test]
fn threshold_is_1024_until_the_server_speaks() {
    let mut client = client_that_waits();
    assert_eq!(client.send_threshold_bytes(), 1024);
    client.handle_message(&wire::grant(1, 8));
    assert_eq!(client.send_threshold_bytes(), 4096);
    let server = established(Role::Server, 10);
    assert_eq!(server.send_threshold_bytes(), 4096);
}

/// Then the smaller of the peer's receive buffers and our send size, whenever the properties come.
#[test]
fn threshold_follows_the_properties_of_both_ends() {
    let mut client_config = config(Role::Client, 10);
    client_config.properties.send_bytes_max = 6000;
    let mut client = Connection::new(&client_config);
    let peer = |receive_buffer_bytes| Properties {
        receive_buffer_bytes,
        ..Properties::default()
    };
    client.handle_peer_properties(&peer(9000));
    assert_eq!(client.send_threshold_bytes(), 1024, "the first message");
    let mut space = [0; 1024];
    client.encode_properties(&mut space, 0).expect("a credit");
    client.handle_message(&wire::grant(1, 8));
    for (receive_buffer_bytes, threshold) in [(9000, 6000), (5000, 5000), (4096, 4096), (16, 1024)]
    {
        client.handle_peer_properties(&peer(receive_buffer_bytes));
        assert_eq!(client.send_threshold_bytes(), threshold);
    }
}

/// A server answers a version that it does not speak with ERR_VERS in the version 1 layout, as often as it comes; the
/// first supported version after that is the one, and both ends have their implicit credit.
#[test]
fn server_answers_other_versions_until_one_fits() {
    let mut server = Connection::new(&config(Role::Server, 2));
    for version in [1, 3, 0, u32::MAX] {
        let message = bytes_of(&[0xabcd, version, 32, 0, 0, 0, 0]);
        let event = server.handle_message(&message);
        let Event::Refused(refusal) = event else {
            panic!("not refused: {event:?}");
        };
        let supported = ErrVers { low: 2, high: 2 };
        assert_eq!(refusal.error, TransportError::Vers(supported));
        let mut space = [0; 64];
        // The answer waits for the Receive that the message took.
        assert_eq!(
            server.encode_error(&mut space, &refusal),
            Err(SendRefused::NoCredit)
        );
        server.handle_receives_posted(1);
        let bytes = server
            .encode_error(&mut space, &refusal)
            .expect("the implicit credit");
        assert_eq!(words_of(&space[..bytes]), [0xabcd, version, 1, 4, 1, 2, 2]);
        assert_eq!(server.phase(), Phase::ServerStart);
    }
    assert!(matches!(
        server.handle_message(&rpc(1, 0)),
        Event::Call { .. }
    ));
    server.handle_receives_posted(1);
    assert_eq!(server.phase(), Phase::Established);
    assert_eq!(server.credits_available(), 1);
    // Now it is too late to refuse a version.
    let late = Refusal {
        version: 1,
        ..Refusal::new(1, TransportError::Vers(ErrVers { low: 2, high: 2 }))
    };
    assert_eq!(
        server.encode_error(&mut [0; 64], &late),
        Err(SendRefused::VersionKnown)
    );
}

/// Errors are not answered with errors, and too short messages of version 1 are discarded.
#[test]
fn server_discards_errors_and_short_messages_of_other_versions() {
    let version_1_error = bytes_of(&[1, 1, 32, 4, 2]);
    let short_error = bytes_of(&[1, 1, 32, 4]);
    let short_message = bytes_of(&[1, 1, 32, 0, 0, 0]);
    for (message, reason) in [
        (version_1_error, DiscardReason::UnexpectedError),
        (short_error, DiscardReason::Short),
        (short_message, DiscardReason::Short),
        (
            wire::error(1, TransportError::System),
            DiscardReason::UnexpectedError,
        ),
    ] {
        let mut server = Connection::new(&config(Role::Server, 4));
        assert_eq!(server.handle_message(&message), Event::Discarded(reason));
        assert_eq!(server.phase(), Phase::ServerStart);
    }
}

/// Neither end may change the version once it is known; and only ERR_VERS answers a client in another one.
#[test]
fn a_change_of_version_closes() {
    let version_1_call = bytes_of(&[1, 1, 32, 0, 0, 0, 0, 1, 0]);
    for mut connection in [
        established(Role::Server, 10),
        established(Role::Client, 10),
        client_that_waits(),
    ] {
        assert_eq!(
            connection.handle_message(&version_1_call),
            Event::Close(CloseReason::VersionChanged)
        );
        assert_eq!(connection.phase(), Phase::Closed);
    }
}

/// A server may not speak before the client.
#[test]
fn a_server_that_speaks_first_closes() {
    for message in [
        rpc(1, 0),
        wire::grant(1, 8),
        wire::error(1, TransportError::System),
    ] {
        let mut client = Connection::new(&config(Role::Client, 10));
        assert_eq!(
            client.handle_message(&message),
            Event::Close(CloseReason::SpokeFirst)
        );
    }
}

/// ERR_VERS is understood in the version 1 layout, with either version in its version word, and in the version 2
/// layout. Nothing is sent after it.
#[test]
fn client_learns_that_version_2_is_not_spoken() {
    for message in [
        bytes_of(&[0, 2, 32, 4, 1, 1, 1]),
        bytes_of(&[0, 1, 32, 4, 1, 1, 1]),
        bytes_of(&[0, 2, 0, 4, RESPONSE, 1, 1, 1]),
    ] {
        let mut client = client_that_waits();
        assert_eq!(
            client.handle_message(&message),
            Event::VersionMismatch { low: 1, high: 1 }
        );
        assert_eq!(client.phase(), Phase::Mismatched);
        client.handle_receives_posted(1);
        let mut space = [0; 1024];
        assert_eq!(client.credits_available(), 0);
        assert_eq!(
            client.encode_properties(&mut space, 0),
            Err(SendRefused::Over)
        );
        assert_eq!(client.encode_grant(&mut space), Err(SendRefused::Over));
        assert_eq!(
            client.handle_message(&rpc(1, 0)),
            Event::Discarded(DiscardReason::Over)
        );
    }
}

/// Four version 2 errors have 28 octets and flags 1, as ERR_VERS in the version 1 layout has a code 1.
#[test]
fn errors_of_28_octets_are_not_taken_for_err_vers() {
    for code in [5, 6, 7, 9] {
        let mut client = client_that_waits();
        let message = bytes_of(&[4, 2, 0, 4, RESPONSE, code, 1]);
        let event = client.handle_message(&message);
        let Event::TransportError { xid: 4, error } = event else {
            panic!("code {code}: {event:?}");
        };
        assert_eq!(error.code(), code);
        assert_eq!(client.phase(), Phase::ClientWaiting);
    }
    // After the first valid message, the version 1 layout is none: as a version 2 error it breaks off.
    let mut client = established(Role::Client, 10);
    assert_eq!(
        client.handle_message(&bytes_of(&[0, 2, 32, 4, 1, 1, 1])),
        Event::Close(CloseReason::BadError)
    );
}

/// All ten codes and unknown ones reach the caller, at either end: both can be requesters.
#[test]
fn transport_errors_reach_the_requester() {
    let bodies: [&[u32]; 9] = [
        &[2],
        &[3],
        &[4],
        &[5, 8],
        &[6, 8],
        &[7, 8],
        &[8, 1, 4096],
        &[9, 4096],
        &[10],
    ];
    for role in [Role::Client, Role::Server] {
        for body in bodies.into_iter().chain([&[77][..], &[1, 1, 1]]) {
            let mut connection = established(role, 10);
            let mut words = vec![6, 2, 0, 4, RESPONSE];
            words.extend_from_slice(body);
            let message = bytes_of(&words);
            let event = connection.handle_message(&message);
            let Event::TransportError { xid: 6, error } = event else {
                panic!("{body:?}: {event:?}");
            };
            assert_eq!(error.code(), body[0]);
        }
    }
}

/// A responder answers; a requester, who may not send errors, closes. F_RESPONSE tells which one we are.
#[test]
fn wrong_messages_are_answered_by_responders_and_close_at_requesters() {
    let payload = [9, 0, 0];
    // Header type, flags, and words 5 to 8 of a message, and what is wrong with it.
    let cases = [
        (77, 0, [0; 4], TransportError::InvalHtype),
        (2, 0, [0; 4], TransportError::InvalHtype),
        (3, 0, [0; 4], TransportError::InvalHtype),
        (0, 0x8000_0000, [0; 4], TransportError::InvalFlag),
        (0, 4, [0; 4], TransportError::InvalFlag),
        (0, 0, [0, 2, 0, 0], TransportError::BadXdr),
        (0, 0, [0, 0, 0, 9], TransportError::BadXdr),
        (1, MORE, [7, 0, 0, 0], TransportError::InvalFlag),
    ];
    for (header_type, flags, lists, error) in cases {
        for response in [0, RESPONSE] {
            let mut words = vec![9, 2, credit(0, 100), header_type, flags | response];
            words.extend_from_slice(&lists);
            if header_type != 1 {
                words.extend_from_slice(&payload);
            }
            let mut server = established(Role::Server, 10);
            let message = bytes_of(&words);
            let event = server.handle_message(&message);
            if response == 0 {
                assert_eq!(refused(event), (9, error));
                assert_eq!(server.phase(), Phase::Established);
            } else {
                assert_eq!(event, Event::Close(CloseReason::BadReply(error)));
            }
        }
    }
}

/// The XID and the type inside must be those of the header: a call is BAD_XDR, a reply is dropped. Eight octets are
/// needed to tell.
#[test]
fn rpc_message_that_contradicts_its_header() {
    for payload in [&[9, 1, 0][..], &[8, 0, 0], &[9, 2, 0], &[8, 1, 0], &[9]] {
        let mut server = established(Role::Server, 10);
        let message = wire::message(9, 0, &bytes_of(payload));
        let event = server.handle_message(&message);
        assert_eq!(refused(event), (9, TransportError::BadXdr), "{payload:?}");
    }
    for payload in [&[9, 0, 0][..], &[8, 1, 0], &[9]] {
        let mut server = established(Role::Server, 10);
        let message = wire::message(9, RESPONSE, &bytes_of(payload));
        let event = server.handle_message(&message);
        let dropped = Event::Discarded(DiscardReason::ReplyMismatch { xid: 9 });
        assert_eq!(event, dropped, "{payload:?}");
    }
}

/// Any receiver answers a wrong CONNPROP; so may a client.
#[test]
fn wrong_properties_are_answered_at_both_ends() {
    for role in [Role::Client, Role::Server] {
        for flags in [0, RESPONSE] {
            let mut connection = established(role, 10);
            // SBSIZ of three octets.
            let message = wire::properties(6, flags, &[1, 1, 3, 0]);
            let event = connection.handle_message(&message);
            assert_eq!(refused(event), (6, TransportError::BadXdr));
            let mut space = [0; 24];
            let refusal = Refusal::new(6, TransportError::BadXdr);
            assert_eq!(connection.encode_error(&mut space, &refusal), Ok(24));
            assert_eq!(words_of(&space), [6, 2, 0, 4, RESPONSE, 2]);
        }
    }
}

/// Properties are handed over whole; unknown ones are skipped and absent ones have their defaults.
#[test]
fn properties_are_handed_over() {
    let mut server = Connection::new(&config(Role::Server, 10));
    let message = wire::properties(6, 0, &[2, 0x9999, 4, 1, 2, 4, 8192]);
    let Event::Properties { xid: 6, set } = server.handle_message(&message) else {
        panic!("no properties");
    };
    let expected = Properties {
        receive_buffer_bytes: 8192,
        ..Properties::default()
    };
    assert_eq!(set.properties(), expected);
    assert_eq!(server.phase(), Phase::Established);
}

/// Host authentication goes with the properties in the first message, within its 1024 octets, and alone after it.
#[test]
fn host_authentication_is_sent_with_properties_and_alone() {
    let mut client = Connection::new(&config(Role::Client, 10));
    let mut server = Connection::new(&config(Role::Server, 10));
    let longest = [0x5a; HOST_AUTHENTICATION_BYTES_MAX];
    let mut space = [0; 4096];
    let too_long = [0; HOST_AUTHENTICATION_BYTES_MAX + 1];
    assert_eq!(
        client.encode_host_authentication(&mut space, 0, &too_long, None),
        Err(SendRefused::TooLong)
    );
    let bytes = client
        .encode_host_authentication(&mut space, 0, &longest, Some(&ApplicationProperties::NONE))
        .expect("the first message holds it");
    assert!(bytes <= 1024, "{bytes}");
    let Event::Properties { set, .. } = server.handle_message(&space[..bytes]) else {
        panic!("no properties");
    };
    assert_eq!(set.host_authentication(), Some(&longest[..]));
    assert_eq!(set.properties(), config(Role::Client, 10).properties);
    let bytes = server
        .encode_host_authentication(&mut space, 0, b"alone", None)
        .expect("the client granted a credit");
    let Event::Properties { set, .. } = client.handle_message(&space[..bytes]) else {
        panic!("no properties");
    };
    assert!(set.is_host_authentication_alone());
    assert_eq!(set.host_authentication(), Some(&b"alone"[..]));
}

/// Below the least size of its type a message is discarded in silence; at the least size it is not.
#[test]
fn least_sizes() {
    for (message, least) in [
        (rpc(1, 0), 40),
        (wire::grant(1, 100), 36),
        (wire::error(1, TransportError::System), 24),
        (wire::properties(1, 0, &[0]), 24),
        (bytes_of(&[1, 2, 0x0064_0000, 77, 0]), 20),
    ] {
        for length in 0..=message.len() {
            let mut server = established(Role::Server, 10);
            let event = server.handle_message(&message[..length]);
            let short = event == Event::Discarded(DiscardReason::Short);
            assert_eq!(short, length < least, "{length} octets: {event:?}");
            assert_eq!(server.phase(), Phase::Established);
        }
    }
}

/// Of a version that nobody knows nothing can be trusted below 28 octets, not even the XID: no answer, and no end of the
/// connection (RFC 8166 section 4.5).
#[test]
fn least_sizes_of_unknown_versions() {
    for header_type in [0, 4] {
        let message = bytes_of(&[1, 7, 0x0064_0000, header_type, 0, 0, 0]);
        for length in 0..28 {
            for mut server in [
                Connection::new(&config(Role::Server, 10)),
                established(Role::Server, 10),
            ] {
                let phase = server.phase();
                let event = server.handle_message(&message[..length]);
                assert_eq!(
                    event,
                    Event::Discarded(DiscardReason::Short),
                    "{length} octets"
                );
                assert_eq!(server.phase(), phase);
            }
        }
        let mut server = established(Role::Server, 10);
        let event = server.handle_message(&message);
        assert_eq!(event, Event::Close(CloseReason::VersionChanged));
    }
}

/// The first message of supported version and full size fixes the version, be it wrong: it is answered in version 2.
#[test]
fn a_wrong_first_message_is_answered_in_version_2() {
    let mut server = Connection::new(&config(Role::Server, 10));
    let message = bytes_of(&[9, 2, credit(4, 9), 77, 0]);
    let event = server.handle_message(&message);
    assert_eq!(refused(event), (9, TransportError::InvalHtype));
    assert_eq!(server.phase(), Phase::Established);
    let mut space = [0; 24];
    let refusal = Refusal::new(9, TransportError::InvalHtype);
    assert_eq!(server.encode_error(&mut space, &refusal), Ok(24));
    // The client has no credit left, and an error grants none.
    server.handle_receives_posted(1);
    assert!(server.grant_due());
}

/// A draining connection starts no calls, and finishes what has begun.
#[test]
fn draining_sends_replies_and_the_rest_of_a_call() {
    let mut server = established(Role::Server, 10);
    let mut space = [0; 64];
    server
        .encode_message(&mut space, 1, Direction::Call, true, 12)
        .expect("not draining yet");
    server.handle_drain();
    assert_eq!(
        server.encode_message(&mut space, 1, Direction::Call, false, 12),
        Ok(36)
    );
    assert_eq!(
        server.encode_message(&mut space, 2, Direction::Call, false, 12),
        Err(SendRefused::Draining)
    );
    assert_eq!(
        server.encode_message(&mut space, 2, Direction::Reply, false, 12),
        Ok(36)
    );
    assert!(matches!(
        server.handle_message(&rpc(3, 0)),
        Event::Call { xid: 3, .. }
    ));
}

/// A connection is small, and so is what it says of a message. Most of it is what a transmission group asks of each
/// of its transmissions, eight octets for every one that it may have, and the headers that later ones are compared with.
#[test]
fn sizes_are_small() {
    assert!(
        size_of::<Connection>() <= 320 + 2 * 232 + 8 * RTR_TRANSMISSIONS_MAX,
        "{}",
        size_of::<Connection>()
    );
    assert!(size_of::<Event<'_>>() <= 104, "{}", size_of::<Event<'_>>());
    assert!(size_of::<Refusal>() <= 24);
}
