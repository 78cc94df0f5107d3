//! The Receive Buffer Structure property (RTR sections 6.2, 7.2 and 8.3): vectors by hand, and the numbering of
//! targetable segments against a plain count.

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::constants::{RECEIVE_BUFFER_GROUPS_MAX, RECEIVE_BUFFER_SEGMENTS_MAX};
use rpcrdma_protocol::v2::Refusal;
use rpcrdma_protocol::v2::refusal;
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, ReceiveBufferStructure, SegmentGroup, StructureError,
};
use rpcrdma_protocol::xdr::Writer;
use rpcrdma_protocol::{DecodeError, EncodeError, Reason};

use crate::support::{encoded, hex};

const fn group(
    count: u32,
    length_bytes: u32,
    align_bytes: u32,
    is_targetable: bool,
) -> SegmentGroup {
    SegmentGroup {
        count,
        segment: BufferSegment {
            length_bytes,
            align_bytes,
            is_targetable,
        },
    }
}

fn encode(structure: &ReceiveBufferStructure) -> Vec<u8> {
    let bytes = encoded(|space| -> Result<usize, EncodeError> {
        let mut writer = Writer::new(space);
        structure.encode(&mut writer)?;
        Ok(writer.position())
    });
    assert_eq!(bytes.len(), structure.encoded_bytes());
    bytes
}

/// One inline segment of 1 KiB, and one of 64 KiB on page boundaries to place into.
#[test]
fn an_inline_segment_and_a_placement_segment() {
    let bytes = hex("
        00010400            # 66560 octets in all
        00000002            # two groups
        00000001            # one segment
        00000400 00000000   # of 1024 octets, of any alignment
        00000000            # no flags
        00000001            # one segment
        00010000 00001000   # of 65536 octets, on 4096
        00000001            # targetable
    ");
    let structure =
        ReceiveBufferStructure::new(&[group(1, 1024, 0, false), group(1, 65536, 4096, true)])
            .unwrap();
    assert_eq!(ReceiveBufferStructure::decode(&bytes), Ok(structure));
    assert_eq!(encode(&structure), bytes);
    assert_eq!(structure.length_bytes(), 66560);
    assert_eq!(structure.target_count(), 1);
}

/// Numbers are given to targetable segments alone, before, between and after others, and go on through the
/// transmissions of a group.
#[test]
fn numbers_count_targetable_segments_through_all_transmissions() {
    let structure = ReceiveBufferStructure::new(&[
        group(1, 100, 4, true),
        group(2, 50, 4, false),
        group(2, 1000, 8, true),
        group(1, 7, 1, false),
    ])
    .unwrap();
    // Octets of the buffer: 0 target, 100 and 150 not, 200 and 1200 targets, 2200 not; 2207 in all.
    let offsets = [0, 200, 1200];
    for number in 0..9 {
        let found = structure.numbered_segment(number).unwrap();
        let index = usize::try_from(number % 3).unwrap();
        assert_eq!(found.transmission, number / 3);
        assert_eq!(found.offset_bytes, offsets[index]);
        assert_eq!(found.length_bytes, if index == 0 { 100 } else { 1000 });
        assert_eq!(structure.number(number / 3, number % 3), Some(number));
    }
    assert_eq!(structure.number(0, 3), None, "there are only three");
    assert_eq!(structure.number(u32::MAX, 0), None, "no number is so high");
}

/// Without a structure a buffer is one segment that nothing can be placed in, of the size that is known or of the
/// default one.
#[test]
fn without_a_structure_the_buffer_is_one_segment() {
    assert_eq!(ReceiveBufferStructure::default().length_bytes(), 4096);
    let single = ReceiveBufferStructure::single(9000);
    assert_eq!(single.groups(), [group(1, 9000, 0, false)]);
    assert_eq!(single.target_count(), 0);
    assert_eq!(single.numbered_segment(0), None);
    assert_eq!(single.number(0, 0), None);
}

#[test]
fn a_structure_that_is_not_sound_is_bad_xdr() {
    // The place of the fault, and the words.
    let cases: &[(usize, &str)] = &[
        (0, "00000000 00000000"),
        (0, "00000400 00000000"),
        (8, "00000000 00000001 00000000 00000400 00000000 00000000"),
        (8, "00000000 00000001 00000001 00000000 00000000 00000000"),
        (8, "00000400 00000001 00000001 00000400 00000003 00000000"),
        (8, "00000400 00000001 00000001 00000400 80000001 00000000"),
        (0, "00000401 00000001 00000001 00000400 00000000 00000000"),
        (0, "000003ff 00000001 00000001 00000400 00000000 00000000"),
        // 65536 segments of 65536 octets come to 2 to the power of 32, which a word of 32 bits shows as 0.
        (0, "00000000 00000001 00010000 00010000 00000000 00000000"),
        (0, "fffe0001 00000001 ffffffff ffffffff 00000000 00000001"),
    ];
    for (at, words) in cases {
        let error = ReceiveBufferStructure::decode(&hex(words)).unwrap_err();
        assert_eq!(
            error,
            DecodeError::new(*at, Reason::InvalidPropertyValue),
            "{words}"
        );
        assert_eq!(refusal(error), Refusal::BadXdr);
    }
    let sound = encode(&ReceiveBufferStructure::default());
    for end in 0..sound.len() {
        let error = ReceiveBufferStructure::decode(&sound[..end]).unwrap_err();
        assert_eq!(error.reason, Reason::Truncated, "{end} octets");
    }
    let longer = [sound.as_slice(), &[0; 4]].concat();
    let trailing = DecodeError::new(sound.len(), Reason::TrailingBytes);
    assert_eq!(ReceiveBufferStructure::decode(&longer), Err(trailing));
}

/// What we cannot handle is what an endpoint "unable to interpret" it takes the default for.
#[test]
fn a_structure_beyond_our_bounds_counts_as_one_segment() {
    let many_segments = hex("
        00041000 00000001
        00000041 00001000 00001000 00000001
    ");
    let one = ReceiveBufferStructure::decode(&many_segments).unwrap();
    assert_eq!(one, ReceiveBufferStructure::single(0x41000));

    let groups = u32::try_from(RECEIVE_BUFFER_GROUPS_MAX + 1).unwrap();
    let mut many_groups = [(groups * 8).to_be_bytes(), groups.to_be_bytes()].concat();
    for _ in 0..groups {
        many_groups.extend(hex("00000001 00000008 00000008 00000001"));
    }
    let one = ReceiveBufferStructure::decode(&many_groups).unwrap();
    assert_eq!(one, ReceiveBufferStructure::single(groups * 8));
}

/// Flags that RTR does not define are ignored, and sent as zero.
#[test]
fn reserved_flags_of_a_segment_are_ignored() {
    let bytes = hex("00000400 00000001 00000001 00000400 00000000 fffffffe");
    let structure = ReceiveBufferStructure::decode(&bytes).unwrap();
    assert_eq!(structure, ReceiveBufferStructure::single(1024));
    let bytes = hex("00000400 00000001 00000001 00000400 00000000 ffffffff");
    let structure = ReceiveBufferStructure::decode(&bytes).unwrap();
    assert_eq!(structure.groups(), [group(1, 1024, 0, true)]);
    assert_eq!(encode(&structure)[20..], [0, 0, 0, 1]);
}

#[test]
fn invalid_receive_buffer_structure_is_not_built() {
    let refused = |groups: &[SegmentGroup]| ReceiveBufferStructure::new(groups).unwrap_err();
    assert_eq!(refused(&[]), StructureError::NoSegment);
    assert_eq!(refused(&[group(0, 1, 0, false)]), StructureError::NoSegment);
    assert_eq!(
        refused(&[group(1, 0, 0, false)]),
        StructureError::EmptySegment
    );
    assert_eq!(
        refused(&[group(1, 1, 24, false)]),
        StructureError::AlignmentNotPowerOfTwo
    );
    assert_eq!(
        refused(&[group(RECEIVE_BUFFER_SEGMENTS_MAX + 1, 1, 0, true)]),
        StructureError::TooManySegments
    );
    assert_eq!(
        refused(&[group(1, 1, 0, true); RECEIVE_BUFFER_GROUPS_MAX + 1]),
        StructureError::TooManySegments
    );
    assert_eq!(
        refused(&[group(2, 1 << 31, 0, true)]),
        StructureError::TooLong
    );
}

proptest! {
    #[test]
    fn structures_round_trip_and_number_their_segments(
        groups in vec((1..9_u32, 1..100_000_u32, 0..13_u32, any::<bool>()), 1..=8),
        transmissions in 1..4_u32,
    ) {
        let groups: Vec<_> = groups
            .into_iter()
            .map(|(count, length, align, target)| group(count, length, (1 << align) & !1, target))
            .collect();
        let structure = ReceiveBufferStructure::new(&groups).unwrap();
        prop_assert_eq!(ReceiveBufferStructure::decode(&encode(&structure)), Ok(structure));
        prop_assert_eq!(structure.groups(), groups.as_slice());

        // Count as the draft tells it: through all segments of all transmissions.
        let mut next = 0;
        for transmission in 0..transmissions {
            let mut offset_bytes = 0;
            for located in structure.segments() {
                prop_assert_eq!(located.offset_bytes, offset_bytes);
                if let Some(index) = located.target_index {
                    let found = structure.numbered_segment(next).unwrap();
                    prop_assert_eq!(structure.number(transmission, index), Some(next));
                    prop_assert_eq!(found.transmission, transmission);
                    prop_assert_eq!(found.offset_bytes, offset_bytes);
                    prop_assert_eq!(found.length_bytes, located.segment.length_bytes);
                    next += 1;
                }
                offset_bytes += located.segment.length_bytes;
            }
            prop_assert_eq!(offset_bytes, structure.length_bytes());
        }
        prop_assert_eq!(next, transmissions * structure.target_count());
    }

    #[test]
    fn no_octets_panic(data in vec(any::<u8>(), 0..200)) {
        if let Ok(structure) = ReceiveBufferStructure::decode(&data) {
            let again = encode(&structure);
            prop_assert_eq!(ReceiveBufferStructure::decode(&again), Ok(structure));
        }
    }
}
