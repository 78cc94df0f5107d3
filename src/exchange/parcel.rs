//! What the thread that serves TCP and a core exchange: calls of connections that are not the core's own, and their replies.

use std::cell::Cell;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use rpcrdma_engine::{BulkItem, ConnectionKey, DeferToken, Outcome, Request};
use rpcrdma_protocol::constants::AUTH_BODY_BYTES_MAX;
use rpcrdma_protocol::rpc::{Auth, OpaqueAuth};

use super::CoreShared;
use crate::record;

/// The longest header of an RPC reply here, in octets.
const REPLY_HEADER_BYTES_MAX: usize = 64 + AUTH_BODY_BYTES_MAX;

/// Goes from the thread of TCP to the core of a connection, and comes back. So a core neither allocates nor frees it.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) connection: ConnectionKey,
    pub(crate) content: Content,
    /// The call may be answered later.
    pub(crate) may_wait: bool,
    /// The call.
    pub(crate) message: Vec<u8>,
    /// Room for the reply.
    pub(crate) reply: Vec<u8>,
}

/// What a parcel is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// To the core and back: a connection of this host begins.
    Opened(IpAddr),
    /// To the core and back: it has ended. Its calls that are answered later may come back after this.
    Closed,
    /// To the core: a message that should be a call.
    Call,
    /// To the thread: the reply with its record mark lies here.
    Reply(Range<usize>),
    /// To the thread: the reply comes later, in another parcel.
    Later,
    /// To the thread: the call gets no answer. It was counted as one that is discarded, or that came again.
    Discarded,
    /// To the thread: the message was no call.
    NoCall,
}

/// The way of parcels to a core and back. Both ends always have room for all parcels that the thread has out.
pub(crate) struct ParcelQueue {
    pub(crate) to_core: ArrayQueue<Box<Parcel>>,
    /// All cores have the same.
    pub(crate) back: Arc<ArrayQueue<Box<Parcel>>>,
    /// The index of the first connection by TCP: those of the core come before it.
    pub(crate) first_index: u32,
    /// The longest reply.
    pub(crate) message_bytes_max: usize,
    /// Of the call that the core serves now. Relaxed: its thread alone uses it.
    pub(crate) may_wait: AtomicBool,
}

/// The right to answer a call later.
#[derive(Debug)]
pub(crate) enum Token {
    /// One that the core has deferred.
    Core(DeferToken),
    /// One by TCP: any thread can answer it without the core.
    Tcp(Unanswered),
}

/// A call by TCP that has no answer yet.
#[derive(Debug)]
pub(crate) struct Unanswered {
    back: Arc<ArrayQueue<Box<Parcel>>>,
    connection: ConnectionKey,
    xid: u32,
    /// The verifier of its reply, if it is not AUTH_NONE.
    verifier: Option<Box<Auth>>,
    message_bytes_max: usize,
}

impl CoreShared {
    /// Opens the way of calls by TCP. The first time counts.
    pub(crate) fn open_to_tcp(&self, queue: ParcelQueue) {
        let _ = self.parcels.set(queue);
    }

    /// Hands a parcel to the core.
    pub(crate) fn send_parcel(&self, parcel: Box<Parcel>) {
        let pushed = self.parcels.get().map(|it| it.to_core.push(parcel));
        debug_assert!(matches!(pushed, Some(Ok(()))), "it holds all parcels");
        self.ask_for_rare_work();
        self.wake();
    }

    pub(crate) fn next_parcel(&self) -> Option<Box<Parcel>> {
        self.parcels.get()?.to_core.pop()
    }

    /// Notes whether the call that is served next may be answered later.
    pub(crate) fn set_may_wait(&self, may_wait: bool) {
        if let Some(queue) = self.parcels.get() {
            queue.may_wait.store(may_wait, Ordering::Relaxed);
        }
    }

    /// Whether the peer of a connection sends calls again by it, and takes any reply for that of the call: by TCP.
    pub(crate) fn retransmits(&self, connection: ConnectionKey) -> bool {
        let queue = self.parcels.get();
        queue.is_some_and(|it| connection.index >= it.first_index)
    }

    pub(crate) fn has_parcels(&self) -> bool {
        let queue = self.parcels.get();
        queue.is_some_and(|it| !it.to_core.is_empty())
    }

    /// Gives a parcel back to its thread, which looks for it: a core makes no system call to wake that.
    pub(crate) fn return_parcel(&self, parcel: Box<Parcel>) {
        if let Some(queue) = self.parcels.get() {
            let pushed = queue.back.push(parcel);
            debug_assert!(pushed.is_ok(), "it holds all parcels");
        }
    }

    /// The right to answer a call later. `None` when as many calls wait for that as may. `verifier` is that of the reply, if it
    /// is not AUTH_NONE; the core keeps that of a call that it defers.
    pub(crate) fn defer(
        &self,
        request: &Request<'_>,
        verifier: &Cell<Option<Auth>>,
    ) -> Option<Token> {
        let of_tcp = self.retransmits(request.connection);
        match self.parcels.get().filter(|_| of_tcp) {
            None => request.defer().map(Token::Core),
            Some(queue) if !queue.may_wait.load(Ordering::Relaxed) => None,
            Some(queue) => Some(Token::Tcp(Unanswered {
                back: Arc::clone(&queue.back),
                connection: request.connection,
                xid: request.xid,
                verifier: verifier.get().map(Box::new),
                message_bytes_max: queue.message_bytes_max,
            })),
        }
    }
}

impl Unanswered {
    /// Answers the call with results and items, each behind so many bytes of `results`.
    /// Those that are longer than a reply may be become SYSTEM_ERR, as those that are written immediately.
    pub(crate) fn answer(self, mut outcome: Outcome, results: &[u8], items: &[(usize, BulkItem)]) {
        let items_bytes = items.iter().map(|(_, item)| item.len().next_multiple_of(4));
        let results_bytes = results.len() + items_bytes.sum::<usize>();
        if results_bytes + REPLY_HEADER_BYTES_MAX > self.message_bytes_max {
            outcome = Outcome::SystemError;
        }
        let mut reply = vec![0; record::HEADER_BYTES + REPLY_HEADER_BYTES_MAX];
        let space = reply.get_mut(record::HEADER_BYTES..).unwrap_or(&mut []);
        let verifier = self.verifier.as_ref();
        let verifier = verifier.map_or(OpaqueAuth::NONE, |it| it.get());
        let header = outcome.reply_header(self.xid).with_verifier(verifier);
        let header = header.encode(space);
        reply.truncate(record::HEADER_BYTES + header.unwrap_or(0));
        if outcome == Outcome::Success {
            let mut at = 0;
            for (before, item) in items {
                reply.extend_from_slice(results.get(at..*before).unwrap_or(&[]));
                item.parts().for_each(|part| reply.extend_from_slice(part));
                let padding_bytes = item.len().next_multiple_of(4) - item.len();
                reply.extend_from_slice(&[0; 3][..padding_bytes]);
                at = *before;
            }
            reply.extend_from_slice(results.get(at..).unwrap_or(&[]));
        }
        let end = reply.len();
        let content = Content::reply(&mut reply, record::HEADER_BYTES..end);
        self.end(content, reply);
    }

    /// Ends the call without an answer.
    pub(crate) fn give_up(self) {
        self.end(Content::Discarded, Vec::new());
    }

    fn end(self, content: Content, reply: Vec<u8>) {
        let parcel = Parcel {
            connection: self.connection,
            content,
            may_wait: true,
            message: Vec::new(),
            reply,
        };
        let pushed = self.back.push(Box::new(parcel));
        debug_assert!(pushed.is_ok(), "a call has one answer");
    }
}

impl Content {
    /// The RPC reply that lies in `message` of `space`, behind room for its record mark.
    pub(crate) fn reply(space: &mut [u8], message: Range<usize>) -> Self {
        let start = message.start.saturating_sub(record::HEADER_BYTES);
        // A message that is too long for a mark is longer than a reply may be.
        let mark = record::header(message.len()).unwrap_or_default();
        if let Some(place) = space.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
            *place = mark;
        }
        Self::Reply(start..message.end)
    }
}
