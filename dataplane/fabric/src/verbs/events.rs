//! Asynchronous events of a device, and the ports that receive them.
//!
//! All ports of a process share the descriptor of their device. The thread that finds it readable (the control thread)
//! calls [`Context::dispatch_events`], which passes each event to its port through a ring. The port checks the ring now
//! and then, without a system call.
//!
//! [`Context::dispatch_events`]: super::Context::dispatch_events

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use rustix::fs::OFlags;

use super::bindings::{self, ibv_async_event, ibv_context, ibv_event_type};

/// Events that a port has not looked at yet. Events that a full ring loses also show in completions.
const EVENTS_MAX: usize = 256;

/// An event of a device about a port of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncEvent {
    /// The device is broken or removed.
    DeviceFatal,
    /// The completion queue lost entries.
    CompletionQueueError,
    /// A queue pair broke; by its number.
    QueuePairFatal(u32),
    /// A queue pair in error has taken its last Receive off the shared receive queue.
    LastReceive(u32),
    /// A queue pair got its first message.
    Communicating(u32),
    /// Fewer Receives are posted than the limit says.
    ReceiveLimit,
    /// The shared receive queue broke.
    ReceiveQueueFatal,
    /// The link went down.
    PortDown,
    /// The link came up.
    PortUp,
}

/// The events of one port.
#[derive(Debug)]
pub(super) struct EventRing {
    /// Identifies a port within the process; queue pairs and queues carry it as their context.
    pub(super) port: usize,
    ring: ArrayQueue<AsyncEvent>,
}

impl EventRing {
    /// A ring for the port of this number.
    pub(super) fn new(port: usize) -> Self {
        Self {
            port,
            ring: ArrayQueue::new(EVENTS_MAX),
        }
    }

    /// Whether nothing waits. Costs two loads.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    pub(super) fn pop(&self) -> Option<AsyncEvent> {
        self.ring.pop()
    }
}

/// The ports that use a device.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    rings: Mutex<Vec<Weak<EventRing>>>,
}

impl Listeners {
    /// Adds a ring that gets the events of its port.
    pub(super) fn add(&self, ring: &Arc<EventRing>) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(ring));
    }

    /// Passes an event to one port, or to all.
    pub(super) fn tell(&self, port: Option<usize>, event: AsyncEvent) {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        for ring in rings.iter().filter_map(Weak::upgrade) {
            if port.is_none_or(|port| port == ring.port) {
                let _ = ring.ring.push(event);
            }
        }
    }
}

/// The next event of a device, and the port that it is for; `None` for an event that no port needs.
///
/// # Safety
///
/// `context` is open.
#[allow(clippy::type_complexity)]
pub(super) unsafe fn next_event(
    context: *mut ibv_context,
) -> io::Result<Option<(Option<usize>, Option<AsyncEvent>)>> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: an open context, and room for a whole event.
    if unsafe { bindings::ibv_get_async_event(context, event.as_mut_ptr()) } != 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: the library has filled the event in; the pointer that goes with its type is of
    // an object that cannot be destroyed before the event is acknowledged below.
    let read = unsafe { read_event(event.as_ptr()) };
    // SAFETY: the event that was just got, acknowledged once.
    unsafe { bindings::ibv_ack_async_event(event.as_mut_ptr()) };
    Ok(Some(read))
}

/// Reads an event without making a value of the binding's enumeration, because a newer library
/// has events that it does not name.
///
/// # Safety
///
/// `event` was filled in by the library and is not acknowledged.
unsafe fn read_event(event: *const ibv_async_event) -> (Option<usize>, Option<AsyncEvent>) {
    /// The number of an event.
    const fn number(event: ibv_event_type) -> u32 {
        event as u32
    }
    const QP_FATAL: u32 = number(ibv_event_type::IBV_EVENT_QP_FATAL);
    const QP_REQ_ERR: u32 = number(ibv_event_type::IBV_EVENT_QP_REQ_ERR);
    const QP_ACCESS_ERR: u32 = number(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
    const LAST_WQE: u32 = number(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
    const COMM_EST: u32 = number(ibv_event_type::IBV_EVENT_COMM_EST);
    const CQ_ERR: u32 = number(ibv_event_type::IBV_EVENT_CQ_ERR);
    const SRQ_ERR: u32 = number(ibv_event_type::IBV_EVENT_SRQ_ERR);
    const SRQ_LIMIT: u32 = number(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    const DEVICE_FATAL: u32 = number(ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    const PORT_ERR: u32 = number(ibv_event_type::IBV_EVENT_PORT_ERR);
    const PORT_ACTIVE: u32 = number(ibv_event_type::IBV_EVENT_PORT_ACTIVE);

    // SAFETY: as the caller promises; an enumeration of C is as large as an integer.
    let kind = unsafe { (&raw const (*event).event_type).cast::<u32>().read() };
    // SAFETY: as the caller promises, and read only where the event's type says what it is.
    let queue_pair = || unsafe {
        let raw = (*event).element.qp;
        ((*raw).qp_context.addr(), (*raw).qp_num)
    };
    let (port, event) = match kind {
        QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR => {
            let (port, number) = queue_pair();
            (Some(port), AsyncEvent::QueuePairFatal(number))
        }
        LAST_WQE => {
            let (port, number) = queue_pair();
            (Some(port), AsyncEvent::LastReceive(number))
        }
        COMM_EST => {
            let (port, number) = queue_pair();
            (Some(port), AsyncEvent::Communicating(number))
        }
        CQ_ERR => {
            // SAFETY: as above.
            let port = unsafe { (*(*event).element.cq).cq_context.addr() };
            (Some(port), AsyncEvent::CompletionQueueError)
        }
        SRQ_ERR | SRQ_LIMIT => {
            // SAFETY: as above.
            let port = unsafe { (*(*event).element.srq).srq_context.addr() };
            let event = if kind == SRQ_LIMIT {
                AsyncEvent::ReceiveLimit
            } else {
                AsyncEvent::ReceiveQueueFatal
            };
            (Some(port), event)
        }
        DEVICE_FATAL => (None, AsyncEvent::DeviceFatal),
        PORT_ERR => (None, AsyncEvent::PortDown),
        PORT_ACTIVE => (None, AsyncEvent::PortUp),
        _ => return (None, None),
    };
    (port, Some(event))
}

/// Makes reading `descriptor` return immediately.
pub(super) fn set_nonblocking(descriptor: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(())
}
