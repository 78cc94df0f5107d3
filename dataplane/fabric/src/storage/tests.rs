use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rpcrdma_testkit::{PATIENCE, Wait};

use super::*;
use crate::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};

const BUFFERS: u32 = 40;
const BUFFER_BYTES: u32 = 4096;

/// A file that is removed in the end, and memory.
struct Bench {
    path: PathBuf,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpcrdma-storage-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, []).expect("a file");
        let options = ArenaOptions {
            bytes: 1 << 20,
            huge_pages: HugePages::Never,
        };
        let mut arena = Arena::private(&options).expect("memory for a test");
        let shape = PoolShape {
            buffers: BUFFERS,
            buffer_bytes: BUFFER_BYTES,
            stride_bytes: BUFFER_BYTES,
            align_bytes: BUFFER_BYTES,
        };
        let pool = arena.pool(shape).expect("a pool");
        Self { path, pool }
    }

    /// A ring for `orders` orders on the file, which can be written or not.
    fn ring(&self, orders: u32, is_writable: bool) -> StorageRing {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(is_writable).open(&self.path);
        StorageRing::new(file.ok(), orders)
            .expect("io_uring, which kernel.io_uring_disabled and filters of containers can deny")
    }

    /// A ring on the end of a pipe, which is done when the other end says so.
    fn ring_on(end: impl Into<OwnedFd>) -> StorageRing {
        StorageRing::new([File::from(end.into())], 4).expect("a ring, as above")
    }

    /// A lease whose bytes are all `byte`.
    fn lease(&mut self, byte: u8, bytes: u32) -> Lease {
        let buffer = self.pool.take().expect("a buffer");
        let mut lease = self.pool.lease(buffer, 0, bytes).expect("it fits");
        lease.fill(byte);
        lease
    }

    /// Whether all memory is back.
    fn has_all(&mut self) -> bool {
        self.pool.reclaim(BUFFERS as usize);
        self.pool.available() == BUFFERS as usize
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn order(operation: Operation, offset_bytes: u64, tag: u64) -> Order {
    Order {
        operation,
        file: 0,
        offset_bytes,
        tag,
    }
}

const WRITE: Operation = Operation::Write { is_durable: false };

/// The result of the only order under way, its tag, and what its leases hold.
fn outcome(ring: &mut StorageRing) -> (u64, io::Result<usize>, Vec<u8>) {
    let wait = Wait::begin("the end of the order");
    let mut outcome = None;
    while ring.under_way() != 0 {
        wait.look(|| format!("{} under way", ring.under_way()));
        ring.submit(Duration::from_millis(10)).expect("a kernel");
        ring.reap(|done| {
            let bytes = done.parts.flat_map(|part| part.to_vec()).collect();
            outcome = Some((done.order.tag, done.result, bytes));
        });
    }
    outcome.expect("an order was under way")
}

#[test]
fn leases_are_written_in_order_and_read_back() {
    let mut bench = Bench::new();
    let mut ring = bench.ring(4, true);
    let parts = [bench.lease(1, 4096), bench.lease(2, 100)];
    let durable = Operation::Write { is_durable: true };
    ring.push(order(durable, 10, 7), parts).expect("room");
    let (tag, written, _) = outcome(&mut ring);
    assert_eq!((tag, written.expect("it is written")), (7, 4196));
    ring.push(order(Operation::Sync, 0, 8), []).expect("room");
    let (tag, synced, _) = outcome(&mut ring);
    assert_eq!((tag, synced.expect("it is synced")), (8, 0));
    let stored = std::fs::read(&bench.path).expect("the file");
    assert!(stored[..10].iter().all(|&byte| byte == 0));
    assert!(stored[10..4106].iter().all(|&byte| byte == 1));
    assert!(stored[4106..].iter().all(|&byte| byte == 2));
    assert_eq!(stored.len(), 4206);
    // The file ends before the leases do.
    let parts = [bench.lease(9, 96), bench.lease(9, 4096)];
    ring.push(order(Operation::Read, 4010, 9), parts)
        .expect("room");
    let (tag, read, bytes) = outcome(&mut ring);
    assert_eq!((tag, read.expect("it is read")), (9, 196));
    assert_eq!(bytes[..196], stored[4010..]);
    assert!(bytes[196..].iter().all(|&byte| byte == 9));
    assert!(bench.has_all());
}

#[test]
fn an_error_of_the_kernel_comes_with_the_leases() {
    let mut bench = Bench::new();
    let mut ring = bench.ring(1, false);
    let lease = bench.lease(1, 8);
    ring.push(order(WRITE, 0, 1), [lease]).expect("room");
    let (_, result, bytes) = outcome(&mut ring);
    let error = result.expect_err("the file is open for reading alone");
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    assert_eq!(bytes, [1; 8]);
    assert!(bench.has_all());
}

#[test]
fn order_refused_by_a_ring_returns_its_leases() {
    let mut bench = Bench::new();
    let mut ring = bench.ring(1, true);
    let parts: Vec<Lease> = (0..=STORAGE_PARTS_MAX).map(|_| bench.lease(1, 1)).collect();
    let refused = ring.push(order(WRITE, 0, 1), parts);
    assert_eq!(refused, Err(OrderRefused::TooManyParts));
    let elsewhere = Order {
        file: 1,
        ..order(WRITE, 0, 1)
    };
    let refused = ring.push(elsewhere, [bench.lease(1, 1)]);
    assert_eq!(refused, Err(OrderRefused::UnknownFile));
    let refused = ring.push(order(WRITE, u64::MAX, 1), [bench.lease(1, 1)]);
    assert_eq!(refused, Err(OrderRefused::BeyondFiles));
    assert!(bench.has_all());
    let lease = bench.lease(1, 1);
    ring.push(order(WRITE, 0, 1), [lease]).expect("room");
    assert!(!ring.has_room());
    let refused = ring.push(order(WRITE, 0, 2), [bench.lease(2, 1)]);
    assert_eq!(refused, Err(OrderRefused::Full));
    assert_eq!(outcome(&mut ring).0, 1);
    assert_eq!(std::fs::read(&bench.path).expect("the file"), [1]);
}

#[test]
fn a_ring_that_ends_waits_for_what_is_under_way() {
    let mut bench = Bench::new();
    let mut ring = bench.ring(8, true);
    for tag in 0..8 {
        let lease = bench.lease(3, 4096);
        ring.push(order(WRITE, tag * 4096, tag), [lease])
            .expect("room");
    }
    assert!(!bench.has_all());
    drop(ring);
    assert!(bench.has_all());
    assert_eq!(
        std::fs::read(&bench.path).expect("the file"),
        [3; 8 * 4096],
        "what was ordered is done"
    );
}

/// Leases of whole buffers that add up to more than a pipe holds (64 KiB), each with its number as its bytes.
fn more_than_a_pipe_holds(bench: &mut Bench) -> Vec<Lease> {
    (0..20)
        .map(|number| bench.lease(number, BUFFER_BYTES))
        .collect()
}

/// Begins to write more than the pipe holds: a part of it is written, and the order goes on.
fn write_in_part(bench: &mut Bench, ring: &mut StorageRing) {
    let parts = more_than_a_pipe_holds(bench);
    ring.push(order(WRITE, 0, 5), parts).expect("room");
    ring.submit(Duration::ZERO).expect("a kernel");
    assert_eq!(ring.reap(|_| ()), 0, "it is not done with a part of it");
    assert_eq!(ring.under_way(), 1);
}

#[test]
fn partial_write_is_continued_to_its_end() {
    let mut bench = Bench::new();
    let (mut reader, writer) = io::pipe().expect("a pipe");
    let mut ring = Bench::ring_on(writer);
    write_in_part(&mut bench, &mut ring);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 20 * BUFFER_BYTES as usize];
        reader.read_exact(&mut bytes).expect("all of it comes");
        bytes
    });
    let (tag, written, held) = outcome(&mut ring);
    assert_eq!((tag, written.expect("it is written")), (5, 20 * 4096));
    assert_eq!(reader.join().expect("no panic"), held);
    assert!(bench.has_all());
    // The next order in the same place begins at its own beginning.
    let (mut reader, writer) = io::pipe().expect("a pipe");
    ring.files = Box::new([File::from(OwnedFd::from(writer))]);
    let lease = bench.lease(77, 3);
    ring.push(order(WRITE, 0, 6), [lease]).expect("room");
    assert_eq!(outcome(&mut ring).1.expect("it is written"), 3);
    let mut bytes = [0; 3];
    reader.read_exact(&mut bytes).expect("all of it comes");
    assert_eq!(bytes, [77; 3]);
}

#[test]
fn error_after_a_partial_write_is_the_result() {
    let mut bench = Bench::new();
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut ring = Bench::ring_on(writer);
    write_in_part(&mut bench, &mut ring);
    drop(reader);
    let (_, result, held) = outcome(&mut ring);
    let error = result.expect_err("nobody reads the rest");
    assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    assert_eq!(held.len(), 20 * 4096, "the leases are whole");
    assert!(bench.has_all());
}

/// A ring with one order under way: a read of 4096 bytes, which come when they are written to the other end.
fn read_of_nothing_yet(bench: &mut Bench) -> (StorageRing, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut ring = Bench::ring_on(reader);
    let lease = bench.lease(1, 4096);
    ring.push(order(Operation::Read, 0, 1), [lease])
        .expect("room");
    ring.submit(Duration::ZERO).expect("a kernel");
    assert!(!bench.has_all());
    (ring, writer)
}

#[test]
fn memory_stays_until_the_kernel_is_done_with_it() {
    let mut bench = Bench::new();
    let (mut ring, mut writer) = read_of_nothing_yet(&mut bench);
    // The pool and its arena are gone before the bytes come.
    drop(bench);
    writer.write_all(&[9; 4096]).expect("a pipe");
    let (_, read, bytes) = outcome(&mut ring);
    assert_eq!(read.expect("it is read"), 4096);
    assert_eq!(bytes, [9; 4096]);
}

#[test]
fn a_panic_of_its_thread_waits_for_what_is_under_way() {
    let mut bench = Bench::new();
    let (ring, mut writer) = read_of_nothing_yet(&mut bench);
    let thread = std::thread::spawn(move || {
        let _ring = ring;
        resume_unwind(Box::new("a panic"));
    });
    assert!(!bench.has_all(), "the kernel may still write to it");
    writer.write_all(&[9; 4096]).expect("a pipe");
    thread.join().expect_err("it panicked");
    assert!(bench.has_all());
}

#[test]
fn a_panic_of_an_owner_leaves_the_ring_whole() {
    let mut bench = Bench::new();
    let mut ring = bench.ring(1, true);
    let mut parts = vec![bench.lease(1, 8)];
    let parts =
        std::iter::from_fn(|| Some(parts.pop().unwrap_or_else(|| resume_unwind(Box::new(())))));
    let push = || ring.push(order(WRITE, 0, 1), parts.take(2));
    catch_unwind(AssertUnwindSafe(push)).expect_err("the iterator panics");
    let lease = bench.lease(2, 4);
    ring.push(order(WRITE, 0, 2), [lease]).expect("room");
    let mut panics = 0;
    while ring.under_way() != 0 {
        ring.submit(PATIENCE).expect("a kernel");
        let reap = || ring.reap(|_| resume_unwind(Box::new(())));
        panics += u32::from(catch_unwind(AssertUnwindSafe(reap)).is_err());
    }
    assert_eq!(panics, 1, "one for each order that is done");
    let stored = std::fs::read(&bench.path).expect("the file");
    assert_eq!(stored, [2; 4], "what was given whole is what is written");
    assert!(ring.has_room());
    assert!(bench.has_all());
}

#[test]
fn direct_io_takes_whole_blocks_alone() {
    let mut bench = Bench::new();
    let whole = bench.lease(0, 4096);
    assert!(fits_direct(8192, [&*whole, &*whole]));
    assert!(!fits_direct(512, [&*whole]), "offset");
    assert!(!fits_direct(0, [&whole[..512]]), "length");
    assert!(!fits_direct(0, [&*whole, &whole[1..]]), "address");
}
