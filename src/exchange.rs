//! How threads and a core exchange calls, replies and registered memory.
//!
//! ```text
//!  threads                                core
//!  ── submissions: messages to call ──►   in flight, by tag
//!  ◄─ destination: a slot, or a queue ──  completed
//!  ── answers to deferred calls ──────►   sent
//!  ◄─ stock: pieces of memory ──────────  taken from the core's pool
//! ```
//!
//! Every queue is bounded, and what comes back always has room: a slot takes one message, and a queue as many as its
//! poller may have under way. Messages are reused, so that a core neither allocates nor frees, but for calls whose sender
//! has given them up: it frees their messages.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use rpcrdma_engine::BulkItem;
use rpcrdma_engine::{
    Call, CallError, CallRefused, ConnectionKey, DeferToken, ExpectedResult, Outcome,
};
use rpcrdma_fabric::memory::Lease;

use crate::decode::Decoder;
use crate::error::{Error, Failure};

/// Pieces of registered memory that a core keeps ready for its threads at most. It keeps half of them for itself: calls
/// that expect bulk data need some to start.
const STOCK: usize = 32;

/// Bytes that the stream of a reply has at most beside bulk data, unless the request says otherwise: for more than a
/// message of the connection holds, memory is set aside.
const RESULTS_BYTES: usize = 512;

/// How a call ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Status {
    #[default]
    Success,
    Failed(CallError),
    Refused(CallRefused),
    /// The results are longer than the message has room for.
    ResultsTooLong(usize),
    /// The connection was not there in time, or is given up.
    NotConnected,
    /// The core ended first.
    ShuttingDown,
}

/// A call on its way to a core and back. What every call needs lies together: each cache line more that both threads write
/// costs a call tens of nanoseconds.
pub(crate) struct Message {
    pub(crate) line: Arc<Line>,
    pub(crate) procedure: Call,
    /// Whether [`Message::extras`] has anything.
    pub(crate) has_extras: bool,
    /// The sender's own name for the call.
    pub(crate) tag: u64,
    pub(crate) args: Vec<u8>,
    /// The stream of the reply. The core never raises its capacity.
    pub(crate) results: Vec<u8>,
    pub(crate) status: Status,
    pub(crate) destination: Destination,
    /// For [`Destination::Slot`]: taken out while the message is in it, or a slot without a waiter would keep itself.
    pub(crate) slot: Option<Arc<Slot>>,
    /// In ticks of the core: when it is no longer worth waiting for the connection. 0 until the core has set it.
    pub(crate) wait_until: u64,
    extras: Box<Extras>,
}

/// What few calls have: a credential, and bulk data.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) credential: (u32, Vec<u8>),
    /// Each behind so many bytes of the arguments.
    pub(crate) items: Vec<(usize, BulkItem)>,
    pub(crate) expected: Vec<ExpectedResult>,
    pub(crate) result_items: Vec<BulkItem>,
    /// Bytes that the stream of the reply has at most, where data may come beside it.
    pub(crate) results_bytes_max: usize,
}

/// Where a message goes when its call has ended.
pub(crate) enum Destination {
    Slot,
    Queue(Arc<Completions>),
}

/// The calls of a poller that have ended.
pub(crate) struct Completions {
    pub(crate) queue: ArrayQueue<Box<Message>>,
    pub(crate) waker: AtomicWaker,
    _reservation: Reservation,
}

impl Completions {
    pub(crate) fn new(reservation: Reservation) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(reservation.calls as usize),
            waker: AtomicWaker::new(),
            _reservation: reservation,
        })
    }
}

impl Message {
    pub(crate) fn new(line: &Arc<Line>, results_bytes_max: usize) -> Box<Self> {
        Box::new(Self {
            line: Arc::clone(line),
            procedure: Call::default(),
            has_extras: false,
            tag: 0,
            args: Vec::new(),
            // Reserved and not touched: it takes memory only as far as replies are long.
            results: Vec::with_capacity(results_bytes_max),
            status: Status::Success,
            destination: Destination::Slot,
            slot: None,
            wait_until: 0,
            extras: Box::default(),
        })
    }

    /// Reads the results.
    #[inline]
    pub(crate) fn decoder(&mut self) -> Decoder<'_> {
        let items: &mut [BulkItem] = if self.has_extras {
            &mut self.extras.result_items
        } else {
            &mut []
        };
        Decoder::of_reply(&self.results, items)
    }

    /// What few calls have, to be read.
    pub(crate) fn extras(&self) -> &Extras {
        &self.extras
    }

    /// What few calls have, to be changed.
    pub(crate) fn extras_mut(&mut self) -> &mut Extras {
        if !std::mem::replace(&mut self.has_extras, true) {
            self.extras.results_bytes_max = RESULTS_BYTES;
        }
        &mut self.extras
    }

    /// Makes it ready for another call.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.args.clear();
        self.results.clear();
        self.status = Status::Success;
        self.wait_until = 0;
        if std::mem::take(&mut self.has_extras) {
            let extras = &mut *self.extras;
            extras.credential.0 = 0;
            extras.credential.1.clear();
            extras.items.clear();
            extras.expected.clear();
            extras.result_items.clear();
        }
    }

    /// Hands it to its sender, with how it ended.
    pub(crate) fn finish(mut self: Box<Self>, status: Status) {
        self.status = status;
        match std::mem::replace(&mut self.destination, Destination::Slot) {
            Destination::Slot => {
                if let Some(slot) = self.slot.take() {
                    slot.put(self);
                }
            }
            Destination::Queue(completions) => {
                let pushed = completions.queue.push(self);
                debug_assert!(pushed.is_ok(), "it holds all calls of its poller");
                completions.waker.wake();
            }
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("procedure", &self.procedure)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Where one thread or task waits for one call.
#[derive(Default)]
pub(crate) struct Slot {
    /// [`EMPTY`], [`WAITING`], [`DONE`] or [`ABANDONED`]. By itself on its cache line: the waiter looks at it all the time, and
    /// takes the line from the core with each look.
    state: CachePadded<AtomicU8>,
    message: AtomicCell<Option<Box<Message>>>,
    waker: AtomicWaker,
}

const EMPTY: u8 = 0;
/// The waiter sleeps, and its waker is registered.
const WAITING: u8 = 1;
/// The message is there.
const DONE: u8 = 2;
/// Nobody waits for the message any more.
const ABANDONED: u8 = 3;

const _: () = assert!(AtomicCell::<Option<Box<Message>>>::is_lock_free());

impl Slot {
    fn put(&self, message: Box<Message>) {
        self.message.store(Some(message));
        // Release, with the Acquire of `take`: who sees that it is done finds the message. Acquire, with the Release of
        // `register` and `abandon`.
        match self.state.swap(DONE, Ordering::AcqRel) {
            WAITING => self.waker.wake(),
            ABANDONED => {
                if let Some(message) = self.message.take() {
                    message.line.permits.give();
                }
            }
            _ => {}
        }
    }

    /// The message, once it is there. The slot can be used again then.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<Message>> {
        // Acquire, with the Release of `put`.
        if self.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        // Relaxed: the slot goes to a core again by a queue, which orders this before its next use.
        self.state.store(EMPTY, Ordering::Relaxed);
        self.message.take()
    }

    /// Nobody waits any more. Gives the message back when it is there; else the core frees it, and gives its permit
    /// back.
    pub(crate) fn abandon(&self) -> Option<Box<Message>> {
        // Release, with the Acquire of `put`. Acquire, with its Release: the message is there.
        if self.state.swap(ABANDONED, Ordering::AcqRel) == DONE {
            return self.message.take();
        }
        None
    }

    /// Who is woken when the message comes. Look for it again after this.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
        let (from, to) = (EMPTY, WAITING);
        // Release, with the Acquire of `put`: the core finds the waker. It fails when the message is there already.
        let _ = self
            .state
            .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
    }
}

/// A connection of a client, as its core and its threads see it.
pub(crate) struct Line {
    pub(crate) address: String,
    /// How long a call that was not sent waits for the connection.
    pub(crate) patience: Duration,
    /// The key on the core: generation and index; [`NO_CONNECTION`] while there is none.
    connection: AtomicU64,
    is_given_up: AtomicBool,
    /// Why there is no connection, for errors.
    why: Mutex<Option<String>>,
    /// The times that a connection was made.
    established: AtomicU64,
    pub(crate) permits: Permits,
    _reservation: Reservation,
}

/// No index of a connection is as high.
const NO_CONNECTION: u64 = u64::MAX;

impl Line {
    /// A line that is not connected, for so many calls at a time.
    pub(crate) fn new(address: &str, reservation: Reservation, patience: Duration) -> Self {
        Self {
            patience,
            permits: Permits::new(reservation.calls),
            _reservation: reservation,
            address: address.to_owned(),
            connection: AtomicU64::new(NO_CONNECTION),
            is_given_up: AtomicBool::new(false),
            why: Mutex::new(None),
            established: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn connection(&self) -> Option<ConnectionKey> {
        // Relaxed: the key is all that is read, and a core checks it against its table.
        let word = self.connection.load(Ordering::Relaxed);
        (word != NO_CONNECTION).then_some(ConnectionKey {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low half of the word is the index"
            )]
            index: word as u32,
            generation: (word >> 32) as u32,
        })
    }

    pub(crate) fn set_connected(&self, key: ConnectionKey) {
        let word = u64::from(key.generation) << 32 | u64::from(key.index);
        self.connection.store(word, Ordering::Relaxed);
        self.established.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_lost(&self, why: String, is_given_up: bool) {
        self.connection.store(NO_CONNECTION, Ordering::Relaxed);
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        // Release, with the Acquire of `is_given_up`: who sees this finds the reason.
        self.is_given_up.store(is_given_up, Ordering::Release);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        // Acquire, with the Release of `set_lost`.
        self.is_given_up.load(Ordering::Acquire)
    }

    pub(crate) fn why(&self) -> Option<String> {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn established(&self) -> u64 {
        self.established.load(Ordering::Relaxed)
    }
}

/// The answer to a deferred call, on its way to the core.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) token: Option<DeferToken>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) results: Vec<u8>,
    /// Each behind so many bytes of `results`.
    pub(crate) items: Vec<(usize, BulkItem)>,
}

/// What a core shares with threads.
pub(crate) struct CoreShared {
    submissions: ArrayQueue<Box<Message>>,
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
}

impl CoreShared {
    pub(crate) fn new(calls_max: usize, deferred_max: usize, bulk: (usize, usize)) -> Arc<Self> {
        let (bulk_pieces, bulk_piece_bytes) = bulk;
        Arc::new(Self {
            submissions: ArrayQueue::new(calls_max.max(1)),
            answers: ArrayQueue::new(deferred_max.max(1)),
            answers_free: ArrayQueue::new(deferred_max.max(1)),
            stock: ArrayQueue::new(STOCK.min(bulk_pieces / 2).max(1)),
            bulk_piece_bytes,
            bulk_pieces,
            is_stock_wanted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            reserved: AtomicUsize::new(0),
            wake: OnceLock::new(),
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

    /// Sets calls aside: what a connection or a poller may have under way.
    ///
    /// # Errors
    /// How many calls there are for all of them.
    pub(crate) fn reserve(self: &Arc<Self>, calls: u32) -> Result<Reservation, Error> {
        let max = self.submissions.capacity();
        let more = |taken: usize| taken.checked_add(calls as usize).filter(|all| *all <= max);
        // Relaxed: a count, and nothing else is read by it.
        let reserved = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match reserved {
            Ok(_) => Ok(Reservation {
                core: Arc::clone(self),
                calls,
            }),
            Err(_) => Err(Failure::Depth {
                wanted: calls,
                max: u32::try_from(max).unwrap_or(u32::MAX),
            }
            .into()),
        }
    }

    /// Hands a call to the core.
    #[inline]
    pub(crate) fn submit(&self, message: Box<Message>) {
        if let Err(message) = self.submissions.push(message) {
            debug_assert!(false, "clients have no more under way than they reserved");
            return message.finish(Status::Refused(CallRefused::NoSlot));
        }
        self.wake();
        // SeqCst, with that of `close`: either the core's end finds the message, or it is found here.
        if self.is_closed.load(Ordering::SeqCst) {
            self.fail_submitted();
        }
    }

    #[inline]
    pub(crate) fn next_submitted(&self) -> Option<Box<Message>> {
        // `pop` has a fence, which an idle poll would pay for.
        if self.submissions.is_empty() {
            return None;
        }
        self.submissions.pop()
    }

    /// The core has ended: what was submitted, or is from now on, fails.
    pub(crate) fn close(&self) {
        // SeqCst, with that of `submit`.
        self.is_closed.store(true, Ordering::SeqCst);
        self.fail_submitted();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn fail_submitted(&self) {
        while let Some(message) = self.submissions.pop() {
            message.finish(Status::ShuttingDown);
        }
    }

    /// An answer to fill.
    pub(crate) fn new_answer(&self) -> Box<Answer> {
        self.answers_free.pop().unwrap_or_default()
    }

    pub(crate) fn answer(&self, answer: Box<Answer>) {
        let pushed = self.answers.push(answer);
        debug_assert!(
            pushed.is_ok(),
            "there are as many places as calls can be deferred"
        );
        self.wake();
    }

    #[inline]
    pub(crate) fn next_answer(&self) -> Option<Box<Answer>> {
        if self.answers.is_empty() {
            return None;
        }
        self.answers.pop()
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
            self.wake();
        }
    }

    /// Whether threads could take more pieces than there are in stock.
    #[inline]
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

/// Calls that were set aside on a core. All that are under way share it, so that it ends with the last of them, not with the
/// poller or the client that made them.
pub(crate) struct Reservation {
    core: Arc<CoreShared>,
    calls: u32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.core
            .reserved
            .fetch_sub(self.calls as usize, Ordering::Relaxed);
    }
}

/// How many calls a client may have under way, and who waits for one to end.
pub(crate) struct Permits {
    taken: CachePadded<AtomicU32>,
    max: u32,
    waiting: AtomicU32,
    wakers: Mutex<Vec<Waker>>,
}

impl Permits {
    pub(crate) fn new(max: u32) -> Self {
        Self {
            taken: CachePadded::new(AtomicU32::new(0)),
            max,
            waiting: AtomicU32::new(0),
            wakers: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    #[inline]
    pub(crate) fn take(&self) -> bool {
        // SeqCst, with those of `give` and `register`: who registers and then finds no permit is seen by who gives one.
        let more = |taken: u32| (taken < self.max).then_some(taken + 1);
        let taken = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok()
    }

    #[inline]
    pub(crate) fn give(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.wake_all();
        }
    }

    /// Who is woken when a permit comes back. Try to take one again after this.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.waiting.store(1, Ordering::SeqCst);
    }

    #[cold]
    fn wake_all(&self) {
        let woken = {
            let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(0, Ordering::SeqCst);
            std::mem::take(&mut *wakers)
        };
        for waker in woken {
            waker.wake();
        }
    }
}
