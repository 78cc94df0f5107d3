//! What is made of packets: messages, what was sent again, what is missing, and which directions belong together.

use crate::build::{
    A, B, Send, a_to_b, acknowledged_by_b, b_to_a, happened, happened_with_counts, managed,
    read_request,
};
use proptest::prelude::*;
use rpcrdma_explain::capture::{Event, Gap, Happened, Message};

const FIRST: u8 = 0;
const MIDDLE: u8 = 1;
const LAST: u8 = 2;
const ONLY: u8 = 4;

fn messages(packets: &[Send]) -> Vec<Vec<u8>> {
    happened(packets)
        .into_iter()
        .filter_map(|happened| match happened.event {
            Event::Message(message) => Some(message.octets),
            _ => None,
        })
        .collect()
}

fn gaps(packets: &[Send]) -> Vec<Gap> {
    happened(packets)
        .into_iter()
        .filter_map(|happened| match happened.event {
            Event::Gap(gap) => Some(gap),
            _ => None,
        })
        .collect()
}

#[test]
fn a_message_is_put_together_from_its_packets() {
    let all = happened(&[
        a_to_b(ONLY, 9, b"one"),
        a_to_b(FIRST, 10, b"two "),
        a_to_b(MIDDLE, 11, b"thre"),
        a_to_b(LAST, 12, b"e"),
    ]);
    let [one, two] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!((one.first_packet, one.last_packet), (1, 1));
    assert_eq!((two.first_packet, two.last_packet), (2, 4));
    assert_eq!(two.ended - two.began, std::time::Duration::from_millis(2));
    let octets = b"two three".to_vec();
    let message = Message {
        octets,
        ..Message::default()
    };
    assert_eq!(two.event, Event::Message(message));
    let flow = two.flow.expect("a direction");
    assert_eq!((flow.source, flow.destination), (A.into(), B.into()));
    assert_eq!((flow.queue_pair, two.connection), (17, Some(1)));
}

#[test]
fn immediate_data_and_invalidated_keys_come_with_their_message() {
    for (opcode, immediate, invalidated) in
        [(0x05, Some(0xa1_b2c3), None), (0x17, None, Some(0xa1_b2c3))]
    {
        let packet = Send {
            extended: 0x00a1_b2c3_u32.to_be_bytes().to_vec(),
            ..a_to_b(opcode, 1, b"x")
        };
        let expected = Message {
            octets: b"x".to_vec(),
            immediate,
            invalidated,
        };
        assert_eq!(happened(&[packet])[0].event, Event::Message(expected));
    }
}

#[test]
fn retransmitted_packets_make_one_message() {
    let first = a_to_b(FIRST, 0xff_ffff, b"abcd");
    let last = a_to_b(LAST, 0, b"e");
    let packets = [&first, &first, &last, &first, &last].map(Clone::clone);
    assert_eq!(messages(&packets), [b"abcde"]);
    assert_eq!(gaps(&packets), []);
}

#[test]
fn a_packet_that_is_lost_and_sent_again_is_waited_for() {
    let packets = [
        a_to_b(ONLY, 1, b"one"),
        // 2 was lost in front of the capture.
        a_to_b(ONLY, 3, b"three"),
        a_to_b(ONLY, 2, b"two"),
        a_to_b(ONLY, 3, b"three"),
        a_to_b(ONLY, 4, b"four"),
    ];
    assert_eq!(messages(&packets), [&b"one"[..], b"two", b"three", b"four"]);
    assert_eq!(gaps(&packets), []);
}

#[test]
fn packets_absent_from_the_capture_are_counted_as_missing() {
    let begun = [
        a_to_b(ONLY, 1, b"one"),
        acknowledged_by_b(1),
        a_to_b(FIRST, 2, b"two "),
        // 3 and 4 are missing.
        a_to_b(LAST, 5, b"x"),
        a_to_b(ONLY, 6, b"six"),
    ];
    let known = [&begun[..], &[acknowledged_by_b(6)]].concat();
    // Without the acknowledgement, the end of the capture tells.
    for packets in [&begun[..], &known] {
        assert_eq!(messages(packets), [&b"one"[..], b"six"]);
        assert_eq!(gaps(packets), [Gap::Missing(2)]);
    }
    let told = happened(&known);
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|happened| happened.connection == Some(1)));
}

#[test]
fn message_without_beginning_or_end_is_reported_as_a_gap() {
    assert_eq!(
        gaps(&[
            a_to_b(MIDDLE, 1, b"abcd"),
            a_to_b(LAST, 2, b"e"),
            a_to_b(ONLY, 3, b"f")
        ]),
        [Gap::NoBeginning]
    );
    assert_eq!(gaps(&[a_to_b(FIRST, 1, b"abcd")]), [Gap::NoEnd]);
    assert_eq!(
        gaps(&[a_to_b(FIRST, 1, b"abcd"), a_to_b(ONLY, 2, b"e")]),
        [Gap::NoEnd]
    );
}

/// A Read takes as many numbers as its answer has packets.
#[test]
fn packet_numbers_used_by_a_read_are_not_a_gap() {
    let full = [7; 256];
    let known = [
        a_to_b(FIRST, 1, &full),
        a_to_b(LAST, 2, b"x"),
        read_request(3, 1000),
        a_to_b(ONLY, 7, b"next"),
    ];
    assert_eq!(messages(&known).last().unwrap(), b"next");
    assert_eq!(gaps(&known), []);
    let late = [&known[..3], &[a_to_b(ONLY, 8, b"later")]].concat();
    assert_eq!(gaps(&late), [Gap::Missing(1)]);
    // Where the length of packets is not known, all that it can be is taken.
    for next in [4, 7] {
        let unknown = [read_request(3, 1000), a_to_b(ONLY, next, b"next")];
        assert_eq!(messages(&unknown), [b"next"]);
        assert_eq!(gaps(&unknown), []);
    }
    let Event::Read(access) = happened(&known)[1].event else {
        panic!("a Read");
    };
    assert_eq!(
        (access.key, access.address, access.length),
        (0xabcd, 0x1234_0000, 1000)
    );
}

#[test]
fn directions_are_paired_by_what_they_acknowledge() {
    let all = happened(&[
        a_to_b(ONLY, 0x1000, b"call"),
        acknowledged_by_b(0x1000),
        b_to_a(ONLY, 0x77_0000, b"reply"),
        // Another connection between the same two.
        Send {
            queue_pair: 18,
            ..a_to_b(ONLY, 0x50_0000, b"call")
        },
        Send {
            queue_pair: 24,
            ..b_to_a(ONLY, 0x60_0000, b"reply")
        },
    ]);
    let connections: Vec<Option<u64>> = all.iter().map(|happened| happened.connection).collect();
    assert_eq!(connections, [Some(1), Some(1), Some(2), Some(3)]);
}

/// A management datagram, with this at these offsets behind its header.
#[test]
fn the_connection_manager_tells_who_belongs_together() {
    let private_data = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    let request = managed(
        true,
        0x10,
        &[
            (0, &[0, 0, 0, 5]),
            (8, &[0, 0, 0, 0, 1, 6, 0x4e, 0x51]),
            (32, &[0, 0, 23]),
            (44, &[0, 0, 100]),
            (50, &[0x10]),
            (176, &private_data),
        ],
    );
    let reply = managed(
        false,
        0x13,
        &[
            (0, &[0, 0, 0, 6]),
            (4, &[0, 0, 0, 5]),
            (12, &[0, 0, 17]),
            (20, &[0, 0, 200]),
            (36, &private_data),
        ],
    );
    let all = happened(&[
        request.clone(),
        reply.clone(),
        reply,
        b_to_a(ONLY, 100, b"first of b"),
        read_request(200, 1000),
        // Behind four packets of 256.
        a_to_b(ONLY, 204, b"second of a"),
        a_to_b(ONLY, 206, b"205 is missing"),
        managed(true, 0x15, &[]),
    ]);
    let Event::ConnectRequest {
        port,
        private_data: told,
    } = &all[0].event
    else {
        panic!("{:?}", all[0]);
    };
    assert_eq!(*port, Some(20_049));
    assert!(told.starts_with(&private_data) && told.len() == 56);
    let Event::ConnectReply { private_data: told } = &all[1].event else {
        panic!("{:?}", all[1]);
    };
    assert!(told.starts_with(&private_data) && told.len() == 196);
    assert_eq!(all[1].connection, Some(1));
    let of_messages: Vec<&Happened> = all
        .iter()
        .filter(|happened| {
            !matches!(
                happened.event,
                Event::ConnectRequest { .. } | Event::ConnectReply { .. } | Event::Disconnect
            )
        })
        .collect();
    assert_eq!(of_messages.len(), 5, "{of_messages:?}");
    assert!(
        of_messages
            .iter()
            .all(|happened| happened.connection == Some(1))
    );
    assert_eq!(of_messages[3].event, Event::Gap(Gap::Missing(1)));

    // A queue pair's number comes again, and with another connection.
    let refused = managed(false, 0x12, &[(4, &[0, 0, 0, 5]), (10, &[0, 28])]);
    let all = happened(&[request, refused]);
    assert!(matches!(
        all[1].event,
        Event::ConnectReject { reason: 28, .. }
    ));
}

#[test]
fn a_packet_without_all_of_its_headers_is_damaged() {
    let mut packet = a_to_b(0x0c, 1, &[]);
    packet.extended = vec![0; 3];
    assert!(matches!(happened(&[packet])[0].event, Event::Damaged(_)));
}

/// The packets of messages, of 256 octets each, with numbers from this one on.
fn cut(all: &[Vec<u8>], first_sequence: u32) -> Vec<Send> {
    let mut packets = Vec::new();
    let mut sequence = first_sequence;
    for message in all {
        let parts: Vec<&[u8]> = match message.len() {
            0 => vec![&[]],
            _ => message.chunks(256).collect(),
        };
        for (index, part) in parts.iter().enumerate() {
            let opcode = match (index, index + 1 == parts.len()) {
                (0, true) => ONLY,
                (0, false) => FIRST,
                (_, false) => MIDDLE,
                (_, true) => LAST,
            };
            packets.push(a_to_b(opcode, sequence, part));
            sequence = (sequence + 1) % (1 << 24);
        }
    }
    packets
}

proptest! {
    /// Senders go back to a packet that was lost, and on from there.
    #[test]
    fn messages_come_back_whatever_is_sent_again(
        all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1200), 1..8),
        first_sequence in 0_u32..1 << 24,
        again in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..6), 0..6),
    ) {
        let packets = cut(&all, first_sequence);
        let mut sent = packets.clone();
        for (at, back) in again {
            let at = at.index(packets.len());
            let from = at.saturating_sub(back);
            // Where the packet before stands now, those from `from` on are sent once more.
            let place = sent.iter().rposition(|packet| packet.sequence == packets[at].sequence).unwrap() + 1;
            sent.splice(place..place, packets[from..=at].to_vec());
        }
        prop_assert_eq!(messages(&sent), all);
        prop_assert_eq!(gaps(&sent), []);
    }
}

/// Of each direction there is the beginning of a message, and nothing else.
#[test]
fn directions_beyond_the_limit_are_forgotten_and_those_under_way_stay() {
    const FORGED: usize = 20_000;
    let mut packets = vec![a_to_b(FIRST, 9, b"under ")];
    for number in 0..FORGED {
        let [_, high, middle, low] = u32::try_from(number).unwrap().to_be_bytes();
        packets.push(Send {
            from: [11, high, middle, low],
            ..a_to_b(FIRST, 1, b"forged")
        });
        if number % 1000 == 0 {
            let sequence = u32::try_from(number / 1000).unwrap() + 10;
            packets.push(a_to_b(MIDDLE, sequence, b"."));
        }
    }
    packets.push(a_to_b(LAST, 30, b" way"));
    let (happened, counts) = happened_with_counts(&packets);
    let of = |is: fn(&Event) -> bool| happened.iter().filter(|it| is(&it.event)).count();
    assert_eq!(of(|it| *it == Event::Gap(Gap::NoEnd)), FORGED);
    assert_eq!(of(|it| matches!(it, Event::Message(_))), 1);
    let kept = FORGED + 1 - usize::try_from(counts.forgotten).unwrap();
    assert!((4000..=8192).contains(&kept), "{kept}");
}
