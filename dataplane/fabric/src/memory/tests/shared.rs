//! Shared leases: their bytes, their return to the pool, and the views with which they are posted.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::pools::{arena, shape};
use crate::memory::{Lease, Memory, Pool, SharedLease, Views};

/// A lease on a whole buffer that is full of `byte`.
fn lease(memory: &Memory, pool: &mut Pool, byte: u8) -> Lease {
    let mut buffer = pool.take().unwrap();
    memory.bytes_mut(&mut buffer).fill(byte);
    let bytes = buffer.capacity();
    pool.lease(buffer, 0, bytes).unwrap()
}

fn available(pool: &mut Pool) -> usize {
    pool.reclaim(usize::MAX);
    pool.available()
}

#[test]
fn a_buffer_comes_home_with_the_last_that_shares_it() {
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(2, 64)).unwrap());
    let mut first = lease(&memory, &mut pool, 7).share();
    assert_eq!(&*first, &[7; 64]);
    first.bytes_mut().unwrap()[3] = 8;
    let slice = first.slice(2, 3).unwrap();
    assert_eq!(&*slice, &[7, 8, 7]);
    assert!(first.bytes_mut().is_none() && !slice.is_alone());
    let inner = slice.slice(1, 1).unwrap();
    assert_eq!(&*inner, &[8]);
    drop((first, slice));
    assert_eq!(available(&mut pool), 1);
    std::thread::spawn(move || drop(inner)).join().unwrap();
    assert_eq!(available(&mut pool), 2);
}

#[test]
fn slices_lie_within_and_grow_by_what_follows_alone() {
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(2, 64)).unwrap());
    let whole = lease(&memory, &mut pool, 1).share();
    let other = lease(&memory, &mut pool, 2).share();
    for (offset, bytes) in [(65, 0), (1, 64), (u32::MAX, 1), (1, u32::MAX)] {
        assert!(whole.slice(offset, bytes).is_none(), "{offset} {bytes}");
    }
    let mut slice = whole.slice(8, 8).unwrap();
    assert!(!slice.extend(&whole, 17, 1), "there is a gap");
    assert!(!slice.extend(&other, 16, 1), "of another buffer");
    assert!(!slice.extend(&whole, 16, 49), "beyond the end");
    assert!(slice.extend(&whole, 16, 48));
    assert_eq!(slice.len(), 56);
    let part = whole.slice(60, 4).unwrap();
    assert!(
        !slice.extend(&part, 4, 1) && !slice.extend(&part, 0, 0),
        "it is past them"
    );
}

#[test]
fn whole_buffer_is_reachable_from_a_shared_range() {
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(1, 64)).unwrap());
    let mut buffer = pool.take().unwrap();
    memory.bytes_mut(&mut buffer).fill(5);
    let lease = pool.lease(buffer, 10, 3).unwrap();
    let shared = lease.share();
    assert_eq!((&*shared, shared.offset()), (&[5; 3][..], 10));
    assert_eq!(&*shared.whole(), &[5; 64]);
    assert_eq!(available(&mut pool), 1);
}

#[test]
fn a_view_is_read_and_never_written() {
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(1, 64)).unwrap());
    let mut views = Views::new(2, 10);
    let whole = lease(&memory, &mut pool, 9).share();
    assert!(pool.shares_arena(&whole));
    let mut shown = views.show(whole.slice(4, 8).unwrap()).unwrap();
    let second = views.show(whole.slice(0, 1).unwrap()).unwrap();
    assert_eq!(shown.index() + second.index(), 10 + 11);
    assert!(shown.is_view() && views.owns(&shown) && !pool.owns(&shown));
    assert_eq!((memory.bytes(&shown), views.available()), (&[9; 8][..], 0));
    assert!(
        views.show(whole.slice(0, 1).unwrap()).is_none(),
        "no more than there are"
    );
    let written = std::panic::catch_unwind(AssertUnwindSafe(|| {
        memory.bytes_mut(&mut shown).fill(0);
    }));
    assert!(written.is_err());
    // The bytes are kept as long as there is a view.
    drop(whole);
    assert_eq!(available(&mut pool), 0);
    assert_eq!(memory.bytes(&shown), [9; 8]);
    views.give(shown);
    assert_eq!(available(&mut pool), 0);
    views.give(second);
    assert_eq!((available(&mut pool), views.available()), (1, 2));
}

/// A view can live longer than its `Views`, in a port that is shut down later. Nothing may write its bytes then.
#[test]
fn shown_bytes_stay_unwritable_after_their_views_are_dropped() {
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(1, 64)).unwrap());
    let mut views = Views::new(2, 1);
    let mut whole = lease(&memory, &mut pool, 3).share();
    let returned = views.show(whole.clone()).unwrap();
    views.give(returned);
    let shown = views.show(whole.clone()).unwrap();
    drop(views);
    assert!(whole.bytes_mut().is_none() && !whole.is_alone());
    drop(whole);
    assert_eq!(
        (memory.bytes(&shown), available(&mut pool)),
        (&[3; 64][..], 0)
    );
}

/// Two threads create, read and drop handles repeatedly. A buffer returns only after its last handle, and all buffers
/// return.
#[test]
fn shared_buffers_come_back_from_other_threads() {
    fn read(handle: SharedLease, byte: u8) {
        let part = handle.slice(1, 62).unwrap();
        drop(handle);
        assert!(part.iter().all(|it| *it == byte));
    }
    let rounds: u32 = if cfg!(miri) { 10 } else { 2000 };
    let mut arena = arena(4096);
    let (memory, mut pool) = (arena.memory(), arena.pool(shape(2, 64)).unwrap());
    let handed = Arc::new(ArrayQueue::new(2));
    let taken = Arc::clone(&handed);
    // The thread ends when the other thread has dropped the queue.
    let other = std::thread::spawn(move || {
        loop {
            let is_last = Arc::strong_count(&taken) == 1;
            match taken.pop() {
                Some((handle, byte)) => read(handle, byte),
                None if is_last => break,
                None => std::thread::yield_now(),
            }
        }
    });
    for round in 0..rounds {
        let byte = round.to_le_bytes()[0];
        while available(&mut pool) == 0 {
            assert!(!other.is_finished(), "it gives its handles back");
            std::thread::yield_now();
        }
        let whole = lease(&memory, &mut pool, byte).share();
        handed.push((whole.clone(), byte)).unwrap();
        read(whole, byte);
    }
    drop(handed);
    other.join().unwrap();
    assert_eq!(available(&mut pool), 2);
}
