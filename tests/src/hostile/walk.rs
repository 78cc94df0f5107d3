//! What becomes of a message that is taken: the lists of calls and replies, the items of groups, the plans that
//! follow from what the peer asked for. All of it is walked as an engine would, and compared.

use std::collections::HashSet;

use rpcrdma_protocol::chunks::{
    self, ChunkFault, ChunkLimits, ChunkLists, PayloadPlace, ReturnedFault, Segment,
};
use rpcrdma_protocol::v2::connection::{Connection, Event, Transmission, TransmissionPart};
use rpcrdma_protocol::v2::plan::{
    BulkItems, CallFacts, CallForm, Demand, ExpectedResult, Layout, LayoutRequest, Piece,
    ReplyFacts, ReplyForm, RequesterOffer, SenderMeans, Thresholds, plan_call, plan_reply,
};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, Location, ReceiveBufferStructure, ResponseSets, SegmentGroup, StreamPiece,
    StreamPlace, StreamRange, VirtualStream, excised, placed_pieces,
};
use rpcrdma_protocol::v2::{Body, Properties, TransportError, decode_with_rtr};
use rpcrdma_testkit::Random;

use super::oracle::calls::{self, Served};
use crate::fuzz_targets::reference;

/// A transmission that is kept until its group is complete: the message, and where its payload stream lies.
struct Kept {
    message: Vec<u8>,
    header_bytes: usize,
    stream_bytes: usize,
}

/// Walks through what one connection takes.
#[derive(Default)]
pub(super) struct Walk {
    group: Vec<Kept>,
}

/// What a walk came upon, by name.
pub(super) type Names = Vec<&'static str>;

const THRESHOLDS: Thresholds = Thresholds {
    inline_item_bytes_max: 16,
    send_placement_bytes_max: 700,
    continued_bytes_max: 2000,
};

const MEANS: SenderMeans = SenderMeans {
    send_bytes_max: 16_384,
    gather_entries_max: 8,
    padding_region_bytes: 256,
    message_bytes_max: 4000,
    credits: 16,
};

impl Walk {
    /// Walks through an event.
    ///
    /// # Panics
    /// When something is not as it must be.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        message: &[u8],
        connection: &Connection,
        random: &mut Random,
    ) -> Names {
        let mut names = Vec::new();
        match *event {
            Event::Call {
                payload, chunks, ..
            } => {
                let is_long = payload.is_empty();
                walk_call(&chunks, payload.len(), is_long, random, &mut names);
                plan_chunks(&chunks, connection.properties(), random, &mut names);
            }
            Event::Fragment {
                offset,
                payload,
                last: true,
                chunks,
                ..
            } => {
                let bytes = usize::try_from(offset).expect("small") + payload.len();
                walk_call(&chunks, bytes, false, random, &mut names);
            }
            Event::Reply { chunks, .. } => walk_reply(&chunks, random, &mut names),
            Event::Properties { set, .. } => {
                let peer = set.properties();
                let mut other = connection.clone();
                other.handle_peer_properties(&peer);
                assert!(other.send_threshold_bytes() >= 1024);
                plan_to(&peer, connection.properties(), random, &mut names);
            }
            Event::Transmission(transmission) => {
                self.transmission(&transmission, message, connection, random, &mut names);
            }
            _ => {}
        }
        names
    }

    fn transmission(
        &mut self,
        transmission: &Transmission<'_>,
        message: &[u8],
        connection: &Connection,
        random: &mut Random,
        names: &mut Names,
    ) {
        if transmission.id.sequence == 0 {
            self.group.clear();
        }
        let header_bytes = transmission.arrival.header_bytes;
        self.group.push(Kept {
            message: message.to_vec(),
            header_bytes: usize::try_from(header_bytes).expect("small"),
            stream_bytes: transmission.payload.len(),
        });
        if let TransmissionPart::Request {
            directions,
            response_transmissions_max,
            ..
        } = transmission.part
        {
            let offer = RequesterOffer::Directions {
                sets: directions,
                transmissions_max: response_transmissions_max,
            };
            plan(
                offer,
                Some(directions),
                connection.properties(),
                random,
                names,
            );
        }
        if transmission.is_last() {
            assert_eq!(self.group.len(), transmission.transmissions as usize);
            names.push(self.whole_group(connection));
        }
    }

    /// Every item lies in octets that came, that are neither header nor payload stream, and that no other item has.
    fn whole_group(&self, connection: &Connection) -> &'static str {
        let first = &self.group[0];
        let header = decode_with_rtr(&first.message, connection.properties().rtr_support);
        let items = match header.expect("it was taken").body {
            Body::TransmitRequest(body) => body.items,
            Body::TransmitResponse(body) => body.items,
            other => panic!("{other:?} begins no group"),
        };
        let structure = connection.receive_structure();
        let mut taken = HashSet::new();
        let mut items_bytes = 0;
        for item in items.filter(|item| item.is_excised()) {
            items_bytes += u64::from(item.length_bytes).next_multiple_of(4);
            let Location::Placed {
                offset_bytes,
                numbers,
            } = item.location
            else {
                continue;
            };
            let mut bytes = 0;
            for piece in placed_pieces(&structure, offset_bytes, numbers, item.length_bytes) {
                let kept = &self.group[piece.transmission as usize];
                let begin = piece.offset_bytes as usize;
                let end = begin + piece.length_bytes as usize;
                assert!(
                    begin >= kept.header_bytes + kept.stream_bytes,
                    "not behind the stream"
                );
                assert!(end <= kept.message.len(), "beyond what came");
                for octet in begin..end {
                    assert!(
                        taken.insert((piece.transmission, octet)),
                        "two items share an octet"
                    );
                }
                bytes += piece.length_bytes;
            }
            assert_eq!(bytes, item.length_bytes, "a part of an item is nowhere");
        }
        let stream_bytes: usize = self.group.iter().map(|kept| kept.stream_bytes).sum();
        let stream_bytes = u32::try_from(stream_bytes).expect("small");
        let stream = VirtualStream::new(stream_bytes, excised(items));
        assert_eq!(stream.length_bytes(), u64::from(stream_bytes) + items_bytes);
        let (mut at, mut streamed, mut met) = (0_u64, 0, 0);
        for piece in stream.pieces() {
            let place = u32::try_from(at).ok().and_then(|at| stream.locate(at));
            match piece {
                StreamPiece::Stream {
                    from_bytes,
                    length_bytes,
                } => {
                    assert_eq!(from_bytes, streamed);
                    streamed += length_bytes;
                    let offset_bytes = from_bytes;
                    assert_eq!(place, Some(StreamPlace::Stream { offset_bytes }));
                    assert_eq!(stream.position_of(from_bytes), Some(at));
                    at += u64::from(length_bytes);
                }
                StreamPiece::Item(item) => {
                    assert_eq!(
                        u64::from(item.displacement),
                        at,
                        "an item is not in its place"
                    );
                    met += 1;
                    if item.length_bytes > 0 {
                        let index = item.index;
                        let offset_bytes = 0;
                        assert_eq!(
                            place,
                            Some(StreamPlace::Item {
                                index,
                                offset_bytes
                            })
                        );
                    }
                    at = item.end();
                }
            }
        }
        assert_eq!(at, stream.length_bytes());
        assert_eq!(streamed, stream_bytes);
        assert_eq!(met, items.filter(|item| item.is_excised()).count());
        match (self.group.len(), taken.is_empty()) {
            (1, true) => "one transmission taken",
            (1, false) => "one transmission taken, with items",
            (_, true) => "group taken",
            (_, false) => "group taken, with items",
        }
    }
}

// ---- Plain calls and replies ----

fn walk_call(
    lists: &ChunkLists<'_>,
    payload_bytes: usize,
    is_long: bool,
    random: &mut Random,
    names: &mut Names,
) {
    let few = random.once_in(2);
    let served = Served {
        read_chunks: if few { random.below(3) } else { 8 },
        position_zero: !few || random.once_in(2),
        write_chunks: if few { random.below(3) } else { 16 },
        segments: if few { 2 + random.below(6) } else { 64 },
        segment_bytes: if few { 64 } else { u32::MAX },
        call_bytes: if few { 80 } else { u64::from(u32::MAX) },
    };
    let narrow = |count: usize| u32::try_from(count).expect("few");
    let limits = ChunkLimits {
        read_chunks_max: narrow(served.read_chunks),
        reads_position_zero: served.position_zero,
        write_chunks_max: narrow(served.write_chunks),
        segments_max: narrow(served.segments),
        segment_bytes_max: served.segment_bytes,
        call_bytes_max: u32::try_from(served.call_bytes).expect("32 bits"),
    };
    let (place, inline_bytes) = match is_long {
        true => (PayloadPlace::PositionZero, None),
        false => {
            let length_bytes = narrow(payload_bytes);
            (
                PayloadPlace::Inline { length_bytes },
                Some(payload_bytes as u64),
            )
        }
    };
    let expected = calls::check_call(&reference::collected(lists), inline_bytes, &served);
    match (chunks::check_call(lists, place, &limits), expected) {
        (Ok(call), Ok((pieces, total))) => {
            assert_eq!(u64::from(call.total_bytes()), total);
            let found: Vec<calls::Piece> = call.pieces().map(plain_piece).collect();
            assert_eq!(found, pieces);
            for chunk in call.chunks().chain(call.position_zero()) {
                let bytes: u64 = chunk.segments().map(|it| u64::from(it.length_bytes)).sum();
                assert_eq!(bytes, u64::from(chunk.length_bytes));
            }
            names.push("lists served");
        }
        (Err(fault), Err((name, answer))) => {
            assert_eq!(
                (fault_name(fault), error_words(&fault.transport_error())),
                (name, answer)
            );
            names.push(name);
        }
        (found, expected) => panic!("{found:?} where the rules say {expected:?}"),
    }
}

fn plain_piece(piece: chunks::StreamPiece) -> calls::Piece {
    match piece {
        chunks::StreamPiece::Stream {
            from_bytes,
            length_bytes,
        } => calls::Piece::Stream(from_bytes.into(), length_bytes.into()),
        chunks::StreamPiece::Chunk {
            position,
            length_bytes,
        } => calls::Piece::Chunk(position.into(), length_bytes.into()),
        chunks::StreamPiece::RoundUp { length_bytes } => calls::Piece::Zeroes(length_bytes.into()),
    }
}

fn fault_name(fault: ChunkFault) -> &'static str {
    match fault {
        ChunkFault::TooManyReadChunks { .. } => "TooManyReadChunks",
        ChunkFault::PositionZeroRefused => "PositionZeroRefused",
        ChunkFault::TooManyWriteChunks { .. } => "TooManyWriteChunks",
        ChunkFault::TooManySegments { .. } => "TooManySegments",
        ChunkFault::SegmentTooLong => "SegmentTooLong",
        ChunkFault::CallTooLong => "CallTooLong",
        ChunkFault::SegmentWraps => "SegmentWraps",
        ChunkFault::SegmentsOverlap => "SegmentsOverlap",
        ChunkFault::TwoPayloads => "TwoPayloads",
        ChunkFault::NoPayload => "NoPayload",
        ChunkFault::PositionUnaligned => "PositionUnaligned",
        ChunkFault::PositionMisplaced => "PositionMisplaced",
    }
}

fn error_words(error: &TransportError) -> Vec<u32> {
    let mut space = [0; 64];
    let bytes = rpcrdma_protocol::v2::encode_error(&mut space, 0, error).expect("short");
    (20..bytes)
        .step_by(4)
        .filter_map(|at| reference::word(&space[..bytes], at))
        .collect()
}

/// A reply comes back to a call that gave nearly these chunks.
fn walk_reply(lists: &ChunkLists<'_>, random: &mut Random, names: &mut Names) {
    for returned in lists.writes.chain(lists.reply) {
        let mut given: Vec<Segment> = returned.collect();
        for segment in &mut given {
            match random.below(8) {
                0 => segment.length_bytes = segment.length_bytes.saturating_add(4),
                1 => segment.length_bytes = segment.length_bytes.saturating_sub(1),
                2 if random.once_in(4) => segment.handle ^= 1,
                _ => {}
            }
        }
        if random.once_in(16) {
            given.pop();
        }
        let plain = |segment: &Segment| (segment.handle, segment.length_bytes, segment.offset);
        let given_plain: Vec<reference::Segment> = given.iter().map(plain).collect();
        let returned_plain: Vec<reference::Segment> = returned.map(|it| plain(&it)).collect();
        let found = chunks::check_returned(given, returned).map_err(|fault| match fault {
            ReturnedFault::SegmentCount => "SegmentCount",
            ReturnedFault::OtherMemory => "OtherMemory",
            ReturnedFault::TooLong => "TooLong",
            ReturnedFault::Gap => "Gap",
        });
        assert_eq!(found, calls::check_returned(&given_plain, &returned_plain));
        names.extend(found.err());
    }
}

// ---- Plans ----

fn plan_chunks(lists: &ChunkLists<'_>, own: &Properties, random: &mut Random, names: &mut Names) {
    let offer = RequesterOffer::Chunks {
        writes: lists.writes,
        reply: lists.reply,
    };
    plan(offer, None, own, random, names);
}

/// Plans a reply to what was offered, by an end that is made as the requester says it is itself.
fn plan(
    offer: RequesterOffer<'_>,
    sets: Option<ResponseSets<'_>>,
    peer: &Properties,
    random: &mut Random,
    names: &mut Names,
) {
    let lengths: Vec<u32> = (0..random.below(4))
        .map(|_| random.pick(&[0, 1, 7, 16, 33, 100, 300, 900, 5000]))
        .collect();
    let own = Properties {
        response_transmissions_max: 4,
        ..*peer
    };
    let mut peer = *peer;
    if random.once_in(2) {
        peer.receive_buffer_structure = Some(roomy());
        peer.receive_buffer_bytes = roomy().length_bytes();
    }
    let peer = &peer;
    let facts = ReplyFacts {
        thresholds: THRESHOLDS,
        stream_bytes: random.pick(&[24, 100, 900, 3000]),
        results: &lengths[..],
        offer,
        is_version_1: false,
        may_reduce: random.once_in(2),
        means: SenderMeans {
            credits: random.between(0, 8),
            ..MEANS
        },
        own: &own,
        peer,
    };
    let plan = match plan_reply(&facts) {
        Ok(plan) => plan,
        Err(error) => {
            names.push(match error {
                TransportError::WriteResource { .. } => "WriteResource",
                TransportError::ReplyResource { .. } => "ReplyResource",
                TransportError::System => "System",
                other => panic!("{other:?} answers no plan"),
            });
            return;
        }
    };
    if let ReplyForm::Group { transmissions } = plan.form {
        let directions: usize = sets.into_iter().flatten().map(|set| set.items.len()).sum();
        assert!(directions <= 256, "an answer that no decoder takes");
        let placed = plan.placed_items(&lengths[..]);
        let structure = peer.receive_structure();
        let request = plan.layout_request(&structure, &facts.means, &placed);
        assert_eq!(lay_out(request), transmissions);
        names.push("reply in a group");
    } else {
        names.push("plain reply");
    }
}

/// Receive buffers that hold long headers.
fn roomy() -> ReceiveBufferStructure {
    let group = |count, length_bytes, is_targetable| SegmentGroup {
        count,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let groups = [group(1, 8192, false), group(2, 4096, true)];
    ReceiveBufferStructure::new(&groups).expect("sound")
}

/// Plans calls to a peer with properties of its own making.
fn plan_to(peer: &Properties, own: &Properties, random: &mut Random, names: &mut Names) {
    let items: Vec<u32> = (0..random.below(4))
        .map(|_| random.pick(&[0, 1, 7, 33, 300, 5000, 70_000]))
        .collect();
    let results: Vec<ExpectedResult> = (0..random.below(3))
        .map(|_| ExpectedResult {
            range: StreamRange { begin: 0, end: 100 },
            bytes_max: random.pick(&[0, 1, 300, 5000]),
        })
        .collect();
    let facts = CallFacts {
        demand: random.pick(&[Demand::Auto, Demand::Inline, Demand::Send, Demand::Rdma]),
        thresholds: THRESHOLDS,
        stream_bytes: random.pick(&[40, 400, 4000]),
        items: &items[..],
        reply_stream_bytes_max: random.pick(&[24, 400, 4000]),
        results: &results,
        means: MEANS,
        plain_send_bytes_max: random.pick(&[1024, u32::MAX]),
        continues_with_chunks: random.pick(&[false, true]),
        credits_max: 32,
        own,
        peer,
        peer_read_chunks_max: random.between(0, 4),
        peer_write_chunks_max: random.between(0, 4),
        windows: random.between(0, 64),
        window_bytes_max: random.pick(&[1, 4096, 1 << 20]),
        reply_bytes_max: 4000,
        reply_credits: random.between(0, 8),
    };
    let Ok(plan) = plan_call(&facts) else {
        names.push("call refused by its plan");
        return;
    };
    assert!(plan.windows_needed <= facts.windows);
    assert!(plan.windows_needed <= peer.segment_count_max || plan.windows_needed == 0);
    if let CallForm::Group { transmissions } = plan.form {
        assert!(transmissions <= peer.request_transmissions_max);
        let placed = plan.placed_items(&items[..]);
        let structure = peer.receive_structure();
        assert_eq!(
            lay_out(plan.layout_request(&structure, &facts.means, &placed)),
            transmissions
        );
        names.push("call in a group");
    } else {
        names.push("plain call");
    }
}

/// Lays a group out, and adds up what goes where. Gives the transmissions.
fn lay_out<I: BulkItems + ?Sized>(request: LayoutRequest<'_, I>) -> u32 {
    let layout = Layout::new(request).expect("the plan has laid it out");
    let mut stream_bytes = 0;
    let mut item_bytes = vec![0_u32; request.items.count()];
    for transmission in layout.transmissions() {
        let mut bytes = 0_u32;
        for piece in transmission.pieces() {
            bytes += match piece {
                Piece::Header { length_bytes } => length_bytes,
                Piece::Stream {
                    from_bytes,
                    length_bytes,
                } => {
                    assert_eq!(from_bytes, stream_bytes);
                    stream_bytes += length_bytes;
                    length_bytes
                }
                Piece::Padding { length_bytes } => {
                    assert!(length_bytes <= request.limits.padding_region_bytes);
                    length_bytes
                }
                Piece::Item {
                    item,
                    from_bytes,
                    length_bytes,
                } => {
                    assert_eq!(from_bytes, item_bytes[item]);
                    item_bytes[item] += length_bytes;
                    length_bytes
                }
            };
        }
        assert_eq!(bytes, transmission.length_bytes());
        assert!(
            bytes <= request.structure.length_bytes(),
            "longer than the receive buffer"
        );
        assert!(bytes <= request.limits.send_bytes_max);
    }
    assert_eq!(stream_bytes, request.stream_bytes);
    for (item, bytes) in item_bytes.into_iter().enumerate() {
        assert_eq!(bytes, request.items.length_bytes(item));
    }
    layout.transmission_count()
}
