//! Messages, and RDMA Reads and Writes.

use super::{Pair, pattern};
use rpcrdma_fabric::interface::{Access, Port as _, SendOptions, Status, WorkId};

/// Every way of sending, at the lengths where one way gives over to the next.
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
        // Copied at once, though it is not even flushed.
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

/// Unsignalled Sends give their buffers back, although no later Send follows; and far more of
/// them than the queue holds can be sent.
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

/// RDMA Reads beyond the depth wait their turn and complete in order.
#[test]
fn reads_beyond_the_depth_wait() {
    let mut pair = Pair::with(|config| {
        config.initiator_depth = 2;
        config.responder_resources = 2;
    });
    let data = pattern(3, 16 << 10);
    let buffer = pair.b.buffer_with(&data);
    let access = Access {
        remote_read: true,
        remote_write: false,
    };
    let window = pair
        .b
        .port
        .bind_window(pair.b_id, buffer, 16 << 10, access)
        .expect("a window");
    pair.b.port.flush_sends();
    for number in 0..10 {
        let mut list = rpcrdma_fabric::interface::Gather::new();
        for _ in 0..2 {
            let buffer = pair.a.pool.take().expect("a buffer");
            list.push(buffer, 0, 8 << 10).expect("it fits");
        }
        pair.a
            .port
            .post_read(pair.a_id, list, window.remote(), WorkId(number))
            .expect("room");
    }
    for number in 0..10 {
        let (status, list) = pair.finished(WorkId(number));
        assert_eq!(status, Status::Success);
        let mut list = list.expect("the list comes back");
        let mut read = Vec::new();
        for (buffer, offset, bytes) in list.iter() {
            let range = *offset as usize..(*offset + *bytes) as usize;
            read.extend_from_slice(&pair.a.port.memory().bytes(buffer)[range]);
        }
        assert!(read == data);
        while let Some((buffer, _, _)) = list.pop() {
            pair.a.pool.give(buffer);
        }
    }
    assert_eq!(pair.a.counter("reads_waited"), 8);
}

/// A device without shared receive queues: the queue pair has its own.
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
