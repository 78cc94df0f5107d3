//! The files of peers: the reasons for a refusal, and its cost.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::*;
use crate::interface::SetupError;
use crate::interface::prelude::*;
use crate::memory::{Mapping, SEALS_READ_ONLY};
use crate::shm::files::PeerFiles;
use crate::shm::mapped::DOORBELL_BYTES;
use crate::shm::peer_memory::{PeerMemory, PeerMemoryLimits, Purpose, SEALS_DOORBELL};
use crate::shm::{ChannelFile, CheckedPeer};

const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// The process that passes files, in most tests.
const PEER: u32 = 7;

/// A memfd without any page.
fn bare_file(bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("peer", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    file
}

fn seal(file: OwnedFd, seals: SealFlags) -> OwnedFd {
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A sealed file without any page. It costs a peer no memory.
pub(in crate::shm) fn sparse_file(bytes: u64) -> OwnedFd {
    seal(bare_file(bytes, MemfdFlags::empty()), SEALS_READ_ONLY)
}

/// A sealed file with all its pages, as a correct peer passes it.
pub(in crate::shm) fn whole_file(bytes: u64) -> OwnedFd {
    let file = bare_file(bytes, MemfdFlags::empty());
    fill(&file, 0, bytes);
    seal(file, SEALS_READ_ONLY)
}

/// Allocates the pages of a range, which may be after the end of the file.
fn fill(file: &OwnedFd, offset: u64, bytes: u64) {
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes).unwrap();
}

/// The size of all pages of a file, in bytes.
pub(in crate::shm) fn held(file: &OwnedFd) -> u64 {
    u64::try_from(rustix::fs::fstat(file).unwrap().st_blocks).unwrap() * 512
}

fn memory_with(arena_bytes_max: u64, total_bytes_max: u64) -> PeerMemory {
    PeerMemory::new(PeerMemoryLimits {
        arena_bytes_max,
        total_bytes_max,
    })
}

fn memory() -> PeerMemory {
    memory_with(u64::MAX, u64::MAX)
}

/// The files that a port passes to a peer with a new channel.
fn files_of(end: &End) -> PeerFiles {
    let files = &end.handle.files;
    let [arena, keys, doorbell, event] =
        [&files.arena, &files.keys, &files.doorbell, &files.event].map(|f| f.try_clone().unwrap());
    PeerFiles {
        channel: ChannelFile::create(8192).unwrap().0,
        arena,
        keys,
        doorbell,
        event,
        external: Vec::new(),
        doorbell_number: 0,
    }
}

/// The text of an error that the peer caused.
fn refusal<T>(result: Result<T, SetupError>) -> String {
    match result {
        Err(error @ SetupError::Peer { .. }) => error.to_string(),
        Err(error) => panic!("not told as a fault of the peer: {error}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn files_of_a_wrong_kind_are_refused() {
    let end = End::new(0, |_| {});
    let unsealed = || {
        let file = bare_file(12_288, MemfdFlags::empty());
        fill(&file, 0, 12_288);
        file
    };
    let counter = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let datagrams = || {
        let unix = rustix::net::AddressFamily::UNIX;
        rustix::net::socket(unix, rustix::net::SocketType::DGRAM, None).unwrap()
    };
    let changes: [&dyn Fn(&mut PeerFiles); 8] = [
        &|files| files.channel = unsealed(),
        &|files| files.arena = unsealed(),
        &|files| files.keys = unsealed(),
        &|files| files.doorbell = unsealed(),
        &|files| files.event = unsealed(),
        &|files| files.event = counter(),
        &|files| files.event = datagrams(),
        &|files| files.doorbell_number = 4096,
    ];
    let mut memory = memory();
    for (index, change) in changes.into_iter().enumerate() {
        let mut files = files_of(&end);
        change(&mut files);
        let refused = CheckedPeer::map(files, PEER, &mut memory);
        assert!(refusal(refused).starts_with("the peer's "), "{index}");
    }
    CheckedPeer::map(files_of(&end), PEER, &mut memory).unwrap();
}

/// Each seal is needed: without SHRINK or GROW the size changes, without FUTURE_WRITE others that get the file may write to
/// it, and without SEAL a peer may add what takes our own access away.
#[test]
fn a_file_that_lacks_one_seal_is_refused() {
    let kept_in_size = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL];
    let read_only = [&kept_in_size[..], &[SealFlags::FUTURE_WRITE]].concat();
    let bytes = 4096 + (1 << 16);
    for (purpose, bytes, needed) in [
        (Purpose::Channel, bytes, &read_only[..]),
        (Purpose::Arena, bytes, &read_only[..]),
        (Purpose::Keys, bytes, &read_only[..]),
        (Purpose::Doorbell, DOORBELL_BYTES as u64, &kept_in_size[..]),
    ] {
        let file = |lacking: SealFlags| {
            let file = bare_file(bytes, MemfdFlags::empty());
            fill(&file, 0, bytes);
            let all = needed.iter().copied().collect::<SealFlags>();
            seal(file, all.difference(lacking))
        };
        for &lacking in needed {
            let refused = refusal(memory().map(PEER, &file(lacking), purpose));
            assert!(refused.contains("is not sealed"), "{purpose:?}: {refused}");
        }
        memory()
            .map(PEER, &file(SealFlags::empty()), purpose)
            .unwrap();
    }
}

/// The file is large and has all its pages. It is refused because of its size.
#[test]
fn files_of_a_wrong_size_are_refused() {
    let cases = [
        (Purpose::Channel, 4096),
        (Purpose::Channel, 4096 + 4096),
        (Purpose::Channel, 4096 + 12_288),
        (Purpose::Channel, 4096 + (1 << 27)),
        (Purpose::Keys, 4096),
        (Purpose::Keys, 4096 + 31),
        (Purpose::Keys, 4096 + 33),
        (Purpose::Keys, 4096 + 3 * 32),
        (Purpose::Keys, 4096 + (1 << 17) * 32),
        (Purpose::Doorbell, 8192),
        (Purpose::Doorbell, 4095),
        (Purpose::Arena, 0),
    ];
    for (purpose, bytes) in cases {
        let file = sparse_file(bytes);
        let refused = refusal(memory().map(PEER, &file, purpose));
        assert!(refused.contains("wrong size"), "{purpose:?}: {refused}");
        assert_eq!(held(&file), 0, "{purpose:?}");
    }
}

/// A file without its pages must not cost memory at the receiver.
#[test]
fn a_file_with_holes_is_refused_and_gets_no_page() {
    for purpose in [Purpose::Channel, Purpose::Keys, Purpose::Arena] {
        let bytes = match purpose {
            Purpose::Channel => 4096 + (1 << 16),
            _ => 4096 + 1024 * 32,
        };
        for last in [false, true] {
            let file = bare_file(bytes, MemfdFlags::empty());
            if last {
                // All but one page.
                fill(&file, 0, bytes - 4096);
            }
            let file = seal(file, SEALS_READ_ONLY);
            let before = held(&file);
            let refused = refusal(memory().map(PEER, &file, purpose));
            assert!(refused.contains("has holes"), "{purpose:?}: {refused}");
            assert_eq!(held(&file), before, "{purpose:?}");
        }
    }
}

/// The kernel counts the pages after the end of a file with the others. A truncation to the current size, which no seal
/// forbids, frees them.
#[test]
fn pages_behind_the_end_of_a_file_do_not_stand_in_for_its_holes() {
    let bytes = 1 << 20;
    let file = bare_file(bytes, MemfdFlags::empty());
    fill(&file, bytes, bytes);
    let file = seal(file, SEALS_READ_ONLY);
    assert_eq!(held(&file), bytes);
    let refused = refusal(memory().map(PEER, &file, Purpose::Arena));
    assert!(refused.contains("has holes"), "{refused}");
    assert_eq!(held(&file), 0);
    // The seals forbid new pages after the end.
    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, keep, bytes, 4096).unwrap_err();
}

/// A file on hugepages with all its pages; `None` if no hugepage is free.
fn huge_file() -> Option<OwnedFd> {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("peer", flags).ok()?;
    rustix::fs::ftruncate(&file, HUGE_PAGE_BYTES).ok()?;
    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, keep, 0, HUGE_PAGE_BYTES).ok()?;
    Some(file)
}

#[test]
fn whole_files_on_hugepages_are_distinguished_from_sparse_ones() {
    let Some(whole) = huge_file() else {
        eprintln!(
            "SKIPPED whole_files_on_hugepages_are_distinguished_from_sparse_ones: no hugepage is free"
        );
        return;
    };
    let whole = seal(whole, SEALS_READ_ONLY);
    let mapping = memory().map(PEER, &whole, Purpose::Arena).unwrap();
    assert_eq!(mapping.bytes() as u64, HUGE_PAGE_BYTES);
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let sparse = seal(bare_file(HUGE_PAGE_BYTES, flags), SEALS_READ_ONLY);
    let refused = refusal(memory().map(PEER, &sparse, Purpose::Arena));
    assert!(refused.contains("has holes"), "{refused}");
    assert_eq!(held(&sparse), 0);
    let Some(behind) = huge_file() else {
        eprintln!("SKIPPED pages behind the end: one hugepage is free, and not two");
        return;
    };
    // The only page is the second one of two, and later it is after the end of the file.
    rustix::fs::ftruncate(&behind, 2 * HUGE_PAGE_BYTES).unwrap();
    fill(&behind, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&behind, punch, 0, HUGE_PAGE_BYTES).unwrap();
    let behind = seal(behind, SEALS_READ_ONLY);
    assert_eq!(held(&behind), HUGE_PAGE_BYTES);
    refusal(memory().map(PEER, &behind, Purpose::Arena));
}

/// Neither a file operation nor the earlier mapping of the owner can remove a page.
#[test]
fn no_page_of_a_sealed_file_can_be_taken_away() {
    let plain = bare_file(HUGE_PAGE_BYTES, MemfdFlags::empty());
    let huge = huge_file();
    if huge.is_none() {
        eprintln!("SKIPPED hugepages: none is free");
    }
    for file in [Some(plain), huge].into_iter().flatten() {
        let bytes = usize::try_from(HUGE_PAGE_BYTES).unwrap();
        let owner = Mapping::shared(&file, bytes).unwrap();
        let file = seal(file, SEALS_READ_ONLY);
        let mapped = memory().map(PEER, &file, Purpose::Arena).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        for how in [punch, zero, FallocateFlags::COLLAPSE_RANGE] {
            rustix::fs::fallocate(&file, how, 0, HUGE_PAGE_BYTES).unwrap_err();
        }
        rustix::fs::ftruncate(&file, 0).unwrap_err();
        // SAFETY: the mapping of the owner, which nothing reads here; the kernel refuses the advice.
        let removed = unsafe {
            rustix::mm::madvise(owner.start().cast(), bytes, rustix::mm::Advice::LinuxRemove)
        };
        removed.unwrap_err();
        assert_eq!(held(&file), HUGE_PAGE_BYTES);
        // SAFETY: the last byte of the mapping.
        assert_eq!(unsafe { mapped.start().add(bytes - 1).read_volatile() }, 0);
    }
}

/// A hole that one peer punches into a doorbell does not make its owner a faulty peer.
#[test]
fn a_doorbell_into_which_another_peer_punched_a_hole_is_mapped() {
    let end = End::new(0, |_| {});
    let doorbell = &end.handle.files.doorbell;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(doorbell, punch, 0, 4096).unwrap();
    assert_eq!(held(doorbell), 0);
    memory().map(PEER, doorbell, Purpose::Doorbell).unwrap();
    assert_eq!(held(doorbell), 4096);
}

#[test]
fn an_arena_is_mapped_up_to_its_limit() {
    let mut memory = memory_with(8192, u64::MAX);
    memory.map(PEER, &whole_file(8192), Purpose::Arena).unwrap();
    let refused = refusal(memory.map(PEER, &whole_file(12_288), Purpose::Arena));
    assert!(refused.contains("`peer_arena_mib_max`"), "{refused}");
    // The limit applies to arenas only.
    memory
        .map(
            PEER,
            &ChannelFile::create(8192).unwrap().0,
            Purpose::Channel,
        )
        .unwrap();
}

#[test]
fn all_peers_together_have_a_limit_as_long_as_they_are_mapped() {
    let mut memory = memory_with(u64::MAX, 16_384);
    let (one, other) = (whole_file(8192), whole_file(8192));
    let first = memory.map(PEER, &one, Purpose::Arena).unwrap();
    // The same file of the same process is mapped once. For another process it is mapped again.
    let again = memory.map(PEER, &one, Purpose::Arena).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    let third = memory.map(PEER + 1, &one, Purpose::Arena).unwrap();
    assert!(!Arc::ptr_eq(&first, &third));
    let refused = refusal(memory.map(PEER, &other, Purpose::Arena));
    assert!(refused.contains("`peer_memory_mib_max`"), "{refused}");
    drop(third);
    memory.map(PEER, &other, Purpose::Arena).unwrap();
    drop((first, again));
    let large = memory.map(PEER, &whole_file(16_384), Purpose::Arena);
    assert_eq!(large.unwrap().bytes(), 16_384);
}

/// A port has one arena, one key table and one doorbell for all its channels and connections.
#[test]
fn channels_of_one_port_share_what_belongs_to_the_port() {
    let end = End::new(0, |_| {});
    let mut memory = memory();
    let mut map = || CheckedPeer::map(files_of(&end), PEER, &mut memory).unwrap();
    let (one, other) = (map(), map());
    assert!(!one.shares_channel(&other));
    assert!(Arc::ptr_eq(&one.arena, &other.arena));
}

/// A doorbell is mapped for writing, so the read-only mapping of the same file must not be used for it.
#[test]
fn a_file_in_two_places_is_checked_and_mapped_for_each() {
    let file = whole_file(4096);
    let mut memory = memory();
    let arena = memory.map(PEER, &file, Purpose::Arena).unwrap();
    memory.map(PEER, &file, Purpose::Doorbell).unwrap_err();
    memory.map(PEER, &file, Purpose::Channel).unwrap_err();
    drop(arena);
    let doorbell = bare_file(4096, MemfdFlags::empty());
    let doorbell = seal(doorbell, SEALS_DOORBELL);
    memory.map(PEER, &doorbell, Purpose::Doorbell).unwrap();
    refusal(memory.map(PEER, &doorbell, Purpose::Arena));
}

/// The number of mappings of a file in this process.
fn mappings_of(file: impl AsFd) -> usize {
    let inode = rustix::fs::fstat(file).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_of = |line: &&str| line.split_whitespace().nth(4) == Some(&inode);
    maps.lines().filter(is_of).count()
}

/// The peer determines the size of its files, so the manager maps them and not the core.
#[test]
fn planting_maps_nothing() {
    let (mut a, mut b, joint) = unjoined();
    for first in [true, false] {
        let (seed, theirs) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
        let counts = |b: &End| {
            let files = &b.handle.files;
            [&files.arena, &files.keys, &files.doorbell].map(mappings_of)
        };
        let before = counts(&b);
        assert_eq!(before, [2; 3], "its own, and ours");
        let id = a.port.adopt_queue_pair(seed, a.queue).unwrap();
        assert_eq!(counts(&b), before, "first: {first}");
        assert_eq!(id.index, u32::from(!first));
        b.port.adopt_queue_pair(theirs, b.queue).unwrap();
    }
}
