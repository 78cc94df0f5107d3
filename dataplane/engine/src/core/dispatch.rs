//! Completions: what each of them means for its connection.

use rpcrdma_fabric::interface::{Completion, CompletionKind, Port, QueuePairId, Receive, Status};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, Event, Refusal, WholeMessage};

use super::State;
use super::bulk::may_take_slot;
use super::group::TransmissionNote;
use super::held::{HeldWork, Received};
use super::rare::{GivenUp, Upshot, handle_rare};
use crate::application::{Application, CallError, CloseReason, ConnectionKey, Reply};
use crate::authentication::AuthenticationFailure;
use crate::connection::{Assembled, Complaint, Stage};
use crate::handle::Notification;
use crate::message::{MessageBuffer, Use};
use crate::requester::{Ended, read_reply};
use crate::responder::{Desk, Served};

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
                    let counter = &self.shared.counters.message_bytes_received;
                    counter.add(bytes.into());
                    self.handle_receive(application, queue_pair, receive, bytes);
                } else {
                    // Its Disconnected follows.
                    self.post_receive(receive);
                }
            }
            CompletionKind::Disconnected => self.handle_disconnected(completion.queue_pair),
            CompletionKind::Read(work, gather) => {
                self.read_ended(completion.queue_pair, completion.status, work, gather);
            }
            CompletionKind::Invalidated(work, window) => {
                self.window_ended(application, completion.status, work, window);
            }
            // No Send or RDMA Write is signalled.
            CompletionKind::Send(_) | CompletionKind::Write(_) => {
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
        let counters = &self.shared.counters;
        // The message that makes a connection one of version 1 comes here again when it is one.
        if connection.protocol.is_version_1() {
            counters.message_bytes_received_version_1.add(bytes.into());
        } else if connection.stage != Stage::Open
            || !connection
                .protocol
                .begins_version_1(self.port.received(&receive))
        {
            counters.message_bytes_received_version_2.add(bytes.into());
        }
        if !connection.takes_calls() {
            return self.receive_guarded(application, index, receive, bytes);
        }
        let key = connection.key(index);
        let bytes = bytes as usize;
        let first = self.port.received(&receive);
        if bytes > first.len()
            && let Some(transmission) = connection.protocol.handle_alike(first, bytes)
        {
            let note = TransmissionNote::new(&transmission);
            return self.receive_transmission(application, key, note, receive);
        }
        let message = self.gathered.head(&self.port, &receive, bytes, counters);
        let was_group_open = connection.protocol.is_group_open();
        let whole = match connection.protocol.handle_whole_message(message) {
            Some(whole) => whole,
            None if connection.stage == Stage::Open
                && connection.protocol.begins_version_1(message) =>
            {
                return self.receive_first_of_version_1(application, queue_pair, receive, bytes);
            }
            None => match connection.protocol.handle_transmission(message, bytes) {
                Event::Transmission(transmission) => {
                    let note = TransmissionNote::new(&transmission);
                    return self.receive_transmission(application, key, note, receive);
                }
                Event::Reply {
                    xid,
                    payload,
                    chunks,
                    invalidate_handle,
                } if chunks.are_empty() => WholeMessage {
                    direction: Direction::Reply,
                    xid,
                    payload,
                    invalidate_handle,
                },
                Event::Call {
                    xid,
                    payload,
                    chunks,
                    invalidate_handle,
                } if chunks.are_empty() => WholeMessage {
                    direction: Direction::Call,
                    xid,
                    payload,
                    invalidate_handle,
                },
                Event::Call { xid, payload, .. } => {
                    let received = Received {
                        start: bytes - payload.len(),
                        end: bytes,
                        receive,
                    };
                    return self.receive_chunked(application, key, xid, received);
                }
                Event::Reply { xid, payload, .. } => {
                    let received = Received {
                        start: bytes - payload.len(),
                        end: bytes,
                        receive,
                    };
                    return self.receive_chunked_reply(application, key, xid, received);
                }
                event => {
                    let is_group_broken = was_group_open && !connection.protocol.is_group_open();
                    let payload_bytes = payload_bytes(&event);
                    let has_slot = may_take_slot(&self.bulk, connection, index);
                    let kept = &mut self.bulk.assembled_header;
                    let messages = &mut self.messages;
                    let upshot = handle_rare(
                        connection, messages, counters, kept, has_slot, event, message,
                    );
                    if let Upshot::HoldPart(part) = upshot {
                        let received = Received {
                            start: bytes - payload_bytes,
                            end: bytes,
                            receive,
                        };
                        return self.hold_part(key, part, received);
                    }
                    self.repost(index, receive);
                    if is_group_broken {
                        self.drop_group_in(key);
                    }
                    return match upshot {
                        Upshot::Done => self.note_if_pending(index),
                        upshot => self.act(application, key, upshot),
                    };
                }
            },
        };
        let (xid, payload) = (whole.xid, whole.payload);
        match whole.direction {
            Direction::Reply => {
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
                    Ended::Bulk(bulk) => {
                        let received = Received {
                            start: bytes - payload.len(),
                            end: bytes,
                            receive,
                        };
                        return self.receive_bulk_reply(key, bulk, received);
                    }
                    Ended::Unknown => counters.unmatched_replies.increment(),
                }
                counters.receives_posted.increment();
                self.port.post_receive(receive);
                connection.protocol.handle_receives_posted(1);
                if !connection.pending && connection.wants_to_send() {
                    self.note_pending(index);
                }
            }
            Direction::Call => {
                connection.serves = true;
                if !self.messages.has_room(Use::Answer) || !connection.may_queue() {
                    let received = Received {
                        start: bytes - payload.len(),
                        end: bytes,
                        receive,
                    };
                    return self.hold(key, xid, HeldWork::Call(received));
                }
                let desk = Desk {
                    connection: key,
                    is_reverse: connection.serves_reverse(),
                    is_version_1: connection.protocol.is_version_1(),
                    now: self.now,
                    scratch: self.transmit.scratch(),
                    threshold_bytes: connection.protocol.send_threshold_bytes() as usize,
                    messages: &mut self.messages,
                    deferrals: &mut self.deferrals,
                    items: &mut self.bulk.reply,
                    counters,
                };
                let served = desk.serve(application, xid, payload);
                // It is posted below, which is before the reply's credit can be used.
                connection.protocol.handle_receives_posted(1);
                match served {
                    Served::Short(rpc_bytes) => {
                        let transmit = &mut self.transmit;
                        let port = &mut self.port;
                        let sent = transmit.send_reply(port, connection, xid, rpc_bytes, counters);
                        if !sent {
                            self.keep_scratch_reply(index, xid, rpc_bytes);
                        } else if connection.stuck.is_some() {
                            self.note_pending(index);
                        }
                    }
                    other => self.answer(index, xid, other),
                }
                self.shared.counters.receives_posted.increment();
                self.port.post_receive(receive);
            }
        }
    }

    /// A client speaks version 1: nothing is to be exchanged before calls.
    #[cold]
    fn receive_first_of_version_1<A: Application>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        receive: Receive,
        bytes: usize,
    ) {
        if let Some((index, connection)) = self.connections.of_queue_pair(queue_pair) {
            let key = connection.key(index);
            connection.protocol.begin_version_1();
            self.make_ready(application, key, None);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.handle_receive(application, queue_pair, receive, bytes);
    }

    /// A message of a connection that takes no calls: one that is over, or whose peer is still to authenticate
    /// itself. No RPC message of such a peer gets anywhere, part or whole.
    #[cold]
    fn receive_guarded<A: Application>(
        &mut self,
        application: &mut A,
        index: u32,
        receive: Receive,
        bytes: u32,
    ) {
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return self.post_receive(receive);
        };
        let key = connection.key(index);
        let bytes = bytes as usize;
        let counters = &self.shared.counters;
        let message = self.gathered.message(&self.port, &receive, bytes, counters);
        let upshot = match connection.protocol.handle_message(message) {
            // What is named here may pass; whatever else there is, or comes to be, is of RPC.
            event @ (Event::Properties { .. }
            | Event::PropertiesFragment { .. }
            | Event::Credits
            | Event::TransportError { .. }
            | Event::VersionMismatch { .. }
            | Event::Discarded(_)
            | Event::Refused(_)
            | Event::Close(_)) => {
                let start = bytes - payload_bytes(&event);
                let messages = &mut self.messages;
                let kept = &mut self.bulk.assembled_header;
                // No RPC message is among these.
                let has_slot = false;
                match handle_rare(
                    connection, messages, counters, kept, has_slot, event, message,
                ) {
                    Upshot::HoldPart(part) => {
                        let end = bytes;
                        return self.hold_part(
                            key,
                            part,
                            Received {
                                receive,
                                start,
                                end,
                            },
                        );
                    }
                    upshot => upshot,
                }
            }
            _ => {
                counters.messages_unauthenticated.increment();
                let early = AuthenticationFailure::CalledEarly;
                Upshot::Close(CloseReason::Unauthenticated(early))
            }
        };
        self.repost(index, receive);
        self.act(application, key, upshot);
    }

    /// Posts a Receive that belongs to no connection any more.
    #[cold]
    pub(super) fn post_receive(&mut self, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
    }

    /// Posts a Receive again that a message of the connection at `index` took. A grant may be due
    /// then, and, where it was the spare Receive, what waits may be sent.
    #[inline]
    pub(super) fn repost(&mut self, index: u32, receive: Receive) {
        self.shared.counters.receives_posted.increment();
        self.port.post_receive(receive);
        if let Some(connection) = self.connections.at(index) {
            connection.protocol.handle_receives_posted(1);
        }
        self.note_if_pending(index);
    }

    #[cold]
    pub(super) fn act<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        upshot: Upshot,
    ) {
        match upshot {
            // A part is held with its Receive, which this is too late for.
            Upshot::Done | Upshot::HoldPart(_) => {}
            Upshot::Assembled {
                direction: Direction::Call,
                xid,
                message,
            } => {
                if self.bulk.assembled_header.is_empty() {
                    self.serve_assembled(application, key, xid, message);
                } else {
                    self.begin_assembled(key, xid, message);
                }
            }
            Upshot::Assembled {
                direction: Direction::Reply,
                xid,
                message,
            } => self.end_assembled(application, key, xid, message),
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
            Upshot::Report(report) => self.complain(key, Complaint::Report(report)),
            Upshot::PeerReport(report) => self.handle_peer_report(key, &report),
            Upshot::GiveUp(why) => self.give_up(application, key, why),
            Upshot::FellBack => self.make_ready(application, key, None),
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

    fn give_up<A: Application>(&mut self, application: &mut A, key: ConnectionKey, why: GivenUp) {
        let given_up = self.give_up_message(key);
        match why {
            GivenUp::Broken => {
                if let Some((Assembled::Message(Direction::Reply), xid)) = given_up {
                    self.end_call(application, key, xid, Err(CallError::BadReply));
                }
            }
            GivenUp::Refused(refusal) => self.refuse(key, refusal),
            GivenUp::Reply { xid, error } => self.end_call(application, key, xid, Err(error)),
        }
    }

    /// A reply was put together from parts.
    fn end_assembled<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        message: MessageBuffer,
    ) {
        let ended = self.requester.end(xid, key);
        if let Ended::Bulk(index) = ended {
            return self.end_bulk_assembled(index, message);
        }
        let result = if self.bulk.assembled_header.is_empty() {
            read_reply(message.filled())
        } else {
            // The call offered no chunks, so none can come back.
            Err(CallError::BadReply)
        };
        self.tell_end(application, key, ended, result);
        self.messages.give(message);
    }

    /// The end of a call of ours other than by a reply of one message.
    fn end_call<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        result: Result<Reply<'_>, CallError>,
    ) {
        let ended = self.requester.end(xid, key);
        if let Ended::Bulk(index) = ended {
            let error = result.err().unwrap_or(CallError::BadReply);
            return self.end_bulk_with_error(index, error);
        }
        self.tell_end(application, key, ended, result);
    }

    /// What the requester says has ended is told, unless it has bulk data.
    pub(super) fn tell_end<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        ended: Ended,
        result: Result<Reply<'_>, CallError>,
    ) {
        let counters = &self.shared.counters;
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
            Ended::Bulk(_) | Ended::Unknown => counters.unmatched_replies.increment(),
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
            if is_mended_by_another_form(error) && self.make_call_plain(key, xid, error) {
                return;
            }
            self.end_call(application, key, xid, Err(CallError::Transport(error)));
        } else {
            // No call of ours was sent yet: our properties were refused.
            self.begin_close(key.index, CloseReason::PropertiesRefused(error));
        }
    }

    /// Answers a message with a transport error, once there is a credit for it.
    pub(super) fn refuse(&mut self, key: ConnectionKey, refusal: Refusal) {
        self.complain(key, Complaint::Error(refusal));
    }

    /// Tells a peer what was wrong, once there is a credit for it.
    pub(super) fn complain(&mut self, key: ConnectionKey, complaint: Complaint) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if !connection.push_refusal(complaint) {
            self.shared.counters.protocol_violations.increment();
            return self.begin_close(key.index, CloseReason::ErrorsUnread);
        }
        self.note_pending(key.index);
    }
}

/// Whether a call that was refused so may be made in another form (-00 section 6.4.3): with more
/// memory, or with fewer chunks and segments.
fn is_mended_by_another_form(error: TransportError) -> bool {
    matches!(
        error,
        TransportError::ReplyResource { .. }
            | TransportError::WriteResource { .. }
            | TransportError::ReadChunks { .. }
            | TransportError::WriteChunks { .. }
            | TransportError::Segments { .. }
    )
}

/// The bytes at the end of a message that are a part of a continued one.
fn payload_bytes(event: &Event<'_>) -> usize {
    match event {
        Event::Fragment { payload, .. } => payload.len(),
        Event::PropertiesFragment { bytes, .. } => bytes.len(),
        _ => 0,
    }
}
