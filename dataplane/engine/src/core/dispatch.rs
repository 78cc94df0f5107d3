//! Completions: what each of them means for its connection.

use rpcrdma_fabric::interface::{Completion, CompletionKind, Port, QueuePairId, Receive, Status};
use rpcrdma_protocol::chunks::ChunkLists;
use rpcrdma_protocol::constants::V2_PREFIX_BYTES;
use rpcrdma_protocol::v2::connection::{Direction, DiscardReason, Event, Refusal};
use rpcrdma_protocol::v2::{PropertySet, TransportError};

use super::{Held, HeldCall, State};
use crate::application::{Application, CallError, CloseReason, ConnectionKey, Reply};
use crate::connection::{Assembled, Connection, Stage, Taken};
use crate::counters::Counters;
use crate::handle::{Notification, PropertyBytes};
use crate::message::{MessageBuffer, MessagePool};
use crate::requester::{Ended, read_reply};
use crate::responder::{Desk, Served};

/// What remains to be done about a message once its Receive is posted again.
enum Upshot {
    /// Nothing.
    Done,
    /// An RPC message was put together.
    Assembled {
        direction: Direction,
        xid: u32,
        message: MessageBuffer,
    },
    /// The peer's properties are for the control plane.
    Properties(Box<PropertyBytes>),
    /// A call of ours ends with an error.
    EndCall { xid: u32, error: CallError },
    /// The peer refused what we sent with this XID.
    PeerError { xid: u32, error: TransportError },
    /// The message is answered with a transport error.
    Refuse(Refusal),
    /// The server does not speak version 2.
    VersionMismatch { low: u32, high: u32 },
    /// The connection cannot go on.
    Close(CloseReason),
}

impl<P: Port> State<P> {
    #[inline]
    pub(super) fn handle_completion<A: Application>(
        &mut self,
        application: &mut A,
        completion: Completion,
    ) {
        match completion.kind {
            CompletionKind::Receive { receive, bytes, .. } => {
                let queue_pair = completion.queue_pair;
                if completion.status == Status::Success {
                    self.handle_receive(application, queue_pair, receive, bytes);
                } else {
                    // Its Disconnected follows.
                    self.post_receive(receive);
                }
            }
            CompletionKind::Disconnected => self.handle_disconnected(completion.queue_pair),
            // No Send is signalled, and nothing else is posted.
            CompletionKind::Send(_)
            | CompletionKind::Read(..)
            | CompletionKind::Write(_)
            | CompletionKind::Invalidated(..) => {
                self.shared.counters.completions_late.increment();
            }
        }
    }

    #[inline]
    fn handle_receive<A: Application>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        receive: Receive,
        bytes: u32,
    ) {
        let Some((index, connection)) = self.connections.of_queue_pair(queue_pair) else {
            self.shared.counters.completions_late.increment();
            return self.post_receive(receive);
        };
        if !connection.is_live() {
            return self.post_receive(receive);
        }
        let key = connection.key(index);
        let bytes = bytes as usize;
        let message = self.port.received(&receive).get(..bytes).unwrap_or(&[]);
        let counters = &self.shared.counters;
        let upshot = match connection.protocol.handle_message(message) {
            Event::Reply {
                xid,
                payload,
                chunks,
                ..
            } if chunks.are_empty() => {
                match self.requester.end(xid, key) {
                    Ended::Call(tag) => {
                        connection.calls_outstanding -= 1;
                        counters.replies_received.increment();
                        application.completed(tag, key, read_reply(payload), self.now);
                    }
                    Ended::TimedOut => {
                        connection.calls_outstanding -= 1;
                        counters.late_replies.increment();
                    }
                    Ended::Unknown => counters.unmatched_replies.increment(),
                }
                Upshot::Done
            }
            Event::Call {
                xid,
                payload,
                chunks,
                ..
            } if is_inline(&chunks) => {
                if self.messages.is_empty() {
                    let start = bytes - payload.len();
                    return self.hold(key, xid, receive, start, bytes);
                }
                let desk = Desk {
                    connection: key,
                    scratch: self.transmit.scratch(),
                    threshold_bytes: connection.protocol.send_threshold_bytes() as usize,
                    messages: &mut self.messages,
                    deferrals: &mut self.deferrals,
                    counters,
                };
                let served = desk.serve(application, xid, payload);
                self.repost(index, receive);
                return self.answer(index, xid, served);
            }
            event => handle_rare(connection, &mut self.messages, counters, event, message),
        };
        self.repost(index, receive);
        match upshot {
            Upshot::Done => self.note_if_pending(index),
            upshot => self.act(application, key, upshot),
        }
    }

    /// Posts a Receive that belongs to no connection any more.
    #[cold]
    pub(super) fn post_receive(&mut self, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
    }

    /// Posts a Receive again that a message of the connection at `index` took.
    #[inline]
    pub(super) fn repost(&mut self, index: u32, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
        if let Some(connection) = self.connections.at(index) {
            connection.protocol.handle_receives_posted(1);
        }
    }

    #[cold]
    fn hold(&mut self, key: ConnectionKey, xid: u32, receive: Receive, start: usize, end: usize) {
        self.shared.counters.awaiting_message_buffer.increment();
        self.held.push_back(Held {
            connection: key,
            xid,
            call: HeldCall::Received {
                receive,
                start,
                end,
            },
        });
    }

    /// Has the application answer a call that was put together from parts, or holds it.
    pub(super) fn serve_assembled<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        message: MessageBuffer,
    ) {
        if self.messages.is_empty() {
            self.shared.counters.awaiting_message_buffer.increment();
            let call = HeldCall::Assembled(message);
            return self.held.push_back(Held {
                connection: key,
                xid,
                call,
            });
        }
        let served = self.serve(application, key, xid, message.filled());
        self.messages.give(message);
        self.answer(key.index, xid, served);
    }

    /// Has the application answer the call in `message`, which is none of the port's memory.
    fn serve<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        message: &[u8],
    ) -> Served {
        let threshold_bytes = self.connections.get(key).map_or(0, |connection| {
            connection.protocol.send_threshold_bytes() as usize
        });
        let desk = Desk {
            connection: key,
            scratch: self.transmit.scratch(),
            threshold_bytes,
            messages: &mut self.messages,
            deferrals: &mut self.deferrals,
            counters: &self.shared.counters,
        };
        desk.serve(application, xid, message)
    }

    /// Serves calls that were held, now that their replies can be kept.
    #[inline]
    pub(super) fn retry_held<A: Application>(&mut self, application: &mut A) -> bool {
        if self.held.is_empty() || self.messages.is_empty() {
            return false;
        }
        self.serve_held(application);
        true
    }

    #[cold]
    fn serve_held<A: Application>(&mut self, application: &mut A) {
        /// Calls served in one iteration besides those that arrive in it.
        const SERVED_MAX: usize = 4;
        for _ in 0..SERVED_MAX {
            if self.messages.is_empty() {
                return;
            }
            let Some(Held {
                connection: key,
                xid,
                call,
            }) = self.held.pop_front()
            else {
                return;
            };
            match call {
                HeldCall::Assembled(message) => {
                    self.serve_assembled(application, key, xid, message);
                }
                HeldCall::Received {
                    receive,
                    start,
                    end,
                } => {
                    let Some(connection) = self.connections.get_mut(key) else {
                        self.post_receive(receive);
                        continue;
                    };
                    let desk = Desk {
                        connection: key,
                        scratch: self.transmit.scratch(),
                        threshold_bytes: connection.protocol.send_threshold_bytes() as usize,
                        messages: &mut self.messages,
                        deferrals: &mut self.deferrals,
                        counters: &self.shared.counters,
                    };
                    let message = self.port.received(&receive).get(start..end).unwrap_or(&[]);
                    let served = desk.serve(application, xid, message);
                    self.repost(key.index, receive);
                    self.answer(key.index, xid, served);
                }
            }
        }
    }

    #[cold]
    fn act<A: Application>(&mut self, application: &mut A, key: ConnectionKey, upshot: Upshot) {
        match upshot {
            Upshot::Done => {}
            Upshot::Assembled {
                direction: Direction::Call,
                xid,
                message,
            } => self.serve_assembled(application, key, xid, message),
            Upshot::Assembled {
                direction: Direction::Reply,
                xid,
                message,
            } => {
                self.end_call(application, key, xid, read_reply(message.filled()));
                self.messages.give(message);
            }
            Upshot::Properties(bytes) => {
                self.shared.counters.awaiting_control.increment();
                self.shared.notify(Notification::Properties {
                    connection: key,
                    bytes,
                });
            }
            Upshot::EndCall { xid, error } => self.end_call(application, key, xid, Err(error)),
            Upshot::PeerError { xid, error } => {
                self.handle_peer_error(application, key, xid, error);
            }
            Upshot::Refuse(refusal) => self.refuse(key, refusal),
            Upshot::VersionMismatch { low, high } => {
                self.shared.notify(Notification::VersionMismatch {
                    connection: key,
                    low,
                    high,
                });
                self.begin_close(key.index, CloseReason::VersionMismatch { low, high });
            }
            Upshot::Close(reason) => {
                self.shared.counters.protocol_violations.increment();
                self.begin_close(key.index, reason);
            }
        }
        self.note_if_pending(key.index);
    }

    /// The end of a call of ours other than by a reply of one message.
    fn end_call<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        result: Result<Reply<'_>, CallError>,
    ) {
        let counters = &self.shared.counters;
        let ended = self.requester.end(xid, key);
        if ended != Ended::Unknown
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.calls_outstanding -= 1;
        }
        match ended {
            Ended::Call(tag) => {
                if result.is_ok() {
                    counters.replies_received.increment();
                }
                application.completed(tag, key, result, self.now);
            }
            Ended::TimedOut => counters.late_replies.increment(),
            Ended::Unknown => counters.unmatched_replies.increment(),
        }
    }

    fn handle_peer_error<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        error: TransportError,
    ) {
        self.shared.counters.errors_received.increment();
        let is_ready = self
            .connections
            .get(key)
            .is_some_and(|connection| connection.stage == Stage::Ready);
        if is_ready {
            self.end_call(application, key, xid, Err(CallError::Transport(error)));
        } else {
            // No call of ours was sent yet: our properties were refused.
            self.begin_close(key.index, CloseReason::PropertiesRefused(error));
        }
    }

    /// Answers a message with a transport error, once there is a credit for it.
    pub(super) fn refuse(&mut self, key: ConnectionKey, refusal: Refusal) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if !connection.push_refusal(refusal) {
            self.shared.counters.protocol_violations.increment();
            return self.begin_close(key.index, CloseReason::ErrorsUnread);
        }
        self.note_pending(key.index);
    }
}

/// All that is not a whole RPC message without chunks.
#[cold]
#[inline(never)]
fn handle_rare(
    connection: &mut Connection,
    messages: &mut MessagePool,
    counters: &Counters,
    event: Event<'_>,
    message: &[u8],
) -> Upshot {
    match event {
        Event::Call { xid, chunks, .. } => refuse_chunks(xid, &chunks),
        Event::Reply { xid, .. } => Upshot::EndCall {
            // We offer no chunks, so none can come back.
            xid,
            error: CallError::BadReply,
        },
        Event::Fragment {
            last: true,
            chunks,
            xid,
            direction,
            ..
        } if !is_inline(&chunks) => {
            connection.reassembly.reset(messages);
            match direction {
                Direction::Call => refuse_chunks(xid, &chunks),
                Direction::Reply => Upshot::EndCall {
                    xid,
                    error: CallError::BadReply,
                },
            }
        }
        Event::Fragment {
            direction,
            xid,
            offset,
            payload,
            last,
            ..
        } => {
            counters.fragments_received.increment();
            let what = Assembled::Message(direction);
            match connection
                .reassembly
                .take_part(messages, what, xid, offset, payload, last)
            {
                Taken::Incomplete => Upshot::Done,
                Taken::Complete(message) => Upshot::Assembled {
                    direction,
                    xid,
                    message,
                },
                Taken::NoRoom => {
                    counters.reassemblies_refused.increment();
                    match direction {
                        Direction::Call => {
                            Upshot::Refuse(Refusal::new(xid, TransportError::System))
                        }
                        Direction::Reply => Upshot::EndCall {
                            xid,
                            error: CallError::ReplyTooLong,
                        },
                    }
                }
            }
        }
        Event::Properties { xid, .. } => {
            let body = message.get(V2_PREFIX_BYTES..).unwrap_or(&[]);
            take_properties(connection, xid, body)
        }
        Event::PropertiesFragment {
            xid,
            offset,
            bytes,
            last,
        } => {
            let what = Assembled::Properties;
            match connection
                .reassembly
                .take_part(messages, what, xid, offset, bytes, last)
            {
                Taken::Incomplete => Upshot::Done,
                Taken::NoRoom => {
                    counters.reassemblies_refused.increment();
                    Upshot::Refuse(Refusal::new(xid, TransportError::System))
                }
                Taken::Complete(buffer) => {
                    let upshot = match PropertySet::decode(buffer.filled()) {
                        Ok(_) => take_properties(connection, xid, buffer.filled()),
                        Err(_) => Upshot::Refuse(Refusal::new(xid, TransportError::BadXdr)),
                    };
                    messages.give(buffer);
                    upshot
                }
            }
        }
        Event::Credits => {
            counters.grants_received.increment();
            Upshot::Done
        }
        Event::TransportError { xid, error } => Upshot::PeerError { xid, error },
        Event::VersionMismatch { low, high } => Upshot::VersionMismatch { low, high },
        Event::Discarded(reason) => discard(connection, messages, counters, reason),
        Event::Refused(refusal) => {
            if refusal.sequence_given_up {
                connection.reassembly.reset(messages);
            }
            Upshot::Refuse(refusal)
        }
        Event::Close(reason) => Upshot::Close(CloseReason::Protocol(reason)),
    }
}

/// Whether all of a call is in its Sends, and nothing is asked to be written. A Reply chunk may
/// stand there: replies go inline or in parts, and the chunk is not used (-00 section 6.3.3.1).
#[inline]
fn is_inline(chunks: &ChunkLists<'_>) -> bool {
    chunks.reads.is_empty() && chunks.writes.is_empty()
}

/// Chunks of a call can be neither read nor written here (-00 section 6.4.3). Where no Write chunk
/// is supported at all, REPLY_RESOURCE says so: WRITE_CHUNKS cannot.
fn refuse_chunks(xid: u32, chunks: &ChunkLists<'_>) -> Upshot {
    let error = if chunks.reads.is_empty() {
        TransportError::ReplyResource {
            length_needed_bytes: 0,
        }
    } else {
        TransportError::ReadChunks { max_chunks: 0 }
    };
    Upshot::Refuse(Refusal::new(xid, error))
}

/// Hands a property set to the control plane: one at a time.
fn take_properties(connection: &mut Connection, xid: u32, set: &[u8]) -> Upshot {
    let space = connection
        .property_bytes
        .as_mut()
        .filter(|_| !connection.awaiting_control);
    let Some(space) = space else {
        // The peer did not wait for an answer to its last one.
        return Upshot::Close(CloseReason::PropertiesUnawaited);
    };
    if !space.fill(set) {
        return Upshot::Refuse(Refusal::new(xid, TransportError::System));
    }
    connection.awaiting_control = true;
    match connection.property_bytes.take() {
        Some(bytes) => Upshot::Properties(bytes),
        None => Upshot::Done,
    }
}

fn discard(
    connection: &mut Connection,
    messages: &mut MessagePool,
    counters: &Counters,
    reason: DiscardReason,
) -> Upshot {
    let end = |xid, error| Upshot::EndCall { xid, error };
    match reason {
        DiscardReason::Short => counters.messages_discarded_short.increment(),
        DiscardReason::SequenceBroken { .. } => {
            counters.messages_discarded_short.increment();
            if let Some((Assembled::Message(Direction::Reply), xid)) =
                connection.reassembly.reset(messages)
            {
                return end(xid, CallError::BadReply);
            }
        }
        DiscardReason::ReplyMismatch { xid } => {
            counters.messages_discarded.increment();
            connection.reassembly.reset(messages);
            return end(xid, CallError::BadReply);
        }
        DiscardReason::ReplyTooLong { xid } => {
            counters.messages_discarded.increment();
            connection.reassembly.reset(messages);
            return end(xid, CallError::ReplyTooLong);
        }
        DiscardReason::SequenceRest | DiscardReason::UnexpectedError | DiscardReason::Over => {
            counters.messages_discarded.increment();
        }
    }
    Upshot::Done
}
