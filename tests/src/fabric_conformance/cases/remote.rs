//! RDMA Read and RDMA Write: bytes, order, and everything that a peer must not get.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Access, CompletionKind, RemoteAddress, RemoteKey, Status, WorkId};

use super::super::harness::Harness;
use super::super::world::{
    CLIENT, HUGE_BYTES, LARGE_BYTES, Link, READ, SERVER, SMALL_BYTES, WRITE, World, pattern,
};

/// The place `bytes` further on.
fn further(remote: RemoteAddress, bytes: u64) -> RemoteAddress {
    RemoteAddress {
        offset: remote.offset.wrapping_add(bytes),
        ..remote
    }
}

/// Reads of all of a window and of parts of it, into one buffer and into several.
pub(in super::super) fn rdma_read<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let data = pattern(1, LARGE_BYTES);
    let window = world.expose(link, &data, READ);
    assert_eq!(window.bytes(), LARGE_BYTES);
    for (offset, lengths) in [
        (0_u32, &[LARGE_BYTES][..]),
        (1, &[1]),
        (4096, &[4096, 100, 4000]),
        (LARGE_BYTES - 7, &[7]),
    ] {
        let from = further(window.remote(), offset.into());
        let work = world.read(link, lengths, from);
        let (status, read) = world.finished(CLIENT, work);
        assert_eq!(status, Status::Success);
        let range = offset as usize..(offset + lengths.iter().sum::<u32>()) as usize;
        assert!(read == data[range], "other bytes than the peer's");
    }
    world.take_back(SERVER, link, window);
    world.finish();
}

/// As many Reads at a time as the device takes; they complete in order.
pub(in super::super) fn rdma_reads_up_to_the_depth<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let depth = world.client().port.attributes().read_depth_max.min(16);
    let data = pattern(2, LARGE_BYTES);
    let window = world.expose(link, &data, READ);
    let works: Vec<WorkId> = (0..depth)
        .map(|index| {
            let from = further(window.remote(), u64::from(index) * 1000);
            world.read(link, &[1000 + index], from)
        })
        .collect();
    for (work, index) in works.into_iter().zip(0_usize..) {
        let completion = world.completion(CLIENT, "a Read", |_| true);
        assert_eq!(completion.status, Status::Success);
        let CompletionKind::Read(completed, list) = completion.kind else {
            panic!("{:?} instead of a Read", completion.kind);
        };
        assert_eq!(completed, work, "Reads complete in order");
        let client = world.client();
        assert!(client.bytes_of(&list) == data[index * 1000..index * 1001 + 1000]);
        client.give_list(list);
    }
    world.finish();
}

/// Who sees the Send sees what was written before it.
pub(in super::super) fn rdma_write_before_send<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    for (seed, bytes) in [(1, 100_u32), (2, LARGE_BYTES), (3, HUGE_BYTES)] {
        let window = world.expose(link, &vec![0; bytes as usize], WRITE);
        let data = pattern(seed, bytes);
        let write = world.write(link, &[&data], window.remote());
        world.send_copied(CLIENT, link, b"written");
        world.expect(SERVER, link, b"written");
        // If not, the Send overtook the Write.
        let buffer = world.reclaim(SERVER, link, window);
        world.give_unchanged(SERVER, buffer, &data);
        assert_eq!(world.finished(CLIENT, write).0, Status::Success);
    }
    world.finish();
}

/// A Read behind a Write of the same queue pair sees what was written.
pub(in super::super) fn rdma_read_after_write<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let both = Access {
        remote_read: true,
        remote_write: true,
    };
    let window = world.expose(link, &pattern(1, LARGE_BYTES), both);
    for seed in 2..6 {
        let data = pattern(seed, LARGE_BYTES);
        let queue_pair = link.queue_pairs[CLIENT];
        let write = world.client().write(queue_pair, &[&data], window.remote());
        let read = world
            .client()
            .read(queue_pair, &[LARGE_BYTES], window.remote());
        // The client looks first, and more than once, so that only the order can hold it back.
        for _ in 0..4 {
            world.turn_of(CLIENT);
        }
        assert_eq!(world.finished(CLIENT, write).0, Status::Success);
        let (status, seen) = world.finished(CLIENT, read);
        assert_eq!(status, Status::Success);
        assert!(seen == data, "the Read overtook the Write");
    }
    world.finish();
}

/// Several pieces land one after the other, and nothing around them changes.
pub(in super::super) fn rdma_write_from_a_gather_list<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let mut expected = pattern(5, LARGE_BYTES);
    let window = world.expose(link, &expected, WRITE);
    let parts = [pattern(6, 3000), pattern(7, 1), pattern(8, 20_000)];
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let work = world.write(link, &slices, further(window.remote(), 77));
    assert_eq!(world.finished(CLIENT, work).0, Status::Success);
    let written = parts.concat();
    expected[77..77 + written.len()].copy_from_slice(&written);
    let buffer = world.reclaim(SERVER, link, window);
    world.give_unchanged(SERVER, buffer, &expected);
    world.finish();
}

/// A Read that is refused, and its connection ends.
fn refused_read<H: Harness>(world: &mut World<H>, link: Link, bytes: u32, from: RemoteAddress) {
    let work = world.read(link, &[bytes], from);
    world.refused(CLIENT, link, work);
}

/// A Write that is refused, and its connection ends.
fn refused_write<H: Harness>(world: &mut World<H>, link: Link, bytes: u32, to: RemoteAddress) {
    let data = pattern(99, bytes);
    let work = world.write(link, &[&data], to);
    world.refused(CLIENT, link, work);
}

/// After the owner took the window away, its key opens nothing.
pub(in super::super) fn read_after_invalidate_fails<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let window = world.expose(link, &pattern(1, 2000), READ);
    let remote = window.remote();
    let buffer = world.reclaim(SERVER, link, window);
    refused_read(&mut world, link, 2000, remote);
    world.server().give(buffer);
    world.finish();
}

/// Nor may it be written through.
pub(in super::super) fn write_after_invalidate_fails<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let kept = pattern(1, 2000);
    let window = world.expose(link, &kept, WRITE);
    let remote = window.remote();
    let buffer = world.reclaim(SERVER, link, window);
    refused_write(&mut world, link, 2000, remote);
    world.give_unchanged(SERVER, buffer, &kept);
    world.finish();
}

/// Offsets and lengths of which one byte or more lies outside a window of `bytes` bytes.
fn outside(bytes: u32) -> [(u64, u32); 6] {
    [
        (0, bytes + 1),
        (1, bytes),
        (bytes.into(), 1),
        (u64::from(bytes) + 4096, 16),
        (u64::MAX, 2),
        (u64::MAX - 4095, 4097),
    ]
}

/// One byte outside is too much, and so is a range that wraps.
pub(in super::super) fn read_out_of_range<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    for (offset, bytes) in outside(2000) {
        let link = world.connect();
        let window = world.expose(link, &pattern(1, 2000), READ);
        refused_read(&mut world, link, bytes, further(window.remote(), offset));
        world.close(link);
    }
    world.finish();
}

/// The same for Writes, of which no byte lands, not even those that lie inside.
pub(in super::super) fn write_out_of_range<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    for (offset, bytes) in outside(2000) {
        let link = world.connect();
        let kept = pattern(1, 2000);
        let window = world.expose(link, &kept, WRITE);
        refused_write(&mut world, link, bytes, further(window.remote(), offset));
        world.server().keep_returned = true;
        world.close(link);
        let buffer = world.until("the buffer of the window", |world| {
            world.server().returned.pop()
        });
        world.server().keep_returned = false;
        world.give_unchanged(SERVER, buffer, &kept);
    }
    world.finish();
}

/// Memory that may be written may not be read.
pub(in super::super) fn read_without_access<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let window = world.expose(link, &pattern(1, 2000), WRITE);
    refused_read(&mut world, link, 2000, window.remote());
    world.finish();
}

/// Memory that may be read may not be written.
pub(in super::super) fn write_without_access<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let window = world.expose(link, &pattern(1, 2000), READ);
    refused_write(&mut world, link, 2000, window.remote());
    world.finish();
}

/// Keys that nobody gave out: near misses of a good one, and extremes.
pub(in super::super) fn wrong_key<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let flips = [1_u32, 1 << 8, 1 << 16, 1 << 31];
    for index in 0..flips.len() + 2 {
        let link = world.connect();
        let both = Access {
            remote_read: true,
            remote_write: true,
        };
        let window = world.expose(link, &pattern(1, 2000), both);
        let good = window.remote();
        let key = match flips.get(index) {
            Some(flip) => good.key.0 ^ flip,
            None if index == flips.len() => 0,
            None => u32::MAX,
        };
        if key == good.key.0 {
            continue;
        }
        let wrong = RemoteAddress {
            key: RemoteKey(key),
            ..good
        };
        if index % 2 == 0 {
            refused_read(&mut world, link, 16, wrong);
        } else {
            refused_write(&mut world, link, 16, wrong);
        }
        world.close(link);
    }
    world.finish();
}

/// A window is for the peer of its queue pair, and for nobody else on the same core.
pub(in super::super) fn key_of_other_queue_pair<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let owner = world.connect();
    let other = world.connect();
    let data = pattern(1, 2000);
    let window = world.expose(owner, &data, READ);
    refused_read(&mut world, other, 2000, window.remote());
    world.reads(owner, &window, &data);
    world.finish();
}

/// Nor may another write through it.
pub(in super::super) fn write_with_key_of_other_queue_pair<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let owner = world.connect();
    let other = world.connect();
    let kept = pattern(1, 2000);
    let window = world.expose(owner, &kept, WRITE);
    refused_write(&mut world, other, 2000, window.remote());
    let buffer = world.reclaim(SERVER, owner, window);
    world.give_unchanged(SERVER, buffer, &kept);
    world.finish();
}

/// The key of an earlier window stays dead, however often its place was used again.
pub(in super::super) fn old_generation_key<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let window = world.expose(link, &pattern(1, 2000), READ);
    let old = window.remote();
    let mut last = old.key;
    world.take_back(SERVER, link, window);
    for seed in 2..40 {
        let window = world.expose(link, &pattern(seed, 2000), READ);
        assert_ne!(window.remote().key, last, "a key is used twice in a row");
        last = window.remote().key;
        world.take_back(SERVER, link, window);
    }
    let window = world.expose(link, &pattern(40, 2000), READ);
    assert!(
        world
            .server()
            .port
            .window_has_key(&window, window.remote().key)
    );
    let data = pattern(40, 2000);
    world.reads(link, &window, &data);
    refused_read(&mut world, link, 2000, old);
    world.finish();
}

/// A connection that asks for what it may not have costs itself, not its neighbours.
pub(in super::super) fn a_refused_access_harms_no_other_connection<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let bad = world.connect();
    let good = world.connect();
    world.post_receives(4, &[SMALL_BYTES]);
    let data = pattern(1, 2000);
    let window = world.expose(good, &data, READ);
    let nothing = RemoteAddress {
        key: RemoteKey(window.remote().key.0 ^ 0x5555),
        offset: 0,
    };
    refused_read(&mut world, bad, 64, nothing);
    world.reads(good, &window, &data);
    world.works(good);
    world.finish();
}
