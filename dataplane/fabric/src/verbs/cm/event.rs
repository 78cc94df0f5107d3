//! The events of a channel, in plain values.

use std::ffi::c_uint;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::channel::Channel;
use super::id::Id;
use crate::verbs::bindings::{self, rdma_cm_event, rdma_cm_event_type as c, rdma_conn_param};
use crate::verbs::errno::done;
use crate::verbs::events::EventRow;

/// An event that was copied and acknowledged.
#[derive(Debug)]
pub(in crate::verbs) struct Event {
    /// What happened.
    pub(in crate::verbs) kind: EventKind,
    /// Zero, a negative `errno`, or for a rejection the CM's reason.
    pub(in crate::verbs) status: i32,
    /// The number of the identifier; for a request, that of the listener.
    pub(in crate::verbs) number: u64,
    /// The peer's parameters and private data.
    pub(in crate::verbs) parameters: Parameters,
    /// The identifier of a new request. Dropping it rejects the request.
    pub(in crate::verbs) request: Option<Id>,
}

/// Declares the events of RDMA-CM. The counters and the rows of docs/verbs.md follow from it; what is done depends on the
/// stage of the connection (`manager::machine`).
macro_rules! cm_events {
    ($($(#[doc = $meaning:literal])+ $event:ident = $constant:ident, $counter:ident, $action:literal;)*) => {
        /// The kind of an event. An unknown kind keeps its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(in crate::verbs) enum EventKind {
            $($(#[doc = $meaning])+ $event,)*
            /// Any other event, such as those of multicast, which are not asked for here.
            Other(c_uint),
        }

        impl EventKind {
            /// The rows of the table, in the order of the kinds; the last one is for all others.
            pub(in crate::verbs) const ROWS: &[EventRow] = &[
                $(EventRow {
                    name: stringify!($constant),
                    counter: stringify!($counter),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    action: $action,
                },)*
                EventRow {
                    name: "other RDMA_CM_EVENT",
                    counter: "cm_other_events",
                    meaning: "Any other event, such as those of multicast, which are not asked for here.",
                    action: "none",
                },
            ];

            pub(in crate::verbs) fn from_c(event: c_uint) -> Self {
                match event {
                    $(c::$constant => Self::$event,)*
                    other => Self::Other(other),
                }
            }

            /// Its row in the table.
            pub(in crate::verbs) fn row(self) -> usize {
                const EVENTS: &[EventKind] = &[$(EventKind::$event),*];
                let row = EVENTS.iter().position(|event| *event == self);
                row.unwrap_or(EVENTS.len())
            }
        }
    };
}

cm_events! {
    /// A device was found that has the address, or through which it is reached.
    AddressResolved = RDMA_CM_EVENT_ADDR_RESOLVED, cm_addresses_resolved, "the path is looked up";
    /// No such device was found.
    AddressError = RDMA_CM_EVENT_ADDR_ERROR, cm_address_errors, "the next address of the host is tried";
    /// A path to the address was found.
    RouteResolved = RDMA_CM_EVENT_ROUTE_RESOLVED, cm_routes_resolved, "the connection is requested";
    /// No path was found.
    RouteError = RDMA_CM_EVENT_ROUTE_ERROR, cm_route_errors, "the next address of the host is tried";
    /// A peer asks a listener for a connection.
    ConnectRequest = RDMA_CM_EVENT_CONNECT_REQUEST, cm_requests, "the node decides";
    /// The peer accepted; our confirmation establishes the connection.
    ConnectResponse = RDMA_CM_EVENT_CONNECT_RESPONSE, cm_responses, "the node confirms";
    /// The connection could not be made.
    ConnectError = RDMA_CM_EVENT_CONNECT_ERROR, cm_connect_errors, "the next address is tried, or the connection ends";
    /// The peer does not answer.
    Unreachable = RDMA_CM_EVENT_UNREACHABLE, cm_unreachable, "the next address is tried, or the connection ends";
    /// The peer rejected.
    Rejected = RDMA_CM_EVENT_REJECTED, cm_rejections, "the reason is reported; without one the next address is tried";
    /// The connection is established.
    Established = RDMA_CM_EVENT_ESTABLISHED, cm_established, "the server may send";
    /// The peer ended the connection, or answered our disconnect.
    Disconnected = RDMA_CM_EVENT_DISCONNECTED, cm_disconnects, "the connection ends";
    /// The device is being removed: everything on it must be released.
    DeviceRemoval = RDMA_CM_EVENT_DEVICE_REMOVAL, device_removals,
        "the connection ends; a listener is reported lost, and tried again each second";
    /// The address now belongs to another device (a bond that failed over).
    AddressChange = RDMA_CM_EVENT_ADDR_CHANGE, address_changes, "the connection ends";
    /// The connection has left the time-wait state: its numbers may be used again.
    TimewaitExit = RDMA_CM_EVENT_TIMEWAIT_EXIT, cm_timewait_exits, "the connection ends, if it has not";
}

/// The peer's parameters of the connection. All zero and empty in events that carry none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::verbs) struct Parameters {
    /// The peer's private data, with the CM's padding of zeros.
    pub(in crate::verbs) private_data: Vec<u8>,
    /// RDMA Reads that the peer wants to have in flight towards us. RDMA-CM has swapped this number
    /// and the next, so that both are from our point of view.
    pub(in crate::verbs) responder_resources: u8,
    /// RDMA Reads of ours that the peer can serve at a time.
    pub(in crate::verbs) initiator_depth: u8,
}

impl Parameters {
    /// Copies the parameters out of an event that has not been acknowledged.
    ///
    /// # Safety
    ///
    /// `private_data` of `conn` points to `private_data_len` readable bytes when neither is zero.
    pub(in crate::verbs) unsafe fn from_c(conn: &rdma_conn_param) -> Self {
        let bytes = conn.private_data.cast::<u8>();
        let private_data = if bytes.is_null() || conn.private_data_len == 0 {
            Vec::new()
        } else {
            // SAFETY: not null, and as long as the caller promises.
            unsafe { std::slice::from_raw_parts(bytes, usize::from(conn.private_data_len)) }
                .to_vec()
        };
        Self {
            private_data,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
        }
    }
}

impl Channel {
    /// The next event, copied and acknowledged; `None` when there is none now.
    ///
    /// # Errors
    /// When the channel itself has failed.
    pub(in crate::verbs) fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is open; the call writes one pointer.
        let got = done(unsafe { bindings::rdma_get_cm_event(self.as_ptr(), &raw mut event) });
        match got {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the call succeeded, so that the event is valid until it is acknowledged; it
        // belongs to an identifier of ours, since only those are on the channel, and that is
        // alive, since the kernel drops the events of a destroyed one.
        let (copied, request) = unsafe { self.copy(&*event) };
        // SAFETY: the event came from the call above and is acknowledged once, here; nothing
        // refers to it any more.
        unsafe { bindings::rdma_ack_cm_event(event) };
        // After the acknowledgement: dropping an `Id` before it would wait for this event.
        let request = request.map(|raw| Id::from_request(raw, Arc::clone(self)));
        Ok(Some(Event { request, ..copied }))
    }

    /// Copies an event, and returns the identifier of a new request.
    ///
    /// # Safety
    ///
    /// The event is valid and not acknowledged, and its identifiers are alive.
    unsafe fn copy(&self, event: &rdma_cm_event) -> (Event, Option<NonNull<bindings::rdma_cm_id>>) {
        let kind = EventKind::from_c(event.event);
        let (of, request) = match kind {
            EventKind::ConnectRequest => (event.listen_id, NonNull::new(event.id)),
            _ => (event.id, None),
        };
        // SAFETY: the identifier is alive, as the caller promises. Its context was set by us.
        let number = unsafe { (*of).context }.addr() as u64;
        // SAFETY: identifiers of the TCP port space have connection parameters, which the library
        // fills or zeroes whatever the event; their private data lies in the event.
        let parameters = unsafe { Parameters::from_c(&event.param.conn) };
        let copied = Event {
            kind,
            status: event.status,
            number,
            parameters,
            request: None,
        };
        (copied, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        let known = [
            (0, EventKind::AddressResolved),
            (1, EventKind::AddressError),
            (2, EventKind::RouteResolved),
            (3, EventKind::RouteError),
            (4, EventKind::ConnectRequest),
            (5, EventKind::ConnectResponse),
            (6, EventKind::ConnectError),
            (7, EventKind::Unreachable),
            (8, EventKind::Rejected),
            (9, EventKind::Established),
            (10, EventKind::Disconnected),
            (11, EventKind::DeviceRemoval),
            (14, EventKind::AddressChange),
            (15, EventKind::TimewaitExit),
        ];
        for (number, kind) in known {
            assert_eq!(EventKind::from_c(number), kind);
        }
        for number in [12, 13, 16, c_uint::MAX] {
            assert_eq!(EventKind::from_c(number), EventKind::Other(number));
        }
    }

    #[test]
    fn parameters_are_copied_whole() {
        let private_data = [1_u8, 2, 3];
        let mut conn = rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: 3,
            responder_resources: 4,
            initiator_depth: 5,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: pointer and length are those of an array.
        let copied = unsafe { Parameters::from_c(&conn) };
        let expected = Parameters {
            private_data: vec![1, 2, 3],
            responder_resources: 4,
            initiator_depth: 5,
        };
        assert_eq!(copied, expected);
        conn.private_data = std::ptr::null();
        // SAFETY: a null pointer is allowed.
        let copied = unsafe { Parameters::from_c(&conn) };
        assert_eq!(copied.private_data, Vec::<u8>::new());
    }
}
