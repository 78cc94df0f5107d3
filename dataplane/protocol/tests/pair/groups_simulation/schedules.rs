//! Schedules of the simulation: ends and calls of all shapes, at random and by hand.

use super::*;

fn structure() -> impl Strategy<Value = ReceiveBufferStructure> {
    // The segment of header and stream, and the targetable ones.
    (1024_u32..2000, 0_u32..4, 1_u32..1500).prop_map(|(inline, count, length_bytes)| {
        let segment = |length_bytes, is_targetable| BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        };
        let mut groups = vec![SegmentGroup {
            count: 1,
            segment: segment(inline, false),
        }];
        if count > 0 {
            groups.push(SegmentGroup {
                count,
                segment: segment(length_bytes, true),
            });
        }
        ReceiveBufferStructure::new(&groups).expect("it is sound")
    })
}

fn end_config() -> impl Strategy<Value = EndConfig> {
    (
        prop_oneof![3_u16..8, 8_u16..40],
        structure(),
        prop_oneof![Just(1), 2_u32..10],
    )
        .prop_map(
            |(receive_reserve, structure, request_transmissions_max)| EndConfig {
                receive_reserve,
                structure,
                request_transmissions_max,
            },
        )
}

fn shape() -> impl Strategy<Value = Shape> {
    let words = prop_oneof![3_usize..60, 60_usize..1500];
    (words, vec((any::<u32>(), 0_u32..4000), 0..4)).prop_map(|(words, items)| {
        let words_max = u32::try_from(words).expect("few");
        // Items stand behind XID and message type, at whole words.
        let mut items: Vec<(u32, u32)> = items
            .into_iter()
            .map(|(at, length)| (4 * (2 + at % (words_max - 1)), length))
            .collect();
        items.sort_by_key(|(at, _)| *at);
        Shape {
            stream_bytes: 4 * words,
            items,
        }
    })
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (shape(), shape(), 1_u32..10).prop_map(|(call, reply, most)| Call {
        call,
        reply,
        response_transmissions_max: most,
    });
    vec(call, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn groups_both_ways_finish(
        client in end_config(),
        server in end_config(),
        client_calls in calls(),
        server_calls in calls(),
        turns in vec(any::<u8>(), 1..60),
    ) {
        let counts = [client_calls.len(), server_calls.len()];
        let mut world = World::new([client, server], [client_calls, server_calls], turns);
        world.run();
        prop_assert_eq!(world.ends.each_ref().map(|end| end.answered), counts);
        let messages: usize = world.ends.iter().map(|end| end.groups_sent + end.plain_sent).sum();
        prop_assert_eq!(messages, 2 * (counts[0] + counts[1]));
    }
}

/// Both ends with just the credits for one group, which cross: neither waits for the other.
#[test]
fn crossing_groups_take_the_last_credit() {
    let segment = |length_bytes, is_targetable| SegmentGroup {
        count: 1,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let groups = [segment(1024, false), segment(1000, true)];
    let structure = ReceiveBufferStructure::new(&groups).expect("it is sound");
    // Four transmissions: 4000 octets in segments of 1000.
    let shape = Shape {
        stream_bytes: 200,
        items: vec![(100, 4000)],
    };
    let call = Call {
        call: shape.clone(),
        reply: shape,
        response_transmissions_max: 4,
    };
    // With a reserve of six, four credits can be granted beside the spare and one for what else is under way.
    for reserve in [3, 4, 5, 6, 7, 20] {
        let config = EndConfig {
            receive_reserve: reserve,
            structure,
            request_transmissions_max: 4,
        };
        let calls = vec![call.clone(); 5];
        let configs = [config.clone(), config];
        let mut world = World::new(configs, [calls.clone(), calls], vec![3, 4, 7]);
        world.run();
        for end in &world.ends {
            assert_eq!(end.answered, 5);
            assert_eq!(end.transmissions_sent, 4 * end.groups_sent);
            assert_eq!(end.groups_sent + end.plain_sent, 10);
            if reserve == 20 {
                assert!(end.groups_sent > 0, "there were credits for groups");
            }
        }
    }
}
