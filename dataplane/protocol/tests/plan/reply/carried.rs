//! Every plan brings the whole reply, whatever the sizes and directions.

use super::*;

fn octets(length: u32, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from(at % 241).unwrap() ^ seed | 1)
        .collect()
}

/// The stream with every result that stays, in order, behind the rest; and the results.
fn content(case: &Case, plan: &ReplyPlan) -> (Vec<u8>, Vec<Vec<u8>>) {
    let results: Vec<_> = (1..)
        .zip(&case.results.0)
        .map(|(seed, result)| octets(result.0, seed))
        .collect();
    let mut stream = octets(case.stream_bytes, 0);
    for (result, way) in results.iter().zip(plan.results) {
        if matches!(way, ResultWay::Inline | ResultWay::TooShort { .. }) {
            stream.extend(result);
            stream.resize(stream.len().next_multiple_of(4), 0);
        }
    }
    (stream, results)
}

fn as_usize(value: u32) -> usize {
    usize::try_from(value).unwrap()
}

/// What the segments of a chunk hold when `data` was written to it.
fn fill(chunk: impl IntoIterator<Item = Segment>, data: &[u8]) -> (Vec<u8>, Vec<Segment>) {
    let (mut held, mut returned) = (Vec::new(), Vec::new());
    for part in Fill::new(chunk, u32::try_from(data.len()).unwrap()) {
        held.extend(&data[as_usize(part.from_bytes)..][..as_usize(part.target.length_bytes)]);
        returned.push(part.target);
    }
    (held, returned)
}

fn carry_plain(case: &Case, plan: &ReplyPlan) {
    let (stream, results) = content(case, plan);
    assert_eq!(
        stream.len().next_multiple_of(4),
        as_usize(plan.stream_bytes).next_multiple_of(4)
    );
    let bytes = case.encoded_offer();
    let call = ChunkLists::decode(&mut Reader::new(&bytes)).unwrap();
    let written_bytes = plan.written_bytes(&case.results);
    let is_long = plan.form == ReplyForm::Long;
    let returned = ReturnedLists {
        writes: call.writes,
        written_bytes: &written_bytes,
        reply: call.reply,
        reply_bytes: if is_long { plan.stream_bytes } else { 0 },
    };
    let header = encoded(|space| v2::encode_msg_header(space, Prefix::default(), 0, &returned));
    assert_eq!(header.len(), as_usize(plan.header_bytes));
    let send_bytes_max = as_usize(
        case.peer
            .receive_buffer_bytes
            .min(case.means.send_bytes_max),
    );
    if let ReplyForm::Message { messages } = plan.form {
        let before = as_usize(messages - 1) * (send_bytes_max - 36);
        assert!(header.len() + stream.len().saturating_sub(before) <= send_bytes_max);
    }
    let lists = encoded(|space| {
        let mut writer = Writer::new(space);
        returned.encode(&mut writer).map(|()| writer.position())
    });
    let reply = ChunkLists::decode(&mut Reader::new(&lists)).unwrap();
    for (chunk, (given, returned)) in call.writes.zip(reply.writes).enumerate() {
        let length = check_returned(given, returned).unwrap();
        let is_written = plan.results.get(chunk) == Some(&ResultWay::Written { chunk });
        if is_written {
            let (held, filled) = fill(given, &results[chunk]);
            assert!(held == results[chunk], "all of the result is in the chunk");
            assert!(returned.eq(filled));
        } else {
            assert_eq!(length, 0, "a chunk that was not used");
        }
    }
    if is_long {
        let (held, _) = fill(call.reply.unwrap(), &stream);
        assert!(held == stream, "all of the stream is in the chunk");
    }
}

fn carry_group(case: &Case, plan: &ReplyPlan) {
    let (stream, results) = content(case, plan);
    let structure = case.peer.receive_structure();
    let placed = plan.placed_items(&case.results);
    let layout = Layout::new(plan.layout_request(&structure, &case.means, &placed)).unwrap();
    assert_eq!(plan.form, group(layout.transmission_count()));
    let bytes = case.encoded_offer();
    let sets = ResponseSets::decode(&mut Reader::new(&bytes)).unwrap();
    let given: Vec<_> = sets.flat_map(|set| set.items).collect();
    let answers: Vec<_> = given
        .iter()
        .enumerate()
        .map(|(direction, item)| {
            let answer = plan.answer(direction);
            let numbers: Vec<u32> =
                answer.map_or(Vec::new(), |(result, _)| layout.numbers(result).collect());
            let filled = match (answer, item.location.segments()) {
                (Some((result, ResultWay::Written { .. })), Some(segments)) => {
                    let (held, filled) = fill(*segments, &results[result]);
                    assert!(
                        held == results[result],
                        "all of the result is in the memory offered"
                    );
                    filled
                }
                _ => Vec::new(),
            };
            (answer, numbers, filled)
        })
        .collect();
    let items: Vec<_> = answers
        .iter()
        .map(|(answer, numbers, filled)| MessageItem {
            displacement: 0,
            length_bytes: answer.map_or(0, |(result, _)| case.results.0[result].0),
            location: match answer {
                None => Location::NoItem,
                Some((_, ResultWay::Written { .. })) => Location::Explicit(filled.as_slice()),
                Some((_, ResultWay::Placed { .. })) => Location::Placed {
                    offset_bytes: 0,
                    numbers: numbers.as_slice(),
                },
                Some((_, ResultWay::TooShort { .. } | ResultWay::Inline)) => Location::TooShort,
            },
        })
        .collect();
    for (direction, item) in given.iter().zip(&items) {
        let answer = direction
            .location
            .placement_type()
            .answered_with(item.location.placement_type());
        assert_ne!(answer, Answer::Invalid, "{plan:?}");
    }
    let body = TransmitResponse {
        items: items.as_slice(),
        transmissions: layout.transmission_count(),
        stream_bytes: 0,
    };
    let header = encoded(|space| v2::encode_transmit_response(space, Prefix::default(), &body));
    assert_eq!(header.len(), as_usize(layout.header_bytes()));
    let mut arrived: Vec<Vec<u8>> = vec![Vec::new(); results.len()];
    let mut received: Vec<u8> = Vec::new();
    for piece in layout
        .transmissions()
        .flat_map(|transmission| transmission.pieces())
    {
        match piece {
            Piece::Stream {
                from_bytes,
                length_bytes,
            } => {
                let from = as_usize(from_bytes);
                received.extend(stream.iter().skip(from).take(as_usize(length_bytes)));
            }
            Piece::Item {
                item,
                from_bytes,
                length_bytes,
            } => {
                arrived[item]
                    .extend(&results[item][as_usize(from_bytes)..][..as_usize(length_bytes)]);
            }
            Piece::Header { .. } | Piece::Padding { .. } => {}
        }
    }
    assert!(received == stream);
    for (item, way) in plan.results.iter().enumerate() {
        if matches!(way, ResultWay::Placed { .. }) {
            assert!(arrived[item] == results[item]);
        }
    }
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![0..2000_u32, 0..300 * KIB, 0..2 * MIB]
}

fn offer() -> impl Strategy<Value = Offer> {
    use PlacementType::{BySize, Choice, Explicit, Placed};
    let memory = || vec(prop_oneof![Just(0), length()], 0..4);
    let kind = prop_oneof![Just(Explicit), Just(Choice), Just(BySize), Just(Placed)];
    let way = (0..3000_u32, kind, memory());
    prop_oneof![
        (vec(memory(), 0..4), option::of(length()))
            .prop_map(|(writes, reply)| Offer::Chunks(writes, reply)),
        (vec(vec(way, 0..3), 0..4), 0..20_u32)
            .prop_map(|(sets, most)| Offer::Directions(sets, most)),
    ]
}

proptest! {
    #[test]
    fn every_plan_brings_the_whole_reply(
        results in vec((length(), 0..32_u32), 0..5),
        stream_words in prop_oneof![6..300_u32, 6..50_000_u32],
        offer in offer(),
        credits in 0..20_u32,
        gather_entries_max in 4..8_u32,
        message_bytes_max in prop_oneof![Just(16 * MIB), 0..2 * MIB],
    ) {
        let case = Case::new(&[], offer).but(|case| {
            case.results = Results(results);
            case.stream_bytes = 4 * stream_words;
            case.means.credits = credits;
            case.means.gather_entries_max = gather_entries_max;
            case.means.message_bytes_max = message_bytes_max;
        });
        match case.plan() {
            Ok(plan) => match plan.form {
                ReplyForm::Group { .. } => carry_group(&case, &plan),
                ReplyForm::Message { .. } | ReplyForm::Long => carry_plain(&case, &plan),
            },
            Err(error) => {
                let is_resource = matches!(
                    error,
                    TransportError::WriteResource { chunk_index: 1.., .. } | TransportError::ReplyResource { .. }
                );
                prop_assert!(is_resource, "{:?}", error);
            }
        }
    }
}
