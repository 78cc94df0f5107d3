//! Calls of the server to the client (RFC 8167; -00 section 5.2.5).

use proptest::prelude::*;
use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::v2::connection::{
    Config, Connection, Direction, DiscardReason, Event, Role, SendRefused,
};
use rpcrdma_protocol::v2::{Properties, ReverseRequestSupport, TransportError};

use super::connections::{config, established};
use super::wire::{self, MORE, RESPONSE, bytes_of, credit, rpc};

const LEVELS: [ReverseRequestSupport; 3] = [
    ReverseRequestSupport::None,
    ReverseRequestSupport::Inline,
    ReverseRequestSupport::General,
];

fn properties(level: ReverseRequestSupport) -> Properties {
    Properties {
        reverse_requests: level,
        ..Properties::default()
    }
}

/// An end that announces a level, whose peer has spoken and left it fifty credits.
fn end(role: Role, level: ReverseRequestSupport) -> Connection {
    let mut connection = Connection::new(&Config {
        properties: properties(level),
        ..config(role, 100)
    });
    let mut space = [0; 256];
    if role == Role::Client {
        connection
            .encode_properties(&mut space, 0)
            .expect("one credit is implicit");
    }
    let grant = wire::grant(50, 100);
    assert_eq!(connection.handle_message(&grant), Event::Credits);
    connection.handle_receives_posted(1);
    connection
}

const SEGMENT: Segment = Segment {
    handle: 7,
    length_bytes: 100,
    offset: 64,
};

const READ_AT_ZERO: [ReadSegment; 1] = [ReadSegment {
    position: 0,
    target: SEGMENT,
}];

/// What comes of sending a call as it is, in two parts, with a Reply chunk, and as a long call.
fn attempts(connection: &Connection) -> [Result<usize, SendRefused>; 4] {
    let fresh = || (connection.clone(), [0; 256]);
    let call = Direction::Call;
    let chunk = [SEGMENT];
    let with_reply = ChunkListsRepr {
        reply: Some(&chunk),
        ..ChunkListsRepr::default()
    };
    let long = ChunkListsRepr {
        reads: &READ_AT_ZERO[..],
        ..ChunkListsRepr::default()
    };
    let (mut whole, mut space) = fresh();
    let whole = whole.encode_message(&mut space, 9, call, false, 12);
    let (mut part, mut space) = fresh();
    let part = part.encode_message(&mut space, 9, call, true, 12);
    let (mut chunks, mut space) = fresh();
    let chunks = chunks.encode_message_with_chunks(&mut space, 9, call, 0, &with_reply, 12);
    let (mut read, mut space) = fresh();
    let read = read.encode_long_message(&mut space, 9, call, 0, &long);
    [whole, part, chunks, read]
}

#[test]
fn the_lower_level_of_both_ends_says_what_a_server_may_call() {
    for own in LEVELS {
        for peer in LEVELS {
            let mut server = end(Role::Server, own);
            assert_eq!(server.peer_calls(), ReverseRequestSupport::General);
            // A client that has announced nothing has the default.
            let default = ReverseRequestSupport::Inline;
            assert_eq!(server.own_calls(), own.min(default));
            // What it announces first stands.
            for level in [
                peer,
                ReverseRequestSupport::None,
                ReverseRequestSupport::General,
            ] {
                server.handle_peer_properties(&properties(level));
            }
            let level = server.own_calls();
            assert_eq!(level, own.min(peer));
            let calls = level != ReverseRequestSupport::None;
            let chunks = level == ReverseRequestSupport::General;
            let found = attempts(&server).map(|attempt| match attempt {
                Ok(_) => true,
                Err(refused) => {
                    assert_eq!(refused, SendRefused::NotTaken);
                    false
                }
            });
            assert_eq!(
                found,
                [calls, calls, chunks, chunks],
                "{own:?} and {peer:?}"
            );
            // Replies go whatever the levels are: they are of the forward direction.
            let mut space = [0; 256];
            let reply = server
                .clone()
                .encode_message(&mut space, 9, Direction::Reply, false, 12);
            assert_eq!(reply, Ok(36));
        }
    }
}

/// What the server announces is of its replies: it does not bind the client's calls.
#[test]
fn a_client_calls_whatever_the_levels_are() {
    for own in LEVELS {
        for peer in LEVELS {
            let mut client = end(Role::Client, own);
            client.handle_peer_properties(&properties(peer));
            assert_eq!(client.own_calls(), ReverseRequestSupport::General);
            assert_eq!(client.peer_calls(), own);
            assert!(attempts(&client).iter().all(Result::is_ok));
        }
    }
}

/// Every form of a call is refused with SYSTEM, the rest of a continued one is dropped, and the client's own calls go on.
#[test]
fn a_client_that_takes_no_calls_answers_system_and_goes_on() {
    let first_part = wire::message(9, MORE, &bytes_of(&[9, 0, 1, 2]));
    let long = bytes_of(&[9, 2, credit(0, 100), 1, 0, 0, 1, 0, 7, 100, 0, 64, 0, 0, 0]);
    let with_write_chunk = [
        bytes_of(&[9, 2, credit(0, 100), 0, 0, 0, 0, 1, 1, 7, 100, 0, 64, 0, 0]),
        bytes_of(&[9, 0, 1]),
    ]
    .concat();
    for (message, is_first_part) in [
        (rpc(9, 0), false),
        (first_part, true),
        (long, false),
        (with_write_chunk, false),
    ] {
        let mut client = end(Role::Client, ReverseRequestSupport::None);
        assert!(client.handle_whole_message(&message).is_none());
        let Event::Refused(refusal) = client.handle_message(&message) else {
            panic!("it is refused");
        };
        assert_eq!((refusal.xid, refusal.error), (9, TransportError::System));
        if is_first_part {
            let rest = wire::message(9, 0, &bytes_of(&[3, 4]));
            let discarded = Event::Discarded(DiscardReason::SequenceRest);
            assert_eq!(client.handle_message(&rest), discarded);
        }
        let mut space = [0; 64];
        assert!(client.encode_error(&mut space, &refusal).is_ok());
        let reply = rpc(8, RESPONSE);
        assert!(matches!(
            client.handle_message(&reply),
            Event::Reply { xid: 8, .. }
        ));
        assert!(attempts(&client).iter().all(Result::is_ok));
    }
    // It is the client's level alone: a server takes calls in any case.
    let mut server = end(Role::Server, ReverseRequestSupport::None);
    assert!(server.handle_whole_message(&rpc(9, 0)).is_some());
}

/// An XID belongs to the calls of one end: F_RESPONSE tells whose it is.
#[test]
fn both_ends_may_use_the_same_xid_at_the_same_time() {
    for role in [Role::Client, Role::Server] {
        let mut end = established(role, 50);
        let mut space = [0; 64];
        end.encode_message(&mut space, 7, Direction::Call, false, 12)
            .expect("a credit is there");
        for (flags, continued) in [(0, false), (RESPONSE, false), (0, true), (RESPONSE, true)] {
            let expected = if flags == 0 {
                Direction::Call
            } else {
                Direction::Reply
            };
            let found = if continued {
                let payload = bytes_of(&[7, flags, 1, 2]);
                let part = wire::message(7, flags | MORE, &payload);
                let Event::Fragment { direction, .. } = end.handle_message(&part) else {
                    panic!("it is a part");
                };
                let rest = wire::message(7, flags, &bytes_of(&[3, 4]));
                assert!(matches!(
                    end.handle_message(&rest),
                    Event::Fragment { last: true, .. }
                ));
                direction
            } else {
                match end.handle_message(&rpc(7, flags)) {
                    Event::Call { xid: 7, .. } => Direction::Call,
                    Event::Reply { xid: 7, .. } => Direction::Reply,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(found, expected);
        }
    }
}

/// Hands on what one end sends.
fn pass(from: &mut Connection, to: &mut Connection, xid: u32, direction: Direction) {
    let mut space = [0; 48];
    from.encode_message(&mut space, xid, direction, false, 12)
        .expect("a credit is there");
    let message_type = u32::from(direction == Direction::Reply);
    space[36..].copy_from_slice(&bytes_of(&[xid, message_type, 0]));
    match (to.handle_message(&space), direction) {
        (Event::Call { xid: found, .. }, Direction::Call)
        | (Event::Reply { xid: found, .. }, Direction::Reply) => assert_eq!(found, xid),
        (other, _) => panic!("{other:?}"),
    }
}

fn grant(from: &mut Connection, to: &mut Connection) {
    let mut space = [0; 36];
    from.encode_grant(&mut space).expect("none is on its way");
    assert_eq!(to.handle_message(&space), Event::Credits);
    to.handle_receives_posted(1);
}

/// Two ends that have exchanged all the credits that there are.
fn joined(reserves: [u16; 2]) -> [Connection; 2] {
    let [mut client, mut server] = [Role::Client, Role::Server].map(|role| {
        let reserve = reserves[usize::from(role == Role::Server)];
        Connection::new(&config(role, reserve))
    });
    pass(&mut client, &mut server, 1, Direction::Call);
    server.handle_receives_posted(1);
    pass(&mut server, &mut client, 1, Direction::Reply);
    client.handle_receives_posted(1);
    grant(&mut client, &mut server);
    [client, server]
}

proptest! {
    /// Credits are granted by the receiver for all that one end sends. Whatever an end has used up for calls, and
    /// whether its peer posts Receives for it again or not, the other end has what it had: it answers, and calls.
    #[test]
    fn credits_used_by_one_end_are_not_taken_from_the_other(
        reserves in [4_u16..40, 4_u16..40],
        percent in [0_u32..=100, 0..=100],
        posts in any::<bool>(),
    ) {
        let mut ends = joined(reserves);
        for sender in [0, 1] {
            let [mut from, mut to] = match (sender, ends) {
                (0, [client, server]) => [client, server],
                (_, [client, server]) => [server, client],
            };
            let had = to.credits_available();
            let calls = from.credits_available() * percent[sender] / 100;
            let left = from.credits_available() - calls;
            for xid in 0..calls {
                pass(&mut from, &mut to, xid, Direction::Call);
                if posts {
                    to.handle_receives_posted(1);
                }
            }
            prop_assert_eq!(from.credits_available(), left);
            prop_assert!(to.credits_available() >= had, "it was granted something, if anything");
            ends = if sender == 0 { [from, to] } else { [to, from] };
        }
        // Both at their last credits: each answers with what it has, and is granted more by that.
        let [mut client, mut server] = ends;
        if server.credits_available() != 0 {
            let before = client.credits_available();
            pass(&mut server, &mut client, 0, Direction::Reply);
            prop_assert!(client.credits_available() >= before);
        }
        if client.credits_available() != 0 {
            let before = server.credits_available();
            pass(&mut client, &mut server, 0, Direction::Reply);
            prop_assert!(server.credits_available() >= before);
        }
    }
}
