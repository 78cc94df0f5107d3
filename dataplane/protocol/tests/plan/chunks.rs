//! What a responder checks of chunk lists, how a call is put together from its parts, and how results fill the
//! memory that was given for them (RFC 8166 sections 3.4 and 4.3, -00 sections 4.4, 6.3.3 and 6.4.3).

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::{
    CallStream, ChunkFault, ChunkLimits, ChunkLists, ChunkListsRepr, EncodeChunkLists, Fill,
    PayloadPlace, ReadSegment, ReturnedFault, ReturnedLists, Segment, StreamPiece, check_call,
    check_returned,
};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::xdr::{Reader, Writer};

use crate::support::{encoded, hex};

const LIMITS: ChunkLimits = ChunkLimits {
    read_chunks_max: 2,
    reads_position_zero: true,
    write_chunks_max: 2,
    segments_max: 8,
    segment_bytes_max: 1 << 20,
    call_bytes_max: 1 << 21,
};

const INLINE: PayloadPlace = PayloadPlace::Inline { length_bytes: 100 };

const fn segment(handle: u32, offset: u64, length_bytes: u32) -> Segment {
    Segment {
        handle,
        length_bytes,
        offset,
    }
}

const fn read(position: u32, handle: u32, offset: u64, length_bytes: u32) -> ReadSegment {
    ReadSegment {
        position,
        target: segment(handle, offset, length_bytes),
    }
}

fn encode_lists(lists: &impl EncodeChunkLists) -> Vec<u8> {
    encoded(|space| {
        let mut writer = Writer::new(space);
        lists.encode(&mut writer).map(|()| writer.position())
    })
}

fn decode_lists(bytes: &[u8]) -> ChunkLists<'_> {
    ChunkLists::decode(&mut Reader::new(bytes)).expect("valid lists")
}

fn reads(reads: &[ReadSegment]) -> ChunkListsRepr<'_> {
    ChunkListsRepr {
        reads,
        ..ChunkListsRepr::default()
    }
}

/// The fault that the lists have.
fn fault(lists: &ChunkListsRepr<'_>, place: PayloadPlace, limits: &ChunkLimits) -> ChunkFault {
    check_call(&decode_lists(&encode_lists(lists)), place, limits).expect_err("a fault")
}

fn check_with<T>(
    lists: &ChunkListsRepr<'_>,
    place: PayloadPlace,
    then: impl Fn(CallStream<'_>) -> T,
) -> T {
    then(check_call(&decode_lists(&encode_lists(lists)), place, &LIMITS).expect("no fault"))
}

#[test]
fn a_call_without_chunks_is_its_payload() {
    check_with(&ChunkListsRepr::default(), INLINE, |call| {
        let whole = StreamPiece::Stream {
            from_bytes: 0,
            length_bytes: 100,
        };
        assert!(call.pieces().eq([whole]));
        assert!(call.chunks().next().is_none());
        assert_eq!(call.position_zero(), None);
    });
}

/// Two items of 5 and 8 octets, at 40 and 52 of the unreduced stream, in segments that stand in any order, some of
/// them empty.
#[test]
fn chunks_are_found_by_position_in_any_order() {
    let list = [
        read(52, 3, 0, 4),
        read(40, 1, 0, 0),
        read(40, 1, 0, 2),
        read(52, 3, 4, 4),
        read(40, 2, 0, 3),
    ];
    check_with(&reads(&list), INLINE, |call| {
        let pieces: Vec<_> = call.pieces().collect();
        let stream = |from_bytes, length_bytes| StreamPiece::Stream {
            from_bytes,
            length_bytes,
        };
        let chunk = |position, length_bytes| StreamPiece::Chunk {
            position,
            length_bytes,
        };
        let expected = [
            stream(0, 40),
            chunk(40, 5),
            StreamPiece::RoundUp { length_bytes: 3 },
            stream(40, 4),
            chunk(52, 8),
            stream(44, 56),
        ];
        assert_eq!(pieces, expected);
        assert_eq!((call.stream_bytes(), call.total_bytes()), (100, 116));
        let first = call.chunks().next().unwrap();
        assert!(first.segments().eq([segment(1, 0, 2), segment(2, 0, 3)]));
    });
}

/// Version 1 lets a Read chunk bring its round-up; the stream is the same then.
#[test]
fn a_chunk_with_its_round_up_takes_the_same_room() {
    for length_bytes in [5, 8] {
        check_with(&reads(&[read(40, 1, 0, length_bytes)]), INLINE, |call| {
            assert_eq!(call.total_bytes(), 108);
            let last = StreamPiece::Stream {
                from_bytes: 40,
                length_bytes: 60,
            };
            assert_eq!(call.pieces().last(), Some(last));
        });
    }
}

#[test]
fn a_long_call_is_read_and_may_have_items_beside_it() {
    let list = [read(0, 1, 0, 64), read(32, 2, 0, 16), read(0, 1, 64, 36)];
    check_with(&reads(&list), PayloadPlace::PositionZero, |call| {
        let zero = call.position_zero().unwrap();
        assert_eq!((zero.position, zero.length_bytes), (0, 100));
        assert!(zero.segments().eq([segment(1, 0, 64), segment(1, 64, 36)]));
        assert_eq!(call.total_bytes(), 116);
        assert_eq!(call.chunks().count(), 1, "the payload is no item");
        assert_eq!(
            call.pieces().nth(1),
            Some(StreamPiece::Chunk {
                position: 32,
                length_bytes: 16
            })
        );
    });
}

#[test]
fn every_fault_has_its_answer() {
    let of_reads = |list: &[ReadSegment]| fault(&reads(list), INLINE, &LIMITS);
    let bad_xdr = |fault: ChunkFault| assert_eq!(fault.transport_error(), TransportError::BadXdr);

    // Counts.
    let three = [read(4, 1, 0, 4), read(12, 2, 0, 4), read(20, 3, 0, 4)];
    assert_eq!(
        of_reads(&three).transport_error(),
        TransportError::ReadChunks { max_chunks: 2 }
    );
    let writes: [&[Segment]; 3] = [&[], &[segment(1, 0, 4)], &[segment(2, 0, 4)]];
    let lists = ChunkListsRepr {
        writes: &writes,
        ..ChunkListsRepr::default()
    };
    assert_eq!(
        fault(&lists, INLINE, &LIMITS).transport_error(),
        TransportError::WriteChunks { max_chunks: 2 }
    );
    let none = ChunkLimits {
        read_chunks_max: 0,
        reads_position_zero: false,
        write_chunks_max: 0,
        ..LIMITS
    };
    assert_eq!(
        fault(&lists, INLINE, &none).transport_error(),
        TransportError::ReplyResource {
            length_needed_bytes: 0
        }
    );
    for (list, place) in [
        (read(4, 1, 0, 4), INLINE),
        (read(0, 1, 0, 4), PayloadPlace::PositionZero),
    ] {
        assert_eq!(
            fault(&reads(&[list]), place, &none).transport_error(),
            TransportError::ReadChunks { max_chunks: 0 }
        );
    }
    let (four, reply) = ([segment(5, 0, 0); 4], [segment(6, 0, 0); 2]);
    let lists = ChunkListsRepr {
        reads: &three,
        writes: &[&four],
        reply: Some(&reply),
    };
    assert_eq!(
        fault(&lists, INLINE, &LIMITS).transport_error(),
        TransportError::Segments { max_segments: 8 }
    );

    // Sizes.
    let long = of_reads(&[read(4, 1, 0, (1 << 20) + 1)]);
    assert_eq!(long, ChunkFault::SegmentTooLong);
    assert_eq!(long.transport_error(), TransportError::System);
    let full = 1 << 20;
    let long = of_reads(&[read(4, 1, 0, full), read(4, 2, 0, full - 99)]);
    assert_eq!(long, ChunkFault::CallTooLong);
    assert_eq!(long.transport_error(), TransportError::System);
    check_with(
        &reads(&[read(4, 1, 0, full), read(4, 2, 0, full - 100)]),
        INLINE,
        |call| {
            assert_eq!(call.total_bytes(), LIMITS.call_bytes_max);
        },
    );

    // Memory.
    let wraps = of_reads(&[read(4, 1, u64::MAX - 3, 5)]);
    assert_eq!(wraps, ChunkFault::SegmentWraps);
    bad_xdr(wraps);
    check_with(&reads(&[read(4, 1, u64::MAX - 3, 4)]), INLINE, |call| {
        assert_eq!(call.total_bytes(), 104);
    });
    bad_xdr(of_reads(&[read(4, 1, 100, 10), read(24, 1, 109, 1)]));
    bad_xdr(of_reads(&[read(4, 1, 100, 10), read(24, 1, 90, 200)]));
    for (handle, offset, length_bytes) in [(1, 110, 10), (1, 90, 10), (2, 100, 10), (1, 105, 0)] {
        let list = [read(4, 1, 100, 10), read(24, handle, offset, length_bytes)];
        check_with(&reads(&list), INLINE, |call| {
            assert_eq!(call.chunks().count(), 2);
        });
    }
    let lists = ChunkListsRepr {
        writes: &[&[segment(1, 0, 8)]],
        reply: Some(&[segment(1, 7, 8)]),
        ..ChunkListsRepr::default()
    };
    assert_eq!(fault(&lists, INLINE, &LIMITS), ChunkFault::SegmentsOverlap);

    // The payload and its positions.
    assert_eq!(of_reads(&[read(0, 1, 0, 4)]), ChunkFault::TwoPayloads);
    bad_xdr(ChunkFault::TwoPayloads);
    for list in [&[][..], &[read(4, 1, 0, 4)], &[read(0, 1, 0, 0)]] {
        let missing = fault(&reads(list), PayloadPlace::PositionZero, &LIMITS);
        assert_eq!(missing, ChunkFault::NoPayload);
        bad_xdr(missing);
    }
    assert_eq!(of_reads(&[read(6, 1, 0, 4)]), ChunkFault::PositionUnaligned);
    bad_xdr(ChunkFault::PositionUnaligned);
    // Inside the chunk before, inside its round-up, and beyond the stream.
    bad_xdr(of_reads(&[read(4, 1, 0, 8), read(8, 2, 0, 4)]));
    bad_xdr(of_reads(&[read(4, 1, 0, 9), read(12, 2, 0, 4)]));
    bad_xdr(of_reads(&[read(104, 1, 0, 4)]));
    bad_xdr(of_reads(&[read(4, 1, 0, 8), read(112, 2, 0, 4)]));
    // At the very end is right.
    check_with(
        &reads(&[read(4, 1, 0, 8), read(108, 2, 0, 4)]),
        INLINE,
        |call| {
            assert_eq!(call.total_bytes(), 112);
        },
    );
}

/// Lengths that come to more than 32 bits do not wrap.
#[test]
fn sums_of_lengths_do_not_wrap() {
    let limits = ChunkLimits {
        segment_bytes_max: u32::MAX,
        call_bytes_max: u32::MAX,
        ..LIMITS
    };
    let list = [read(4, 1, 0, u32::MAX), read(4, 2, 0, u32::MAX)];
    assert_eq!(
        fault(&reads(&list), INLINE, &limits),
        ChunkFault::CallTooLong
    );
    let list = [read(0, 1, 0, u32::MAX), read(0, 2, 0, 2)];
    let place = PayloadPlace::PositionZero;
    assert_eq!(
        fault(&reads(&list), place, &limits),
        ChunkFault::CallTooLong
    );
    let last = [read(u32::MAX - 3, 1, 0, 8)];
    let place = PayloadPlace::Inline {
        length_bytes: u32::MAX - 3,
    };
    assert_eq!(
        fault(&reads(&last), place, &limits),
        ChunkFault::CallTooLong
    );
}

/// Three Write chunks, the second without segments, and a Reply chunk; the first result has 6 octets, the third
/// chunk and the Reply chunk are not used.
#[test]
fn lists_come_back_with_the_lengths_that_were_written() {
    let first = [
        segment(1, 0x10, 4),
        segment(2, 0x20, 4),
        segment(3, 0x30, 4),
    ];
    let (third, reply) = ([segment(4, 0x40, 4)], [segment(5, 0x50, 64)]);
    let given = encode_lists(&ChunkListsRepr {
        reads: &[],
        writes: &[&first, &[], &third],
        reply: Some(&reply),
    });
    let call = decode_lists(&given);
    let returned = ReturnedLists {
        writes: call.writes,
        written_bytes: &[6, 0],
        reply: call.reply,
        reply_bytes: 0,
    };
    let bytes = encode_lists(&returned);
    assert_eq!(bytes.len(), returned.encoded_bytes());
    let expected = hex("
        00000000                                    # no Read list
        00000001 00000003                           # a chunk of three segments
        00000001 00000004 00000000 00000010         # full
        00000002 00000002 00000000 00000020         # half full
        00000003 00000000 00000000 00000030         # empty
        00000001 00000000                           # the chunk without segments
        00000001 00000001                           # a chunk that was not used
        00000004 00000000 00000000 00000040
        00000000                                    # the end of the Write list
        00000001 00000001                           # the Reply chunk, not used
        00000005 00000000 00000000 00000050
    ");
    assert_eq!(bytes, expected);

    let lists = decode_lists(&bytes);
    let written: Vec<_> = call
        .writes
        .zip(lists.writes)
        .map(|(given, returned)| check_returned(given, returned))
        .collect();
    assert_eq!(written, [Ok(6), Ok(0), Ok(0)]);
    assert_eq!(check_returned(reply, lists.reply.unwrap()), Ok(0));
}

#[test]
fn impossible_returned_chunk_is_refused() {
    let given = [segment(1, 0, 4), segment(2, 0, 0), segment(3, 0, 4)];
    let check = |returned: &[Segment]| {
        let bytes = encode_lists(&ChunkListsRepr {
            writes: &[returned],
            ..ChunkListsRepr::default()
        });
        check_returned(given, decode_lists(&bytes).writes.next().unwrap())
    };
    assert_eq!(check(&given), Ok(8));
    assert_eq!(check(&given[..2]), Err(ReturnedFault::SegmentCount));
    assert_eq!(
        check(&[given[0], given[1], given[2], given[2]]),
        Err(ReturnedFault::SegmentCount)
    );
    let other = [segment(1, 0, 4), segment(2, 0, 0), segment(4, 0, 4)];
    assert_eq!(check(&other), Err(ReturnedFault::OtherMemory));
    let other = [segment(1, 1, 4), segment(2, 0, 0), segment(3, 0, 4)];
    assert_eq!(check(&other), Err(ReturnedFault::OtherMemory));
    let long = [segment(1, 0, 4), segment(2, 0, 0), segment(3, 0, 5)];
    assert_eq!(check(&long), Err(ReturnedFault::TooLong));
    let gap = [segment(1, 0, 3), segment(2, 0, 0), segment(3, 0, 1)];
    assert_eq!(check(&gap), Err(ReturnedFault::Gap));
}

/// A requester's call: the unreduced stream, and the items that are taken out of it.
#[derive(Clone, Debug)]
struct Call {
    unreduced: Vec<u8>,
    /// Position and length of each, in order.
    items: Vec<(usize, usize)>,
    /// Lengths of segments, used in turn.
    cuts: Vec<usize>,
    is_long: bool,
    has_round_up: bool,
    order: Vec<usize>,
}

fn call() -> impl Strategy<Value = Call> {
    let items = vec((0..8_usize, 0..40_usize), 0..5);
    (
        items,
        0..10_usize,
        vec(0..9_usize, 1..6),
        any::<bool>(),
        any::<bool>(),
        vec(any::<usize>(), 64),
    )
        .prop_map(|(parts, tail_words, cuts, is_long, has_round_up, order)| {
            let mut position = 4;
            let mut items = Vec::new();
            for (words_before, length) in parts {
                position += 4 * words_before + 4;
                items.push((position, length));
                position += length.next_multiple_of(4);
            }
            let total = position + 4 * tail_words;
            let mut unreduced: Vec<u8> = (1..=255).cycle().take(total).collect();
            for (position, length) in &items {
                unreduced[position + length..(position + length).next_multiple_of(4)].fill(0);
            }
            Call {
                unreduced,
                items,
                cuts,
                is_long,
                has_round_up,
                order,
            }
        })
}

/// The memory of a requester: each segment is a place of its own.
#[derive(Default)]
struct Memory(BTreeMap<u32, Vec<u8>>);

impl Memory {
    fn expose(
        &mut self,
        position: usize,
        data: &[u8],
        cuts: &[usize],
        list: &mut Vec<ReadSegment>,
    ) {
        let mut rest = data;
        for cut in cuts.iter().cycle().take(30) {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            list.push(self.segment(position, now));
            rest = later;
        }
        list.push(self.segment(position, rest));
    }

    fn segment(&mut self, position: usize, data: &[u8]) -> ReadSegment {
        let handle = u32::try_from(self.0.len()).unwrap();
        self.0.insert(handle, data.to_vec());
        let length_bytes = u32::try_from(data.len()).unwrap();
        read(
            u32::try_from(position).unwrap(),
            handle,
            0x1000,
            length_bytes,
        )
    }
}

proptest! {
    /// Whatever a requester takes out of its stream, the responder puts back.
    #[test]
    fn every_call_is_put_together_again(call in call()) {
        let mut memory = Memory::default();
        let mut list = Vec::new();
        let (mut stream, mut taken) = (Vec::new(), 0);
        for (position, length) in &call.items {
            let end = position + length;
            let chunk_end = if call.has_round_up { end.next_multiple_of(4) } else { end };
            memory.expose(*position, &call.unreduced[*position..chunk_end], &call.cuts, &mut list);
            stream.extend(&call.unreduced[taken..*position]);
            taken = end.next_multiple_of(4);
        }
        stream.extend(&call.unreduced[taken..]);
        let inline_bytes = u32::try_from(stream.len()).unwrap();
        let place = if call.is_long {
            memory.expose(0, &stream, &call.cuts, &mut list);
            PayloadPlace::PositionZero
        } else {
            PayloadPlace::Inline { length_bytes: inline_bytes }
        };
        // Any order in which the segments of each chunk keep theirs.
        let turns = |position: u32| call.order[usize::try_from(position).unwrap() % call.order.len()];
        list.sort_by_key(|read| turns(read.position));

        let limits = ChunkLimits {
            read_chunks_max: 5,
            segments_max: 1000,
            ..LIMITS
        };
        let bytes = encode_lists(&reads(&list));
        let checked = check_call(&decode_lists(&bytes), place, &limits).unwrap();
        let pulled = |segments: &mut dyn Iterator<Item = Segment>| -> Vec<u8> {
            segments.flat_map(|segment| memory.0[&segment.handle].clone()).collect()
        };
        let received = match checked.position_zero() {
            Some(chunk) => pulled(&mut chunk.segments()),
            None => stream,
        };
        let mut assembled = Vec::new();
        for piece in checked.pieces() {
            match piece {
                StreamPiece::Stream { from_bytes, length_bytes } => {
                    let from = usize::try_from(from_bytes).unwrap();
                    let length = usize::try_from(length_bytes).unwrap();
                    assembled.extend(&received[from..from + length]);
                }
                StreamPiece::Chunk { position, length_bytes } => {
                    let chunk = checked.chunks().find(|chunk| chunk.position == position).unwrap();
                    prop_assert_eq!(chunk.length_bytes, length_bytes);
                    assembled.extend(pulled(&mut chunk.segments()));
                }
                StreamPiece::RoundUp { length_bytes } => {
                    assembled.resize(assembled.len() + usize::try_from(length_bytes).unwrap(), 0);
                }
            }
        }
        prop_assert_eq!(usize::try_from(checked.total_bytes()).unwrap(), assembled.len());
        prop_assert_eq!(assembled, call.unreduced);
    }

    /// No lists that decode make a check panic, and what passes is what its pieces say.
    #[test]
    fn no_lists_panic(
        list in vec((0..40_u32, 0..3_u32, any::<u64>(), prop_oneof![0..60_u32, any::<u32>()]), 0..8),
        unaligned in 0..8_u32,
        is_long: bool,
        inline_bytes: u32,
        call_bytes_max: u32,
    ) {
        let list: Vec<_> = list
            .into_iter()
            .map(|(word, handle, offset, length)| read(4 * word + unaligned / 7, handle, offset, length))
            .collect();
        let limits = ChunkLimits { segment_bytes_max: u32::MAX, call_bytes_max, ..LIMITS };
        let place = if is_long {
            PayloadPlace::PositionZero
        } else {
            PayloadPlace::Inline { length_bytes: inline_bytes % 400 }
        };
        let bytes = encode_lists(&reads(&list));
        if let Ok(call) = check_call(&decode_lists(&bytes), place, &limits) {
            let total: u64 = call
                .pieces()
                .map(|piece| match piece {
                    StreamPiece::Stream { length_bytes, .. }
                    | StreamPiece::Chunk { length_bytes, .. }
                    | StreamPiece::RoundUp { length_bytes } => u64::from(length_bytes),
                })
                .sum();
            prop_assert_eq!(total, u64::from(call.total_bytes()));
            prop_assert!(call.total_bytes() <= call_bytes_max);
        }
    }

    /// Data lies in the segments one after the other, and what is returned is accepted.
    #[test]
    fn results_fill_their_segments_in_order(
        lengths in vec(0..20_u32, 0..8),
        share in 0..=100_u32,
    ) {
        let given: Vec<_> = (1..).zip(&lengths).map(|(handle, length)| segment(handle, 64, *length)).collect();
        let data_bytes = lengths.iter().sum::<u32>() * share / 100;
        let mut fill = Fill::new(given.iter().copied(), data_bytes);
        prop_assert_eq!(fill.len(), given.len());
        let filled: Vec<_> = fill.by_ref().collect();
        prop_assert_eq!(fill.left_bytes(), 0);
        let mut next = 0;
        for part in &filled {
            prop_assert_eq!(part.from_bytes, next);
            next += part.target.length_bytes;
        }
        prop_assert_eq!(next, data_bytes);

        let call = encode_lists(&ChunkListsRepr { writes: &[&given], ..ChunkListsRepr::default() });
        let returned = ReturnedLists {
            writes: decode_lists(&call).writes,
            written_bytes: &[data_bytes],
            ..ReturnedLists::default()
        };
        let reply = encode_lists(&returned);
        let chunk = decode_lists(&reply).writes.next().unwrap();
        prop_assert!(chunk.eq(filled.iter().map(|part| part.target)));
        prop_assert_eq!(check_returned(given.iter().copied(), chunk), Ok(u64::from(data_bytes)));
        // More than the segments hold is told.
        let mut over = Fill::new(given.iter().copied(), lengths.iter().sum::<u32>() + 3);
        over.by_ref().for_each(drop);
        prop_assert_eq!(over.left_bytes(), 3);
    }
}
