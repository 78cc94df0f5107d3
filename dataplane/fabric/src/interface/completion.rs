//! What a poll of the completion queue yields.

use super::{Gather, QueuePairId, Receive, RemoteKey, Window, WorkId};

/// The most completions that one poll yields.
pub const REAP_MAX: usize = 8;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// As asked.
    Success,
    /// The message was longer than the Receive that it met.
    LocalLength,
    /// The queue pair was in error before the work request was done.
    Flushed,
    /// The peer refused a key, a range or an access, or a Send met a Receive that is too short.
    RemoteAccess,
    /// The peer could not do it: a Receive too short, a broken record, its queue pair in error.
    RemoteOperation,
    /// The peer is gone, or did not answer.
    RetryExceeded,
    /// A fault that was injected on purpose.
    Injected,
}

/// One completion. It owns what it gives back, so it is handled by value.
#[derive(Debug)]
pub struct Completion {
    /// The queue pair; it may be gone already, so compare generations.
    pub queue_pair: QueuePairId,
    /// How it ended. Other fields are meaningful as each kind says.
    pub status: Status,
    /// What it was.
    pub kind: CompletionKind,
}

/// What a completion was of.
#[derive(Debug)]
pub enum CompletionKind {
    /// A Send arrived (or a Receive failed). The Receive comes back in either case.
    Receive {
        /// The Receive, to be read with [`super::Port::received`] and then posted again.
        receive: Receive,
        /// Bytes that arrived; with a status other than success, none of them counts.
        bytes: u32,
        /// The key that the peer's Send invalidated here.
        invalidated: Option<RemoteKey>,
    },
    /// A signalled Send was acknowledged.
    Send(WorkId),
    /// An RDMA Read ended; with success its buffers hold the peer's bytes.
    Read(WorkId, Gather),
    /// An RDMA Write was acknowledged.
    Write(WorkId),
    /// A window was invalidated locally; its buffer comes back by
    /// [`super::Port::next_returned`].
    Invalidated(WorkId, Window),
    /// The connection ended: every work request of the queue pair has completed before this.
    /// The queue pair stays until [`super::Port::destroy_queue_pair`].
    Disconnected,
}

/// Completions of one poll, in a fixed array on the caller's stack.
#[derive(Debug, Default)]
pub struct CompletionBatch {
    entries: [Option<Completion>; REAP_MAX],
    len: usize,
}

impl CompletionBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no further completion fits.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == REAP_MAX
    }

    /// The completions in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a completion; gives it back when the batch is full.
    #[inline]
    pub fn push(&mut self, completion: Completion) -> Result<(), Completion> {
        match self.entries.get_mut(self.len) {
            Some(entry) => {
                *entry = Some(completion);
                self.len += 1;
                Ok(())
            }
            None => Err(completion),
        }
    }

    /// Takes all completions out, in order.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = Completion> + '_ {
        let len = std::mem::take(&mut self.len);
        self.entries.iter_mut().take(len).filter_map(Option::take)
    }
}
