//! The way of calls from one client or poller to a core and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use rpcrdma_engine::ConnectionKey;
use rtrb::{Consumer, Producer, RingBuffer};

use super::{CoreShared, Line, Message, Slots, Status};

/// The core's end of a ring of calls, and where they go when they have ended.
pub(crate) struct Lane {
    submitted: Consumer<Box<Message>>,
    back: WayBack,
    line: Arc<Line>,
    /// Calls that the core has taken and not returned.
    under_way: u32,
    /// As many as were reserved for it.
    pub(super) calls: u32,
    /// A call has ended since its poller was last woken.
    has_news: bool,
}

/// Where the calls of a lane go when they have ended. It always has room: for a slot there is one call, and the ring is as
/// long as the one to the core.
enum WayBack {
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
pub(crate) struct Submissions {
    ring: Ring,
    /// Dropped after the ring, as the order of fields says: the core finds that it was left.
    _left: Left,
}

type Ring = Producer<Box<Message>>;

/// Tells the core that a lane was left.
struct Left(Arc<CoreShared>);

/// What a lane of a core that has ended brings, and to whom.
pub(super) enum News {
    Ended(Arc<Slots>, Box<Message>),
    OfPoller(Arc<PollerWaker>),
}

/// A poller's end of the way back.
pub(crate) struct Completions {
    ended: Consumer<Box<Message>>,
    waker: Arc<PollerWaker>,
}

impl Lane {
    /// A lane whose calls come back to slots.
    pub(super) fn to_slots(line: &Arc<Line>, slots: &Arc<Slots>) -> (Ring, Self) {
        let calls = u32::try_from(slots.count()).unwrap_or(u32::MAX);
        Self::new(line, calls, WayBack::Slots(Arc::clone(slots)))
    }

    /// A lane whose calls come back in the order in which they end.
    pub(super) fn to_poller(line: &Arc<Line>, calls: u32) -> (Ring, Completions, Self) {
        let (producer, ended) = RingBuffer::new(calls as usize);
        let waker = Arc::<PollerWaker>::default();
        let back = WayBack::Ring(producer, Arc::clone(&waker));
        let (submissions, lane) = Self::new(line, calls, back);
        (submissions, Completions { ended, waker }, lane)
    }

    fn new(line: &Arc<Line>, calls: u32, back: WayBack) -> (Ring, Self) {
        let (submissions, submitted) = RingBuffer::new(calls as usize);
        let lane = Self {
            submitted,
            back,
            line: Arc::clone(line),
            under_way: 0,
            calls,
            has_news: false,
        };
        (submissions, lane)
    }

    /// The connection that its calls go by.
    #[inline]
    pub(crate) fn connection(&self) -> Option<ConnectionKey> {
        self.line.connection()
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Takes the next call to make.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Box<Message>> {
        let message = self.submitted.pop().ok()?;
        self.under_way += 1;
        Some(message)
    }

    /// Returns a call, with how it ended.
    #[inline]
    pub(crate) fn finish(&mut self, mut message: Box<Message>, status: Status) {
        self.under_way -= 1;
        message.status = status;
        match &mut self.back {
            WayBack::Slots(slots) => slots.put(message),
            WayBack::Ring(ended, _) => {
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
                WayBack::Slots(slots) => {
                    self.under_way -= 1;
                    message.status = Status::ShuttingDown;
                    news.push(News::Ended(Arc::clone(slots), message));
                }
                WayBack::Ring(..) => self.finish(message, Status::ShuttingDown),
            }
        }
        if std::mem::take(&mut self.has_news)
            && let WayBack::Ring(_, waker) = &self.back
        {
            news.push(News::OfPoller(Arc::clone(waker)));
        }
    }

    /// Wakes its poller if a call has ended.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.has_news)
            && let WayBack::Ring(_, waker) = &self.back
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

impl Submissions {
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

impl Completions {
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

impl Drop for Completions {
    fn drop(&mut self) {
        // The lane may have calls under way for long, and nobody waits for them.
        drop(self.waker.waker.take());
    }
}
