//! The event channel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::event::{EventKind, Parameters};
use super::id::Id;
use crate::verbs::bindings as c;
use crate::verbs::errno::done;

/// An event channel whose descriptor does not block.
#[derive(Debug)]
pub(in crate::verbs) struct Channel(NonNull<c::rdma_event_channel>);

// SAFETY: librdmacm keeps nothing of the thread that made a channel, and locks what its
// identifiers share; a channel is a descriptor.
unsafe impl Send for Channel {}
// SAFETY: as above: all calls on a channel are calls on its descriptor, which the kernel orders.
unsafe impl Sync for Channel {}

/// An event that was copied and acknowledged.
#[derive(Debug)]
pub(in crate::verbs) struct Event {
    /// What happened.
    pub(in crate::verbs) kind: EventKind,
    /// Zero, a negative `errno`, or for a rejection the CM's reason.
    pub(in crate::verbs) status: i32,
    /// The number of the identifier; for a request, that of the listener.
    pub(in crate::verbs) number: u64,
    /// The peer's parameters and private data.
    pub(in crate::verbs) parameters: Parameters,
    /// The identifier of a new request. Dropping it rejects the request.
    pub(in crate::verbs) request: Option<Id>,
}

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
        let flags = rustix::fs::fcntl_getfl(channel.as_fd())?;
        rustix::fs::fcntl_setfl(channel.as_fd(), flags | OFlags::NONBLOCK)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn as_ptr(&self) -> *mut c::rdma_event_channel {
        self.0.as_ptr()
    }

    /// The next event, copied and acknowledged; `None` when there is none now.
    ///
    /// # Errors
    /// When the channel itself has failed.
    pub(in crate::verbs) fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is open; the call writes one pointer.
        let got = done(unsafe { c::rdma_get_cm_event(self.as_ptr(), &raw mut event) });
        match got {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the call succeeded, so that the event is valid until it is acknowledged; it
        // belongs to an identifier of ours, since only those are on the channel, and that is
        // alive, since the kernel drops the events of a destroyed one.
        let (copied, request) = unsafe { self.copy(&*event) };
        // SAFETY: the event came from the call above and is acknowledged once, here; nothing
        // refers to it any more.
        unsafe { c::rdma_ack_cm_event(event) };
        // After the acknowledgement: dropping an `Id` before it would wait for this event.
        let request = request.map(|raw| Id::from_request(raw, Arc::clone(self)));
        Ok(Some(Event { request, ..copied }))
    }

    /// Copies an event, and returns the identifier of a new request.
    ///
    /// # Safety
    ///
    /// The event is valid and not acknowledged, and its identifiers are alive.
    unsafe fn copy(&self, event: &c::rdma_cm_event) -> (Event, Option<NonNull<c::rdma_cm_id>>) {
        let kind = EventKind::from_c(event.event);
        let (of, request) = match kind {
            EventKind::ConnectRequest => (event.listen_id, NonNull::new(event.id)),
            _ => (event.id, None),
        };
        // SAFETY: the identifier is alive, as the caller promises. Its context was set by us.
        let number = unsafe { (*of).context }.addr() as u64;
        // SAFETY: identifiers of the TCP port space have connection parameters, which the library
        // fills or zeroes whatever the event; their private data lies in the event.
        let parameters = unsafe { Parameters::from_c(&event.param.conn) };
        let copied = Event {
            kind,
            status: event.status,
            number,
            parameters,
            request: None,
        };
        (copied, request)
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
