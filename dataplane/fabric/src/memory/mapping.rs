//! A piece of mapped memory that unmaps itself.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of this process. Shared between threads by `Arc`.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Mapping only names a range of addresses; reading and writing them goes through tokens
// (Buffer) or raw pointers whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of `file` shared, readable and writable, with every page present.
    pub fn shared(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::map(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `bytes` bytes of a peer's `file`, to read only, with every page present. Writing
    /// through [`Mapping::start`] ends in a segmentation fault.
    pub(crate) fn shared_read_only(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::map(file, bytes, ProtFlags::READ)
    }

    fn map(file: impl AsFd, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so no mapping of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                flags,
                file,
                0,
            )
        }?;
        Self::from_raw(start.cast(), bytes)
    }

    fn from_raw(start: *mut u8, bytes: usize) -> io::Result<Self> {
        NonNull::new(start)
            .map(|start| Self { start, bytes })
            .ok_or_else(|| io::Error::other("the kernel mapped address zero"))
    }

    /// The first byte.
    #[inline]
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
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
        // SAFETY: the range was mapped by `map` and is unmapped only here; whoever holds
        // pointers into it also holds the Arc that keeps this value alive.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
    }
}
