//! What has come and waits in its Receive, or with the buffer that it was put together in: calls whose replies could not
//! be kept, parts of continued messages that lack a message buffer, and calls that lack a slot. The Receives are not
//! posted, and so not granted, before: a peer that sends faster than it is served is held up by its own credits.

use std::collections::VecDeque;

use rpcrdma_fabric::interface::{Port, Receive};
use rpcrdma_protocol::v2::connection::{Direction, Refusal};

use super::application::Application;
use super::group::TransmissionNote;
use super::incoming::{Incoming, Stream};
use super::rare::{Part, keep_header, take_part};
use super::resources::Resources;
use super::state::State;
use crate::config::CoreConfig;
use crate::connection::Assembled;
use crate::limits::HEADER_BYTES_MAX;
use crate::message::Received;
use crate::rpc::ConnectionKey;

/// Entries looked at in one iteration.
const TRIED_MAX: usize = 16;

/// Something that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) connection: ConnectionKey,
    pub(super) xid: u32,
    pub(super) work: HeldWork,
}

/// What it is.
#[derive(Debug)]
pub(super) enum HeldWork {
    /// A call without chunks.
    Call(Stream),
    /// A call with chunks in its Receive.
    Chunked(Received),
    /// A part of a message.
    Part {
        received: Received,
        part: Part,
        /// Its place among the parts of its lane.
        number: u32,
    },
    /// A transmission of a peer's call.
    Transmission {
        received: Received,
        note: TransmissionNote,
        /// Its place among the parts of its lane.
        number: u32,
    },
}

/// What has come and waits.
#[derive(Debug)]
pub(super) struct Intake {
    held: VecDeque<Held>,
    /// How many of them are to be looked at still, from the first on.
    to_try: usize,
    /// What [`freed`] was when that was set last.
    freed: u64,
    /// The header of the last part of a message that was put together, when it has chunks.
    pub(super) assembled_header: Vec<u8>,
}

impl Intake {
    pub(super) fn new(config: &CoreConfig) -> Self {
        // One for each Receive and each message buffer.
        let held = config
            .receives()
            .saturating_add(config.message_buffers_total());
        Self {
            held: VecDeque::with_capacity(usize::try_from(held).unwrap_or(usize::MAX)),
            to_try: 0,
            freed: 0,
            assembled_header: Vec::with_capacity(HEADER_BYTES_MAX),
        }
    }

    /// Messages that wait.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// For the sums: the messages that wait.
    #[cfg(test)]
    pub(super) fn held_messages(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }

    #[cold]
    pub(super) fn hold<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        connection: ConnectionKey,
        xid: u32,
        work: HeldWork,
    ) {
        let counters = &core.shared.counters;
        let lacking = match &work {
            HeldWork::Chunked(_) | HeldWork::Transmission { .. } => &counters.awaiting_call_slot,
            HeldWork::Part { part, .. } if part.takes_slot() => &counters.awaiting_call_slot,
            HeldWork::Call(_) | HeldWork::Part { .. } => &counters.awaiting_message_buffer,
        };
        lacking.increment();
        self.held.push_back(Held {
            connection,
            xid,
            work,
        });
        // The message may have brought the credits that others wait for.
        core.note_if_pending(connection.index);
        core.wait_for(connection);
    }

    /// Whether no message can go on that waits: nothing that one can wait for has come free since all were looked at.
    pub(super) fn is_idle<P: Port>(&self, core: &Resources<P>, incoming: &Incoming) -> bool {
        self.held.is_empty() || (self.to_try == 0 && self.freed == freed(core, incoming))
    }

    /// Holds a part of a message behind those that wait already.
    #[cold]
    pub(super) fn hold_part<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        part: Part,
        received: Received,
    ) {
        let Some(connection) = core.connections.get_mut(key) else {
            return core.post_receive(received.receive);
        };
        let number = connection.lane_mut(part.what.lane()).parts.number();
        let work = HeldWork::Part {
            received,
            part,
            number,
        };
        self.hold(core, key, part.xid, work);
    }

    /// Gives up the message whose parts come now: what was put together, and what waits. Tells
    /// what it was.
    #[cold]
    pub(super) fn give_up_message<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
    ) -> Option<(Assembled, u32)> {
        let connection = core.connections.get_mut(key)?;
        let direction = connection.open_in.take()?;
        let lane = connection.lane_mut(direction);
        let current = lane.parts.message;
        let mut given_up = None;
        if lane.parts.assembling == current {
            given_up = lane.reassembly.reset(&mut core.messages);
        }
        if !lane.parts.any() {
            return given_up;
        }
        for _ in 0..self.held.len() {
            let held = self.held.pop_front()?;
            match held.work {
                HeldWork::Part { received, part, .. }
                    if held.connection == key
                        && part.what.lane() == direction
                        && part.message == current =>
                {
                    given_up = Some((part.what, part.xid));
                    core.repost(key.index, received.receive);
                    // They are the last ones that came.
                    if let Some(connection) = core.connections.get_mut(key) {
                        connection.lane_mut(direction).parts.forget_last();
                    }
                }
                _ => self.held.push_back(held),
            }
        }
        given_up
    }

    /// Gives up the transmissions that wait of the call group that came last, which has this number.
    pub(super) fn drop_held_group<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        number: u32,
    ) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            match held.work {
                HeldWork::Transmission { received, note, .. }
                    if held.connection == key && note.group == number =>
                {
                    core.repost(key.index, received.receive);
                    // They are the last ones that came.
                    if let Some(connection) = core.connections.get_mut(key) {
                        connection.calls_in.parts.forget_last();
                    }
                }
                _ => self.held.push_back(held),
            }
        }
    }

    /// Lets go of all that a closing connection holds: its Receives were reserved for it, and are
    /// posted again before another connection can have its place.
    pub(super) fn drop_held<P: Port>(&mut self, core: &mut Resources<P>, key: ConnectionKey) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            if held.connection == key {
                held.give_up(core);
            } else {
                self.held.push_back(held);
            }
        }
    }
}

/// Changes whenever something comes free that a held message can wait for: a message buffer, a slot, a place among the
/// replies of its connection, or credits.
fn freed<P: Port>(core: &Resources<P>, incoming: &Incoming) -> u64 {
    let buffers = core.messages.given().wrapping_add(core.backlog.popped());
    let slots = incoming.shares.given();
    buffers.wrapping_add(slots).wrapping_add(core.wakes)
}

impl Held {
    /// Gives back what it waits in, at the end of its connection.
    fn give_up<P: Port>(self, core: &mut Resources<P>) {
        match self.work {
            HeldWork::Call(Stream::Received(received))
            | HeldWork::Chunked(received)
            | HeldWork::Part { received, .. }
            | HeldWork::Transmission { received, .. } => core.post_receive(received.receive),
            HeldWork::Call(stream) => core.give_stream(self.connection, stream),
        }
    }
}

impl Incoming {
    /// Whether a part is the next of its lane, and has a buffer to go to; the last of a call
    /// with chunks a slot as well.
    fn may_take_part<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
        part: &Part,
        number: u32,
    ) -> bool {
        let Some(connection) = core.connections.get(key) else {
            return true;
        };
        let has_buffer = part.offset != 0 || core.messages.has_room(key.index, part.what.purpose());
        let has_slot = !part.takes_slot() || self.may_begin_incoming(core, key);
        number == connection.lane(part.what.lane()).parts.first && has_buffer && has_slot
    }
}

impl<P: Port> State<P> {
    /// Goes on with what was held and need not wait any more.
    #[inline]
    pub(super) fn retry_held<A: Application>(&mut self, application: &mut A) -> bool {
        !self.intake.held.is_empty() && self.try_held(application)
    }

    #[cold]
    fn try_held<A: Application>(&mut self, application: &mut A) -> bool {
        let freed = freed(&self.resources, &self.incoming);
        if self.intake.freed != freed {
            self.intake.freed = freed;
            self.intake.to_try = self.intake.held();
        }
        let mut busy = false;
        for _ in 0..TRIED_MAX.min(self.intake.to_try) {
            let Some(held) = self.intake.held.pop_front() else {
                break;
            };
            self.intake.to_try = self.intake.to_try.saturating_sub(1);
            match self.serve_held(application, held) {
                Some(held) => self.intake.held.push_back(held),
                None => {
                    busy = true;
                    // Those behind it in its lane come next.
                    self.intake.to_try = self.intake.held();
                }
            }
        }
        busy || self.intake.to_try != 0
    }

    /// Goes on with one; gives it back when it has to wait.
    fn serve_held<A: Application>(&mut self, application: &mut A, held: Held) -> Option<Held> {
        let Self {
            resources: core,
            incoming,
            ..
        } = self;
        let (key, xid) = (held.connection, held.xid);
        if core.connections.get(key).is_none_or(|it| !it.is_live()) {
            held.give_up(core);
            return None;
        }
        let must_wait = match &held.work {
            HeldWork::Part { part, number, .. } => {
                !incoming.may_take_part(core, key, part, *number)
            }
            HeldWork::Transmission { note, number, .. } => {
                !incoming.may_take_request(core, key, note, *number)
            }
            HeldWork::Call(_) => !incoming.may_serve(core, key),
            HeldWork::Chunked(_) => !incoming.may_begin_incoming(core, key),
        };
        if must_wait {
            return Some(held);
        }
        match held.work {
            HeldWork::Part { received, part, .. } => {
                self.take_held_part(application, key, part, received);
            }
            HeldWork::Transmission { received, note, .. } => {
                if let Some(connection) = core.connections.get_mut(key) {
                    connection.calls_in.parts.take_first();
                }
                incoming.take_request(core, key, note, received);
            }
            HeldWork::Call(stream) => incoming.serve_plain(core, application, key, xid, stream),
            HeldWork::Chunked(received) => incoming.begin_chunked(core, key, xid, received),
        }
        None
    }

    fn take_held_part<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        part: Part,
        received: Received,
    ) {
        let core = &mut self.resources;
        let Some(connection) = core.connections.get_mut(key) else {
            return core.post_receive(received.receive);
        };
        connection.lane_mut(part.what.lane()).parts.take_first();
        let counters = &core.shared.counters;
        let message = core
            .gathered
            .message(&core.port, &received.receive, received.end, counters);
        let bytes = message.get(received.start..).unwrap_or(&[]);
        keep_header(
            &mut self.intake.assembled_header,
            part,
            message,
            bytes.len(),
        );
        let messages = &mut core.messages.of(key.index);
        let upshot = take_part(connection, messages, counters, part, bytes);
        core.repost(key.index, received.receive);
        self.act(application, key, upshot);
    }

    /// Has the application answer a call without chunks, or holds it.
    pub(super) fn serve_or_hold<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        stream: Stream,
    ) {
        let core = &mut self.resources;
        if self.incoming.may_serve(core, key) {
            self.incoming
                .serve_plain(core, application, key, xid, stream);
        } else {
            self.intake.hold(core, key, xid, HeldWork::Call(stream));
        }
    }

    /// A call with chunks has come in one message; its payload is what `received` says.
    #[inline(never)]
    pub(super) fn receive_chunked<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        received: Received,
    ) {
        let Self {
            resources: core,
            incoming,
            ..
        } = self;
        if let Some(connection) = core.connections.get_mut(key) {
            connection.serves = true;
        }
        // It may have brought the credits that others wait for.
        core.note_if_pending(key.index);
        if !core.takes_chunks(key) {
            let Some(error) = core.refusal_of_chunks(&received) else {
                // A Reply chunk may be left unused (-00 section 6.3.3.1).
                return self.serve_or_hold(application, key, xid, Stream::Received(received));
            };
            core.repost(key.index, received.receive);
            return core.refuse(key, Refusal::new(xid, error));
        }
        if !incoming.may_begin_incoming(core, key) {
            return self
                .intake
                .hold(core, key, xid, HeldWork::Chunked(received));
        }
        incoming.begin_chunked(core, key, xid, received);
    }

    /// A transmission has come.
    pub(super) fn receive_transmission<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        mut note: TransmissionNote,
        receive: Receive,
    ) {
        let received = note.received(receive);
        let direction = note.id.direction;
        if let Some(connection) = self.resources.connections.get_mut(key) {
            note.group = connection.lane_mut(direction).number_group(note.is_first());
            connection.open_in = (!note.is_last()).then_some(direction);
        }
        match note.id.direction {
            Direction::Reply => {
                let core = &mut self.resources;
                self.outgoing
                    .receive_response(core, application, key, note, received);
            }
            Direction::Call => self.receive_request(key, note, received),
        }
        self.resources.note_if_pending(key.index);
    }

    /// The group that a peer was sending is given up: it broke off, or was wrong.
    #[cold]
    pub(super) fn drop_group_in(&mut self, key: ConnectionKey) {
        let core = &mut self.resources;
        let Some(connection) = core.connections.get_mut(key) else {
            return;
        };
        let Some(direction) = connection.open_in.take() else {
            return;
        };
        let lane = connection.lane_mut(direction);
        let number = lane.groups_come;
        let slot = lane.slot_of_group(number);
        match (direction, slot) {
            (Direction::Call, Some(slot)) => self.incoming.drop_incoming(core, slot),
            (Direction::Reply, Some(slot)) => self.outgoing.drop_response(core, slot),
            (_, None) => {}
        }
        if direction == Direction::Call {
            self.intake.drop_held_group(core, key, number);
        }
    }

    /// A transmission of a peer's call has come: it is taken, or held behind those before it.
    fn receive_request(&mut self, key: ConnectionKey, note: TransmissionNote, received: Received) {
        let core = &mut self.resources;
        let may_begin = self.incoming.may_begin_incoming(core, key);
        let Some(connection) = core.connections.get_mut(key) else {
            return core.post_receive(received.receive);
        };
        connection.serves = true;
        let parts = &mut connection.calls_in.parts;
        if parts.any() || (note.is_first() && !may_begin) {
            let number = parts.number();
            let work = HeldWork::Transmission {
                received,
                note,
                number,
            };
            return self.intake.hold(core, key, note.id.xid, work);
        }
        self.incoming.take_request(core, key, note, received);
    }
}
