//! Pools, leases and buffers: every error, and random sequences against a model.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::interface::SetupError;
use crate::memory::{Arena, ArenaOptions, Buffer, HugePages, Lease, Memory, Pool, PoolShape};

pub(super) fn arena(bytes: u64) -> Arena {
    Arena::shared(&ArenaOptions {
        bytes,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

pub(super) fn shape(buffers: u32, buffer_bytes: u32) -> PoolShape {
    PoolShape {
        buffers,
        buffer_bytes,
        stride_bytes: buffer_bytes,
        align_bytes: 64,
    }
}

#[test]
fn pools_are_carved_until_the_arena_is_full() {
    let mut arena = arena(8192);
    arena.pool(shape(1, 4096)).unwrap();
    let error = arena.pool(shape(2, 4096)).unwrap_err();
    assert!(
        matches!(
            error,
            SetupError::Limit {
                asked: 12288,
                limit: 8192,
                ..
            }
        ),
        "{error:?}"
    );
    // The failed call has taken no memory.
    arena.pool(shape(1, 4096)).unwrap();
    arena.pool(shape(0, 4096)).unwrap();
    arena.pool(shape(1, 1)).unwrap_err();
    // The largest shape does not overflow.
    arena.pool(shape(u32::MAX, u32::MAX)).unwrap_err();
}

#[test]
fn strides_and_alignments() {
    let mut arena = arena(1 << 20);
    let memory = arena.memory();
    arena.pool(shape(1, 100)).unwrap();
    let mut pool = arena
        .pool(PoolShape {
            buffers: 3,
            buffer_bytes: 1024,
            stride_bytes: 1088,
            align_bytes: 65536,
        })
        .unwrap();
    let buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
    let starts: Vec<usize> = buffers
        .iter()
        .map(|b| memory.bytes(b).as_ptr().addr())
        .collect();
    assert_eq!(
        starts[0] % 65536,
        0,
        "addresses are aligned, not only offsets"
    );
    assert_eq!((starts[1] - starts[0], starts[2] - starts[1]), (1088, 1088));
    let base = memory.mapping().start().addr();
    assert_eq!(memory.offset_of(&buffers[1]), (starts[1] - base) as u64);
    assert_eq!(buffers[2].index(), 2);
    assert_eq!(buffers[2].capacity(), 1024);
    // A stride below the size would make buffers overlap.
    let mut tight = arena
        .pool(PoolShape {
            stride_bytes: 1,
            align_bytes: 0,
            ..shape(2, 128)
        })
        .unwrap();
    assert_eq!(tight.shape().stride_bytes, 128);
    let (a, b) = (tight.take().unwrap(), tight.take().unwrap());
    assert_eq!(memory.offset_of(&b) - memory.offset_of(&a), 128);
    assert!(tight.take().is_none());
}

/// After 8 GiB of other pools, the end of the largest shape is one more than 64 bits can hold.
#[test]
fn a_pool_whose_end_64_bits_do_not_hold_is_refused() {
    let memory = arena(4096).memory();
    let shape = PoolShape {
        buffers: u32::MAX,
        buffer_bytes: 64,
        stride_bytes: u32::MAX,
        align_bytes: 1,
    };
    for next in [(1 << 33) - 1, 1 << 33, u64::MAX] {
        let error = Pool::carve(memory.clone(), 0, next..4096, shape).unwrap_err();
        let SetupError::Limit { asked, limit, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((asked, limit), (u64::MAX, 4096), "{next}");
    }
}

#[test]
fn leases_of_ranges_that_do_not_fit_are_refused() {
    let mut arena = arena(4096);
    let mut pool = arena.pool(shape(1, 100)).unwrap();
    for (offset, bytes) in [(0, 101), (100, 1), (101, 0), (u32::MAX, 1), (1, u32::MAX)] {
        let buffer = pool.take().unwrap();
        assert!(pool.lease(buffer, offset, bytes).is_none());
        assert_eq!(pool.available(), 1, "the buffer came back");
    }
    let buffer = pool.take().unwrap();
    let lease = pool.lease(buffer, 100, 0).unwrap();
    assert!(lease.is_empty());
}

#[test]
#[should_panic(expected = "another pool")]
fn a_buffer_of_another_pool_is_not_taken_back() {
    let mut arena = arena(4096);
    let (mut one, mut two) = (
        arena.pool(shape(1, 8)).unwrap(),
        arena.pool(shape(1, 8)).unwrap(),
    );
    let buffer = one.take().unwrap();
    assert!(one.owns(&buffer) && !two.owns(&buffer));
    two.give(buffer);
}

#[test]
#[should_panic(expected = "another pool")]
fn a_buffer_of_another_pool_is_not_leased() {
    let mut arena = arena(4096);
    let (mut one, mut two) = (
        arena.pool(shape(1, 8)).unwrap(),
        arena.pool(shape(1, 8)).unwrap(),
    );
    let buffer = one.take().unwrap();
    let _lease = two.lease(buffer, 0, 1);
}

#[test]
#[should_panic(expected = "another arena")]
fn a_buffer_of_another_arena_is_not_read() {
    let (mut one, two) = (arena(4096), arena(4096));
    let mut pool = one.pool(shape(1, 8)).unwrap();
    let buffer = pool.take().unwrap();
    assert!(one.memory().owns(&buffer) && !two.memory().owns(&buffer));
    let _bytes = two.memory().bytes(&buffer).len();
}

#[test]
#[should_panic(expected = "another arena")]
fn a_buffer_of_another_arena_is_not_written() {
    let (mut one, two) = (arena(4096), arena(4096));
    let mut pool = one.pool(shape(1, 8)).unwrap();
    let mut buffer = pool.take().unwrap();
    two.memory().bytes_mut(&mut buffer).fill(1);
}

#[test]
fn a_lease_outlives_arena_and_pool() {
    let mut arena = arena(4096);
    let memory = arena.memory();
    let mut pool = arena.pool(shape(2, 64)).unwrap();
    let mut buffer = pool.take().unwrap();
    memory.bytes_mut(&mut buffer).fill(7);
    let lease = pool.lease(buffer, 1, 62).unwrap();
    drop((arena, memory, pool));
    let thread = std::thread::spawn(move || {
        assert_eq!(&*lease, &[7; 62]);
    });
    thread.join().unwrap();
}

/// The buffers of a pool go through other threads repeatedly, and all of them return.
#[test]
fn leases_come_back_from_other_threads() {
    const BUFFERS: u32 = 32;
    let rounds = if cfg!(miri) { 4 } else { 200 };
    let mut arena = arena(1 << 16);
    let memory = arena.memory();
    let mut pool = arena.pool(shape(BUFFERS, 64)).unwrap();
    let (send, receive) = std::sync::mpsc::channel::<Lease>();
    let receive = std::sync::Mutex::new(receive);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Ok(lease) = receive.lock().unwrap().recv() else {
                        return;
                    };
                    let first = lease[0];
                    assert!(lease.iter().all(|byte| *byte == first));
                }
            });
        }
        let mut leased = 0_u32;
        while leased < rounds * BUFFERS {
            pool.reclaim(8);
            let Some(mut buffer) = pool.take() else {
                std::thread::yield_now();
                continue;
            };
            memory
                .bytes_mut(&mut buffer)
                .fill(u8::try_from(leased % 251).unwrap());
            send.send(pool.lease(buffer, 0, 64).unwrap()).unwrap();
            leased += 1;
        }
        drop(send);
    });
    pool.reclaim(usize::MAX);
    assert_eq!(pool.available(), BUFFERS as usize);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Take,
    Give(prop::sample::Index),
    Lease(prop::sample::Index, u32, u32),
    /// Drops a lease, on another thread if the flag is set.
    Drop(prop::sample::Index, bool),
    Reclaim(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => Just(Op::Take),
        2 => index().prop_map(Op::Give),
        2 => (index(), 0_u32..80, 0_u32..80).prop_map(|(i, o, b)| Op::Lease(i, o, b)),
        2 => (index(), prop::bool::weighted(0.1)).prop_map(|(i, away)| Op::Drop(i, away)),
        1 => (0_usize..4).prop_map(Op::Reclaim),
    ]
}

const BUFFERS: u32 = 6;
const BUFFER_BYTES: u32 = 64;

/// The pool under test and its model: a stack of free indices, a queue of returned ones, and the fill byte of each live
/// token.
struct Model {
    memory: Memory,
    pool: Pool,
    held: Vec<(Buffer, u8)>,
    leases: Vec<(Lease, u32, u8)>,
    free: Vec<u32>,
    returned: VecDeque<u32>,
    stamp: u8,
}

impl Model {
    fn take(&mut self) {
        let expected = self.free.pop();
        let taken = self.pool.take();
        assert_eq!(
            taken.as_ref().map(Buffer::index),
            expected,
            "last in, first out"
        );
        if let Some(mut buffer) = taken {
            self.stamp = self.stamp.wrapping_add(1);
            self.memory.bytes_mut(&mut buffer).fill(self.stamp);
            self.held.push((buffer, self.stamp));
        }
    }

    fn lease(&mut self, at: prop::sample::Index, offset: u32, bytes: u32) {
        if self.held.is_empty() {
            return;
        }
        let (buffer, stamp) = self.held.swap_remove(at.index(self.held.len()));
        let index = buffer.index();
        let fits = offset + bytes <= BUFFER_BYTES;
        match self.pool.lease(buffer, offset, bytes) {
            Some(lease) => {
                assert!(fits);
                assert_eq!(lease.len(), bytes as usize);
                self.leases.push((lease, index, stamp));
            }
            None => {
                assert!(!fits);
                self.free.push(index);
            }
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Take => self.take(),
            Op::Give(at) if !self.held.is_empty() => {
                let (buffer, _) = self.held.swap_remove(at.index(self.held.len()));
                self.free.push(buffer.index());
                self.pool.give(buffer);
            }
            Op::Lease(at, offset, bytes) => self.lease(at, offset, bytes),
            Op::Drop(at, away) if !self.leases.is_empty() => {
                let (lease, index, _) = self.leases.swap_remove(at.index(self.leases.len()));
                self.returned.push_back(index);
                if away {
                    std::thread::spawn(move || drop(lease)).join().unwrap();
                }
            }
            Op::Reclaim(count) => {
                let expected = count.min(self.returned.len());
                assert_eq!(self.pool.reclaim(count), expected);
                self.free.extend(self.returned.drain(..expected));
            }
            Op::Give(_) | Op::Drop(..) => {}
        }
    }

    /// Checks that no two live tokens overlap: each still has its own fill byte.
    fn check(&self) {
        assert_eq!(self.pool.available(), self.free.len());
        for (buffer, stamp) in &self.held {
            assert!(self.memory.bytes(buffer).iter().all(|byte| byte == stamp));
        }
        for (lease, _, stamp) in &self.leases {
            assert!(lease.iter().all(|byte| byte == stamp));
        }
        let mut live: Vec<u32> = self.held.iter().map(|(buffer, _)| buffer.index()).collect();
        live.extend(self.leases.iter().map(|(_, index, _)| *index));
        live.extend(&self.free);
        live.extend(&self.returned);
        live.sort_unstable();
        assert_eq!(
            live,
            (0..BUFFERS).collect::<Vec<_>>(),
            "each index is in one place"
        );
    }
}

proptest! {
    #[test]
    fn tokens_are_exclusive_and_come_back(ops in prop::collection::vec(any_op(), 0..120)) {
        let mut arena = arena(4096);
        let mut model = Model {
            memory: arena.memory(),
            pool: arena.pool(shape(BUFFERS, BUFFER_BYTES)).unwrap(),
            held: Vec::new(),
            leases: Vec::new(),
            free: (0..BUFFERS).rev().collect(),
            returned: VecDeque::new(),
            stamp: 0,
        };
        for op in ops {
            model.apply(op);
            model.check();
        }
    }
}
