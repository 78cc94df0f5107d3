//! Completion queues.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_comp_channel, ibv_cq, ibv_wc};
use super::context::Context;
use super::errno::{done, failed, made};
use super::events::set_nonblocking;
use super::leaked;
use crate::interface::SetupError;

/// A completion queue, with the channel that wakes a parked core.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    /// A field with its own `Drop`, because it must be destroyed after the queue.
    channel: Channel,
    _context: Arc<Context>,
}

// SAFETY: calls that take a completion queue may be made from any thread; the library locks it.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue of at least `entries` entries. Events about it carry `port`.
    pub(crate) fn new(
        context: &Arc<Context>,
        entries: u32,
        port: usize,
    ) -> Result<Self, SetupError> {
        let limit = context.limits().completion_queue_entries;
        let count = c_int::try_from(entries).unwrap_or(c_int::MAX);
        if entries > limit {
            return Err(SetupError::Limit {
                what: "entries of a completion queue (Receives and work requests of a port)",
                asked: entries.into(),
                limit: limit.into(),
            });
        }
        // SAFETY: an open context.
        let channel = made(|| unsafe { bindings::ibv_create_comp_channel(context.raw()) })
            .map(Channel)
            .map_err(failed("the device refused a completion channel"))?;
        let mark = std::ptr::without_provenance_mut(port);
        // SAFETY: an open context and its channel; the mark is only a number.
        let raw = made(|| unsafe {
            bindings::ibv_create_cq(context.raw(), count, mark, channel.0.as_ptr(), 0)
        });
        let raw = raw.map_err(failed(format!(
            "the device refused a completion queue of {entries} entries"
        )))?;
        let queue = Self {
            raw,
            channel,
            _context: Arc::clone(context),
        };
        set_nonblocking(queue.descriptor())
            .map_err(failed("the completion channel could not be set up"))?;
        Ok(queue)
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Moves at most `most` completions into `into`; returns how many. An error means that the queue is
    /// broken.
    #[inline]
    pub(crate) fn poll<const N: usize>(
        &self,
        into: &mut [std::mem::MaybeUninit<ibv_wc>; N],
        most: usize,
    ) -> io::Result<usize> {
        let most = c_int::try_from(most.min(N)).unwrap_or(0);
        // SAFETY: a queue that lives, and an array with room for that many.
        let count = unsafe { bindings::ibv_poll_cq(self.raw(), most, into.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue is broken"))
    }

    /// The next completion makes [`CompletionQueue::descriptor`] readable.
    pub(crate) fn request_event(&self) -> io::Result<()> {
        // SAFETY: a queue that lives.
        done(unsafe { bindings::ibv_req_notify_cq(self.raw(), 0) })
    }

    /// Takes all waiting events, so that the descriptor is no longer readable.
    pub(crate) fn clear_events(&self) {
        let mut queue = std::ptr::null_mut();
        let mut mark = std::ptr::null_mut();
        let mut count = 0;
        // SAFETY: a channel that lives and does not block, and two pointers to write.
        while unsafe {
            bindings::ibv_get_cq_event(self.channel.0.as_ptr(), &raw mut queue, &raw mut mark)
        } == 0
        {
            count += 1;
        }
        if count > 0 {
            // SAFETY: the queue of this channel, and as many events as were got.
            unsafe { bindings::ibv_ack_cq_events(self.raw(), count) };
        }
    }

    /// Becomes readable with the next completion after [`CompletionQueue::request_event`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.channel.0.as_ptr()).fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: from `ibv_create_cq`, given back only here; queue pairs hold the Arc around it.
        leaked(
            "completion queue",
            done(unsafe { bindings::ibv_destroy_cq(self.raw()) }),
        );
    }
}

/// A channel that is destroyed on drop.
#[derive(Debug)]
struct Channel(NonNull<ibv_comp_channel>);

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: from `ibv_create_comp_channel`, given back once, after its queue.
        let returned = unsafe { bindings::ibv_destroy_comp_channel(self.0.as_ptr()) };
        leaked("completion channel", done(returned));
    }
}
