//! What a Transmit Request names for explicit RDMA is held to the limits of chunk lists (RTR sections 7.3 and 7.4;
//! -00 section 6.4.3).

use rpcrdma_protocol::chunks::{ChunkFault, ChunkLimits, Segment};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::rtr::{
    EncodeResponseSets, Location, MessageItem, MessageItems, MessageKind, ResponseItemRepr,
    ResponseLocation, ResponseSetRepr, ResponseSets, StreamRange, check_explicit_memory,
    write_items,
};
use rpcrdma_protocol::xdr::{Reader, Writer};

const LIMITS: ChunkLimits = ChunkLimits {
    read_chunks_max: 2,
    reads_position_zero: false,
    write_chunks_max: 2,
    segments_max: 4,
    segment_bytes_max: 1000,
    call_bytes_max: 3000,
};

fn segment(length_bytes: u32, offset: u64) -> Segment {
    Segment {
        handle: 7,
        length_bytes,
        offset,
    }
}

/// Items that are read from this memory, and directions that offer that.
fn check(
    read: &[(u32, &[Segment])],
    written: &[ResponseLocation<&[Segment]>],
) -> Option<ChunkFault> {
    let mut space = [0; 1024];
    let mut writer = Writer::new(&mut space);
    let items = read.iter().zip([20_000, 40_000, 60_000]).map(
        |((length_bytes, segments), displacement)| MessageItem {
            displacement,
            length_bytes: *length_bytes,
            location: Location::<_, [u32; 0]>::Explicit(segments.iter().copied()),
        },
    );
    write_items(&mut writer, items).unwrap();
    let end = writer.position();
    let items = MessageItems::decode(&mut Reader::new(&space[..end]), MessageKind::Request);

    let directions: Vec<_> = written
        .iter()
        .map(|location| ResponseItemRepr {
            minimum_bytes: 0,
            location: *location,
        })
        .collect();
    let set = ResponseSetRepr {
        range: StreamRange { begin: 0, end: 8 },
        items: &directions,
    };
    let mut space = [0; 1024];
    let mut writer = Writer::new(&mut space);
    [set].as_slice().encode(&mut writer).unwrap();
    let end = writer.position();
    let sets = ResponseSets::decode(&mut Reader::new(&space[..end]));
    check_explicit_memory(items.unwrap(), sets.unwrap(), &LIMITS).err()
}

#[test]
fn memory_of_a_request_is_held_to_the_limits() {
    use ResponseLocation::{BySize, Choice, Explicit, Placed};
    let (a, b, c) = (segment(1000, 0), segment(500, 1000), segment(1000, 5000));
    assert_eq!(check(&[], &[]), None);
    assert_eq!(check(&[(1000, &[a])], &[]), None);
    // An item may be shorter than its memory; of the memory alone nothing follows for the call.
    assert_eq!(
        check(&[(1000, &[a, b])], &[Explicit(&[a]), Choice(&[c])]),
        None
    );
    let by_size = BySize {
        explicit_from_bytes: 100,
        segments: &[a, b][..],
    };
    assert_eq!(check(&[(1000, &[a, b])], &[by_size, Placed]), None);

    let too_many = Some(ChunkFault::TooManySegments { segments_max: 4 });
    assert_eq!(check(&[(1000, &[a, b, c])], &[by_size]), too_many);
    let d = segment(0, 0);
    let many = Some(ChunkFault::TooManyReadChunks { chunks_max: 2 });
    assert_eq!(check(&[(0, &[]), (0, &[d]), (0, &[])], &[]), many);
    let long = Some(ChunkFault::SegmentTooLong);
    assert_eq!(check(&[(10, &[segment(1001, 0)])], &[]), long);
    assert_eq!(check(&[], &[Choice(&[segment(1001, 0)])]), long);
    let wraps = Some(ChunkFault::SegmentWraps);
    assert_eq!(check(&[], &[Explicit(&[segment(2, u64::MAX)])]), wraps);
    // What is read may be written too; what is written twice is not known afterwards.
    assert_eq!(check(&[(1000, &[a])], &[Explicit(&[a])]), None);
    let overlap = Some(ChunkFault::SegmentsOverlap);
    assert_eq!(check(&[(1000, &[a]), (1000, &[a])], &[]), overlap);
    assert_eq!(
        check(&[], &[Explicit(&[c]), Choice(&[segment(8, 5992)])]),
        overlap
    );
    let call = Some(ChunkFault::CallTooLong);
    assert_eq!(
        check(&[(2000, &[a, c]), (1001, &[b, segment(999, 9000)])], &[]),
        call
    );
    assert_eq!(
        check(&[(2000, &[a, c]), (1000, &[b, segment(999, 9000)])], &[]),
        None
    );
}

#[test]
fn each_fault_has_the_error_that_names_it() {
    let fault = check(&[], &[ResponseLocation::Choice(&[segment(0, 0); 5])]).unwrap();
    let segments = TransportError::Segments { max_segments: 4 };
    assert_eq!(fault.transport_error(), segments);
    let fault = check(&[(1, &[segment(1, 0)]), (1, &[segment(1, 0)])], &[]).unwrap();
    assert_eq!(fault.transport_error(), TransportError::BadXdr);
}
