//! Messages by their forms: what arrives is the message, by each way of the receiver, and only ends that both announced the
//! same forms send any.

use proptest::prelude::*;

use super::*;
use crate::interface::{FORM_WORDS_MAX, FormShape, Formed, Forms};
use crate::shm::record::{FORMED_BYTES_MAX, Header, op};
use crate::shm::{Fault, PortEvent, QueuePairNumber};

/// The bytes of the headers of each form.
const HEADERS: [u16; 2] = [12, 76];

/// Two forms, whose headers are made of their words.
pub(super) const FORMS: Forms = Forms {
    number: 7,
    shapes: &[
        FormShape {
            words: 1,
            header_bytes: HEADERS[0],
        },
        FormShape {
            words: 4,
            header_bytes: HEADERS[1],
        },
    ],
    unfold: |formed, rest, out| {
        let message = message_of(formed, rest);
        out.get_mut(..message.len())?.copy_from_slice(&message);
        Some(message.len())
    },
};

fn message_of(formed: &Formed, rest: &[u8]) -> Vec<u8> {
    let words = formed.words[..formed.count.into()].iter();
    let octets: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    let headers = octets
        .iter()
        .cycle()
        .take(HEADERS[usize::from(formed.form)].into());
    headers.chain(rest).copied().collect()
}

fn formed(form: u8, seed: u64) -> Formed {
    let count = FORMS.shapes[usize::from(form)].words;
    let mut words = [0; FORM_WORDS_MAX];
    for (number, word) in (1..).zip(&mut words[..count.into()]) {
        *word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(number);
    }
    Formed { form, count, words }
}

fn pair_with_forms() -> (End, End) {
    let (mut a, mut b) = (End::new(0, |_| {}), End::new(1, |_| {}));
    a.port.set_forms(FORMS);
    b.port.set_forms(FORMS);
    (a.id, b.id) = joined(&mut a, &mut b);
    (a, b)
}

fn post(end: &mut End, formed: &Formed, rest: [&[u8]; 2]) -> bool {
    let posted = end.port.post_formed(end.id, formed, rest);
    end.port.flush_sends();
    posted
}

fn received(events: Vec<Event>) -> Vec<Vec<u8>> {
    let each = events.into_iter().map(|event| match event.what {
        What::Received(message, None) => message,
        other => panic!("{other:?}"),
    });
    each.collect()
}

fn head(end: &mut End) -> Header {
    let channel = end.port.channels_for_tests()[0].as_deref_mut().unwrap();
    channel.producer.memory().read_header(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In its order among others, with any bytes behind it, over the end of the ring, and also where no Receive is posted at
    /// first.
    #[test]
    fn message_by_its_form_arrives_whole(
        messages in proptest::collection::vec(
            (0_u8..4, 0_usize..1000, 0_usize..200, any::<u64>(), 0_usize..3),
            1..60,
        ),
        not_ready in proptest::option::weighted(0.3, 1_u32..4),
    ) {
        let (mut a, mut b) = pair_with_forms();
        if let Some(polls) = not_ready {
            b.port.handle_event(PortEvent::Inject(Fault::ReceiverNotReady { polls }));
        }
        let (mut sent, mut came) = (Vec::new(), Vec::new());
        let (mut short, mut posted) = (0, 0);
        for (form, first, second, seed, polls) in messages {
            let (first, second) = (pattern(1, first), pattern(2, second));
            // What is on its way has the buffers of the test, of which a message takes two.
            if a.large.available() < 2 {
                came.extend(received(b.settle()));
                a.settle();
                a.reclaim();
            }
            if form == 3 {
                // Its receiver needs more than one poll, and what is behind it comes the general way.
                let sent_it = a.send_list(&[&first, &[9; 5000]], SendOptions::default());
                let _ = sent_it.map(|()| sent.push([first, vec![9; 5000]].concat()));
            } else if form == 2 {
                let _ = a.send(&first, SendOptions::default()).map(|()| sent.push(first));
            } else {
                let formed = formed(form, seed);
                let rest = [first, second].concat();
                let words_bytes = usize::from(formed.count) * 8;
                let is_posted = post(&mut a, &formed, [&rest[..rest.len() / 3], &rest[rest.len() / 3..]]);
                if words_bytes + rest.len() > FORMED_BYTES_MAX as usize {
                    prop_assert!(!is_posted, "its message would not be short");
                }
                short += usize::from(words_bytes + rest.len() <= FORMED_BYTES_MAX as usize);
                posted += usize::from(is_posted);
                if is_posted {
                    sent.push(message_of(&formed, &rest));
                }
            }
            for _ in 0..polls {
                came.extend(received(b.poll()));
                a.poll();
            }
        }
        came.extend(received(b.settle()));
        prop_assert_eq!(came, sent);
        prop_assert!(short == 0 || posted != 0, "the first one finds room");
    }
}

#[test]
fn words_arrive_as_words_and_what_is_behind_them_as_it_is() {
    let (mut a, mut b) = pair_with_forms();
    for (form, rest) in [(0, &b""[..]), (0, b"results"), (1, b""), (1, &[7; 860])] {
        let formed = formed(form, 3);
        assert!(post(&mut a, &formed, [&[], rest]));
        assert_eq!(head(&mut a).op, op::SEND_FORMED);
        let mut batch = CompletionBatch::new();
        b.port.begin_poll(b.now, &mut batch);
        let arrival = b.port.next_arrival().expect("it came");
        assert_eq!(arrival.bytes as usize, message_of(&formed, rest).len());
        assert_eq!(arrival.formed(), Some(&formed));
        assert_eq!(b.port.arrived(&arrival), rest);
        b.settle();
        a.settle();
    }
}

/// So the ends of two releases understand each other.
#[test]
fn no_form_is_sent_to_an_end_that_did_not_announce_the_same_ones() {
    let others = Forms { number: 8, ..FORMS };
    for (own, peer) in [
        (Some(FORMS), None),
        (None, Some(FORMS)),
        (Some(FORMS), Some(others)),
        (None, None),
    ] {
        let (mut a, mut b) = (End::new(0, |_| {}), End::new(1, |_| {}));
        for (end, forms) in [(&mut a, own), (&mut b, peer)] {
            if let Some(forms) = forms {
                end.port.set_forms(forms);
            }
        }
        (a.id, b.id) = joined(&mut a, &mut b);
        assert!(!post(&mut a, &formed(0, 1), [&[], b"results"]));
        assert_eq!(b.settle().len(), 0);
        a.send(b"octets", SendOptions::default()).unwrap();
        assert_eq!(received(b.settle()), [b"octets"]);
    }
}

/// A message that has to fail goes as octets, which do that.
#[test]
fn no_form_is_sent_in_place_of_a_message_that_fails() {
    let (mut a, mut b) = pair_with_forms();
    let fault = Fault::FailNextWork {
        local: QueuePairNumber(a.id.index | a.id.generation << 16),
        status: Status::Injected,
    };
    a.port.handle_event(PortEvent::Inject(fault));
    assert!(!post(&mut a, &formed(0, 1), [&[], b"results"]));
    assert_eq!(b.settle().len(), 0);
    a.send(b"fails", SendOptions::default()).unwrap();
    let (mut a, _b) = pair_with_forms();
    assert!(
        post(&mut a, &formed(0, 1), [&[], b"results"]),
        "without a fault"
    );
}

/// A message that has to be late goes as octets, which are.
#[test]
fn no_form_is_sent_with_a_delay() {
    let (mut a, mut b) = (
        End::new(0, |config| {
            config.delay = std::time::Duration::from_millis(1);
        }),
        End::new(1, |_| {}),
    );
    a.port.set_forms(FORMS);
    b.port.set_forms(FORMS);
    (a.id, b.id) = joined(&mut a, &mut b);
    assert!(!post(&mut a, &formed(0, 1), [&[], b"results"]));
}

/// Words that are not there, a form that is not there, a message longer than a short one: the peer breaks the rules.
#[test]
fn record_of_no_form_ends_its_channel() {
    let changes: [fn(&mut Header); 4] = [
        |header| header.flags = 2,
        |header| header.flags = 255,
        |header| header.payload_bytes = 31,
        |header| header.payload_bytes = u16::try_from(FORMED_BYTES_MAX + 1).unwrap(),
    ];
    for change in changes {
        let (mut a, mut b) = pair_with_forms();
        let formed = formed(1, 5);
        assert!(post(&mut a, &formed, [&[], &[1; 860]]));
        let channel = a.port.channels_for_tests()[0].as_deref_mut().unwrap();
        let ring = channel.producer.memory();
        let mut header = ring.read_header(0);
        change(&mut header);
        ring.write_header(0, header);
        let ended: Vec<_> = b.settle().into_iter().map(|event| event.what).collect();
        assert_eq!(ended, [What::Disconnected]);
    }
    // A port without forms knows none.
    let (mut a, mut b) = pair();
    a.send(&[1; 60], SendOptions::default()).unwrap();
    let channel = a.port.channels_for_tests()[0].as_deref_mut().unwrap();
    let ring = channel.producer.memory();
    let header = Header {
        op: op::SEND_FORMED,
        flags: 0,
        ..ring.read_header(0)
    };
    ring.write_header(0, header);
    let ended: Vec<_> = b.settle().into_iter().map(|event| event.what).collect();
    assert_eq!(ended, [What::Disconnected]);
}
