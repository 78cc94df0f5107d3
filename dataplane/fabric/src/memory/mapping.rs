//! A piece of mapped memory that unmaps itself.

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Peers map memory of the application behind the arena, each at the next multiple of this: no page is larger.
pub(crate) const EXTERNAL_ALIGN: u64 = 1 << 30;

/// Where memory of the application begins for peers, behind an arena, or other such memory, that ends at `end`.
pub(crate) fn external_offset(end: u64) -> Option<u64> {
    end.checked_next_multiple_of(EXTERNAL_ALIGN)
}

/// The range in which peers see `bytes` bytes of such memory. It ends at an offset that a pointer can have.
pub(super) fn external_range(end: u64, bytes: u64) -> Option<Range<u64>> {
    let start = external_offset(end)?;
    let end = start.checked_add(bytes)?;
    (end <= isize::MAX as u64).then_some(start..end)
}

/// The seals of a file that only its owner writes. `FUTURE_WRITE` refuses later writable mappings, and also hole punching,
/// so that no page can be removed.
pub(crate) const SEALS_READ_ONLY: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// No page of any machine is smaller.
const PAGE_BYTES_MIN: usize = 4096;

/// A mapping of this process. Shared between threads by `Arc`.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes whose pages [`Mapping::populate`] leaves out: at its end, or between the files that it joins.
    untouched_bytes: usize,
    origin: Origin,
    /// Dropped when the memory is no longer used, after the mapping.
    _keeper: Option<Keeper>,
}

/// What is kept as long as a mapping.
pub(super) type Keeper = Box<dyn fmt::Debug + Send + Sync>;

/// The source of the memory, which determines how it is released.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The application, which also unmaps it.
    Application,
    /// The kernel's `mmap`.
    Kernel,
    /// The hugepage allocator, by this layout.
    HugePageAllocator(Layout),
}

// SAFETY: a Mapping only names a range of addresses; reading and writing them goes through tokens
// (Buffer) or raw pointers whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of `file` shared, readable and writable, with every page present.
    ///
    /// # Errors
    ///
    /// When the kernel cannot map the file, or has no memory for one of its pages. Without the advance
    /// allocation a missing page would raise a signal at its first use.
    pub fn shared(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Self::map(file, bytes, protection, MapFlags::SHARED)?;
        mapping.populate()?;
        Ok(mapping)
    }

    /// As [`Mapping::shared`], but [`Mapping::populate`] allocates the pages.
    pub(super) fn shared_lazily(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Self::map(file, bytes, protection, MapFlags::SHARED)
    }

    /// As [`Mapping::shared_lazily`], followed by `untouched_bytes` of private memory, whose pages are allocated when they
    /// are first written. The start is a multiple of `align` (a power of two), and `bytes` must be one as well.
    pub(super) fn shared_with_untouched(
        file: impl AsFd,
        bytes: usize,
        untouched_bytes: usize,
        align: usize,
    ) -> io::Result<Self> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let whole = bytes.checked_add(untouched_bytes).ok_or_else(too_much)?;
        // Mapped without access first, because such a mapping counts towards no memory limit and the file replaces most
        // of it.
        let mut mapping = Self::private(whole, align, ProtFlags::empty())?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: it replaces the first `bytes` bytes of the mapping just made, to which there are no pointers yet, and makes
        // the rest accessible.
        unsafe {
            rustix::mm::mmap(mapping.start().cast(), bytes, protection, flags, file, 0)?;
            let rest = mapping.start().add(bytes).cast();
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            rustix::mm::mprotect(rest, untouched_bytes, access)?;
        }
        mapping.untouched_bytes = untouched_bytes;
        Ok(mapping)
    }

    /// Maps `bytes` bytes of a peer's `file`, to read only, with every page present. Writing
    /// through [`Mapping::start`] ends in a segmentation fault.
    ///
    /// A page that the file lacks is allocated, and charged to this process: the caller must check that the file has
    /// all its pages.
    ///
    /// # Errors
    ///
    /// As [`Mapping::shared`].
    pub(crate) fn shared_read_only(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        // Hugepages are not reserved here: the peer's file must have its own.
        let flags = MapFlags::SHARED | MapFlags::POPULATE | MapFlags::NORESERVE;
        let mapping = Self::map(file, bytes, ProtFlags::READ, flags)?;
        mapping.advise_populate(Advice::LinuxPopulateRead)?;
        Ok(mapping)
    }

    /// Memory that the application mapped and unmaps. `keeper` is dropped when nothing uses it any more.
    ///
    /// # Safety
    ///
    /// The range is mapped, readable and writable, and stays so until `keeper` is dropped.
    pub(super) unsafe fn of_application(start: NonNull<u8>, bytes: usize, keeper: Keeper) -> Self {
        Self {
            start,
            bytes,
            untouched_bytes: 0,
            origin: Origin::Application,
            _keeper: Some(keeper),
        }
    }

    /// As this one, with something that is dropped when it was unmapped.
    pub(super) fn with(mut self, keeper: Keeper) -> Self {
        self._keeper = Some(keeper);
        self
    }

    /// Maps several files of a peer into one range, to read only, each with every page present and at its offset, as
    /// [`Mapping::shared_read_only`]. The range ends with the last file. Between the files it reads as zeroes.
    pub(crate) fn joined_read_only(files: &[(BorrowedFd<'_>, u64, usize)]) -> io::Result<Self> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let end = |&(_, offset, bytes): &(_, u64, usize)| {
            usize::try_from(offset).ok()?.checked_add(bytes)
        };
        let ends: Option<Vec<usize>> = files.iter().map(end).collect();
        let bytes = ends.and_then(|ends| ends.into_iter().max());
        // Readable between the files as well, since a peer may name any offset up to the end.
        let align = usize::try_from(EXTERNAL_ALIGN).map_err(|_| too_much())?;
        let mut mapping = Self::private(bytes.ok_or_else(too_much)?, align, ProtFlags::READ)?;
        let held: usize = files.iter().map(|(.., bytes)| bytes).sum();
        mapping.untouched_bytes = mapping.bytes - held;
        for (file, offset, bytes) in files {
            let flags =
                MapFlags::SHARED | MapFlags::POPULATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let offset = usize::try_from(*offset).map_err(|_| too_much())?;
            // SAFETY: the range lies within the mapping just made, by its size, and there are no pointers to it yet.
            unsafe {
                let start = mapping.start().add(offset).cast();
                rustix::mm::mmap(start, *bytes, ProtFlags::READ, flags, file, 0)?;
                match rustix::mm::madvise(start, *bytes, Advice::LinuxPopulateRead) {
                    Ok(()) | Err(Errno::INVAL) => {}
                    Err(Errno::FAULT) => return Err(Errno::NOMEM.into()),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(mapping)
    }

    fn map(
        file: impl AsFd,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no mapping of ours is replaced.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        Self::from_raw(start.cast(), bytes, Origin::Kernel)
    }

    /// Anonymous private memory that starts at a multiple of `align` (a power of two), so that
    /// hugepages fit into it. [`Mapping::populate`] allocates its pages.
    pub(super) fn anonymous(bytes: usize, align: usize) -> io::Result<Self> {
        Self::private(bytes, align, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn private(bytes: usize, align: usize, protection: ProtFlags) -> io::Result<Self> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let padded = bytes.checked_add(align).ok_or_else(too_much)?;
        // SAFETY: the kernel chooses the address, so no mapping of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), padded, protection, MapFlags::PRIVATE)
        }?;
        let start = start.cast::<u8>();
        // It owns everything from here on: what fails below leaves nothing mapped.
        let mut mapping = Self::from_raw(start, padded, Origin::Kernel)?;
        let head = start.addr().next_multiple_of(align) - start.addr();
        let tail = padded - head - bytes;
        // SAFETY: the head and the tail of the mapping just made, page-aligned like everything
        // here; nobody has pointers into it yet.
        unsafe {
            if head > 0 {
                rustix::mm::munmap(start.cast(), head)?;
                mapping.start = mapping.start.add(head);
                mapping.bytes -= head;
            }
            if tail > 0 {
                rustix::mm::munmap(start.add(head + bytes).cast(), tail)?;
                mapping.bytes -= tail;
            }
        }
        Ok(mapping)
    }

    /// Private memory in hugepages of the system's default size; `bytes` must be a multiple of that
    /// size. The kernel reserves the pages within the call. Call it only if the kernel has hugepages:
    /// the allocator panics otherwise.
    pub(super) fn huge_private(bytes: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes, 4096).map_err(io::Error::other)?;
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the layout has a size other than zero.
        let start = unsafe { hugepage_rs::alloc(layout) };
        if start.is_null() {
            return Err(io::Error::last_os_error());
        }
        Self::from_raw(start, bytes, Origin::HugePageAllocator(layout))
    }

    fn from_raw(start: *mut u8, bytes: usize, origin: Origin) -> io::Result<Self> {
        NonNull::new(start)
            .map(|start| Self {
                start,
                bytes,
                untouched_bytes: 0,
                origin,
                _keeper: None,
            })
            .ok_or_else(|| io::Error::other("the kernel mapped address zero"))
    }

    /// Asks for transparent hugepages. Fails on a kernel without them.
    pub(super) fn advise_huge_pages(&self) -> io::Result<()> {
        // SAFETY: our own mapping; this advice changes no contents.
        unsafe {
            rustix::mm::madvise(
                self.start().cast(),
                self.touched_bytes(),
                Advice::LinuxHugepage,
            )
        }?;
        Ok(())
    }

    /// Makes every page present and writable, except the untouched ones.
    ///
    /// # Errors
    ///
    /// When the kernel has no memory for a page, where a plain access would end in SIGBUS.
    pub(super) fn populate(&self) -> io::Result<()> {
        if !self.advise_populate(Advice::LinuxPopulateWrite)? {
            // Peers accept a file only with all its pages. Hugepages are reserved by the mapping, so only a limit of
            // the control group can fail here, with SIGBUS.
            self.touch();
        }
        Ok(())
    }

    /// Lets the kernel populate the mapping. False if the kernel is older than 5.14 and does not know the advice.
    fn advise_populate(&self, advice: Advice) -> io::Result<bool> {
        // SAFETY: our own mapping; populating it changes no contents.
        match unsafe { rustix::mm::madvise(self.start().cast(), self.touched_bytes(), advice) } {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            // The kernel has no memory for a page. A plain access would have raised SIGBUS.
            Err(Errno::FAULT) => Err(Errno::NOMEM.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a byte of every page, which allocates the missing pages of a file. Pages of private memory are allocated
    /// when they are first written.
    pub(super) fn touch(&self) {
        for offset in (0..self.touched_bytes()).step_by(PAGE_BYTES_MIN) {
            // SAFETY: within the mapping, which can be read; a peer that writes the byte meanwhile
            // changes nothing, since its value is not used.
            let _ = unsafe { self.start().add(offset).read_volatile() };
        }
    }

    /// The first byte.
    #[inline]
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The place `offset` bytes behind its start, at most its end.
    #[inline]
    pub(crate) fn place(&self, offset: u64) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset > self.bytes {
            return None;
        }
        // SAFETY: at most one past the end of the mapping.
        NonNull::new(unsafe { self.start().add(offset) })
    }

    /// The bytes whose pages [`Mapping::populate`] allocates, or that are pages of files.
    #[inline]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.bytes - self.untouched_bytes
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.start.as_ptr();
        match self.origin {
            Origin::Application => {}
            Origin::Kernel => {
                // SAFETY: the range was mapped by `map` or `anonymous` and is unmapped only here;
                // whoever holds pointers into it also holds the Arc that keeps this value alive.
                let unmapped = unsafe { rustix::mm::munmap(start.cast(), self.bytes) };
                debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
            }
            Origin::HugePageAllocator(layout) => {
                // SAFETY: from `hugepage_rs::alloc` with this very layout, given back only here;
                // pointers as above.
                unsafe { hugepage_rs::dealloc(start, layout) };
            }
        }
    }
}
