//! A call, from its arguments to its reply.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rpcrdma_engine::{BULK_ITEMS_MAX, CallRefused, ExpectedResult};

use super::connection::ClientConnection;
use super::response::Response;
use crate::auth::{Sign, Signed};
use crate::buffers::{Buffer, Buffers};
use crate::encode::{Encode, length_word};
use crate::error::{Error, Failure};
use crate::exchange::{Item, Message, Status, Waiter};
use crate::procedure::Procedure;

/// A call that was not sent yet. Its arguments are written with the methods of [`Encode`].
#[must_use = "a request does nothing before it is sent"]
pub struct Request {
    /// Taken when it is sent.
    unsent: Option<Unsent>,
    timeout: Option<Duration>,
}

/// A message and where it is to go.
pub(super) struct Unsent {
    pub(super) connection: Arc<ClientConnection>,
    pub(super) message: Box<Message>,
}

impl Request {
    #[inline]
    pub(super) fn new(connection: &Arc<ClientConnection>, procedure: Procedure) -> Self {
        Self::of_message(
            connection,
            procedure,
            Message::with_room(connection.results_bytes_max),
        )
    }

    /// As [`Request::new`], with the message of a reply.
    #[inline]
    pub(super) fn again(
        connection: &Arc<ClientConnection>,
        procedure: Procedure,
        last: Response,
    ) -> Self {
        match last.into_message() {
            Some(message) => Self::of_message(
                connection,
                procedure,
                message.again(connection.results_bytes_max),
            ),
            None => Self::new(connection, procedure),
        }
    }

    #[inline]
    fn of_message(
        connection: &Arc<ClientConnection>,
        procedure: Procedure,
        mut message: Box<Message>,
    ) -> Self {
        message.procedure = procedure.into();
        let connection = Arc::clone(connection);
        Self {
            unsent: Some(Unsent {
                connection,
                message,
            }),
            timeout: None,
        }
    }

    /// What is to be sent; nothing once it was taken.
    #[inline]
    pub(super) fn unsent(&self) -> Option<&Unsent> {
        self.unsent.as_ref()
    }

    /// Takes what is to be sent; nothing the second time.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Unsent> {
        self.unsent.take()
    }

    fn message(&mut self) -> Option<&mut Message> {
        self.unsent.as_mut().map(|unsent| &mut *unsent.message)
    }

    /// Expects an opaque of at most `bytes_max` bytes in the results, whose data may come beside their stream:
    /// [`Decoder::bulk`](crate::Decoder::bulk) reads it. Several come in the order of these calls. The program must permit
    /// this for the item (it is *DDP-eligible*, RFC 8166 section 6). Without this the data comes in the stream, copied.
    pub fn expect_bulk(&mut self, bytes_max: u32) -> &mut Self {
        if let Some(message) = self.message().filter(|_| bytes_max > 0) {
            let extras = message.extras_mut();
            extras.expected.push(ExpectedResult {
                bytes_max,
                ..ExpectedResult::default()
            });
            // For the core to put it into.
            extras.result_items.reserve(extras.expected.len());
        }
        self
    }

    /// As [`Request::expect_bulk`], for data that is to be written into `target`, whose length is the most that it can have:
    /// [`Decoder::bulk`](crate::Decoder::bulk) brings it back, with the length of the data. It has at most 8 pieces, with
    /// those of other results.
    ///
    /// With a server that answers in the stream of its results, and with one that cannot use RDMA, the data is not in
    /// `target`, which is dropped then. It is in other memory of the core if the call was repeated
    /// ([`ClientBuilder::repeat`](crate::ClientBuilder::repeat)) or, in a rare case, had to be made again in another form.
    pub fn expect_bulk_into(&mut self, target: Buffer) -> &mut Self {
        let bytes_max = u32::try_from(target.len()).unwrap_or(u32::MAX);
        self.expect_bulk(bytes_max);
        if let Some(message) = self.message().filter(|_| bytes_max > 0) {
            let extras = message.extras_mut();
            extras
                .targets
                .push((extras.expected.len() - 1, target.item));
        }
        self
    }

    /// The most bytes that the results have without such data, if they are more than 512. It matters for calls with bulk
    /// data, and for all calls of a server that has version 1 of RPC-over-RDMA alone: there a reply is one message, of 4 KiB
    /// or less, unless the call offers room for a longer one (RFC 8166 section 4.3.3). The room is registered memory of the core
    /// (`bulk_buffers`), for as long as the call takes. Without it such a server refuses to reply, after it has executed the
    /// call ([`ErrorKind::BadReply`](crate::ErrorKind::BadReply)). Long arguments need no announcement; they take such memory
    /// too.
    pub fn results_bytes_max(&mut self, bytes_max: usize) -> &mut Self {
        if let Some(message) = self.message() {
            message.extras_mut().results_bytes_max = bytes_max;
        }
        self
    }

    /// Calls with this credential: its flavor, and its body of at most 400 bytes (RFC 5531 section 8.2).
    pub fn credential(&mut self, flavor: u32, body: &[u8]) -> &mut Self {
        if let Some(message) = self.message() {
            let caller = &mut message.extras_mut().caller;
            caller.flavor = flavor;
            caller.body.clear();
            caller.body.extend_from_slice(body);
        }
        self
    }

    /// Calls with the credential and verifier that `signer` makes when the call is sent, in place of
    /// [`Request::credential`]. The reply has its verifier ([`Response::verifier`]).
    pub fn sign(&mut self, signer: Arc<dyn Sign>) -> &mut Self {
        if let Some(message) = self.message() {
            message.extras_mut().caller.signed = Some(Box::new(Signed::new(signer)));
        }
        self
    }

    /// How long [`Request::call`] waits for the reply, in place of the client's own.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends the call and waits for its reply: it looks for it for a while
    /// ([`ClientBuilder::spin`](crate::ClientBuilder::spin)), and sleeps then.
    ///
    /// # Errors
    /// With [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) and
    /// [`ErrorKind::Disconnected`](crate::ErrorKind::Disconnected) the server may have executed the call. With
    /// [`ErrorKind::NotConnected`](crate::ErrorKind::NotConnected), [`ErrorKind::Busy`](crate::ErrorKind::Busy),
    /// [`ErrorKind::TooLong`](crate::ErrorKind::TooLong) of arguments and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) nothing was sent.
    #[inline]
    pub fn call(&mut self) -> Result<Response, Error> {
        let mut pending = self.call_async();
        let connection = pending.connection();
        let timeout = self
            .timeout
            .or(connection.map(|connection| connection.timeout));
        pending.wait(timeout.unwrap_or_default())
    }

    /// Sends the call when the future is first polled. The future needs no runtime, and may be dropped at any time: the
    /// call goes on at the server then. The core wakes the task, so what the runtime's waker does takes time of the core. The
    /// call has the time limit of the profile (`call_timeout_ms`); for a shorter one use
    /// that of your runtime.
    #[inline]
    pub fn call_async(&mut self) -> Pending {
        let state = match self.unsent.take() {
            Some(unsent) => State::Unsent(unsent),
            None => State::Done,
        };
        Pending {
            state,
            waiter: None,
        }
    }
}

impl Encode for Request {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(message) = self.message() {
            message.args.extend_from_slice(bytes);
        }
        self
    }

    fn bulk(&mut self, buffer: Buffer) -> &mut Self {
        self.u32(length_word(&buffer));
        let unsent = self.unsent.as_ref();
        let repeats = unsent.is_some_and(|unsent| unsent.connection.peer.repeats);
        if let Some(message) = self.message().filter(|_| !buffer.is_empty()) {
            let at = message.args.len();
            let item = match repeats {
                true => Item::shared(buffer.item),
                false => Item::Own(buffer.item),
            };
            message.extras_mut().items.push((at, item));
        }
        self
    }

    fn buffer_for(&mut self, bytes: usize) -> Option<Buffer> {
        let unsent = self.unsent.as_ref()?;
        Buffers::new(&unsent.connection.core).take(bytes)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(unsent) = self.unsent.take() {
            unsent.message.recycle();
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.unsent.as_ref().map(|unsent| &unsent.message);
        f.debug_struct("Request")
            .field("message", &message)
            .finish_non_exhaustive()
    }
}

/// Refuses what no message can hold.
pub(super) fn check(message: &Message) -> Result<(), Error> {
    if !message.has_extras {
        return Ok(());
    }
    let extras = message.extras();
    if extras.items.len() > BULK_ITEMS_MAX || extras.expected.len() > BULK_ITEMS_MAX {
        let max = BULK_ITEMS_MAX;
        return Err(Failure::TooManyItems { max }.into());
    }
    Ok(())
}

/// Why a call has no results.
#[cold]
pub(super) fn failure(connection: &ClientConnection, status: Status) -> Error {
    let address = connection.peer.address.clone();
    let patience = connection.peer.patience.as_millis();
    let after_ms = u64::try_from(patience).unwrap_or(u64::MAX);
    let failure = match status {
        Status::Failed(error) => Failure::Call { address, error },
        Status::Refused(CallRefused::TooLong) => Failure::CallTooLong {
            address,
            max: connection.node.profile().message_bytes_max,
            bulk: connection.node.profile().bulk_pool_bytes(),
        },
        Status::Refused(error) => Failure::Refused { address, error },
        Status::ResultsTooLong(bytes) => Failure::ResultsTooLong {
            bytes,
            max: connection.results_bytes_max,
        },
        Status::NotConnected if connection.peer.is_given_up() => Failure::GivenUp {
            address,
            why: connection.peer.why().unwrap_or_default(),
        },
        Status::NotConnected => Failure::NotConnected {
            address,
            after_ms,
            last: connection.peer.why(),
        },
        Status::ShuttingDown | Status::Success => Failure::ShuttingDown,
    };
    failure.into()
}

/// A reply that is waited for.
#[must_use = "a call that nobody waits for is not sent"]
pub struct Pending {
    state: State,
    /// While it waits for a slot.
    waiter: Option<Waiter>,
}

enum State {
    Unsent(Unsent),
    /// Its reply comes to the slot of that index.
    Sent(Arc<ClientConnection>, usize),
    Done,
}

impl Pending {
    fn connection(&self) -> Option<&Arc<ClientConnection>> {
        match &self.state {
            State::Unsent(Unsent { connection, .. }) | State::Sent(connection, _) => {
                Some(connection)
            }
            State::Done => None,
        }
    }

    /// Sends the message. False when as many calls are under way as may be.
    #[inline]
    fn send(&mut self) -> Result<bool, Error> {
        let State::Unsent(unsent) = &self.state else {
            return Ok(true);
        };
        check(&unsent.message)?;
        let Some(slot) = unsent.connection.slots.take() else {
            return Ok(false);
        };
        let state = std::mem::replace(&mut self.state, State::Done);
        let State::Unsent(Unsent {
            connection,
            mut message,
        }) = state
        else {
            return Ok(true);
        };
        message.tag = slot as u64;
        message.begin_trace();
        connection.submit(message);
        self.state = State::Sent(connection, slot);
        Ok(true)
    }

    /// The reply, if it has come.
    #[inline]
    fn take(&mut self) -> Option<Result<Response, Error>> {
        let State::Sent(connection, slot) = &self.state else {
            return None;
        };
        let mut message = connection.slots.look(*slot).or_else(|| {
            // A core that has ended brings nothing by itself.
            let has_failed = connection.core.fail_if_closed();
            has_failed.then(|| connection.slots.look(*slot)).flatten()
        })?;
        let State::Sent(connection, _) = std::mem::replace(&mut self.state, State::Done) else {
            return None;
        };
        message.end_trace();
        Some(match message.status {
            Status::Success => Ok(Response::new(message)),
            status => {
                message.recycle();
                Err(failure(&connection, status))
            }
        })
    }

    /// Waits for the reply on this thread.
    #[inline]
    fn wait(&mut self, timeout: Duration) -> Result<Response, Error> {
        if self.send()? {
            let spin = self
                .connection()
                .map_or(Duration::ZERO, |connection| connection.spin);
            if let Some(result) = spin_for(spin.min(timeout), || self.take()) {
                return result;
            }
        }
        match sleep_for(timeout, |context| Pin::new(&mut *self).poll(context)) {
            Some(result) => result,
            None => Err(self.timed_out(timeout)),
        }
    }

    #[cold]
    fn timed_out(&self, timeout: Duration) -> Error {
        let failure = match &self.state {
            State::Unsent(unsent) => Failure::Busy {
                depth: u32::try_from(unsent.connection.slots.count()).unwrap_or(u32::MAX),
            },
            State::Sent(connection, _) => Failure::TimedOut {
                address: connection.peer.address.clone(),
                after_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            },
            State::Done => Failure::AlreadySent,
        };
        failure.into()
    }
}

/// Looks for something for a while.
#[inline]
pub(super) fn spin_for<T>(spin: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    // A look at the clock takes longer than one for a reply, and most replies come before the first.
    const LOOKS: u32 = 64;
    let mut begin = None;
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = look() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if begin.get_or_insert_with(Instant::now).elapsed() >= spin {
            return None;
        }
    }
}

/// Polls something until it is ready, and sleeps in between. `None` when it takes longer than `timeout`.
#[cold]
pub(super) fn sleep_for<T>(
    timeout: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let deadline = Instant::now().checked_add(timeout);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(ready) = poll(&mut context) {
            return Some(ready);
        }
        match deadline {
            None => std::thread::park(),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                std::thread::park_timeout(left);
            }
        }
    }
}

/// Wakes a thread that waits for a reply.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Future for Pending {
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.send()? {
            let Self { state, waiter } = &mut *self;
            if let State::Unsent(Unsent { connection, .. }) = state {
                connection.slots.await_free(waiter, context.waker());
            }
            // Registered first, then tried again: a permit that comes back in between is not missed.
            if !self.send()? {
                return Poll::Pending;
            }
        }
        self.waiter = None;
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        let State::Sent(connection, slot) = &self.state else {
            return Poll::Ready(Err(Failure::AlreadySent.into()));
        };
        connection.slots.register(*slot, context.waker());
        // With that of a core that closes: either it finds the call, or it is found closed.
        fence(Ordering::SeqCst);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Unsent(unsent) => unsent.message.recycle(),
            State::Sent(connection, slot) => {
                if let Some(message) = connection.slots.abandon(slot) {
                    message.recycle();
                }
            }
            State::Done => {}
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Unsent(_) => "not sent",
            State::Sent(..) => "sent",
            State::Done => "done",
        };
        f.debug_tuple("Pending").field(&state).finish()
    }
}
