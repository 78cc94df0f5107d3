//! Connections whose peer is to authenticate itself (-00 section 5.2.6): no RPC message gets anywhere before.

use rpcrdma_engine::{
    AuthenticationFailure, AuthenticationMessage, CallRefused, CloseReason, Command, HostIdentity,
};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{Properties, PropertySet};

use crate::support::raw::{Attack, CREDIT, message, null_call, null_reply, words};
use crate::support::{NULL, PROGRAM, VERSION};

/// A server core whose peer is to authenticate itself, and whose control plane leaves that to the test.
fn guarded() -> Attack {
    let mut attack = Attack::with(Role::Server, true);
    attack.victim.ignore_properties = true;
    attack
}

/// A CONNPROP that holds `HOSTAUTH` of one word and nothing else.
fn token(value: u32) -> Vec<u8> {
    words(&[0, 2, CREDIT, 5, 0, 1, 6, 8, 4, value])
}

fn authenticate(attack: &mut Attack, send: Option<(u32, bool)>, identity: Option<&str>) {
    let command = Command::Authenticate {
        connection: attack.connection(),
        peer: Some(Properties::default()),
        send: send.map(|(value, with_properties)| {
            let bytes = value.to_be_bytes().into();
            Box::new(AuthenticationMessage {
                bytes,
                with_properties,
            })
        }),
        identity: identity.map(|name| HostIdentity::new(name).expect("a good name")),
    };
    attack.victim.command(command);
    attack.turns(10);
}

fn called_early() -> CloseReason {
    CloseReason::Unauthenticated(AuthenticationFailure::CalledEarly)
}

#[test]
fn rpc_message_before_authentication_ends_the_connection() {
    let more = 2;
    let response = 1;
    let call = [1, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    let read_chunk = [1, 2, CREDIT, 0, 0, 0, 1, 32, 7, 8, 0, 9, 0, 0, 0];
    let with_chunk = [words(&read_chunk), words(&call)].concat();
    let long_call = words(&[1, 2, CREDIT, 1, 0, 0, 1, 0, 7, 8, 0, 9, 0, 0, 0]);
    for (what, early) in [
        ("a call", null_call(1)),
        ("a part of a call", message(1, more, &call)),
        ("a call with a Read chunk", with_chunk),
        ("a call in a Position-Zero Read chunk", long_call),
        ("a reply", message(1, response, &[1, 1, 0, 0, 0, 0])),
    ] {
        let mut attack = guarded();
        attack.send(&early);
        attack.assert_closed(called_early());
        let counters = attack.victim.counters();
        assert_eq!(counters.messages_unauthenticated, 1, "{what}");
        assert_eq!(counters.calls_received, 0, "{what}");
        let application = attack.victim.app();
        assert_eq!(application.calls, 0, "{what} reached the service");
        assert!(application.connected.is_empty() && application.disconnected.is_empty());
    }
}

#[test]
fn a_call_in_the_middle_of_the_exchange_ends_the_connection() {
    let mut attack = guarded();
    attack.send(&token(7));
    authenticate(&mut attack, Some((8, true)), None);
    attack.take();
    attack.send(&null_call(1));
    attack.assert_closed(called_early());
    assert_eq!(attack.victim.app().calls, 0);
}

#[test]
fn a_peer_that_proved_itself_is_named_and_served() {
    let mut attack = guarded();
    attack.send(&token(7));
    authenticate(&mut attack, Some((8, true)), None);
    let sent = attack.take();
    let [first] = sent.as_slice() else {
        panic!("one message: {sent:?}");
    };
    let set = PropertySet::decode(&first[20..]).expect("a property set");
    assert_eq!(set.host_authentication(), Some(&[0, 0, 0, 8][..]));
    assert_eq!(set.properties(), attack.victim.properties);
    assert!(attack.victim.ready.is_empty());

    attack.send(&token(9));
    authenticate(&mut attack, Some((10, false)), Some("peer"));
    let [alone] = &attack.take()[..] else {
        panic!("one message");
    };
    let set = PropertySet::decode(&alone[20..]).expect("a property set");
    assert!(set.is_host_authentication_alone());
    assert_eq!(attack.victim.ready, [attack.connection()]);
    let application = attack.victim.app();
    assert_eq!(
        application.identities,
        [HostIdentity::new("peer").expect("a name")]
    );
    attack.assert_serves(11);
}

#[test]
fn no_other_answer_lets_a_peer_in() {
    let mut attack = guarded();
    attack.send(&words(&[0, 2, CREDIT, 5, 0, 0]));
    attack.victim.command(Command::AnswerProperties {
        connection: attack.connection(),
        peer: Properties::default(),
        answer: true,
    });
    attack.turns(10);
    assert!(attack.victim.ready.is_empty());
    let connection = attack.connection();
    attack.victim.app_mut().want(connection, NULL, &[], 1);
    attack.turns(10);
    let refused = &attack.victim.app().refused;
    assert_eq!(*refused, [(1, CallRefused::NotReady)], "nor may we call");
    attack.take();
    attack.send(&null_call(1));
    attack.assert_closed(called_early());
}

#[test]
fn unknown_header_type_before_authentication_is_answered() {
    let mut attack = guarded();
    attack.send(&words(&[5, 2, CREDIT, 77, 0, 0]));
    assert_eq!(attack.take(), [words(&[5, 2, 0, 4, 1, 3])], "INVAL_HTYPE");
    attack.send(&token(7));
    authenticate(&mut attack, None, Some("peer"));
    attack.send(&null_call(6));
    assert_eq!(attack.take(), [null_reply(6)]);
}
