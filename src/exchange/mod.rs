//! How threads and a core exchange calls, replies and registered memory.
//!
//! ```text
//!  threads                                core
//!  ── a queue: a ring of calls ───────►   in flight, by tag
//!  ◄─ its way back: slots, or a ring ───  completed
//!  ── answers to deferred calls ──────►   sent
//!  ── parcels of the thread of TCP ───►   served
//!  ◄──────────────────────────────────   the same, with replies
//!  ◄─ stock: pieces of memory ──────────  taken from the core's pool
//! ```
//!
//! Every queue is bounded, and what comes back always has room. Messages are reused, so that a core neither allocates nor
//! frees, but for calls whose sender has given them up, and for the queue of a client or poller that is dropped.

mod connection;
mod message;
mod parcel;
mod queue;
mod route;
mod slots;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use rpcrdma_engine::{BulkItem, Outcome};
use rpcrdma_fabric::memory::Lease;

pub(crate) use self::connection::{PeerConnection, Way};
pub(crate) use self::message::{Item, Message, Status};
pub(crate) use self::parcel::{Content, Parcel, ParcelQueue, Token};
use self::queue::News;
pub(crate) use self::queue::{CompletionSource, SubmissionQueue, SubmissionSink};
pub(crate) use self::slots::{Slots, Waiter};
use crate::error::{Error, Failure};

/// Pieces of registered memory that a core keeps ready for its threads at most. It keeps half of them for itself: calls
/// that expect bulk data need some to start.
const STOCK: usize = 32;

/// The answer to a deferred call, on its way to the core.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) token: Option<Token>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) results: Vec<u8>,
    /// Each behind so many bytes of `results`.
    pub(crate) items: Vec<(usize, BulkItem)>,
}

/// What a core shares with threads.
pub(crate) struct CoreShared {
    /// Queues that the core has not taken yet.
    new_queues: ArrayQueue<SubmissionQueue>,
    /// Queues that the core has left behind.
    closed_queues: Mutex<Vec<SubmissionQueue>>,
    answers: ArrayQueue<Box<Answer>>,
    /// Answers that the core is done with, to be filled anew.
    answers_free: ArrayQueue<Box<Answer>>,
    stock: ArrayQueue<Lease>,
    bulk_piece_bytes: usize,
    bulk_pieces: usize,
    /// Some thread takes pieces.
    is_stock_wanted: AtomicBool,
    is_closed: AtomicBool,
    /// Calls that were set aside for connections and pollers.
    reserved: AtomicUsize,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// If the node listens on TCP.
    parcels: OnceLock<ParcelQueue>,
    /// There is, or was, something in the queues that are rarely used: new ones, answers, memory.
    has_rare_work: CachePadded<AtomicBool>,
}

impl CoreShared {
    pub(crate) fn new(calls_max: usize, deferred_max: usize, bulk: (usize, usize)) -> Arc<Self> {
        let (bulk_pieces, bulk_piece_bytes) = bulk;
        Arc::new(Self {
            // Each queue has reserved at least one call.
            new_queues: ArrayQueue::new(calls_max.max(1)),
            closed_queues: Mutex::default(),
            answers: ArrayQueue::new(deferred_max.max(1)),
            answers_free: ArrayQueue::new(deferred_max.max(1)),
            stock: ArrayQueue::new(STOCK.min(bulk_pieces / 2).max(1)),
            bulk_piece_bytes,
            bulk_pieces,
            is_stock_wanted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            reserved: AtomicUsize::new(0),
            wake: OnceLock::new(),
            parcels: OnceLock::new(),
            has_rare_work: CachePadded::new(AtomicBool::new(false)),
        })
    }

    /// Sets how a core that sleeps is woken. It counts once.
    pub(crate) fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    #[inline]
    pub(crate) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Has the core look at the queues that are rarely used: after something was put there.
    pub(crate) fn ask_for_rare_work(&self) {
        // SYNC POINT rare-work: Release, with the Acquire in `take_rare_work`: who takes this finds what was put there. A swap, as
        // two threads may ask: the core takes the last, which then also has what the first one released.
        self.has_rare_work.swap(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn has_rare_work(&self) -> bool {
        // Only a hint: `take_rare_work` synchronises.
        self.has_rare_work.load(Ordering::Relaxed)
    }

    /// Takes the request to look at those queues. What is put there after this asks again.
    pub(crate) fn take_rare_work(&self) {
        // SYNC POINT rare-work: Acquire, with the Release in `ask_for_rare_work`. A store alone could overwrite a request
        // whose queue this look does not see yet.
        self.has_rare_work.swap(false, Ordering::Acquire);
    }

    /// Makes a way to the core and back to `slots`, for as many calls as there are slots.
    ///
    /// # Errors
    /// When the core has no room for so many.
    pub(crate) fn open_to_slots(
        self: &Arc<Self>,
        peer: &Arc<PeerConnection>,
        slots: &Arc<Slots>,
    ) -> Result<SubmissionSink, Error> {
        let (ring, queue) = SubmissionQueue::to_slots(peer, slots);
        self.add(queue)?;
        Ok(SubmissionSink::new(ring, self))
    }

    /// Makes a way to the core and back to a poller, for so many calls.
    ///
    /// # Errors
    /// When the core has no room for so many.
    pub(crate) fn open_to_poller(
        self: &Arc<Self>,
        peer: &Arc<PeerConnection>,
        calls: u32,
    ) -> Result<(SubmissionSink, CompletionSource), Error> {
        let (ring, completions, queue) = SubmissionQueue::to_poller(peer, calls);
        self.add(queue)?;
        Ok((SubmissionSink::new(ring, self), completions))
    }

    fn add(&self, queue: SubmissionQueue) -> Result<(), Error> {
        let (calls, max) = (queue.calls as usize, self.new_queues.capacity());
        let more = |taken: usize| taken.checked_add(calls).filter(|all| *all <= max);
        // Relaxed: a count, and nothing else is read by it.
        let reserved = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if reserved.is_err() || self.new_queues.push(queue).is_err() {
            return Err(Failure::Depth {
                wanted: u32::try_from(calls).unwrap_or(u32::MAX),
                max: u32::try_from(max).unwrap_or(u32::MAX),
            }
            .into());
        }
        self.ask_for_rare_work();
        Ok(())
    }

    pub(crate) fn next_queue(&self) -> Option<SubmissionQueue> {
        self.new_queues.pop()
    }

    /// A queue is over: its calls are for others.
    pub(crate) fn release(&self, queue: SubmissionQueue) {
        self.reserved
            .fetch_sub(queue.calls as usize, Ordering::Relaxed);
    }

    /// The core has ended: what was submitted, or is from now on, fails.
    pub(crate) fn close(&self, queues: impl IntoIterator<Item = SubmissionQueue>) {
        self.closed_queues().extend(queues);
        // Release, with the Acquire of `fail_if_closed`: who sees it finds the queues.
        self.is_closed.store(true, Ordering::Release);
        // With that of a waiter that registers, and of `answer`: either what it put is found here, or it finds that the core
        // has ended.
        fence(Ordering::SeqCst);
        self.fail_if_closed();
        // Registered memory: clients and `Later`s may outlive the core for long.
        self.empty_stock();
        while self.answers.pop().is_some() {}
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Ends what was submitted, if the core has ended, and returns whether it has. A thread or task that waits for a call
    /// calls this with each look: the core may have ended just before the call was submitted.
    #[inline]
    pub(crate) fn fail_if_closed(&self) -> bool {
        let is_closed = self.is_closed();
        if is_closed {
            self.fail_submitted();
        }
        is_closed
    }

    #[cold]
    fn fail_submitted(&self) {
        let mut news = Vec::new();
        let over: Vec<SubmissionQueue> = {
            let mut queues = self.closed_queues();
            queues.extend(std::iter::from_fn(|| self.new_queues.pop()));
            for queue in &mut *queues {
                queue.fail(&mut news);
            }
            queues.extract_if(.., |queue| queue.is_over()).collect()
        };
        // Without the lock: a waker may poll its task, which submits or waits, and comes back here.
        news.into_iter().for_each(News::tell);
        over.into_iter().for_each(|queue| self.release(queue));
    }

    /// A client or poller has left its queue: the core forgets it now, and not when it wakes up by itself.
    #[cold]
    fn note_left(&self) {
        if !self.fail_if_closed() {
            self.wake();
        }
    }

    fn closed_queues(&self) -> MutexGuard<'_, Vec<SubmissionQueue>> {
        self.closed_queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer to fill.
    pub(crate) fn new_answer(&self) -> Box<Answer> {
        self.answers_free.pop().unwrap_or_default()
    }

    pub(crate) fn answer(&self, mut answer: Box<Answer>) {
        if let Some(Token::Tcp(call)) = answer.token.take_if(|it| matches!(it, Token::Tcp(_))) {
            let outcome = answer.outcome.unwrap_or(Outcome::SystemError);
            call.answer(outcome, &answer.results, &answer.items);
            return self.recycle_answer(answer);
        }
        let pushed = self.answers.push(answer);
        debug_assert!(
            pushed.is_ok(),
            "there are as many places as calls can be deferred"
        );
        self.ask_for_rare_work();
        // With that of `close`: either the answer is found there, or it is found here that the core has ended.
        fence(Ordering::SeqCst);
        if self.fail_if_closed() {
            // Nobody takes it any more, and it may hold registered memory.
            while self.answers.pop().is_some() {}
        } else {
            self.wake();
        }
    }

    pub(crate) fn next_answer(&self) -> Option<Box<Answer>> {
        self.answers.pop()
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(crate) fn recycle_answer(&self, mut answer: Box<Answer>) {
        answer.results.clear();
        answer.items.clear();
        // One that finds no place is freed.
        let _ = self.answers_free.push(answer);
    }

    pub(crate) fn want_stock(&self) {
        if !self.is_stock_wanted.load(Ordering::Relaxed) {
            self.is_stock_wanted.store(true, Ordering::Relaxed);
            self.ask_for_rare_work();
            self.wake();
        }
    }

    /// Whether threads could take more pieces than there are in stock.
    pub(crate) fn lacks_stock(&self) -> bool {
        self.is_stock_wanted.load(Ordering::Relaxed)
            && self.bulk_pieces > 0
            && !self.stock.is_full()
    }

    pub(crate) fn put_piece(&self, piece: Lease) {
        // One that finds no place goes back to its pool.
        let _ = self.stock.push(piece);
    }

    pub(crate) fn take_piece(&self) -> Option<Lease> {
        let piece = self.stock.pop()?;
        self.ask_for_rare_work();
        if self.stock.is_empty() {
            self.wake();
        }
        Some(piece)
    }

    /// Gives what is in stock back to the core: a call waits for memory.
    pub(crate) fn empty_stock(&self) {
        while let Some(piece) = self.stock.pop() {
            drop(piece);
        }
    }

    pub(crate) fn stock_max(&self) -> usize {
        self.stock.capacity().min(self.bulk_pieces)
    }

    pub(crate) fn bulk_piece_bytes(&self) -> usize {
        self.bulk_piece_bytes
    }
}

impl fmt::Debug for CoreShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreShared").finish_non_exhaustive()
    }
}
