//! Arenas: their pages, their reports, and the operations that a peer may do.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::interface::SetupError;
use crate::memory::pages::{self, HUGE_PAGE_BYTES, HugePageCounts, TransparentKind, smaps_field};
use crate::memory::{Arena, ArenaOptions, HugePageSize, HugePages, Mapping, PageKind, PoolShape};

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Held by the test that changes settings of the machine, so that only one does so at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// A setting of the kernel, restored by the drop. The tests that change one also count the use of other processes, so they
/// are ignored on a shared machine: `./check lab` runs them in a guest.
struct Setting {
    path: &'static str,
    old: String,
    _guard: MutexGuard<'static, ()>,
}

impl Setting {
    fn set(path: &'static str, value: &str, guard: MutexGuard<'static, ()>) -> Self {
        let old = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, value)
            .unwrap_or_else(|error| panic!("{path} cannot be set (it needs root): {error}"));
        Self {
            path,
            old: old.trim().to_owned(),
            _guard: guard,
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        std::fs::write(self.path, &self.old).unwrap();
    }
}

/// Makes `pages` hugepages free for this test.
fn free_hugepages(pages: u64) -> Setting {
    // The lock comes before the count, because another test may use hugepages.
    let guard = MACHINE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let counts = || HugePageCounts::read(HUGE_PAGE_BYTES).unwrap();
    let used = counts().total - counts().available;
    let setting = Setting::set(HUGE_PAGES, &(used + pages).to_string(), guard);
    assert_eq!(counts().available, pages, "free hugepages");
    setting
}

fn options(bytes: u64, huge_pages: HugePages) -> ArenaOptions {
    ArenaOptions { bytes, huge_pages }
}

type Make = fn(&ArenaOptions) -> Result<Arena, SetupError>;
const BOTH: [(&str, Make); 2] = [("shared", Arena::shared), ("private", Arena::private)];

/// Writes every byte and reads it back.
fn use_all(arena: &mut Arena) {
    let memory = arena.memory();
    let bytes = u32::try_from(arena.report().arena_bytes).unwrap();
    let shape = PoolShape {
        buffers: 1,
        buffer_bytes: bytes,
        stride_bytes: bytes,
        align_bytes: 1,
    };
    let mut pool = arena.pool(shape).unwrap();
    let mut buffer = pool.take().unwrap();
    assert!(memory.bytes(&buffer).iter().all(|byte| *byte == 0));
    memory.bytes_mut(&mut buffer).fill(0xa5);
    assert!(memory.bytes(&buffer).iter().all(|byte| *byte == 0xa5));
    pool.give(buffer);
}

#[test]
fn ordinary_pages_when_asked_for_come_without_a_warning() {
    for (name, make) in BOTH {
        let mut arena = make(&options(5000, HugePages::Never)).unwrap();
        let report = arena.report().clone();
        assert_eq!(report.kind, PageKind::Ordinary, "{name}");
        assert_eq!(
            (report.page_bytes, report.arena_bytes),
            (4096, 8192),
            "{name}"
        );
        assert_eq!(report.warning, None, "{name}");
        assert_eq!(arena.file().is_some(), name == "shared");
        use_all(&mut arena);
    }
    let arena = Arena::shared(&options(0, HugePages::Never)).unwrap();
    assert_eq!(arena.report().arena_bytes, 4096);
}

/// This holds for every kind of pages of the rest.
#[test]
fn untouched_pool_is_unshared_and_unbacked_until_written() {
    const UNTOUCHED: u32 = 64 * 4096;
    for wish in [HugePages::Never, HugePages::Prefer] {
        let size = HugePageSize::default();
        let mut arena =
            Arena::shared_with_untouched(&options(5000, wish), size, UNTOUCHED.into()).unwrap();
        let shared_bytes = arena.report().arena_bytes;
        assert!(shared_bytes >= 8192 && shared_bytes.is_multiple_of(arena.report().page_bytes));
        let file = rustix::fs::fstat(arena.file().unwrap()).unwrap();
        assert_eq!(u64::try_from(file.st_size).unwrap(), shared_bytes);
        let shape = |buffers| PoolShape {
            buffers,
            buffer_bytes: 4096,
            stride_bytes: 4096,
            align_bytes: 4096,
        };
        let memory = arena.memory();
        let mut pool = arena.untouched_pool(shape(64)).unwrap().unwrap();
        let mut buffers: Vec<_> = (0..64).map(|_| pool.take().unwrap()).collect();
        assert_eq!(memory.offset_of(&buffers[0]), shared_bytes);
        let start = memory.bytes(&buffers[0]).as_ptr().addr();
        let resident = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            smaps_field(&smaps, start, "Rss:")
        };
        assert_eq!(resident(), 0, "{wish:?}");
        memory.bytes_mut(&mut buffers[7]).fill(0xa5);
        assert!(
            (4096..u64::from(UNTOUCHED)).contains(&resident()),
            "{wish:?}"
        );
        assert!(memory.bytes(&buffers[8]).iter().all(|byte| *byte == 0));
        // A pool of one part cannot extend into the other.
        assert!(arena.untouched_pool(shape(1)).is_err());
        let whole = u32::try_from(shared_bytes / 4096).unwrap();
        assert!(arena.pool(shape(whole + 1)).is_err());
        use_all(&mut arena);
    }
    let mut plain = Arena::shared(&options(5000, HugePages::Never)).unwrap();
    let shape = PoolShape {
        buffers: 1,
        buffer_bytes: 1,
        stride_bytes: 1,
        align_bytes: 1,
    };
    assert!(plain.untouched_pool(shape).unwrap().is_none());
}

#[test]
#[ignore = "changes settings of the machine: ./check lab runs it in a guest"]
fn hugepages_are_used_when_there_are_enough() {
    let _setting = free_hugepages(3);
    for (name, make) in BOTH {
        for wish in [HugePages::Prefer, HugePages::Require] {
            let mut arena = make(&options(HUGE_PAGE_BYTES + 1, wish)).unwrap();
            let report = arena.report().clone();
            assert_eq!(report.kind, PageKind::Huge, "{name}: {report:?}");
            assert_eq!(report.page_bytes, HUGE_PAGE_BYTES, "{name}");
            assert_eq!(report.arena_bytes, 2 * HUGE_PAGE_BYTES, "{name}");
            assert_eq!(report.warning, None, "{name}");
            assert_eq!(
                HugePageCounts::read(HUGE_PAGE_BYTES).unwrap().available,
                1,
                "{name}"
            );
            use_all(&mut arena);
            drop(arena);
            // All came back.
            assert_eq!(
                HugePageCounts::read(HUGE_PAGE_BYTES).unwrap().available,
                3,
                "{name}"
            );
        }
    }
}

/// A shortage gives an error when the arena is created, and no signal when it is used.
#[test]
#[ignore = "changes settings of the machine: ./check lab runs it in a guest"]
fn too_few_hugepages_are_reported_when_the_arena_is_made() {
    let _setting = free_hugepages(2);
    let total = HugePageCounts::read(HUGE_PAGE_BYTES).unwrap().total;
    for (name, make) in BOTH {
        let error = make(&options(3 * HUGE_PAGE_BYTES, HugePages::Require)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("needs 3 hugepages of 2 MiB, and 2 are free"),
            "{name}: {text}"
        );
        let command = format!("echo {} | sudo tee {HUGE_PAGES}", total + 1);
        assert!(text.contains(&command), "{name}: {text}");

        let mut arena = make(&options(3 * HUGE_PAGE_BYTES, HugePages::Prefer)).unwrap();
        let report = arena.report().clone();
        assert_ne!(report.kind, PageKind::Huge, "{name}");
        let warning = report.warning.unwrap();
        assert!(warning.contains(&command), "{name}: {warning}");
        assert!(
            warning.contains("transparent hugepages"),
            "{name}: {warning}"
        );
        use_all(&mut arena);
        assert_eq!(
            HugePageCounts::read(HUGE_PAGE_BYTES).unwrap().available,
            2,
            "{name}"
        );
    }
}

/// An arena searches for hugepages of the requested size only, even if the machine has none of them.
#[test]
fn an_arena_lies_in_hugepages_of_the_size_that_was_asked_for() {
    type Make = fn(&ArenaOptions, HugePageSize) -> Result<Arena, SetupError>;
    let both: [(&str, Make); 2] = [("shared", Arena::shared_in), ("private", Arena::private_in)];
    for (name, make) in both {
        match make(&options(4096, HugePages::Require), HugePageSize::Gib1) {
            Ok(arena) => assert_eq!(arena.report().page_bytes, 1 << 30, "{name}"),
            Err(error) => assert!(error.to_string().contains("of 1 GiB"), "{name}: {error}"),
        }
        let arena = make(&options(4096, HugePages::Never), HugePageSize::Gib1).unwrap();
        assert_eq!(arena.report().kind, PageKind::Ordinary, "{name}");
    }
}

/// The report agrees with the report of the kernel about the mapping.
#[test]
#[ignore = "changes settings of the machine: ./check lab runs it in a guest"]
fn transparent_hugepages_are_reported_as_they_are() {
    let files = [
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ];
    let kinds = [TransparentKind::Shared, TransparentKind::Private];
    let words = ["advise", "madvise"];
    for (((name, make), kind), (file, word)) in BOTH
        .into_iter()
        .zip(kinds)
        .zip(files.into_iter().zip(words))
    {
        for word in [word, "never"] {
            let _none = free_hugepages(0);
            // `_none` holds the lock. A second `Setting` would lock it again, so this setting is restored by hand.
            let old = std::fs::read_to_string(file).unwrap();
            let (_, old) = old.split_once('[').unwrap();
            let (old, _) = old.split_once(']').unwrap();
            std::fs::write(file, word).unwrap();
            let allowed = kind.is_allowed();
            let mut made = make(&options(8 * HUGE_PAGE_BYTES, HugePages::Prefer));
            let joined = made.as_mut().map_or(0, |arena| {
                kind.bytes_at(arena.memory().mapping().start().addr())
            });
            // The setting is restored after the count: with it, the kernel starts to join pages at once.
            std::fs::write(file, old).unwrap();
            let mut arena = made.unwrap();
            let report = arena.report().clone();
            assert_eq!(allowed, word != "never", "{name}");
            assert_eq!(
                report.kind == PageKind::Transparent,
                joined > 0,
                "{name} {report:?}"
            );
            if word == "never" {
                assert_eq!(report.kind, PageKind::Ordinary, "{name}");
                assert!(report.warning.unwrap().contains(file), "{name}");
            } else if joined > 0 {
                assert!(
                    report.warning.unwrap().contains(&joined.to_string()),
                    "{name}"
                );
            }
            use_all(&mut arena);
        }
    }
}

/// Why `make` is refused for what is available. Other processes end meanwhile: where their memory is enough for what was asked,
/// it is asked for more.
fn refused<T>(make: impl Fn(u64) -> Result<T, SetupError>) -> (u64, SetupError) {
    loop {
        let available = pages::available().unwrap().bytes;
        let Err(error) = make(available).map(drop) else {
            let now = pages::available().unwrap().bytes;
            assert!(now - now / 16 >= available, "it was taken with {now} free");
            continue;
        };
        return (available, error);
    }
}

#[test]
fn an_arena_that_does_not_fit_is_refused_before_anything_is_taken() {
    for (name, make) in BOTH {
        for asked in [None, Some(1 << 50), Some(1 << 62), Some(u64::MAX)] {
            for wish in [HugePages::Never, HugePages::Prefer] {
                let make = |bytes| make(&options(bytes, wish));
                let (bytes, error) = match asked {
                    Some(bytes) => (bytes, make(bytes).unwrap_err()),
                    None => refused(make),
                };
                let SetupError::System { doing, source } = &error else {
                    panic!("{name}: {error:?}");
                };
                assert_eq!(source.kind(), std::io::ErrorKind::OutOfMemory, "{name}");
                assert!(doing.contains(&format!("{bytes} bytes")), "{name}: {doing}");
                assert!(doing.contains("are available"), "{name}: {doing}");
                assert!(doing.contains("fewer connections"), "{name}: {doing}");
            }
            let bytes = asked.unwrap_or(1 << 48);
            let error = make(&options(bytes, HugePages::Require)).unwrap_err();
            assert!(error.to_string().contains("2 MiB"), "{name}: {error}");
        }
    }
    // The untouched part counts: alone, and with the rest if each of them alone would fit.
    let make = |bytes, untouched_bytes| {
        let options = options(bytes, HugePages::Never);
        Arena::shared_with_untouched(&options, HugePageSize::default(), untouched_bytes)
    };
    refused(|available| make(4096, available));
    refused(|available| make(available / 4, available / 8 * 7));
}

fn map(file: &OwnedFd, bytes: usize, protection: ProtFlags) -> rustix::io::Result<usize> {
    // SAFETY: the kernel chooses the address; the mapping is unmapped below without an access.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    // SAFETY: the mapping just made.
    unsafe { rustix::mm::munmap(start, bytes) }?;
    Ok(start.addr())
}

#[test]
fn a_peer_can_only_read_a_shared_arena() {
    for wish in [HugePages::Never, HugePages::Prefer] {
        let arena = Arena::shared(&options(HUGE_PAGE_BYTES, wish)).unwrap();
        let (file, bytes) = (arena.file().unwrap(), arena.memory().mapping().bytes());
        map(file, bytes, ProtFlags::READ).unwrap();
        map(file, bytes, ProtFlags::READ | ProtFlags::WRITE).unwrap_err();
        rustix::fs::ftruncate(file, 0).unwrap_err();
        rustix::fs::ftruncate(file, 1 << 30).unwrap_err();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, punch, 0, bytes as u64).unwrap_err();
        rustix::io::pwrite(file, b"x", 0).unwrap_err();
        rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::WRITE).unwrap_err();
    }
}

/// The mapping fails, because an access after the end of the file would raise a signal.
#[test]
fn a_mapping_beyond_its_file_is_refused() {
    let file = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    assert_eq!(Mapping::shared(&file, 4096).unwrap().bytes(), 4096);
    let error = Mapping::shared(&file, 8192).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    Mapping::shared(&file, 0).unwrap_err();
}

/// Old kernels have no advice that populates pages. Then the code touches every page.
#[test]
fn touching_every_page_gives_a_file_all_of_them() {
    let file = rustix::fs::memfd_create("touched", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    let mapping = Mapping::shared_lazily(&file, 1 << 20).unwrap();
    let held = || rustix::fs::fstat(&file).unwrap().st_blocks * 512;
    assert_eq!(held(), 0);
    mapping.touch();
    assert_eq!(held(), 1 << 20);
}

/// A control group whose processes may use no hugepage. The drop removes it.
struct Group {
    /// The mount point of the groups of version 2, for this test.
    root: PathBuf,
    path: PathBuf,
    had_controller: bool,
}

impl Group {
    /// `None` if the kernel has no such control groups.
    fn without_hugepages() -> Option<Self> {
        let root = std::env::temp_dir().join(format!("rpcrdma-groups-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let target = CString::new(root.as_os_str().as_bytes()).unwrap();
        // SAFETY: strings that end with a zero, and no data.
        let mounted = unsafe {
            let (source, kind) = (c"none".as_ptr(), c"cgroup2".as_ptr());
            libc::mount(source, target.as_ptr(), kind, 0, std::ptr::null())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        let has = |file: &str| {
            let names = std::fs::read_to_string(root.join(file)).unwrap();
            names.split_whitespace().any(|name| name == "hugetlb")
        };
        let group = Self {
            path: root.join(format!("rpcrdma-test-{}", std::process::id())),
            had_controller: has("cgroup.subtree_control"),
            root: root.clone(),
        };
        if !has("cgroup.controllers") {
            return None;
        }
        std::fs::write(root.join("cgroup.subtree_control"), "+hugetlb").unwrap();
        std::fs::create_dir(&group.path).unwrap();
        std::fs::write(group.path.join("hugetlb.2MB.max"), "0").unwrap();
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If the kernel has no such controller, the group was not created.
        let made = std::fs::remove_dir(&self.path).is_ok();
        if made && !self.had_controller {
            std::fs::write(self.root.join("cgroup.subtree_control"), "-hugetlb").unwrap();
        }
        let target = CString::new(self.root.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends with a zero.
        assert_eq!(unsafe { libc::umount(target.as_ptr()) }, 0);
        std::fs::remove_dir(&self.root).unwrap();
    }
}

const GROUP: &str = "RPCRDMA_TEST_GROUP";

/// Without this check, the shortage would show only at the first read of the page, perhaps in the middle of a call.
#[test]
#[ignore = "changes settings of the machine: ./check lab runs it in a guest"]
fn a_page_that_the_control_group_refuses_is_an_error() {
    if let Ok(group) = std::env::var(GROUP) {
        return map_a_hugepage_within(Path::new(&group));
    }
    let counts = HugePageCounts::read(HUGE_PAGE_BYTES).unwrap();
    let _setting = (counts.available == 0).then(|| free_hugepages(1));
    let Some(group) = Group::without_hugepages() else {
        eprintln!("SKIPPED: no control group of version 2 limits hugepages on this machine");
        return;
    };
    let test = "memory::tests::arenas::a_page_that_the_control_group_refuses_is_an_error";
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(GROUP, &group.path)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// The part of the child process.
fn map_a_hugepage_within(group: &Path) {
    std::fs::write(group.join("cgroup.procs"), "0").unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = rustix::fs::memfd_create("peer", flags).unwrap();
    rustix::fs::ftruncate(&file, HUGE_PAGE_BYTES).unwrap();
    let bytes = usize::try_from(HUGE_PAGE_BYTES).unwrap();
    let error = Mapping::shared_read_only(&file, bytes)
        // SAFETY: the first byte of the mapping. Without a page this read raises the signal.
        .map(|mapping| unsafe { mapping.start().read_volatile() })
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
}

#[test]
fn anonymous_memory_is_aligned_and_trimmed() {
    for (bytes, align) in [(4096, 4096), (4096, 2 << 20), (6 << 20, 2 << 20)] {
        let mapping = Mapping::anonymous(bytes, align).unwrap();
        assert_eq!(mapping.start().addr() % align, 0);
        assert_eq!(mapping.bytes(), bytes);
        mapping.populate().unwrap();
    }
    Mapping::anonymous(usize::MAX - 4095, 4096).unwrap_err();
    Mapping::anonymous(1 << 62, 4096).unwrap_err();
    Mapping::huge_private(0).unwrap_err();
}

#[test]
fn settings_of_this_machine_are_where_they_are_looked_for() {
    // With a wrong path, every machine would look like one without hugepages.
    assert!(
        !Path::new("/sys/kernel/mm/hugepages").exists()
            || HugePageCounts::read(HUGE_PAGE_BYTES).is_some()
    );
    assert!(pages::default_huge_page_bytes().is_none_or(|bytes| bytes >= HUGE_PAGE_BYTES));
}
