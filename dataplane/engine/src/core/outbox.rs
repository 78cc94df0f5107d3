//! Sends what waits on connections: replies and long calls, errors, properties and grants.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};

use super::incoming::Incoming;
use super::resources::Resources;
use crate::connection::{Complaint, OutgoingMessage, Waiting};
use crate::counters::Counters;
use crate::message::{MessageBuffer, Use};
use crate::responder::RPC_OFFSET;
use crate::rpc::ConnectionKey;

/// Connections served in one iteration.
const CONNECTIONS_MAX: usize = 8;
/// Messages sent for one connection in one iteration. With buffers of 8 KiB at most 64 KiB are copied.
const MESSAGES_MAX: usize = 8;

/// The XID of our properties. The number is free to choose (-00 section 6.4.4).
const PROPERTIES_XID: u32 = 0;

/// The result of an attempt to send the next message of a connection.
enum Progress {
    /// One message was sent.
    Sent,
    /// Nothing is left to send.
    Empty,
    /// The next message has to wait.
    Blocked(Waiting),
}

impl<P: Port> Resources<P> {
    /// Puts a connection on the list of those that have something to send.
    #[cold]
    pub(super) fn note_pending(&mut self, index: u32) {
        if let Some(connection) = self.connections.at(index)
            && !std::mem::replace(&mut connection.pending, true)
        {
            self.pending.push_back(index);
        }
    }

    /// Notes that something happened on a connection: wakes what waits for that, and does as [`Resources::note_pending`]
    /// if there is something to send.
    #[inline]
    pub(super) fn note_if_pending(&mut self, index: u32) {
        let connection = self.connections.at(index);
        if connection.is_some_and(|it| it.has_news()) {
            self.note_news(index);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note_news(&mut self, index: u32) {
        self.wake(index);
        if self
            .connections
            .at(index)
            .is_some_and(|it| it.wants_to_send())
        {
            self.note_pending(index);
        }
    }

    /// Sends the reply in the scratch buffer, which is behind the place of its transport header.
    #[inline]
    pub(super) fn send_scratch_reply(&mut self, index: u32, xid: u32, rpc_bytes: usize) {
        let Some(connection) = self.connections.at(index) else {
            return;
        };
        let counters = &self.shared.counters;
        let sent = self
            .transmit
            .send_reply(&mut self.port, connection, xid, rpc_bytes, counters);
        if !sent {
            self.keep_scratch_reply(index, xid, rpc_bytes);
        } else if connection.unposted.is_some() {
            self.note_pending(index);
        }
    }

    #[cold]
    pub(super) fn keep_scratch_reply(&mut self, index: u32, xid: u32, rpc_bytes: usize) {
        let Some(mut buffer) = self.messages.take(index, Use::Answer) else {
            debug_assert!(false, "a call is served only while a buffer is free");
            return;
        };
        let scratch = self.transmit.scratch();
        let reply = scratch.get(RPC_OFFSET..RPC_OFFSET + rpc_bytes);
        buffer.append(reply.unwrap_or(&[]));
        debug_assert!(buffer.is_whole(), "it holds what one message does");
        self.queue_reply(index, xid, buffer);
    }

    /// Queues a whole reply behind the messages that its connection has to send already.
    #[cold]
    pub(super) fn queue_reply(&mut self, index: u32, xid: u32, buffer: MessageBuffer) {
        let Some(connection) = self.connections.at(index) else {
            return self.messages.give(buffer);
        };
        let (key, rpc_bytes) = (connection.key(index), buffer.filled().len());
        if !connection.protocol.can_send_without_chunks(rpc_bytes) {
            self.messages.give(buffer);
            let length_needed_bytes = u32::try_from(rpc_bytes).unwrap_or(u32::MAX);
            let error = TransportError::ReplyResource {
                length_needed_bytes,
            };
            return self.refuse(key, xid, error);
        }
        if self.queue_message(key, OutgoingMessage::new(xid, Direction::Reply, buffer)) {
            self.shared.counters.replies_sent.increment();
        }
    }

    /// Queues a message behind those that its connection has to send already: there is an entry for each message buffer.
    /// False, and its buffer is given back, when the connection is closing.
    pub(super) fn queue_message(&mut self, key: ConnectionKey, message: OutgoingMessage) -> bool {
        let live = self.connections.get_mut(key).filter(|it| it.is_live());
        let queued = match live {
            Some(connection) => self.backlog.push(&mut connection.outbound, message),
            None => Err(message),
        };
        if let Err(message) = queued {
            self.messages.give(message.buffer);
            return false;
        }
        self.note_pending(key.index);
        true
    }

    /// Sends waiting messages, as far as credits and send queues allow.
    #[inline]
    pub(super) fn send_pending(&mut self, incoming: &mut Incoming) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        self.serve_pending(incoming)
    }

    #[cold]
    fn serve_pending(&mut self, incoming: &mut Incoming) -> bool {
        let mut busy = false;
        for _ in 0..CONNECTIONS_MAX.min(self.pending.len()) {
            let Some(index) = self.pending.pop_front() else {
                break;
            };
            let (sent, again) = self.serve_backlog(incoming, index);
            if sent {
                self.wake(index);
            }
            busy |= sent;
            if again {
                self.pending.push_back(index);
            } else if let Some(connection) = self.connections.at(index) {
                connection.pending = false;
            }
        }
        busy
    }

    /// Sends for one connection. Returns whether anything was sent, and whether to try again
    /// without waiting for a message of the peer.
    fn serve_backlog(&mut self, incoming: &mut Incoming, index: u32) -> (bool, bool) {
        for count in 0..MESSAGES_MAX {
            match self.send_next(incoming, index) {
                Progress::Sent => {}
                Progress::Empty => return (count != 0, false),
                Progress::Blocked(waiting) => {
                    self.note_waiting(index, waiting);
                    return (count != 0, waiting != Waiting::Credit);
                }
            }
        }
        (true, true)
    }

    fn note_waiting(&mut self, index: u32, waiting: Waiting) {
        let counters = &self.shared.counters;
        if let Some(connection) = self.connections.at(index)
            && connection.waiting.replace(waiting) != Some(waiting)
        {
            match waiting {
                Waiting::Credit => counters.awaiting_credit.increment(),
                // Counted where the port reported the full queue.
                Waiting::SendSlot => {}
                Waiting::SendBuffer => counters.awaiting_send_buffer.increment(),
            }
        }
    }

    /// Sends the next message of a connection, if there is one and it can be sent.
    fn send_next(&mut self, incoming: &mut Incoming, index: u32) -> Progress {
        let counters = &self.shared.counters;
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return Progress::Empty;
        };
        // Its credit word is encoded already, and later messages count on it: nothing may overtake it.
        if connection.unposted.is_some() {
            let sent = self
                .transmit
                .post_unposted(&mut self.port, connection, counters);
            if !sent {
                return Progress::Blocked(Waiting::SendSlot);
            }
            connection.waiting = None;
            return Progress::Sent;
        }
        if !connection.wants_to_send() {
            connection.waiting = None;
            return Progress::Empty;
        }
        if !self.transmit.has_room_for_control(connection) {
            return Progress::Blocked(Waiting::SendBuffer);
        }
        match self.encode_next(incoming, index) {
            Ok(bytes) => {
                if let Some(connection) = self.connections.at(index) {
                    connection.waiting = None;
                    let counters = &self.shared.counters;
                    self.transmit
                        .post_scratch(&mut self.port, connection, bytes, counters);
                }
                Progress::Sent
            }
            Err(waiting) => Progress::Blocked(waiting),
        }
    }

    /// Encodes the next message of a connection into the scratch buffer. Properties come first, because they are a
    /// client's first message; errors come before payload. A grant or keep-alive is sent only if nothing else can be,
    /// because every message grants credits.
    fn encode_next(&mut self, incoming: &mut Incoming, index: u32) -> Result<usize, Waiting> {
        let counters = &self.shared.counters;
        let connection = self.connections.at(index).ok_or(Waiting::Credit)?;
        let mut blocked = Waiting::Credit;
        if connection.properties_due {
            let scratch = self.transmit.scratch();
            let protocol = connection.protocol.version_2_mut();
            let of_connection = connection.application_properties.as_deref();
            let application = of_connection.unwrap_or(&self.config.application_properties);
            let encoded = match &connection.authentication_out {
                None => protocol.encode_properties_with(scratch, PROPERTIES_XID, application),
                Some(message) => {
                    let bytes = &message.bytes;
                    let with_properties = message.with_properties.then_some(application);
                    protocol.encode_host_authentication(
                        scratch,
                        PROPERTIES_XID,
                        bytes,
                        with_properties,
                    )
                }
            };
            match encoded {
                Ok(bytes) => {
                    connection.properties_due = false;
                    connection.authentication_out = None;
                    return Ok(bytes);
                }
                // A continued message has to be completed first.
                Err(SendRefused::SequenceOpen) => {}
                Err(_) => return Err(Waiting::Credit),
            }
        }
        while let Some(&refusal) = connection.refusals.front() {
            let scratch = self.transmit.scratch();
            let protocol = &mut connection.protocol;
            let encoded = match &refusal {
                Complaint::Error(refusal) => protocol.encode_error(scratch, refusal),
                Complaint::Report(report) => protocol
                    .version_2_mut()
                    .encode_report_error(scratch, report),
            };
            match encoded {
                Ok(bytes) => {
                    connection.refusals.pop_front();
                    match refusal {
                        Complaint::Error(refusal) => count_error(counters, refusal.error),
                        Complaint::Report(_) => counters.group_errors_sent.increment(),
                    }
                    return Ok(bytes);
                }
                Err(SendRefused::NoCredit) => break,
                // A continued message has to be completed first.
                Err(SendRefused::SequenceOpen) if matches!(refusal, Complaint::Report(_)) => break,
                // A version error that a version 2 message overtook, or an error before the version is
                // known: it is obsolete. Wakes replies that may have waited behind it.
                Err(_) => {
                    connection.refusals.pop_front();
                    self.is_woken = true;
                    self.wakes = self.wakes.wrapping_add(1);
                }
            }
        }
        if !connection.outbound.is_empty() {
            if !self.transmit.has_room(connection) {
                blocked = Waiting::SendBuffer;
            } else if (connection.protocol.credits_available() != 0
                || connection.protocol.credits_for_replies() != 0)
                && let Some(bytes) = self.encode_part(incoming, index)
            {
                return Ok(bytes);
            }
        }
        let connection = self.connections.at(index).ok_or(Waiting::Credit)?;
        let keep_alive_due = std::mem::take(&mut connection.keep_alive_due);
        if connection.protocol.grant_due() || keep_alive_due {
            let scratch = self.transmit.scratch();
            if let Ok(bytes) = connection.protocol.version_2_mut().encode_grant(scratch) {
                let counters = &self.shared.counters;
                counters.grants_sent.increment();
                if keep_alive_due {
                    counters.keep_alives_sent.increment();
                }
                return Ok(bytes);
            }
        }
        Err(blocked)
    }

    /// Encodes the next part of the message that is first in the connection's queue.
    fn encode_part(&mut self, incoming: &mut Incoming, index: u32) -> Option<usize> {
        let connection = self.connections.at(index)?;
        self.backlog.prefer_replies(&mut connection.outbound);
        let message = self.backlog.first_mut(&connection.outbound)?;
        // Only a call that has not begun may be held back: one that has begun blocks replies until it is
        // complete.
        let begins_call = message.direction == Direction::Call && message.sent_bytes == 0;
        if begins_call && connection.credits_for_calls() == 0 {
            return None;
        }
        let rest = message.buffer.filled().get(message.sent_bytes..)?;
        let space = self.transmit.scratch().len();
        let protocol = &connection.protocol;
        let mut part_bytes = protocol.fragment_bytes_within(rest.len(), space);
        if let Some(chunks) = message.chunks
            && part_bytes == rest.len()
            && !protocol.is_version_1()
        {
            // The message of the last part also has the lists. If both do not fit, this part becomes
            // shorter, and another one follows.
            let list_bytes = incoming.returned_list_bytes(chunks);
            let threshold = connection.protocol.send_threshold_bytes() as usize;
            let room = threshold.min(space).saturating_sub(RPC_OFFSET + list_bytes);
            if part_bytes > room {
                part_bytes = (room & !3).min((part_bytes - 1) & !3);
            }
        }
        let more = part_bytes < rest.len();
        let scratch = self.transmit.scratch();
        let (xid, direction) = (message.xid, message.direction);
        let header_bytes = match message.chunks.filter(|_| !more) {
            None => connection
                .protocol
                .encode_message(scratch, xid, direction, more, part_bytes),
            Some(chunks) => incoming.encode_last_part(connection, scratch, chunks, part_bytes),
        };
        let header_bytes = header_bytes.ok()?;
        let end = header_bytes + part_bytes;
        scratch
            .get_mut(header_bytes..end)?
            .copy_from_slice(rest.get(..part_bytes)?);
        if more || message.sent_bytes != 0 {
            let counters = &self.shared.counters;
            counters.fragments_sent.increment();
            counters.fragment_bytes_copied.add(part_bytes as u64);
        }
        message.sent_bytes += part_bytes;
        if !more && let Some(done) = self.backlog.pop(&mut connection.outbound) {
            self.messages.give(done.buffer);
            if let Some(chunks) = done.chunks {
                incoming.drop_incoming(self, chunks);
            }
        }
        Some(end)
    }
}

fn count_error(counters: &Counters, error: TransportError) {
    let counter = match error {
        TransportError::Vers(_) => &counters.errors_sent_vers,
        TransportError::BadXdr => &counters.errors_sent_bad_xdr,
        TransportError::InvalHtype => &counters.errors_sent_inval_htype,
        TransportError::InvalFlag => &counters.errors_sent_inval_flag,
        TransportError::ReadChunks { .. } => &counters.errors_sent_read_chunks,
        TransportError::WriteChunks { .. } => &counters.errors_sent_write_chunks,
        TransportError::Segments { .. } => &counters.errors_sent_segments,
        TransportError::WriteResource { .. } => &counters.errors_sent_write_resource,
        TransportError::ReplyResource { .. } => &counters.errors_sent_reply_resource,
        TransportError::System | TransportError::Unknown { .. } => &counters.errors_sent_system,
    };
    counter.increment();
}
