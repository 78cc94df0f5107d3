//! The forms of short messages and the general codec agree: on what is a message, on its octets, and on the credits of both
//! versions.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rpcrdma_protocol::connection::{Connection, Received, Terms, Versions};
use rpcrdma_protocol::form::{self, CallWords, Folded, Form, Pairs, fold, unfold};
use rpcrdma_protocol::rpc::{CallHeader, Direction, OpaqueAuth, ReplyHeader};
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection::{Config, Role};

const OUT_BYTES: usize = 2048;

/// An RPC message in front of which each version puts its header.
#[derive(Clone, Debug)]
struct Drawn {
    direction: Direction,
    is_version_1: bool,
    call: CallWords,
    credential: Vec<u8>,
    payload: Vec<u8>,
}

impl Drawn {
    /// Its octets, by the general encoders alone.
    fn octets(&self) -> Vec<u8> {
        let mut rpc = vec![0; OUT_BYTES];
        let header_bytes = match self.direction {
            Direction::Call => CallHeader {
                xid: self.call.xid,
                program: self.call.program,
                version: self.call.version,
                procedure: self.call.procedure,
                credential: OpaqueAuth {
                    flavor: self.call.flavor,
                    body: &self.credential,
                },
                verifier: OpaqueAuth::NONE,
            }
            .encode(&mut rpc),
            Direction::Reply => ReplyHeader::success(self.call.xid).encode(&mut rpc),
        };
        rpc.truncate(header_bytes.expect("there is room"));
        rpc.extend_from_slice(&self.payload);
        let CallWords {
            xid,
            credit,
            invalidate_handle,
            ..
        } = self.call;
        let flags = u32::from(self.direction == Direction::Reply);
        let transport = match self.is_version_1 {
            true => vec![xid, 1, credit, 0, 0, 0, 0],
            false => vec![xid, 2, credit, 0, flags, invalidate_handle, 0, 0, 0],
        };
        let transport = transport.iter().flat_map(|word: &u32| word.to_be_bytes());
        transport.chain(rpc).collect()
    }
}

/// A credit word that the connections below take, or any.
fn credit() -> impl Strategy<Value = u32> {
    prop_oneof![Just(100 << 16), Just(100 << 16 | 3), any::<u32>()]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let numbers = (any::<[u32; 4]>(), credit(), 0_u32..2, any::<u32>());
    let kind = (any::<bool>(), any::<bool>());
    let bytes = (0_usize..=100, vec(any::<u8>(), 0..200));
    (numbers, kind, bytes).prop_map(|(numbers, (is_reply, is_version_1), (words, payload))| {
        let ([xid, program, version, procedure], credit, flavor, handle) = numbers;
        let has_handle = !is_reply && !is_version_1;
        Drawn {
            direction: if is_reply {
                Direction::Reply
            } else {
                Direction::Call
            },
            is_version_1,
            call: CallWords {
                xid,
                credit,
                program,
                version,
                procedure,
                flavor,
                credential_bytes: u32::try_from(4 * words).expect("few"),
                invalidate_handle: if has_handle { handle } else { 0 },
            },
            credential: (0..=250).cycle().take(4 * words).collect(),
            payload,
        }
    })
}

/// What is behind the headers, as a provider carries it.
fn rest_of(folded: &Folded<'_>) -> Vec<u8> {
    [folded.credential, folded.payload].concat()
}

fn unfolded(form: Form, pairs: &Pairs, rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0xa5; OUT_BYTES];
    let bytes = unfold(form, pairs, rest, &mut out).expect("there is room");
    assert_eq!(bytes, form.header_bytes() + rest.len());
    assert!(
        out[bytes..].iter().all(|octet| *octet == 0xa5),
        "nothing is written behind"
    );
    let mut short = vec![0; bytes - 1];
    assert_eq!(unfold(form, pairs, rest, &mut short), None);
    out.truncate(bytes);
    out
}

fn new(role: Role, versions: Versions) -> Connection {
    let config = Config {
        role,
        receive_reserve: 20,
        properties: Properties::default(),
        message_bytes_max: 20_000,
    };
    let terms = Terms {
        versions,
        ..Terms::default()
    };
    Connection::new(&config, &terms)
}

/// A connection that has agreed on its version, with credits both ways.
fn established(role: Role, is_version_1: bool) -> Connection {
    let versions = match is_version_1 {
        true => Versions::One,
        false => Versions::Two,
    };
    let mut connection = new(role, versions);
    let mut space = [0; 1024];
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|it| it.to_be_bytes()).collect() };
    let first = match (role, is_version_1) {
        (Role::Client, false) => {
            let sent = connection.version_2_mut().encode_properties(&mut space, 0);
            sent.expect("one credit is implicit");
            words(&[0, 2, 100 << 16 | 50, 1, 0, 0, 0, 0, 0])
        }
        (Role::Client, true) => {
            let sent = connection.encode_message(&mut space, 1, Direction::Call, false, 40);
            sent.expect("one call may be sent");
            words(&[1, 1, 10, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0])
        }
        (Role::Server, false) => words(&[1, 2, 100 << 16 | 50, 0, 0, 0, 0, 0, 0, 1, 0, 2, 3, 4, 5]),
        (Role::Server, true) => words(&[1, 1, 10, 0, 0, 0, 0, 1, 0, 2, 3, 4, 5]),
    };
    assert!(matches!(
        connection.receive(&first, first.len(), || &first),
        Received::Whole(_) | Received::Other { .. }
    ));
    connection.handle_receives_posted(1);
    if (role, is_version_1) == (Role::Server, false) {
        let sent = connection.version_2_mut().encode_properties(&mut space, 0);
        sent.expect("it grants credits");
    }
    connection
}

/// The counters of both versions.
fn counters(connection: &Connection) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        connection.credits(),
        connection.messages_passed(),
        connection.credits_available(),
        connection.credits_for_replies(),
        connection.credits_granted(),
        connection.calls_beyond_grant_total(),
    )
}

/// Whether the general way takes `octets` as a whole message without chunks, and what the connection is then.
fn taken_by_the_general_way(connection: &Connection, octets: &[u8]) -> (bool, Connection) {
    let mut connection = connection.clone();
    let received = connection.receive(octets, octets.len(), || octets);
    (matches!(received, Received::Whole(_)), connection)
}

/// What a connection of version 2 is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Middle {
    Nothing,
    /// The version is not agreed.
    Fresh,
    /// A continued message of the peer.
    In,
    /// A continued message of ours.
    Out,
}

fn middle() -> impl Strategy<Value = Middle> {
    prop_oneof![
        4 => Just(Middle::Nothing),
        1 => Just(Middle::Fresh),
        1 => Just(Middle::In),
        1 => Just(Middle::Out),
    ]
}

/// A connection as drawn, and in the middle of what it is. In version 1 there is nothing to be in the middle of.
fn drawn_connection(is_server: bool, of_version_1: bool, middle: Middle) -> (Connection, Middle) {
    let role = if is_server {
        Role::Server
    } else {
        Role::Client
    };
    match of_version_1 {
        true => (established(role, true), Middle::Nothing),
        false => (in_the_middle(role, middle), middle),
    }
}

fn in_the_middle(role: Role, middle: Middle) -> Connection {
    let mut connection = established(role, false);
    match middle {
        Middle::Nothing => {}
        Middle::Fresh => connection = new(role, Versions::Two),
        Middle::In => {
            let words = [
                5,
                2,
                100 << 16,
                0,
                2 | u32::from(role == Role::Client),
                0,
                0,
                0,
                0,
            ];
            let words = words
                .into_iter()
                .chain([5, u32::from(role == Role::Client), 2]);
            let part: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
            let received = connection.receive(&part, part.len(), || &part);
            assert!(matches!(received, Received::Other { .. }));
            connection.handle_receives_posted(1);
            assert!(
                connection.version_2().unfinished().is_some(),
                "{connection:?}"
            );
        }
        Middle::Out => {
            let direction = if role == Role::Client {
                Direction::Call
            } else {
                Direction::Reply
            };
            let mut space = [0; 64];
            let sent = connection.encode_message(&mut space, 5, direction, true, 3000);
            sent.expect("a credit is there");
        }
    }
    connection
}

proptest! {
    #[test]
    fn message_of_a_form_folds_to_its_words_and_unfolds_to_its_octets(drawn in drawn()) {
        let octets = drawn.octets();
        let folded = fold(&octets).expect("it has a form");
        prop_assert_eq!(folded.form, Form::new(drawn.direction, drawn.is_version_1));
        prop_assert_eq!(folded.payload, drawn.payload.as_slice());
        let (xid, credit) = form::xid_and_credit(&folded.pairs);
        prop_assert_eq!((xid, credit), (drawn.call.xid, drawn.call.credit));
        if drawn.direction == Direction::Call {
            prop_assert_eq!(CallWords::of(&folded.pairs), drawn.call);
            prop_assert_eq!(folded.credential, drawn.credential.as_slice());
        }
        prop_assert_eq!(unfolded(folded.form, &folded.pairs, &rest_of(&folded)), octets);
    }

    /// A message that still has a form has the octets of it, and the decoders of RPC headers say the same.
    #[test]
    fn changed_message_has_no_form_or_the_octets_of_one(
        drawn in drawn(),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let mut octets = drawn.octets();
        for (at, value) in changes {
            let at = at.index(octets.len());
            octets[at] = value;
        }
        if let Some(cut) = cut {
            octets.truncate(cut.index(octets.len()));
        }
        if let Some(folded) = fold(&octets) {
            prop_assert_eq!(&unfolded(folded.form, &folded.pairs, &rest_of(&folded)), &octets);
            let rpc = &octets[folded.form.transport_bytes()..];
            match folded.form.direction() {
                Direction::Call => {
                    let words = CallWords::of(&folded.pairs);
                    let (header, header_bytes) = CallHeader::decode(rpc).expect("it is a call");
                    let decoded = (header.xid, header.program, header.version, header.procedure);
                    prop_assert_eq!(decoded, (words.xid, words.program, words.version, words.procedure));
                    let credential = OpaqueAuth { flavor: words.flavor, body: folded.credential };
                    prop_assert_eq!((header.credential, header.verifier), (credential, OpaqueAuth::NONE));
                    prop_assert_eq!(&rpc[header_bytes..], folded.payload);
                }
                Direction::Reply => {
                    let (xid, verifier, results) = ReplyHeader::success_in(rpc).expect("a success");
                    prop_assert_eq!(xid, form::xid_and_credit(&folded.pairs).0);
                    prop_assert_eq!((verifier, results), (OpaqueAuth::NONE, folded.payload));
                }
            }
        }
    }

    /// A provider hands on what a peer wrote: any words, and anything behind them.
    #[test]
    fn any_words_give_a_message_of_their_length(
        number in 0_u8..4,
        pairs: Pairs,
        rest in vec(any::<u8>(), 0..500),
    ) {
        let form = Form::of_number(number).expect("there are four");
        let octets = unfolded(form, &pairs, &rest);
        let is_valid = match form.direction() {
            Direction::Call => CallWords::of(&pairs).split(&rest).is_some(),
            Direction::Reply => true,
        };
        prop_assert_eq!(fold(&octets).is_some(), is_valid);
        let connection = established(Role::Server, form.is_version_1());
        let _ = taken_by_the_general_way(&connection, &octets);
    }

    /// With the same credits afterwards. What the form refuses changes nothing.
    #[test]
    fn connection_takes_by_its_form_what_it_takes_as_octets(
        drawn in drawn(),
        is_server: bool,
        of_version_1: bool,
        used in 0_u16..22,
        middle in middle(),
    ) {
        let (mut connection, middle) = drawn_connection(is_server, of_version_1, middle);
        let used = if middle == Middle::Nothing { used } else { 0 };
        // Messages whose Receives are not posted again.
        let mut quiet = drawn.clone();
        (quiet.is_version_1, quiet.call.credit) = (of_version_1, if of_version_1 { 10 } else { 100 << 16 });
        let octets = quiet.octets();
        for _ in 0..used {
            let (is_taken, after) = taken_by_the_general_way(&connection, &octets);
            if is_taken {
                connection = after;
            }
        }
        let octets = drawn.octets();
        let (is_taken, after) = taken_by_the_general_way(&connection, &octets);
        let before = counters(&connection);
        let form = Form::new(drawn.direction, drawn.is_version_1);
        let is_formed = connection.receive_form(form, drawn.call.credit);
        // What begins a connection goes the general way, which knows what else begins with it.
        prop_assert_eq!(is_formed, is_taken && middle != Middle::Fresh);
        prop_assert!(!is_formed || middle != Middle::In);
        if is_formed {
            let mut posted = after.clone();
            posted.handle_receives_posted(1);
            prop_assert_eq!(counters(&connection), counters(&posted));
            connection.handle_form_kept();
        }
        let expected = if is_formed { counters(&after) } else { before };
        prop_assert_eq!(counters(&connection), expected);
    }

    /// With the same credit word, and the same credits afterwards.
    #[test]
    fn connection_admits_by_a_form_what_it_encodes(
        is_server: bool,
        of_version_1: bool,
        is_reply: bool,
        is_draining: bool,
        bytes in prop_oneof![0_usize..200, 3900_usize..4200],
        sent in 0_u16..60,
        middle in middle(),
    ) {
        let (mut connection, middle) = drawn_connection(is_server, of_version_1, middle);
        let sent = if middle == Middle::Nothing { sent } else { 0 };
        let direction = if is_reply { Direction::Reply } else { Direction::Call };
        let mut space = [0; 128];
        for xid in 0..sent {
            let _ = connection.encode_message(&mut space, xid.into(), direction, false, 64);
        }
        if is_draining {
            connection.version_2_mut().handle_drain();
        }
        let form = Form::new(direction, of_version_1);
        let rpc_bytes = form.header_bytes() - form.transport_bytes() + bytes;
        let mut other = connection.clone();
        let encoded = other.encode_message(&mut space, 7, direction, false, rpc_bytes);
        let before = counters(&connection);
        let admitted = connection.credit_for_form(form, form.transport_bytes() + rpc_bytes, 0);
        prop_assert_eq!(counters(&connection), before, "nothing was sent yet");
        prop_assert_eq!(admitted.is_some(), encoded.is_ok() && middle != Middle::Fresh);
        prop_assert!(admitted.is_none() || middle != Middle::Out);
        if let Some(credit) = admitted {
            let word = u32::from_be_bytes(space[8..12].try_into().expect("four"));
            prop_assert_eq!(credit, word);
            connection.handle_form_sent(form, credit);
            prop_assert_eq!(counters(&connection), counters(&other));
        }
    }
}

/// So that a kept number of credits is kept: the last of them is for others.
#[test]
fn kept_credits_are_not_used() {
    for of_version_1 in [false, true] {
        let connection = established(Role::Client, of_version_1);
        let form = Form::new(Direction::Call, of_version_1);
        let available = connection.credits_available();
        assert!(available > 2, "{available}");
        for kept in [available - 1, available, available + 1] {
            let admitted = connection.credit_for_form(form, form.header_bytes(), kept);
            assert_eq!(
                admitted.is_some(),
                kept < available,
                "{kept} of {available}"
            );
        }
    }
}

/// RPCSEC_GSS signs octets of the header, and another verifier than AUTH_NONE would be lost.
#[test]
fn calls_of_other_flavors_and_verifiers_have_no_form() {
    let words = |flavor: u32, verifier: u32| {
        let words = [
            9,
            2,
            100 << 16,
            0,
            0,
            0,
            0,
            0,
            0,
            9,
            0,
            2,
            1,
            1,
            1,
            flavor,
            0,
            verifier,
            0,
        ];
        words
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes())
            .collect::<Vec<u8>>()
    };
    assert!(fold(&words(0, 0)).is_some());
    assert!(fold(&words(1, 0)).is_some());
    for (flavor, verifier) in [(6, 0), (2, 0), (0, 1), (1, 6), (u32::MAX, 0)] {
        assert!(
            fold(&words(flavor, verifier)).is_none(),
            "{flavor}, {verifier}"
        );
    }
}
