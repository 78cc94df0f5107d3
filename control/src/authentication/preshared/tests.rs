//! The mechanism against its vectors, and against every failure that it is there to find.

use rpcrdma_engine::{AuthenticationFailure, HostIdentity};

use super::super::{BoundProperties, Exchange, HostAuthentication, Step};
use super::{Initiator, PresharedKey, PresharedKeys, Responder};

/// Octets 0 to 31.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Octets 1 to 32.
const OTHER_KEY: &str = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";

// Computed by `control/tests/psk1_vectors.py`, which shares no code with the mechanism.

const INITIATOR_PROPERTIES: &str = "
    00000005 00000001 00000004 00001000 00000002 00000004 00001000 00000003
    00000004 00100000 00000004 00000004 00000010 00000005 00000004 00000001
";
const RESPONDER_PROPERTIES: &str = "
    00000005 00000001 00000004 00002000 00000002 00000004 00004000 00000003
    00000004 00100000 00000004 00000004 00000010 00000005 00000004 00000000
";
const HELLO: &str = "
    50534b31 00000001 00000007 32303236 2d313100 00000005 616c7068 61000000
    11111111 11111111 11111111 11111111 11111111 11111111 11111111 11111111
";
const CHALLENGE: &str = "
    50534b31 00000002 00000004 62657461 22222222 22222222 22222222 22222222
    22222222 22222222 22222222 22222222 2843ed24 2ba05efd d4dd5ef2 10581a4c
    6a749964 827c4981 5fc02a09 39021f30
";
const PROOF: &str = "
    50534b31 00000003 49233ced 0fc604b9 6ea9d74e a02cb4eb e3337151 5021f12b
    1c8af064 c1255bcd
";
const ACCEPTED: &str = "
    50534b31 00000004 a2808c52 b0cc634f c789287f a139fe7b 3c83998e dbee2ea4
    edd50203 f193daca
";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .collect();
    let octets = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
    octets
        .map(|octet| u8::try_from(octet).expect("two digits"))
        .collect()
}

fn identity(name: &str) -> HostIdentity {
    HostIdentity::new(name).expect("a good name")
}

fn host(name: &str, keys: &str) -> PresharedKey {
    let keys = PresharedKeys::parse(keys.as_bytes(), "keys".as_ref()).expect("good keys");
    PresharedKey::new(identity(name), keys)
}

fn alpha() -> PresharedKey {
    host("alpha", &format!("2026-11 {KEY}"))
}

fn beta() -> PresharedKey {
    host("beta", &format!("2026-11 {KEY}"))
}

fn properties() -> BoundProperties {
    BoundProperties {
        initiator: hex(INITIATOR_PROPERTIES),
        responder: hex(RESPONDER_PROPERTIES),
    }
}

fn initiator() -> (Initiator, Vec<u8>) {
    alpha().initiate_with([0x11; 32]).expect("a key")
}

fn responder() -> Responder {
    beta().respond_with([0x22; 32])
}

fn answer(step: Result<Step, AuthenticationFailure>) -> Vec<u8> {
    match step {
        Ok(Step::Continue(message)) => message,
        other => panic!("no message: {other:?}"),
    }
}

/// An exchange of two ends, message by message, each changed by `change` on its way: the outcome of the end that ends
/// it, or of the initiator.
fn exchange(
    from: &PresharedKey,
    to: &PresharedKey,
    seen: [&BoundProperties; 2],
    change: impl Fn(usize, &mut Vec<u8>),
) -> Result<[HostIdentity; 2], AuthenticationFailure> {
    let (mut initiator, mut message) = from.initiate()?;
    let mut responder = to.respond()?;
    change(0, &mut message);
    let mut message = answer(Ok(responder.step(&message, seen[1])?));
    change(1, &mut message);
    let mut message = answer(Ok(initiator.step(&message, seen[0])?));
    change(2, &mut message);
    let Step::Done {
        answer: Some(mut message),
        peer: first,
    } = responder.step(&message, seen[1])?
    else {
        panic!("the responder ends with an answer");
    };
    change(3, &mut message);
    let Step::Done {
        answer: None,
        peer: second,
    } = initiator.step(&message, seen[0])?
    else {
        panic!("the initiator ends without one");
    };
    Ok([first, second])
}

#[test]
fn every_message_is_as_computed_elsewhere() {
    let bound = properties();
    let (mut initiator, hello) = initiator();
    let mut responder = responder();
    assert_eq!(hello, hex(HELLO));
    let challenge = answer(responder.step(&hello, &bound));
    assert_eq!(challenge, hex(CHALLENGE));
    let proof = answer(initiator.step(&challenge, &bound));
    assert_eq!(proof, hex(PROOF));
    let done = Step::Done {
        answer: Some(hex(ACCEPTED)),
        peer: identity("alpha"),
    };
    assert_eq!(responder.step(&proof, &bound), Ok(done));
    let done = Step::Done {
        answer: None,
        peer: identity("beta"),
    };
    assert_eq!(initiator.step(&hex(ACCEPTED), &bound), Ok(done));
}

#[test]
fn both_ends_learn_who_the_other_is() {
    let bound = properties();
    let outcome = exchange(&alpha(), &beta(), [&bound; 2], |_, _| {});
    assert_eq!(outcome, Ok([identity("alpha"), identity("beta")]));
}

#[test]
fn no_two_exchanges_have_the_same_nonces() {
    let [first, second] = [(); 2].map(|()| alpha().initiate().expect("random octets").1);
    assert_ne!(first, second);
    let bound = properties();
    let [first, second] = [(); 2].map(|()| {
        let mut responder = beta().respond().expect("random octets");
        answer(responder.step(&hex(HELLO), &bound))
    });
    assert_ne!(first, second);
}

#[test]
fn a_responder_takes_every_key_that_it_has_and_no_other() {
    let bound = properties();
    let both = host("beta", &format!("2026-12 {OTHER_KEY}\n2026-11 {KEY}"));
    assert!(
        exchange(&alpha(), &both, [&bound; 2], |_, _| {}).is_ok(),
        "during a change of keys"
    );
    let refused = exchange(
        &both,
        &host("x", &format!("2026-11 {KEY}")),
        [&bound; 2],
        |_, _| {},
    );
    assert_eq!(refused, Err(AuthenticationFailure::UnknownKey));
}

#[test]
fn another_key_under_the_same_name_is_found_out_by_the_initiator_first() {
    let bound = properties();
    let other = host("beta", &format!("2026-11 {OTHER_KEY}"));
    let refused = exchange(&alpha(), &other, [&bound; 2], |_, _| {});
    assert_eq!(refused, Err(AuthenticationFailure::WrongProof));
    // A responder finds it out by itself as well, should the peer not look.
    let mut responder = responder();
    let challenge = answer(responder.step(&hex(HELLO), &bound));
    let wrong = host("alpha", &format!("2026-11 {OTHER_KEY}"));
    let (_, secret) = wrong.keys.first().expect("a key");
    let transcript = super::Transcript {
        properties: &bound,
        hello: &hex(HELLO),
        challenge: &challenge[..challenge.len() - 32],
    };
    let seen = challenge.last_chunk().expect("a proof");
    let proof = transcript.initiator(secret, seen).make().expect("a proof");
    let message = super::Message::Proof(proof).encode();
    assert_eq!(
        responder.step(&message, &bound),
        Err(AuthenticationFailure::WrongProof)
    );
}

#[test]
fn every_changed_octet_of_every_message_ends_the_exchange() {
    let bound = properties();
    let lengths = [HELLO, CHALLENGE, PROOF, ACCEPTED].map(|message| hex(message).len());
    // The padding of names is as it was sent for both ends, or it is not: it is bound too.
    for (number, length) in lengths.into_iter().enumerate() {
        for at in 0..length {
            let outcome = exchange(&alpha(), &beta(), [&bound; 2], |message, bytes| {
                if message == number {
                    bytes[at] ^= 1;
                }
            });
            assert!(
                outcome.is_err(),
                "octet {at} of message {number}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_message_cut_short_ends_the_exchange() {
    let bound = properties();
    for number in 0..4 {
        let outcome = exchange(&alpha(), &beta(), [&bound; 2], |message, bytes| {
            if message == number {
                bytes.pop();
            }
        });
        assert_eq!(
            outcome,
            Err(AuthenticationFailure::Malformed),
            "message {number}"
        );
    }
}

#[test]
fn messages_of_an_earlier_exchange_prove_nothing() {
    let bound = properties();
    // What went over the wire once, from both ends, with the nonces of then.
    for (number, recorded) in [CHALLENGE, PROOF, ACCEPTED].into_iter().enumerate() {
        let outcome = exchange(&alpha(), &beta(), [&bound; 2], |message, bytes| {
            if message == number + 1 {
                *bytes = hex(recorded);
            }
        });
        assert_eq!(
            outcome,
            Err(AuthenticationFailure::WrongProof),
            "message {}",
            number + 1
        );
    }
    // All of the initiator's: the responder's nonce is another one.
    let mut responder = beta().respond().expect("random octets");
    answer(responder.step(&hex(HELLO), &bound));
    let replayed = responder.step(&hex(PROOF), &bound);
    assert_eq!(replayed, Err(AuthenticationFailure::WrongProof));
}

#[test]
fn a_message_sent_back_is_refused() {
    let bound = properties();
    let (mut reflected, hello) = initiator();
    assert_eq!(
        reflected.step(&hello, &bound),
        Err(AuthenticationFailure::Malformed)
    );
    let mut responder = responder();
    let challenge = answer(responder.step(&hello, &bound));
    assert_eq!(
        responder.step(&challenge, &bound),
        Err(AuthenticationFailure::Malformed)
    );
    // The proof of one direction, dressed as that of the other.
    let mut responder = super::tests::responder();
    let challenge = answer(responder.step(&hello, &bound));
    let dressed = super::Message::Proof(*challenge.last_chunk().expect("a proof")).encode();
    assert_eq!(
        responder.step(&dressed, &bound),
        Err(AuthenticationFailure::WrongProof)
    );
    let (mut initiator, _) = super::tests::initiator();
    let proof = answer(initiator.step(&challenge, &bound));
    let dressed = super::Message::Accepted(*proof.last_chunk().expect("a proof")).encode();
    assert_eq!(
        initiator.step(&dressed, &bound),
        Err(AuthenticationFailure::WrongProof)
    );
}

#[test]
fn an_end_that_is_led_to_itself_refuses() {
    let bound = properties();
    let outcome = exchange(&alpha(), &alpha(), [&bound; 2], |_, _| {});
    assert_eq!(outcome, Err(AuthenticationFailure::OwnIdentity));
    let (mut initiator, _) = initiator();
    let mut challenge = super::Message::challenge_without_proof("alpha", &[0x22; 32]);
    challenge.extend([0; 32]);
    assert_eq!(
        initiator.step(&challenge, &bound),
        Err(AuthenticationFailure::OwnIdentity)
    );
}

#[test]
fn identities_cannot_be_swapped() {
    let bound = properties();
    // Of the same length, so that nothing else changes.
    let swap = |number: usize, from: &[u8], to: &[u8]| {
        exchange(&alpha(), &beta(), [&bound; 2], |message, bytes| {
            if message == number {
                let found = bytes.windows(from.len()).position(|window| window == from);
                let at = found.expect("the identity stands there");
                bytes[at..at + to.len()].copy_from_slice(to);
            }
        })
    };
    assert_eq!(
        swap(0, b"alpha", b"gamma"),
        Err(AuthenticationFailure::WrongProof)
    );
    assert_eq!(
        swap(1, b"beta", b"zeta"),
        Err(AuthenticationFailure::WrongProof)
    );
    let names = exchange(&beta(), &alpha(), [&bound; 2], |_, _| {});
    assert_eq!(
        names,
        Ok([identity("beta"), identity("alpha")]),
        "roles are bound, not names"
    );
}

#[test]
fn properties_changed_on_their_way_are_found_out() {
    let bound = properties();
    for change in [
        |seen: &mut BoundProperties| seen.initiator[15] ^= 0x10,
        |seen: &mut BoundProperties| seen.responder[15] ^= 0x10,
        |seen: &mut BoundProperties| std::mem::swap(&mut seen.initiator, &mut seen.responder),
        |seen: &mut BoundProperties| seen.responder.truncate(52),
    ] {
        let mut seen = bound.clone();
        change(&mut seen);
        for ends in [[&bound, &seen], [&seen, &bound]] {
            let outcome = exchange(&alpha(), &beta(), ends, |_, _| {});
            assert_eq!(outcome, Err(AuthenticationFailure::WrongProof));
        }
    }
}

#[test]
fn messages_out_of_their_order_are_refused() {
    let bound = properties();
    let malformed = Err(AuthenticationFailure::Malformed);
    assert_eq!(responder().step(&hex(PROOF), &bound), malformed);
    assert_eq!(responder().step(&hex(ACCEPTED), &bound), malformed);
    assert_eq!(initiator().0.step(&hex(PROOF), &bound), malformed);
    assert_eq!(initiator().0.step(&hex(ACCEPTED), &bound), malformed);
    let mut twice = responder();
    answer(twice.step(&hex(HELLO), &bound));
    assert_eq!(twice.step(&hex(HELLO), &bound), malformed);
    assert_eq!(
        twice.step(&hex(PROOF), &bound),
        malformed,
        "what failed is over"
    );
    let (mut twice, _) = initiator();
    answer(twice.step(&hex(CHALLENGE), &bound));
    assert_eq!(twice.step(&hex(CHALLENGE), &bound), malformed);
}

#[test]
fn nothing_prints_a_secret() {
    let mechanism = alpha();
    let (initiator, _) = initiator();
    let shown = format!("{mechanism:?} {initiator:?} {:?}", responder());
    assert!(
        !shown.contains(&KEY[..8]) && !shown.contains("0, 1, 2"),
        "{shown}"
    );
    assert!(
        shown.contains("alpha") && shown.contains("2026-11"),
        "{shown}"
    );
}
