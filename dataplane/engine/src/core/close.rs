//! The end of a connection: stop, error state, flush, destroy, tell.

use rpcrdma_fabric::interface::{Port, QueuePairId};

use super::publish::count_messages;
use super::state::{Closing, State};
use crate::close_reason::CloseReason;
use crate::connection::Stage;
use crate::core::application::Application;
use crate::handle::{ConnectionCounters, Notification};
use crate::rpc::CallError;

/// Closing connections looked at in one iteration.
const CLOSING_MAX: usize = 4;
/// Slots of the table of calls looked at in one iteration.
const SCAN_MAX: u32 = 256;

impl<P: Port> State<P> {
    /// Stops a connection: nothing is received or sent any more, and what waits to be sent is
    /// dropped. Its calls end in [`State::finish_closing`].
    #[cold]
    pub(super) fn begin_close(&mut self, index: u32, reason: CloseReason) {
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        connection.stage = Stage::Closing;
        connection.close_reason = reason;
        connection.properties_due = false;
        connection.keep_alive_due = false;
        connection.authentication_out = None;
        connection.clear_refusals();
        while let Some((buffer, _, _)) = connection.stuck.list.pop() {
            match self.transmit.take_back(buffer) {
                Some(buffer) if self.reply.pool.owns(&buffer) => self.reply.pool.give(buffer),
                // A Send of the peer had placed it, and this end was sending it on.
                Some(buffer) => self.placement.give(buffer),
                None => {}
            }
        }
        while let Some(message) = self.backlog.pop(&mut connection.outbound) {
            self.messages.give(message.buffer);
        }
        connection.calls_in.close(&mut self.messages);
        connection.replies_in.close(&mut self.messages);
        self.port.disconnect(connection.queue_pair);
        let key = connection.key(index);
        self.closing.push_back(Closing {
            index,
            scan: 0,
            told: false,
        });
        self.drop_held(key);
        self.close_incoming(key);
        self.close_outgoing(key);
    }

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

    /// Goes on with closing connections: ends their calls, tells the application, and when the
    /// queue pair is flushed destroys it and tells the control plane.
    #[inline]
    pub(super) fn finish_closing<A: Application>(&mut self, application: &mut A) -> bool {
        if self.closing.is_empty() {
            return false;
        }
        self.finish_some(application)
    }

    #[cold]
    fn finish_some<A: Application>(&mut self, application: &mut A) -> bool {
        let mut busy = false;
        for _ in 0..CLOSING_MAX.min(self.closing.len()) {
            let Some(mut closing) = self.closing.pop_front() else {
                break;
            };
            if !closing.told {
                busy = true;
                self.end_calls(application, &mut closing);
            }
            if !closing.told || !self.destroy_if_flushed(closing.index) {
                self.closing.push_back(closing);
            } else {
                busy = true;
            }
        }
        busy
    }

    /// Ends some calls of a closing connection, and tells the application when that were all.
    fn end_calls<A: Application>(&mut self, application: &mut A, closing: &mut Closing) {
        let Some(connection) = self.connections.at(closing.index) else {
            closing.told = true;
            return;
        };
        let key = connection.key(closing.index);
        if connection.calls.outstanding() != 0 && closing.scan < self.requester.slots() {
            let counters = &self.shared.counters;
            let (calls, from) = (&mut connection.calls, closing.scan);
            let ended = |tag, is_bulk| {
                counters.calls_disconnected.increment();
                let error = CallError::Disconnected;
                if is_bulk {
                    application.completed_bulk(tag, key, Err(error), self.now);
                } else {
                    application.completed(tag, key, Err(error), self.now);
                }
            };
            closing.scan = self.requester.end_all_of(key, calls, from, SCAN_MAX, ended);
            return;
        }
        debug_assert_eq!(
            connection.calls.outstanding(),
            0,
            "the scan finds every call"
        );
        closing.told = true;
        if std::mem::take(&mut connection.told_connected) {
            application.disconnected(key, connection.close_reason);
        }
    }

    fn destroy_if_flushed(&mut self, index: u32) -> bool {
        let Some(connection) = self.connections.at(index).filter(|it| it.flushed) else {
            return false;
        };
        self.port.destroy_queue_pair(connection.queue_pair);
        count_messages(connection, &self.shared.counters);
        let (messages_received, messages_sent) = connection.protocol.messages_passed();
        let closed = Notification::Closed {
            connection: connection.key(index),
            reason: connection.close_reason,
            counters: ConnectionCounters {
                messages_received,
                messages_sent,
            },
        };
        let pending = std::mem::take(&mut connection.pending);
        self.connections.remove(index);
        if pending {
            self.pending.retain(|&other| other != index);
        }
        self.shared.counters.connections_closed.increment();
        self.shared.notify(closed);
        true
    }
}
