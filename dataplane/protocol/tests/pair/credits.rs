//! Credits, grants, spare Receives and keep-alives (-00 sections 4.3.1 and 6.4.2).

use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, Direction, DiscardReason, Event, Refusal, Role, SendRefused, Tick,
};

use super::connections::{config, established};
use super::wire::{self, MORE, RESPONSE, bytes_of, credit, message_with_credit, rpc, words_of};

/// A call of twelve octets, as the connection writes it.
fn send_call(connection: &mut Connection, xid: u32) -> Result<Vec<u8>, SendRefused> {
    let mut space = [0; 36];
    connection.encode_message(&mut space, xid, Direction::Call, false, 12)?;
    Ok(space.to_vec())
}

fn send_grant(connection: &mut Connection) -> Result<Vec<u8>, SendRefused> {
    let mut space = [0; 36];
    connection.encode_grant(&mut space)?;
    Ok(space.to_vec())
}

/// The peer uses credits, and its messages' Receives are posted again.
fn use_credits(connection: &mut Connection, count: u16) {
    for xid in 0..count {
        connection.handle_message(&rpc(u32::from(xid), 0));
        connection.handle_receives_posted(1);
    }
}

/// The first grant is the reserve without the spare and without the one implicit credit; the maximum is the reserve
/// without the spare. For a reserve of two the first grant is nothing.
#[test]
fn first_grant_is_the_reserve_without_spare_and_implicit_credit() {
    for reserve in [2, 3, 10, u16::MAX] {
        let mut client = Connection::new(&config(Role::Client, reserve));
        let call = send_call(&mut client, 7).expect("one credit is implicit");
        let (granted, maximum) = (u32::from(reserve) - 2, u32::from(reserve) - 1);
        assert_eq!(words_of(&call)[2], credit(granted, maximum));
        assert_eq!(client.credits().unconsumed(), maximum);
        assert_eq!(client.credits().owed, 0);
    }
}

/// One message of a client is on its way until the server has granted something; so is one of the server's.
#[test]
fn one_message_until_the_first_grant() {
    let mut client = Connection::new(&config(Role::Client, 10));
    assert_eq!(client.credits_available(), 1);
    send_call(&mut client, 1).expect("one credit is implicit");
    assert_eq!(client.credits_available(), 0);
    assert_eq!(
        send_call(&mut client, 2),
        Err(SendRefused::AwaitingFirstAnswer)
    );
    // Nor is there another message that uses no credit.
    assert_eq!(
        send_grant(&mut client),
        Err(SendRefused::AwaitingFirstAnswer)
    );

    let mut server = Connection::new(&config(Role::Server, 10));
    assert_eq!(server.credits_available(), 0);
    assert_eq!(send_call(&mut server, 1), Err(SendRefused::VersionUnknown));
    assert_eq!(send_grant(&mut server), Err(SendRefused::VersionUnknown));
    server.handle_message(&message_with_credit(
        1,
        0,
        credit(0, 1),
        &bytes_of(&[1, 0, 0]),
    ));
    assert_eq!(server.credits_available(), 1);
    send_call(&mut server, 1).expect("one credit is implicit");
    assert_eq!(send_call(&mut server, 2), Err(SendRefused::NoCredit));
}

/// A transport error from the server is not the valid message that a client waits for.
#[test]
fn an_error_does_not_end_the_wait_for_the_first_grant() {
    let mut client = Connection::new(&config(Role::Client, 10));
    send_call(&mut client, 1).expect("one credit is implicit");
    let message = wire::error(1, TransportError::BadXdr);
    let event = client.handle_message(&message);
    assert!(matches!(event, Event::TransportError { xid: 1, .. }));
    assert_eq!(client.send_threshold_bytes(), 1024);
    assert_eq!(
        send_grant(&mut client),
        Err(SendRefused::AwaitingFirstAnswer)
    );
    assert_eq!(client.handle_message(&wire::grant(3, 8)), Event::Credits);
    client.handle_receives_posted(2);
    assert_eq!(client.credits_available(), 3);
    assert_eq!(client.send_threshold_bytes(), 4096);
}

/// The grant message, word by word: 36 octets, XID 0, no flag, four zero words.
#[test]
fn grant_message_is_36_octets_with_xid_zero() {
    let mut server = established(Role::Server, 10);
    use_credits(&mut server, 4);
    let grant = send_grant(&mut server).expect("it may speak");
    assert_eq!(words_of(&grant), [0, 2, credit(4, 9), 1, 0, 0, 0, 0, 0]);
}

/// Whatever the XID is, and F_RESPONSE, a bare RDMA2_NOMSG is a grant, also of nothing. A trailing word or a handle
/// makes it something else.
#[test]
fn grant_is_recognised_by_its_empty_lists_alone() {
    for (xid, flags, granted) in [(0, 0, 2), (0x1234, 0, 2), (0, RESPONSE, 2), (9, 0, 0)] {
        let mut server = established(Role::Server, 10);
        let before = server.credits();
        let message = bytes_of(&[xid, 2, credit(granted, 100), 1, flags, 0, 0, 0, 0]);
        assert_eq!(server.handle_message(&message), Event::Credits);
        let after = server.credits();
        assert_eq!(after.unused(), before.unused() + granted);
        assert_eq!(after.consumed_total, before.consumed_total);
    }
    for words in [
        vec![0, 2, credit(2, 100), 1, 0, 0, 0, 0, 0, 0],
        vec![0, 2, credit(2, 100), 1, 0, 5, 0, 0, 0],
    ] {
        let mut server = established(Role::Server, 10);
        let message = bytes_of(&words);
        let event = server.handle_message(&message);
        assert!(matches!(
            event,
            Event::Refused(Refusal {
                error: TransportError::BadXdr,
                ..
            })
        ));
    }
}

/// The Receive that took a grant is posted again and never granted; that of any other message is granted.
#[test]
fn the_receive_of_a_grant_is_never_granted() {
    let mut server = established(Role::Server, 10);
    send_call(&mut server, 1).expect("a credit is there");
    assert_eq!(server.credits().owed, 0);
    server.handle_message(&wire::grant(5, 100));
    server.handle_receives_posted(1);
    assert_eq!(server.credits().owed, 0);
    for message in [
        rpc(1, 0),
        rpc(1, RESPONSE),
        wire::error(1, TransportError::System),
        vec![0; 7],
        bytes_of(&[1, 2, credit(0, 100), 0, 0x80, 0, 0, 0, 0, 1, 0]),
    ] {
        let before = server.credits();
        server.handle_message(&message);
        assert_eq!(server.credits().owed, before.owed);
        server.handle_receives_posted(1);
        assert_eq!(server.credits().owed, before.owed + 1, "{message:?}");
    }
}

/// While the Receive that took a grant is not posted again, nothing is sent that the peer could take for a sign that it
/// is.
#[test]
fn nothing_is_sent_while_the_spare_receive_is_in_use() {
    let mut server = established(Role::Server, 10);
    send_call(&mut server, 1).expect("a credit is there");
    server.handle_message(&wire::grant(5, 100));
    assert_eq!(server.credits_available(), 0);
    assert_eq!(send_call(&mut server, 2), Err(SendRefused::NoCredit));
    server.handle_receives_posted(1);
    assert_eq!(server.credits_available(), 54);
}

/// A message without a credit closes the connection; so do grants for which there is no Receive.
#[test]
fn over_send_closes() {
    let mut server = Connection::new(&config(Role::Server, 4));
    assert!(matches!(
        server.handle_message(&rpc(1, 0)),
        Event::Call { .. }
    ));
    server.handle_receives_posted(1);
    // The implicit credit is used, and nothing was granted, though Receives are posted.
    assert_eq!(
        server.handle_message(&rpc(2, 0)),
        Event::Close(CloseReason::OverSend)
    );
    assert_eq!(
        server.handle_message(&rpc(3, 0)),
        Event::Discarded(DiscardReason::Over)
    );
    assert_eq!(send_call(&mut server, 1), Err(SendRefused::Over));

    let mut server = established(Role::Server, 4);
    let posted = server.credits().receives_posted;
    for _ in 0..posted {
        assert_eq!(server.handle_message(&wire::grant(0, 100)), Event::Credits);
    }
    assert_eq!(
        server.handle_message(&wire::grant(0, 100)),
        Event::Close(CloseReason::OverSend)
    );
}

/// An increment beyond the announced maximum closes the connection, and is not clamped; one up to it does not.
#[test]
fn over_grant_closes() {
    for message in [
        wire::grant(9, 9),
        message_with_credit(2, 0, credit(9, 9), &bytes_of(&[2, 0, 0])),
    ] {
        let mut server = Connection::new(&config(Role::Server, 10));
        let first = message_with_credit(1, 0, credit(0, 9), &bytes_of(&[1, 0, 0]));
        server.handle_message(&first);
        server.handle_receives_posted(1);
        send_grant(&mut server).expect("it may speak");
        // One implicit credit and nine.
        assert_eq!(
            server.handle_message(&message),
            Event::Close(CloseReason::OverGrant)
        );
    }
    let mut server = Connection::new(&config(Role::Server, 10));
    let first = message_with_credit(1, 0, credit(8, 9), &bytes_of(&[1, 0, 0]));
    assert!(matches!(
        server.handle_message(&first),
        Event::Call { xid: 1, .. }
    ));
    assert_eq!(server.credits_available(), 9);
}

/// The credit word counts before the message is refused, dropped or found too short; that of an error never does.
#[test]
fn credit_word_counts_whatever_becomes_of_the_message() {
    let grants = credit(3, 200);
    let cases = [
        // A reserved flag: refused.
        (bytes_of(&[5, 2, grants, 0, 0x100, 0, 0, 0, 0, 5, 0]), 3),
        // An unknown header type: refused.
        (bytes_of(&[5, 2, grants, 77, 0]), 3),
        // A reply that is a call inside: dropped.
        (
            message_with_credit(5, RESPONSE, grants, &bytes_of(&[5, 0, 0])),
            3,
        ),
        // An RDMA2_MSG without payload: too short.
        (bytes_of(&[5, 2, grants, 0, 0, 0, 0, 0, 0]), 3),
        // An error: ignored.
        (bytes_of(&[5, 2, grants, 4, RESPONSE, 10]), 0),
        // Not even the header type is there: nothing is known.
        (bytes_of(&[5, 2, grants]), 0),
    ];
    for (message, granted) in cases {
        let mut server = established(Role::Server, 10);
        let before = server.credits_available();
        let event = server.handle_message(&message);
        assert!(!matches!(event, Event::Close(_)), "{event:?}");
        assert_eq!(server.credits_available(), before + granted, "{event:?}");
    }
}

/// Our errors carry a credit word of 0; what was owed goes with the next message.
#[test]
fn an_error_grants_nothing_and_keeps_what_is_owed() {
    let mut server = established(Role::Server, 10);
    use_credits(&mut server, 5);
    let owed = server.credits().owed;
    assert_eq!(owed, 5);
    let mut space = [0; 64];
    let refusal = Refusal::new(5, TransportError::System);
    let available = server.credits_available();
    let bytes = server
        .encode_error(&mut space, &refusal)
        .expect("a credit is there");
    assert_eq!(words_of(&space[..bytes]), [5, 2, 0, 4, RESPONSE, 10]);
    assert_eq!(server.credits_available(), available - 1);
    assert_eq!(server.credits().owed, owed);
    // The peer stands below half its window, so a grant follows.
    assert!(server.grant_due());
    let grant = send_grant(&mut server).expect("it was due");
    assert_eq!(words_of(&grant)[2] & 0xffff, owed);
}

/// A grant is due at half the window, and not before.
#[test]
fn grant_is_due_at_half_the_window() {
    for reserve in [2_u16, 3, 4, 9, 10] {
        let window = u32::from(reserve) - 1;
        let mut server = established(Role::Server, reserve);
        assert_eq!(server.credits().unconsumed(), window, "the window is full");
        let mut used = 0;
        while !server.grant_due() {
            server.handle_message(&rpc(used, 0));
            server.handle_receives_posted(1);
            used += 1;
        }
        assert_eq!(used, window.div_ceil(2), "reserve {reserve}");
    }
}

/// Receives beyond the reserve are never granted: the peer was told a maximum.
#[test]
fn no_more_than_the_window_is_granted() {
    let mut server = established(Role::Server, 4);
    server.handle_receives_posted(100);
    send_grant(&mut server).expect("it may speak");
    assert_eq!(server.credits().unconsumed(), 3);
    assert_eq!(server.credits().owed, 0);
}

/// A second asynchronous grant waits until the peer has used a credit of the first: only then is its spare Receive
/// surely posted again.
#[test]
fn one_asynchronous_grant_is_on_its_way() {
    let mut server = established(Role::Server, 10);
    use_credits(&mut server, 5);
    let old_credits = server.credits().unconsumed();
    assert_eq!(old_credits, 4);
    send_grant(&mut server).expect("none is on its way");
    for _ in 0..old_credits {
        use_credits(&mut server, 1);
        assert!(!server.grant_due());
        assert_eq!(send_grant(&mut server), Err(SendRefused::GrantInFlight));
    }
    // The next message uses a credit of the grant, so the peer has handled it.
    use_credits(&mut server, 1);
    assert!(server.grant_due());
    send_grant(&mut server).expect("it was due");
    assert_eq!(send_grant(&mut server), Err(SendRefused::GrantInFlight));
}

/// A server whose keep-alive is on its way, and who has one credit; the peer has nine.
fn with_one_credit_behind_a_keep_alive() -> Connection {
    let mut server = Connection::new(&config(Role::Server, 10));
    let call = bytes_of(&[1, 0, 0]);
    server.handle_message(&message_with_credit(1, 0, credit(1, 2), &call));
    server.handle_receives_posted(1);
    send_call(&mut server, 1).expect("a credit is there");
    send_grant(&mut server).expect("nothing is on its way");
    server
}

/// A keep-alive grants nothing, so another grant may be needed behind it: then a credit is held back for it.
#[test]
fn a_grant_behind_a_keep_alive_holds_a_credit_back() {
    let mut server = established(Role::Server, 10);
    send_grant(&mut server).expect("nothing is on its way");
    assert_eq!(send_grant(&mut server), Err(SendRefused::GrantInFlight));
    use_credits(&mut server, 9);
    let available = server.credits_available();
    assert!(server.grant_due(), "the peer has nothing left");
    send_grant(&mut server).expect("it was due");
    assert_eq!(server.credits_available(), available - 1);
    use_credits(&mut server, 9);
    assert_eq!(server.credits_available(), available, "both have arrived");

    // With one credit only, none can be held back: the grant waits for a payload, or for the tick.
    let mut server = with_one_credit_behind_a_keep_alive();
    use_credits(&mut server, 9);
    assert_eq!(server.credits_available(), 1);
    assert!(!server.grant_due());
    assert_eq!(server.handle_tick(9), Tick::Quiet, "a call was sent");
    assert_eq!(server.handle_tick(9), Tick::SendKeepAlive);
    let grant = send_grant(&mut server).expect("the tick asked for it");
    assert_eq!(words_of(&grant)[2], credit(9, 9));
    assert_eq!(server.credits_available(), 1);
}

/// Behind a keep-alive, with one credit of ours: a peer that has used all of its own in the midst of a continued message
/// would stand still until the tick. It is granted more at once, and what it sends then gives our credit back.
#[test]
fn a_peer_that_stands_still_in_a_message_is_granted_more_at_once() {
    let mut server = with_one_credit_behind_a_keep_alive();
    let part = |server: &mut Connection| {
        server.handle_message(&rpc(7, MORE));
        server.handle_receives_posted(1);
    };
    for _ in 0..8 {
        part(&mut server);
        assert!(!server.grant_due(), "the peer can go on");
    }
    part(&mut server);
    assert_eq!(server.credits().unconsumed(), 0);
    assert_eq!(server.credits_available(), 1);
    assert!(server.grant_due(), "it cannot");
    let grant = send_grant(&mut server).expect("it was due");
    assert_eq!(words_of(&grant)[2], credit(9, 9));
    assert_eq!(server.credits_available(), 0, "it is held back");
    assert!(!server.grant_due());
    part(&mut server);
    assert_eq!(server.credits_available(), 1, "both have arrived");
}

/// An end that sent nothing for an interval sends a keep-alive, if it heard from the peer since its last one: at its
/// own tick, never in answer.
#[test]
fn keep_alives_go_to_and_fro_at_ticks() {
    let mut server = established(Role::Server, 10);
    server.handle_tick(3);
    send_call(&mut server, 1).expect("a credit is there");
    assert_eq!(server.handle_tick(3), Tick::Quiet, "a call was sent");
    assert_eq!(server.handle_tick(9), Tick::SendKeepAlive);
    send_grant(&mut server).expect("the tick asked for it");
    // Nobody answers: another one would say nothing new.
    assert_eq!(server.handle_tick(9), Tick::Quiet);
    assert_eq!(server.handle_tick(9), Tick::Quiet);
    assert_eq!(send_grant(&mut server), Err(SendRefused::GrantInFlight));
    // A keep-alive comes. The answer waits for the tick.
    assert_eq!(server.handle_message(&wire::grant(0, 100)), Event::Credits);
    server.handle_receives_posted(1);
    assert!(!server.grant_due());
    assert_eq!(server.handle_tick(9), Tick::SendKeepAlive);
    let keep_alive = send_grant(&mut server).expect("the tick asked for it");
    assert_eq!(words_of(&keep_alive)[2] & 0xffff, 0);
    assert_eq!(
        server.handle_tick(9),
        Tick::Quiet,
        "one message, one answer"
    );
}

/// A peer that is silent for the set number of ticks is dead; any message begins the count anew.
#[test]
fn a_silent_peer_is_dead_after_the_set_ticks() {
    let mut server = established(Role::Server, 10);
    server.handle_tick(3);
    for _ in 0..2 {
        assert_ne!(server.handle_tick(3), Tick::PeerSilent);
    }
    server.handle_message(&wire::grant(0, 100));
    for _ in 0..3 {
        assert_ne!(server.handle_tick(3), Tick::PeerSilent);
    }
    assert_eq!(server.handle_tick(3), Tick::PeerSilent);
    // A client that gets no first answer, too; a server that was never spoken to is for its listener to time.
    let mut client = Connection::new(&config(Role::Client, 10));
    send_call(&mut client, 1).expect("one credit is implicit");
    assert_eq!(client.handle_tick(2), Tick::Quiet);
    assert_eq!(client.handle_tick(2), Tick::PeerSilent);
    let mut server = Connection::new(&config(Role::Server, 10));
    for _ in 0..10 {
        assert_eq!(server.handle_tick(2), Tick::Quiet);
    }
}

/// What is refused changes nothing.
#[test]
fn a_refused_send_changes_nothing() {
    let mut server = established(Role::Server, 10);
    let before = server.credits();
    let mut small = [0; 35];
    let mut space = [0; 64];
    let call = Direction::Call;
    let refusal = Refusal::new(1, TransportError::System);
    assert_eq!(
        server.encode_message(&mut small, 1, call, true, 12),
        Err(SendRefused::NoSpace)
    );
    assert_eq!(server.encode_grant(&mut small), Err(SendRefused::NoSpace));
    assert_eq!(
        server.encode_error(&mut small[..20], &refusal),
        Err(SendRefused::NoSpace)
    );
    assert_eq!(
        server.encode_properties(&mut small, 1),
        Err(SendRefused::NoSpace)
    );
    assert_eq!(
        server.encode_message(&mut space, 1, call, false, 3),
        Err(SendRefused::TooShort)
    );
    assert_eq!(
        server.encode_message(&mut space, 1, call, false, 4061),
        Err(SendRefused::TooLong)
    );
    assert_eq!(
        server.encode_message(&mut space, 1, call, false, usize::MAX),
        Err(SendRefused::TooLong)
    );
    assert_eq!(server.credits(), before);
    assert!(!server.sequence_open());
    assert_eq!(
        server.encode_message(&mut space, 1, call, false, 4060),
        Ok(36)
    );
}
