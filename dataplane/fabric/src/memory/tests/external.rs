use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use proptest::prelude::*;
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals,
    fcntl_get_seals, ftruncate, memfd_create, seek,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::super::mapping::external_range;
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
fn unregistrable_memory_is_refused_with_advice() {
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
    let seals = MemfdFlags::ALLOW_SEALING;
    let of = |file, block| ExternalMemory::of_file(file, block);
    assert!(text(of(file(0, seals), BLOCK)).contains("length is zero"));
    let odd = file(6000, seals);
    let refused = of(odd.try_clone().expect("a descriptor"), BLOCK);
    assert!(text(refused).contains("no multiple of the size of a block"));
    // A file of a wrong size is refused before it is sealed, so its owner can still resize it.
    ftruncate(&odd, 8192).expect("no seals");
    assert!(of(odd, BLOCK).is_ok());
    let good = file(8192, seals);
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

/// The pages of a file are registered by its descriptor or by a mapping, not by both.
#[test]
fn a_file_and_its_mapping_are_not_registered_both() {
    let kept = file(8192, MemfdFlags::ALLOW_SEALING);
    let of_kept = || ExternalMemory::of_file(kept.try_clone().expect("a descriptor"), BLOCK);
    let own = Mapping::shared(&kept, 8192).expect("room");
    let at = |mapping: &Mapping, from, bytes| at_address(mapping, from, bytes, &Arc::default());
    let parts = (at(&own, 0, 4096), at(&own, 4096, 4096));
    assert!(parts.0.is_ok() && parts.1.is_ok(), "different parts of it");
    drop(parts.0);
    assert!(text(of_kept()).contains("registered already"));
    drop(parts.1);
    let memory = of_kept().expect("no part of it is registered");
    for mapping in [&own, &**memory.mapping()] {
        assert!(text(at(mapping, 4096, 4096)).contains("registered already"));
    }
    // A private mapping is other memory.
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address.
    let copy = unsafe {
        mmap(
            std::ptr::null_mut(),
            4096,
            access,
            MapFlags::PRIVATE,
            &kept,
            0,
        )
    };
    let start = NonNull::new(copy.expect("room").cast()).expect("not null");
    // SAFETY: the mapping stays, and only leases use it.
    let private = unsafe { ExternalMemory::at_address(start, 4096, BLOCK, || {}) };
    assert!(private.is_ok());
}

/// The position of a file belongs to all its descriptors.
#[test]
fn the_position_of_a_file_stays_where_it_was() {
    let kept = file(8192, MemfdFlags::ALLOW_SEALING);
    assert_eq!(seek(&kept, SeekFrom::Start(100)), Ok(100));
    let memory = ExternalMemory::of_file(kept.try_clone().expect("a descriptor"), BLOCK);
    assert_eq!(memory.expect("a good file").bytes(), 8192);
    assert_eq!(seek(&kept, SeekFrom::Current(0)), Ok(100));
}

/// Whoever keeps a descriptor can neither take pages away, which would end in a signal, nor write what a lease holds.
#[test]
fn a_registered_file_can_be_changed_by_nobody_else() {
    let kept = file(8192, MemfdFlags::ALLOW_SEALING);
    let of_kept = || ExternalMemory::of_file(kept.try_clone().expect("a descriptor"), BLOCK);
    assert!(ExternalMemory::can_seal(&kept));
    assert_eq!(pwrite(&kept, &[1; 8192], 0), Ok(8192));
    let memory = of_kept().expect("a good file");
    assert_eq!(pwrite(&kept, &[2], 0), Err(Errno::PERM));
    for bytes in [0, 4096, 1 << 20] {
        assert_eq!(ftruncate(&kept, bytes), Err(Errno::PERM), "{bytes}");
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&kept, hole, 0, 4096), Err(Errno::PERM));
    let mapped = Mapping::shared(&kept, 8192);
    assert_eq!(
        mapped.expect_err("it would write").kind(),
        std::io::ErrorKind::PermissionDenied
    );
    let unsealing = fcntl_add_seals(&kept, SealFlags::WRITE);
    assert_eq!(unsealing, Err(Errno::PERM), "nor can its owner be shut out");
    // The registration itself writes, and who has the descriptor sees it.
    let mut lease = memory.lease(4096, 4096).expect("free");
    assert_eq!(*lease, [1; 4096]);
    lease.fill(3);
    let mut seen = [0];
    assert_eq!((pread(&kept, &mut seen, 4096), seen), (Ok(1), [3]));
    drop((memory, lease));
    assert!(text(of_kept()).contains("keep a handle"));
    // SAFETY: it is refused.
    let unsealed = unsafe { ExternalMemory::of_unsealed_file(kept, BLOCK) };
    assert!(text(unsealed).contains("keep a handle"));
}

/// A file that another thread shortens and lengthens while it is registered: an access behind its end would raise a signal.
#[test]
fn a_file_that_is_resized_meanwhile_is_whole_or_refused() {
    for attempt in 0..100 {
        // Every other file is resized until the seals refuse it. The rest have their whole length back after some rounds,
        // because a scheduler that takes turns can show the registration a length of zero each time that it looks.
        let is_endless = attempt % 2 == 1;
        let rounds_max = if is_endless { u32::MAX } else { attempt % 16 };
        let file = file(4 * u64::from(BLOCK), MemfdFlags::ALLOW_SEALING);
        let copied = file.try_clone().expect("a descriptor");
        let is_over = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU32::new(0));
        let (stop, counted) = (Arc::clone(&is_over), Arc::clone(&rounds));
        let resizing = std::thread::spawn(move || {
            for bytes in (0..rounds_max).map(|round| if round % 2 == 0 { 0 } else { 16_384 }) {
                counted.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) || ftruncate(&copied, bytes).is_err() {
                    break;
                }
                // So that the registration gets the lock of the file.
                std::thread::yield_now();
            }
        });
        while rounds.load(Ordering::Relaxed) < rounds_max.min(1 + attempt % 5) {
            std::hint::spin_loop();
        }
        match ExternalMemory::of_file(file, BLOCK) {
            Ok(memory) => {
                for block in (0..4).cycle().take(64) {
                    let lease = memory.lease(block * 4096, 4096).expect("free");
                    assert_eq!(*lease, [0; 4096]);
                }
            }
            Err(error) => {
                assert_ne!(rounds_max, 0, "nobody resizes it: {error}");
                let error = error.to_string();
                let is_size =
                    error.contains("its length is zero") || error.contains("its size changed");
                assert!(is_size, "{error}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        resizing.join().expect("it ends");
    }
}

#[test]
fn a_file_that_cannot_be_sealed_is_refused_and_has_its_own_function() {
    let plain = || file(4096, MemfdFlags::empty());
    let closed = file(4096, MemfdFlags::ALLOW_SEALING);
    fcntl_add_seals(&closed, SealFlags::SEAL).expect("a memfd");
    for file in [plain(), closed] {
        assert!(!ExternalMemory::can_seal(&file));
        let error = text(ExternalMemory::of_file(file, BLOCK));
        assert!(error.contains("MFD_ALLOW_SEALING"), "{error}");
        assert!(error.contains("`of_unsealed_file`"), "{error}");
    }
    // It stays as it is, and others can map it to write.
    let kept = plain();
    let copied = kept.try_clone().expect("a descriptor");
    // SAFETY: the test writes no block that is leased, and does not shorten the file.
    let memory = unsafe { ExternalMemory::of_unsealed_file(copied, BLOCK) }.expect("a file");
    let mut lease = memory.lease(0, 8).expect("free");
    lease.fill(5);
    let others = Mapping::shared(&kept, 4096).expect("no seals");
    // SAFETY: within the mapping, and the lease is not used meanwhile.
    assert_eq!(unsafe { others.start().add(7).read_volatile() }, 5);
}

/// Peers of shm map files that keep their pages, and nothing else.
#[test]
fn only_a_sealed_file_goes_to_peers() {
    let good = memory(1);
    let seals = fcntl_get_seals(good.sealed_file().expect("sealed")).expect("a memfd");
    assert!(
        seals.contains(
            SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
        )
    );
    let refusal = |memory: &ExternalMemory| {
        let refused = memory.sealed_file().expect_err("it has no sealed file");
        refused.to_string()
    };
    let plain = file(4096, MemfdFlags::ALLOW_SEALING);
    // SAFETY: nothing else uses the file.
    let plain = unsafe { ExternalMemory::of_unsealed_file(plain, BLOCK) }.expect("a file");
    assert!(refusal(&plain).contains("register it with `of_file`"));
    let (mapping, released) = mapped(4096);
    let raw = at_address(&mapping, 0, 4096, &released).expect("good memory");
    assert!(refusal(&raw).contains("descriptor of a memfd"));
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

/// Peers see each memory at the next multiple of 1 GiB. Numbers that no pointer can have are refused.
#[test]
fn memory_lies_behind_the_arena_where_offsets_have_room() {
    const GIB: u64 = 1 << 30;
    assert_eq!(external_range(8192, 4096), Some(GIB..GIB + 4096));
    assert_eq!(external_range(GIB, GIB + 1), Some(GIB..2 * GIB + 1));
    let last = isize::MAX as u64;
    let start = last - last % GIB;
    assert_eq!(external_range(start, last - start), Some(start..last));
    assert_eq!(external_range(start, last - start + 1), None);
    assert_eq!(external_range(start + 1, 4096), None);
    assert_eq!(external_range(u64::MAX, 1), None);
    let options = ArenaOptions {
        bytes: 4096,
        huge_pages: HugePages::Never,
    };
    let mut arena = Arena::private(&options).expect("memory");
    let memory = memory(1);
    for _ in 0..EXTERNAL_MAX {
        arena.attach(&memory).expect("room");
    }
    let offsets: Vec<_> = arena
        .memory()
        .external()
        .iter()
        .map(|it| it.offset)
        .collect();
    let expected: Vec<_> = (1..=EXTERNAL_MAX as u64)
        .map(|number| number * GIB)
        .collect();
    assert_eq!(offsets, expected);
    let refused = arena.attach(&memory).expect_err("one too many");
    assert!(
        matches!(
            refused,
            SetupError::Limit {
                asked: 17,
                limit: 16,
                ..
            }
        ),
        "{refused}"
    );
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
