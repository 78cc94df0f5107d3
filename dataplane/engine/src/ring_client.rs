//! Rings with which application threads use a core: a pair of rings per thread for calls, and a ring for deferred
//! replies that any thread may push to.
//!
//! Messages are boxes that travel to the core and come back, so that the core neither allocates nor frees. A thread
//! cannot have more calls outstanding than the ring back to it holds: a completion always finds room.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::core::Application;
use crate::core::Context;
use crate::rpc::{
    Activity, Call, CallError, CallRefused, CallTag, ConnectionKey, DeferToken, Outcome, Reply,
    ReplyRefused,
};

/// Messages moved in one iteration, per ring.
const MOVED_MAX: usize = 8;

/// How a call that went through a ring ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallStatus {
    /// It has not ended.
    #[default]
    Pending,
    /// The results are in [`CallMessage::results`].
    Success,
    /// It was sent, and failed.
    Failed(CallError),
    /// It was not sent, and will not be.
    Refused(CallRefused),
    /// It succeeded, but [`CallMessage::results`] has no capacity for the results.
    ResultsTooLong {
        /// The bytes that it would take.
        bytes: usize,
    },
}

/// A call on its way to a core and back.
#[derive(Debug, Default)]
pub struct CallMessage {
    /// The connection to call on.
    pub connection: ConnectionKey,
    /// What to call.
    pub call: Call,
    /// Who calls: the flavor and the body of the credential (RFC 5531 section 8.2), of at most 400 octets. AUTH_NONE by
    /// default.
    pub credential: (u32, Vec<u8>),
    /// Chosen by the thread; the core does not use it.
    pub tag: u64,
    /// The arguments: an XDR stream.
    pub args: Vec<u8>,
    /// The results, when the call succeeded. They are written into the existing capacity, which the core never
    /// increases.
    pub results: Vec<u8>,
    /// How it ended.
    pub status: CallStatus,
}

/// A thread's end of a pair of call rings.
///
/// # Example
/// ```
/// use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingClient};
/// use rpcrdma_engine::{Call, ConnectionKey};
///
/// /// Calls, and waits for the reply.
/// fn ask(ring: &mut RingClient, connection: ConnectionKey, args: &[u8]) -> Option<Vec<u8>> {
///     let call = Call { program: 0x2000_0001, version: 1, procedure: 1 };
///     let mut message = Box::new(CallMessage { connection, call, ..CallMessage::default() });
///     message.args.extend_from_slice(args);
///     // The core puts the results into this space, and allocates none.
///     message.results.reserve(64);
///     ring.submit(message).ok()?;
///     while !ring.is_abandoned() {
///         if let Some(ended) = ring.complete() {
///             return (ended.status == CallStatus::Success).then_some(ended.results);
///         }
///         std::thread::yield_now();
///     }
///     None
/// }
/// ```
#[derive(Debug)]
pub struct RingClient {
    submissions: Producer<Box<CallMessage>>,
    completions: Consumer<Box<CallMessage>>,
    outstanding: u32,
}

impl RingClient {
    /// Hands a call to the core. It comes back by [`RingClient::complete`].
    ///
    /// # Errors
    /// The call, when as many are outstanding as the rings hold.
    pub fn submit(&mut self, message: Box<CallMessage>) -> Result<(), Box<CallMessage>> {
        if self.outstanding as usize == self.completions.buffer().capacity() {
            return Err(message);
        }
        self.submissions
            .push(message)
            .map_err(|PushError::Full(message)| message)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes back a call that has ended.
    pub fn complete(&mut self) -> Option<Box<CallMessage>> {
        let message = self.completions.pop().ok()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(message)
    }

    /// Calls that were handed to the core and have not come back.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether the core's end was dropped: outstanding calls that are not in the ring never come back.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.completions.is_abandoned()
    }
}

/// The core's end of a pair of call rings, for an [`Application`] to own.
#[derive(Debug)]
pub struct RingService {
    submissions: Consumer<Box<CallMessage>>,
    completions: Producer<Box<CallMessage>>,
    /// Calls that wait for their replies; the index is in their tag.
    in_flight: Box<[Option<Box<CallMessage>>]>,
    free: Vec<u32>,
    /// Calls that the core could not accept yet.
    waiting: VecDeque<Box<CallMessage>>,
    tag_space: u32,
}

/// Makes a pair of call rings for `capacity` calls at a time, at least one.
/// `tag_space` is the high half of the tags of its calls: the application keeps it apart
/// from those of its other calls.
#[must_use]
pub fn client_pair(capacity: u32, tag_space: u32) -> (RingClient, RingService) {
    let places = capacity.max(1) as usize;
    let (submissions, submitted) = RingBuffer::new(places);
    let (completions, completed) = RingBuffer::new(places);
    let client = RingClient {
        submissions,
        completions: completed,
        outstanding: 0,
    };
    let service = RingService {
        submissions: submitted,
        completions,
        in_flight: (0..places).map(|_| None).collect(),
        free: (0..capacity.max(1)).rev().collect(),
        waiting: VecDeque::with_capacity(places),
        tag_space,
    };
    (client, service)
}

impl RingService {
    /// Makes the submitted calls. Bounded; to be called in [`Application::poll`].
    #[inline]
    pub fn poll<P: Port>(&mut self, core: &mut Context<'_, P>) -> Activity {
        let mut busy = false;
        // Calls that wait are tried once each, in turn, so that a connection without credits does
        // not hold up the others.
        for _ in 0..MOVED_MAX.min(self.waiting.len()) {
            let Some(message) = self.waiting.pop_front() else {
                break;
            };
            busy |= self.start(core, message);
        }
        for _ in 0..MOVED_MAX {
            let Ok(message) = self.submissions.pop() else {
                break;
            };
            self.start(core, message);
            busy = true;
        }
        Activity::from_busy(busy)
    }

    /// Whether a call with `tag` came by these rings.
    #[inline]
    #[must_use]
    pub fn owns(&self, tag: CallTag) -> bool {
        tag >> 32 == u64::from(self.tag_space)
    }

    /// Returns a call that ended to its thread; to be called in [`Application::completed`]. False when it did not come
    /// by these rings.
    pub fn completed(&mut self, tag: CallTag, result: Result<Reply<'_>, CallError>) -> bool {
        if !self.owns(tag) {
            return false;
        }
        let Ok(index) = u32::try_from(tag & u64::from(u32::MAX)) else {
            return false;
        };
        let slot = self.in_flight.get_mut(index as usize);
        let Some(mut message) = slot.and_then(Option::take) else {
            return false;
        };
        self.free.push(index);
        message.status = match result {
            Ok(reply) => put_results(&mut message.results, reply.results),
            Err(error) => CallStatus::Failed(error),
        };
        self.finish(message);
        true
    }

    /// Makes a call. False when it has to wait.
    fn start<P: Port>(&mut self, core: &mut Context<'_, P>, mut message: Box<CallMessage>) -> bool {
        let Some(&index) = self.free.last() else {
            debug_assert!(false, "no more calls than slots");
            self.waiting.push_back(message);
            return false;
        };
        let tag = (u64::from(self.tag_space) << 32) | u64::from(index);
        let (flavor, ref body) = message.credential;
        let credential = OpaqueAuth { flavor, body };
        let args = &message.args;
        let write = |space: &mut [u8]| {
            space.copy_from_slice(args);
            args.len()
        };
        let (connection, call, bytes) = (message.connection, message.call, args.len());
        match core.call_authenticated(connection, call, credential, bytes, tag, write) {
            Ok(()) => {
                message.status = CallStatus::Pending;
                self.free.pop();
                if let Some(slot) = self.in_flight.get_mut(index as usize) {
                    *slot = Some(message);
                }
                true
            }
            Err(refused) if refused.is_transient() => {
                self.waiting.push_back(message);
                false
            }
            Err(refused) => {
                message.status = CallStatus::Refused(refused);
                self.finish(message);
                true
            }
        }
    }

    fn finish(&mut self, message: Box<CallMessage>) {
        let pushed = self.completions.push(message);
        debug_assert!(pushed.is_ok(), "the way back holds all that were submitted");
    }
}

fn put_results(space: &mut Vec<u8>, results: &[u8]) -> CallStatus {
    space.clear();
    if results.len() > space.capacity() {
        return CallStatus::ResultsTooLong {
            bytes: results.len(),
        };
    }
    space.extend_from_slice(results);
    CallStatus::Success
}

/// An application that does nothing but serve the rings of other threads. The high half of a tag
/// is the index of its ring.
#[derive(Debug, Default)]
pub struct RingApplication {
    rings: Vec<RingService>,
}

impl RingApplication {
    /// Makes an application with `clients` pairs of rings of `capacity` calls each.
    #[must_use]
    pub fn new(clients: u32, capacity: u32) -> (Self, Vec<RingClient>) {
        let (threads, rings) = (0..clients)
            .map(|index| client_pair(capacity, index))
            .unzip();
        (Self { rings }, threads)
    }
}

impl Application for RingApplication {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        let ring = usize::try_from(tag >> 32).unwrap_or(usize::MAX);
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.completed(tag, result);
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        self.rings
            .iter_mut()
            .fold(Activity::Idle, |activity, ring| {
                activity.or(ring.poll(core))
            })
    }
}

/// The answer to a deferred call, on its way to the core.
#[derive(Debug)]
pub struct ReplyMessage {
    /// The right to answer; taken by the core.
    pub token: Option<DeferToken>,
    /// How the call ended.
    pub outcome: Outcome,
    /// Its results.
    pub results: Vec<u8>,
}

/// The threads' end of a ring of deferred replies.
#[derive(Clone, Debug)]
pub struct ReplySender {
    replies: Arc<ArrayQueue<Box<ReplyMessage>>>,
    recycled: Arc<ArrayQueue<Box<ReplyMessage>>>,
}

impl ReplySender {
    /// A message that the core has finished with, to be reused.
    #[must_use]
    pub fn recycled(&self) -> Option<Box<ReplyMessage>> {
        self.recycled.pop()
    }

    /// Hands an answer to the core.
    ///
    /// # Errors
    /// The message, while the ring is full.
    pub fn send(&self, message: Box<ReplyMessage>) -> Result<(), Box<ReplyMessage>> {
        self.replies.push(message)
    }
}

/// The core's end of a ring of deferred replies, for an [`Application`] to own.
pub struct ReplyService {
    replies: Arc<ArrayQueue<Box<ReplyMessage>>>,
    recycled: Arc<ArrayQueue<Box<ReplyMessage>>>,
    /// Answers that the core had no room for yet. A peer that receives no replies delays only its own. There is room
    /// for as many as in the ring: if more calls may be deferred, one peer can fill it.
    waiting: VecDeque<Box<ReplyMessage>>,
}

impl fmt::Debug for ReplyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyService")
            .field("replies", &self.replies.len())
            .finish_non_exhaustive()
    }
}

/// Makes a ring for `capacity` deferred replies.
#[must_use]
pub fn reply_ring(capacity: u32) -> (ReplySender, ReplyService) {
    let capacity = capacity.max(1) as usize;
    let replies = Arc::new(ArrayQueue::new(capacity));
    let recycled = Arc::new(ArrayQueue::new(capacity));
    let sender = ReplySender {
        replies: Arc::clone(&replies),
        recycled: Arc::clone(&recycled),
    };
    let service = ReplyService {
        replies,
        recycled,
        waiting: VecDeque::with_capacity(capacity),
    };
    (sender, service)
}

impl ReplyService {
    /// Sends the answers that came. Bounded; to be called in [`Application::poll`].
    #[inline]
    pub fn poll<P: Port>(&mut self, core: &mut Context<'_, P>) -> Activity {
        // An answer that is not tried now might be accepted: the core must not sleep.
        let mut busy = self.waiting.len() > MOVED_MAX;
        for _ in 0..MOVED_MAX.min(self.waiting.len()) {
            if let Some(message) = self.waiting.pop_front() {
                busy |= self.answer(core, message);
            }
        }
        for _ in 0..MOVED_MAX {
            if self.waiting.len() >= self.replies.capacity() {
                break;
            }
            let Some(message) = self.replies.pop() else {
                break;
            };
            busy |= self.answer(core, message);
        }
        Activity::from_busy(busy)
    }

    /// Answers a deferred call. False when the message has to wait.
    fn answer<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        mut message: Box<ReplyMessage>,
    ) -> bool {
        if let Some(token) = message.token.take() {
            let answered = core.reply(token, message.outcome, &message.results);
            match answered {
                Ok(()) | Err((ReplyRefused::UnknownToken, _)) => {}
                Err((ReplyRefused::Busy, token)) => {
                    message.token = Some(token);
                    self.waiting.push_back(message);
                    return false;
                }
                Err((ReplyRefused::TooLong | ReplyRefused::NoAnswer, token)) => {
                    // The caller has to get an answer, and no better one is possible.
                    message.outcome = Outcome::SystemError;
                    message.token = Some(token);
                    self.waiting.push_back(message);
                    return true;
                }
            }
        }
        // If this ring is full, the box is dropped: there are enough to reuse.
        let _ = self.recycled.push(message);
        true
    }
}
