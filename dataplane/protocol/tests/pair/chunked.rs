//! A whole message with chunks has a short way: nobody can tell, and whatever that does not take is left alone.

use rpcrdma_protocol::v2::connection::{Connection, Role};

use super::wire::{MORE, RESPONSE, bytes_of, credit};
use super::world::{config, established};

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

#[test]
fn whatever_differs_goes_the_same_way() {
    let connection = established(Role::Server, 8);
    let (mut taken, mut left) = (0, 0);
    for (message, _) in messages() {
        for octet in 0..message.len() {
            for change in [1, 2, 4, 0x80] {
                let mut changed = message.clone();
                if let Some(octet) = changed.get_mut(octet) {
                    *octet ^= change;
                }
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
