use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_get_seals, ftruncate, memfd_create};

use super::super::*;
use crate::interface::SetupError;

const BLOCK: u32 = 4096;

fn file(bytes: u64, flags: MemfdFlags) -> std::os::fd::OwnedFd {
    let file = memfd_create("external", MemfdFlags::CLOEXEC | flags).expect("a memfd");
    ftruncate(&file, bytes).expect("room");
    file
}

fn memory(blocks: u64) -> ExternalMemory {
    let file = file(blocks * u64::from(BLOCK), MemfdFlags::ALLOW_SEALING);
    ExternalMemory::of_file(file, BLOCK).expect("a good file")
}

/// Memory that the "application" of a test mapped, and how often it was given back.
fn mapped(bytes: usize) -> (Mapping, Arc<AtomicU32>) {
    let mapping = Mapping::anonymous(bytes, 4096).expect("memory");
    (mapping, Arc::default())
}

fn at_address(
    mapping: &Mapping,
    from: usize,
    bytes: usize,
    released: &Arc<AtomicU32>,
) -> Result<ExternalMemory, SetupError> {
    let start = NonNull::new(mapping.start().wrapping_add(from)).expect("not null");
    let released = Arc::clone(released);
    let give_back = move || {
        released.fetch_add(1, Ordering::Relaxed);
    };
    // SAFETY: the tests drop the mapping last, and use it only by leases.
    unsafe { ExternalMemory::at_address(start, bytes, BLOCK, give_back) }
}

fn text(result: Result<ExternalMemory, SetupError>) -> String {
    result.expect_err("it is refused").to_string()
}

#[test]
fn memory_at_an_address_is_given_back_when_its_last_lease_ends() {
    let (mapping, released) = mapped(4 * 4096);
    let memory = at_address(&mapping, 0, 4 * 4096, &released).expect("good memory");
    let mut lease = memory.lease(4096 + 100, 200).expect("free");
    let start = lease.as_ptr().addr();
    assert_eq!(start, mapping.start().addr() + 4096 + 100);
    assert_eq!(memory.offset_of(&lease), Some(4096 + 100));
    lease.fill(7);
    // The order of drops does not matter.
    drop(memory);
    assert_eq!(released.load(Ordering::Relaxed), 0, "a lease is out");
    let shared = lease.share();
    let slice = shared.slice(1, 3).expect("within");
    drop(shared);
    assert_eq!(
        (released.load(Ordering::Relaxed), &*slice),
        (0, &[7; 3][..])
    );
    drop(slice);
    assert_eq!(released.load(Ordering::Relaxed), 1);
}

/// A port's memory keeps it as well: a device may still transfer.
#[test]
fn an_arena_that_it_is_attached_to_keeps_it() {
    let (mapping, released) = mapped(4096);
    let memory = at_address(&mapping, 0, 4096, &released).expect("good memory");
    let options = ArenaOptions {
        bytes: 4096,
        huge_pages: HugePages::Never,
    };
    let mut arena = Arena::private(&options).expect("memory");
    arena.attach(&memory).expect("room");
    let of_port = arena.memory();
    let lease = memory.lease(0, 4096).expect("free");
    assert!(lease.is_of(&of_port) && lease.is_external());
    let (lonely, _) = mapped(4096);
    let other = at_address(&lonely, 0, 4096, &Arc::default()).expect("good memory");
    assert!(!other.lease(0, 1).expect("free").is_of(&of_port));
    drop((lease, memory, arena));
    assert_eq!(released.load(Ordering::Relaxed), 0);
    drop(of_port);
    assert_eq!(released.load(Ordering::Relaxed), 1);
    drop((other, lonely));
}

/// A core uses a lease by a token. The lease ends with the token, or is brought back by it.
#[test]
fn a_lease_is_lent_as_a_token_and_comes_back() {
    let memory = memory(2);
    let options = ArenaOptions {
        bytes: 8192,
        huge_pages: HugePages::Never,
    };
    let mut arena = Arena::private(&options).expect("memory");
    arena.attach(&memory).expect("room");
    let of_port = arena.memory();
    let mut views = Views::new(2, 10);
    let mut lease = memory.lease(4096 + 8, 16).expect("free");
    lease.fill(9);
    let mut token = views.lend(lease).expect("a place");
    assert!(views.owns(&token) && of_port.owns(&token) && !token.is_view());
    assert_eq!((token.index() >= 10, token.capacity()), (true, 16));
    assert_eq!(of_port.bytes(&token), [9; 16]);
    of_port.bytes_mut(&mut token)[0] = 1;
    // Behind the arena, as peers see it.
    assert_eq!(of_port.offset_of(&token), (1 << 30) + 4096 + 8);
    let place = of_port.place((1 << 30) + 4096 + 8).expect("within");
    assert_eq!(place.as_ptr(), token.start());
    assert_eq!(of_port.place((1 << 30) + 8193), None, "behind its end");
    assert_eq!(memory.lease(4096, 1).unwrap_err(), NotLeased::InUse);
    let lease = views.end(token).expect("it was lent");
    assert_eq!((lease.len(), lease[0], lease[1]), (16, 1, 9));
    let token = views.lend(lease).expect("a place");
    views.give(token);
    assert_eq!((memory.leased(), views.available()), (0, 2));
    // A token that is out when the core ends may still be used: its block stays taken.
    let _token = views.lend(memory.lease(0, 1).expect("free"));
    drop(views);
    assert_eq!(memory.leased(), 1);
}

#[test]
fn what_cannot_be_registered_says_what_to_do() {
    let (mapping, released) = mapped(8 * 4096);
    let at = |from, bytes| at_address(&mapping, from, bytes, &released);
    assert!(text(at(8, 4096)).contains("posix_memalign"));
    assert!(text(at(0, 0)).contains("length is zero"));
    assert!(text(at(0, 4097)).contains("no multiple of the size of a block"));
    let start = NonNull::new(mapping.start()).expect("not null");
    for block in [0, 512, 5000] {
        // SAFETY: nothing is registered with such blocks.
        let refused = unsafe { ExternalMemory::at_address(start, 4096, block, || {}) };
        assert!(text(refused).contains("no multiple of 4096"));
    }
    let whole = at(4096, 2 * 4096).expect("good memory");
    for (from, bytes) in [(0, 2 * 4096), (4096, 4096), (8192, 2 * 4096), (0, 8 * 4096)] {
        assert!(
            text(at(from, bytes)).contains("registered already"),
            "{from}"
        );
    }
    // Beside it there is room, and after it as well.
    let beside = (at(0, 4096), at(3 * 4096, 4096));
    assert!(beside.0.is_ok() && beside.1.is_ok());
    drop((whole, beside));
    assert!(at(0, 8 * 4096).is_ok());
    // SAFETY: our own mapping, which nothing reads or writes.
    unsafe {
        let page = mapping.start().add(4096).cast();
        rustix::mm::mprotect(page, 4096, rustix::mm::MprotectFlags::READ).expect("our own");
    }
    assert!(text(at(0, 8 * 4096)).contains("PROT_WRITE"));
    let gone = mapping.start().addr();
    drop(mapping);
    let start = NonNull::new(std::ptr::without_provenance_mut(gone)).expect("not null");
    // SAFETY: it is refused, because nothing is mapped there, or what is there now is not used.
    let refused = unsafe { ExternalMemory::at_address(start, 1 << 30, BLOCK, || {}) };
    assert!(refused.is_err());
}

#[test]
fn a_file_has_to_be_writable_and_of_whole_blocks() {
    let none = MemfdFlags::ALLOW_SEALING;
    let of = |file, block| ExternalMemory::of_file(file, block);
    assert!(text(of(file(0, none), BLOCK)).contains("length is zero"));
    assert!(text(of(file(6000, none), BLOCK)).contains("no multiple of the size of a block"));
    let good = file(8192, none);
    let read_only = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good)),
        OFlags::RDONLY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    assert!(text(of(read_only.expect("a file"), BLOCK)).contains("O_RDWR"));
    let again = good.try_clone().expect("a descriptor");
    let memory = of(good, BLOCK).expect("a good file");
    assert!(text(of(again, 8192)).contains("registered already"));
    assert_eq!(memory.bytes(), 8192);
}

/// shm needs the seals of a memfd. They are set when it is used there, and not before.
#[test]
fn only_a_file_that_can_be_sealed_goes_to_peers() {
    let good = memory(1);
    let before = match good.origin() {
        Origin::File(file) => fcntl_get_seals(file).expect("a memfd"),
        other => panic!("{other:?} is no file"),
    };
    assert_eq!(before, SealFlags::empty());
    let sealed = good.sealed_file().expect("it can be sealed");
    let seals = fcntl_get_seals(sealed).expect("a memfd");
    assert!(seals.contains(SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::SEAL));
    assert!(good.sealed_file().is_ok(), "again, for another core");
    let sealed = good.sealed_file().expect("it is sealed");
    let copied = sealed.try_clone_to_owned().expect("a descriptor");
    drop(good);
    let again = ExternalMemory::of_file(copied, BLOCK);
    assert!(text(again).contains("keep a handle"));
    let plain = ExternalMemory::of_file(file(4096, MemfdFlags::empty()), BLOCK).expect("a file");
    let error = plain
        .sealed_file()
        .expect_err("it has no seals")
        .to_string();
    assert!(error.contains("MFD_ALLOW_SEALING"), "{error}");
    let (mapping, released) = mapped(4096);
    let raw = at_address(&mapping, 0, 4096, &released).expect("good memory");
    let error = raw.sealed_file().expect_err("it has no file").to_string();
    assert!(error.contains("descriptor of a memfd"), "{error}");
    drop(raw);
}

#[test]
fn a_length_beyond_all_numbers_is_no_range() {
    let memory = memory(4);
    for offset in [0, 1, 4095, 4096] {
        for bytes in [usize::MAX, usize::MAX - 4095, 1 << 32] {
            let refused = memory.lease(offset, bytes).map(drop);
            assert_eq!(
                refused,
                Err(NotLeased::NoSuchRange),
                "{bytes} from {offset}"
            );
        }
    }
}

proptest! {
    /// Any sequence of leases and drops: a lease is given exactly if its range lies within one block and no other lease
    /// has it, and nobody else writes its bytes.
    #[test]
    fn a_block_has_one_holder(steps in prop::collection::vec((0..5_u64, 0..4200_u64, 0..4200_usize, 0..9_usize), 1..200)) {
        let memory = memory(4);
        let mut held: Vec<(u64, u8, Lease)> = Vec::new();
        for ((block, within, bytes, drops), mark) in steps.into_iter().zip(0_u8..) {
            if drops < held.len() {
                let (_, mark, lease) = held.swap_remove(drops);
                prop_assert!(lease.iter().all(|byte| *byte == mark));
            }
            let offset = block * 4096 + within;
            let (first, last) = (offset / 4096, (offset + (bytes as u64).max(1) - 1) / 4096);
            let expected = if bytes == 0 || first != last || last >= 4 {
                Err(NotLeased::NoSuchRange)
            } else if held.iter().any(|(other, ..)| *other == first) {
                Err(NotLeased::InUse)
            } else {
                Ok(())
            };
            match memory.lease(offset, bytes) {
                Ok(mut lease) => {
                    prop_assert_eq!(expected, Ok(()));
                    prop_assert_eq!((lease.len(), memory.offset_of(&lease)), (bytes, Some(offset)));
                    lease.fill(mark);
                    held.push((first, mark, lease));
                }
                Err(error) => prop_assert_eq!(expected, Err(error)),
            }
            prop_assert_eq!(memory.leased(), held.len());
        }
    }
}
