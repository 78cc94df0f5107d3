//! The completions that a poll yields.

use std::mem::MaybeUninit;

use super::{Gather, QueuePairId, Receive, RemoteKey, Window, WorkId};

/// The most completions that one poll can be made to yield.
pub const REAP_MAX: usize = 64;

/// The default limit of completions for one poll.
pub const REAP_USUAL: usize = 8;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Success,
    /// The message was longer than the Receive that it met.
    LocalLength,
    /// The queue pair was in error before the work request was done.
    Flushed,
    /// The peer refused a key, a range or an access, or a Send met a Receive that is too short.
    RemoteAccess,
    /// The peer could not do it: a Receive too short, a broken record, its queue pair in error.
    RemoteOperation,
    /// The peer has died, or did not answer.
    RetryExceeded,
    /// The device of the peer answered that no Receive was posted, and the retries ran out: the peer grants credits
    /// without Receives, or posts its Receives too late. By default the device retries without limit, so this status
    /// does not occur.
    ReceiverNotReady,
    /// The device refused the work request, or the local memory that it names: a defect on this
    /// side, or of the device.
    LocalFault,
    /// A fault that was injected on purpose.
    Injected,
}

/// One completion. It owns the Receives and buffers that it returns, so it is passed by value.
#[derive(Debug)]
pub struct Completion {
    /// The queue pair. It may have been destroyed already, so compare generations.
    pub queue_pair: QueuePairId,
    /// How it ended. Other fields are meaningful as each kind says.
    pub status: Status,
    /// What it was.
    pub kind: CompletionKind,
}

/// The work request that completed.
#[derive(Debug)]
pub enum CompletionKind {
    /// A Send arrived (or a Receive failed). The Receive comes back in either case.
    Receive {
        /// The Receive, to be read with [`super::PortReceives::received`] and then posted again.
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
    /// [`super::PortSends::next_returned`].
    Invalidated(WorkId, Window),
    /// The connection ended: every work request of the queue pair has completed before this.
    /// The queue pair stays until [`super::PortSetup::destroy_queue_pair`]. Its status is that of the work
    /// request or Receive that failed first, signalled or not, if the provider reports it (`verbs`
    /// does); otherwise [`Status::Flushed`].
    Disconnected,
}

/// Completions of one poll, in a fixed array on the caller's stack.
///
/// The array is written by hand: as an array of options, every push would drop what was there,
/// and every drain write it again, which costs as much as the poll.
pub struct CompletionBatch {
    entries: [MaybeUninit<Completion>; REAP_MAX],
    /// Entries up to here are used, at least one.
    limit: usize,
    /// Entries from `first` to `end` are there.
    first: usize,
    end: usize,
}

impl CompletionBatch {
    /// An empty batch of the usual size.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(REAP_USUAL)
    }

    /// An empty batch for `limit` completions, at least one and at most [`REAP_MAX`].
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            entries: [const { MaybeUninit::uninit() }; REAP_MAX],
            limit: limit.clamp(1, REAP_MAX),
            first: 0,
            end: 0,
        }
    }

    /// Whether no further completion fits.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.end == self.limit
    }

    /// How many further completions fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// Makes `places` of the room unavailable until [`CompletionBatch::release`] returns them.
    #[inline]
    pub(crate) fn keep_back(&mut self, places: usize) {
        debug_assert!(places <= self.room());
        self.limit -= places;
    }

    /// Makes `places` that were kept back available again.
    #[inline]
    pub(crate) fn release(&mut self, places: usize) {
        self.limit += places;
        debug_assert!(self.limit <= REAP_MAX);
    }

    /// Adds `by` to the index of the queue pair of each completion from `from` on, a [`CompletionBatch::next_place`]
    /// of earlier.
    pub(crate) fn renumber(&mut self, from: usize, by: u32) {
        let end = self.end;
        let fresh = self.entries.get_mut(from.max(self.first)..end);
        for entry in fresh.into_iter().flatten() {
            // SAFETY: the entry lies between `first` and `end`, so `push` wrote it, and it was not taken.
            let completion = unsafe { entry.assume_init_mut() };
            completion.queue_pair.index = completion.queue_pair.index.wrapping_add(by);
        }
    }

    /// The place of the next completion that is pushed.
    #[inline]
    pub(crate) fn next_place(&self) -> usize {
        self.end
    }

    /// The completions in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.first
    }

    /// Whether it holds none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Appends a completion; gives it back when the batch is full.
    #[inline]
    pub fn push(&mut self, completion: Completion) -> Result<(), Completion> {
        match self.entries.get_mut(self.end) {
            Some(entry) if self.end < self.limit => {
                entry.write(completion);
                self.end += 1;
                Ok(())
            }
            _ => Err(completion),
        }
    }

    /// Takes all completions out, in order. What is not taken is dropped with the iterator.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = Completion> + '_ {
        Drain { batch: self }
    }

    #[inline]
    fn take_first(&mut self) -> Option<Completion> {
        if self.first == self.end {
            return None;
        }
        let entry = self.entries.get(self.first)?;
        self.first += 1;
        // SAFETY: the entry lies between `first` and `end`, so `push` wrote it, and it is read
        // once, because `first` is past it now.
        Some(unsafe { entry.assume_init_read() })
    }

    /// Takes the first completion if it is a message that arrived: its queue pair, its Receive and its length. Reads the
    /// entry in place, word by word, as it was written. A copy of the [`Completion`] would load blocks of several words,
    /// and each load would wait until all its words have left the store buffer.
    #[inline]
    pub fn take_message(&mut self) -> Option<(QueuePairId, Receive, u32)> {
        if self.first == self.end {
            return None;
        }
        let entry = self.entries.get(self.first)?;
        // SAFETY: the entry lies between `first` and `end`, so `push` wrote it.
        let completion = unsafe { entry.assume_init_ref() };
        let CompletionKind::Receive { receive, bytes, .. } = &completion.kind else {
            return None;
        };
        if completion.status != Status::Success {
            return None;
        }
        let message = (completion.queue_pair, receive.again(), *bytes);
        self.first += 1;
        Some(message)
    }

    /// Takes the first completion out.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        let first = self.take_first();
        if first.is_none() {
            (self.first, self.end) = (0, 0);
        }
        first
    }

    /// Drops what is left.
    #[inline]
    fn clear(&mut self) {
        while self.take_first().is_some() {}
        (self.first, self.end) = (0, 0);
    }
}

impl Default for CompletionBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CompletionBatch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for CompletionBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionBatch")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

struct Drain<'a> {
    batch: &'a mut CompletionBatch,
}

impl Iterator for Drain<'_> {
    type Item = Completion;

    #[inline]
    fn next(&mut self) -> Option<Completion> {
        self.batch.take_first()
    }
}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        self.batch.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::interface::QueuePairId;

    fn completion(work: u64) -> Completion {
        Completion {
            queue_pair: QueuePairId {
                index: 0,
                generation: 0,
            },
            status: Status::Success,
            kind: CompletionKind::Read(WorkId(work), Gather::new()),
        }
    }

    fn works(batch: &mut CompletionBatch, count: usize) -> Vec<u64> {
        let work = |completion: Completion| match completion.kind {
            CompletionKind::Read(work, _) => work.0,
            _ => u64::MAX,
        };
        batch.drain().take(count).map(work).collect()
    }

    #[test]
    fn a_batch_holds_as_many_as_it_was_made_for() {
        for (asked, held) in [(0, 1), (1, 1), (5, 5), (64, 64), (65, 64)] {
            let mut batch = CompletionBatch::with_limit(asked);
            for work in 0..held as u64 {
                assert!(!batch.is_full() && batch.room() > 0);
                batch.push(completion(work)).unwrap();
            }
            assert!(batch.is_full() && batch.room() == 0);
            assert!(batch.push(completion(99)).is_err(), "{asked}");
            assert_eq!(works(&mut batch, REAP_MAX).len(), held);
            assert_eq!(batch.room(), held);
        }
    }

    #[test]
    fn a_batch_gives_what_was_pushed_and_no_more() {
        let mut batch = CompletionBatch::new();
        for round in 0..3 {
            assert!(batch.is_empty());
            for work in 0..REAP_USUAL as u64 {
                assert!(!batch.is_full());
                batch.push(completion(work + round)).unwrap();
            }
            assert!(batch.is_full());
            assert!(batch.push(completion(99)).is_err());
            let expected: Vec<_> = (0..REAP_USUAL as u64).map(|work| work + round).collect();
            assert_eq!(works(&mut batch, REAP_USUAL), expected);
        }
        batch.push(completion(1)).unwrap();
        batch.push(completion(2)).unwrap();
        assert_eq!(works(&mut batch, 1), [1]);
        assert_eq!(batch.len(), 0, "the rest was dropped");
        batch.push(completion(3)).unwrap();
        assert_eq!(works(&mut batch, 9), [3]);
        // Dropped with the batch: a leak here is found by the sanitizers.
        batch.push(completion(4)).unwrap();
    }
}
