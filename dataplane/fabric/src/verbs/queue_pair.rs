//! Reliable-connected queue pairs.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{
    self, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_recv_wr, ibv_send_wr,
};
use super::cm::id::Id;
use super::completion_queue::CompletionQueue;
use super::errno::{done, failed, made};
use super::leaked;
use super::link::{PortHandle, PortShared, QueuePairSizes};
use super::registrations::OwnDomain;
use super::shared_receive_queue::SharedReceiveQueue;
use super::thread_domain::QueuePairDomain;
use crate::interface::{QueuePairId, ReceiveQueueId, SetupError};

/// The timeouts and retries of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// The ACK timeout: 4.096 µs times two to this power (InfiniBand volume 1, section 9.7.6.1.3).
    pub ack_timeout_exponent: u8,
    /// How often it repeats an unacknowledged packet.
    pub retry_count: u8,
    /// How often it retries when the peer has no Receive posted; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// The code of the time that a peer waits before it retries when we have no Receive posted
    /// (section 9.7.5.2.8).
    pub min_rnr_timer_code: u8,
}

/// A queue pair of a port. The control thread makes it. Dropping it destroys it and frees its id.
#[derive(Debug)]
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    number: u32,
    id: QueuePairId,
    port: Arc<PortShared>,
    /// The shared receive queue that it draws from, which must outlive it; `None` if it has its own
    /// receive queue.
    receive_queue: Option<(ReceiveQueueId, Arc<SharedReceiveQueue>)>,
    /// Its own protection domain; `None` if it uses that of the port. Released after the queue pair was
    /// destroyed.
    domain: Option<OwnDomain>,
    /// The identifier of its connection, if no connection manager holds it.
    connection: Option<Id>,
}

// SAFETY: calls that take a queue pair may be made from any thread; it has one owner at a time.
unsafe impl Send for QueuePair {}
// SAFETY: what safe calls do with `&self` is read-only or locked by the library. In a thread domain posts and changes of
// the state have no lock: the caller of a post has the port to itself, and the state is changed by the port, or before the
// port adopts the queue pair.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair for the port of `handle`, in the state Reset. It draws its Receives from the
    /// shared receive queue that the handle names. On a device without shared receive queues it draws
    /// them from the queue that it is adopted on.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] when the port has as many queue pairs as it may have, or no such
    /// receive queue yet; [`SetupError::System`] when the device refuses.
    pub fn create(handle: &PortHandle) -> Result<Self, SetupError> {
        let port = &handle.shared;
        let queue = handle.receive_queue;
        let shared = port.receive_queue(queue);
        if shared.is_none() && port.shares_receives {
            return Err(SetupError::Limit {
                what: "receive queues of the port (make one before the first connection)",
                asked: u64::from(queue.0) + 1,
                limit: u64::from(queue.0),
            });
        }
        let id = port.slots.pop().ok_or(SetupError::Limit {
            what: "queue pairs of a port",
            asked: u64::from(port.queue_pairs_max) + 1,
            limit: port.queue_pairs_max.into(),
        })?;
        let domain = match port.own_domain() {
            Ok(domain) => domain,
            Err(error) => {
                port.release(id);
                return Err(error);
            }
        };
        let made = make(
            domain
                .as_ref()
                .map_or(&port.queue_pair_domain, |own| &own.queue_pair_domain),
            &port.completion_queue,
            shared.as_deref(),
            &port.sizes,
            port.events.port,
        );
        let raw = match made {
            Ok(raw) => raw,
            Err(source) => {
                port.release_with(id, domain);
                return Err(failed("the device refused a queue pair")(source));
            }
        };
        Ok(Self {
            raw,
            // SAFETY: the queue pair that was just made.
            number: unsafe { raw.as_ref() }.qp_num,
            id,
            port: Arc::clone(port),
            receive_queue: shared.map(|shared| (queue, shared)),
            domain,
            connection: None,
        })
    }

    /// Keeps the identifier of the connection, because dropping it would end the connection.
    pub(super) fn hold(&mut self, connection: Id) {
        self.connection = Some(connection);
    }

    /// The device's number of it, which the peer uses (24 bits).
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name within the port.
    #[must_use]
    pub fn id(&self) -> QueuePairId {
        self.id
    }

    /// Its own protection domain; `None` if it uses that of the port.
    pub(super) fn own_domain(&self) -> Option<&OwnDomain> {
        self.domain.as_ref()
    }

    /// Whether it has its own receive queue.
    pub(super) fn has_own_receive_queue(&self) -> bool {
        self.receive_queue.is_none()
    }

    /// Whether it was made to draw from the shared receive queue `queue`.
    pub(super) fn draws_from(&self, queue: ReceiveQueueId) -> bool {
        matches!(&self.receive_queue, Some((made_for, _)) if *made_for == queue)
    }

    /// Whether it was made for the port of `shared`.
    pub(super) fn is_of(&self, shared: &Arc<PortShared>) -> bool {
        Arc::ptr_eq(&self.port, shared)
    }

    /// Changes the attributes that `mask` names.
    ///
    /// # Errors
    ///
    /// The device's error: EINVAL for attributes that do not fit the current state.
    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        modify(self.raw, attributes, mask)
    }

    /// The library's object, which lives as long as `self`.
    pub(super) fn raw(&self) -> NonNull<ibv_qp> {
        self.raw
    }

    /// Its timers and retries, as the device reports them.
    ///
    /// # Errors
    ///
    /// When the device does not report them.
    pub fn timers(&self) -> io::Result<Timers> {
        // SAFETY: the structure is plain numbers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above; its pointers may be null.
        let mut made_with: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        // SAFETY: a queue pair that lives, and two whole structures.
        done(unsafe {
            bindings::ibv_query_qp(
                self.raw.as_ptr(),
                &raw mut attributes,
                c_int::try_from(mask.0).unwrap_or(0),
                &raw mut made_with,
            )
        })?;
        Ok(Timers {
            ack_timeout_exponent: attributes.timeout,
            retry_count: attributes.retry_cnt,
            rnr_retry_count: attributes.rnr_retry,
            min_rnr_timer_code: attributes.min_rnr_timer,
        })
    }

    /// Puts it in the error state: the device flushes outstanding work requests.
    pub(crate) fn fail(&self) -> io::Result<()> {
        // SAFETY: the structure is plain numbers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attributes, state_mask())
    }

    /// Takes all work requests from the device. Outstanding ones never complete.
    pub(super) fn reset(&self) -> io::Result<()> {
        // SAFETY: the structure is plain numbers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_RESET;
        self.modify(&mut attributes, state_mask())
    }

    /// Posts a chain of work requests with one doorbell. The error is the first work request that was
    /// not posted.
    ///
    /// # Safety
    ///
    /// `first` begins a chain of work requests that ends with null, and whose segments lie in
    /// registered memory that nobody writes (or, for an RDMA Read, touches) until they complete;
    /// segments of inline ones need to be readable only for the call. The caller has the port to itself: the queue pairs of
    /// a port may share a thread domain, and then have no locks.
    #[inline]
    pub(super) unsafe fn post(&self, first: *mut ibv_send_wr) -> Result<(), *mut ibv_send_wr> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; the library copies the chain before it returns.
        let returned = unsafe { bindings::ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) };
        if returned == 0 { Ok(()) } else { Err(bad) }
    }

    /// As [`SharedReceiveQueue::post`], for its own receive queue.
    ///
    /// # Safety
    ///
    /// As [`SharedReceiveQueue::post`] and [`QueuePair::post`].
    #[inline]
    pub(super) unsafe fn post_receives(
        &self,
        first: *mut ibv_recv_wr,
    ) -> Result<(), *mut ibv_recv_wr> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; the library copies the chain before it returns.
        let returned = unsafe { bindings::ibv_post_recv(self.raw.as_ptr(), first, &raw mut bad) };
        if returned == 0 { Ok(()) } else { Err(bad) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: from `ibv_create_qp`, given back only here; the port has taken its windows off.
        leaked(
            "queue pair",
            done(unsafe { bindings::ibv_destroy_qp(self.raw.as_ptr()) }),
        );
        let next = QueuePairId {
            index: self.id.index,
            generation: self.id.generation.wrapping_add(1),
        };
        self.port.release_with(next, self.domain.take());
    }
}

/// A queue pair to be adopted in its port: ready to send (RTS).
#[derive(Debug)]
pub struct PreparedQueuePair {
    /// The queue pair. Only the port that it was made for can adopt it.
    pub queue_pair: QueuePair,
    /// RDMA Reads that it may have outstanding, as negotiated; zero for none.
    pub initiator_depth: u8,
    /// Whether the peer is ready to receive. At a client it is. A server may send only after
    /// [`PortEvent::Established`](super::PortEvent::Established) or the first message.
    pub established: bool,
}

/// The mask that changes only the state.
pub(crate) fn state_mask() -> c_int {
    c_int::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1)
}

/// Changes the attributes of a queue pair that `mask` names.
pub(super) fn modify(
    pair: NonNull<ibv_qp>,
    attributes: &mut ibv_qp_attr,
    mask: c_int,
) -> io::Result<()> {
    // SAFETY: a queue pair that lives, and a whole structure.
    done(unsafe { bindings::ibv_modify_qp(pair.as_ptr(), attributes, mask) })
}

/// Makes a queue pair in the state Reset, which the caller destroys.
pub(super) fn make(
    domain: &QueuePairDomain,
    queue: &CompletionQueue,
    shared: Option<&SharedReceiveQueue>,
    sizes: &QueuePairSizes,
    port: usize,
) -> io::Result<NonNull<ibv_qp>> {
    let mut attributes = ibv_qp_init_attr {
        qp_context: std::ptr::without_provenance_mut(port),
        send_cq: queue.raw(),
        recv_cq: queue.raw(),
        srq: shared.map_or(std::ptr::null_mut(), SharedReceiveQueue::raw),
        cap: ibv_qp_cap {
            max_send_wr: sizes.send_depth,
            // Some devices refuse a queue pair that asks for both kinds of receive queue.
            max_recv_wr: shared.map_or(sizes.receive_depth, |_| 0),
            max_send_sge: sizes.send_segments,
            max_recv_sge: shared.map_or(sizes.receive_segments, |_| 0),
            max_inline_data: sizes.inline_bytes,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: all objects live, and the structure is whole; the mark is only a number.
    made(|| unsafe { bindings::ibv_create_qp(domain.raw(), &raw mut attributes) })
}

/// The most bytes, at most `wanted`, that a Send of this device can carry in its work request. It is found by making
/// queue pairs: no attribute of the device reports it, and a device may refuse the value that it returned for another
/// queue pair.
///
/// # Errors
///
/// The device's error, if it refuses even a queue pair without inline data.
pub(super) fn probe_inline_bytes(
    domain: &QueuePairDomain,
    queue: &CompletionQueue,
    sizes: QueuePairSizes,
    wanted: u32,
) -> Result<u32, SetupError> {
    /// Each step makes a queue pair, which takes longer than a finer result is worth.
    const STEP_BYTES: u32 = 32;
    let mut bytes = wanted;
    loop {
        let sizes = QueuePairSizes {
            inline_bytes: bytes,
            ..sizes
        };
        match make(domain, queue, None, &sizes, usize::MAX) {
            Ok(raw) => {
                // SAFETY: the queue pair that was just made, given back once.
                let returned = unsafe { bindings::ibv_destroy_qp(raw.as_ptr()) };
                leaked("queue pair", done(returned));
                return Ok(bytes);
            }
            Err(source) if bytes == 0 => {
                let QueuePairSizes {
                    send_depth,
                    send_segments,
                    ..
                } = sizes;
                let doing = format!(
                    "the device refused a queue pair of {send_depth} work requests with \
                     {send_segments} segments"
                );
                return Err(failed(doing)(source));
            }
            Err(_) => bytes = (bytes - 1) / STEP_BYTES * STEP_BYTES,
        }
    }
}
