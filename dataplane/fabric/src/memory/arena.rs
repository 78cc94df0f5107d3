//! Arenas: one mapping each, in hugepages if available.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::MemfdFlags;

use super::buffer::unique_number;
use super::mapping::{SEALS_READ_ONLY, external_range};
use super::pages::{
    self, Available, HUGE_PAGE_BYTES, ORDINARY_PAGE_BYTES, TransparentKind, no_hugepages,
};
use super::{ExternalMemory, Mapping, Memory, Pool, PoolShape};
use crate::interface::SetupError;

/// The most pieces of application memory that are attached to an arena.
pub const EXTERNAL_MAX: usize = 16;

/// Whether an arena uses hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Hugepages if there are enough, else other pages with a warning in the report.
    #[default]
    Prefer,
    /// Hugepages, or an error.
    Require,
    /// Ordinary pages.
    Never,
}

/// The size of hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePageSize {
    /// 2 MiB: on every machine with ordinary pages of 4 KiB.
    #[default]
    Mib2,
    /// 1 GiB; arenas are rounded up to it.
    Gib1,
}

impl HugePageSize {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Mib2 => HUGE_PAGE_BYTES,
            Self::Gib1 => 1 << 30,
        }
    }

    const fn flags(self) -> MemfdFlags {
        MemfdFlags::HUGETLB.union(match self {
            Self::Mib2 => MemfdFlags::HUGE_2MB,
            Self::Gib1 => MemfdFlags::HUGE_1GB,
        })
    }
}

/// The size and pages of an arena.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Size in bytes; rounded up to whole pages.
    pub bytes: u64,
    /// Hugepages or not.
    pub huge_pages: HugePages,
}

/// The kind of an arena's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved hugepages (hugetlbfs).
    Huge,
    /// Transparent hugepages, at least in part; the warning says which part.
    Transparent,
    /// Ordinary pages.
    Ordinary,
}

/// The memory of an arena, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// The kind of the pages.
    pub kind: PageKind,
    /// The size of a page in bytes.
    pub page_bytes: u64,
    /// The size of the arena in bytes.
    pub arena_bytes: u64,
    /// A warning for the user: why the arena is not in hugepages, and what to do.
    pub warning: Option<String>,
}

/// Registered memory of one core, to be carved into pools at start-up.
#[derive(Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    file: Option<OwnedFd>,
    id: u32,
    next: u64,
    next_untouched: u64,
    report: PageReport,
    external: Vec<ExternalMemory>,
    /// Where peers see each of them.
    external_ranges: Vec<Range<u64>>,
}

/// A new mapping, with its file if it has one.
type Made = (Mapping, Option<OwnedFd>);

impl Arena {
    /// Makes an arena that peers on this machine may map, but only to read: its memfd is sealed
    /// against shrinking, growing and new writable mappings.
    ///
    /// # Errors
    ///
    /// [`SetupError::System`] when hugepages are required and there are too few, and when the machine
    /// or a control group of this process has too little memory.
    pub fn shared(options: &ArenaOptions) -> Result<Self, SetupError> {
        Self::shared_in(options, HugePageSize::default())
    }

    /// As [`Arena::shared`], in hugepages of this size.
    ///
    /// # Errors
    ///
    /// As [`Arena::shared`].
    pub fn shared_in(options: &ArenaOptions, size: HugePageSize) -> Result<Self, SetupError> {
        Self::shared_with_untouched(options, size, 0)
    }

    /// As [`Arena::shared_in`], with `untouched_bytes` more for [`Arena::untouched_pool`]: ordinary memory that no peer maps
    /// and whose pages are allocated when they are first written.
    ///
    /// ```
    /// use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePageSize, HugePages, PoolShape};
    ///
    /// let options = ArenaOptions { bytes: 8192, huge_pages: HugePages::Never };
    /// let mut arena = Arena::shared_with_untouched(&options, HugePageSize::default(), 4096)?;
    /// let shape = PoolShape { buffers: 1, buffer_bytes: 4096, stride_bytes: 4096, align_bytes: 4096 };
    /// assert!(arena.untouched_pool(shape)?.is_some());
    /// // Peers map only the first part.
    /// assert_eq!(arena.report().arena_bytes, 8192);
    /// # Ok::<(), rpcrdma_fabric::interface::SetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Arena::shared`].
    pub fn shared_with_untouched(
        options: &ArenaOptions,
        size: HugePageSize,
        untouched_bytes: u64,
    ) -> Result<Self, SetupError> {
        // The untouched part is ordinary memory, even if the rest has hugepages. Its pages are allocated when peers
        // send, too late to report an error, so the limit is checked now.
        check_available(untouched_bytes, pages::available())?;
        let huge = |bytes| sealed_file(bytes, size.flags(), size.bytes(), untouched_bytes);
        let huge_page_bytes = Some(size.bytes());
        Self::make(
            options,
            TransparentKind::Shared,
            huge_page_bytes,
            untouched_bytes,
            huge,
        )
    }

    /// Makes an arena that no other process maps: for providers whose peers reach it through a
    /// device. Its hugepages are of the system's default size.
    ///
    /// # Errors
    ///
    /// As [`Arena::shared`].
    pub fn private(options: &ArenaOptions) -> Result<Self, SetupError> {
        Self::make(
            options,
            TransparentKind::Private,
            pages::default_huge_page_bytes(),
            0,
            |bytes| {
                let mapping = Mapping::huge_private(to_usize(bytes)?)?;
                mapping.populate()?;
                Ok((mapping, None))
            },
        )
    }

    /// As [`Arena::private`], in hugepages of this size.
    ///
    /// # Errors
    ///
    /// As [`Arena::shared`].
    pub fn private_in(options: &ArenaOptions, size: HugePageSize) -> Result<Self, SetupError> {
        if pages::default_huge_page_bytes() == Some(size.bytes()) {
            return Self::private(options);
        }
        // `Mapping::huge_private` can allocate only the system's default size, but a memfd can have another one. Its file
        // is closed here, so no other process can map it.
        let huge = |bytes| Ok((sealed_file(bytes, size.flags(), size.bytes(), 0)?.0, None));
        Self::make(
            options,
            TransparentKind::Private,
            Some(size.bytes()),
            0,
            huge,
        )
    }

    /// Makes a private arena of `bytes` bytes whose pages are allocated by the first write to each of them. Use it for
    /// rarely needed buffers that no device and no peer accesses. Nothing is reserved: the caller checks that the machine
    /// has the memory.
    ///
    /// # Errors
    ///
    /// [`SetupError::System`] when the kernel does not map that much.
    pub fn untouched(bytes: u64) -> Result<Self, SetupError> {
        let made = || -> io::Result<Mapping> {
            let whole = round_up(bytes, ORDINARY_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
            Mapping::anonymous(to_usize(whole)?, to_usize(ORDINARY_PAGE_BYTES)?)
        };
        let mapping = made().map_err(|source| SetupError::System {
            doing: format!("{bytes} bytes of memory could not be mapped"),
            source,
        })?;
        Ok(Self::new(
            (mapping, None),
            PageKind::Ordinary,
            ORDINARY_PAGE_BYTES,
            None,
        ))
    }

    fn make(
        options: &ArenaOptions,
        kind: TransparentKind,
        huge_page_bytes: Option<u64>,
        untouched_bytes: u64,
        huge: impl FnOnce(u64) -> io::Result<Made>,
    ) -> Result<Self, SetupError> {
        if options.huge_pages == HugePages::Never {
            return Self::ordinary(options.bytes, kind, untouched_bytes, false, None);
        }
        let made = || -> io::Result<Self> {
            let page_bytes = huge_page_bytes.ok_or(io::ErrorKind::Unsupported)?;
            let bytes = round_up(options.bytes, page_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self::new(huge(bytes)?, PageKind::Huge, page_bytes, None))
        };
        made().or_else(|source| {
            let why = no_hugepages(options.bytes, huge_page_bytes.unwrap_or(HUGE_PAGE_BYTES));
            if options.huge_pages == HugePages::Require {
                return Err(SetupError::System { doing: why, source });
            }
            let warning = Some(format!("{why} ({source})"));
            Self::ordinary(options.bytes, kind, untouched_bytes, true, warning)
        })
    }

    /// An arena without reserved hugepages. With `join`, the kernel may use transparent hugepages for it.
    fn ordinary(
        asked: u64,
        kind: TransparentKind,
        untouched_bytes: u64,
        join: bool,
        warning: Option<String>,
    ) -> Result<Self, SetupError> {
        // Checked together: both parts are ordinary memory, and each may fit alone but not both.
        let whole = asked.saturating_add(untouched_bytes);
        check_available(whole, pages::available())?;
        let bytes = round_up(asked, ORDINARY_PAGE_BYTES).unwrap_or(u64::MAX);
        let join = join && kind.is_allowed();
        let page_bytes = if join {
            HUGE_PAGE_BYTES
        } else {
            ORDINARY_PAGE_BYTES
        };
        let made = match kind {
            TransparentKind::Shared => {
                sealed_file(bytes, MemfdFlags::empty(), page_bytes, untouched_bytes)
            }
            TransparentKind::Private => anonymous(bytes, join),
        };
        let made = made.map_err(|source| SetupError::System {
            doing: format!("an arena of {bytes} bytes could not be mapped"),
            source,
        })?;
        let joined = if join {
            kind.bytes_at(made.0.start().addr())
        } else {
            0
        };
        let warning = warning.map(|why| {
            if joined > 0 {
                format!("{why}; {joined} of its bytes are in transparent hugepages instead")
            } else if join {
                format!("{why}; transparent hugepages are allowed, but the kernel had none")
            } else {
                format!("{why}; {}", kind.how_to_allow())
            }
        });
        Ok(if joined > 0 {
            Self::new(made, PageKind::Transparent, HUGE_PAGE_BYTES, warning)
        } else {
            Self::new(made, PageKind::Ordinary, ORDINARY_PAGE_BYTES, warning)
        })
    }

    fn new(made: Made, kind: PageKind, page_bytes: u64, warning: Option<String>) -> Self {
        let (mapping, file) = made;
        let report = PageReport {
            kind,
            page_bytes,
            arena_bytes: mapping.touched_bytes() as u64,
            warning,
        };
        Self {
            mapping: Arc::new(mapping),
            file,
            id: unique_number(),
            next: 0,
            next_untouched: report.arena_bytes,
            report,
            external: Vec::new(),
            external_ranges: Vec::new(),
        }
    }

    /// The same memory for another port: it posts buffers of this arena's pools, and has no room for other pools. Call it
    /// after [`Arena::attach`].
    ///
    /// # Errors
    ///
    /// [`SetupError::System`] when no file descriptor is free.
    pub fn for_another_port(&self) -> Result<Self, SetupError> {
        let file = self.file.as_ref().map(OwnedFd::try_clone).transpose();
        Ok(Self {
            mapping: Arc::clone(&self.mapping),
            file: file.map_err(|source| SetupError::System {
                doing: "an arena could not be shared with another port".to_owned(),
                source,
            })?,
            id: self.id,
            next: self.report.arena_bytes,
            next_untouched: self.mapping.bytes() as u64,
            report: self.report.clone(),
            external: self.external.clone(),
            external_ranges: self.external_ranges.clone(),
        })
    }

    /// Access to the bytes of its buffers.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let memory = Memory::new(Arc::clone(&self.mapping), self.id);
        let both = self.external.iter().zip(&self.external_ranges);
        let parts = both.map(|(external, range)| external.part(range.start));
        memory.with(&parts.collect::<Vec<_>>())
    }

    /// Gives the port of this arena access to memory of the application: leases on it can be sent, read into and written
    /// as those of the arena's own pools. Call it before the port is made and pools are carved.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] when there are too many, or too many bytes.
    pub fn attach(&mut self, external: &ExternalMemory) -> Result<(), SetupError> {
        let limit = EXTERNAL_MAX as u64;
        if self.external.len() >= EXTERNAL_MAX {
            return Err(SetupError::Limit {
                what: "pieces of application memory of a core",
                asked: limit + 1,
                limit,
            });
        }
        let last = self.external_ranges.last();
        let end = last.map_or(self.report.arena_bytes, |range| range.end);
        let bytes = external.bytes() as u64;
        let range = external_range(end, bytes).ok_or(SetupError::Limit {
            what: "bytes of application memory of a core",
            asked: end.saturating_add(bytes),
            limit: isize::MAX as u64,
        })?;
        self.external.push(external.clone());
        self.external_ranges.push(range);
        Ok(())
    }

    /// The application's memory that was attached.
    #[must_use]
    pub fn external(&self) -> &[ExternalMemory] {
        &self.external
    }

    /// The file of a shared arena, which is passed to peers; a private arena has none.
    #[must_use]
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// The kind of its pages.
    #[must_use]
    pub fn report(&self) -> &PageReport {
        &self.report
    }

    /// Carves a pool of equal buffers. Only at start-up.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] when the arena has no room for it; nothing is carved then.
    pub fn pool(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        let limit = self.report.arena_bytes;
        let pool = Pool::carve(self.memory(), self.id, self.next..limit, shape)?;
        self.next = pool.end();
        Ok(pool)
    }

    /// Carves a pool out of the memory that is allocated by the first write; `None` if the arena has none.
    ///
    /// # Errors
    ///
    /// As [`Arena::pool`].
    pub fn untouched_pool(&mut self, shape: PoolShape) -> Result<Option<Pool>, SetupError> {
        let limit = self.mapping.bytes() as u64;
        if self.report.arena_bytes == limit {
            return Ok(None);
        }
        let pool = Pool::carve(self.memory(), self.id, self.next_untouched..limit, shape)?;
        self.next_untouched = pool.end();
        Ok(Some(pool))
    }
}

fn round_up(bytes: u64, page_bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(page_bytes)
}

fn to_usize(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Checks that the memory is available. All pages are allocated at once, and when memory runs out the kernel kills a
/// process instead of refusing a page. One sixteenth of the available memory is left to other processes.
fn check_available(asked: u64, available: Option<Available>) -> Result<u64, SetupError> {
    let bytes = round_up(asked, ORDINARY_PAGE_BYTES).unwrap_or(u64::MAX);
    match available {
        Some(available) if bytes > available.bytes - available.bytes / 16 => {
            Err(SetupError::System {
                doing: format!(
                    "an arena of {asked} bytes does not fit into the {} bytes that are available \
                     ({}), of which it may take fifteen sixteenths; ask for fewer connections or \
                     smaller receive buffers, or free memory",
                    available.bytes, available.source
                ),
                source: io::ErrorKind::OutOfMemory.into(),
            })
        }
        _ => Ok(bytes),
    }
}

/// Makes a memfd, maps it and seals it. `page_bytes` is the size of its pages, or of the transparent hugepages that the
/// kernel may use for it.
fn sealed_file(
    bytes: u64,
    flags: MemfdFlags,
    page_bytes: u64,
    untouched_bytes: u64,
) -> io::Result<Made> {
    let join = !flags.contains(MemfdFlags::HUGETLB) && page_bytes == HUGE_PAGE_BYTES;
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("rpcrdma-arena", flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    let file_bytes = to_usize(bytes)?;
    let mapping = if untouched_bytes == 0 {
        Mapping::shared_lazily(&file, file_bytes)?
    } else {
        let untouched = round_up(untouched_bytes, ORDINARY_PAGE_BYTES);
        let untouched = untouched.ok_or(io::ErrorKind::OutOfMemory)?;
        let (untouched, align) = (to_usize(untouched)?, to_usize(page_bytes)?);
        Mapping::shared_with_untouched(&file, file_bytes, untouched, align)?
    };
    if join {
        mapping.advise_huge_pages()?;
    }
    mapping.populate()?;
    // Sealed last: FUTURE_WRITE keeps the mapping above writable and refuses every later writable one. A peer maps the
    // file safely because it cannot shrink.
    rustix::fs::fcntl_add_seals(&file, SEALS_READ_ONLY)?;
    Ok((mapping, Some(file)))
}

fn anonymous(bytes: u64, join: bool) -> io::Result<Made> {
    let align = if join {
        HUGE_PAGE_BYTES
    } else {
        ORDINARY_PAGE_BYTES
    };
    let mapping = Mapping::anonymous(to_usize(bytes)?, to_usize(align)?)?;
    if join {
        mapping.advise_huge_pages()?;
    }
    mapping.populate()?;
    Ok((mapping, None))
}
