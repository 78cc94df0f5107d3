//! RDMA Read and Write, and the windows that allow them.

use super::*;
use crate::interface::prelude::*;
use crate::interface::{Access, PostError, RemoteAddress, Window};

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

/// Invalidates a window and returns the contents of its buffer.
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
fn a_queue_pair_that_has_ended_binds_no_window() {
    let (mut a, mut b) = pair();
    a.port.disconnect(a.id);
    b.settle();
    for end in [&mut a, &mut b] {
        let buffer = end.large.take().unwrap();
        let (error, buffer) = end.port.bind_window(end.id, buffer, 1, READ).unwrap_err();
        assert_eq!(error, PostError::NotConnected);
        end.give(buffer);
    }
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
    // A second invalidation of the same key is an error.
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
    // The destruction of the queue pair returns all their buffers.
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
