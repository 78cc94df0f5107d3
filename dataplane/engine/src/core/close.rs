//! The end of a connection: stop, error state, give back what it held, flush, destroy, notify.

use rpcrdma_fabric::interface::{Port, QueuePairId};

use super::publish::count_messages;
use super::resources::{Closing, Resources};
use super::state::State;
use crate::close_reason::CloseReason;
use crate::core::application::Application;
use crate::handle::{ConnectionCounters, CoreEvent};
use crate::rpc::{CallError, ConnectionKey};

/// Closing connections looked at in one iteration.
const CLOSING_MAX: usize = 4;
/// Slots of the table of calls looked at in one iteration.
const SCAN_MAX: u32 = 256;

impl<P: Port> Resources<P> {
    /// The queue pair is flushed: every work request of it has completed.
    #[cold]
    pub(super) fn handle_disconnected(&mut self, queue_pair: QueuePairId) {
        let Some((index, connection)) = self.connections.of_queue_pair(queue_pair) else {
            self.shared.counters.completions_late.increment();
            return;
        };
        connection.flushed = true;
        self.begin_close(index, CloseReason::Peer);
    }

    fn destroy_if_flushed(&mut self, index: u32) -> bool {
        let Some(connection) = self.connections.at(index).filter(|it| it.flushed) else {
            return false;
        };
        self.port.destroy_queue_pair(connection.queue_pair);
        count_messages(connection, &self.shared.counters);
        let (messages_received, messages_sent) = connection.protocol.messages_passed();
        let closed = CoreEvent::Closed {
            connection: connection.key(index),
            reason: connection.close_reason,
            counters: ConnectionCounters {
                messages_received,
                messages_sent,
            },
        };
        let pending = std::mem::take(&mut connection.pending);
        // All Receives that it was lent are posted again by now: the queue pair is flushed, and messages
        // that were held in Receives were given up.
        self.lending.end(connection);
        let watched_at = connection.path.watched_at.take();
        self.connections.remove(index);
        if let Some(watched_at) = watched_at {
            self.forget_path(watched_at);
        }
        if pending {
            self.pending.retain(|&other| other != index);
        }
        self.shared.counters.connections_closed.increment();
        self.shared.notify(closed);
        true
    }
}

impl<P: Port> State<P> {
    /// Continues to close connections: takes back what they held, ends their calls, notifies the application; once the
    /// queue pair is flushed, destroys it and notifies the control plane.
    #[inline]
    pub(super) fn finish_closing<A: Application>(&mut self, application: &mut A) -> bool {
        !self.resources.closing.is_empty() && self.finish_some(application)
    }

    /// Whether the application has heard of the end of all closing connections.
    pub(super) fn all_notified(&self) -> bool {
        self.resources.closing.iter().all(|it| it.is_notified)
    }

    #[cold]
    fn finish_some<A: Application>(&mut self, application: &mut A) -> bool {
        let mut busy = false;
        for _ in 0..CLOSING_MAX.min(self.resources.closing.len()) {
            let Some(mut closing) = self.resources.closing.pop_front() else {
                break;
            };
            let key = self.resources.connections.at(closing.index);
            let key = key.map(|it| it.key(closing.index)).unwrap_or_default();
            if !closing.is_cleared {
                self.clear_connection(key);
                closing.is_cleared = true;
            }
            if !closing.is_notified {
                busy = true;
                self.end_calls(application, key, &mut closing);
            }
            // In this order: the application must hear of the end before the slot can have a new
            // connection.
            if !closing.is_notified || !self.resources.destroy_if_flushed(closing.index) {
                self.resources.closing.push_back(closing);
            } else {
                busy = true;
            }
        }
        busy
    }

    /// Takes back what a closing connection holds, before another connection gets its slot.
    fn clear_connection(&mut self, key: ConnectionKey) {
        let core = &mut self.resources;
        self.waiting_receives.drop_held(core, key);
        self.incoming.close_incoming(core, key);
        self.outgoing.close_outgoing(core, key);
        if let Some(connection) = core.connections.get_mut(key) {
            connection.calls_in.close(&mut core.messages);
            connection.replies_in.close(&mut core.messages);
        }
    }

    /// Ends some calls of a closing connection, and notifies the application once all have ended.
    fn end_calls<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        closing: &mut Closing,
    ) {
        let core = &mut self.resources;
        let Some(connection) = core.connections.get_mut(key) else {
            closing.is_notified = true;
            return;
        };
        let requester = &mut self.outgoing.requester;
        if connection.calls.outstanding() != 0 && closing.scan < requester.slots() {
            let counters = &core.shared.counters;
            let (calls, from) = (&mut connection.calls, closing.scan);
            let ended = |tag, is_bulk| {
                counters.calls_disconnected.increment();
                let error = CallError::Disconnected;
                if is_bulk {
                    application.completed_bulk(tag, key, Err(error), core.now);
                } else {
                    application.completed(tag, key, Err(error), core.now);
                }
            };
            // In portions: a large table must not hold up the calls of other connections.
            closing.scan = requester.end_all_of(key, calls, from, SCAN_MAX, ended);
            return;
        }
        debug_assert_eq!(
            connection.calls.outstanding(),
            0,
            "the scan finds every call"
        );
        closing.is_notified = true;
        if std::mem::take(&mut connection.connected_notified) {
            application.disconnected(key, connection.close_reason);
        }
    }
}
