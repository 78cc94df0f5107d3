//! Header types and properties of applications (-00 appendix B.1 and B.3): what of them is sent and received, and that
//! all else stays as it is.

use proptest::prelude::*;
use rpcrdma_protocol::constants::{
    APPLICATION_NUMBER_FIRST, APPLICATION_NUMBER_LAST, APPLICATION_PROPERTIES_BYTES_MAX,
    HOST_AUTHENTICATION_BYTES_MAX, RECEIVE_BUFFER_GROUPS_MAX, V2_FIRST_MESSAGE_BYTES_MAX,
};
use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, Direction, DiscardReason, Event, Phase, Role, SendRefused,
};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, Problem, ReceiveBufferStructure, RtrSupport, SegmentGroup,
};
use rpcrdma_protocol::v2::{
    ApplicationHeaderTypes, ApplicationNumberRefused, ApplicationProperties, Properties, Property,
    TransportError,
};

use super::connections::{config, established};
use super::groups;
use super::robustness;
use super::wire::{self, MORE, RESPONSE, bytes_of, credit, rpc, words_of};

const TYPE: u32 = 0xffff_ff07;
const OTHER_TYPE: u32 = 0xffff_ff08;

fn types() -> ApplicationHeaderTypes {
    ApplicationHeaderTypes::NONE
        .with(TYPE)
        .expect("a number of applications")
}

/// Every header type that an application may have.
fn all_types() -> ApplicationHeaderTypes {
    (APPLICATION_NUMBER_FIRST..=APPLICATION_NUMBER_LAST)
        .fold(ApplicationHeaderTypes::NONE, |types, number| {
            types.with(number).expect("a number of applications")
        })
}

fn established_with_types(role: Role) -> Connection {
    let mut connection = established(role, 10);
    connection.set_header_types(types());
    connection
}

fn own(header_type: u32, flags: u32, body: &[u32]) -> Vec<u8> {
    let mut words = vec![77, 2, credit(0, 100), header_type, flags];
    words.extend_from_slice(body);
    bytes_of(&words)
}

fn refused(event: Event<'_>) -> (u32, TransportError) {
    match event {
        Event::Refused(refusal) => (refusal.xid, refusal.error),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn numbers_are_the_256_highest_and_no_others() {
    let all = all_types();
    for number in [0, 5, 0x5254_5201, APPLICATION_NUMBER_FIRST - 1] {
        let outside = ApplicationNumberRefused::OutsideRange { number };
        assert_eq!(ApplicationHeaderTypes::NONE.with(number), Err(outside));
        assert_eq!(ApplicationProperties::NONE.with(number, &[]), Err(outside));
        assert!(!all.has(number));
    }
    for number in [0xffff_ff00, 0xffff_ff3f, 0xffff_ff40, 0xffff_ffff] {
        let one = ApplicationHeaderTypes::NONE.with(number).expect("its own");
        let has = (APPLICATION_NUMBER_FIRST..=APPLICATION_NUMBER_LAST).filter(|it| one.has(*it));
        assert!(has.eq([number]));
        assert!(all.has(number));
    }
}

/// Each message takes a credit at either end, and brings those that are owed.
#[test]
fn a_message_goes_and_comes_with_credits_as_any_other() {
    let [mut client, mut server] =
        [Role::Client, Role::Server].map(|role| Connection::new(&config(role, 10)));
    let mut space = [0; 1024];
    for _ in 0..2 {
        let bytes = client.encode_properties(&mut space, 0).expect("a credit");
        server.handle_message(&space[..bytes]);
        server.handle_receives_posted(1);
        std::mem::swap(&mut client, &mut server);
    }
    client.set_header_types(types());
    server.set_header_types(types());
    let before = client.credits_available();
    let at = client
        .encode_application_message(&mut space, TYPE, 9, false, 8)
        .expect("a credit is there");
    assert_eq!((at, client.credits_available()), (20, before - 1));
    let owed = words_of(&space[..20])[2];
    assert_eq!(words_of(&space[..20]), [9, 2, owed, TYPE, 0]);
    space[20..28].copy_from_slice(b"question");
    let unconsumed = server.credits().unconsumed();
    let event = server.handle_message(&space[..28]);
    let question = Event::ApplicationMessage {
        header_type: TYPE,
        xid: 9,
        is_response: false,
        body: b"question",
    };
    assert_eq!(event, question);
    assert_eq!(server.credits().unconsumed(), unconsumed - 1);
    server.handle_receives_posted(1);
    let at = server
        .encode_application_message(&mut space, TYPE, 9, true, 0)
        .expect("a credit is there");
    assert_eq!(
        words_of(&space[..at]),
        [9, 2, credit(1, 9), TYPE, RESPONSE],
        "it grants what it took"
    );
    let event = client.handle_message(&space[..at]);
    let answer = Event::ApplicationMessage {
        header_type: TYPE,
        xid: 9,
        is_response: true,
        body: &[],
    };
    assert_eq!(event, answer);
    // Without credits it waits, and beyond them a peer is left.
    while client.credits_available() != 0 {
        client
            .encode_application_message(&mut space, TYPE, 9, false, 0)
            .expect("a credit is there");
    }
    let none = client.encode_application_message(&mut space, TYPE, 9, false, 0);
    assert_eq!(none, Err(SendRefused::NoCredit));
    let message = own(TYPE, 0, &[]);
    while server.credits().unconsumed() != 0 {
        server.handle_message(&message);
        server.handle_receives_posted(1);
    }
    let over = server.handle_message(&message);
    assert_eq!(over, Event::Close(CloseReason::OverSend));
}

#[test]
fn unregistered_type_draws_inval_htype_and_cannot_be_sent() {
    let mut server = established_with_types(Role::Server);
    let (xid, error) = refused(server.handle_message(&own(OTHER_TYPE, 0, &[1, 2])));
    assert_eq!((xid, error), (77, TransportError::InvalHtype));
    let mut space = [0; 64];
    let sent = server.encode_application_message(&mut space, OTHER_TYPE, 9, false, 0);
    assert_eq!(sent, Err(SendRefused::NotAnnounced));
    // Nobody answers what claims to be an answer.
    let answer = own(OTHER_TYPE, RESPONSE, &[]);
    let closed = server.handle_message(&answer);
    let reason = CloseReason::BadReply(TransportError::InvalHtype);
    assert_eq!(closed, Event::Close(reason));
}

#[test]
fn a_message_is_one_send_and_stands_alone() {
    let mut server = established_with_types(Role::Server);
    for flags in [MORE, 4, 0x8000_0000] {
        let (_, error) = refused(server.handle_message(&own(TYPE, flags, &[1])));
        assert_eq!(error, TransportError::InvalFlag, "flags {flags:#x}");
        server.handle_receives_posted(1);
    }
    // Too short for its flags: dropped in silence.
    let message = own(TYPE, 0, &[]);
    let short = server.handle_message(&message[..16]);
    assert_eq!(short, Event::Discarded(DiscardReason::Short));
    // In the midst of a continued call, which is given up.
    let mut server = established_with_types(Role::Server);
    server.handle_message(&wire::message(5, MORE, &bytes_of(&[5, 0, 1])));
    let Event::Refused(refusal) = server.handle_message(&own(TYPE, 0, &[1])) else {
        panic!("not refused");
    };
    assert_eq!(refusal.error, TransportError::InvalFlag);
    assert!(refusal.sequence_given_up);
    // In the midst of a transmission group, likewise.
    let mut server = groups::server();
    server.set_header_types(types());
    let first = groups::first(9, 0, &[0], 2, &groups::start(9, 0));
    groups::transmission(server.handle_message(&first));
    let Event::TransmissionRefused(refused) = server.handle_message(&own(TYPE, 0, &[1])) else {
        panic!("not refused");
    };
    assert!(matches!(refused.report.problem, Problem::HeaderType(_)));
    assert!(refused.group_given_up && !server.is_group_open());
    // And none of ours is sent while a message of ours continues.
    let mut client = established_with_types(Role::Client);
    let mut space = [0; 64];
    client
        .encode_message(&mut space, 3, Direction::Call, true, 8)
        .expect("a credit is there");
    let sent = client.encode_application_message(&mut space, TYPE, 4, false, 0);
    assert_eq!(sent, Err(SendRefused::SequenceOpen));
}

#[test]
fn it_may_be_the_first_message_and_has_28_to_1024_octets_then() {
    let mut client = Connection::new(&config(Role::Client, 10));
    client.set_header_types(types());
    let mut space = [0; 2048];
    for (body_bytes, refused) in [(7, SendRefused::TooShort), (1005, SendRefused::TooLong)] {
        let sent = client.encode_application_message(&mut space, TYPE, 1, false, body_bytes);
        assert_eq!(sent, Err(refused));
    }
    let sent = client.encode_application_message(&mut space, TYPE, 1, false, 1004);
    assert_eq!(sent, Ok(20));
    assert_eq!(client.phase(), Phase::ClientWaiting);
    let mut server = Connection::new(&config(Role::Server, 10));
    server.set_header_types(types());
    let event = server.handle_message(&space[..1024]);
    assert!(matches!(event, Event::ApplicationMessage { body, .. } if body.len() == 1004));
    assert_eq!(server.phase(), Phase::Established);
    // A drain leaves answers to be sent.
    server.handle_receives_posted(1);
    server.handle_drain();
    let sent = server.encode_application_message(&mut space, TYPE, 1, false, 0);
    assert_eq!(sent, Err(SendRefused::Draining));
    let sent = server.encode_application_message(&mut space, TYPE, 1, true, 0);
    assert_eq!(sent, Ok(20));
}

/// As long as it can be: every property, a structure of as many groups as there can be, host authentication, and the
/// properties of an application.
#[test]
fn the_longest_properties_fit_the_first_message() {
    let groups: Vec<SegmentGroup> = (0..RECEIVE_BUFFER_GROUPS_MAX)
        .map(|_| SegmentGroup {
            count: 1,
            segment: BufferSegment {
                length_bytes: 4096,
                align_bytes: 4096,
                is_targetable: true,
            },
        })
        .collect();
    let structure = ReceiveBufferStructure::new(&groups).expect("a structure");
    let mut config = config(Role::Client, 10);
    config.properties = Properties {
        receive_buffer_bytes: structure.length_bytes(),
        receive_buffer_structure: Some(structure),
        rtr_support: RtrSupport::ALL,
        request_transmissions_max: 4,
        response_transmissions_max: 4,
        ..config.properties
    };
    let data = [0x61; APPLICATION_PROPERTIES_BYTES_MAX - 8 - 8 - 4];
    let application = ApplicationProperties::NONE
        .with(TYPE, &data)
        .and_then(|it| it.with(OTHER_TYPE, b"four"))
        .expect("just as long as it may be");
    assert_eq!(
        application.with(TYPE + 2, &[]),
        Err(ApplicationNumberRefused::TooLong { bytes: 200 })
    );
    assert_eq!(
        application.with(TYPE, &[]),
        Err(ApplicationNumberRefused::Twice { number: TYPE })
    );
    let mut client = Connection::new(&config);
    let mut space = [0; 2048];
    let message = [0x5a; HOST_AUTHENTICATION_BYTES_MAX];
    let bytes = client
        .encode_host_authentication(&mut space, 0, &message, Some(&application))
        .expect("the first message holds it");
    assert!(bytes <= V2_FIRST_MESSAGE_BYTES_MAX, "{bytes}");
    config.role = Role::Server;
    let mut server = Connection::new(&config);
    let event = server.handle_message(&space[..bytes]);
    let Event::Properties { set, .. } = event else {
        panic!("no properties: {event:?}");
    };
    assert_eq!(set.properties(), config.properties);
    assert_eq!(set.host_authentication(), Some(&message[..]));
    let unknown = set.filter(|it| matches!(it, Property::Unknown { .. }));
    assert!(unknown.eq(application.iter()));
}

/// A message of any type, known or not, right or wrong.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let own_types = (
        APPLICATION_NUMBER_FIRST..=APPLICATION_NUMBER_LAST,
        0_u32..6,
        prop::collection::vec(any::<u32>(), 0..6),
    );
    prop_oneof![
        6 => robustness::message(),
        1 => own_types.prop_map(|(number, flags, body)| own(number, flags, &body)),
        1 => (0_u32..3).prop_map(|flags| rpc(3, flags)),
    ]
}

fn header_type(message: &[u8]) -> Option<u32> {
    words_of(message).get(3).copied()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// An end for which all numbers are registered takes every message of another type as one that knows of none
    /// does, in any state, and is in the same state afterwards.
    #[test]
    fn known_types_mean_what_they_meant(
        is_client in any::<bool>(),
        has_rtr in any::<bool>(),
        messages in prop::collection::vec(any_message(), 1..40),
    ) {
        let role = if is_client { Role::Client } else { Role::Server };
        let mut config = config(role, 60);
        if has_rtr {
            config.properties = groups::properties();
        }
        let mut plain = Connection::new(&config);
        if is_client {
            let mut space = [0; 1024];
            plain.encode_properties(&mut space, 0).expect("one credit is implicit");
        }
        let mut server = plain.clone();
        server.set_header_types(all_types());
        for message in messages {
            let is_own = header_type(&message).is_some_and(|it| all_types().has(it));
            if is_own {
                let before = plain.clone();
                let event = server.handle_message(&message);
                if let Event::ApplicationMessage { body, is_response, .. } = event {
                    prop_assert_eq!(body, &message[20..]);
                    // Where none is registered it was the error of -00 section 6.4.3, or the end.
                    match plain.clone().handle_message(&message) {
                        Event::Refused(refusal) => {
                            prop_assert_eq!(refusal.error, TransportError::InvalHtype);
                            prop_assert!(!is_response);
                        }
                        other => {
                            let reason = CloseReason::BadReply(TransportError::InvalHtype);
                            prop_assert_eq!(other, Event::Close(reason));
                            prop_assert!(is_response);
                        }
                    }
                }
                // What it does to a sequence or a group is its own: both ends go on as they were.
                server = before.clone();
                server.set_header_types(all_types());
                plain = before;
                continue;
            }
            let event = plain.handle_message(&message);
            prop_assert_eq!(server.handle_message(&message), event);
            plain.handle_receives_posted(1);
            server.handle_receives_posted(1);
            let mut same = server.clone();
            same.set_header_types(ApplicationHeaderTypes::NONE);
            prop_assert_eq!(format!("{same:?}"), format!("{plain:?}"));
            if matches!(event, Event::Close(_)) {
                break;
            }
        }
    }
}
