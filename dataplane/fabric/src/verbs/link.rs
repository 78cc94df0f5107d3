//! The data exchanged between the connection manager and the ports of `verbs`.
//!
//! The manager makes a [`QueuePair`] for a port that it knows by its [`PortHandle`], connects it, and hands it over in
//! a [`PreparedQueuePair`]. From then on both name it by its [`QueuePairId`]: the manager reports events to the port
//! ([`PortEvent`]), and the port reports the connections that it has given up ([`PortHandle::next_closing`]), so that
//! the manager disconnects them.
//!
//! [`QueuePair`]: super::QueuePair
//! [`PreparedQueuePair`]: super::PreparedQueuePair

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::events::EventRing;
use super::protection_domain::ProtectionDomain;
use super::registrations::{OwnDomain, PortMemory};
use super::shared_receive_queue::SharedReceiveQueue;
use super::thread_domain::QueuePairDomain;
use crate::interface::{QueuePairId, ReceiveQueueId, SetupError};

/// Ends a wait of the manager early.
type Waker = Arc<dyn Fn() + Send + Sync>;

/// The sizes that a queue pair is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePairSizes {
    /// Work requests in the send queue.
    pub(super) send_depth: u32,
    /// Segments of a Send, RDMA Write or RDMA Read.
    pub(super) send_segments: u32,
    /// Bytes that a Send may carry in its work request.
    pub(super) inline_bytes: u32,
    /// Receives of a queue pair that has its own receive queue.
    pub(super) receive_depth: u32,
    /// Segments of those.
    pub(super) receive_segments: u32,
}

/// The state shared by a port and the manager.
pub(super) struct PortShared {
    pub(super) domain: Arc<ProtectionDomain>,
    /// Where queue pairs are made that use the protection domain of the port.
    pub(super) queue_pair_domain: QueuePairDomain,
    pub(super) completion_queue: Arc<CompletionQueue>,
    pub(super) events: Arc<EventRing>,
    /// The receive queues that the port made, by their numbers, if the device has shared ones.
    receive_queues: Mutex<Vec<Arc<SharedReceiveQueue>>>,
    pub(super) shares_receives: bool,
    pub(super) sizes: QueuePairSizes,
    pub(super) queue_pairs_max: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// Names of queue pairs that are free.
    pub(super) slots: ArrayQueue<QueuePairId>,
    /// Queue pairs that the port has given up, for the manager to disconnect.
    closing: ArrayQueue<QueuePairId>,
    waker: Mutex<Option<Waker>>,
    /// Where each queue pair has a protection domain: the memory that is registered in it.
    apart: Option<PortMemory>,
    /// Domains of destroyed queue pairs, to be released outside of the polling thread.
    retired: ArrayQueue<OwnDomain>,
}

impl PortShared {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        queue_pair_domain: QueuePairDomain,
        completion_queue: Arc<CompletionQueue>,
        events: Arc<EventRing>,
        shares_receives: bool,
        sizes: QueuePairSizes,
        queue_pairs_max: u32,
        responder_resources: u8,
        initiator_depth: u8,
        apart: Option<PortMemory>,
    ) -> Self {
        let slots = ArrayQueue::new(queue_pairs_max.max(1) as usize);
        for index in 0..queue_pairs_max.max(1) {
            let generation = 1;
            let _ = slots.push(QueuePairId { index, generation });
        }
        Self {
            domain: Arc::clone(queue_pair_domain.protection()),
            queue_pair_domain,
            completion_queue,
            events,
            receive_queues: Mutex::new(Vec::new()),
            shares_receives,
            sizes,
            queue_pairs_max,
            responder_resources,
            initiator_depth,
            // Each queue pair enters the ring once. Its index may have a new queue pair before the
            // manager has read that entry, hence the factor of two.
            closing: ArrayQueue::new(2 * queue_pairs_max.max(1) as usize),
            slots,
            waker: Mutex::new(None),
            apart,
            retired: ArrayQueue::new(2 * queue_pairs_max.max(1) as usize),
        }
    }

    /// A domain for one queue pair, with the memory of the port registered in it; `None` where all queue pairs share the
    /// port's domain. Registering takes long, so never call it on a polling core.
    pub(super) fn own_domain(&self) -> Result<Option<OwnDomain>, SetupError> {
        self.give_back_domains();
        let Some(memory) = &self.apart else {
            return Ok(None);
        };
        let (context, relaxed) = (self.domain.context(), self.domain.is_relaxed());
        let domain = Arc::new(ProtectionDomain::new(context, relaxed)?);
        let domain = self.queue_pair_domain.with(&domain);
        OwnDomain::new(domain, memory).map(Some)
    }

    /// Hands the domain of a destroyed queue pair to the manager, which releases it: deregistering a large arena takes too
    /// long for a polling core.
    fn retire(&self, domain: OwnDomain) {
        // If the ring is full, the oldest domain is released here.
        drop(self.retired.force_push(domain));
        self.wake();
    }

    fn give_back_domains(&self) {
        while let Some(domain) = self.retired.pop() {
            drop(domain);
        }
    }

    /// Records a shared receive queue that the port made.
    pub(super) fn add_receive_queue(&self, queue: Arc<SharedReceiveQueue>) {
        let queues = self.receive_queues.lock();
        queues.unwrap_or_else(PoisonError::into_inner).push(queue);
    }

    /// The shared receive queue of this number, unless there is none.
    pub(super) fn receive_queue(&self, id: ReceiveQueueId) -> Option<Arc<SharedReceiveQueue>> {
        let queues = self.receive_queues.lock();
        let queues = queues.unwrap_or_else(PoisonError::into_inner);
        queues.get(usize::from(id.0)).cloned()
    }

    /// Frees the id of a queue pair.
    pub(super) fn release(&self, id: QueuePairId) {
        // This cannot fail: the queue has a place for each index.
        let _ = self.slots.push(id);
    }

    /// As [`PortShared::release`], for a queue pair that had this domain.
    pub(super) fn release_with(&self, id: QueuePairId, domain: Option<OwnDomain>) {
        if let Some(domain) = domain {
            self.retire(domain);
        }
        self.release(id);
    }

    /// Notifies the manager that the port has put a queue pair in error. Not for the hot path: it may
    /// wake the manager by a system call.
    pub(super) fn tell_closing(&self, id: QueuePairId) {
        // A full ring drops its oldest entry. It fills only when no manager reads it.
        self.closing.force_push(id);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            waker();
        }
    }
}

impl fmt::Debug for PortShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortShared")
            .field("port", &self.events.port)
            .field("context", self.domain.context())
            .finish_non_exhaustive()
    }
}

/// The manager's data about a port. Cheap to clone, for any thread.
#[derive(Clone, Debug)]
pub struct PortHandle {
    pub(super) shared: Arc<PortShared>,
    /// The shared receive queue of new queue pairs, if the device has shared receive queues.
    pub(super) receive_queue: ReceiveQueueId,
}

impl PortHandle {
    pub(super) fn new(shared: Arc<PortShared>) -> Self {
        Self {
            shared,
            receive_queue: ReceiveQueueId(0),
        }
    }

    /// The same port, for queue pairs that draw from the receive queue `queue`. A device binds a queue
    /// pair to its shared receive queue when it is made; the default is the first one of the port.
    /// Where each queue pair has its own receive queue, [`adopt_queue_pair`] chooses instead.
    ///
    /// [`adopt_queue_pair`]: crate::interface::PortSetup::adopt_queue_pair
    #[must_use]
    pub fn drawing_from(&self, queue: ReceiveQueueId) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            receive_queue: queue,
        }
    }

    /// The device of the port. A connection to it must be of the same context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.shared.domain.context()
    }

    /// RDMA Reads that a queue pair of the port can serve at a time: the most to offer the peer as
    /// responder resources.
    #[must_use]
    pub fn responder_resources(&self) -> u8 {
        self.shared.responder_resources
    }

    /// RDMA Reads that a queue pair of the port can have outstanding: the most to ask of the peer as
    /// initiator depth.
    #[must_use]
    pub fn initiator_depth(&self) -> u8 {
        self.shared.initiator_depth
    }

    /// The next queue pair that the port has put in error: disconnect it, which notifies its peer. The
    /// manager may have removed its connection already.
    #[must_use]
    pub fn next_closing(&self) -> Option<QueuePairId> {
        self.shared.give_back_domains();
        self.shared.closing.pop()
    }

    /// Sets the function that the port calls after it has put a queue pair in error.
    pub fn set_waker(&self, waker: Arc<dyn Fn() + Send + Sync>) {
        let mut place = self
            .shared
            .waker
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(waker);
    }
}

/// An event that the manager reports to a port about a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The peer is ready to receive.
    Established(QueuePairId),
    /// The peer closed the connection or died.
    PeerGone(QueuePairId),
}
