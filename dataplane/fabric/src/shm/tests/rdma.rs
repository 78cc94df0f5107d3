//! RDMA Read and Write, and the windows that allow them.

use super::*;
use crate::interface::prelude::*;
use crate::interface::{Access, PostError, RemoteAddress, RemoteKey, Window};

const READ: Access = Access {
    remote_read: true,
    remote_write: false,
};
const WRITE: Access = Access {
    remote_read: false,
    remote_write: true,
};

fn expose(end: &mut End, bytes: &[u8], access: Access) -> Window {
    let buffer = end.filled(bytes);
    let count = u32::try_from(bytes.len()).unwrap();
    let id = end.id;
    end.port.bind_window(id, buffer, count, access).unwrap()
}

/// Reads into two segments, the first of 10 bytes.
fn read(end: &mut End, from: RemoteAddress, bytes: u32, work: u64) -> Result<(), PostError> {
    let mut list = Gather::new();
    let (first, second) = (end.large.take().unwrap(), end.large.take().unwrap());
    let head = bytes.min(10);
    list.push(first, 5, head).unwrap();
    list.push(second, 0, bytes - head).unwrap();
    let id = end.id;
    match end.port.post_read(id, list, from, WorkId(work)) {
        Ok(()) => Ok(()),
        Err((error, mut list)) => {
            while let Some((buffer, _, _)) = list.pop() {
                end.give(buffer);
            }
            Err(error)
        }
    }
}

fn write(end: &mut End, parts: &[&[u8]], to: RemoteAddress, work: u64) -> Result<(), PostError> {
    let mut list = end.list(parts);
    let id = end.id;
    let result = end.port.post_write(id, &mut list, to, Some(WorkId(work)));
    while let Some((buffer, _, _)) = list.pop() {
        end.give(buffer);
    }
    end.port.flush_sends();
    result
}

fn at(window: &Window, offset: u64) -> RemoteAddress {
    let remote = window.remote();
    RemoteAddress {
        offset: remote.offset.wrapping_add(offset),
        ..remote
    }
}

/// Invalidates a window and gives back what was in it.
fn take_back(end: &mut End, window: Window) -> Vec<u8> {
    let bytes = window.bytes() as usize;
    let key = window.remote().key.0;
    end.port.invalidate_window(window, WorkId(99)).unwrap();
    assert_eq!(
        told(end.settle()),
        [(Status::Success, What::Invalidated(99, key))]
    );
    let buffer = end.port.next_returned().unwrap();
    let content = end.port.memory().bytes(&buffer)[..bytes].to_vec();
    end.give(buffer);
    content
}

#[test]
fn a_read_brings_the_bytes_of_a_window() {
    let (mut a, mut b) = pair();
    let content = pattern(1, 60_000);
    let window = expose(&mut b, &content, READ);
    for (offset, bytes) in [(0, 60_000), (100, 1), (59_999, 1), (7, 30_000), (0, 0)] {
        read(&mut a, at(&window, offset), bytes, 3).unwrap();
        let from = usize::try_from(offset).unwrap();
        let expected = content[from..from + bytes as usize].to_vec();
        assert_eq!(
            told(a.settle()),
            [(Status::Success, What::Read(3, expected))]
        );
    }
    assert_eq!(take_back(&mut b, window), content);
}

#[test]
fn a_write_lands_before_the_send_that_follows() {
    let (mut a, mut b) = pair();
    let window = expose(&mut b, &[0; 50_000], WRITE);
    let bytes = pattern(2, 40_000);
    write(
        &mut a,
        &[&bytes[..30_000], &bytes[30_000..]],
        at(&window, 500),
        4,
    )
    .unwrap();
    a.send(b"done", signalled(5)).unwrap();
    let received = What::Received(b"done".to_vec(), None);
    assert_eq!(told(b.settle()), [(Status::Success, received)]);
    let expected = [
        (Status::Success, What::Written(4)),
        (Status::Success, What::Sent(5)),
    ];
    assert_eq!(told(a.settle()), expected);
    assert_eq!(a.reclaim(), 2);
    let content = take_back(&mut b, window);
    assert_eq!(content[500..40_500], bytes);
    assert!(
        content[..500]
            .iter()
            .chain(&content[40_500..])
            .all(|byte| *byte == 0)
    );
}

#[test]
fn copies_are_bounded_per_poll() {
    let (mut a, mut b) = pair_with(|config| config.copy_bytes_per_poll = 1000);
    let message = pattern(3, 10_000);
    a.send_list(&[&message], signalled(1)).unwrap();
    for _ in 0..9 {
        assert_eq!(told(b.poll()), []);
    }
    assert_eq!(b.counter("bytes_pulled"), 9000);
    let received = What::Received(message, None);
    assert_eq!(told(b.poll()), [(Status::Success, received)]);
    b.settle();
    assert_eq!(told(a.settle()), [(Status::Success, What::Sent(1))]);
    let content = pattern(4, 5500);
    let window = expose(&mut b, &content, READ);
    read(&mut a, window.remote(), 5500, 2).unwrap();
    assert_eq!(told(a.poll()).len(), 0);
    let polls = (1..20).find(|_| !a.poll().is_empty());
    assert!(polls.is_some_and(|polls| polls >= 5), "{polls:?}");
}

#[test]
fn a_read_waits_for_the_writes_before_it() {
    let (mut a, mut b) = pair();
    let access = Access {
        remote_read: true,
        remote_write: true,
    };
    let window = expose(&mut b, &[0; 100], access);
    write(&mut a, &[&[7; 100]], window.remote(), 1).unwrap();
    read(&mut a, window.remote(), 100, 2).unwrap();
    assert_eq!(told(a.settle()), [], "the write is not done yet");
    b.settle();
    let expected = [
        (Status::Success, What::Written(1)),
        (Status::Success, What::Read(2, vec![7; 100])),
    ];
    assert_eq!(told(a.settle()), expected);
}

/// What a wrong read or write does: it fails, and both queue pairs end.
fn refused(wrong: impl Fn(&mut End, &Window) -> What, access: Access) {
    let (mut a, mut b) = pair();
    let window = expose(&mut b, &[1; 1000], access);
    let what = wrong(&mut a, &window);
    b.settle();
    let events = told(a.settle());
    assert_eq!(events[0].0, Status::RemoteAccess);
    match (&events[0].1, &what) {
        (What::Read(x, _), What::Read(y, _)) | (What::Written(x), What::Written(y)) => {
            assert_eq!(x, y);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(events[1..], [(Status::Flushed, What::Disconnected)]);
    b.settle();
    assert_eq!(
        b.port
            .bind_window(b.id, b.large.take().unwrap(), 1, READ)
            .map_err(|e| e.0)
            .err(),
        Some(PostError::NotConnected)
    );
}

#[test]
fn reads_and_writes_outside_their_window_are_refused() {
    let doing_read = |offset: u64, bytes: u32| {
        move |end: &mut End, window: &Window| {
            read(end, at(window, offset), bytes, 1).unwrap();
            What::Read(1, Vec::new())
        }
    };
    refused(doing_read(1, 1000), READ);
    refused(doing_read(1000, 1), READ);
    refused(doing_read(u64::MAX - 5, 100), READ);
    refused(doing_read(0, 10), WRITE);
    let doing_write = |offset: u64, bytes: usize| {
        move |end: &mut End, window: &Window| {
            write(end, &[&vec![1; bytes]], at(window, offset), 1).unwrap();
            What::Written(1)
        }
    };
    refused(doing_write(1, 1000), WRITE);
    refused(doing_write(u64::MAX - 5, 100), WRITE);
    refused(doing_write(0, 10), READ);
}

#[test]
fn a_wrong_key_is_refused() {
    for wrong in [0, 1, 0x8000_0000, 0xffff_ffff] {
        let doing = |end: &mut End, window: &Window| {
            let remote = window.remote();
            let from = RemoteAddress {
                key: RemoteKey(remote.key.0 ^ wrong),
                ..remote
            };
            let from = if wrong == 0 {
                RemoteAddress {
                    key: RemoteKey(remote.key.0 ^ 0x0100_0000),
                    ..remote
                }
            } else {
                from
            };
            read(end, from, 10, 1).unwrap();
            What::Read(1, Vec::new())
        };
        refused(doing, READ);
    }
}

#[test]
fn another_queue_pair_cannot_use_a_window() {
    for writing in [false, true] {
        let (mut a, mut b, joint) = unjoined();
        let (first, second) = (
            connect(&mut a, &mut b, &joint),
            connect(&mut a, &mut b, &joint),
        );
        b.id = first.1;
        let window = expose(&mut b, &[1; 10], if writing { WRITE } else { READ });
        a.id = second.0;
        if writing {
            write(&mut a, &[&[2; 10]], window.remote(), 1).unwrap();
        } else {
            read(&mut a, window.remote(), 10, 1).unwrap();
        }
        b.settle();
        assert_eq!(a.settle()[0].status, Status::RemoteAccess);
        // The first queue pair is unharmed.
        a.id = first.0;
        b.settle();
        a.send(b"still here", SendOptions::default()).unwrap();
        assert_eq!(b.settle().len(), 1);
        assert_eq!(take_back(&mut b, window), [1; 10]);
    }
}

/// Nor can it end the window of another one: the Send is refused, and the window stays.
#[test]
fn another_queue_pair_cannot_invalidate_a_window() {
    let (mut a, mut b, joint) = unjoined();
    let (first, second) = (
        connect(&mut a, &mut b, &joint),
        connect(&mut a, &mut b, &joint),
    );
    b.id = first.1;
    let window = expose(&mut b, &[1; 10], READ);
    let key = window.remote().key;
    a.id = second.0;
    let options = SendOptions {
        signalled: Some(WorkId(1)),
        invalidate: Some(key),
    };
    a.send(b"x", options).unwrap();
    b.settle();
    assert_eq!(a.settle()[0].status, Status::RemoteAccess);
    a.id = first.0;
    read(&mut a, window.remote(), 10, 2).unwrap();
    b.settle();
    assert_eq!(a.settle()[0].status, Status::Success);
    assert_eq!(take_back(&mut b, window), [1; 10]);
}

#[test]
fn a_window_that_was_taken_back_cannot_be_read() {
    let (mut a, mut b) = pair();
    let window = expose(&mut b, &[1; 100], READ);
    let remote = window.remote();
    take_back(&mut b, window);
    // The slot is used again, by another key.
    let again = expose(&mut b, &[2; 100], READ);
    assert_ne!(again.remote().key, remote.key);
    read(&mut a, remote, 100, 1).unwrap();
    assert_eq!(a.settle()[0].status, Status::RemoteAccess);
}

#[test]
fn a_window_that_ends_in_the_middle_of_a_read_fails_it() {
    let (mut a, mut b) = pair_with(|config| config.copy_bytes_per_poll = 100);
    let window = expose(&mut b, &[1; 1000], READ);
    read(&mut a, window.remote(), 1000, 1).unwrap();
    a.poll();
    a.poll();
    take_back(&mut b, window);
    let events = a.settle();
    assert_eq!(events[0].status, Status::RemoteAccess);
    assert_eq!(events[1].what, What::Disconnected);
}

#[test]
fn a_window_that_ends_in_the_middle_of_a_write_fails_it() {
    let (mut a, mut b) = pair_with(|config| config.copy_bytes_per_poll = 100);
    let window = expose(&mut b, &[0; 1000], WRITE);
    write(&mut a, &[&[9; 1000]], window.remote(), 1).unwrap();
    b.poll();
    b.port.invalidate_window(window, WorkId(1)).unwrap();
    b.poll();
    let buffer = b.port.next_returned().unwrap();
    let untouched = b.port.memory().bytes(&buffer)[200..1000].to_vec();
    b.settle();
    assert_eq!(b.port.memory().bytes(&buffer)[200..1000], untouched);
    assert_eq!(a.settle()[0].status, Status::RemoteAccess);
}

#[test]
fn send_with_invalidate_ends_the_window() {
    let (mut a, mut b) = pair();
    let window = expose(&mut b, &pattern(1, 100), READ);
    let key = window.remote().key;
    assert!(b.port.window_has_key(&window, key));
    let window = b.port.close_window(window).unwrap_err();
    let options = SendOptions {
        signalled: None,
        invalidate: Some(key),
    };
    a.send(b"bye", options).unwrap();
    let received = What::Received(b"bye".to_vec(), Some(key.0));
    assert_eq!(told(b.settle()), [(Status::Success, received)]);
    let refused = b.port.invalidate_window(window, WorkId(1)).unwrap_err();
    assert_eq!(refused.0, PostError::NoWindow);
    let buffer = b.port.close_window(refused.1).unwrap();
    assert_eq!(b.port.memory().bytes(&buffer)[..100], pattern(1, 100));
    b.give(buffer);
    // Twice is once too often.
    a.send(b"bye", options).unwrap();
    assert_eq!(told(b.settle()), [(Status::Flushed, What::Disconnected)]);
}

#[test]
fn windows_run_out_and_come_back() {
    let (mut a, mut b) = pair();
    let mut windows: Vec<_> = (0..16).map(|_| expose(&mut b, &[0; 8], READ)).collect();
    let keys: std::collections::HashSet<_> = windows.iter().map(|w| w.remote().key).collect();
    assert_eq!(keys.len(), 16);
    let buffer = b.large.take().unwrap();
    let (error, buffer) = b.port.bind_window(b.id, buffer, 8, READ).unwrap_err();
    assert_eq!(error, PostError::NoWindow);
    b.give(buffer);
    take_back(&mut b, windows.pop().unwrap());
    let window = expose(&mut b, &[5; 8], READ);
    read(&mut a, window.remote(), 8, 1).unwrap();
    assert_eq!(
        told(a.settle()),
        [(Status::Success, What::Read(1, vec![5; 8]))]
    );
    // Destroying the queue pair gives all their buffers back.
    b.port.disconnect(b.id);
    b.settle();
    b.port.destroy_queue_pair(b.id);
    assert_eq!(b.reclaim(), 16);
    let gone = b.port.close_window(window).unwrap_err();
    assert_eq!(
        b.port.invalidate_window(gone, WorkId(1)).unwrap_err().0,
        PostError::NoWindow
    );
}

#[test]
fn a_set_delay_is_one_way_for_sends_and_both_for_reads() {
    let delay = std::time::Duration::from_secs(10);
    let (mut a, mut b) = pair_with(|config| config.delay = delay);
    let delay = Clock::new().ticks(delay);
    let window = expose(&mut b, &[3; 10], READ);
    a.send(b"slow", SendOptions::default()).unwrap();
    read(&mut a, window.remote(), 10, 1).unwrap();
    let now = Clock::new().now();
    (a.now, b.now) = (now, now);
    assert_eq!((told(a.settle()), told(b.settle())), (vec![], vec![]));
    (a.now, b.now) = (now + delay, now + delay);
    let received = What::Received(b"slow".to_vec(), None);
    assert_eq!(told(b.settle()), [(Status::Success, received)]);
    // Posted a little before `now`, so not quite due.
    a.now = now + delay * 3 / 2;
    assert_eq!(told(a.settle()), []);
    a.now = now + 2 * delay;
    assert_eq!(
        told(a.settle()),
        [(Status::Success, What::Read(1, vec![3; 10]))]
    );
}
