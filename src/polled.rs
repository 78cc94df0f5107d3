//! Cores that a thread of the program polls.

use std::fmt;

use rpcrdma_control::PolledCore as ControlCore;

/// A core without a thread: it serves and calls in [`PolledCore::poll`], on whichever thread calls that. For programs whose
/// threads poll several things in turn, such as reactors of SPDK ([`NodeBuilder::polled_by_caller`]).
///
/// What waits for a core waits for ever on the thread that polls it, so there: connect by [`ClientBuilder::connect_later`],
/// call by a [`Poller`] or a future, take memory by [`Buffers::take`], and leave [`Node::drain`] to another thread.
///
/// Dropping it closes its connections and frees its memory, and calls in flight fail, as do those that its clients make later.
/// The node may be dropped before or after it. While nobody polls it, its node ends without it.
///
/// # Example
/// ```
/// use rpcrdma::prelude::*;
///
/// # fn main() -> rpcrdma::Result<()> {
/// # let address = &*format!("shm:polled-{}", std::process::id());
/// const ECHO: Procedure = Procedure::new(0x2000_0001, 1, 1);
/// let node = Node::builder()
///     .polled_by_caller()
///     .procedure(ECHO, |call, reply| {
///         reply.opaque(call.args().opaque()?);
///         Ok(())
///     })
///     .start(address)?;
/// let mut core = node.take_core(0).expect("there is one, and nobody has taken it");
/// node.listen(address, Default::default())?;
/// let client = node.client().connect_later(address)?;
/// let mut poller = client.poller(1)?;
/// let mut request = poller.request(ECHO);
/// poller.submit(request.opaque(b"ping"), 7)?;
/// let mut ended = loop {
///     core.poll();
///     if let Some(ended) = poller.complete() {
///         break ended;
///     }
/// };
/// assert_eq!(ended.result?.results().opaque()?, b"ping");
/// # Ok(())
/// # }
/// ```
///
/// [`NodeBuilder::polled_by_caller`]: crate::NodeBuilder::polled_by_caller
/// [`ClientBuilder::connect_later`]: crate::ClientBuilder::connect_later
/// [`Poller`]: crate::Poller
/// [`Buffers::take`]: crate::Buffers::take
/// [`Node::drain`]: crate::Node::drain
pub struct PolledCore(ControlCore);

impl PolledCore {
    pub(crate) fn new(core: ControlCore) -> Self {
        Self(core)
    }

    /// Does what there is to do, within bounds, and returns whether there was something. It never waits. Call it again and
    /// again: while nobody does, no call goes on, and a peer that hears nothing for
    /// `keep_alive_interval_ms * keep_alive_silent_ticks_max` of its profile ends the connection.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.0.poll().is_busy()
    }

    /// Whether its node has ended, and this core with it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl fmt::Debug for PolledCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_stopped = self.is_stopped();
        f.debug_struct("PolledCore")
            .field("is_stopped", &is_stopped)
            .finish()
    }
}
