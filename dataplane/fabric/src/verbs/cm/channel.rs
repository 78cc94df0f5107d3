//! The event channel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::verbs::bindings as c;
use crate::verbs::events::set_nonblocking;

/// An event channel whose descriptor does not block.
#[derive(Debug)]
pub(in crate::verbs) struct Channel(NonNull<c::rdma_event_channel>);

// SAFETY: librdmacm keeps nothing of the thread that made a channel, and locks what its
// identifiers share; a channel is a descriptor.
unsafe impl Send for Channel {}
// SAFETY: as above: all calls on a channel are calls on its descriptor, which the kernel orders.
unsafe impl Sync for Channel {}

impl Channel {
    /// Opens a channel.
    ///
    /// # Errors
    /// When rdma-core or the kernel's RDMA-CM is missing, or this user may not open it.
    pub(in crate::verbs) fn open() -> io::Result<Arc<Self>> {
        c::available()?;
        // SAFETY: the call takes nothing.
        let channel = unsafe { c::rdma_create_event_channel() };
        let channel = Self(NonNull::new(channel).ok_or_else(explain_open_error)?);
        set_nonblocking(&channel)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn as_ptr(&self) -> *mut c::rdma_event_channel {
        self.0.as_ptr()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.0.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is open, every event was acknowledged, and every identifier on it
        // held a reference to it and is gone.
        unsafe { c::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// The error for a channel that could not be opened, with the remedy where it is known.
fn explain_open_error() -> io::Error {
    let error = io::Error::last_os_error();
    let advice = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "the kernel's RDMA-CM is missing; load it with `modprobe rdma_ucm`"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not open /dev/infiniband/rdma_cm; join the group that owns it (often `rdma`)"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {advice}"))
}
