//! Every plan can be carried out: what it says brings the whole call, whatever the sizes.

use super::*;

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
            // A call and its reply, each whole in a chunk, may have more segments than the peer takes.
            let segments = |bytes: u32| {
                bytes / MIB * MIB.div_ceil(segment_bytes_max) + (bytes % MIB).div_ceil(segment_bytes_max)
            };
            let padded = |lengths: &[u32]| lengths.iter().map(|bytes| bytes.next_multiple_of(4)).sum::<u32>();
            let call = segments(case.stream_bytes + padded(&items));
            let is_possible = call + segments(reply_stream_bytes_max + padded(&results)) <= 16;
            prop_assert!(demand != Demand::Auto || windows < 16 || !is_possible, "{:?}", case);
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
