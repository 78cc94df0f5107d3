//! Routes completions, and messages that arrived, to the part of the core that handles them.

use rpcrdma_fabric::interface::{Arrival, Completion, CompletionKind, Port, QueuePairId, Receive};
use rpcrdma_protocol::connection::Received as Sorted;
use rpcrdma_protocol::form::{self, Folded, Form, fold};
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, Event, WholeMessage};
use rpcrdma_protocol::v2::rtr::{ReportError, TransmissionId};

use super::application::Application;
use super::control_message::{Action, GivenUp, classify_control};
use super::group::TransmissionNote;
use super::incoming::Stream;
use super::resources::Drain;
use super::state::State;
use super::waiting_receives::{Chunked, WaitingWork};
use crate::authentication::AuthenticationFailure;
use crate::close_reason::CloseReason;
use crate::connection::{Assembled, Complaint, Stage};
use crate::counters::Counters;
use crate::forms;
use crate::handle::CoreEvent;
use crate::message::{Received, Use};
use crate::requester::{Ended, read_reply};
use crate::responder::ServeContext;
use crate::rpc::{CallError, ConnectionKey, Reply};

/// A message that arrived: in its Receive, or still in the memory of the port.
pub(super) trait Message<P: Port> {
    /// The form by which it came.
    fn form(&self) -> Option<Form>;
    /// It, if it is of a form. `form` is the one by which it came; `bytes` are those of the whole message.
    fn folded<'a>(&self, port: &'a P, form: Option<Form>, bytes: usize) -> Option<Folded<'a>>;
    /// Whether it may have a form, by its type alone.
    fn may_have_form(&self, port: &P) -> bool;
    /// Its Receive. `None` if the port has dropped it, which happens only after the next message was taken.
    fn into_receive(self, port: &mut P) -> Option<Receive>;
    /// Ends its handling: its Receive is posted.
    fn put_back(self, port: &mut P, counters: &Counters);
}

impl<P: Port> Message<P> for Receive {
    #[inline(always)]
    fn form(&self) -> Option<Form> {
        None
    }

    #[inline(always)]
    fn folded<'a>(&self, port: &'a P, _: Option<Form>, bytes: usize) -> Option<Folded<'a>> {
        fold(port.received(self).get(..bytes)?)
    }

    #[inline(always)]
    fn may_have_form(&self, port: &P) -> bool {
        form::may_have_form(port.received(self))
    }

    #[inline]
    fn into_receive(self, _: &mut P) -> Option<Receive> {
        Some(self)
    }

    #[inline]
    fn put_back(self, port: &mut P, counters: &Counters) {
        counters.receives_posted.increment();
        port.post_receive(self);
    }
}

impl<P: Port> Message<P> for Arrival {
    #[inline(always)]
    fn form(&self) -> Option<Form> {
        Form::of_number(self.formed()?.form)
    }

    #[inline(always)]
    fn folded<'a>(&self, port: &'a P, form: Option<Form>, _: usize) -> Option<Folded<'a>> {
        let bytes = port.arrived(self);
        match form.zip(self.formed()) {
            Some((form, formed)) => forms::of_arrival(form, formed, bytes),
            None => fold(bytes),
        }
    }

    #[inline(always)]
    fn may_have_form(&self, port: &P) -> bool {
        self.formed().is_some() || form::may_have_form(port.arrived(self))
    }

    #[inline]
    fn into_receive(self, port: &mut P) -> Option<Receive> {
        let kept = port.keep(self);
        debug_assert!(kept.is_some(), "it is the last arrival");
        kept
    }

    /// Only counts: its Receive was never taken off the queue.
    #[inline]
    fn put_back(self, _: &mut P, counters: &Counters) {
        counters.receives_posted.increment();
    }
}

/// A whole RPC message, and its place in the transport message.
#[derive(Clone, Copy)]
struct WholeAt {
    direction: Direction,
    xid: u32,
    start: usize,
    end: usize,
}

impl WholeAt {
    #[inline]
    fn new(whole: &WholeMessage<'_>, end: usize) -> Self {
        Self {
            direction: whole.direction,
            xid: whole.xid,
            start: end - whole.payload.len(),
            end,
        }
    }

    fn of(folded: &Folded<'_>, bytes: u32) -> Self {
        Self {
            direction: folded.form.direction(),
            xid: form::xid_and_credit(&folded.pairs).0,
            start: folded.form.transport_bytes(),
            end: bytes as usize,
        }
    }

    fn received(self, receive: Receive) -> Received {
        Received {
            receive,
            start: self.start,
            end: self.end,
        }
    }
}

/// Counts a message that arrived.
#[inline]
fn count_received(is_version_1: bool, bytes: u32, counters: &Counters) {
    counters.message_bytes_received.add(bytes.into());
    let of_version = if is_version_1 {
        &counters.message_bytes_received_version_1
    } else {
        &counters.message_bytes_received_version_2
    };
    of_version.add(bytes.into());
}

impl<P: Port> State<P> {
    /// Handles any completion other than an arrived message.
    pub(super) fn handle_completion<A: Application>(
        &mut self,
        application: &mut A,
        completion: Completion,
    ) {
        let Completion {
            queue_pair, status, ..
        } = completion;
        let core = &mut self.resources;
        match completion.kind {
            // It failed or was flushed; the Disconnected of its queue pair follows.
            CompletionKind::Receive { receive, .. } => core.post_receive(receive),
            CompletionKind::Disconnected => core.handle_disconnected(queue_pair),
            CompletionKind::Read(work, gather) => {
                self.incoming
                    .read_ended(core, queue_pair, status, work, gather);
            }
            CompletionKind::Invalidated(work, window) => {
                self.outgoing
                    .window_ended(core, application, status, work, window);
            }
            // Probes are the only RDMA Writes that are signalled.
            CompletionKind::Write(_) => core.probe_ended(queue_pair),
            // Sends are unsignalled, so this one failed.
            CompletionKind::Send(_) => core.shared.counters.completions_late.increment(),
        }
    }

    /// Handles a message that arrived.
    #[inline]
    pub(super) fn handle_message<A: Application>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        bytes: u32,
        message: impl Message<P>,
    ) {
        // Nearly all messages have a form. Testing for it first costs less than sorting them. Those that come by one are
        // handled by code that knows which.
        let rest = match message.form() {
            form @ Some(Form::Call2) => {
                self.handle_form(application, queue_pair, bytes, message, form)
            }
            form @ Some(Form::Reply2) => {
                self.handle_form(application, queue_pair, bytes, message, form)
            }
            form if message.may_have_form(&self.resources.port) => {
                self.handle_any_form(application, queue_pair, bytes, message, form)
            }
            _ => Some(message),
        };
        let Some(message) = rest else {
            return;
        };
        let core = &mut self.resources;
        if let Some(receive) = message.into_receive(&mut core.port) {
            self.handle_any_message(application, queue_pair, bytes, receive);
        }
    }

    #[inline(never)]
    fn handle_any_form<A: Application, M: Message<P>>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        bytes: u32,
        message: M,
        form: Option<Form>,
    ) -> Option<M> {
        self.handle_form(application, queue_pair, bytes, message, form)
    }

    /// Handles a message of a form: an RPC message without chunks. `form` is the one by which it came. Returns a message without
    /// a form, or one that may not come now; nothing of it was noted.
    #[inline(always)]
    fn handle_form<A: Application, M: Message<P>>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        bytes: u32,
        message: M,
        form: Option<Form>,
    ) -> Option<M> {
        let Self {
            resources: core,
            waiting_receives,
            incoming,
            outgoing,
            ..
        } = self;
        let Some((index, connection)) = core.connections.of_queue_pair(queue_pair) else {
            return Some(message);
        };
        let Some(folded) = message.folded(&core.port, form, bytes as usize) else {
            return Some(message);
        };
        let (xid, credit) = form::xid_and_credit(&folded.pairs);
        // The first message of version 1 makes its connection ready, as any message.
        let may_come = match folded.form.is_version_1() {
            true => connection.stage == Stage::Ready,
            false => connection.takes_calls(),
        };
        if !may_come || !connection.protocol.receive_form(folded.form, credit) {
            return Some(message);
        }
        let (key, counters) = (connection.key(index), &core.shared.counters);
        count_received(folded.form.is_version_1(), bytes, counters);
        match folded.form.direction() {
            Direction::Reply => {
                match outgoing.requester.end(xid, key, &mut connection.calls) {
                    Ended::Call(tag) => {
                        counters.replies_received.increment();
                        let reply = Reply {
                            results: folded.payload,
                            verifier: OpaqueAuth::NONE,
                        };
                        application.completed(tag, key, Ok(reply), core.now);
                    }
                    Ended::TimedOut => counters.late_replies.increment(),
                    Ended::Bulk(bulk) => {
                        let whole = WholeAt::of(&folded, bytes);
                        connection.protocol.handle_form_kept();
                        if let Some(receive) = message.into_receive(&mut core.port) {
                            let received = whole.received(receive);
                            outgoing.receive_bulk_reply(
                                core,
                                application,
                                key,
                                bulk,
                                received,
                                None,
                            );
                        }
                        return None;
                    }
                    Ended::Unknown => counters.unmatched_replies.increment(),
                }
                message.put_back(&mut core.port, counters);
                if connection.has_news() {
                    core.note_if_pending(index);
                }
            }
            Direction::Call => {
                connection.serves = true;
                if core.drain != Drain::No
                    || !core.messages.has_room(index, Use::Answer)
                    || !connection.may_queue()
                {
                    let whole = WholeAt::of(&folded, bytes);
                    connection.protocol.handle_form_kept();
                    if let Some(receive) = message.into_receive(&mut core.port) {
                        let stream = Stream::Received(whole.received(receive));
                        waiting_receives.hold(core, key, xid, WaitingWork::Call(stream));
                    }
                    return None;
                }
                let serving = ServeContext {
                    key,
                    connection: Some(connection),
                    programs: &core.programs,
                    has_items: false,
                    now: core.now,
                    is_version_1: folded.form.is_version_1(),
                    scratch: core.transmit.scratch(),
                    lists_bytes: 0,
                    messages: core.messages.of(index),
                    deferrals: &mut incoming.deferrals,
                    items: &mut core.reply,
                    counters,
                };
                let of_call = (folded.credential, folded.payload);
                let served = serving.serve_form(
                    &folded.pairs,
                    of_call,
                    &mut core.last_route,
                    |request, reply| application.call(request, reply),
                );
                // The Receive counts as posted since the message came, so that the reply grants it. It is posted below: on a
                // device before the reply, because a poll flushes Receives before Sends; on `shm` a message
                // without a Receive waits in its ring.
                let (transmit, port) = (&mut core.transmit, &mut core.port);
                let is_sent = served.as_ref().is_ok_and(|results_bytes| {
                    transmit.send_success(port, connection, xid, *results_bytes, counters)
                });
                // The call may have brought the credits that others wait for.
                let has_news = connection.has_news();
                message.put_back(port, counters);
                if !is_sent {
                    incoming.answer_unsent(core, index, xid, served);
                }
                if has_news {
                    core.note_if_pending(index);
                }
            }
        }
        None
    }

    /// Handles a message of any form.
    #[inline(never)]
    fn handle_any_message<A: Application>(
        &mut self,
        application: &mut A,
        queue_pair: QueuePairId,
        bytes: u32,
        receive: Receive,
    ) {
        let Self {
            resources: core,
            waiting_receives,
            incoming,
            outgoing,
            ..
        } = self;
        let counters = &core.shared.counters;
        let Some((index, connection)) = core.connections.of_queue_pair(queue_pair) else {
            counters.message_bytes_received.add(bytes.into());
            counters.completions_late.increment();
            return core.post_receive(receive);
        };
        let key = connection.key(index);
        let (port, gathered, end) = (&core.port, &mut core.gathered, bytes as usize);
        let segment = port.received(&receive);
        let first = segment.get(..end).unwrap_or(segment);
        let of_payload = |payload: &[u8], receive| Received {
            start: end - payload.len(),
            end,
            receive,
        };
        if connection.stage == Stage::Open && connection.protocol.begins_version_1(first) {
            return self.receive_first_of_version_1(application, key, receive, bytes);
        }
        count_received(connection.protocol.is_version_1(), bytes, counters);
        if !connection.takes_calls() {
            return self.receive_guarded(application, index, receive, end);
        }
        let received = connection
            .protocol
            .receive(first, end, || gathered.head(port, &receive, end, counters));
        match received {
            Sorted::Whole(whole) => {
                let whole = WholeAt::new(&whole, end);
                self.handle_whole(application, index, whole, receive);
            }
            Sorted::Transmission(heading) => {
                let note = TransmissionNote::new(&heading);
                self.receive_transmission(application, key, note, receive);
            }
            Sorted::ChunkedCall {
                xid,
                payload,
                chunks_at,
            } => {
                let chunked = Chunked {
                    received: of_payload(payload, receive),
                    chunks_at,
                };
                self.receive_chunked(application, key, xid, chunked);
            }
            Sorted::ChunkedReply {
                xid,
                payload,
                chunks_at,
            } => {
                let chunked = Chunked {
                    received: of_payload(payload, receive),
                    chunks_at,
                };
                outgoing.receive_chunked_reply(core, application, key, xid, chunked);
            }
            Sorted::Other {
                event,
                message,
                gives_group_up,
            } => {
                let start = end - payload_bytes(&event);
                let has_slot = core.drain == Drain::No && incoming.may_begin(connection, index);
                let kept = &mut waiting_receives.assembled_header;
                let messages = &mut core.messages.of(index);
                let action = classify_control(
                    connection, messages, counters, kept, has_slot, event, message,
                );
                if gives_group_up {
                    self.drop_group_in(key);
                }
                let received = Received {
                    receive,
                    start,
                    end,
                };
                self.receive_control(application, key, action, received);
            }
        }
    }

    /// Handles a whole RPC message without chunks that was not taken by its form.
    fn handle_whole<A: Application>(
        &mut self,
        application: &mut A,
        index: u32,
        whole: WholeAt,
        receive: Receive,
    ) {
        let Self {
            resources: core,
            waiting_receives,
            incoming,
            outgoing,
            ..
        } = self;
        let Some(connection) = core.connections.at(index) else {
            return core.post_receive(receive);
        };
        let counters = &core.shared.counters;
        let (key, xid) = (connection.key(index), whole.xid);
        let stream = Stream::Received(whole.received(receive));
        match whole.direction {
            Direction::Reply => {
                match outgoing.requester.end(xid, key, &mut connection.calls) {
                    Ended::Call(tag) => {
                        counters.replies_received.increment();
                        let message = stream.sorted_bytes(&core.gathered, &core.port);
                        application.completed(tag, key, read_reply(message), core.now);
                    }
                    Ended::TimedOut => counters.late_replies.increment(),
                    Ended::Bulk(bulk) => {
                        if let Stream::Received(received) = stream {
                            outgoing.receive_bulk_reply(
                                core,
                                application,
                                key,
                                bulk,
                                received,
                                None,
                            );
                        }
                        return;
                    }
                    Ended::Unknown => counters.unmatched_replies.increment(),
                }
                core.give_stream(key, stream);
            }
            Direction::Call => {
                connection.serves = true;
                if incoming.may_serve(core, key) {
                    incoming.serve_sorted(core, application, key, xid, stream);
                } else {
                    waiting_receives.hold(core, key, xid, WaitingWork::Call(stream));
                }
            }
        }
    }

    /// The first message of a client is one of version 1, which exchanges no properties: the connection is ready.
    #[cold]
    fn receive_first_of_version_1<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        receive: Receive,
        bytes: u32,
    ) {
        let core = &mut self.resources;
        let Some(connection) = core.connections.get_mut(key) else {
            return core.post_receive(receive);
        };
        let queue_pair = connection.queue_pair;
        connection.protocol.begin_version_1();
        core.make_ready(application, key, None);
        self.handle_any_message(application, queue_pair, bytes, receive);
    }

    /// Handles a message of a connection that accepts no calls: one that is closing, or whose peer has to authenticate
    /// itself first. No RPC message of such a peer reaches the application, neither in parts nor whole.
    #[cold]
    fn receive_guarded<A: Application>(
        &mut self,
        application: &mut A,
        index: u32,
        receive: Receive,
        bytes: usize,
    ) {
        let core = &mut self.resources;
        let Some(connection) = core.connections.at(index).filter(|it| it.is_live()) else {
            return core.post_receive(receive);
        };
        let key = connection.key(index);
        let counters = &core.shared.counters;
        let message = core.gathered.message(&core.port, &receive, bytes, counters);
        let event = connection.protocol.handle_message(message);
        let start = bytes - payload_bytes(&event);
        let action = match event {
            // A list of what may pass. Everything else belongs to RPC, also what is added later.
            Event::Properties { .. }
            | Event::PropertiesFragment { .. }
            | Event::Credits
            | Event::TransportError { .. }
            | Event::VersionMismatch { .. }
            | Event::Discarded(_)
            | Event::Refused(_)
            | Event::Close(_) => {
                let messages = &mut core.messages.of(index);
                let kept = &mut self.waiting_receives.assembled_header;
                // No RPC message is among these.
                let has_slot = false;
                classify_control(
                    connection, messages, counters, kept, has_slot, event, message,
                )
            }
            _ => {
                counters.messages_unauthenticated.increment();
                let early = AuthenticationFailure::CalledEarly;
                Action::Close(CloseReason::Unauthenticated(early))
            }
        };
        let received = Received {
            receive,
            start,
            end: bytes,
        };
        self.receive_control(application, key, action, received);
    }

    /// Handles a message that is not a whole RPC message.
    #[cold]
    fn receive_control<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        action: Action,
        received: Received,
    ) {
        if let Action::HoldPart(part) = action {
            return self
                .waiting_receives
                .hold_part(&mut self.resources, key, part, received);
        }
        if let Action::Application(heading) = action {
            let core = &mut self.resources;
            return core.receive_application_message(application, key, heading, received);
        }
        self.resources.repost(key.index, received.receive);
        self.apply(application, key, action);
    }

    #[cold]
    pub(super) fn apply<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        action: Action,
    ) {
        let Self {
            resources: core,
            waiting_receives,
            incoming,
            outgoing,
            ..
        } = self;
        let header = &waiting_receives.assembled_header;
        match action {
            // These need their Receive, which is posted again by now: the caller has handled them.
            Action::Done | Action::HoldPart(_) | Action::Application(_) => {}
            Action::Assembled {
                direction: Direction::Call,
                xid,
                message,
            } => {
                if header.is_empty() {
                    self.serve_or_hold(application, key, xid, Stream::Message(message));
                } else {
                    incoming.begin_assembled(core, application, key, xid, message, header);
                }
            }
            Action::Assembled {
                direction: Direction::Reply,
                xid,
                message,
            } => outgoing.end_assembled(core, application, key, xid, message, header),
            Action::Properties(bytes) => {
                core.shared.counters.awaiting_control.increment();
                core.shared.notify(CoreEvent::Properties {
                    connection: key,
                    bytes,
                });
            }
            Action::EndCall { xid, error } => {
                outgoing.end_call(core, application, key, xid, error);
            }
            Action::PeerError { xid, error } => {
                self.handle_peer_error(application, key, xid, error);
            }
            Action::Refuse(refusal) => core.complain(key, Complaint::Error(refusal)),
            Action::Report(report) => core.complain(key, Complaint::Report(report)),
            Action::PeerReport(report) => self.handle_peer_report(key, &report),
            Action::GiveUp(why) => self.give_up(application, key, why),
            Action::FellBack => core.make_ready(application, key, None),
            Action::VersionMismatch { low, high } => {
                core.shared.notify(CoreEvent::VersionMismatch {
                    connection: key,
                    low,
                    high,
                });
                core.begin_close(key.index, CloseReason::VersionMismatch { low, high });
            }
            Action::Close(reason) => {
                core.shared.counters.protocol_violations.increment();
                core.begin_close(key.index, reason);
            }
        }
        self.resources.note_if_pending(key.index);
    }

    fn give_up<A: Application>(&mut self, application: &mut A, key: ConnectionKey, why: GivenUp) {
        let (core, outgoing) = (&mut self.resources, &mut self.outgoing);
        let given_up = self.waiting_receives.give_up_message(core, key);
        match why {
            GivenUp::Broken => {
                if let Some((Assembled::Message(Direction::Reply), xid)) = given_up {
                    outgoing.end_call(core, application, key, xid, CallError::BadReply);
                }
            }
            GivenUp::Refused(refusal) => core.complain(key, Complaint::Error(refusal)),
            GivenUp::Reply { xid, error } => {
                outgoing.end_call(core, application, key, xid, error);
            }
        }
    }

    fn handle_peer_error<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        error: TransportError,
    ) {
        let (core, outgoing) = (&mut self.resources, &mut self.outgoing);
        core.shared.counters.errors_received.increment();
        let connection = core.connections.get(key);
        if connection.is_none_or(|it| it.stage != Stage::Ready) {
            // No call of ours was sent yet: our properties were refused.
            return core.begin_close(key.index, CloseReason::PropertiesRefused(error));
        }
        if is_mended_by_another_form(error) && outgoing.make_call_plain(key, xid, error) {
            return;
        }
        let ended = outgoing.end_call(core, application, key, xid, CallError::Transport(error));
        if ended == Ended::Unknown {
            application.message_refused(key, xid, error);
        }
    }

    /// The peer reported an error in a transmission of ours.
    #[cold]
    fn handle_peer_report(&mut self, key: ConnectionKey, report: &ReportError) {
        let bad = report.bad;
        // Usually `lead` is another transmission of the same group, which is handled once.
        let other = |lead: &TransmissionId| (lead.xid, lead.direction) != (bad.xid, bad.direction);
        let lead = report.lead.filter(other);
        for TransmissionId { xid, direction, .. } in lead.into_iter().chain([bad]) {
            match direction {
                Direction::Call => {
                    let error = TransportError::BadXdr;
                    self.outgoing.make_call_plain(key, xid, error);
                }
                Direction::Reply if self.incoming.kept.ask_for(key, xid) => {}
                // The reply is not kept any more and cannot be sent again: the error ends its call.
                Direction::Reply => self.resources.refuse(key, xid, TransportError::System),
            }
        }
    }
}

/// Whether a call that was refused with this error may be made again in another form (-00 section 6.4.3): with more
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

/// The number of bytes at the end of a message that are a part of a continued message, or for the application.
fn payload_bytes(event: &Event<'_>) -> usize {
    match event {
        Event::Fragment { payload, .. } => payload.len(),
        Event::PropertiesFragment { bytes, .. } => bytes.len(),
        Event::ApplicationMessage { body, .. } => body.len(),
        _ => 0,
    }
}
