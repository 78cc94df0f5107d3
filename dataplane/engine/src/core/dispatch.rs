//! Completions: what each of them means for its connection.

use rpcrdma_fabric::interface::{Completion, CompletionKind, Port, QueuePairId, Receive};
use rpcrdma_protocol::connection::Received as Sorted;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, Event, Refusal};

use super::group::TransmissionNote;
use super::held::HeldWork;
use super::incoming::Stream;
use super::rare::{GivenUp, Upshot, handle_rare};
use super::state::{Drain, State};
use crate::authentication::AuthenticationFailure;
use crate::close_reason::CloseReason;
use crate::connection::{Assembled, Complaint, Stage};
use crate::core::application::Application;
use crate::handle::Notification;
use crate::message::Received;
use crate::message::{MessageBuffer, Use};
use crate::requester::{Ended, read_reply};
use crate::responder::{Desk, Served};
use crate::rpc::{CallError, ConnectionKey, Reply};

impl<P: Port> State<P> {
    /// A message that arrived.
    #[inline]
    pub(super) fn handle_message<A: Application>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        receive: Receive,
        bytes: u32,
    ) {
        let counter = &self.shared.counters.message_bytes_received;
        counter.add(bytes.into());
        self.handle_receive(application, queue_pair, receive, bytes);
    }

    /// Any other completion.
    pub(super) fn handle_completion<A: Application>(
        &mut self,
        application: &mut A,
        completion: Completion,
    ) {
        match completion.kind {
            // It failed; its Disconnected follows.
            CompletionKind::Receive { receive, .. } => self.post_receive(receive),
            CompletionKind::Disconnected => self.handle_disconnected(completion.queue_pair),
            CompletionKind::Read(work, gather) => {
                self.read_ended(completion.queue_pair, completion.status, work, gather);
            }
            CompletionKind::Invalidated(work, window) => {
                self.window_ended(application, completion.status, work, window);
            }
            // Probes are the only RDMA Writes that are signalled.
            CompletionKind::Write(_) => self.probe_ended(completion.queue_pair),
            // Sends are unsignalled.
            CompletionKind::Send(_) => self.shared.counters.completions_late.increment(),
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
        let whole_bytes = bytes as usize;
        let segment = self.port.received(&receive);
        let first = segment.get(..whole_bytes).unwrap_or(segment);
        // Nearly all messages have this form. To ask for it first costs less than to sort them.
        let quick = if connection.takes_calls() && first.len() == whole_bytes {
            connection.protocol.receive_whole(first)
        } else {
            None
        };
        let key = connection.key(index);
        let of_payload = |payload: &[u8], receive| Received {
            start: whole_bytes - payload.len(),
            end: whole_bytes,
            receive,
        };
        let whole = if let Some(whole) = quick {
            counters.message_bytes_received_version_2.add(bytes.into());
            whole
        } else {
            // A message that makes a connection one of version 1 comes here again when it is one.
            let begins_version_1 =
                connection.stage == Stage::Open && connection.protocol.begins_version_1(first);
            if connection.protocol.is_version_1() {
                counters.message_bytes_received_version_1.add(bytes.into());
            } else if !begins_version_1 {
                counters.message_bytes_received_version_2.add(bytes.into());
            }
            let bytes = whole_bytes;
            if !connection.takes_calls() {
                return self.receive_guarded(application, index, receive, bytes);
            }
            if begins_version_1 {
                return self.receive_first_of_version_1(application, queue_pair, receive, bytes);
            }
            let (gathered, port, in_receive) = (&mut self.gathered, &self.port, &receive);
            let received = connection.protocol.receive(first, bytes, move || {
                gathered.head(port, in_receive, bytes, counters)
            });
            match received {
                Sorted::Whole(whole) => whole,
                Sorted::Transmission(transmission) => {
                    let note = TransmissionNote::new(&transmission);
                    return self.receive_transmission(application, key, note, receive);
                }
                Sorted::ChunkedCall { xid, payload } => {
                    let received = of_payload(payload, receive);
                    return self.receive_chunked(application, key, xid, received);
                }
                Sorted::ChunkedReply { xid, payload } => {
                    let received = of_payload(payload, receive);
                    return self.receive_chunked_reply(application, key, xid, received);
                }
                Sorted::Other {
                    event,
                    message,
                    gives_group_up,
                } => {
                    let start = bytes - payload_bytes(&event);
                    let has_slot =
                        self.drain == Drain::No && self.incoming.may_begin(connection, index);
                    let kept = &mut self.assembled_header;
                    let messages = &mut self.messages.of(index);
                    let upshot = handle_rare(
                        connection, messages, counters, kept, has_slot, event, message,
                    );
                    if gives_group_up {
                        self.drop_group_in(key);
                    }
                    let received = Received {
                        receive,
                        start,
                        end: bytes,
                    };
                    return self.receive_rare(application, key, upshot, received);
                }
            }
        };
        let (xid, payload) = (whole.xid, whole.payload);
        match whole.direction {
            Direction::Reply => {
                match self.requester.end(xid, key, &mut connection.calls) {
                    Ended::Call(tag) => {
                        counters.replies_received.increment();
                        application.completed(tag, key, read_reply(payload), self.now);
                    }
                    Ended::TimedOut => counters.late_replies.increment(),
                    Ended::Bulk(bulk) => {
                        let received = of_payload(payload, receive);
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
                if self.drain != Drain::No
                    || !self.messages.has_room(index, Use::Answer)
                    || !connection.may_queue()
                {
                    let stream = Stream::Received(of_payload(payload, receive));
                    return self.hold(key, xid, HeldWork::Call(stream));
                }
                let desk = Desk {
                    connection: key,
                    is_reverse: connection.serves_reverse(),
                    is_version_1: connection.protocol.is_version_1(),
                    now: self.now,
                    scratch: self.transmit.scratch(),
                    threshold_bytes: connection.protocol.send_threshold_bytes() as usize,
                    messages: self.messages.of(key.index),
                    deferrals: &mut self.deferrals,
                    items: &mut self.reply,
                    counters,
                };
                let served = desk.serve(xid, payload, |request, reply| {
                    application.call(request, reply)
                });
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
        bytes: usize,
    ) {
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return self.post_receive(receive);
        };
        let key = connection.key(index);
        let counters = &self.shared.counters;
        let message = self.gathered.message(&self.port, &receive, bytes, counters);
        let event = connection.protocol.handle_message(message);
        let start = bytes - payload_bytes(&event);
        let upshot = match event {
            // What is named here may pass; whatever else there is, or comes to be, is of RPC.
            Event::Properties { .. }
            | Event::PropertiesFragment { .. }
            | Event::Credits
            | Event::TransportError { .. }
            | Event::VersionMismatch { .. }
            | Event::Discarded(_)
            | Event::Refused(_)
            | Event::Close(_) => {
                let messages = &mut self.messages.of(index);
                let kept = &mut self.assembled_header;
                // No RPC message is among these.
                let has_slot = false;
                handle_rare(
                    connection, messages, counters, kept, has_slot, event, message,
                )
            }
            _ => {
                counters.messages_unauthenticated.increment();
                let early = AuthenticationFailure::CalledEarly;
                Upshot::Close(CloseReason::Unauthenticated(early))
            }
        };
        let received = Received {
            receive,
            start,
            end: bytes,
        };
        self.receive_rare(application, key, upshot, received);
    }

    /// Acts on a message that is not a whole RPC message.
    #[cold]
    fn receive_rare<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        upshot: Upshot,
        received: Received,
    ) {
        if let Upshot::HoldPart(part) = upshot {
            return self.hold_part(key, part, received);
        }
        if let Upshot::Application(heading) = upshot {
            return self.receive_application_message(application, key, heading, received);
        }
        self.repost(key.index, received.receive);
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
            // These need their Receives, which this is too late for.
            Upshot::Done | Upshot::HoldPart(_) | Upshot::Application(_) => {}
            Upshot::Assembled {
                direction: Direction::Call,
                xid,
                message,
            } => {
                if self.assembled_header.is_empty() {
                    let stream = Stream::Message(message);
                    self.serve_or_hold(application, key, xid, stream);
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
        let ended = self.take_end(xid, key);
        if let Ended::Bulk(index) = ended {
            return self.end_bulk_assembled(index, message);
        }
        let result = if self.assembled_header.is_empty() {
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
        let ended = self.take_end(xid, key);
        self.end_call_as(application, key, ended, result);
    }

    fn end_call_as<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        ended: Ended,
        result: Result<Reply<'_>, CallError>,
    ) {
        if let Ended::Bulk(index) = ended {
            let error = result.err().unwrap_or(CallError::BadReply);
            return self.end_bulk_with_error(index, error);
        }
        self.tell_end(application, key, ended, result);
    }

    /// What a reply with this XID is the end of. The slot of a call without bulk data is free then.
    pub(super) fn take_end(&mut self, xid: u32, key: ConnectionKey) -> Ended {
        match self.connections.get_mut(key) {
            Some(connection) => self.requester.end(xid, key, &mut connection.calls),
            None => Ended::Unknown,
        }
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
            let ended = self.take_end(xid, key);
            if ended == Ended::Unknown {
                application.message_refused(key, xid, error);
            }
            self.end_call_as(application, key, ended, Err(CallError::Transport(error)));
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

/// The bytes at the end of a message that are a part of a continued one, or for the application.
fn payload_bytes(event: &Event<'_>) -> usize {
    match event {
        Event::Fragment { payload, .. } => payload.len(),
        Event::PropertiesFragment { bytes, .. } => bytes.len(),
        Event::ApplicationMessage { body, .. } => body.len(),
        _ => 0,
    }
}
