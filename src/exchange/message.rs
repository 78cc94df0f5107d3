//! A call on its way to a core and back.

use std::cell::RefCell;
use std::fmt;

use rpcrdma_engine::{BulkItem, Call, CallAuth, CallError, CallRefused, ExpectedResult};
use rpcrdma_fabric::memory::SharedLease;
use rpcrdma_protocol::constants::AUTH_BODY_BYTES_MAX;
use rpcrdma_protocol::rpc::{Auth, OpaqueAuth};

use crate::auth::Signed;
use crate::decode::{Decoder, Position};
use crate::once::Sent;
use crate::trace::CallTrace;

/// Bytes that the stream of a reply has at most beside bulk data, unless the request says otherwise: for more than a
/// message of the connection holds, memory is set aside.
const RESULTS_BYTES: usize = 512;

/// Messages that a thread keeps at most. Each keeps the memory that its longest arguments and results have touched.
const SPARE_MAX: usize = 64;

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
#[repr(align(64))]
pub(crate) struct Message {
    pub(crate) procedure: Call,
    /// Whether [`Message::extras`] has anything.
    pub(crate) has_extras: bool,
    /// The index of the slot in which a thread waits, or the sender's own name for the call.
    pub(crate) tag: u64,
    /// On the core: the place of the queue that it came by.
    pub(crate) queue: usize,
    pub(crate) args: Vec<u8>,
    /// The stream of the reply. The core never raises its capacity.
    pub(crate) results: Vec<u8>,
    pub(crate) status: Status,
    /// In ticks of the core: when it is no longer worth waiting for the connection. 0 until the core has set it.
    pub(crate) wait_until: u64,
    /// How it was sent, if it is made again when it is lost with its connection.
    pub(crate) sent: Option<Sent>,
    trace: CallTrace,
    extras: Box<Extras>,
}

/// Who calls.
#[derive(Default)]
pub(crate) struct Caller {
    pub(crate) flavor: u32,
    pub(crate) body: Vec<u8>,
    /// What replaces them in a call that is signed.
    pub(crate) signed: Option<Box<Signed>>,
}

impl Caller {
    // Not in line: what every reply goes through would grow by it.
    #[cold]
    fn keep_verifier(&mut self, verifier: OpaqueAuth<'_>) {
        if let Some(signed) = &mut self.signed {
            signed.reply = Auth::new(verifier.flavor, verifier.body).unwrap_or(Auth::NONE);
        }
    }

    pub(crate) fn auth(&self) -> CallAuth<'_> {
        let (flavor, body) = (self.flavor, &*self.body);
        match &self.signed {
            Some(signed) => signed.auth(),
            None => OpaqueAuth { flavor, body }.into(),
        }
    }
}

/// What few calls have: a credential, and bulk data.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) caller: Caller,
    /// Each behind so many bytes of the arguments.
    pub(crate) items: Vec<(usize, Item)>,
    pub(crate) expected: Vec<ExpectedResult>,
    /// Where results are to go: for each its number and its memory.
    pub(crate) targets: Vec<(usize, BulkItem)>,
    pub(crate) result_items: Vec<BulkItem>,
    /// Bytes that the stream of the reply has at most, where data may come beside it.
    pub(crate) results_bytes_max: usize,
}

/// Bulk data of a call.
pub(crate) enum Item {
    /// The core takes it with the call.
    Own(BulkItem),
    /// The call may have to be made again: the core has a share, and the message keeps one until the call has ended.
    Shared(BulkItem<SharedLease>),
}

impl Item {
    pub(crate) fn shared(item: BulkItem) -> Self {
        let mut shared = BulkItem::new();
        for piece in item {
            // There is room: both have as many places.
            let _ = shared.push(piece.share());
        }
        Self::Shared(shared)
    }
}

impl Extras {
    /// The most bytes behind the header of a reply with verifier AUTH_NONE: the body of another one counts too.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        let verifier_bytes = self
            .caller
            .signed
            .as_ref()
            .map_or(0, |_| AUTH_BODY_BYTES_MAX);
        self.results_bytes_max.saturating_add(verifier_bytes)
    }
}

/// In their boxes, in which they travel.
type Spare = RefCell<Vec<Box<Message>>>;

thread_local! {
    /// Messages that this thread can use again.
    static SPARE: Spare = const { RefCell::new(Vec::new()) };
}

impl Message {
    /// A message to fill, with room for results of so many bytes.
    #[inline]
    pub(crate) fn with_room(results_bytes: usize) -> Box<Self> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        match spare {
            Ok(Some(message)) => message.with_results_of(results_bytes),
            _ => Self::new(results_bytes),
        }
    }

    /// The same message for another call of its thread, with room as in [`Message::with_room`].
    #[inline]
    pub(crate) fn again(mut self: Box<Self>, results_bytes: usize) -> Box<Self> {
        self.clear();
        self.with_results_of(results_bytes)
    }

    #[inline]
    fn with_results_of(mut self: Box<Self>, bytes: usize) -> Box<Self> {
        if self.results.capacity() < bytes {
            self.results.reserve(bytes);
        }
        self
    }

    /// Keeps a message for the next call of this thread.
    #[inline]
    pub(crate) fn recycle(mut self: Box<Self>) {
        self.clear();
        // While a thread ends it keeps none.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(self);
            }
        });
    }

    #[cold]
    fn new(results_bytes: usize) -> Box<Self> {
        Box::new(Self {
            procedure: Call::default(),
            has_extras: false,
            tag: 0,
            queue: 0,
            args: Vec::new(),
            // Reserved and not touched: it takes memory only as far as replies are long.
            results: Vec::with_capacity(results_bytes),
            status: Status::Success,
            wait_until: 0,
            sent: None,
            trace: CallTrace::default(),
            extras: Box::default(),
        })
    }

    /// It goes to its core now.
    #[inline]
    pub(crate) fn begin_trace(&mut self) {
        self.trace.begin(&self.procedure, self.args.len());
    }

    /// It has come back.
    #[inline]
    pub(crate) fn end_trace(&mut self) {
        let error: Option<&dyn fmt::Debug> = match &self.status {
            Status::Success => None,
            status => Some(status),
        };
        self.trace.end(&self.procedure, self.results.len(), error);
    }

    /// Reads the results, from `position` on.
    #[inline]
    pub(crate) fn decoder<'a>(&'a mut self, position: &'a mut Position) -> Decoder<'a> {
        let items: &mut [BulkItem] = if self.has_extras {
            &mut self.extras.result_items
        } else {
            &mut []
        };
        Decoder::of_reply(&self.results, items, position)
    }

    /// Makes it ready to be made again, if it was made so that it can be. The memory that its results were to go to stays with
    /// the connection that was lost: its server may still write there. They come to memory of the core then.
    pub(crate) fn prepare_to_repeat(&mut self) -> bool {
        self.extras.targets.clear();
        self.sent.is_some()
    }

    /// Whether it was lost for longer than it is made again.
    pub(crate) fn is_late(&self, now: u64) -> bool {
        self.sent.is_some() && self.wait_until != 0 && now >= self.wait_until
    }

    /// Ends its shares of what it sent: it is not made again.
    #[inline]
    pub(crate) fn end_shares(&mut self) {
        if self.has_extras {
            self.extras.items.clear();
        }
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

    /// Who signs it, if it is to be signed.
    pub(crate) fn signed_mut(&mut self) -> Option<&mut Signed> {
        self.extras.caller.signed.as_deref_mut()
    }

    /// Keeps the verifier of its reply, if it was signed.
    #[inline]
    pub(crate) fn keep_verifier(&mut self, verifier: OpaqueAuth<'_>) {
        if self.has_extras {
            self.extras.caller.keep_verifier(verifier);
        }
    }

    /// Makes it ready for another call.
    #[inline]
    fn clear(&mut self) {
        self.args.clear();
        self.results.clear();
        self.status = Status::Success;
        self.wait_until = 0;
        self.sent = None;
        if std::mem::take(&mut self.has_extras) {
            let extras = &mut *self.extras;
            extras.caller.flavor = 0;
            extras.caller.body.clear();
            extras.caller.signed = None;
            extras.items.clear();
            extras.expected.clear();
            extras.targets.clear();
            extras.result_items.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Way;

    #[test]
    fn a_message_for_another_call_has_nothing_of_the_last_one() {
        let mut message = Message::with_room(8);
        message.args.extend_from_slice(b"args");
        message.extras_mut().caller.flavor = 1;
        message.extras_mut().caller.body.extend_from_slice(b"body");
        message.wait_until = 7;
        message.sent = Some(Sent {
            way: Way::default(),
            xid: 1,
            node: None,
            number: None,
        });
        message.results.extend_from_slice(b"results!");
        message.status = Status::NotConnected;
        let mut message = message.again(64);
        assert!(message.args.is_empty());
        assert!(message.results.capacity() >= 64);
        assert!(!message.has_extras);
        assert_eq!(message.wait_until, 0);
        assert_eq!(message.sent, None);
        let auth = message.extras_mut().caller.auth();
        assert_eq!(auth.credential, OpaqueAuth::NONE);
    }
}
