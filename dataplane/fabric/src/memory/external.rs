//! Memory of the application: hugepages of SPDK or DPDK, its own mappings, memfds, dma-bufs.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, SealFlags};

use super::buffer::{External, unique_number};
use super::mapping::Keeper;
use super::site::{PoolShape, Site};
use super::{Lease, Mapping, Memory};
use crate::interface::SetupError;

/// Addresses and block sizes are multiples of this.
const ALIGN_BYTES: usize = 4096;
/// The most blocks of one piece of memory.
const BLOCKS_MAX: usize = 1 << 22;

/// Seals with which peers can map a file: its size and pages stay, and only who has mapped it already can write.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// Memory that the application owns, and that ports use as their own: leases on its parts are sent from and received
/// into without a copy.
///
/// It is divided into blocks of equal size. A lease is a range of one block, and its holder has the whole block: another
/// lease on it is refused until the first is dropped, whatever holds it: the application, a call, or a device that still
/// transfers. A clone is another handle on the same memory.
///
/// The memory is in use as long as a handle, a lease, or a port that it is attached to
/// ([`Arena::attach`](super::Arena::attach)) exists. Only then it is unmapped, or given back to the application
/// (`released` of [`ExternalMemory::at_address`]).
///
/// # Example
///
/// ```
/// use rpcrdma_fabric::memory::{ExternalMemory, NotLeased};
/// use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
///
/// let file = memfd_create("blocks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
/// ftruncate(&file, 4 << 16)?;
/// let memory = ExternalMemory::of_file(file, 1 << 16)?;
/// let mut lease = memory.lease(1 << 16, 512)?;
/// lease.copy_from_slice(&[7; 512]);
/// assert_eq!(memory.lease((1 << 16) + 512, 512).unwrap_err(), NotLeased::InUse);
/// drop(lease);
/// assert!(memory.lease(1 << 16, 1 << 16).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ExternalMemory {
    shared: Arc<Shared>,
}

struct Shared {
    site: Arc<Site>,
    origin: Origin,
    /// Which blocks are leased; those whose leases were dropped are still set while they are in the ring of the site.
    leased: Mutex<Box<[bool]>>,
}

/// Where the memory comes from, which decides how a device registers it.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The application mapped it.
    Address,
    /// A file that peers on this machine can map as well.
    File(OwnedFd),
    /// Memory of a device.
    DmaBuf(OwnedFd),
}

/// Why a part of the application's memory cannot be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeased {
    /// The range is empty or does not lie within one block.
    #[error("the range is empty, or does not lie within one block of the memory")]
    NoSuchRange,
    /// There is a lease on a part of its block.
    #[error("a lease on a part of the same block has not ended")]
    InUse,
}

impl ExternalMemory {
    /// Uses `bytes` bytes from `start` on, which the application mapped: for example hugepages of SPDK or DPDK. Devices can
    /// access it; on shm, where the peer has to map it, use [`ExternalMemory::of_file`]. `released` is called, on any
    /// thread, when nothing uses the memory any more.
    ///
    /// # Safety
    ///
    /// * The range stays mapped, readable and writable, and with the same pages, until `released` is called: the caller
    ///   must not unmap, move or free it, discard pages of it, or let a child process have it by `fork` without
    ///   `MADV_DONTFORK` on a kernel before 5.12.
    /// * Until then nothing but leases reads a byte of a block while it is leased, nor writes it: not the caller, not a device
    ///   of the caller's. The caller may access a block that is not leased, and must keep it from being leased
    ///   meanwhile: a lease on it counts as a lock.
    /// * The range is not used by another [`ExternalMemory`], nor by an arena of this crate. (An overlap with one in this
    ///   process is found, and is an error.)
    ///
    /// # Errors
    ///
    /// When the start or the sizes do not fit, the range is not mapped to be read and written, or overlaps with other memory.
    pub unsafe fn at_address(
        start: NonNull<u8>,
        bytes: usize,
        block_bytes: u32,
        released: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, SetupError> {
        let address = start.as_ptr().addr();
        let wrong = |why: &str| refused(&format!("{bytes} bytes at {address:#x}"), why);
        if !address.is_multiple_of(ALIGN_BYTES) {
            return Err(wrong(
                "the start is no multiple of 4096: allocate it with posix_memalign or mmap",
            ));
        }
        let end = address.checked_add(bytes);
        let end = end.ok_or_else(|| wrong("it exceeds the address space"))?;
        check_sizes(bytes, block_bytes).map_err(wrong)?;
        check_access(address..end).map_err(|why| wrong(&why))?;
        let claim = Claim::new(Some(address..end), None).ok_or_else(|| wrong(TWICE))?;
        let keeper = Box::new(Kept {
            _claim: claim,
            released: Some(Box::new(released)),
        });
        // SAFETY: as the caller promises: the keeper calls `released` when it is dropped.
        let mapping = unsafe { Mapping::of_application(start, bytes, keeper) };
        Ok(Self::new(mapping, block_bytes, Origin::Address))
    }

    /// Maps a whole file and uses it: a memfd, with hugepages or without, or a file of hugetlbfs. Every page of it is
    /// allocated now. On shm it must be a memfd that was made with `MFD_ALLOW_SEALING`: it is sealed so that its size stays
    /// and no new mapping can write it, so it serves one registration. Peers map the whole file, to read.
    ///
    /// Who maps the file as well sees the same bytes, and has the duties of [`ExternalMemory::at_address`].
    ///
    /// # Errors
    ///
    /// When the file cannot be mapped to be read and written, its size does not fit, or it is used already.
    pub fn of_file(file: impl Into<OwnedFd>, block_bytes: u32) -> Result<Self, SetupError> {
        let file = file.into();
        let mapping = map(&file, block_bytes, "file", |file, bytes| {
            Mapping::shared(file, bytes)
        })?;
        Ok(Self::new(mapping, block_bytes, Origin::File(file)))
    }

    /// Uses the memory of a dma-buf, as another device's driver exports it. An RDMA device can access it if its driver
    /// and the library can (`ibv_reg_dmabuf_mr`, rdma-core 34 or later); shm cannot. The exporter must permit mapping,
    /// because headers and short messages are copied by the processor.
    ///
    /// # Errors
    ///
    /// When the dma-buf cannot be mapped, its size does not fit, or it is used already.
    pub fn of_dma_buf(file: impl Into<OwnedFd>, block_bytes: u32) -> Result<Self, SetupError> {
        let file = file.into();
        let mapping = map(&file, block_bytes, "dma-buf", Mapping::shared_unpopulated)?;
        Ok(Self::new(mapping, block_bytes, Origin::DmaBuf(file)))
    }

    /// The sizes were checked.
    fn new(mapping: Mapping, block_bytes: u32, origin: Origin) -> Self {
        let blocks = mapping.bytes() / block_bytes as usize;
        let shape = PoolShape {
            // Checked against `BLOCKS_MAX`.
            buffers: u32::try_from(blocks).unwrap_or(0),
            buffer_bytes: block_bytes,
            stride_bytes: block_bytes,
            align_bytes: 1,
        };
        let arena = unique_number();
        let memory = Memory::new(Arc::new(mapping), arena);
        Self {
            shared: Arc::new(Shared {
                site: Arc::new(Site::new(memory, arena, 0, shape).of_application()),
                origin,
                leased: Mutex::new(vec![false; blocks].into_boxed_slice()),
            }),
        }
    }

    /// Leases the `bytes` bytes from `offset` on. They are as the last holder left them.
    ///
    /// # Errors
    ///
    /// [`NotLeased`].
    pub fn lease(&self, offset: u64, bytes: usize) -> Result<Lease, NotLeased> {
        let block_bytes = self.block_bytes();
        let index = offset / u64::from(block_bytes);
        let within = offset % u64::from(block_bytes);
        let fits = bytes > 0 && bytes as u64 <= u64::from(block_bytes) - within;
        let site = &self.shared.site;
        let mut leased = self.shared.blocks();
        let place = usize::try_from(index).ok().filter(|_| fits);
        let place = place.and_then(|index| leased.get_mut(index));
        let place = place.ok_or(NotLeased::NoSuchRange)?;
        if std::mem::replace(place, true) {
            return Err(NotLeased::InUse);
        }
        // Both fit into 32 bits: they lie within a block, and there are no more blocks than that.
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let buffer = site.buffer(narrow(index));
        let bytes = narrow(bytes as u64);
        Ok(Lease::new(Arc::clone(site), buffer, narrow(within), bytes))
    }

    /// Whether `lease` is on this memory, and where its first byte is.
    #[must_use]
    pub fn offset_of(&self, lease: &Lease) -> Option<u64> {
        let start = lease.as_ptr().addr().checked_sub(self.start().addr())?;
        (lease.arena() == self.number()).then_some(start as u64)
    }

    /// How many blocks are leased.
    #[must_use]
    pub fn leased(&self) -> usize {
        self.shared.blocks().iter().filter(|it| **it).count()
    }

    /// The first byte: where the application mapped it, or where [`ExternalMemory::of_file`] did. To access a byte through
    /// it has the conditions of [`ExternalMemory::at_address`].
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.mapping().start()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping().bytes()
    }

    /// The length of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.shared.site.shape.buffer_bytes
    }

    /// The number by which its buffers are known.
    pub(crate) fn number(&self) -> u32 {
        self.shared.site.arena
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.shared.site.memory.mapping()
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.shared.origin
    }

    /// Its part of a [`Memory`] whose peers see it at `offset`.
    pub(super) fn part(&self, offset: u64) -> External {
        External {
            arena: self.number(),
            mapping: Arc::clone(self.mapping()),
            offset,
        }
    }

    /// Its file, sealed for peers of shm.
    ///
    /// # Errors
    ///
    /// When it is no file that can be sealed.
    pub(crate) fn sealed_file(&self) -> Result<BorrowedFd<'_>, SetupError> {
        let what = format!("{} bytes", self.bytes());
        let Origin::File(file) = &self.shared.origin else {
            return Err(refused(
                &what,
                "peers of shm cannot map memory by its address, nor a dma-buf: register the descriptor of a memfd",
            ));
        };
        // Fails if it is sealed; then its seals decide.
        let _ = rustix::fs::fcntl_add_seals(file, SEALS);
        let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SEALS) {
            return Err(refused(
                &what,
                "peers of shm map only files that keep their pages: make the file with memfd_create and MFD_ALLOW_SEALING",
            ));
        }
        Ok(file.as_fd())
    }
}

impl Shared {
    /// The blocks that are leased, after those that were given back have been taken out.
    fn blocks(&self) -> MutexGuard<'_, Box<[bool]>> {
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(index) = self.site.returns.pop() {
            if let Some(place) = leased.get_mut(index as usize) {
                *place = false;
            }
        }
        leased
    }
}

impl fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalMemory")
            .field("bytes", &self.bytes())
            .field("block_bytes", &self.block_bytes())
            .field("origin", &self.shared.origin)
            .finish_non_exhaustive()
    }
}

const TWICE: &str =
    "a part of it is registered already: use that registration, for several nodes too";

const SEALED: &str = "it is sealed against new mappings that write, as shm does for good when a node starts with it: \
                      make another file, or keep a handle on the memory";

fn refused(what: &str, why: &str) -> SetupError {
    SetupError::System {
        doing: format!("memory of the application ({what}) cannot be used: {why}"),
        source: io::ErrorKind::InvalidInput.into(),
    }
}

fn check_sizes(bytes: usize, block_bytes: u32) -> Result<(), &'static str> {
    let block = block_bytes as usize;
    if block == 0 || !block.is_multiple_of(ALIGN_BYTES) {
        return Err("the size of a block is zero or no multiple of 4096");
    }
    if bytes == 0 || !bytes.is_multiple_of(block) {
        return Err("its length is zero or no multiple of the size of a block");
    }
    if bytes / block > BLOCKS_MAX {
        return Err("it has more than 4194304 blocks: choose larger ones");
    }
    Ok(())
}

/// Checks that the range is mapped to be read and written, by the kernel's list. Where that cannot be read, the device
/// refuses what it cannot use.
fn check_access(range: Range<usize>) -> Result<(), String> {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return Ok(());
    };
    let mut at = range.start;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let bounds = words.next().and_then(|it| it.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = bounds.map(|(a, b)| (number(a), number(b))) else {
            continue;
        };
        if end <= at || start > at {
            continue;
        }
        if !words.next().is_some_and(|it| it.starts_with("rw")) {
            return Err(format!(
                "it is not mapped to be read and written at {at:#x}: map it with PROT_READ and PROT_WRITE"
            ));
        }
        at = end;
        if at >= range.end {
            return Ok(());
        }
    }
    Err(format!("nothing is mapped at {at:#x}"))
}

fn map(
    file: &OwnedFd,
    block_bytes: u32,
    kind: &str,
    map: impl FnOnce(&OwnedFd, usize) -> io::Result<Mapping>,
) -> Result<Mapping, SetupError> {
    let system = |doing: String, source: io::Error| SetupError::System { doing, source };
    // The size of a dma-buf is where its end is.
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    let size = size.map_err(|error| system(format!("the size of the {kind}"), error.into()))?;
    let what = format!("a {kind} of {size} bytes");
    let bytes = usize::try_from(size).map_err(|_| refused(&what, "it is too long"))?;
    check_sizes(bytes, block_bytes).map_err(|why| refused(&what, why))?;
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::RDWR);
    if !flags.contains(OFlags::RDWR) {
        return Err(refused(
            &what,
            "it is open to be read only: open it with O_RDWR",
        ));
    }
    let stat = rustix::fs::fstat(file);
    let stat = stat.map_err(|error| system(format!("the {kind}"), error.into()))?;
    let claim = Claim::new(None, Some((stat.st_dev, stat.st_ino)));
    let claim = claim.ok_or_else(|| refused(&what, TWICE))?;
    let mapped = map(file, bytes).map_err(|source| {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return refused(&what, SEALED);
        }
        system(
            format!(
                "{what} could not be mapped: is there memory for all of its pages, and may it be mapped and written?"
            ),
            source,
        )
    })?;
    Ok(mapped.with(Box::new(Kept {
        _claim: claim,
        released: None,
    }) as Keeper))
}

/// Dropped when nothing uses the memory any more.
struct Kept {
    _claim: Claim,
    released: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self._claim).finish()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(released) = self.released.take() {
            // The application may use the memory again within the call.
            self._claim.give_up();
            released();
        }
    }
}

/// What is in use: a range of addresses, or a file by device and inode.
type Claimed = (Option<Range<usize>>, Option<(u64, u64)>);

static CLAIMED: Mutex<Vec<(u32, Claimed)>> = Mutex::new(Vec::new());

/// An entry in the list of all memory of the application in this process.
#[derive(Debug)]
struct Claim(u32);

impl Claim {
    /// `None` if a part of it is in use.
    fn new(range: Option<Range<usize>>, file: Option<(u64, u64)>) -> Option<Self> {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = claimed.iter().any(|(_, (other, other_file))| {
            let overlap = range.as_ref().zip(other.as_ref());
            overlap.is_some_and(|(a, b)| a.start < b.end && b.start < a.end)
                || (file.is_some() && file == *other_file)
        });
        if is_taken {
            return None;
        }
        let number = unique_number();
        claimed.push((number, (range, file)));
        Some(Self(number))
    }

    fn give_up(&self) {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.retain(|(number, _)| *number != self.0);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_up();
    }
}
