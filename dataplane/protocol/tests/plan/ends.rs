// Two ends that place bulk data by Send, and messages between them: what the examples of plans, and their tests, vary.

use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::plan::{
    CallFacts, Demand, ExpectedResult, LayoutRequest, ReplyFacts, RequesterOffer, SendLimits,
    SenderMeans, Thresholds,
};
use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, RtrSupport, SegmentGroup};

pub(crate) const KIB: u32 = 1024;
pub(crate) const MIB: u32 = 1024 * KIB;

/// One inline segment of 1 KiB and one placement segment of 64 KiB, all of the extension.
pub(crate) fn with_placement() -> Properties {
    let inline = BufferSegment {
        length_bytes: KIB,
        ..BufferSegment::default()
    };
    let bulk = BufferSegment {
        length_bytes: 64 * KIB,
        is_targetable: true,
        ..inline
    };
    let groups = [inline, bulk].map(|segment| SegmentGroup { count: 1, segment });
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

pub(crate) const LIMITS: SendLimits = SendLimits {
    send_bytes_max: u32::MAX,
    gather_entries_max: 64,
    padding_region_bytes: u32::MAX,
    transmissions_max: 64,
};

/// A message of so many octets and these items, behind a header of 60 octets without segment numbers.
pub(crate) fn layout_request<'a, I: ?Sized>(
    structure: &'a ReceiveBufferStructure,
    stream_bytes: u32,
    items: &'a I,
) -> LayoutRequest<'a, I> {
    LayoutRequest {
        structure,
        header_bytes: 60,
        stream_bytes,
        items,
        limits: LIMITS,
    }
}

/// A call of 100 octets with these items and results, between two ends of these properties.
pub(crate) fn call_facts<'a>(
    items: &'a [u32],
    results: &'a [ExpectedResult],
    ends: &'a Properties,
) -> CallFacts<'a, [u32]> {
    CallFacts {
        demand: Demand::Auto,
        thresholds: THRESHOLDS,
        stream_bytes: 100,
        items,
        reply_stream_bytes_max: 100,
        results,
        means: MEANS,
        plain_send_bytes_max: u32::MAX,
        continues_with_chunks: true,
        credits_max: 32,
        own: ends,
        peer: ends,
        peer_read_chunks_max: u32::MAX,
        peer_write_chunks_max: u32::MAX,
        windows: 16,
        window_bytes_max: MIB,
        reply_bytes_max: 2 * MIB,
        reply_credits: 8,
    }
}

/// A reply of 100 octets with these results, to a call that offered this, between two ends of these properties.
pub(crate) fn reply_facts<'a, I: ?Sized>(
    results: &'a I,
    offer: RequesterOffer<'a>,
    ends: &'a Properties,
) -> ReplyFacts<'a, I> {
    ReplyFacts {
        thresholds: THRESHOLDS,
        stream_bytes: 100,
        results,
        offer,
        is_version_1: false,
        may_reduce: true,
        means: MEANS,
        own: ends,
        peer: ends,
    }
}
