//! Layouts of transmission groups (RTR sections 3.3, 6.2 and 9): vectors by hand, the receiver's scatter as an
//! oracle, and a search for layouts with fewer transmissions.

use proptest::collection::vec;
use proptest::prelude::*;

use rpcrdma_protocol::v2::plan::{
    BulkItems, Layout, LayoutError, LayoutRequest, Piece, SendLimits,
};
use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, SegmentGroup};

use crate::ends::{LIMITS, layout_request};

/// Octets of the header of a later transmission.
const CONTINUE_BYTES: u32 = 32;

fn structure(groups: &[(u32, u32, bool)]) -> ReceiveBufferStructure {
    let groups: Vec<_> = groups
        .iter()
        .map(|(count, length_bytes, is_targetable)| SegmentGroup {
            count: *count,
            segment: BufferSegment {
                length_bytes: *length_bytes,
                align_bytes: 0,
                is_targetable: *is_targetable,
            },
        })
        .collect();
    ReceiveBufferStructure::new(&groups).expect("a sound structure")
}

fn pieces<I: BulkItems + ?Sized>(layout: &Layout<'_, I>) -> Vec<Vec<Piece>> {
    let all: Vec<_> = layout
        .transmissions()
        .map(|transmission| transmission.pieces().collect())
        .collect();
    assert_eq!(
        all.len(),
        usize::try_from(layout.transmission_count()).unwrap()
    );
    all
}

const fn header(length_bytes: u32) -> Piece {
    Piece::Header { length_bytes }
}

const fn stream(from_bytes: u32, length_bytes: u32) -> Piece {
    Piece::Stream {
        from_bytes,
        length_bytes,
    }
}

const fn padding(length_bytes: u32) -> Piece {
    Piece::Padding { length_bytes }
}

const fn item(item: usize, from_bytes: u32, length_bytes: u32) -> Piece {
    Piece::Item {
        item,
        from_bytes,
        length_bytes,
    }
}

/// A write of 64 KiB into one inline segment and one placement segment: one Send, and no octet behind the item.
#[test]
fn one_item_that_fills_its_segment() {
    let structure = structure(&[(1, 1024, false), (1, 65536, true)]);
    let layout = Layout::new(layout_request(&structure, 120, &[65536][..])).unwrap();
    assert_eq!(
        pieces(&layout),
        [[header(64), stream(0, 120), padding(840), item(0, 0, 65536)]]
    );
    assert!(layout.numbers(0).eq([0]));
    let send = layout.transmissions().next().unwrap();
    assert_eq!((send.header_bytes(), send.length_bytes()), (64, 66560));
}

/// 100 000 octets go on in a second Send, behind its header; the stream is in the first.
#[test]
fn an_item_goes_on_in_the_next_transmission() {
    let structure = structure(&[(1, 1024, false), (1, 65536, true)]);
    let layout = Layout::new(layout_request(&structure, 120, &[100_000][..])).unwrap();
    assert_eq!(
        pieces(&layout),
        [
            vec![header(68), stream(0, 120), padding(836), item(0, 0, 65536)],
            vec![header(32), padding(992), item(0, 65536, 34464)],
        ]
    );
    assert!(layout.numbers(0).eq([0, 1]));
}

/// Two segments in each Send: each item begins in one of its own, and numbers count the segment that the stream took.
#[test]
fn items_begin_at_segments_and_the_stream_takes_the_segments_that_none_needs() {
    let structure = structure(&[(1, 100, false), (2, 1000, true)]);
    let layout = Layout::new(layout_request(&structure, 1500, &[1400, 0, 10][..])).unwrap();
    // Three segments are needed, four are in two Sends, and 1500 octets of the stream do not fit what is left.
    assert_eq!(
        pieces(&layout),
        [
            vec![header(72), stream(0, 28), item(0, 0, 1400)],
            vec![header(32), stream(28, 1068), item(2, 0, 10)],
            vec![header(32), stream(1096, 404)],
        ]
    );
    assert!(layout.numbers(0).eq([0, 1]));
    assert!(layout.numbers(1).eq([]), "an item of nothing is nowhere");
    assert!(layout.numbers(2).eq([3]));
}

/// The number of a segment takes four octets of the header, and so can the header reach into the segment that the
/// item was to have.
#[test]
fn the_header_grows_with_the_numbers_that_it_holds() {
    let structure = structure(&[(1, 64, false), (3, 50, true)]);
    // 60 octets and one number fill the first segment exactly.
    let layout = Layout::new(layout_request(&structure, 0, &[50][..])).unwrap();
    assert_eq!(pieces(&layout), [[header(64), item(0, 0, 50)]]);
    // Two numbers do not fit: the items begin a segment later.
    let layout = Layout::new(layout_request(&structure, 0, &[51][..])).unwrap();
    assert_eq!(pieces(&layout), [[header(68), padding(46), item(0, 0, 51)]]);
    assert!(layout.numbers(0).eq([1, 2]));
}

/// Segments of several lengths: more numbers than the least were needed, and the plan is made again with room for
/// them.
#[test]
fn a_plan_whose_numbers_do_not_fit_is_made_again() {
    let structure = structure(&[(1, 66, false), (2, 10, true), (1, 100, true)]);
    // One segment of 100 octets would do, but 66 octets hold a header with one number alone.
    let layout = Layout::new(layout_request(&structure, 0, &[100][..])).unwrap();
    assert_eq!(
        pieces(&layout),
        [[header(68), padding(8), item(0, 0, 100)]],
        "in the second short segment and the long one"
    );
    assert!(layout.numbers(0).eq([1, 2]));
}

/// What is behind the items of a transmission is never the stream: it follows the header at once.
#[test]
fn a_stream_without_items_is_continued() {
    let structure = structure(&[(1, 100, false), (1, 200, true), (1, 50, false)]);
    let layout = Layout::new(layout_request(&structure, 700, &[][..])).unwrap();
    assert_eq!(
        pieces(&layout),
        [
            [header(60), stream(0, 290)],
            [header(32), stream(290, 318)],
            [header(32), stream(608, 92)],
        ]
    );
}

#[test]
fn padding_is_cut_to_the_zeroed_memory_and_counts_as_gather_entries() {
    let structure = structure(&[(1, 1024, false), (2, 4096, true)]);
    let with = |padding_region_bytes, gather_entries_max| SendLimits {
        padding_region_bytes,
        gather_entries_max,
        ..LIMITS
    };
    let lay_out = |limits| {
        let request = layout_request(&structure, 100, &[4000, 4000][..]);
        Layout::new(LayoutRequest { limits, ..request }).map(|layout| pieces(&layout))
    };
    // Header, stream, two paddings of 512 and 344, an item, a padding of 96, an item: seven.
    let all_in_one = vec![
        header(68),
        stream(0, 100),
        padding(512),
        padding(344),
        item(0, 0, 4000),
        padding(96),
        item(1, 0, 4000),
    ];
    assert_eq!(lay_out(with(512, 7)), Ok(vec![all_in_one]));
    // With six, the second item goes into a Send of its own.
    let two = lay_out(with(512, 6)).unwrap();
    assert_eq!(
        two[1],
        [header(32), padding(512), padding(480), item(1, 0, 4000)]
    );
    // With four, a Send has stream or item.
    let three = lay_out(with(512, 4)).unwrap();
    assert_eq!(three.len(), 3);
    assert_eq!(three[0], [header(68), stream(0, 100)]);
    assert_eq!(lay_out(with(512, 3)), Err(LayoutError::NotTargetable));
}

#[test]
fn impossible_layout_is_refused_with_its_reason() {
    let inline = ReceiveBufferStructure::single(4096);
    let refused = |structure, stream_bytes, items: &[u32], limits| {
        let request = layout_request(structure, stream_bytes, items);
        Layout::new(LayoutRequest { limits, ..request }).unwrap_err()
    };
    assert_eq!(
        refused(&inline, 10, &[1], LIMITS),
        LayoutError::NotTargetable
    );
    let placement = structure(&[(1, 1024, false), (1, 4096, true)]);
    let one = SendLimits {
        transmissions_max: 1,
        ..LIMITS
    };
    assert_eq!(
        refused(&placement, 10, &[4097], one),
        LayoutError::TooManyTransmissions
    );
    assert_eq!(
        refused(&inline, 4037, &[], one),
        LayoutError::TooManyTransmissions
    );
    // A Send of ours that does not reach the end of the segment can only have the end of an item.
    let short = SendLimits {
        send_bytes_max: 5000,
        ..LIMITS
    };
    assert_eq!(
        refused(&placement, 10, &[4000], short),
        LayoutError::NotTargetable
    );
    let header_only = SendLimits {
        send_bytes_max: 59,
        ..LIMITS
    };
    assert_eq!(refused(&inline, 10, &[], header_only), LayoutError::NoRoom);
}

/// Items in parts of one length.
#[derive(Debug)]
struct Parts {
    lengths: Vec<u32>,
    part_bytes: u32,
}

impl BulkItems for Parts {
    fn count(&self) -> usize {
        self.lengths.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.lengths[item]
    }

    fn gather_entries(&self, _item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        let first = from_bytes / self.part_bytes;
        (from_bytes + length_bytes).div_ceil(self.part_bytes) - first
    }
}

fn octets_of(total: usize, seed: u8) -> Vec<u8> {
    (0..total)
        .map(|at| u8::try_from(at % 241).unwrap() ^ seed | 1)
        .collect()
}

/// What the receiver has of one Send: its buffer, with what was there before, and how far the Send reaches.
struct Received {
    buffer: Vec<u8>,
    end: usize,
    stream: std::ops::Range<usize>,
}

fn as_usize(value: u32) -> usize {
    usize::try_from(value).unwrap()
}

proptest! {
    /// The receiver, who knows its structure, the headers and the numbers alone, has the stream and every item.
    #[test]
    fn the_receiver_finds_every_octet(
        groups in vec((1..4_u32, 1..300_u32, any::<bool>()), 1..6),
        header_bytes in 40..200_u32,
        stream_bytes in 0..2000_u32,
        lengths in vec(prop_oneof![0..5_u32, 0..900_u32], 0..5),
        part_bytes in prop_oneof![Just(u32::MAX), 1..200_u32],
        gather_entries_max in 3..12_u32,
        padding_region_bytes in prop_oneof![Just(u32::MAX), 1..100_u32],
        send_bytes_max in prop_oneof![Just(u32::MAX), 100..900_u32],
    ) {
        let structure = structure(&groups);
        let items = Parts { lengths, part_bytes };
        let limits = SendLimits { send_bytes_max, gather_entries_max, padding_region_bytes, transmissions_max: 64 };
        let request = LayoutRequest { structure: &structure, header_bytes, stream_bytes, items: &items, limits };
        let laid_out = Layout::new(request);
        prop_assume!(laid_out.is_ok());
        let layout = laid_out.unwrap();
        let stream_octets = octets_of(as_usize(stream_bytes), 0x55);
        let item_octets: Vec<Vec<u8>> = (1..)
            .zip(&items.lengths)
            .map(|(seed, length)| octets_of(as_usize(*length), seed))
            .collect();

        let mut received = Vec::new();
        for (index, transmission) in layout.transmissions().enumerate() {
            prop_assert_eq!(as_usize(transmission.index()), index);
            let (mut sent, mut entries) = (Vec::new(), 0);
            for piece in transmission.pieces() {
                entries += 1;
                match piece {
                    Piece::Header { length_bytes } => {
                        prop_assert_eq!(length_bytes, transmission.header_bytes());
                        sent.extend(vec![0xee; as_usize(length_bytes)]);
                    }
                    Piece::Stream { from_bytes, length_bytes } => {
                        prop_assert_eq!(length_bytes, transmission.stream_bytes());
                        sent.extend(&stream_octets[as_usize(from_bytes)..][..as_usize(length_bytes)]);
                    }
                    Piece::Padding { length_bytes } => {
                        prop_assert!(length_bytes > 0 && length_bytes <= padding_region_bytes);
                        sent.extend(vec![0; as_usize(length_bytes)]);
                    }
                    Piece::Item { item, from_bytes, length_bytes } => {
                        entries += items.gather_entries(item, from_bytes, length_bytes) - 1;
                        sent.extend(&item_octets[item][as_usize(from_bytes)..][..as_usize(length_bytes)]);
                    }
                }
            }
            prop_assert!(entries <= gather_entries_max, "{} entries", entries);
            prop_assert_eq!(sent.len(), as_usize(transmission.length_bytes()));
            prop_assert!(sent.len() <= as_usize(structure.length_bytes().min(send_bytes_max)));
            let begin = as_usize(transmission.header_bytes());
            let mut buffer = sent.clone();
            buffer.resize(as_usize(structure.length_bytes()), 0xdd);
            received.push(Received {
                buffer,
                end: sent.len(),
                stream: begin..begin + as_usize(transmission.stream_bytes()),
            });
        }
        let numbers: Vec<Vec<u32>> = (0..items.count()).map(|item| layout.numbers(item).collect()).collect();
        let count: usize = numbers.iter().map(Vec::len).sum();
        prop_assert_eq!(as_usize(layout.header_bytes()), as_usize(header_bytes) + 4 * count);
        prop_assert_eq!(received[0].stream.start, as_usize(layout.header_bytes()));
        for later in &received[1..] {
            prop_assert_eq!(later.stream.start, as_usize(CONTINUE_BYTES));
        }

        let streams: Vec<u8> = received.iter().flat_map(|send| send.buffer[send.stream.clone()].to_vec()).collect();
        prop_assert_eq!(streams, stream_octets);
        let mut taken = Vec::new();
        for (item, octets) in item_octets.iter().enumerate() {
            let mut found: Vec<u8> = Vec::new();
            for number in &numbers[item] {
                let segment = structure.numbered_segment(*number).unwrap();
                let send = &received[as_usize(segment.transmission)];
                let begin = as_usize(segment.offset_bytes);
                let length = as_usize(segment.length_bytes).min(octets.len() - found.len());
                prop_assert!(length > 0, "a number that is not needed");
                prop_assert!(begin >= send.stream.end, "the item overlaps header or stream");
                prop_assert!(begin + length <= send.end, "octets that did not arrive");
                prop_assert!(!taken.contains(number), "two items in one segment");
                taken.push(*number);
                found.extend(&send.buffer[begin..begin + length]);
            }
            prop_assert_eq!(&found, octets);
        }
    }

    /// Where targetable segments are alike and follow the others, no layout has fewer transmissions.
    #[test]
    fn no_layout_has_fewer_transmissions(
        inline_bytes in 33..300_u32,
        targets in 1..5_u32,
        target_bytes in 20..300_u32,
        stream_bytes in 0..3000_u32,
        lengths in vec(0..700_u32, 0..4),
    ) {
        let structure = structure(&[(1, inline_bytes, false), (targets, target_bytes, true)]);
        let laid_out = Layout::new(layout_request(&structure, stream_bytes, lengths.as_slice()));
        let needed: u32 = lengths.iter().map(|length| length.div_ceil(target_bytes)).sum();
        let first_header_bytes = 60 + 4 * needed;
        // The most octets of the stream, by how many segments have items, over all ways to share them out.
        let mut most: Vec<Option<u32>> = vec![None; as_usize(needed) + 1];
        most[0] = Some(0);
        let mut fewest = None;
        for index in 0..LIMITS.transmissions_max {
            let header_bytes = if index == 0 { first_header_bytes } else { CONTINUE_BYTES };
            let mut next = vec![None; most.len()];
            let reached_before = most.iter().enumerate();
            for (used, before) in reached_before.filter_map(|(used, most)| Some((used, (*most)?))) {
                for more in 0..=targets {
                    let space_bytes = inline_bytes + (targets - more) * target_bytes;
                    let reached = used + as_usize(more);
                    if header_bytes <= space_bytes && reached < next.len() {
                        let stream = Some(before + space_bytes - header_bytes);
                        next[reached] = next[reached].max(stream);
                    }
                }
            }
            most = next;
            if most[as_usize(needed)].is_some_and(|most| most >= stream_bytes) {
                fewest = Some(index + 1);
                break;
            }
        }
        match laid_out {
            Ok(layout) => prop_assert_eq!(Some(layout.transmission_count()), fewest),
            Err(_) => prop_assert_eq!(fewest, None),
        }
    }
}
