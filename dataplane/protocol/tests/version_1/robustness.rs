//! Whatever a peer sends, nothing panics, Receives are neither lost nor made up, and what is answered can be answered.

use proptest::prelude::*;
use rpcrdma_protocol::v1::connection::Connection;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{Direction, Event, Role};

use super::wire::{bytes_of, config, send_call};

/// Words that mean something in one place or another, and others.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0_u32..3, 3 => 0_u32..10, 1 => any::<u32>()]
}

/// A message that is almost one of version 1, cut anywhere.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let version = prop_oneof![9 => Just(1_u32), 1 => 0_u32..4];
    let words = proptest::collection::vec(word(), 0..40);
    (0_u32..3, version, word(), 0_u32..6, words, 0_usize..6).prop_map(
        |(xid, version, credit, header_type, rest, cut)| {
            let mut words = vec![xid, version, credit, header_type];
            words.extend(rest);
            let mut bytes = bytes_of(&words);
            bytes.truncate(bytes.len() - cut.saturating_sub(2));
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_message_does_harm(
        is_client in any::<bool>(),
        is_reverse in any::<bool>(),
        messages in proptest::collection::vec(message(), 0..30),
    ) {
        let mut config = config(if is_client { Role::Client } else { Role::Server }, 9);
        if is_reverse {
            config.reverse_requests = ReverseRequestSupport::Inline;
        }
        let mut end = Connection::new(&config);
        let mut space = [0; 64];
        for message in &messages {
            let called = send_call(&mut end, 1).is_ok();
            let before = end.receives_posted();
            match end.handle_message(message) {
                Event::Close(_) => {
                    prop_assert_eq!(end.calls_available(), 0);
                    prop_assert!(!end.may_reply());
                    break;
                }
                Event::Refused(refusal) => {
                    end.handle_receives_posted(1);
                    prop_assert!(end.encode_error(&mut space, &refusal).is_ok());
                }
                Event::Call { xid, .. } => {
                    end.handle_receives_posted(1);
                    let reply = end.encode_message(&mut space, xid, Direction::Reply, 24);
                    prop_assert_eq!(reply, Ok(28));
                }
                Event::VersionMismatch { .. } => {
                    prop_assert!(called || is_client || is_reverse);
                    break;
                }
                Event::Reply { .. } | Event::TransportError { .. } | Event::Discarded(_) => {
                    end.handle_receives_posted(1);
                }
                other => prop_assert!(false, "version 1 has no {other:?}"),
            }
            prop_assert_eq!(end.receives_posted(), before);
        }
    }
}
