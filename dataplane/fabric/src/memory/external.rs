//! Memory of the application: hugepages of SPDK or DPDK, its own mappings, memfds, dma-bufs.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, OFlags, SealFlags, SeekFrom, fstat, makedev, seek};

use super::blocks::Blocks;
use super::buffer::{External, unique_number};
use super::mapping::{Keeper, SEALS_READ_ONLY};
use super::site::{PoolShape, Site};
use super::{Lease, Mapping, Memory};
use crate::interface::SetupError;

/// Addresses and block sizes are multiples of this.
const ALIGN_BYTES: usize = 4096;
/// The most blocks of one piece of memory.
const BLOCKS_MAX: usize = 1 << 22;

/// The part of [`SEALS_READ_ONLY`] that fixes the size of a file. It is set before the file is mapped.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The other part: it fixes the pages, refuses `write` and new mappings that write, and refuses further seals. It is set
/// after the file was mapped. Only one process can set `SEAL`.
const CONTENT_SEALS: SealFlags = SEALS_READ_ONLY.difference(SIZE_SEALS);

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
}

/// Where the memory comes from, which decides how a device registers it.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The application mapped it.
    Address,
    /// A sealed file that peers on this machine can map as well.
    File(OwnedFd),
    /// A file that is not sealed.
    UnsealedFile,
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
    /// * The range is not used by another [`ExternalMemory`], nor by an arena of this crate. (In this process, an overlap with
    ///   the addresses of another [`ExternalMemory`] is found, and is an error; and with its file, when `/proc/self/maps` shows
    ///   that a file is mapped there. Two ranges that map the same pages of a file are not found.)
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
        let files = check_access(address..end).map_err(|why| wrong(&why))?;
        let claim = Claim::new(Some(address..end), files).ok_or_else(|| wrong(TWICE))?;
        let keeper = Box::new(Kept {
            _claim: claim,
            released: Some(Box::new(released)),
        });
        // SAFETY: as the caller promises: the keeper calls `released` when it is dropped.
        let mapping = unsafe { Mapping::of_application(start, bytes, keeper) };
        Ok(Self::new(mapping, block_bytes, Origin::Address))
    }

    /// Maps a whole memfd, with hugepages or without, and uses it. Every page of it is allocated now.
    ///
    /// It must be possible to seal the memfd ([`ExternalMemory::can_seal`]). It is sealed for good: from here on no process
    /// can resize it, write it by `write`, remove pages of it, or map it to write. So it serves one registration, and an
    /// error may leave it sealed. On shm, peers map all of it, to read.
    ///
    /// A mapping that was made before, in this process or another, can still write: its owner has the duties of
    /// [`ExternalMemory::at_address`]. So a descriptor from another process is as trusted as that process: no seal ends its
    /// mapping, and nothing shows that there is one. A read by the descriptor stays possible; during a lease it may return
    /// any mixture of old and new bytes.
    ///
    /// # Errors
    ///
    /// When the file cannot be sealed, or cannot be mapped to be read and written, its size does not fit, or it is used
    /// already. For a file that cannot be sealed there is [`ExternalMemory::of_unsealed_file`].
    pub fn of_file(file: impl Into<OwnedFd>, block_bytes: u32) -> Result<Self, SetupError> {
        let file = file.into();
        let mapping = map(&file, block_bytes, "file", |file, bytes, what| {
            map_sealed(file, bytes, what)
        })?;
        Ok(Self::new(mapping, block_bytes, Origin::File(file)))
    }

    /// Whether [`ExternalMemory::of_file`] can seal this file: a memfd to which seals can be added (`F_GET_SEALS` has no
    /// `F_SEAL_SEAL`). It was made with `MFD_ALLOW_SEALING` or `MFD_NOEXEC_SEAL`, or with neither where the sysctl
    /// `vm.memfd_noexec` says so.
    #[must_use]
    pub fn can_seal(file: impl AsFd) -> bool {
        rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| !seals.contains(SealFlags::SEAL))
    }

    /// As [`ExternalMemory::of_file`], without seals: for a file that has none, as those of hugetlbfs, or that other
    /// processes must still map to write. RDMA devices can access it; shm cannot, since a peer does not map a file that
    /// can change.
    ///
    /// # Safety
    ///
    /// Until all handles, leases and ports with it were dropped:
    ///
    /// * No process shortens the file, removes pages of it (`FALLOC_FL_PUNCH_HOLE`, `MADV_REMOVE`), or replaces them.
    /// * Nothing but leases reads a byte of a block while it is leased, nor writes it: by no descriptor, by no mapping, in no
    ///   process. A block that is not leased may be accessed, and must be kept from being leased meanwhile.
    ///
    /// # Errors
    ///
    /// When the file cannot be mapped to be read and written, its size does not fit, or it is used already.
    pub unsafe fn of_unsealed_file(
        file: impl Into<OwnedFd>,
        block_bytes: u32,
    ) -> Result<Self, SetupError> {
        let file = file.into();
        let mapping = map(&file, block_bytes, "file", |file, bytes, what| {
            Mapping::shared(file, bytes).map_err(|error| not_mapped(what, error))
        })?;
        Ok(Self::new(mapping, block_bytes, Origin::UnsealedFile))
    }

    /// Uses the memory of a dma-buf, as another device's driver exports it. An RDMA device can access it if its driver
    /// and the library can (`ibv_reg_dmabuf_mr`, rdma-core 34 or later); shm cannot. The exporter must permit mapping,
    /// because headers and short messages are copied by the processor.
    ///
    /// # Safety
    ///
    /// Until all handles, leases and ports with it were dropped:
    ///
    /// * The exporter keeps the memory accessible to the processor, and coherent with it, without
    ///   `DMA_BUF_IOCTL_SYNC`: it does not move it nor power its device down.
    /// * Nothing but leases reads a byte of a block while it is leased, nor writes it: no other device, and by no mapping in
    ///   any process. A block that is not leased may be accessed, and must be kept from being leased meanwhile.
    ///
    /// # Errors
    ///
    /// When the dma-buf cannot be mapped, its size does not fit, or it is used already.
    pub unsafe fn of_dma_buf(
        file: impl Into<OwnedFd>,
        block_bytes: u32,
    ) -> Result<Self, SetupError> {
        let file = file.into();
        let mapping = map(&file, block_bytes, "dma-buf", |file, bytes, what| {
            Mapping::shared_lazily(file, bytes).map_err(|error| not_mapped(what, error))
        })?;
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
                site: Arc::new(Site::of_application(memory, arena, shape)),
                origin,
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
        let place = usize::try_from(index).ok().filter(|_| fits);
        let taken = place.and_then(|index| site.blocks()?.take(index));
        if !taken.ok_or(NotLeased::NoSuchRange)? {
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

    /// How many blocks are leased. What the leases that are seen to have ended did with their blocks is visible then.
    #[must_use]
    pub fn leased(&self) -> usize {
        self.shared.site.blocks().map_or(0, Blocks::leased)
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

    /// Its file, which is sealed, for peers of shm.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub(crate) fn sealed_file(&self) -> Result<BorrowedFd<'_>, SetupError> {
        let why = match &self.shared.origin {
            Origin::File(file) => return Ok(file.as_fd()),
            Origin::UnsealedFile => {
                "peers of shm map only files that keep their pages: make the file with memfd_create and MFD_ALLOW_SEALING, \
                 and register it with `of_file`"
            }
            Origin::Address | Origin::DmaBuf(_) => {
                "peers of shm cannot map memory by its address, nor a dma-buf: register the descriptor of a memfd"
            }
        };
        Err(refused(&format!("{} bytes", self.bytes()), why))
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

const SEALED: &str = "it is sealed against new mappings that write, as its registration does for good: make another file, \
                      or keep a handle on the memory";

const UNSEALABLE: &str = "it cannot be sealed, so that other processes could change or shorten it: make it with memfd_create \
                          and MFD_ALLOW_SEALING, or register it for RDMA devices with the unsafe `of_unsealed_file`";

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
/// refuses what it cannot use. Returns the files whose pages are there.
fn check_access(range: Range<usize>) -> Result<Vec<FileId>, String> {
    let mut files = Vec::new();
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return Ok(files);
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
        let flags = words.next().unwrap_or_default();
        if !flags.starts_with("rw") {
            return Err(format!(
                "it is not mapped to be read and written at {at:#x}: map it with PROT_READ and PROT_WRITE"
            ));
        }
        // A private mapping copies each page that is written.
        if flags.ends_with('s') {
            files.extend(file_of(words));
        }
        at = end;
        if at >= range.end {
            return Ok(files);
        }
    }
    Err(format!("nothing is mapped at {at:#x}"))
}

/// The file of a mapping, from the words of its line that follow the flags; `None` without one.
fn file_of<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<FileId> {
    let _offset = words.next()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = makedev(number(major)?, number(minor)?);
    let inode = words.next()?.parse().ok()?;
    (inode != 0).then_some((device, inode))
}

fn map(
    file: &OwnedFd,
    block_bytes: u32,
    kind: &str,
    map: impl FnOnce(&OwnedFd, usize, &str) -> Result<Mapping, SetupError>,
) -> Result<Mapping, SetupError> {
    let system = |doing: String, source: io::Error| SetupError::System { doing, source };
    let size = size_of(file).map_err(|error| system(format!("the size of the {kind}"), error))?;
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
    let stat = fstat(file);
    let stat = stat.map_err(|error| system(format!("the {kind}"), error.into()))?;
    let claim = Claim::new(None, vec![(stat.st_dev, stat.st_ino)]);
    let claim = claim.ok_or_else(|| refused(&what, TWICE))?;
    let mapped = map(file, bytes, &what)?;
    Ok(mapped.with(Box::new(Kept {
        _claim: claim,
        released: None,
    }) as Keeper))
}

/// The size of a file. Not every kernel reports that of a dma-buf, whose size is where its end is.
fn size_of(file: &OwnedFd) -> io::Result<u64> {
    let stat = fstat(file)?;
    if stat.st_size != 0 || FileType::from_raw_mode(stat.st_mode).is_file() {
        return u64::try_from(stat.st_size).map_err(io::Error::other);
    }
    // The position belongs to the application too. A dma-buf has none, and cannot say it.
    let position = seek(file, SeekFrom::Current(0)).unwrap_or(0);
    let size = seek(file, SeekFrom::End(0))?;
    seek(file, SeekFrom::Start(position))?;
    Ok(size)
}

fn not_mapped(what: &str, source: io::Error) -> SetupError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return refused(what, SEALED);
    }
    SetupError::System {
        doing: format!(
            "{what} could not be mapped: is there memory for all of its pages, and may it be mapped and written?"
        ),
        source,
    }
}

/// Maps a file of `bytes` bytes, and seals it so that this mapping is the last one that writes, and no page of it can go.
///
/// The size is sealed first, because an access behind the end of a file that was shortened raises a signal. The contents are
/// sealed after the mapping, which `FUTURE_WRITE` would refuse. Nobody has a lease yet, so what others write or remove
/// in between harms nothing: the missing pages are allocated at the end.
fn map_sealed(file: &OwnedFd, bytes: usize, what: &str) -> Result<Mapping, SetupError> {
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::SEAL);
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(refused(what, SEALED));
    }
    let seal =
        |seals| rustix::fs::fcntl_add_seals(file, seals).map_err(|_| refused(what, UNSEALABLE));
    seal(SIZE_SEALS)?;
    if size_of(file).ok() != Some(bytes as u64) {
        return Err(refused(what, "its size changed while it was registered"));
    }
    let mapping = Mapping::shared_lazily(file, bytes).map_err(|error| not_mapped(what, error))?;
    // Fails if another process sealed it meanwhile, which has a mapping that writes then.
    seal(CONTENT_SEALS)?;
    mapping
        .populate()
        .map_err(|error| not_mapped(what, error))?;
    Ok(mapping)
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

/// Device and inode.
type FileId = (u64, u64);

/// What is in use: a range of addresses and the files that are mapped there, or a whole file.
type Claimed = (Option<Range<usize>>, Vec<FileId>);

static CLAIMED: Mutex<Vec<(u32, Claimed)>> = Mutex::new(Vec::new());

/// An entry in the list of all memory of the application in this process.
#[derive(Debug)]
struct Claim(u32);

impl Claim {
    /// `None` if a part of it is in use.
    fn new(range: Option<Range<usize>>, files: Vec<FileId>) -> Option<Self> {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = claimed.iter().any(|(_, (other, other_files))| {
            match range.as_ref().zip(other.as_ref()) {
                // Their files say nothing: two ranges can be different parts of one.
                Some((a, b)) => a.start < b.end && b.start < a.end,
                None => files.iter().any(|file| other_files.contains(file)),
            }
        });
        if is_taken {
            return None;
        }
        let number = unique_number();
        claimed.push((number, (range, files)));
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
