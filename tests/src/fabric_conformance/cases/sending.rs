//! Sends: bytes, order, completions, buffers, and the limits of the send queue.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionKind, Gather, PostError, REAP_USUAL, SEGMENTS_MAX, SendOptions, Status,
};

use super::super::harness::Harness;
use super::super::world::{
    CLIENT, LARGE_BYTES, RECEIVE_SEGMENTS, SERVER, SMALL_BYTES, World, length, pattern, signalled,
};

/// Every limit that the interface names is there, and the limits agree with each other.
pub(in super::super) fn attributes_are_sane<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let attributes = world.client().port.attributes().clone();
    assert!(!attributes.provider.is_empty());
    assert!(!attributes.device.is_empty());
    assert!(attributes.queue_pairs_max >= 1);
    assert!(attributes.receive_queue_depth_max >= 1);
    assert!(attributes.receive_segments_max >= 2, "inline and placement");
    assert!(attributes.send_segments_max >= 2, "header and payload");
    assert!(attributes.send_queue_depth_max >= 1);
    assert!(attributes.message_bytes_max >= attributes.inline_bytes_max);
    assert!(attributes.message_bytes_max >= 4096, "a version 2 message");
    let mut other = world.server().port.attributes().clone();
    other.device.clone_from(&attributes.device);
    assert_eq!(attributes, other, "the same options make the same port");
    let report = world.client().port.page_report().clone();
    assert!(report.page_bytes.is_power_of_two());
    assert!(report.arena_bytes >= u64::from(LARGE_BYTES));
    world.finish();
}

/// The smallest thing there is, both ways.
pub(in super::super) fn send_receive_inline<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let bytes = world
        .client()
        .port
        .attributes()
        .inline_bytes_max
        .min(SMALL_BYTES);
    for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        let data = pattern(1, bytes);
        world.send_copied(from, link, &data);
        world.expect(to, link, &data);
    }
    world.finish();
}

/// The buffer of a copied Send may be written as soon as the post returns (the suite always
/// does), and one byte more than the inline size is refused.
pub(in super::super) fn a_copied_send_leaves_its_buffer_free<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let inline_bytes_max = world.client().port.attributes().inline_bytes_max;
    let first = pattern(1, inline_bytes_max.min(64));
    let second = pattern(2, inline_bytes_max.min(64));
    let queue_pair = link.queue_pairs[CLIENT];
    let client = world.client();
    for data in [&first, &second] {
        client
            .send_copied(queue_pair, data, SendOptions::default())
            .expect("a small Send");
    }
    let too_long = client.buffer(inline_bytes_max + 1);
    assert_eq!(
        client.port.post_send_copied(
            queue_pair,
            &too_long,
            inline_bytes_max + 1,
            SendOptions::default()
        ),
        Err(PostError::TooLong)
    );
    client.give(too_long);
    world.expect(SERVER, link, &first);
    world.expect(SERVER, link, &second);
    world.finish();
}

/// A Send of no bytes consumes a Receive like any other.
pub(in super::super) fn zero_length_send<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let posted = world.server().posted();
    world.send_copied(CLIENT, link, &[]);
    let arrival = world.arrival(SERVER);
    assert_eq!(arrival.status, Status::Success);
    assert!(arrival.data.is_empty());
    assert_eq!(world.server().posted(), posted - 1);
    world.works(link);
    world.finish();
}

/// One message out of several pieces of registered memory, at offsets, into several segments.
pub(in super::super) fn send_from_registered_gather_scatter<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let whole = pattern(3, 5000);
    let client = world.client();
    let mut list = Gather::new();
    for (offset, range) in [(0_u32, 0..1000_usize), (17, 1000..1001), (64, 1001..5000)] {
        let mut padded = vec![0xEE; offset as usize];
        padded.extend_from_slice(&whole[range.clone()]);
        padded.extend_from_slice(&[0xEE; 5]);
        let buffer = client.buffer_with(&padded);
        list.push(buffer, offset, length(&whole[range]))
            .expect("the range lies in the buffer");
    }
    let work = client.name_work(link.queue_pairs[CLIENT]);
    client
        .port
        .post_send(link.queue_pairs[CLIENT], &mut list, signalled(work))
        .expect("a Send of three pieces");
    assert!(list.is_empty(), "posting drains the list");
    world.expect(SERVER, link, &whole);
    assert_eq!(world.finished(CLIENT, work).0, Status::Success);
    world.finish();
}

/// As many pieces as the attributes say, and one more is refused.
pub(in super::super) fn a_gather_list_as_long_as_the_device_takes<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let segments_max = world.client().port.attributes().send_segments_max;
    let parts: Vec<Vec<u8>> = (0..segments_max)
        .map(|index| pattern(index.into(), 90 + index))
        .collect();
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let work = world.send_signalled(link, &slices);
    world.expect(SERVER, link, &parts.concat());
    assert_eq!(world.finished(CLIENT, work).0, Status::Success);

    if (segments_max as usize) < SEGMENTS_MAX {
        let mut slices = slices;
        slices.push(&[1]);
        assert_eq!(
            world
                .client()
                .send(link.queue_pairs[CLIENT], &slices, SendOptions::default()),
            Err(PostError::BadSegments)
        );
    }
    world.finish();
}

/// Lengths at which an implementation may change its mind: cache lines, records, the inline size,
/// the first segment, pages, the largest copy of a poll.
pub(in super::super) fn every_length_around_the_boundaries<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let inline_bytes_max = world.client().port.attributes().inline_bytes_max;
    let most = RECEIVE_SEGMENTS.iter().sum::<u32>();
    let edges = [16, 64, 112, 128, inline_bytes_max, SMALL_BYTES, 4096, most];
    for edge in edges {
        for bytes in (edge.saturating_sub(2)..=edge + 2).filter(|bytes| *bytes <= most) {
            let data = pattern(bytes.into(), bytes);
            if bytes <= inline_bytes_max {
                world.send_copied(CLIENT, link, &data);
                world.expect(SERVER, link, &data);
            }
            let (head, tail) = data.split_at(data.len().min(LARGE_BYTES as usize));
            let parts = [head, tail];
            let parts = if tail.is_empty() { &parts[..1] } else { &parts };
            let work = world.send_signalled(link, parts);
            world.expect(SERVER, link, &data);
            assert_eq!(world.finished(CLIENT, work).0, Status::Success);
        }
    }
    world.finish();
}

/// Short and long, copied and from registered memory: the receiver sees the order of the posts.
pub(in super::super) fn messages_arrive_in_order<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let lengths = [8, 3000, 40, 60_000, 1, 1024, 100, 20_000];
    let messages: Vec<Vec<u8>> = (0..200_u64)
        .map(|index| {
            let bytes = lengths[usize::try_from(index).expect("small") % lengths.len()];
            pattern(index, bytes)
        })
        .collect();
    let mut sent = 0;
    let mut received = 0;
    while received < messages.len() {
        if let Some(data) = messages.get(sent) {
            let queue_pair = link.queue_pairs[CLIENT];
            let client = world.client();
            let bytes = length(data);
            let result = if bytes <= client.port.attributes().inline_bytes_max && sent % 2 == 0 {
                client.send_copied(queue_pair, data, SendOptions::default())
            } else {
                client.send(queue_pair, &[data], SendOptions::default())
            };
            match result {
                Ok(()) => sent += 1,
                Err(error) => assert_eq!(error, PostError::QueueFull),
            }
        }
        // At most eight under way, so that buffers of every size are enough.
        if sent - received == REAP_USUAL || sent == messages.len() {
            world.expect(SERVER, link, &messages[received]);
            received += 1;
        } else {
            world.turn();
        }
    }
    world.finish();
}

/// Two streams against each other, neither waiting for the other.
pub(in super::super) fn both_directions_at_once<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    for round in 0..50_u64 {
        let data = [pattern(round, 700), pattern(round + 1000, 1500)];
        for who in [CLIENT, SERVER] {
            world.sides[who]
                .send(link.queue_pairs[who], &[&data[who]], SendOptions::default())
                .expect("there is room for one Send");
        }
        world.expect(SERVER, link, &data[CLIENT]);
        world.expect(CLIENT, link, &data[SERVER]);
    }
    world.finish();
}

/// A Send that nobody asked a completion of is silent, and its buffer comes back all the same.
pub(in super::super) fn unsignalled_sends_return_buffers<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    // More than there are buffers, so that they must have come back.
    let spare = world.client().buffers_available() - 4;
    for round in 0..300_u64 {
        let data = pattern(round, 2000);
        // They may come back some polls after the message has arrived.
        world.until("the buffers of earlier Sends", |world| {
            (world.client().buffers_available() >= spare).then_some(())
        });
        world.send(CLIENT, link, &data);
        world.expect(SERVER, link, &data);
    }
    assert_eq!(world.client().untaken().count(), 0);
    world.finish();
}

/// Completions come in the order of the posts, whatever their kind and size.
pub(in super::super) fn signalled_completions_in_order<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let mut works = Vec::new();
    for (index, bytes) in [10_u32, 5000, 20, 60_000, 1024, 1, 3000, 64]
        .iter()
        .enumerate()
    {
        let data = pattern(index as u64, *bytes);
        works.push(world.send_signalled(link, &[&data]));
    }
    let mut completed = Vec::new();
    while completed.len() < works.len() {
        let completion = world.completion(CLIENT, "a Send's completion", |_| true);
        assert_eq!(completion.status, Status::Success);
        assert_eq!(completion.queue_pair, link.queue_pairs[CLIENT]);
        match completion.kind {
            CompletionKind::Send(work) => completed.push(work),
            other => panic!("{other:?} instead of a Send's completion"),
        }
    }
    assert_eq!(completed, works);
    world.finish();
}

/// Posting stops at a full queue with an error that harms nothing, and goes on after a poll.
pub(in super::super) fn queue_full_is_reported_and_recovers<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    if H::extras().ends_without_receive {
        // One for each that the queue takes.
        let depth = world.client().port.attributes().send_queue_depth_max;
        world.server().post_receives(depth as usize, &[SMALL_BYTES]);
    }
    let queue_pair = link.queue_pairs[CLIENT];
    for round in 0..3_u64 {
        let mut sent = 0_u64;
        loop {
            let data = pattern(round * 1_000_000 + sent, 100);
            match world
                .client()
                .send_copied(queue_pair, &data, SendOptions::default())
            {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, PostError::QueueFull);
                    break;
                }
            }
            assert!(sent < 1 << 20, "the way to the peer is endless");
        }
        assert!(sent > 0);
        // A list that a full queue refuses is left as it was (`send` looks).
        assert_eq!(
            world
                .client()
                .send(queue_pair, &[&[1; 10]], SendOptions::default()),
            Err(PostError::QueueFull)
        );
        for index in 0..sent {
            let data = pattern(round * 1_000_000 + index, 100);
            world.expect(SERVER, link, &data);
        }
    }
    world.works(link);
    world.finish();
}

/// Errors of the caller: nothing is posted, and the caller keeps its buffers.
pub(in super::super) fn a_refused_post_leaves_the_list_as_it_was<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let queue_pair = link.queue_pairs[CLIENT];
    let mut empty = Gather::new();
    assert_eq!(
        world
            .client()
            .port
            .post_send(queue_pair, &mut empty, SendOptions::default()),
        Err(PostError::BadSegments)
    );
    let mut foreign = world.server().gather(&[&[1; 100]]);
    assert_eq!(
        world
            .client()
            .port
            .post_send(queue_pair, &mut foreign, SendOptions::default()),
        Err(PostError::ForeignMemory)
    );
    assert_eq!(foreign.len(), 1);
    world.server().give_list(foreign);
    let foreign = world.server().buffer(64);
    assert_eq!(
        world
            .client()
            .port
            .post_send_copied(queue_pair, &foreign, 10, SendOptions::default()),
        Err(PostError::ForeignMemory)
    );
    world.server().give(foreign);
    world.works(link);
    world.finish();
}
