//! A first transmission like the one before is compared instead of decoded: nobody can tell.

use rpcrdma_protocol::v2::connection::{Connection, Direction};

use super::groups::{first, first_with, padded, server, start};
use super::wire::RESPONSE;

/// Octets of the messages: all of the receive buffer but its last segment.
const BYTES: usize = 256 + 2 * 512;

/// A call with a placed item of 600 octets and a direction, or the reply to one.
fn group(xid: u32, flags: u32) -> Vec<u8> {
    let item = [1, 20, 600, 2, 0, 2, 0, 1];
    let stream = start(xid, flags);
    let message = match flags {
        0 => first_with(xid, flags, &item, &[1, 8, 20, 1, 512, 2], 1, &stream),
        _ => first(xid, flags, &item, 1, &stream),
    };
    padded(message, BYTES)
}

/// What becomes of a message behind `before`, and of the credits.
fn behind(before: &[u8], message: &[u8], message_bytes: usize) -> (Connection, String) {
    let mut connection = server();
    let told = format!("{:?}", connection.handle_transmission(before, before.len()));
    assert!(told.starts_with("Transmission("), "{told}");
    let told = format!(
        "{:?}",
        connection.handle_transmission(message, message_bytes)
    );
    let credits = connection.credits();
    (connection, format!("{told} {credits:?}"))
}

/// Groups of each direction with one of the other direction before them, which nothing is like.
fn both_ways() -> [(u32, Vec<u8>, Vec<u8>); 2] {
    [0, RESPONSE].map(|flags| (flags, group(7, flags), group(6, flags ^ RESPONSE)))
}

#[test]
fn it_is_told_as_if_it_was_decoded() {
    for (flags, before, other) in both_ways() {
        let message = group(8, flags);
        let (mut connection, told) = behind(&before, &message, BYTES);
        assert!(told.starts_with("Transmission("), "{told}");
        assert_eq!(told, behind(&other, &message, BYTES).1);
        let again = group(9, flags);
        assert!(
            connection.handle_like_last(&again, BYTES).is_some(),
            "the short way was meant"
        );
        assert!(connection.handle_like_last(&other, BYTES).is_none());
    }
}

#[test]
fn headers_have_the_same_number_while_they_are_alike() {
    for (flags, before, _) in both_ways() {
        let mut connection = server();
        let direction = [Direction::Call, Direction::Reply][usize::from(flags != 0)];
        assert_eq!(connection.header_number(direction), 0);
        let stream = start(10, flags);
        let different = padded(first(10, flags, &[0], 1, &stream), BYTES);
        let numbers = [before, group(8, flags), different, group(11, flags)].map(|message| {
            let event = format!("{:?}", connection.handle_transmission(&message, BYTES));
            assert!(event.starts_with("Transmission("), "{event}");
            connection.header_number(direction)
        });
        assert_eq!(numbers, [1, 1, 2, 3]);
    }
}

#[test]
fn changed_header_is_handled_as_without_the_cache() {
    for (flags, before, other) in both_ways() {
        let message = group(8, flags);
        let header_bytes = message.len().min(200);
        let mut refused = 0;
        for octet in 0..header_bytes {
            for change in [1, 4, 0x80] {
                let mut changed = message.clone();
                if let Some(octet) = changed.get_mut(octet) {
                    *octet ^= change;
                }
                let told = behind(&before, &changed, BYTES).1;
                assert_eq!(told, behind(&other, &changed, BYTES).1, "octet {octet}");
                refused += u32::from(!told.starts_with("Transmission("));
            }
        }
        assert!(refused > 100, "{refused}");
        for message_bytes in [0, 256, 768, BYTES - 1, BYTES + 1] {
            let told = behind(&before, &message, message_bytes).1;
            assert_eq!(told, behind(&other, &message, message_bytes).1);
        }
        for head_bytes in 0..header_bytes {
            let head = message.get(..head_bytes).unwrap_or(&[]);
            let told = behind(&before, head, BYTES).1;
            assert_eq!(told, behind(&other, head, BYTES).1, "{head_bytes} octets");
        }
    }
}

#[test]
fn a_group_that_is_open_is_broken_by_one_like_the_one_before_it() {
    let mut connection = server();
    let open = padded(first(2, 0, &[0], 2, &start(2, 0)), BYTES);
    for (message, told) in [
        (group(7, 0), "Transmission("),
        (open, "Transmission("),
        (group(8, 0), "TransmissionRefused("),
    ] {
        let event = format!("{:?}", connection.handle_transmission(&message, BYTES));
        assert!(event.starts_with(told), "{event}");
    }
}
