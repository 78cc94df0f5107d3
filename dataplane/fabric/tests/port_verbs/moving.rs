//! Tests of messages, RDMA Reads and RDMA Writes.

use super::{Pair, RECEIVES, pattern, skips, take_receive};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Access, CompletionKind, Gather, PostError, ReceiveQueueAttributes, RemoteAddress, RemoteKey,
    SendOptions, Status, WorkId,
};
use rpcrdma_fabric::verbs::{join, prepared_pair};

/// Every method of sending, at the lengths where one method changes to the next.
#[test]
fn messages_of_all_kinds_arrive() {
    let mut pair = Pair::new();
    let inline = pair.a.port.attributes().inline_bytes_max;
    for bytes in [0, 1, 31, 32, 33, 255, 256, 257, 511, 512, 513, inline] {
        let data = pattern(1, bytes as usize);
        let mut buffer = pair.a.buffer_with(&data);
        pair.a
            .port
            .post_send_copied(pair.a_id, &buffer, bytes, SendOptions::default())
            .expect("a copied Send");
        // The send has already copied the data, even before the flush.
        pair.a.port.memory().bytes_mut(&mut buffer).fill(0xEE);
        pair.a.pool.give(buffer);
        assert_eq!(pair.arrival(), (Status::Success, data, None));
    }
    for parts in [vec![700], vec![1, 2, 3], vec![4096, 5000, 7000]] {
        let parts: Vec<Vec<u8>> = parts.into_iter().map(|bytes| pattern(2, bytes)).collect();
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let mut list = pair.a.gather(&slices);
        pair.a
            .port
            .post_send(pair.a_id, &mut list, SendOptions::default())
            .expect("a Send");
        assert_eq!(pair.arrival(), (Status::Success, parts.concat(), None));
    }
    assert!(pair.a.counter("sends_inline") > 0);
    assert!(pair.a.counter("sends_staged") > 0);
}

/// Unsignalled Sends return their buffers even if no later Send follows, and more of them can be sent than the queue
/// holds.
#[test]
fn unsignalled_sends_come_back_and_never_fill_the_queue() {
    let mut pair = Pair::new();
    let available = pair.a.pool.available();
    for round in 0..200 {
        let data = pattern(round, 300);
        let mut list = pair.a.gather(&[&data]);
        pair.a
            .port
            .post_send(pair.a_id, &mut list, SendOptions::default())
            .expect("room");
        let buffer = pair.a.buffer_with(&data);
        pair.a
            .port
            .post_send_copied(pair.a_id, &buffer, 40, SendOptions::default())
            .expect("room");
        pair.a.pool.give(buffer);
        assert_eq!(pair.arrival().1, data);
        assert_eq!(pair.arrival().1, data[..40]);
    }
    pair.until("the buffers", |pair| {
        (pair.a.pool.available() == available).then_some(())
    });
    assert!(
        pair.a.counter("works_signalled") < pair.a.counter("works_posted"),
        "every Send asked for a completion"
    );
}

/// Completed unsignalled Sends never block the next Send of their queue pair, whatever other queue pairs hold: the
/// next Send requests a completion.
#[test]
fn a_quiet_queue_pair_can_send_though_others_hold_all_that_can_be_borrowed() {
    let mut pair = Pair::with(|config| {
        config.queue_pairs_max = 2;
        config.work_requests_max = 128;
        config.send_queue_depth_max = 128;
    });
    let queues = (pair.a.queue, pair.b.queue);
    let (a, b) = (&mut pair.a, &mut pair.b);
    let (greedy, _) = join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues)
        .expect("two queue pairs of one device");
    let buffer = pair.a.buffer_with(&[1; 8]);
    let send = |pair: &mut Pair, id| {
        pair.a
            .port
            .post_send_copied(id, &buffer, 8, SendOptions::default())
    };
    let quiet = pair.a_id;
    // After this many unsignalled Sends a queue pair requests a completion.
    for _ in 0..31 {
        send(&mut pair, quiet).expect("room");
        assert_eq!(pair.arrival().1, [1; 8]);
    }
    assert_eq!(pair.a.counter("works_signalled"), 0);
    // They are never flushed to the device, so they stay outstanding in the port.
    while send(&mut pair, greedy).is_ok() {}
    assert_eq!(send(&mut pair, greedy), Err(PostError::QueueFull));
    assert_eq!(send(&mut pair, quiet), Ok(()));
    assert_eq!(pair.arrival().1, [1; 8]);
    pair.until("room again", |pair| send(pair, quiet).ok());
    pair.a.pool.give(buffer);
}

/// Exposes 16 KiB of `b` for reading.
fn expose(pair: &mut Pair, data: &[u8]) -> RemoteAddress {
    let bytes = u32::try_from(data.len()).expect("few bytes");
    let buffer = pair.b.buffer_with(data);
    let access = Access {
        remote_read: true,
        remote_write: false,
    };
    let window = pair.b.port.bind_window(pair.b_id, buffer, bytes, access);
    pair.b.port.flush_sends();
    window.expect("a window").remote()
}

/// Posts an RDMA Read into a list of segments of these lengths.
fn post_read(pair: &mut Pair, lengths: &[u32], from: RemoteAddress, work: u64) {
    let mut list = Gather::new();
    for bytes in lengths {
        let buffer = pair.a.pool.take().expect("a buffer");
        list.push(buffer, 0, *bytes).expect("it fits");
    }
    pair.a
        .port
        .post_read(pair.a_id, list, from, WorkId(work))
        .expect("room");
}

/// Waits for an RDMA Read. Returns its status and the data.
fn read(pair: &mut Pair, work: u64) -> (Status, Vec<u8>) {
    let (status, list) = pair.finished(WorkId(work));
    let mut list = list.expect("the list comes back");
    let mut read = Vec::new();
    for (buffer, offset, bytes) in list.iter() {
        let range = *offset as usize..(*offset + *bytes) as usize;
        read.extend_from_slice(&pair.a.port.memory().bytes(buffer)[range]);
    }
    while let Some((buffer, _, _)) = list.pop() {
        pair.a.pool.give(buffer);
    }
    (status, read)
}

/// RDMA Reads beyond the read depth wait, and all complete in order.
#[test]
fn reads_beyond_the_depth_wait() {
    if skips("reads_beyond_the_depth_wait") {
        return;
    }
    let mut pair = Pair::with(|config| {
        config.initiator_depth = 2;
        config.responder_resources = 2;
    });
    let data = pattern(3, 16 << 10);
    let from = expose(&mut pair, &data);
    for number in 0..10 {
        post_read(&mut pair, &[8 << 10, 8 << 10], from, number);
    }
    for number in 0..10 {
        let (status, bytes) = read(&mut pair, number);
        assert_eq!(status, Status::Success);
        assert!(bytes == data);
    }
    assert_eq!(pair.a.counter("reads_waited"), 8);
}

/// On a device with at most two segments per RDMA Read, longer lists are read in parts. The parts complete as one
/// work, and a failed part fails the whole.
#[test]
fn reads_of_many_segments_are_cut() {
    if skips("reads_of_many_segments_are_cut") {
        return;
    }
    let mut pair = Pair::with(|config| {
        config.read_segments_max = 2;
        config.initiator_depth = 3;
    });
    let data = pattern(5, 16 << 10);
    let from = expose(&mut pair, &data);
    let available = pair.a.pool.available();
    let lengths = [1, 4096, 1000, 7, 8192, 2048, 1040];
    for number in 0..6 {
        post_read(&mut pair, &lengths, from, number);
    }
    for number in 0..6 {
        let (status, bytes) = read(&mut pair, number);
        assert_eq!(status, Status::Success);
        assert!(bytes == data, "{} bytes were read", bytes.len());
    }
    assert_eq!(
        pair.a.counter("works_posted"),
        6 * 4,
        "seven segments in four parts"
    );
    let wrong = RemoteAddress {
        key: RemoteKey(from.key.0 ^ 0x10),
        ..from
    };
    post_read(&mut pair, &lengths, wrong, 7);
    post_read(&mut pair, &[64], from, 8);
    assert_eq!(read(&mut pair, 7).0, Status::RemoteAccess);
    assert_eq!(read(&mut pair, 8).0, Status::Flushed);
    assert_eq!(pair.a.pool.available(), available);
}

/// On a device without shared receive queues, the queue pair has its own.
#[test]
fn receive_queues_of_their_own() {
    let mut pair = Pair::with(|config| config.own_receive_queues = true);
    assert!(!pair.a.port.attributes().shared_receive_queue);
    for round in 0..50 {
        let data = pattern(round, 900);
        let mut list = pair.a.gather(&[&data]);
        pair.a
            .port
            .post_send(pair.a_id, &mut list, SendOptions::default())
            .expect("room");
        assert_eq!(pair.arrival(), (Status::Success, data, None));
    }
    pair.a.port.disconnect(pair.a_id);
    pair.b.port.disconnect(pair.b_id);
    pair.ended();
    assert_eq!(pair.a.port.receives_posted(pair.a.queue), 0, "all flushed");
    assert_eq!(pair.a.counter("last_receive_timeouts"), 0);
}

/// Software devices have no thread domains. Their libibverbs is a real one, whose contexts are looked behind; an operation
/// that the device has not returns `ENOSYS` in libibverbs before 28.
#[test]
fn port_whose_device_has_no_thread_domain_carries_messages() {
    let mut pair = Pair::with(|config| config.thread_domain = true);
    let refused = pair.a.port.attributes().thread_domain_refused.clone();
    let Some(refused) = refused else {
        println!(
            "skipped port_whose_device_has_no_thread_domain_carries_messages: the device has thread domains"
        );
        return;
    };
    assert!(refused.contains("refused a thread domain"), "{refused}");
    let reasons = [libc::EOPNOTSUPP, libc::ENOSYS];
    let reasons = reasons.map(|it| std::io::Error::from_raw_os_error(it).to_string());
    let is_known = reasons.iter().any(|it| refused.contains(it));
    assert!(is_known, "{refused}");
    let data = pattern(3, 900);
    let mut list = pair.a.gather(&[&data]);
    pair.a
        .port
        .post_send(pair.a_id, &mut list, SendOptions::default())
        .expect("room");
    assert_eq!(pair.arrival(), (Status::Success, data, None));
}

/// A port may have several shared receive queues. A queue pair uses the one that it was made for, and cannot be
/// adopted on another.
#[test]
fn a_queue_pair_draws_from_the_receive_queue_it_was_made_for() {
    let mut pair = Pair::new();
    let first = pair.b.queue;
    let second = pair
        .b
        .port
        .create_receive_queue(ReceiveQueueAttributes {
            depth: 4,
            segments_max: 1,
        })
        .expect("a second receive queue");
    for _ in 0..4 {
        let mut buffers = pair.b.pool.take().into_iter();
        let receive = pair.b.port.create_receive(second, &mut buffers);
        pair.b.port.post_receive(receive.expect("a Receive"));
    }
    pair.b.port.flush_receives();
    let queues = (pair.a.queue, second);
    let (a_id, b_id) = join(
        &mut pair.a.port,
        &pair.a.handle,
        &mut pair.b.port,
        &pair.b.handle,
        queues,
    )
    .expect("a queue pair on the second receive queue");
    let mut list = pair.a.gather(&[&[7; 100]]);
    pair.a
        .port
        .post_send(a_id, &mut list, SendOptions::default())
        .expect("room");
    let completion = pair.until("a message", |pair| take_receive(&mut pair.b));
    assert_eq!(completion.queue_pair, b_id);
    let CompletionKind::Receive { receive, bytes, .. } = completion.kind else {
        panic!("{completion:?} is no Receive");
    };
    assert_eq!((receive.queue(), bytes), (second, 100));
    assert_eq!(pair.b.port.receives_posted(second), 3);
    assert_eq!(pair.b.port.receives_posted(first), RECEIVES);
    pair.b.port.post_receive(receive);

    let handle = pair.b.handle.drawing_from(second);
    let (_, seed) = prepared_pair(&pair.a.handle, &handle).expect("one more queue pair");
    assert!(
        pair.b.port.adopt_queue_pair(seed, first).is_err(),
        "of another queue"
    );
}

/// The device reports once that few Receives are left, to the port that owns them.
#[test]
fn the_device_tells_that_few_receives_are_left() {
    let mut pair = Pair::new();
    let context = pair.b.handle.context().clone();
    let buffer = pair.a.buffer_with(&[1; 64]);
    for _ in 0..RECEIVES {
        pair.a
            .port
            .post_send_copied(pair.a_id, &buffer, 64, SendOptions::default())
            .expect("room");
    }
    pair.a.pool.give(buffer);
    pair.until("the event", |pair| {
        context.dispatch_events().expect("the events are read");
        (pair.b.counter("receive_limit_events") > 0).then_some(())
    });
    assert_eq!(pair.a.counter("receive_limit_events"), 0, "it is b's");
    assert_eq!(pair.b.counter("receive_limit_events"), 1);
}
