//! Which way a call goes and what it offers, as a table; and that every plan can be carried out: headers are as long
//! as planned, and whatever way its parts go, the call is put together to the same octets.

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::{
    ChunkLimits, ChunkLists, ChunkListsRepr, EncodeChunkLists, PayloadPlace, ReadSegment, Segment,
    StreamPiece, check_call,
};
use rpcrdma_protocol::constants::PLAN_ITEMS_MAX;
use rpcrdma_protocol::v2::plan::{
    BulkItems, CallFacts, CallForm, CallPlan, CallRefused, Demand, Direction, ExpectedResult,
    Layout, Piece, SenderMeans, Thresholds, plan_call,
};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, Location, MessageItem, ReceiveBufferStructure, ResponseItemRepr,
    ResponseLocation, ResponseSetRepr, RtrSupport, SegmentGroup, StreamRange, TransmitRequest,
};
use rpcrdma_protocol::v2::{self, Prefix, Properties};
use rpcrdma_protocol::xdr::{Reader, Writer};

use crate::support::encoded;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * 1024;

/// One inline segment of 1 KiB and one placement segment of 64 KiB, all of the extension.
pub(crate) fn with_placement() -> Properties {
    let segment = |length_bytes, is_targetable| SegmentGroup {
        count: 1,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let groups = [segment(KIB, false), segment(64 * KIB, true)];
    let structure = ReceiveBufferStructure::new(&groups).unwrap();
    Properties {
        send_bytes_max: 65 * KIB,
        receive_buffer_bytes: 65 * KIB,
        rtr_support: RtrSupport::ALL,
        receive_buffer_structure: Some(structure),
        request_transmissions_max: 16,
        response_transmissions_max: 16,
        ..Properties::default()
    }
}

pub(crate) const THRESHOLDS: Thresholds = Thresholds {
    inline_item_bytes_max: 512,
    send_placement_bytes_max: 256 * KIB,
    continued_bytes_max: 80 * KIB,
};

pub(crate) const MEANS: SenderMeans = SenderMeans {
    send_bytes_max: 65 * KIB,
    gather_entries_max: 4,
    padding_region_bytes: 64 * KIB,
    message_bytes_max: 2 * MIB,
    credits: 8,
};

/// A call that the tables vary.
#[derive(Clone, Debug)]
struct Case {
    demand: Demand,
    stream_bytes: u32,
    items: Vec<u32>,
    results: Vec<u32>,
    reply_stream_bytes_max: u32,
    means: SenderMeans,
    plain_send_bytes_max: u32,
    continues_with_chunks: bool,
    own: Properties,
    peer: Properties,
    peer_read_chunks_max: u32,
    peer_write_chunks_max: u32,
    windows: u32,
    reply_credits: u32,
}

impl Case {
    fn new(items: &[u32], results: &[u32]) -> Self {
        Self {
            demand: Demand::Auto,
            stream_bytes: 100,
            items: items.to_vec(),
            results: results.to_vec(),
            reply_stream_bytes_max: 100,
            means: MEANS,
            plain_send_bytes_max: u32::MAX,
            continues_with_chunks: true,
            own: with_placement(),
            peer: with_placement(),
            peer_read_chunks_max: u32::MAX,
            peer_write_chunks_max: u32::MAX,
            windows: 16,
            reply_credits: 8,
        }
    }

    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn demanding(self, demand: Demand) -> Self {
        self.but(|case| case.demand = demand)
    }

    fn expected(&self) -> Vec<ExpectedResult> {
        // Two results of each operation.
        (0_u32..)
            .zip(&self.results)
            .map(|(index, bytes_max)| ExpectedResult {
                range: StreamRange {
                    begin: index / 2 * 8,
                    end: index / 2 * 8 + 8,
                },
                bytes_max: *bytes_max,
            })
            .collect()
    }

    fn plan(&self) -> Result<CallPlan, CallRefused> {
        plan_call(&CallFacts {
            demand: self.demand,
            thresholds: THRESHOLDS,
            stream_bytes: self.stream_bytes,
            items: self.items.as_slice(),
            reply_stream_bytes_max: self.reply_stream_bytes_max,
            results: &self.expected(),
            means: self.means,
            plain_send_bytes_max: self.plain_send_bytes_max,
            continues_with_chunks: self.continues_with_chunks,
            credits_max: 32,
            own: &self.own,
            peer: &self.peer,
            peer_read_chunks_max: self.peer_read_chunks_max,
            peer_write_chunks_max: self.peer_write_chunks_max,
            windows: self.windows,
            window_bytes_max: MIB,
            reply_bytes_max: 2 * MIB,
            reply_credits: self.reply_credits,
        })
    }
}

const IN: Direction = Direction::Inline;
const SEND: Direction = Direction::Placed;
const RDMA: Direction = Direction::Explicit;
const CHOICE: Direction = Direction::Choice;
const BY_SIZE: Direction = Direction::BySize {
    explicit_from_bytes: 256 * KIB + 1,
};

const fn one() -> CallForm {
    CallForm::Message { messages: 1 }
}

const fn group(transmissions: u32) -> CallForm {
    CallForm::Group { transmissions }
}

/// What is expected of a plan: its form, the ways of items and of results, windows, octets of the Reply chunk,
/// transmissions of the reply.
type Expected<'a> = (CallForm, &'a [Direction], &'a [Direction], u32, u32, u32);

fn assert_plans(cases: &[(&str, Case, Expected<'_>)]) {
    for (name, case, expected) in cases {
        let plan = case
            .plan()
            .unwrap_or_else(|refused| panic!("{name}: {refused}"));
        let (items, results) = (case.items.len(), case.results.len());
        let got: Expected<'_> = (
            plan.form,
            &plan.items[..items],
            &plan.reply.directions[..results],
            plan.windows_needed,
            plan.reply.reply_chunk_bytes,
            plan.reply.transmissions_max,
        );
        assert_eq!(got, *expected, "{name}");
        assert!(plan.items[items..].iter().all(|direction| *direction == IN));
        let credits = match plan.form {
            CallForm::Group { transmissions } => transmissions,
            CallForm::Message { .. } | CallForm::Long => 1,
        };
        assert_eq!(plan.credits_needed, credits, "{name}");
    }
}

#[test]
fn calls_go_as_sizes_and_thresholds_say() {
    let case = Case::new;
    assert_plans(&[
        ("nothing", case(&[], &[]), (one(), &[], &[], 0, 0, 1)),
        (
            "nothing but empty items",
            case(&[0], &[0]),
            (one(), &[IN], &[IN], 0, 0, 1),
        ),
        (
            "a short item",
            case(&[512], &[]),
            (one(), &[IN], &[], 0, 0, 1),
        ),
        (
            "an item for one Send",
            case(&[513], &[]),
            (group(1), &[SEND], &[], 0, 0, 1),
        ),
        (
            "an item for four Sends",
            case(&[200 * KIB], &[]),
            (group(4), &[SEND], &[], 0, 0, 1),
        ),
        (
            "the longest item for Sends",
            case(&[256 * KIB], &[]),
            (group(4), &[SEND], &[], 0, 0, 1),
        ),
        (
            "an item for RDMA",
            case(&[256 * KIB + 1], &[]),
            (one(), &[RDMA], &[], 1, 0, 1),
        ),
        (
            "two windows",
            case(&[MIB + 1], &[]),
            (one(), &[RDMA], &[], 2, 0, 1),
        ),
        (
            "items of every size",
            case(&[10, 4096, MIB], &[]),
            (group(1), &[IN, SEND, RDMA], &[], 1, 0, 1),
        ),
        (
            "a short result",
            case(&[], &[512]),
            (one(), &[], &[IN], 0, 0, 1),
        ),
        (
            "a result for one Send",
            case(&[], &[4096]),
            (group(1), &[], &[SEND], 0, 0, 1),
        ),
        (
            "a result of any size",
            case(&[], &[MIB]),
            (group(1), &[], &[BY_SIZE], 1, 0, 4),
        ),
        (
            "both ways",
            case(&[4096], &[10, 4096]),
            (group(1), &[SEND], &[IN, SEND], 0, 0, 1),
        ),
    ]);
}

#[test]
fn calls_fall_back_where_means_are_missing() {
    let case = Case::new;
    let continued = |messages| CallForm::Message { messages };
    let mean = |case: Case, credits| case.but(|case| case.means.credits = credits);
    let bare = |case: Case| case.but(|case| case.windows = 0);
    let plain_peer = |case: Case| case.but(|case| case.peer = Properties::default());
    let no_targets = |properties: &mut Properties| properties.receive_buffer_structure = None;
    let no_continue = RtrSupport::REQUEST;
    assert_plans(&[
        (
            "credits for all but one",
            mean(case(&[200 * KIB], &[]), 3),
            (one(), &[RDMA], &[], 1, 0, 1),
        ),
        (
            "and no windows",
            bare(mean(case(&[200 * KIB], &[]), 3)),
            (continued(4), &[IN], &[], 0, 0, 1),
        ),
        (
            "no credit at all is waited for",
            mean(case(&[4096], &[]), 0),
            (group(1), &[SEND], &[], 0, 0, 1),
        ),
        (
            "no extension",
            plain_peer(case(&[4096], &[4096])),
            (one(), &[RDMA], &[RDMA], 2, 0, 1),
        ),
        (
            "no continuation of groups",
            case(&[70_000], &[70_000]).but(|case| case.peer.rtr_support = no_continue),
            (one(), &[RDMA], &[RDMA], 2, 0, 1),
        ),
        (
            "a receiver of one transmission",
            case(&[70_000], &[]).but(|case| case.peer.request_transmissions_max = 1),
            (one(), &[RDMA], &[], 1, 0, 1),
        ),
        (
            "a peer that places nothing",
            case(&[4096], &[4096]).but(|case| no_targets(&mut case.peer)),
            (group(1), &[RDMA], &[SEND], 1, 0, 1),
        ),
        (
            "we place nothing",
            case(&[4096], &[4096]).but(|case| no_targets(&mut case.own)),
            (group(1), &[SEND], &[RDMA], 1, 0, 1),
        ),
        (
            "a responder of few transmissions",
            case(&[4096], &[MIB]).but(|case| case.peer.response_transmissions_max = 3),
            (group(1), &[SEND], &[CHOICE], 1, 0, 1),
        ),
        (
            "a result that one transmission may bring, if it is short",
            case(&[], &[200 * KIB, 10]).but(|case| case.peer.response_transmissions_max = 1),
            (group(1), &[], &[CHOICE, IN], 1, 0, 1),
        ),
        (
            "and no memory to offer",
            bare(case(&[4096], &[200 * KIB])).but(|case| case.reply_credits = 1),
            (one(), &[IN], &[IN], 0, 0, 1),
        ),
        (
            "few credits are left for replies",
            case(&[], &[MIB]).but(|case| case.reply_credits = 3),
            (group(1), &[], &[CHOICE], 1, 0, 1),
        ),
        (
            "a short gather list",
            case(&[4096], &[]).but(|case| case.means.gather_entries_max = 3),
            (group(2), &[SEND], &[], 0, 0, 1),
        ),
        (
            "the peer takes one segment",
            case(&[MIB], &[MIB]).but(|case| case.peer.segment_count_max = 1),
            (continued(16), &[IN], &[IN], 0, 0, 1),
        ),
        (
            "the peer serves no Read chunks",
            case(&[MIB], &[]).but(|case| case.peer_read_chunks_max = 0),
            (CallForm::Long, &[IN], &[], 2, 0, 1),
        ),
        (
            "the peer serves no Write chunks",
            plain_peer(case(&[], &[MIB])).but(|case| case.peer_write_chunks_max = 0),
            (one(), &[], &[IN], 2, MIB + 100, 1),
        ),
    ]);
}

#[test]
fn long_streams_are_continued_or_read_or_written() {
    let long = |stream_bytes, reply_stream_bytes_max| {
        Case::new(&[], &[]).but(|case| {
            case.stream_bytes = stream_bytes;
            case.reply_stream_bytes_max = reply_stream_bytes_max;
        })
    };
    let bare = |case: Case| case.but(|case| case.windows = 0);
    let continued = |messages| CallForm::Message { messages };
    let fits = 65 * KIB - 36;
    assert_plans(&[
        (
            "inline to the last octet",
            long(fits, fits),
            (one(), &[], &[], 0, 0, 1),
        ),
        (
            "one octet more",
            long(fits + 1, fits + 1),
            (continued(2), &[], &[], 0, 0, 1),
        ),
        (
            "a long call",
            long(80 * KIB + 1, 100),
            (CallForm::Long, &[], &[], 1, 0, 1),
        ),
        (
            "without windows",
            bare(long(80 * KIB + 1, 100)),
            (continued(2), &[], &[], 0, 0, 1),
        ),
        (
            "a long reply",
            long(100, 80 * KIB + 1),
            (one(), &[], &[], 1, 80 * KIB + 1, 1),
        ),
        (
            "a reply for continuation",
            bare(long(100, 80 * KIB + 1)),
            (one(), &[], &[], 0, 0, 1),
        ),
        (
            "both",
            long(100_000, 3 * MIB),
            (CallForm::Long, &[], &[], 4, 3 * MIB, 1),
        ),
    ]);
    assert_eq!(bare(long(100, 3 * MIB)).plan(), Err(CallRefused::TooLong));
    assert_eq!(bare(long(3 * MIB, 100)).plan(), Err(CallRefused::TooLong));
}

#[test]
fn demands_are_met_or_refused() {
    use Demand::{Inline, Rdma, Send};
    let case = |demand, items: &[u32], results: &[u32]| Case::new(items, results).demanding(demand);
    let continued = |messages| CallForm::Message { messages };
    let bare = |case: Case| case.but(|case| case.windows = 0);
    assert_plans(&[
        (
            "all inline",
            case(Inline, &[MIB], &[MIB]),
            (continued(16), &[IN], &[IN], 0, 0, 1),
        ),
        (
            "by Send, however short",
            case(Send, &[1, 0], &[1]),
            (group(1), &[SEND, IN], &[SEND], 0, 0, 1),
        ),
        (
            "by Send, however long",
            case(Send, &[MIB], &[]),
            (group(16), &[SEND], &[], 0, 0, 1),
        ),
        (
            "nothing to place",
            case(Send, &[], &[]),
            (one(), &[], &[], 0, 0, 1),
        ),
        (
            "by RDMA, however short",
            case(Rdma, &[1], &[1]),
            (one(), &[RDMA], &[RDMA], 2, 0, 1),
        ),
        (
            "nothing to move",
            bare(case(Rdma, &[], &[])),
            (one(), &[], &[], 0, 0, 1),
        ),
        (
            "a long stream by RDMA",
            case(Rdma, &[], &[]).but(|case| case.stream_bytes = 70_000),
            (CallForm::Long, &[], &[], 1, 0, 1),
        ),
    ]);
    let send = case(Send, &[4096], &[]);
    let refused = Err(CallRefused::NoSendPlacement);
    assert_eq!(
        send.clone()
            .but(|case| case.peer.rtr_support = RtrSupport::RESPONSE)
            .plan(),
        refused
    );
    assert_eq!(
        send.but(|case| case.peer.receive_buffer_structure = None)
            .plan(),
        refused
    );
    assert_eq!(
        case(Send, &[MIB + 1], &[]).plan(),
        refused,
        "17 transmissions are more than the peer takes"
    );
    let no_rdma = Err(CallRefused::NoExplicitRdma);
    assert_eq!(bare(case(Rdma, &[4096], &[])).plan(), no_rdma);
    assert_eq!(
        case(Rdma, &[4096; 17], &[]).plan(),
        Err(CallRefused::TooManyItems)
    );
    let crowded = case(Rdma, &[4096; 16], &[4096]);
    assert_eq!(
        crowded.but(|case| case.windows = 100).plan(),
        no_rdma,
        "17 segments"
    );
}

// ---- Every plan can be carried out ----

/// The memory that a call exposes; octet `offset` of segment `handle` is there.
#[derive(Default)]
struct Exposed(Vec<Vec<u8>>);

impl Exposed {
    /// Buffers of 1 MiB, a window each, cut to what the peer takes.
    fn segments(&mut self, octets: &[u8], segment_bytes_max: u32) -> Vec<Segment> {
        octets
            .chunks(usize::try_from(MIB).unwrap())
            .flat_map(|buffer| self.one_part(buffer, segment_bytes_max))
            .collect()
    }

    /// An item of one part, cut so.
    fn one_part(&mut self, octets: &[u8], segment_bytes_max: u32) -> Vec<Segment> {
        octets
            .chunks(usize::try_from(segment_bytes_max).unwrap())
            .map(|octets| {
                self.0.push(octets.to_vec());
                Segment {
                    handle: u32::try_from(self.0.len() - 1).unwrap(),
                    length_bytes: u32::try_from(octets.len()).unwrap(),
                    offset: 0,
                }
            })
            .collect()
    }

    fn read(&self, segment: Segment) -> &[u8] {
        &self.0[usize::try_from(segment.handle).unwrap()]
    }
}

/// A call as its caller has it: the octets of all of it, and where its items are.
struct Content {
    whole: Vec<u8>,
    positions: Vec<u32>,
    items: Vec<Vec<u8>>,
}

impl Content {
    /// Items stand behind the first words of the stream, a word apart; the rest of the stream follows.
    fn new(case: &Case) -> Self {
        let mut content = Self {
            whole: Vec::new(),
            positions: Vec::new(),
            items: Vec::new(),
        };
        let mut octets = (1..=251_u8).cycle();
        let mut left = usize::try_from(case.stream_bytes).unwrap();
        for length in &case.items {
            content.whole.extend(octets.by_ref().take(4));
            left -= 4;
            content
                .positions
                .push(u32::try_from(content.whole.len()).unwrap());
            let item: Vec<u8> = octets
                .by_ref()
                .take(usize::try_from(*length).unwrap())
                .collect();
            content.whole.extend(&item);
            content
                .whole
                .resize(content.whole.len().next_multiple_of(4), 0);
            content.items.push(item);
        }
        content.whole.extend(octets.take(left));
        content
    }

    /// The payload stream without the items that `leaves` says so of.
    fn stream(&self, leaves: impl Fn(usize) -> bool) -> Vec<u8> {
        let (mut stream, mut taken) = (Vec::new(), 0);
        for (item, position) in self
            .positions
            .iter()
            .enumerate()
            .filter(|(item, _)| leaves(*item))
        {
            let position = usize::try_from(*position).unwrap();
            stream.extend(&self.whole[taken..position]);
            taken = (position + self.items[item].len()).next_multiple_of(4);
        }
        stream.extend(&self.whole[taken..]);
        stream
    }
}

fn memory(case: &Case, plan: &CallPlan, exposed: &mut Exposed) -> Vec<Vec<Segment>> {
    case.expected()
        .iter()
        .zip(plan.reply.directions)
        .map(|(result, direction)| match direction {
            Direction::Explicit | Direction::Choice | Direction::BySize { .. } => {
                let octets = vec![0; usize::try_from(result.bytes_max).unwrap()];
                exposed.segments(&octets, case.peer.segment_bytes_max)
            }
            Direction::Inline | Direction::Placed => Vec::new(),
        })
        .collect()
}

/// Carries a plain call out: encodes it, and puts it together as a responder does.
fn carry_plain(case: &Case, plan: &CallPlan, content: &Content) -> Vec<u8> {
    let mut exposed = Exposed::default();
    let mut reads = Vec::new();
    let stream = content.stream(|item| plan.items[item] == Direction::Explicit);
    assert_eq!(stream.len(), usize::try_from(plan.stream_bytes).unwrap());
    for (item, position) in content.positions.iter().enumerate() {
        if plan.items[item] == Direction::Explicit {
            let segments = exposed.one_part(&content.items[item], case.peer.segment_bytes_max);
            reads.extend(segments.into_iter().map(|target| ReadSegment {
                position: *position,
                target,
            }));
        }
    }
    if plan.form == CallForm::Long {
        let segments = exposed.segments(&stream, case.peer.segment_bytes_max);
        reads.extend(segments.into_iter().map(|target| ReadSegment {
            position: 0,
            target,
        }));
    }
    let writes = memory(case, plan, &mut exposed);
    let used = writes
        .iter()
        .rposition(|chunk| !chunk.is_empty())
        .map_or(0, |last| last + 1);
    let writes: Vec<&[Segment]> = writes[..used].iter().map(Vec::as_slice).collect();
    let reply_octets = vec![0; usize::try_from(plan.reply.reply_chunk_bytes).unwrap()];
    let reply = exposed.segments(&reply_octets, case.peer.segment_bytes_max);
    let lists = ChunkListsRepr {
        reads: &reads,
        writes: &writes,
        reply: (!reply.is_empty()).then_some(&reply),
    };
    let header = encoded(|space| v2::encode_msg_header(space, Prefix::default(), 0, &lists));
    assert_eq!(
        header.len(),
        usize::try_from(plan.header_bytes).unwrap(),
        "{plan:?}"
    );
    assert_eq!(
        exposed.0.len(),
        usize::try_from(plan.windows_needed).unwrap(),
        "{plan:?}"
    );
    let send_bytes_max = case
        .peer
        .receive_buffer_bytes
        .min(case.plain_send_bytes_max);
    let send_bytes_max = usize::try_from(send_bytes_max).unwrap();
    let place = match plan.form {
        CallForm::Message { messages } => {
            // All but the last are full, and the last has room beside its header.
            let has_chunks = !exposed.0.is_empty();
            assert!(messages == 1 || case.continues_with_chunks || !has_chunks);
            let before = usize::try_from(messages - 1).unwrap() * (send_bytes_max - 36);
            let last = stream.len().checked_sub(before.min(stream.len())).unwrap();
            assert!(header.len() + last <= send_bytes_max, "{plan:?}");
            PayloadPlace::Inline {
                length_bytes: plan.stream_bytes,
            }
        }
        CallForm::Long => PayloadPlace::PositionZero,
        CallForm::Group { .. } => unreachable!("a plain call"),
    };
    let bytes = encoded(|space| {
        let mut writer = Writer::new(space);
        lists.encode(&mut writer).map(|()| writer.position())
    });
    let limits = ChunkLimits {
        read_chunks_max: 16,
        reads_position_zero: true,
        write_chunks_max: 16,
        segments_max: case.peer.segment_count_max,
        segment_bytes_max: MIB,
        call_bytes_max: u32::MAX,
    };
    let lists = ChunkLists::decode(&mut Reader::new(&bytes)).unwrap();
    let call = check_call(&lists, place, &limits).unwrap();
    let mut whole = Vec::new();
    for piece in call.pieces() {
        match piece {
            StreamPiece::Stream {
                from_bytes,
                length_bytes,
            } => {
                let from = usize::try_from(from_bytes).unwrap();
                whole.extend(&stream[from..][..usize::try_from(length_bytes).unwrap()]);
            }
            StreamPiece::Chunk { position, .. } => {
                let chunk = call
                    .chunks()
                    .find(|chunk| chunk.position == position)
                    .unwrap();
                chunk
                    .segments()
                    .for_each(|segment| whole.extend(exposed.read(segment)));
            }
            StreamPiece::RoundUp { length_bytes } => {
                whole.resize(whole.len() + usize::try_from(length_bytes).unwrap(), 0);
            }
        }
    }
    whole
}

/// Carries a group out: encodes its first header, gathers its Sends, and puts the call together.
fn carry_group(case: &Case, plan: &CallPlan, content: &Content) -> Vec<u8> {
    let structure = case.peer.receive_structure();
    let placed = plan.placed_items(case.items.as_slice());
    let layout = Layout::new(plan.layout_request(&structure, &case.means, &placed)).unwrap();
    assert_eq!(plan.form, group(layout.transmission_count()));

    let mut exposed = Exposed::default();
    let numbers: Vec<Vec<u32>> = (0..placed.count())
        .map(|item| layout.numbers(item).collect())
        .collect();
    let locations: Vec<Vec<Segment>> = (0..placed.count())
        .map(|item| match plan.items[item] {
            Direction::Explicit => {
                exposed.one_part(&content.items[item], case.peer.segment_bytes_max)
            }
            _ => Vec::new(),
        })
        .collect();
    let leaving: Vec<usize> = (0..placed.count())
        .filter(|item| plan.items[*item] != Direction::Inline)
        .collect();
    let items: Vec<_> = leaving
        .iter()
        .map(|item| MessageItem {
            displacement: content.positions[*item],
            length_bytes: case.items[*item],
            location: match plan.items[*item] {
                Direction::Explicit => Location::Explicit(locations[*item].as_slice()),
                _ => Location::Placed {
                    offset_bytes: 0,
                    numbers: numbers[*item].as_slice(),
                },
            },
        })
        .collect();
    let expected = case.expected();
    let memory = memory(case, plan, &mut exposed);
    let directions: Vec<ResponseItemRepr<'_>> = memory
        .iter()
        .zip(plan.reply.directions)
        .map(|(segments, direction)| ResponseItemRepr {
            minimum_bytes: match direction {
                Direction::Inline => u32::MAX,
                _ => plan.reply.minimum_bytes,
            },
            location: match direction {
                Direction::Explicit => ResponseLocation::Explicit(segments.as_slice()),
                Direction::Choice => ResponseLocation::Choice(segments.as_slice()),
                Direction::BySize {
                    explicit_from_bytes,
                } => ResponseLocation::BySize {
                    explicit_from_bytes,
                    segments: segments.as_slice(),
                },
                Direction::Inline | Direction::Placed => ResponseLocation::Placed,
            },
        })
        .collect();
    let sets: Vec<_> = directions
        .chunks(2)
        .zip(expected.chunks(2))
        .map(|(items, expected)| ResponseSetRepr {
            range: expected[0].range,
            items,
        })
        .collect();
    let body = TransmitRequest {
        items: items.as_slice(),
        directions: sets.as_slice(),
        transmissions: layout.transmission_count(),
        response_transmissions_max: plan.reply.transmissions_max,
        stream_bytes: 0,
    };
    let header = encoded(|space| v2::encode_transmit_request(space, Prefix::default(), &body));
    assert_eq!(
        header.len(),
        usize::try_from(layout.header_bytes()).unwrap(),
        "{plan:?}"
    );
    assert_eq!(
        exposed.0.len(),
        usize::try_from(plan.windows_needed).unwrap(),
        "{plan:?}"
    );

    // The stream and every placed item, from the Sends; items that are read, from memory.
    let stream = content.stream(|item| plan.items[item] != Direction::Inline);
    let mut received: Vec<u8> = Vec::new();
    let mut arrived: Vec<Vec<u8>> = vec![Vec::new(); placed.count()];
    for transmission in layout.transmissions() {
        assert!(transmission.length_bytes() <= case.peer.receive_buffer_bytes);
        for piece in transmission.pieces() {
            match piece {
                Piece::Stream {
                    from_bytes,
                    length_bytes,
                } => {
                    let from = usize::try_from(from_bytes).unwrap();
                    received.extend(&stream[from..][..usize::try_from(length_bytes).unwrap()]);
                }
                Piece::Item {
                    item,
                    from_bytes,
                    length_bytes,
                } => {
                    let from = usize::try_from(from_bytes).unwrap();
                    let octets =
                        &content.items[item][from..][..usize::try_from(length_bytes).unwrap()];
                    arrived[item].extend(octets);
                }
                Piece::Header { .. } | Piece::Padding { .. } => {}
            }
        }
    }
    let mut received = received.into_iter();
    let mut whole = Vec::new();
    for item in leaving {
        let position = usize::try_from(content.positions[item]).unwrap();
        whole.extend(received.by_ref().take(position - whole.len()));
        match plan.items[item] {
            Direction::Explicit => locations[item]
                .iter()
                .for_each(|segment| whole.extend(exposed.read(*segment))),
            _ => whole.extend(&arrived[item]),
        }
        whole.resize(whole.len().next_multiple_of(4), 0);
    }
    whole.extend(received);
    whole
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![0..2000_u32, 0..300 * KIB, 0..2 * MIB]
}

proptest! {
    #[test]
    fn every_plan_brings_the_whole_call(
        demand in prop_oneof![Just(Demand::Auto), Just(Demand::Inline), Just(Demand::Send), Just(Demand::Rdma)],
        items in vec(length(), 0..4),
        results in vec(length(), 0..4),
        stream_words in prop_oneof![10..300_u32, 10..50_000_u32],
        reply_stream_bytes_max in prop_oneof![24..1000_u32, 24..3 * MIB],
        credits in 0..20_u32,
        windows in prop_oneof![Just(0), 0..20_u32],
        reply_credits in 1..20_u32,
        segment_bytes_max in prop_oneof![Just(MIB), Just(700 * KIB)],
        has_rtr: bool,
        peer_is_plain: bool,
        gather_entries_max in 3..8_u32,
        plain_send_bytes_max in prop_oneof![Just(u32::MAX), Just(4096)],
        continues_with_chunks: bool,
        chunks_max in prop_oneof![Just(u32::MAX), 0..3_u32],
    ) {
        let case = Case::new(&items, &results).demanding(demand).but(|case| {
            case.stream_bytes = 4 * stream_words;
            case.reply_stream_bytes_max = reply_stream_bytes_max;
            case.means.credits = credits;
            case.means.gather_entries_max = gather_entries_max;
            case.means.message_bytes_max = 16 * MIB;
            case.windows = windows;
            case.reply_credits = reply_credits;
            case.plain_send_bytes_max = plain_send_bytes_max;
            case.continues_with_chunks = continues_with_chunks;
            case.peer.segment_bytes_max = segment_bytes_max;
            case.peer_read_chunks_max = chunks_max;
            case.peer_write_chunks_max = chunks_max;
            if !has_rtr {
                case.peer.rtr_support = RtrSupport::NONE;
            }
            if peer_is_plain {
                case.peer.receive_buffer_structure = None;
            }
        });
        let plan = case.plan();
        if demand == Demand::Inline {
            // A reply of more than we put together is the only thing that cannot go inline.
            let longest = reply_stream_bytes_max + results.iter().map(|bytes| bytes.next_multiple_of(4)).sum::<u32>();
            prop_assert_eq!(plan.is_err(), longest > 2 * MIB);
        }
        let Ok(plan) = plan else {
            prop_assert!(demand != Demand::Auto || windows < 16, "{:?}", case);
            return Ok(());
        };
        prop_assert!(plan.windows_needed <= windows);
        prop_assert!(plan.reply.transmissions_max <= reply_credits);
        prop_assert!(demand == Demand::Send || plan.credits_needed <= credits.max(1));
        let content = Content::new(&case);
        let whole = match plan.form {
            CallForm::Group { .. } => carry_group(&case, &plan, &content),
            CallForm::Message { .. } | CallForm::Long => carry_plain(&case, &plan, &content),
        };
        prop_assert!(whole == content.whole, "{:?}", plan);
        prop_assert!(plan.items.len() == PLAN_ITEMS_MAX);
    }
}
