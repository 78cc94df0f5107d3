//! The short way for whole messages with chunks: same events and same state as the general way, or no change at all.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use rpcrdma_protocol::connection::{self, ChunksAt, Received, Terms};
use rpcrdma_protocol::v2::connection::{Connection, Role};

use super::connections::{config, established};
use super::wire::{self, MORE, RESPONSE, bytes_of, credit};

/// A message with these lists, and an RPC message of `payload_words` words behind them.
fn message(flags: u32, lists: &[u32], payload_words: usize) -> Vec<u8> {
    let mut words = vec![7, 2, credit(1, 100), 0, flags, 0xbeef];
    words.extend_from_slice(lists);
    words.extend([7, flags & RESPONSE, 3, 4, 5].iter().take(payload_words));
    bytes_of(&words)
}

const SEGMENT: [u32; 4] = [0xbeef, 4096, 0, 0x1000];

/// Messages of all kinds with chunks, and whether the short way is meant for each.
fn messages() -> Vec<(Vec<u8>, bool)> {
    let write = [&[0, 1, 1][..], &SEGMENT, &[0, 0]].concat();
    let read = [&[1, 8][..], &SEGMENT, &[0, 0, 0]].concat();
    let reply = [&[0, 0, 1, 1][..], &SEGMENT].concat();
    let all = [
        &[1, 8][..],
        &SEGMENT,
        &[0, 1, 1],
        &SEGMENT,
        &[0, 1, 1],
        &SEGMENT,
    ]
    .concat();
    let position_zero = [&[1, 0][..], &SEGMENT, &[0, 0, 0]].concat();
    let unaligned = [&[1, 6][..], &SEGMENT, &[0, 0, 0]].concat();
    vec![
        (message(0, &write, 3), true),
        (message(0, &read, 5), true),
        (message(0, &reply, 2), true),
        (message(0, &all, 3), true),
        (message(RESPONSE, &write, 3), true),
        (message(RESPONSE, &reply, 3), true),
        (message(RESPONSE, &read, 3), false),
        (message(0, &position_zero, 3), false),
        (message(0, &unaligned, 3), false),
        (message(MORE, &write, 3), false),
        (message(0, &write, 1), false),
        (message(0, &write, 0), false),
        (message(0, &[0, 0, 0], 3), false),
    ]
}

/// Gives a message to both ways. Whether the short one took it.
fn both_ways(before: &Connection, message: &[u8]) -> bool {
    let (mut short, mut long) = (before.clone(), before.clone());
    let Some(event) = short.handle_chunked_message(message) else {
        assert_eq!(
            format!("{short:?}"),
            format!("{before:?}"),
            "it was left alone"
        );
        return false;
    };
    assert_eq!(event, long.handle_message(message));
    assert_eq!(format!("{short:?}"), format!("{long:?}"));
    true
}

#[test]
fn it_is_told_as_if_it_went_the_long_way() {
    for role in [Role::Client, Role::Server] {
        let connection = established(role, 8);
        for (number, (message, is_short)) in messages().iter().enumerate() {
            let took = both_ways(&connection, message);
            assert_eq!(took, *is_short, "{role:?}, message {number}");
        }
    }
}

/// Every octet with one bit changed, and every cut: changes that are drawn seldom differ in one bit.
#[test]
fn altered_message_is_handled_alike_by_both_paths() {
    let connection = established(Role::Server, 8);
    let (mut taken, mut left) = (0, 0);
    for (message, _) in messages() {
        for octet in 0..message.len() {
            for change in [1, 2, 4, 0x80] {
                let mut changed = message.clone();
                changed[octet] ^= change;
                match both_ways(&connection, &changed) {
                    true => taken += 1,
                    false => left += 1,
                }
            }
        }
        for bytes in 0..message.len() {
            left += u32::from(!both_ways(&connection, &message[..bytes]));
        }
    }
    assert!(taken > 500 && left > 500, "{taken} {left}");
}

#[test]
fn it_is_left_alone_while_other_messages_are_open_or_none_has_passed() {
    let (message, _) = messages().swap_remove(0);
    let mut fresh = Connection::new(&config(Role::Server, 8));
    assert!(fresh.handle_chunked_message(&message).is_none());
    let mut connection = established(Role::Server, 8);
    let part = bytes_of(&[9, 2, credit(0, 100), 0, MORE, 0, 0, 0, 0, 9, 0, 1]);
    let told = format!("{:?}", connection.handle_message(&part));
    assert!(told.starts_with("Fragment"), "{told}");
    assert!(connection.handle_chunked_message(&message).is_none());
}

/// What becomes of a message on its way.
#[derive(Clone, Debug)]
enum Change {
    /// This word stands in the place of another.
    Word(Index, u32),
    /// It stands between two.
    Inserted(Index, u32),
    Removed(Index),
    Octet(Index, u8),
    Cut(Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let words = [
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        16,
        64,
        4096,
        credit(0, 100),
        credit(50, 60),
        credit(51, 40),
        u32::MAX,
    ];
    let word = || prop_oneof![4 => select(words.to_vec()), 1 => any::<u32>()];
    let change = prop_oneof![
        6 => (any::<Index>(), word()).prop_map(|(at, word)| Change::Word(at, word)),
        2 => (any::<Index>(), word()).prop_map(|(at, word)| Change::Inserted(at, word)),
        2 => any::<Index>().prop_map(Change::Removed),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, octet)| Change::Octet(at, octet)),
        1 => any::<Index>().prop_map(Change::Cut),
    ];
    proptest::collection::vec(change, 0..4)
}

fn changed(message: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut octets = message.to_vec();
    for change in changes {
        let mut words = wire::words_of(&octets);
        let rest = octets.split_off(4 * words.len());
        let place = |at: &Index, count: usize| (count != 0).then(|| at.index(count));
        match change {
            Change::Word(at, word) => {
                place(at, words.len())
                    .into_iter()
                    .for_each(|at| words[at] = *word);
            }
            Change::Inserted(at, word) => words.insert(at.index(words.len() + 1), *word),
            Change::Removed(at) => {
                place(at, words.len())
                    .into_iter()
                    .for_each(|at| _ = words.remove(at));
            }
            Change::Octet(..) | Change::Cut(_) => {}
        }
        octets = [bytes_of(&words), rest].concat();
        match change {
            Change::Octet(at, octet) => {
                place(at, octets.len())
                    .into_iter()
                    .for_each(|at| octets[at] ^= octet);
            }
            Change::Cut(at) => octets.truncate(at.index(octets.len() + 1)),
            _ => {}
        }
    }
    octets
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Also when few credits are left, or something is open, and when some messages have gone either way.
    #[test]
    fn random_message_sequence_is_handled_alike_by_both_paths(
        role in select(vec![Role::Client, Role::Server]),
        reserve in 2_u16..6,
        drawn in proptest::collection::vec((any::<Index>(), changes()), 1..8),
    ) {
        let mut connection = established(role, reserve);
        let messages = messages();
        for (number, changes) in drawn {
            let message = changed(&number.get(&messages).0, &changes);
            both_ways(&connection, &message);
            connection.handle_message(&message);
        }
    }

    /// The lists are found where they would be found anew.
    #[test]
    fn chunk_lists_are_reported_at_their_offsets(
        number in any::<Index>(),
        changes in changes(),
    ) {
        let mut connection = connection::Connection::new(&config(Role::Server, 8), &Terms::default());
        let first = wire::message_with_credit(1, 0, credit(50, 100), &bytes_of(&[1, 0, 0]));
        connection.handle_message(&first);
        connection.handle_receives_posted(1);
        let mut space = [0; 100];
        connection.version_2_mut().encode_properties(&mut space, 0).expect("a credit is there");
        let messages = messages();
        let (message, is_short) = number.get(&messages);
        let message = changed(message, &changes);
        let received = connection.receive(&message, message.len(), || unreachable!());
        if *is_short && changes.is_empty() {
            let told = format!("{received:?}");
            prop_assert!(told.starts_with("Chunked"), "{told}");
        }
        if let Received::ChunkedCall { chunks_at, .. } | Received::ChunkedReply { chunks_at, .. } = received {
            prop_assert_eq!(Some(chunks_at), ChunksAt::find(&message));
        }
    }
}
