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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use rustix::fs::OFlags;

use super::bindings::{self, ibv_async_event, ibv_context};

/// Events that a port has not looked at yet. Events that a full ring loses also show in completions.
const EVENTS_MAX: usize = 256;

/// The object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// A queue pair.
    QueuePair,
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue.
    ReceiveQueue,
    /// The device, one of its ports, or an object that no port of ours has: all ports hear of it.
    Device,
}

/// A row of a table of events: its name in the library, its counter, its meaning, and what is done.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // Only tests read the names and actions, which they compare with the documentation's table.
pub(super) struct EventRow {
    pub(super) name: &'static str,
    pub(super) counter: &'static str,
    pub(super) meaning: &'static str,
    pub(super) action: &'static str,
}

/// Declares the events. The counters, the rows of docs/verbs.md and the match in the port follow from it.
macro_rules! device_events {
    ($($(#[doc = $meaning:literal])+
        $event:ident = $number:literal $name:ident, $about:ident, $counter:ident, $action:literal;)*) => {
        /// The kind of an event of a device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum DeviceEvent {
            $($(#[doc = $meaning])+ $event,)*
        }

        impl DeviceEvent {
            /// The rows of the table, in the order of the kinds.
            pub(super) const ROWS: &[EventRow] = &[$(EventRow {
                name: stringify!($name),
                counter: stringify!($counter),
                meaning: concat!($($meaning),+).trim_ascii(),
                action: $action,
            },)*];

            /// Whether ports do or count something. Events of addresses come in hundreds, and would displace others from the rings.
            const fn concerns_ports(self) -> bool {
                !matches!(
                    self,
                    Self::SendQueueDrained
                        | Self::PathMigrated
                        | Self::PathMigrationFailed
                        | Self::LidChanged
                        | Self::PartitionKeysChanged
                        | Self::SubnetManagerChanged
                        | Self::ClientReregister
                        | Self::AddressesChanged
                        | Self::WorkQueueFatal
                        | Self::SpeedChanged
                        | Self::Unknown
                )
            }

            /// The event of this number, and what it is about.
            fn of(number: u32) -> (Self, About) {
                match number {
                    $($number => (Self::$event, About::$about),)*
                    _ => (Self::Unknown, About::Device),
                }
            }
        }
    };
}

device_events! {
    /// The completion queue lost entries.
    CompletionQueueError = 0 IBV_EVENT_CQ_ERR, CompletionQueue, completion_queue_errors,
        "all connections of the core end";
    /// A queue pair broke.
    QueuePairFatal = 1 IBV_EVENT_QP_FATAL, QueuePair, queue_pair_errors,
        "the connection ends";
    /// A queue pair got a request that it does not permit.
    QueuePairRequest = 2 IBV_EVENT_QP_REQ_ERR, QueuePair, queue_pair_request_errors,
        "the connection ends";
    /// A queue pair got a request for memory that it does not expose.
    QueuePairAccess = 3 IBV_EVENT_QP_ACCESS_ERR, QueuePair, queue_pair_access_errors,
        "the connection ends";
    /// A queue pair got its first message.
    Communicating = 4 IBV_EVENT_COMM_EST, QueuePair, queue_pairs_communicating,
        "the connection may send, if its confirmation was lost";
    /// A send queue was drained, which is not asked for here.
    SendQueueDrained = 5 IBV_EVENT_SQ_DRAINED, QueuePair, send_queues_drained,
        "none";
    /// A queue pair moved to its alternate path, which is not set here.
    PathMigrated = 6 IBV_EVENT_PATH_MIG, QueuePair, paths_migrated,
        "none: the connection goes on";
    /// A queue pair could not move to its alternate path.
    PathMigrationFailed = 7 IBV_EVENT_PATH_MIG_ERR, QueuePair, path_migrations_failed,
        "none: a path that stays dead ends the connection by its retries";
    /// The device is broken or removed.
    DeviceFatal = 8 IBV_EVENT_DEVICE_FATAL, Device, devices_failed,
        "all connections on the device end";
    /// A link came up.
    PortUp = 9 IBV_EVENT_PORT_ACTIVE, Device, links_up,
        "none: connections that lasted go on";
    /// A link went down.
    PortDown = 10 IBV_EVENT_PORT_ERR, Device, links_down,
        "connections that this end requested go on by another device, if there is one and their server has several addresses; the others end by the retries of the device, if the link stays down";
    /// The local identifier of a port changed (InfiniBand).
    LidChanged = 11 IBV_EVENT_LID_CHANGE, Device, lid_changes,
        "none: a connection by the old identifier ends by its retries";
    /// The partition keys of a port changed.
    PartitionKeysChanged = 12 IBV_EVENT_PKEY_CHANGE, Device, partition_key_changes,
        "none: a connection in a lost partition ends by its retries";
    /// Another subnet manager took over (InfiniBand).
    SubnetManagerChanged = 13 IBV_EVENT_SM_CHANGE, Device, subnet_manager_changes,
        "none: RDMA-CM asks the new one";
    /// A shared receive queue broke.
    ReceiveQueueFatal = 14 IBV_EVENT_SRQ_ERR, ReceiveQueue, receive_queue_errors,
        "all connections of the core end";
    /// Fewer Receives are posted than the limit says.
    ReceiveLimit = 15 IBV_EVENT_SRQ_LIMIT_REACHED, ReceiveQueue, receive_queue_limits,
        "the limit is set again with the next Receives";
    /// A queue pair in error has taken its last Receive off the shared receive queue.
    LastReceive = 16 IBV_EVENT_QP_LAST_WQE_REACHED, QueuePair, last_receives,
        "the end of the connection waits no longer";
    /// The subnet manager asks to register again (InfiniBand), which the kernel does.
    ClientReregister = 17 IBV_EVENT_CLIENT_REREGISTER, Device, client_reregistrations,
        "none: the kernel registers";
    /// The addresses of a port changed.
    AddressesChanged = 18 IBV_EVENT_GID_CHANGE, Device, gid_changes,
        "none: a connection of a removed address ends by its retries";
    /// A work queue broke, of which there are none here.
    WorkQueueFatal = 19 IBV_EVENT_WQ_FATAL, Device, work_queue_errors,
        "none";
    /// The speed of a link changed.
    SpeedChanged = 20 IBV_EVENT_DEVICE_SPEED_CHANGE, Device, link_speed_changes,
        "none";
    /// An event of a newer libibverbs.
    Unknown = 4294967295 OTHER, Device, unknown_events,
        "none";
}

/// An event of a device for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AsyncEvent {
    pub(super) kind: DeviceEvent,
    /// The number of the queue pair that it is about, if it is about one.
    pub(super) queue_pair: Option<u32>,
}

/// How often each event of a device came.
#[derive(Debug)]
pub(super) struct EventCounts([AtomicU64; DeviceEvent::ROWS.len()]);

impl Default for EventCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; DeviceEvent::ROWS.len()])
    }
}

impl EventCounts {
    fn count(&self, kind: DeviceEvent) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The count of a row of the table.
    pub(super) fn of_row(&self, row: usize) -> u64 {
        let count = self.0.get(row);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
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

    /// Passes an event to one port, or to all, if it concerns ports.
    pub(super) fn tell(&self, port: Option<usize>, event: AsyncEvent) {
        if !event.kind.concerns_ports() {
            return;
        }
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        for ring in rings.iter().filter_map(Weak::upgrade) {
            if port.is_none_or(|port| port == ring.port) {
                let _ = ring.ring.push(event);
            }
        }
    }
}

/// The next event of a device, which is counted, and the port that it is for; `None` is for all ports.
///
/// # Safety
///
/// `context` is open.
pub(super) unsafe fn next_event(
    context: *mut ibv_context,
    counts: &EventCounts,
) -> io::Result<Option<(Option<usize>, AsyncEvent)>> {
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
    counts.count(read.1.kind);
    Ok(Some(read))
}

/// Reads an event without making a value of the binding's enumeration, because a newer library
/// has events that it does not name.
///
/// # Safety
///
/// `event` was filled in by the library and is not acknowledged.
unsafe fn read_event(event: *const ibv_async_event) -> (Option<usize>, AsyncEvent) {
    // SAFETY: as the caller promises; an enumeration of C is as large as an integer.
    let number = unsafe { (&raw const (*event).event_type).cast::<u32>().read() };
    let (kind, about) = DeviceEvent::of(number);
    // SAFETY: as the caller promises; the event's type says which member of the union it has.
    let (port, queue_pair) = unsafe {
        match about {
            About::QueuePair => {
                let pair = (*event).element.qp;
                (Some((*pair).qp_context.addr()), Some((*pair).qp_num))
            }
            About::CompletionQueue => (Some((*(*event).element.cq).cq_context.addr()), None),
            About::ReceiveQueue => (Some((*(*event).element.srq).srq_context.addr()), None),
            About::Device => (None, None),
        }
    };
    (port, AsyncEvent { kind, queue_pair })
}

/// Makes reading `descriptor` return immediately.
pub(super) fn set_nonblocking(descriptor: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(())
}

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod tests {
    use super::*;
    use crate::verbs::Context;
    use crate::verbs::bindings::ibv_event_type as c;
    use crate::verbs::fake::{Card, Fake};

    /// The match has no wildcard: an event of new headers does not compile here, and needs a row in the table.
    #[test]
    fn every_event_of_libibverbs_has_a_row() {
        macro_rules! names {
            ($event:ident: $($name:ident)*) => {
                match $event { $(c::$name => stringify!($name),)* }
            };
        }
        let name = |event: c| {
            names! { event:
                IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
                IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL
                IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE
                IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED
                IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE IBV_EVENT_WQ_FATAL
            }
        };
        let last = c::IBV_EVENT_WQ_FATAL as u32;
        for number in 0..=last {
            // SAFETY: the enumeration has all numbers up to its last one.
            let event = unsafe { std::mem::transmute::<u32, c>(number) };
            let (kind, _) = DeviceEvent::of(number);
            assert_eq!(DeviceEvent::ROWS[kind as usize].name, name(event));
        }
        assert_eq!(DeviceEvent::of(last + 2).0, DeviceEvent::Unknown);
    }

    #[test]
    fn the_documentation_has_a_row_for_every_event() {
        let text = include_str!("../../../../docs/verbs.md");
        let rows = DeviceEvent::ROWS.iter();
        for row in rows.chain(crate::verbs::cm::event::EventKind::ROWS) {
            let line = format!(
                "| `{}` | {} | `{}` | {} |",
                row.name, row.meaning, row.counter, row.action
            );
            assert!(text.contains(&line), "docs/verbs.md lacks: {line}");
        }
    }

    #[test]
    fn events_of_the_device_are_counted_and_reach_every_port() {
        let fake = Fake::install(Card::HONEST);
        let context = Context::open(Some(fake.name())).expect("the fake device");
        let rings = [1, 2].map(|port| Arc::new(EventRing::new(port)));
        rings.iter().for_each(|ring| context.listeners.add(ring));
        // More of those that concern no port than a ring holds.
        let addresses = std::iter::repeat_n(18, EVENTS_MAX + 1);
        let numbers = [77].into_iter().chain(addresses).chain([10]);
        numbers.for_each(|number| fake.tell(number));
        let passed = context.dispatch_events().expect("no error");
        assert_eq!(passed, EVENTS_MAX + 3);
        for (kind, count) in [
            (DeviceEvent::PortDown, 1),
            (DeviceEvent::AddressesChanged, EVENTS_MAX as u64 + 1),
            (DeviceEvent::Unknown, 1),
            (DeviceEvent::PortUp, 0),
        ] {
            assert_eq!(context.events().of_row(kind as usize), count, "{kind:?}");
        }
        for ring in &rings {
            let first = ring.pop().map(|event| event.kind);
            assert_eq!(first, Some(DeviceEvent::PortDown));
        }
    }
}
