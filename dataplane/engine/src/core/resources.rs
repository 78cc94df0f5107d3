//! The resources that all parts of a core use: the port, the connections, the shared buffers, and the counters.

use std::collections::VecDeque;
use std::sync::Arc;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{Port, Receive};
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::rpc::{LastRoute, Programs};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Refusal;

use super::lending::Lending;
use super::receives::{Gathered, ReceiveQueues};
use super::transmit::Transmit;
use crate::bulk::{ReplyItems, give_lease};
use crate::close_reason::CloseReason;
use crate::config::CoreConfig;
use crate::connection::{Backlog, Complaint, Connection, ConnectionTable, Stage};
use crate::handle::Shared;
use crate::message::{MessagePool, Received};
use crate::placement_segments::PlacementSegments;
use crate::rpc::ConnectionKey;

/// The state of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// None was asked for.
    No,
    /// No new calls are accepted; some are outstanding.
    Underway,
    /// It has ended, and the control plane was notified.
    Done,
}

/// A connection that is being closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub(super) index: u32,
    /// The resources that it held were given back.
    pub(super) is_cleared: bool,
    /// The slot of the table of calls from which the search for its calls continues.
    pub(super) scan: u32,
    /// Its calls have ended, and the application was notified.
    pub(super) is_notified: bool,
}

/// The resources that calls of both directions, waiting Receives and sweeps share.
pub(crate) struct Resources<P: Port> {
    pub(super) port: P,
    pub(super) queues: ReceiveQueues,
    /// The Receives that are lent to connections.
    pub(super) lending: Lending,
    pub(super) gathered: Gathered,
    pub(super) placement: PlacementSegments,
    pub(super) connections: ConnectionTable,
    pub(super) transmit: Transmit,
    pub(super) messages: MessagePool,
    /// Messages that wait for credits or a place in a send queue.
    pub(super) backlog: Backlog,
    /// The bulk buffers, and the items of the reply that is being written.
    pub(super) reply: ReplyItems,
    /// Connections that have something to send; each at most once.
    pub(super) pending: VecDeque<u32>,
    pub(super) closing: VecDeque<Closing>,
    /// Counts changes of the properties of any peer: a plan made before the last one is not used again.
    pub(super) properties_epoch: u64,
    /// Whether this core makes and accepts calls with bulk data at all.
    pub(super) has_bulk: bool,
    /// Whether windows are invalidated by Sends, both ways.
    pub(super) sends_with_invalidate: bool,
    /// Replies whose time is recorded: those before the last record of a poll time, and later ones to calls from earlier
    /// polls.
    pub(super) replies_timed: u64,
    /// What judges the calls of peers before the application sees them.
    pub(super) programs: Programs,
    pub(super) last_route: LastRoute,
    /// Calls in slots that waited for their connections may be able to continue.
    pub(super) is_woken: bool,
    /// How often connections were woken, modulo 2^64.
    pub(super) wakes: u64,
    pub(super) drain: Drain,
    /// Connections whose paths are watched. Each knows its place here.
    pub(super) watched: Vec<u32>,
    pub(super) now: Ticks,
    pub(super) shared: Arc<Shared<P>>,
    pub(super) config: CoreConfig,
}

impl<P: Port> Resources<P> {
    /// Whether new calls are refused, in both directions.
    pub(super) fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Invalidates all kept plans, because the properties of a peer have changed.
    pub(super) fn forget_plans(&mut self) {
        self.properties_epoch += 1;
    }

    /// Notes that something waits until a message arrives or leaves on a connection.
    #[cold]
    pub(super) fn wait_for(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.is_awaited = true;
        }
    }

    /// Wakes what waits for the connection at `index`: a message arrived or left, or reserved credits became free.
    #[inline]
    pub(super) fn wake(&mut self, index: u32) {
        if let Some(connection) = self.connections.at(index)
            && connection.is_awaited
        {
            connection.is_awaited = false;
            self.is_woken = true;
            self.wakes = self.wakes.wrapping_add(1);
        }
    }

    /// Posts a Receive that no connection counts any more.
    #[cold]
    pub(super) fn post_receive(&mut self, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
    }

    /// Posts a Receive again that a message of the connection at `index` used. A grant may be due
    /// then; with the spare Receive back, a grant may be sent again at all.
    #[inline]
    pub(super) fn repost(&mut self, index: u32, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
        let connection = self.connections.at(index);
        if connection.is_some_and(Connection::takes_posted) {
            self.note_if_pending(index);
        }
    }

    /// Posts a Receive again whose connection may have ended.
    pub(super) fn repost_of(&mut self, key: ConnectionKey, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
        let connection = self.connections.get_mut(key);
        if connection.is_some_and(Connection::takes_posted) {
            self.note_if_pending(key.index);
        }
    }

    /// The bytes of a message in its Receive, from the start of its header.
    pub(super) fn received_bytes(&mut self, received: &Received) -> &[u8] {
        let counters = &self.shared.counters;
        self.gathered
            .message(&self.port, &received.receive, received.end, counters)
    }

    /// Ends a lease. Memory of this core is free immediately; other memory returns by the ring of its pool.
    pub(super) fn end_lease(&mut self, lease: Lease) {
        match self.placement.end_lease(lease) {
            Some(lease) => give_lease(&mut self.reply.pool, lease),
            None => self.shared.counters.segments_returned.increment(),
        }
    }

    /// Answers a message with a transport error, once there is a credit for it.
    pub(super) fn refuse(&mut self, key: ConnectionKey, xid: u32, error: TransportError) {
        self.complain(key, Complaint::Error(Refusal::new(xid, error)));
    }

    /// Sends an error message to a peer, once there is a credit for it.
    pub(super) fn complain(&mut self, key: ConnectionKey, complaint: Complaint) {
        let live = self.connections.get_mut(key).filter(|it| it.is_live());
        let Some(connection) = live else {
            return;
        };
        // More errors than messages that the peer can have in flight: it does not take any.
        if !connection.push_refusal(complaint) {
            self.shared.counters.protocol_violations.increment();
            return self.begin_close(key.index, CloseReason::ErrorsUnread);
        }
        self.note_pending(key.index);
    }

    /// Stops a connection: nothing is received or sent any more, and waiting messages are dropped.
    /// [`State::finish_closing`](super::state::State::finish_closing) does the rest, in this poll or a later one.
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
        connection.refusals.clear();
        while let Some((buffer, _, _)) = connection.unposted.list.pop() {
            match self.transmit.take_back(buffer) {
                Some(buffer) if self.reply.pool.owns(&buffer) => self.reply.pool.give(buffer),
                // A placement segment: a Send of a peer placed the item, and this end was sending it on.
                Some(buffer) => self.placement.give(buffer),
                None => {}
            }
        }
        while let Some(message) = self.backlog.pop(&mut connection.outbound) {
            self.messages.give(message.buffer);
        }
        self.port.disconnect(connection.queue_pair);
        self.closing.push_back(Closing {
            index,
            is_cleared: false,
            scan: 0,
            is_notified: false,
        });
    }

    /// Asks for the memory of the connection whose message comes next, while the one before it is handled.
    #[inline(never)]
    pub(super) fn fetch_next(&self) {
        if let Some(queue_pair) = self.port.arrives_next() {
            self.connections.fetch_ahead(queue_pair);
        }
    }

    /// Records how long the last poll, which did something, took up to `now`.
    #[inline]
    pub(super) fn note_poll_time(&mut self, now: Ticks) {
        let sent = self.shared.counters.replies_sent.get();
        let replies = sent.saturating_sub(std::mem::replace(&mut self.replies_timed, sent));
        let ticks = now.saturating_sub(self.now);
        self.shared.poll_times.record(ticks, replies);
    }

    /// Records the time of the reply to a call that the core found at `found_at`, if that was in an earlier poll.
    #[inline]
    pub(super) fn note_late_reply(&mut self, found_at: Ticks) {
        if found_at != self.now {
            let ticks = self.now.saturating_sub(found_at);
            self.shared.poll_times.record_replies(ticks, 1);
            self.replies_timed += 1;
        }
    }

    /// Counts the reply to a call that the core found at `found_at`.
    #[inline(always)]
    pub(super) fn count_served_reply(&mut self, found_at: Ticks) {
        self.shared.counters.replies_sent.increment();
        self.note_late_reply(found_at);
    }
}
