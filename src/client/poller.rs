//! Calls in batches: sent and taken back without waiting.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::connection::ClientConnection;
use super::request::{Request, Unsent, check, failure, sleep_for, spin_for};
use super::response::Response;
use crate::error::{Error, Failure};
use crate::exchange::{CompletionSource, Status, SubmissionSink};
use crate::procedure::Procedure;

/// Up to `depth` calls of one thread, which come back in the order in which their replies came.
///
/// # Example
/// ```
/// use rpcrdma::prelude::*;
///
/// # fn main() -> rpcrdma::Result<()> {
/// # let address = format!("shm:poller-{}", std::process::id());
/// # const DOUBLE: Procedure = Procedure::new(0x2000_0001, 1, 1);
/// # let server = Server::builder().procedure(DOUBLE, |call, reply| {
/// #     reply.u32(call.args().u32()? * 2);
/// #     Ok(())
/// # }).listen(&address)?;
/// # let client = Client::connect(&address)?;
/// let mut poller = client.poller(8)?;
/// let mut sum = 0;
/// for number in 0..100 {
///     while poller.is_full() {
///         sum += poller.wait()?.result?.results().u32()?;
///     }
///     let mut request = poller.request(DOUBLE);
///     poller.submit(request.u32(number), 0)?;
/// }
/// while !poller.is_empty() {
///     sum += poller.wait()?.result?.results().u32()?;
/// }
/// assert_eq!(sum, 9900);
/// # Ok(())
/// # }
/// ```
pub struct Poller {
    connection: Arc<ClientConnection>,
    submissions: SubmissionSink,
    completions: CompletionSource,
    depth: u32,
    outstanding: u32,
}

/// A call that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The name that it was submitted with.
    pub tag: u64,
    /// Its results, or why there are none.
    pub result: Result<Response, Error>,
}

impl Poller {
    pub(super) fn new(connection: &Arc<ClientConnection>, depth: u32) -> Result<Self, Error> {
        let depth = depth.max(1);
        let (submissions, completions) = connection.core.open_to_poller(&connection.peer, depth)?;
        Ok(Self {
            connection: Arc::clone(connection),
            submissions,
            completions,
            depth,
            outstanding: 0,
        })
    }

    /// Begins a call on the connection of this poller.
    #[inline]
    pub fn request(&self, procedure: Procedure) -> Request {
        Request::new(&self.connection, procedure)
    }

    /// As [`Poller::request`], in the memory of a reply that has been read, as [`Client::again`](crate::Client::again).
    #[inline]
    pub fn again(&self, procedure: Procedure, last: Response) -> Request {
        Request::again(&self.connection, procedure, last)
    }

    /// Sends a call that [`Poller::request`] began. It comes back with `tag` by [`Poller::complete`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the poller is full: the request can be submitted again.
    /// [`ErrorKind::TooLong`](crate::ErrorKind::TooLong) for too many items of bulk data, and
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) for a request that was sent already, or that another client or poller
    /// began. Nothing was sent, and the request is as it was.
    #[inline]
    pub fn submit(&mut self, request: &mut Request, tag: u64) -> Result<(), Error> {
        if self.is_full() {
            return Err(Failure::Busy { depth: self.depth }.into());
        }
        // Checked before it is taken: a request that is refused stays whole.
        let unsent = request.unsent().ok_or(Failure::AlreadySent)?;
        if !Arc::ptr_eq(&unsent.connection, &self.connection) {
            return Err(Failure::OtherPoller.into());
        }
        check(&unsent.message)?;
        let Unsent { mut message, .. } = request.take().ok_or(Failure::AlreadySent)?;
        message.tag = tag;
        message.begin_trace();
        self.submissions.push(message);
        self.outstanding += 1;
        self.connection.core.wake();
        Ok(())
    }

    /// Takes a call that has ended, if there is one.
    #[inline]
    pub fn complete(&mut self) -> Option<Ended> {
        let mut message = self.completions.next().or_else(|| {
            // A core that has ended brings nothing by itself.
            let has_failed = self.connection.core.fail_if_closed();
            has_failed.then(|| self.completions.next()).flatten()
        })?;
        self.outstanding -= 1;
        message.end_trace();
        let tag = message.tag;
        let result = match message.status {
            Status::Success => Ok(Response::new(message)),
            status => {
                message.recycle();
                Err(failure(&self.connection, status))
            }
        };
        Some(Ended { tag, result })
    }

    /// Takes a call that has ended, and waits for one on this thread.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) when no call is under way, so that none would come.
    pub fn wait(&mut self) -> Result<Ended, Error> {
        // The core ends every call in time, or when it ends itself.
        let ended = self.wait_for(Duration::MAX)?;
        ended.ok_or_else(|| Failure::ShuttingDown.into())
    }

    /// As [`Poller::wait`], for at most `timeout`. `None` when no call has ended by then.
    ///
    /// # Errors
    /// As [`Poller::wait`].
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Option<Ended>, Error> {
        if let Some(ended) = spin_for(self.connection.spin.min(timeout), || self.complete()) {
            return Ok(Some(ended));
        }
        sleep_for(timeout, |context| self.poll_next(context)).transpose()
    }

    /// Takes a call that has ended, as a future.
    ///
    /// # Errors
    /// As [`Poller::wait`].
    pub async fn next(&mut self) -> Result<Ended, Error> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Ended, Error>> {
        if let Some(ended) = self.complete() {
            return Poll::Ready(Ok(ended));
        }
        if self.is_empty() {
            let address = self.connection.peer.address.clone();
            let nothing = Failure::NothingUnderWay { address };
            return Poll::Ready(Err(nothing.into()));
        }
        self.completions.register(context.waker());
        let ended = self.complete();
        ended.map_or(Poll::Pending, |ended| Poll::Ready(Ok(ended)))
    }

    /// Calls under way.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether as many calls are under way as may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.outstanding == self.depth
    }

    /// Whether no call is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("outstanding", &self.outstanding)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
