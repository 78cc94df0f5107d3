//! What is refused, and how; and what an encoder refuses by itself.

use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::v2::{self, CreditWord, Prefix, Refusal};
use rpcrdma_protocol::{DecodeError, EncodeError, Reason};

use crate::error::ERROR_PREFIX;
use crate::message::MSG_CALL;
use crate::message::MSG_WITH_CHUNKS;
use crate::no_message::CREDIT_GRANT;
use crate::properties::CONNPROP;
use crate::support::hex;
use crate::{decoded, refused};

#[test]
fn below_its_least_size_every_message_is_discarded() {
    for (header_type, least_bytes) in [(0, 40), (1, 36), (4, 24), (5, 24)] {
        let words: [u32; 11] = [
            1,
            2,
            0,
            header_type,
            u32::from(header_type == 4),
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let mut message: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        if header_type == 4 {
            message[23] = 2;
        }
        for message_bytes in 0..least_bytes {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            assert_eq!(
                refused(&message[..message_bytes]),
                (too_short, Refusal::Discard),
                "type {header_type}"
            );
        }
        v2::decode(&message[..least_bytes]).expect("the least message of its type");
    }
    // Of a type that is not known, the prefix is enough to be answered.
    let unknown_type = hex("00000001 00000002 00000000 00000009 00000000");
    let too_short = DecodeError::new(19, Reason::BelowLeastSize);
    assert_eq!(refused(&unknown_type[..19]), (too_short, Refusal::Discard));
    let unknown = DecodeError::new(12, Reason::UnknownHeaderType);
    assert_eq!(refused(&unknown_type), (unknown, Refusal::InvalHtype));
}

#[test]
fn below_28_octets_no_other_version_is_answered() {
    for version in ["00000001", "00000003", "ffffffff"] {
        let mut message = hex(MSG_CALL);
        message[4..8].copy_from_slice(&hex(version));
        for message_bytes in 0..28 {
            let too_short = DecodeError::new(message_bytes, Reason::BelowLeastSize);
            let cut = &message[..message_bytes];
            assert_eq!(refused(cut), (too_short, Refusal::Discard), "{version}");
        }
        let unsupported = DecodeError::new(4, Reason::UnsupportedVersion);
        assert_eq!(
            refused(&message[..28]),
            (unsupported, Refusal::Vers),
            "{version}"
        );
    }
}

#[test]
fn refusals_name_the_field() {
    #[rustfmt::skip]
    let cases = [
        ("1 00000001", 4, Reason::UnsupportedVersion, Refusal::Vers),
        ("1 00000003", 4, Reason::UnsupportedVersion, Refusal::Vers),
        ("3 00000002", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 00000003", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 00000006", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("3 52545201", 12, Reason::UnknownHeaderType, Refusal::InvalHtype),
        ("4 00000004", 16, Reason::ReservedFlags, Refusal::InvalFlag),
        ("4 80000001", 16, Reason::ReservedFlags, Refusal::InvalFlag),
        ("6 00000002", 24, Reason::InvalidBoolean, Refusal::BadXdr),
        ("7 ffffffff", 28, Reason::InvalidBoolean, Refusal::BadXdr),
        ("8 00000100", 32, Reason::InvalidBoolean, Refusal::BadXdr),
        ("6 00000001", 28, Reason::Truncated, Refusal::BadXdr),
        ("7 00000001", 36, Reason::InvalidBoolean, Refusal::BadXdr),
        ("8 00000001", 36, Reason::TooManySegments, Refusal::Segments),
    ];
    for (change, at, reason, refusal) in cases {
        let (index, value) = change.split_once(' ').unwrap();
        let index: usize = index.parse().unwrap();
        let mut message = hex(MSG_CALL);
        message[4 * index..][..4].copy_from_slice(&hex(value));
        assert_eq!(
            refused(&message),
            (DecodeError::new(at, reason), refusal),
            "{change}"
        );
    }
}

#[test]
fn a_reserved_flag_is_refused_on_every_header_type() {
    for text in [
        MSG_CALL,
        CREDIT_GRANT,
        CONNPROP,
        &[ERROR_PREFIX, "00000002"].concat(),
    ] {
        for bit in 2..32 {
            let mut message = hex(text);
            let flags = 1_u32 << bit;
            message[16..20].copy_from_slice(&flags.to_be_bytes());
            let reserved = DecodeError::new(16, Reason::ReservedFlags);
            assert_eq!(refused(&message), (reserved, Refusal::InvalFlag));
        }
    }
}

#[test]
fn a_message_with_chunks_needs_a_word_of_payload() {
    let message = hex(MSG_WITH_CHUNKS);
    for missing in 1..=4 {
        let cut = &message[..message.len() - missing];
        let truncated = DecodeError::new(message.len() - 4, Reason::Truncated);
        assert_eq!(refused(cut), (truncated, Refusal::BadXdr));
    }
}

#[test]
fn lists_are_bounded_before_they_are_walked_on() {
    let head = hex("00000011 00000002 00000000 00000000 00000000 00000000");
    let with = |body: Vec<u8>| [head.as_slice(), &body].concat();
    let entry = [hex("00000001"), vec![0; 20]].concat();
    let end = hex("00000000");

    let reads = |count: usize| with([entry.repeat(count), end.repeat(4)].concat());
    assert_eq!(
        decoded(&reads(1024)).chunks().unwrap().lists.reads.len(),
        1024
    );
    let too_many = DecodeError::new(24 + 1024 * 24, Reason::TooManySegments);
    assert_eq!(refused(&reads(1025)), (too_many, Refusal::Segments));

    let empty_chunk = hex("00000001 00000000");
    let writes =
        |count: usize| with([end.clone(), empty_chunk.repeat(count), end.repeat(3)].concat());
    assert_eq!(
        decoded(&writes(256)).chunks().unwrap().lists.writes.len(),
        256
    );
    let too_many = DecodeError::new(28 + 256 * 8, Reason::TooManyWriteChunks);
    assert_eq!(refused(&writes(257)), (too_many, Refusal::WriteChunks));

    let reply = |count: u32| {
        let segments = vec![0; 16 * usize::try_from(count).unwrap()];
        with(
            [
                hex("00000000 00000000 00000001"),
                count.to_be_bytes().to_vec(),
                segments,
                end.clone(),
            ]
            .concat(),
        )
    };
    assert_eq!(
        decoded(&reply(1024))
            .chunks()
            .unwrap()
            .lists
            .reply
            .unwrap()
            .len(),
        1024
    );
    let too_many = DecodeError::new(36, Reason::TooManySegments);
    assert_eq!(refused(&reply(1025)), (too_many, Refusal::Segments));
    let mut huge = reply(4);
    huge[36..40].copy_from_slice(&[0xff; 4]);
    assert_eq!(
        refused(&huge),
        (too_many, Refusal::Segments),
        "a count that would wrap"
    );
}

#[test]
fn an_encoder_refuses_what_a_decoder_would() {
    let mut space = vec![0; 64 * 1024];
    let segments = vec![Segment::default(); 1025];
    let reads = vec![ReadSegment::default(); 1025];
    let chunks: Vec<&[Segment]> = vec![&[]; 257];
    #[rustfmt::skip]
    let too_long = [
        ChunkListsRepr { reads: &reads, ..Default::default() },
        ChunkListsRepr { writes: &chunks, ..Default::default() },
        ChunkListsRepr { writes: &[&segments], ..Default::default() },
        ChunkListsRepr { reply: Some(&segments), ..Default::default() },
    ];
    for lists in too_long {
        let result = v2::encode_nomsg(&mut space, Prefix::default(), 0, &lists);
        assert_eq!(result, Err(EncodeError::TooLong));
    }
}

#[test]
fn the_credit_word_holds_two_halves() {
    for (word, granted, maximum) in [
        (0, 0, 0),
        (0x0000_0001, 1, 0),
        (0x0001_0000, 0, 1),
        (0xfffe_8001, 0x8001, 0xfffe),
    ] {
        let credit = CreditWord::from_word(word);
        assert_eq!((credit.granted, credit.maximum), (granted, maximum));
        assert_eq!(credit.to_word(), word);
    }
}
