//! Which way a reply goes, as a table; and that every plan brings the whole reply, in headers as long as planned.

mod carried;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::{
    ChunkLists, ChunkListsRepr, EncodeChunkLists, Fill, ReturnedLists, Segment, check_returned,
};
use rpcrdma_protocol::v2::plan::{
    BulkItems, Layout, Piece, ReplyFacts, ReplyForm, ReplyItems, ReplyPlan, RequesterOffer,
    ResultWay, SenderMeans, plan_reply,
};
use rpcrdma_protocol::v2::rtr::{
    Answer, BufferSegment, Location, MessageItem, PlacementType, ReceiveBufferStructure,
    ResponseItemRepr, ResponseLocation, ResponseSetRepr, ResponseSets, RtrSupport, SegmentGroup,
    StreamRange, TransmitResponse, write_response_sets,
};
use rpcrdma_protocol::v2::{self, Prefix, Properties, TransportError};
use rpcrdma_protocol::xdr::{Reader, Writer};

use crate::ends::{KIB, MEANS, MIB, reply_facts, with_placement};
use crate::support::encoded;

/// Results, and the position in the call that asked for each.
#[derive(Clone, Debug)]
struct Results(Vec<(u32, u32)>);

impl Results {
    /// Results that operation 0 asked for.
    fn of(lengths: &[u32]) -> Self {
        Self(lengths.iter().map(|length| (*length, 0)).collect())
    }
}

impl BulkItems for Results {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.0[item].0
    }
}

impl ReplyItems for Results {
    fn request_position(&self, item: usize) -> u32 {
        self.0[item].1
    }
}

/// A direction: the least length, what it says, and octets of the segments that it offers.
type Way = (u32, PlacementType, &'static [u32]);

const EXPLICIT_FROM: u32 = 10_000;

#[derive(Clone, Debug)]
enum Offer {
    /// Octets of the segments of each Write chunk, and of the Reply chunk.
    Chunks(Vec<Vec<u32>>, Option<u32>),
    /// Directions by operation, of eight octets each, and transmissions.
    Directions(Vec<Vec<(u32, PlacementType, Vec<u32>)>>, u32),
}

fn directions(sets: &[&[Way]], transmissions_max: u32) -> Offer {
    let owned = |way: &Way| (way.0, way.1, way.2.to_vec());
    let sets = sets
        .iter()
        .map(|set| set.iter().map(owned).collect())
        .collect();
    Offer::Directions(sets, transmissions_max)
}

fn chunks(writes: &[&[u32]], reply: Option<u32>) -> Offer {
    Offer::Chunks(writes.iter().map(|chunk| chunk.to_vec()).collect(), reply)
}

#[derive(Clone, Debug)]
struct Case {
    stream_bytes: u32,
    results: Results,
    offer: Offer,
    is_version_1: bool,
    may_reduce: bool,
    means: SenderMeans,
    own: Properties,
    peer: Properties,
}

/// Segments of these lengths; the handle is the first free one.
fn segments(lengths: &[u32], next_handle: &mut u32) -> Vec<Segment> {
    lengths
        .iter()
        .map(|length_bytes| {
            *next_handle += 1;
            Segment {
                handle: *next_handle,
                length_bytes: *length_bytes,
                offset: 64,
            }
        })
        .collect()
}

impl Case {
    fn new(results: &[u32], offer: Offer) -> Self {
        Self {
            stream_bytes: 100,
            results: Results::of(results),
            offer,
            is_version_1: false,
            may_reduce: true,
            means: MEANS,
            own: with_placement(),
            peer: with_placement(),
        }
    }

    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The offer as it stood in the header of the call.
    fn encoded_offer(&self) -> Vec<u8> {
        let mut handle = 0;
        match &self.offer {
            Offer::Chunks(writes, reply) => {
                let writes: Vec<_> = writes
                    .iter()
                    .map(|chunk| segments(chunk, &mut handle))
                    .collect();
                let writes: Vec<_> = writes.iter().map(Vec::as_slice).collect();
                let reply = reply.map(|length_bytes| segments(&[length_bytes], &mut handle));
                let lists = ChunkListsRepr {
                    reads: &[],
                    writes: &writes,
                    reply: reply.as_deref(),
                };
                encoded(|space| {
                    let mut writer = Writer::new(space);
                    lists.encode(&mut writer).map(|()| writer.position())
                })
            }
            Offer::Directions(sets, _) => {
                let memory: Vec<Vec<Vec<Segment>>> = sets
                    .iter()
                    .map(|set| {
                        set.iter()
                            .map(|way| segments(&way.2, &mut handle))
                            .collect()
                    })
                    .collect();
                let items: Vec<Vec<ResponseItemRepr<'_>>> = sets
                    .iter()
                    .zip(&memory)
                    .map(|(set, memory)| {
                        set.iter()
                            .zip(memory)
                            .map(|(way, memory)| direction(way.0, way.1, memory))
                            .collect()
                    })
                    .collect();
                let sets = (0..).zip(&items).map(|(index, items)| ResponseSetRepr {
                    range: StreamRange {
                        begin: index * 8,
                        end: index * 8 + 8,
                    },
                    items: items.as_slice(),
                });
                let sets: Vec<_> = sets.collect();
                encoded(|space| {
                    let mut writer = Writer::new(space);
                    let items = sets.iter().map(|set| v2::rtr::ResponseSet {
                        range: set.range,
                        items: set.items.iter().copied(),
                    });
                    write_response_sets(&mut writer, items).map(|()| writer.position())
                })
            }
        }
    }

    fn offer<'a>(&self, bytes: &'a [u8]) -> RequesterOffer<'a> {
        match &self.offer {
            Offer::Chunks(..) => {
                let lists = ChunkLists::decode(&mut Reader::new(bytes)).unwrap();
                RequesterOffer::Chunks {
                    writes: lists.writes,
                    reply: lists.reply,
                }
            }
            Offer::Directions(_, transmissions_max) => RequesterOffer::Directions {
                sets: ResponseSets::decode(&mut Reader::new(bytes)).unwrap(),
                transmissions_max: *transmissions_max,
            },
        }
    }

    fn plan(&self) -> Result<ReplyPlan, TransportError> {
        let bytes = self.encoded_offer();
        plan_reply(&ReplyFacts {
            stream_bytes: self.stream_bytes,
            is_version_1: self.is_version_1,
            may_reduce: self.may_reduce,
            means: self.means,
            own: &self.own,
            ..reply_facts(&self.results, self.offer(&bytes), &self.peer)
        })
    }
}

fn direction(
    minimum_bytes: u32,
    kind: PlacementType,
    segments: &[Segment],
) -> ResponseItemRepr<'_> {
    ResponseItemRepr {
        minimum_bytes,
        location: match kind {
            PlacementType::Explicit => ResponseLocation::Explicit(segments),
            PlacementType::Choice => ResponseLocation::Choice(segments),
            PlacementType::BySize => ResponseLocation::BySize {
                explicit_from_bytes: EXPLICIT_FROM,
                segments,
            },
            _ => ResponseLocation::Placed,
        },
    }
}

const IN: ResultWay = ResultWay::Inline;

const fn short(direction: usize) -> ResultWay {
    ResultWay::TooShort { direction }
}

const fn sent(direction: usize) -> ResultWay {
    ResultWay::Placed { direction }
}

const fn written(chunk: usize) -> ResultWay {
    ResultWay::Written { chunk }
}

const fn message(messages: u32) -> ReplyForm {
    ReplyForm::Message { messages }
}

const fn group(transmissions: u32) -> ReplyForm {
    ReplyForm::Group { transmissions }
}

const fn write_resource(chunk_index: u32, length_needed_bytes: u32) -> TransportError {
    TransportError::WriteResource {
        chunk_index,
        length_needed_bytes,
    }
}

const fn reply_resource(length_needed_bytes: u32) -> TransportError {
    TransportError::ReplyResource {
        length_needed_bytes,
    }
}

fn assert_plans(cases: &[(&str, Case, ReplyForm, &[ResultWay])]) {
    for (name, case, form, results) in cases {
        let plan = case
            .plan()
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(
            (plan.form, &plan.results[..results.len()]),
            (*form, *results),
            "{name}"
        );
        assert!(
            plan.results[results.len()..].iter().all(|way| *way == IN),
            "{name}"
        );
        let credits = match plan.form {
            ReplyForm::Group { transmissions } => transmissions,
            ReplyForm::Message { .. } | ReplyForm::Long => 1,
        };
        assert_eq!(plan.credits_needed, credits, "{name}");
    }
}

#[test]
fn results_go_into_their_write_chunks() {
    let case = Case::new;
    assert_plans(&[
        ("nothing", case(&[], chunks(&[], None)), message(1), &[]),
        (
            "no chunk",
            case(&[4096], chunks(&[], None)),
            message(1),
            &[IN],
        ),
        (
            "a chunk",
            case(&[4096], chunks(&[&[4096]], None)),
            message(1),
            &[written(0)],
        ),
        (
            "a chunk of segments",
            case(&[4096], chunks(&[&[0, 4000, 96]], None)),
            message(1),
            &[written(0)],
        ),
        (
            "a short result",
            case(&[1], chunks(&[&[4096]], None)),
            message(1),
            &[written(0)],
        ),
        (
            "fewer chunks",
            case(&[1, 2], chunks(&[&[9]], None)),
            message(1),
            &[written(0), IN],
        ),
        (
            "an empty chunk",
            case(&[1, 2], chunks(&[&[], &[9]], None)),
            message(1),
            &[IN, written(1)],
        ),
        (
            "more chunks",
            case(&[1], chunks(&[&[9], &[9]], None)),
            message(1),
            &[written(0)],
        ),
        (
            "a chunk that is too small, and those after it",
            case(&[9, 10, 9], chunks(&[&[9], &[9], &[9]], None)),
            message(1),
            &[written(0), IN, IN],
        ),
    ]);
}

#[test]
fn the_rest_goes_inline_or_continued_or_into_the_reply_chunk() {
    let case = |stream_bytes, credits, reply| {
        Case::new(&[], chunks(&[], reply)).but(|case| {
            case.stream_bytes = stream_bytes;
            case.means.credits = credits;
        })
    };
    let big = Some(100_000);
    // A Reply chunk of one segment takes 20 octets of the header.
    let fits = 65 * KIB - 36 - 20;
    assert_plans(&[
        (
            "inline, although there is a chunk",
            case(fits, 1, big),
            message(1),
            &[],
        ),
        (
            "one octet more, and no second credit",
            case(fits + 1, 1, big),
            ReplyForm::Long,
            &[],
        ),
        (
            "credits for all of it",
            case(fits + 1, 2, big),
            message(2),
            &[],
        ),
        (
            "longer than is continued",
            case(80 * KIB + 1, 8, big),
            ReplyForm::Long,
            &[],
        ),
        ("no chunk", case(80 * KIB + 1, 8, None), message(2), &[]),
        (
            "no chunk, no credits: it waits",
            case(80 * KIB + 1, 1, None),
            message(2),
            &[],
        ),
        (
            "a chunk that is too small",
            case(100_001, 1, big),
            message(2),
            &[],
        ),
        (
            "a chunk that just suffices",
            case(100_000, 1, big),
            ReplyForm::Long,
            &[],
        ),
        (
            "a result whose chunk is too small, in the Reply chunk",
            Case::new(&[200 * KIB], chunks(&[&[100]], Some(200 * KIB + 100))),
            ReplyForm::Long,
            &[IN],
        ),
    ]);
}

#[test]
fn reply_that_cannot_be_carried_gets_its_error() {
    let refused = |case: Case| case.plan().unwrap_err();
    let long = |results: &[u32], offer| Case::new(results, offer);
    // 2 MiB is the longest stream that is continued.
    assert_eq!(
        refused(long(&[2 * MIB], chunks(&[], None))),
        reply_resource(2 * MIB + 100)
    );
    assert_eq!(
        refused(long(&[2 * MIB], chunks(&[], Some(MIB)))),
        reply_resource(2 * MIB + 100)
    );
    assert_eq!(
        refused(long(&[2 * MIB + 1], chunks(&[&[MIB, MIB]], None))),
        write_resource(1, 2 * MIB + 1)
    );
    assert_eq!(
        refused(long(
            &[9, 10, 2 * MIB],
            chunks(&[&[9], &[9], &[2 * MIB]], None)
        )),
        write_resource(2, 10),
        "the first that is too small"
    );
    // Not even the lists fit: 24 octets of marks, counts and prefix, and 61 segments.
    let crowded =
        long(&[], chunks(&[&[1; 61]], None)).but(|case| case.peer.receive_buffer_bytes = 1024);
    assert_eq!(
        refused(
            crowded
                .clone()
                .but(|case| case.offer = chunks(&[&[1; 62]], None))
        ),
        TransportError::System
    );
    assert_eq!(
        crowded
            .clone()
            .but(|case| case.stream_bytes = 4)
            .plan()
            .unwrap()
            .form,
        message(1)
    );
    assert_eq!(
        refused(crowded.but(|case| case.peer.receive_buffer_bytes = 1019)),
        TransportError::System
    );
}

/// A reply of version 1 has a header of 28 octets and one message (RFC 8166 section 4.5.3).
#[test]
fn version_1_has_one_message_and_no_second_choice() {
    let case = |results: &[u32], stream_bytes, offer| {
        Case::new(results, offer).but(|case| {
            case.stream_bytes = stream_bytes;
            case.is_version_1 = true;
        })
    };
    let fits = 65 * KIB - 28;
    assert_plans(&[
        (
            "one message",
            case(&[], fits, chunks(&[], None)),
            message(1),
            &[],
        ),
        (
            "the Reply chunk, with its 20 octets in the header",
            case(&[], fits - 19, chunks(&[], Some(100_000))),
            ReplyForm::Long,
            &[],
        ),
        (
            "a result that fits its chunk",
            case(&[4096], 100, chunks(&[&[4096]], None)),
            message(1),
            &[written(0)],
        ),
    ]);
    let refused = |case: Case| case.plan().unwrap_err();
    assert_eq!(
        refused(case(&[], fits + 1, chunks(&[], None))),
        reply_resource(fits + 1)
    );
    assert_eq!(
        refused(case(&[10], 100, chunks(&[&[9]], Some(MIB)))),
        write_resource(1, 10),
        "nothing else is tried"
    );
}

#[test]
fn reply_that_may_not_be_reduced_stays_whole() {
    let case = |offer| Case::new(&[4096], offer).but(|case| case.may_reduce = false);
    assert_plans(&[
        (
            "in the message",
            case(chunks(&[&[4096]], None)),
            message(1),
            &[IN],
        ),
        (
            "in the Reply chunk",
            case(chunks(&[&[4096]], Some(MIB))).but(|case| case.stream_bytes = 100_000),
            ReplyForm::Long,
            &[IN],
        ),
    ]);
}

#[test]
fn results_go_as_their_directions_say() {
    use PlacementType::{BySize, Choice, Explicit, Placed};
    let one = |length, way: Way| Case::new(&[length], directions(&[&[way]], 8));
    assert_plans(&[
        (
            "no item",
            Case::new(&[], directions(&[&[(0, Placed, &[])]], 8)),
            group(1),
            &[],
        ),
        ("by Send", one(4096, (0, Placed, &[])), group(1), &[sent(0)]),
        (
            "too short",
            one(99, (100, Placed, &[])),
            group(1),
            &[short(0)],
        ),
        (
            "just long enough",
            one(100, (100, Placed, &[])),
            group(1),
            &[sent(0)],
        ),
        (
            "nothing is too short",
            one(0, (0, Placed, &[])),
            group(1),
            &[short(0)],
        ),
        (
            "by RDMA",
            one(4096, (0, Explicit, &[4096])),
            group(1),
            &[written(0)],
        ),
        (
            "a short one for RDMA",
            one(99, (100, Explicit, &[4096])),
            group(1),
            &[short(0)],
        ),
        (
            "as we choose: short",
            one(256 * KIB, (0, Choice, &[MIB])),
            group(4),
            &[sent(0)],
        ),
        (
            "as we choose: long",
            one(256 * KIB + 1, (0, Choice, &[MIB])),
            group(1),
            &[written(0)],
        ),
        (
            "as we choose: no room",
            one(256 * KIB + 1, (0, Choice, &[1])),
            group(5),
            &[sent(0)],
        ),
        (
            "by size: short",
            one(EXPLICIT_FROM - 1, (0, BySize, &[MIB])),
            group(1),
            &[sent(0)],
        ),
        (
            "by size: long",
            one(EXPLICIT_FROM, (0, BySize, &[MIB])),
            group(1),
            &[written(0)],
        ),
    ]);
    let refused = |case: Case| case.plan().unwrap_err();
    assert_eq!(
        refused(one(4097, (0, Explicit, &[4000, 96]))),
        write_resource(1, 4097)
    );
    assert_eq!(
        refused(one(EXPLICIT_FROM, (0, BySize, &[9]))),
        write_resource(1, EXPLICIT_FROM)
    );
}

#[test]
fn each_set_directs_the_results_of_its_range() {
    use PlacementType::{Explicit, Placed};
    let sets: &[&[Way]] = &[
        &[(0, Placed, &[]), (0, Placed, &[])],
        &[],
        &[(50, Explicit, &[100])],
    ];
    let case = |results: &[(u32, u32)]| {
        Case::new(&[], directions(sets, 8)).but(|case| case.results = Results(results.to_vec()))
    };
    assert_plans(&[
        (
            "two of the first, one of the third",
            case(&[(10, 0), (20, 7), (60, 16)]),
            group(2),
            &[sent(0), sent(1), written(2)],
        ),
        (
            "a set that is used up, one without directions, and none",
            case(&[(10, 0), (20, 0), (30, 0), (40, 8), (60, 24)]),
            group(2),
            &[sent(0), sent(1), IN, IN, IN],
        ),
        (
            "a direction that was met by too short a result is used up",
            case(&[(49, 16), (60, 16)]),
            group(1),
            &[short(2), IN],
        ),
    ]);
    let plan = case(&[(10, 0), (60, 16)]).plan().unwrap();
    let answers: Vec<_> = (0..4).map(|direction| plan.answer(direction)).collect();
    assert_eq!(
        answers,
        [Some((0, sent(0))), None, Some((1, written(2))), None]
    );
}

/// The order of fallbacks when the requester has not reserved enough for the group.
#[test]
fn a_group_beyond_the_reserve_is_written_or_refused() {
    use PlacementType::{BySize, Choice, Placed};
    const LENGTH: u32 = 200 * KIB;
    let with = |way: Way, transmissions_max| {
        Case::new(&[LENGTH], directions(&[&[way]], transmissions_max))
    };
    let few_credits = |case: Case| case.but(|case| case.means.credits = 1);
    let low_limit = |case: Case| case.but(|case| case.own.response_transmissions_max = 3);
    let no_continue = |case: Case| case.but(|case| case.peer.rtr_support = RtrSupport::REQUEST);
    assert_plans(&[
        (
            "within the reserve",
            with((0, Placed, &[]), 4),
            group(4),
            &[sent(0)],
        ),
        (
            "within it, it waits for credits",
            few_credits(with((0, Placed, &[]), 4)),
            group(4),
            &[sent(0)],
        ),
        (
            "beyond it",
            with((0, Choice, &[LENGTH]), 3),
            group(1),
            &[written(0)],
        ),
        (
            "beyond our limit",
            low_limit(with((0, Choice, &[LENGTH]), 4)),
            group(1),
            &[written(0)],
        ),
        (
            "no continuation",
            no_continue(with((0, Choice, &[LENGTH]), 4)),
            group(1),
            &[written(0)],
        ),
    ]);
    // Below the length from which BySize is for RDMA, it is the reserve that decides.
    let small = |transmissions_max| {
        let ways: &[Way] = &[(0, BySize, &[9000]), (0, BySize, &[9000])];
        Case::new(&[9000, 9000], directions(&[ways], transmissions_max))
    };
    assert_plans(&[
        ("two segments", small(2), group(2), &[sent(0), sent(1)]),
        (
            "one transmission",
            small(0),
            group(1),
            &[written(0), written(1)],
        ),
    ]);
    let refused = |case: Case| case.plan().unwrap_err();
    let whole = reply_resource(100 + LENGTH);
    assert_eq!(refused(with((0, Placed, &[]), 3)), whole);
    assert_eq!(refused(low_limit(with((0, Placed, &[]), 4))), whole);
    assert_eq!(refused(with((0, Choice, &[LENGTH - 1]), 3)), whole);
    let long_stream = with((0, Placed, &[]), 4).but(|case| case.stream_bytes = 300 * KIB);
    assert_eq!(refused(long_stream), reply_resource(500 * KIB));
}

/// A response answers each direction with an item, and a message has 256 items at the most: a request with more
/// directions, over several sets, is to be sent again as a plain one.
#[test]
fn more_directions_than_a_response_can_answer() {
    const PLACED: Way = (64, PlacementType::Placed, &[]);
    let placed: &[Way] = &[PLACED; 128];
    let with = |last: &[Way]| {
        Case::new(&[5000], directions(&[placed, placed, last], 4))
            .but(|case| case.peer = with_long_headers())
    };
    let plan = with(&[]).plan().expect("256 items are taken");
    assert_eq!(plan.form, group(1));
    let refused = with(&placed[..1]).plan();
    assert_eq!(refused, Err(reply_resource(100 + 5000)));
}

/// Receive buffers whose first segment holds the header of a response with 256 items.
fn with_long_headers() -> Properties {
    let segment = |length_bytes, is_targetable| BufferSegment {
        length_bytes,
        align_bytes: 0,
        is_targetable,
    };
    let structure = ReceiveBufferStructure::new(&[
        SegmentGroup {
            count: 1,
            segment: segment(8 * KIB, false),
        },
        SegmentGroup {
            count: 1,
            segment: segment(64 * KIB, true),
        },
    ]);
    let structure = structure.expect("sound");
    Properties {
        receive_buffer_bytes: structure.length_bytes(),
        receive_buffer_structure: Some(structure),
        ..with_placement()
    }
}
