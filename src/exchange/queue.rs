//! The way of calls from one client or poller to a core and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use rpcrdma_engine::ConnectionKey;
use rpcrdma_fabric::memory::fetch_to_write;
use rtrb::{Consumer, Producer, RingBuffer};

use super::{CoreShared, Message, PeerConnection, Slots, Status};

/// The core's end of a ring of calls, and where they go when they have ended.
pub(crate) struct SubmissionQueue {
    submitted: Consumer<Box<Message>>,
    back: CompletionSink,
    peer: Arc<PeerConnection>,
    /// Calls that the core has taken and not returned.
    under_way: u32,
    /// As many as were reserved for it.
    pub(super) calls: u32,
    /// A call has ended since its poller was last woken.
    has_news: bool,
}

/// Where the calls of a queue go when they have ended. It always has room: for a slot there is one call, and the ring is as
/// long as the one to the core.
enum CompletionSink {
    Slots(Arc<Slots>),
    Ring(Producer<Box<Message>>, Arc<PollerWaker>),
}

/// Wakes the task of a poller.
#[derive(Default)]
pub(crate) struct PollerWaker {
    is_waiting: AtomicBool,
    waker: AtomicWaker,
}

/// A thread's end of the way to a core.
pub(crate) struct SubmissionSink {
    ring: Ring,
    /// Dropped after the ring, as the order of fields says: the core finds that it was left.
    _left: Left,
}

type Ring = Producer<Box<Message>>;

/// Tells the core that a queue was left.
struct Left(Arc<CoreShared>);

/// What a queue of a core that has ended brings, and to whom.
pub(super) enum News {
    Ended(Arc<Slots>, Box<Message>),
    OfPoller(Arc<PollerWaker>),
}

/// A poller's end of the way back.
pub(crate) struct CompletionSource {
    ended: Consumer<Box<Message>>,
    waker: Arc<PollerWaker>,
}

impl SubmissionQueue {
    /// A queue whose calls come back to slots.
    pub(super) fn to_slots(peer: &Arc<PeerConnection>, slots: &Arc<Slots>) -> (Ring, Self) {
        let calls = u32::try_from(slots.count()).unwrap_or(u32::MAX);
        Self::new(peer, calls, CompletionSink::Slots(Arc::clone(slots)))
    }

    /// A queue whose calls come back in the order in which they end.
    pub(super) fn to_poller(
        peer: &Arc<PeerConnection>,
        calls: u32,
    ) -> (Ring, CompletionSource, Self) {
        let (producer, ended) = RingBuffer::new(calls as usize);
        let waker = Arc::<PollerWaker>::default();
        let back = CompletionSink::Ring(producer, Arc::clone(&waker));
        let (submissions, queue) = Self::new(peer, calls, back);
        (submissions, CompletionSource { ended, waker }, queue)
    }

    fn new(peer: &Arc<PeerConnection>, calls: u32, back: CompletionSink) -> (Ring, Self) {
        let (submissions, submitted) = RingBuffer::new(calls as usize);
        let queue = Self {
            submitted,
            back,
            peer: Arc::clone(peer),
            under_way: 0,
            calls,
            has_news: false,
        };
        (submissions, queue)
    }

    /// The connection that its calls go by.
    #[inline]
    pub(crate) fn connection(&self) -> Option<ConnectionKey> {
        self.peer.connection()
    }

    pub(crate) fn peer(&self) -> &PeerConnection {
        &self.peer
    }

    /// Takes the next call to make.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Box<Message>> {
        let message = self.submitted.pop().ok()?;
        // A thread that waits for this call gains by it. A poller has many calls under way, and lost a tenth.
        if let CompletionSink::Slots(_) = self.back {
            fetch_to_write(&*message);
        }
        self.under_way += 1;
        Some(message)
    }

    /// Returns a call, with how it ended.
    #[inline]
    pub(crate) fn finish(&mut self, mut message: Box<Message>, status: Status) {
        self.under_way -= 1;
        message.status = status;
        match &mut self.back {
            CompletionSink::Slots(slots) => slots.put(message),
            CompletionSink::Ring(ended, _) => {
                let pushed = ended.push(message);
                debug_assert!(pushed.is_ok(), "it holds all calls of its poller");
                self.has_news = true;
            }
        }
    }

    /// Ends what was submitted and never taken. `news` says who is to be told, which runs their code.
    pub(super) fn fail(&mut self, news: &mut Vec<News>) {
        while let Some(mut message) = self.next() {
            match &self.back {
                CompletionSink::Slots(slots) => {
                    self.under_way -= 1;
                    message.status = Status::ShuttingDown;
                    news.push(News::Ended(Arc::clone(slots), message));
                }
                CompletionSink::Ring(..) => self.finish(message, Status::ShuttingDown),
            }
        }
        if std::mem::take(&mut self.has_news)
            && let CompletionSink::Ring(_, waker) = &self.back
        {
            news.push(News::OfPoller(Arc::clone(waker)));
        }
    }

    /// Wakes its poller if a call has ended.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.has_news)
            && let CompletionSink::Ring(_, waker) = &self.back
        {
            waker.wake();
        }
    }

    /// Whether it is of no more use: its client or poller is dropped, and all its calls have ended.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        // In this order: what was pushed before the other end was dropped is seen.
        self.under_way == 0 && self.submitted.is_abandoned() && self.submitted.is_empty()
    }
}

impl News {
    pub(super) fn tell(self) {
        match self {
            Self::Ended(slots, message) => slots.put(message),
            Self::OfPoller(waker) => waker.wake(),
        }
    }
}

impl SubmissionSink {
    pub(super) fn new(ring: Ring, core: &Arc<CoreShared>) -> Self {
        let _left = Left(Arc::clone(core));
        Self { ring, _left }
    }

    /// Hands a call to the core. There is room for as many as were reserved.
    #[inline]
    pub(crate) fn push(&mut self, message: Box<Message>) {
        let pushed = self.ring.push(message);
        debug_assert!(pushed.is_ok(), "no more calls are under way than reserved");
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.0.note_left();
    }
}

impl PollerWaker {
    #[inline]
    fn wake(&self) {
        // With that of `register`: either the poller finds the call that has ended, or it is found waiting.
        fence(Ordering::SeqCst);
        if self.is_waiting.load(Ordering::Relaxed) {
            self.is_waiting.store(false, Ordering::Relaxed);
            self.waker.wake();
        }
    }
}

impl CompletionSource {
    /// Takes a call that has ended.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Box<Message>> {
        self.ended.pop().ok()
    }

    /// Who is woken when a call ends. Look again after this.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.waker.register(waker);
        self.waker.is_waiting.store(true, Ordering::Relaxed);
        // With that of `wake`, and with that of a core that closes.
        fence(Ordering::SeqCst);
    }
}

impl Drop for CompletionSource {
    fn drop(&mut self) {
        // The queue may have calls under way for long, and nobody waits for them.
        drop(self.waker.waker.take());
    }
}
