//! Which way a call goes and what it offers, as a table; and that every plan can be carried out: headers are as long
//! as planned, and whatever way its parts go, the call is put together to the same octets.

mod carried;

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::{
    ChunkLimits, ChunkLists, ChunkListsRepr, EncodeChunkLists, PayloadPlace, ReadSegment, Segment,
    StreamPiece, check_call,
};
use rpcrdma_protocol::constants::PLAN_ITEMS_MAX;
use rpcrdma_protocol::v2::plan::{
    BulkItems, CallFacts, CallForm, CallPlan, CallRefused, Demand, Direction, ExpectedResult,
    Layout, Piece, SenderMeans, plan_call,
};
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItem, ResponseItemRepr, ResponseLocation, ResponseSetRepr, RtrSupport,
    StreamRange, TransmitRequest,
};
use rpcrdma_protocol::v2::{self, Prefix, Properties};
use rpcrdma_protocol::xdr::{Reader, Writer};

use crate::ends::{KIB, MEANS, MIB, call_facts, with_placement};
use crate::support::encoded;

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
            stream_bytes: self.stream_bytes,
            reply_stream_bytes_max: self.reply_stream_bytes_max,
            means: self.means,
            plain_send_bytes_max: self.plain_send_bytes_max,
            continues_with_chunks: self.continues_with_chunks,
            own: &self.own,
            peer_read_chunks_max: self.peer_read_chunks_max,
            peer_write_chunks_max: self.peer_write_chunks_max,
            windows: self.windows,
            reply_credits: self.reply_credits,
            ..call_facts(&self.items, &self.expected(), &self.peer)
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
