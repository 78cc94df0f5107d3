//! Files in leased memory against a plain model, while what was read of them is still being sent.

use proptest::prelude::*;
use proptest::sample::Index;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};

use super::super::contents::Contents;
use super::super::pages::Piece;
use super::*;

const PAGE_BYTES: usize = 64;
const BUFFER_BYTES: u32 = 512;
const SPACE_BYTES: u64 = 64 * 64;

/// Buffers that calls under way have beside those of files.
const CALL_BUFFERS: u32 = 4;

/// Room for placed data, in whole buffers.
const PLACED_MAX: u32 = 2;

fn pool(arena: &mut Arena, buffers: u32) -> Pool {
    let shape = PoolShape {
        buffers,
        buffer_bytes: BUFFER_BYTES,
        stride_bytes: BUFFER_BYTES,
        align_bytes: BUFFER_BYTES,
    };
    arena.pool(shape).unwrap()
}

fn take(pool: &mut Pool) -> Option<Lease> {
    pool.reclaim(usize::MAX);
    let buffer = pool.take()?;
    pool.lease(buffer, 0, BUFFER_BYTES)
}

/// The pools of a core, and a file.
struct Machine {
    bulk: Pool,
    placed: Pool,
    memory: LeasedPages,
    contents: Contents,
    model: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let mut arena = Arena::private(&ArenaOptions {
            bytes: 1 << 17,
            huge_pages: HugePages::Never,
        })
        .unwrap();
        let kept = LeasedPages::buffers(SPACE_BYTES, BUFFER_BYTES);
        let mut machine = Self {
            bulk: pool(&mut arena, kept + CALL_BUFFERS),
            placed: pool(&mut arena, PLACED_MAX + 1),
            memory: LeasedPages::new(SPACE_BYTES, PAGE_BYTES, BUFFER_BYTES, PLACED_MAX),
            contents: Contents::default(),
            model: Vec::new(),
        };
        machine.stock();
        machine
    }

    fn stock(&mut self) {
        let Self { bulk, memory, .. } = self;
        memory.stock(&mut || take(bulk));
    }

    /// Writes bytes as they come with a call: in buffers, from `start` on in the first of them. How
    /// many were written.
    fn write(&mut self, at: u64, bytes: &[u8], start: usize, is_placed: bool) -> u64 {
        let mut rest = bytes;
        let mut held = Vec::new();
        let mut start = start;
        while !rest.is_empty() {
            let pool = if is_placed && held.is_empty() {
                &mut self.placed
            } else {
                &mut self.bulk
            };
            let Some(mut lease) = take(pool) else {
                break;
            };
            lease.fill(0xEE);
            let count = rest.len().min(lease.len() - start);
            let (now, later) = rest.split_at(count);
            lease[start..start + count].copy_from_slice(now);
            held.push((lease.share(), start..start + count));
            (rest, start) = (later, 0);
        }
        let pieces = held.iter().map(|(lease, range)| Piece {
            bytes: &lease[range.clone()],
            lies_in: Some((lease, range.start)),
        });
        let written = self.contents.write(&mut self.memory, at, pieces);
        let count = usize::try_from(written).unwrap();
        let at = usize::try_from(at).unwrap();
        if count > 0 {
            self.model.resize(self.model.len().max(at + count), 0);
            self.model[at..at + count].copy_from_slice(&bytes[..count]);
        }
        written
    }

    fn read(&self, at: u64, count: u32) -> Vec<u8> {
        let pieces = self.contents.pieces(&self.memory, at, count);
        pieces.flatten().copied().collect()
    }

    /// Bytes of the file as they are sent, if they are in few enough pieces.
    fn send(&self, at: u64, count: u32) -> Option<BulkItem<SharedLease>> {
        self.contents.shared(&self.memory, at, count)
    }

    fn part(&self, at: u64, count: u32) -> &[u8] {
        let len = self.model.len();
        let start = usize::try_from(at).unwrap().min(len);
        &self.model[start..(start + count as usize).min(len)]
    }

    /// What must always hold: pages are in the file or free, and every buffer is held or in its pool,
    /// apart from those that `sent` alone has.
    fn check(&mut self, sent: usize) {
        let pages = u64::try_from(self.contents.page_count()).unwrap();
        assert_eq!(self.memory.free() + pages, self.memory.total());
        let held = self.memory.own.now;
        let runs = self.memory.runs.iter().flatten().count();
        let stock = self.memory.stock.len();
        let own = runs + stock + usize::from(self.memory.zeroes.is_some());
        assert_eq!(own, (held + self.memory.placed.now) as usize);
        assert!(held <= self.memory.own.max && self.memory.placed.now <= PLACED_MAX);
        let listed = self.memory.is_open.iter().filter(|it| **it).count();
        assert_eq!(listed, self.memory.open.len());
        if sent == 0 {
            self.bulk.reclaim(usize::MAX);
            self.placed.reclaim(usize::MAX);
            let free = u32::try_from(self.bulk.available()).unwrap();
            assert_eq!(free + held, self.bulk.shape().buffers);
            let free = u32::try_from(self.placed.available()).unwrap();
            assert_eq!(free + self.memory.placed.now, PLACED_MAX + 1);
        }
    }
}

fn bytes_of(item: &BulkItem<SharedLease>) -> Vec<u8> {
    item.parts().flat_map(|part| part.iter().copied()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u64,
        bytes: Vec<u8>,
        start: usize,
        is_placed: bool,
    },
    SetSize(u64),
    Send(u64, u32),
    Sent(Index),
}

fn step() -> impl Strategy<Value = Step> {
    // Often at the start of a page, and of whole pages.
    let at = || prop_oneof![0_u64..4000, (0_u64..60).prop_map(|page| page * 64)];
    let count = prop_oneof![0_usize..1500, (0_usize..24).prop_map(|pages| pages * 64)];
    let bytes = (any::<u8>(), count)
        .prop_map(|(seed, count)| (0..count).map(|at| seed ^ at.to_le_bytes()[0]).collect());
    let start = prop_oneof![3 => Just(0_usize), 1 => 0_usize..500];
    prop_oneof![
        6 => (at(), bytes, start, any::<bool>()).prop_map(|(at, bytes, start, is_placed)| {
            Step::Write { at, bytes, start, is_placed }
        }),
        2 => at().prop_map(Step::SetSize),
        3 => (at(), 0_u32..2000).prop_map(|(at, count)| Step::Send(at, count)),
        3 => any::<Index>().prop_map(Step::Sent),
    ]
}

proptest! {
    #[test]
    fn data_being_sent_stays_unchanged_and_writes_take_effect(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut machine = Machine::new();
        let mut sent: Vec<(BulkItem<SharedLease>, Vec<u8>)> = Vec::new();
        for step in steps {
            machine.stock();
            match step {
                Step::Write { at, bytes, start, is_placed } => {
                    let written = machine.write(at, &bytes, start, is_placed);
                    let is_whole = written == u64::try_from(bytes.len()).unwrap();
                    let is_full = machine.memory.free() == 0;
                    prop_assert!(is_whole || is_full || !sent.is_empty());
                }
                Step::SetSize(size) => {
                    let is_done = machine.contents.set_size(&mut machine.memory, size);
                    prop_assert!(is_done || !sent.is_empty());
                    if is_done {
                        machine.model.resize(usize::try_from(size).unwrap(), 0);
                    }
                }
                Step::Send(at, count) => {
                    if let Some(item) = machine.send(at, count) {
                        let bytes = bytes_of(&item);
                        prop_assert_eq!(&bytes[..], machine.part(at, count));
                        if !bytes.is_empty() {
                            sent.push((item, bytes));
                        }
                    }
                }
                Step::Sent(which) if !sent.is_empty() => {
                    let (item, bytes) = sent.swap_remove(which.index(sent.len()));
                    prop_assert_eq!(bytes_of(&item), bytes);
                }
                Step::Sent(_) => {}
            }
            prop_assert_eq!(machine.read(0, 8000), &machine.model[..]);
            prop_assert_eq!(machine.contents.size_bytes(), u64::try_from(machine.model.len()).unwrap());
            machine.check(sent.len());
        }
        for (item, bytes) in sent.drain(..) {
            prop_assert_eq!(bytes_of(&item), bytes);
        }
        prop_assert!(machine.contents.set_size(&mut machine.memory, 0));
        machine.check(0);
        prop_assert_eq!(machine.memory.free(), machine.memory.total());
    }
}

#[test]
fn whole_buffers_are_kept_where_they_are_and_shared_from_there() {
    let mut machine = Machine::new();
    let bytes: Vec<u8> = (0..2 * BUFFER_BYTES)
        .map(|at| at.to_le_bytes()[0])
        .collect();
    let taken = machine.memory.stock.len();
    assert_eq!(
        machine.write(0, &bytes, 0, false),
        u64::from(2 * BUFFER_BYTES)
    );
    assert_eq!(machine.memory.stock.len(), taken, "nothing was copied");
    let item = machine.send(0, 2 * BUFFER_BYTES).unwrap();
    assert_eq!(item.part_count(), 2, "pages of one buffer are one piece");
    assert_eq!(bytes_of(&item), bytes);
    // What is written now goes elsewhere.
    assert_eq!(machine.write(0, &[7; 10], 0, false), 10);
    assert_eq!(bytes_of(&item), bytes);
    assert_eq!(machine.read(0, 12), [&[7; 10][..], &bytes[10..12]].concat());
    machine.check(1);
    drop(item);
    machine.check(0);
}

#[test]
fn a_full_memory_takes_all_that_it_has_room_for_by_copying() {
    let mut machine = Machine::new();
    // Each WRITE fills half a buffer: kept as they are they would take twice the space.
    let half = [7; 256];
    let mut at = 0;
    loop {
        machine.stock();
        let written = machine.write(at, &half, 0, false);
        at += written;
        if written < 256 {
            break;
        }
    }
    assert_eq!((at, machine.memory.free()), (SPACE_BYTES, 0));
    assert_eq!(machine.read(0, 8000), vec![7; 4096]);
    // It can be written over all the same.
    assert_eq!(machine.write(256, &[8; 512], 0, false), 512);
    machine.check(0);
}

#[test]
fn pages_that_are_sent_are_missed_until_they_were() {
    let mut machine = Machine::new();
    let bytes = vec![7; 4096];
    let mut at = 0;
    for part in bytes.chunks(1024) {
        machine.stock();
        at += machine.write(at, part, 0, false);
    }
    // There is room to write elsewhere what is there already, however full it is.
    let former = machine.send(0, 512).unwrap();
    assert_eq!(machine.write(10, &[8; 10], 0, false), 10);
    assert_eq!(
        (bytes_of(&former), machine.memory.free()),
        (vec![7; 512], 0)
    );
    machine.check(1);
    // There is until that is being sent as well.
    let item = machine.send(0, 4096).unwrap();
    let stock = std::mem::take(&mut machine.memory.stock);
    assert_eq!(machine.write(10, &[9; 10], 0, false), 0, "others read it");
    assert!(!machine.contents.set_size(&mut machine.memory, 100));
    assert!(
        machine.contents.set_size(&mut machine.memory, 512),
        "it takes none"
    );
    machine.model.truncate(512);
    drop((item, former));
    machine.memory.stock.extend(stock);
    assert_eq!(machine.write(10, &[9; 10], 0, false), 10);
    assert!(machine.contents.set_size(&mut machine.memory, 100));
    machine.model.truncate(100);
    assert_eq!(machine.read(0, 8000), machine.model);
    machine.check(0);
}

#[test]
fn holes_are_sent_from_one_buffer_of_zeroes() {
    let mut machine = Machine::new();
    assert_eq!(machine.write(2050, &[7; 10], 0, false), 10);
    let item = machine.send(0, 4096).unwrap();
    assert_eq!(bytes_of(&item), machine.model);
    // Four buffers of zeroes, and the page.
    assert_eq!(item.part_count(), 5);
    let item = machine.send(100, 1600).unwrap();
    assert_eq!((bytes_of(&item), item.part_count()), (vec![0; 1600], 4));
}
