//! A core's view of a device.

use std::os::fd::BorrowedFd;

use super::{
    Arrival, Attributes, CompletionBatch, Counted, Formed, Forms, Gather, PostError, QueuePairId,
    Receive, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, SetupError, Window, WorkId,
};
use crate::clock::Ticks;
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

/// The size of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueueAttributes {
    /// Receives that may be posted at a time.
    pub depth: u32,
    /// Segments in the scatter list of each.
    pub segments_max: u32,
}

impl ReceiveQueueAttributes {
    /// Whether a queue that was made for these, and has `made` Receives, may have one more with `segments`.
    pub(crate) fn check_receive(
        self,
        made: u64,
        segments: &[Buffer],
        memory: &Memory,
    ) -> Result<(), SetupError> {
        let segments_max = self.segments_max.into();
        SetupError::check_limits(&[
            ("segments of a Receive", segments.len() as u64, segments_max),
            ("Receives of a receive queue", made + 1, self.depth.into()),
        ])?;
        if segments.iter().all(|buffer| memory.may_be_written(buffer)) {
            Ok(())
        } else {
            Err(SetupError::ForeignMemory)
        }
    }
}

/// What a peer may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// RDMA Read by the peer.
    pub remote_read: bool,
    /// RDMA Write by the peer.
    pub remote_write: bool,
}

/// Set-up: what a port has, its memory, receive queues and queue pairs, until their end.
pub trait PortSetup: Send + 'static {
    /// A queue pair that the control thread prepared for this port.
    type PreparedQueuePair: Send + 'static;

    /// An event that the connection manager reports about one of the port's queue pairs.
    type PortEvent: Send + 'static;

    /// The device's limits.
    fn attributes(&self) -> &Attributes;

    /// The registered memory of this port.
    fn memory(&self) -> &Memory;

    /// Carves a pool of equal buffers from the registered arena. Only at start-up.
    fn carve(&mut self, shape: PoolShape) -> Result<Pool, SetupError>;

    /// Carves a pool of buffers for Receives out of memory that is allocated by the first write to each page. Only at
    /// start-up. `None` if there is no such memory: a device needs the pages of everything that is registered.
    fn carve_untouched(&mut self, _shape: PoolShape) -> Result<Option<Pool>, SetupError> {
        Ok(None)
    }

    /// What pages the registered arena lies in.
    fn page_report(&self) -> &PageReport;

    /// Lets the port carry messages of these forms without their headers, to ends that have the same ones. Only at start-up,
    /// before the first queue pair. A port that carries only octets ignores it.
    ///
    /// # Panics
    /// When a shape is not one that [`FormShape`](super::FormShape) may be.
    fn set_forms(&mut self, _forms: Forms) {}

    /// Makes a receive queue.
    fn create_receive_queue(
        &mut self,
        attributes: ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError>;

    /// Makes a Receive with `segments` as its scatter list, not yet posted.
    fn create_receive(
        &mut self,
        queue: ReceiveQueueId,
        segments: &mut dyn Iterator<Item = Buffer>,
    ) -> Result<Receive, SetupError>;

    /// Adopts a queue pair that the manager prepared for this port. It draws its Receives from
    /// `queue`.
    fn adopt_queue_pair(
        &mut self,
        prepared: Self::PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError>;

    /// Handles an event of the manager: connection established, peer closed, a fault to inject.
    fn handle_event(&mut self, port_event: Self::PortEvent);

    /// Puts a queue pair in the error state: outstanding work is flushed, followed by
    /// [`super::CompletionKind::Disconnected`]. The peer is notified.
    fn disconnect(&mut self, queue_pair: QueuePairId);

    /// Forgets a queue pair after its `Disconnected`; windows bound on it end, their buffers
    /// come back by [`PortSends::next_returned`].
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId);
}

/// Receives: posting them, and reading what arrived in them.
pub trait PortReceives {
    /// Stages a Receive; it counts from the next [`PortReceives::flush_receives`] on. Cannot fail: a
    /// receive queue holds all Receives that were made for it. Returns a Receive of another
    /// port; a caller that posts only Receives of this port can ignore the result.
    fn post_receive(&mut self, receive: Receive) -> Option<Receive>;

    /// Posts the staged Receives, all with one doorbell.
    fn flush_receives(&mut self);

    /// Receives of `queue` that are posted and not yet consumed.
    fn receives_posted(&self, queue: ReceiveQueueId) -> u32;

    /// The whole first segment of a Receive. The caller takes only as many bytes as arrived. Empty for a Receive of
    /// another port.
    fn received(&self, receive: &Receive) -> &[u8];

    /// The bytes of segment `index` of a Receive, if there is such a segment, and the Receive is of
    /// this port.
    fn received_segment(&self, receive: &Receive, index: usize) -> Option<&[u8]>;

    /// Puts `fresh` in the place of segment `index` and gives the segment's buffer out, so that
    /// its data may be kept while the Receive is posted again. Gives `fresh` back as the error
    /// when there is no such segment, `fresh` is smaller, or either is of another port.
    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer>;
}

/// Work requests of a queue pair: Sends, RDMA Reads and RDMA Writes.
pub trait PortSends {
    /// Sends `bytes` bytes of `source` from its start, copied within the call: the caller keeps the buffer and may
    /// change it. At most [`Attributes::inline_bytes_max`].
    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError>;

    /// Sends a message by its form, with `rest` behind the headers, in this order. False, and nothing happened, if the port
    /// cannot do that now: then it is sent as octets, which may be refused.
    #[inline]
    fn post_formed(&mut self, queue_pair: QueuePairId, formed: &Formed, rest: [&[u8]; 2]) -> bool {
        let _ = (queue_pair, formed, rest);
        false
    }

    /// Sends the segments of `list`, which is drained; the buffers are the port's until the
    /// Send is acknowledged, then come back by [`PortSends::next_returned`].
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError>;

    /// Reads from the peer's memory into the segments of `list`; completes with [`super::CompletionKind::Read`], which
    /// gives the list back with its buffers. One beyond the depth that the peers agreed on waits; if they agreed on
    /// none it is refused with [`PostError::Unsupported`].
    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)>;

    /// Writes the segments of `list` into the peer's memory, before any later Send of the same
    /// queue pair arrives. Buffers come back as with [`PortSends::post_send`].
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError>;

    /// Posts an RDMA Write of no bytes, which takes no Receive at the peer and touches no memory. It completes with
    /// [`super::CompletionKind::Write`] when the peer's device acknowledges it, so it shows whether a silent peer is
    /// still alive. A port that notices a dead peer by itself (`shm`) refuses it with [`PostError::Unsupported`].
    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError>;

    /// A name for the oldest work request of a queue pair that is not known to be done; `None` without one, and from a port
    /// that cannot tell. While it is the same, nothing that was posted before was reported as done. A name comes back
    /// after 2^31 work requests at the earliest. Not for the path of a call.
    fn oldest_work(&mut self, queue_pair: QueuePairId) -> Option<u64> {
        let _ = queue_pair;
        None
    }

    /// Hands the staged work to the device: one doorbell per queue pair, and acknowledgements.
    fn flush_sends(&mut self);

    /// The next buffer of a Send or Write that is done, to be given back to its pool.
    fn next_returned(&mut self) -> Option<Buffer>;
}

/// Memory windows: exposing a buffer to one peer, and taking it back.
pub trait PortWindows {
    /// Exposes the first `bytes` bytes of `buffer` to the peer of `queue_pair` alone, by a memory
    /// window. The key opens it when a later Send of the same queue pair arrives, which is how
    /// the peer is to learn of it. On failure the buffer comes back with the reason: a view
    /// ([`Buffer::is_view`]) may be read alone.
    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)>;

    /// Takes a window away from the peer, locally, and completes with
    /// [`super::CompletionKind::Invalidated`]. A window that the peer has invalidated is given
    /// to [`PortWindows::close_window`] instead, never here: exactly one invalidation per binding. A
    /// window of another port comes back with [`PostError::ForeignMemory`].
    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)>;

    /// Ends a window that `invalidated` (of a Receive's completion) names, and gives its buffer
    /// back. Gives the window back when it is still bound, or of another port.
    fn close_window(&mut self, window: Window) -> Result<Buffer, Window>;

    /// Whether `window` is of this port and answers to `key`.
    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool;
}

/// Polling, and sleeping while there is nothing to poll for.
pub trait PortPoll {
    /// Moves bytes, and reaps as many completions as fit into `batch`. The configuration bounds the bytes per poll; the
    /// next poll continues. `now` ends the configured delay of messages. Returns whether the call did any work.
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool;

    /// As [`PortPoll::poll`], but the port may leave messages for [`PortPoll::next_arrival`]. They count towards the limit of the
    /// batch, and all of them have arrived when this returns.
    #[inline]
    fn begin_poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.poll(now, batch)
    }

    /// The next message that [`PortPoll::begin_poll`] left. Handle the completions of the batch first. The message stays in
    /// memory of the port until the next call of this function or the next poll; call [`PortPoll::keep`] to keep it longer.
    #[inline]
    fn next_arrival(&mut self) -> Option<Arrival> {
        None
    }

    /// The index of the queue pair of the message that [`PortPoll::next_arrival`] gives next, as far as the port can tell. Only a
    /// hint, to ask for memory ahead of its use: the peer may have written anything there.
    #[inline]
    fn arrives_next(&self) -> Option<u32> {
        None
    }

    /// The bytes of the last arrival; of one that came by its form, those behind its headers.
    #[inline]
    fn arrived(&self, arrival: &Arrival) -> &[u8] {
        let _ = arrival;
        &[]
    }

    /// Moves the last arrival into a Receive of its queue. `None` for an older one, whose bytes are gone, and for one whose queue
    /// pair was destroyed.
    fn keep(&mut self, arrival: Arrival) -> Option<Receive> {
        let _ = arrival;
        None
    }

    /// Announces that this core is about to sleep until [`PortPoll::event`] becomes readable, so that
    /// peers wake it. Returns false, and announces nothing, if there is work already. The core polls once more after
    /// the announcement and sleeps at most 100 ms, so that a wake-up that crosses the announcement is late but not
    /// lost.
    fn prepare_to_park(&mut self) -> bool;

    /// Whether Sends wait for their peers and [`PortPoll::event`] does not become readable when that ends. A sleeping core then
    /// looks again after a millisecond.
    fn waits_unnotified(&self) -> bool {
        false
    }

    /// The descriptor that becomes readable when a parked core has work.
    fn event(&self) -> BorrowedFd<'_>;

    /// Takes the announcement back and clears the event.
    fn unpark(&mut self);

    /// The number of messages that found no posted Receive, here or at the peer, if the provider can count them. A core
    /// that grants a credit only for a posted Receive counts none.
    fn receiver_not_ready(&self) -> u64;

    /// Reports the provider's own counters: always the same ones, in the same order. It allocates nothing, and a core calls
    /// it some times a second.
    fn each_counter(&self, each: &mut dyn FnMut(Counted));

    /// The provider's own counters, as (name, value), for reports. Not for the hot path.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.each_counter(&mut |it| all.push((it.name, it.value)));
        all
    }
}

/// A core's protection domain, completion queue, receive queues, queue pairs and memory.
///
/// Nothing here blocks, and nothing after setup allocates or calls the kernel. A port may be
/// moved to the thread that will own it; it is never shared. The [module](super) says
/// in which order it is called.
pub trait Port: PortSetup + PortReceives + PortSends + PortWindows + PortPoll {}

impl<T: PortSetup + PortReceives + PortSends + PortWindows + PortPoll> Port for T {}
