//! Arenas: one mapping each, in hugepages where there are any.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use super::{Mapping, Memory, Pool, PoolShape};
use crate::interface::SetupError;

/// Whether an arena lies in hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Hugepages if there are enough, else ordinary pages with a warning in the report.
    #[default]
    Prefer,
    /// Hugepages, or an error.
    Require,
    /// Ordinary pages.
    Never,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Size in bytes; rounded up to whole pages.
    pub bytes: u64,
    /// Hugepages or not.
    pub huge_pages: HugePages,
}

/// What pages an arena lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved hugepages (hugetlbfs).
    Huge,
    /// Ordinary pages that the kernel was asked to join to transparent hugepages.
    Transparent,
    /// Ordinary pages.
    Ordinary,
}

/// What an arena got, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// The kind of the pages.
    pub kind: PageKind,
    /// The size of a page in bytes.
    pub page_bytes: u64,
    /// The size of the arena in bytes.
    pub arena_bytes: u64,
    /// What a person should know: why it is not hugepages, and what to do.
    pub warning: Option<String>,
}

/// Registered memory of one core, to be carved into pools at start-up.
#[derive(Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    file: OwnedFd,
    id: u32,
    next: u64,
    report: PageReport,
}

const HUGE_PAGE_BYTES: u64 = 2 << 20;
const ORDINARY_PAGE_BYTES: u64 = 4096;

/// Numbers arenas and pools of this process, so that a token cannot be mistaken for another's.
pub(super) fn unique_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Arena {
    /// Makes an arena that peers on this machine may map, but only to read: its memfd is sealed
    /// against shrinking, growing and new writable mappings.
    pub fn shared(options: &ArenaOptions) -> Result<Self, SetupError> {
        match options.huge_pages {
            HugePages::Never => Self::ordinary(options.bytes, None),
            HugePages::Require => Self::huge(options.bytes).map_err(|source| SetupError::System {
                doing: no_hugepages(options.bytes),
                source,
            }),
            HugePages::Prefer => Self::huge(options.bytes).or_else(|error| {
                let why = format!("{} ({error})", no_hugepages(options.bytes));
                Self::ordinary(options.bytes, Some(why))
            }),
        }
    }

    fn huge(bytes: u64) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        Self::sealed(bytes, flags, PageKind::Huge, HUGE_PAGE_BYTES, None)
    }

    fn ordinary(bytes: u64, warning: Option<String>) -> Result<Self, SetupError> {
        let bytes = bytes.max(1).next_multiple_of(ORDINARY_PAGE_BYTES);
        Self::sealed(
            bytes,
            MemfdFlags::empty(),
            PageKind::Ordinary,
            ORDINARY_PAGE_BYTES,
            warning,
        )
        .map_err(|source| SetupError::System {
            doing: format!("an arena of {bytes} bytes could not be mapped"),
            source,
        })
    }

    fn sealed(
        bytes: u64,
        flags: MemfdFlags,
        kind: PageKind,
        page_bytes: u64,
        warning: Option<String>,
    ) -> io::Result<Self> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("rpcrdma-arena", flags)?;
        rustix::fs::ftruncate(&file, bytes)?;
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let mapping = Mapping::shared(&file, length)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let report = PageReport {
            kind,
            page_bytes,
            arena_bytes: bytes,
            warning,
        };
        Ok(Self {
            mapping: Arc::new(mapping),
            file,
            id: unique_number(),
            next: 0,
            report,
        })
    }

    /// Access to the bytes of its buffers.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::new(Arc::clone(&self.mapping), self.id)
    }

    /// The file behind it, to be passed to peers.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// What pages it got.
    #[must_use]
    pub fn report(&self) -> &PageReport {
        &self.report
    }

    /// Carves a pool of equal buffers. Only at start-up.
    pub fn pool(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        let pool = Pool::carve(self.memory(), self.id, self.next, shape)?;
        self.next = pool.end();
        Ok(pool)
    }
}

fn no_hugepages(bytes: u64) -> String {
    let pages = bytes.div_ceil(HUGE_PAGE_BYTES);
    format!(
        "no {pages} free hugepages of 2 MiB for an arena of {bytes} bytes; \
         reserve them with: echo {pages} > /proc/sys/vm/nr_hugepages"
    )
}
