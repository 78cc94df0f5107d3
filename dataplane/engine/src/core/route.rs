//! Handles messages that concern several parts of a core: held ones, calls with chunks, transmission groups.

use rpcrdma_fabric::interface::{Port, Receive};
use rpcrdma_protocol::v2::connection::Direction;

use super::application::Application;
use super::control_message::{Part, keep_header, take_part};
use super::group::TransmissionNote;
use super::incoming::Stream;
use super::state::State;
use super::waiting_receives::{Chunked, WaitingReceive, WaitingWork, freed};
use crate::message::Received;
use crate::rpc::ConnectionKey;

/// Held messages tried in one iteration.
const TRIED_MAX: usize = 16;

impl<P: Port> State<P> {
    /// Tries held messages again.
    #[inline]
    pub(super) fn retry_held<A: Application>(&mut self, application: &mut A) -> bool {
        !self.waiting_receives.held.is_empty() && self.try_held(application)
    }

    #[cold]
    fn try_held<A: Application>(&mut self, application: &mut A) -> bool {
        // Nothing that a held message can wait for has changed since all were tried: skip them.
        let freed = freed(&self.resources, &self.incoming);
        if self.waiting_receives.freed != freed {
            self.waiting_receives.freed = freed;
            self.waiting_receives.to_try = self.waiting_receives.held();
        }
        let mut busy = false;
        for _ in 0..TRIED_MAX.min(self.waiting_receives.to_try) {
            let Some(held) = self.waiting_receives.held.pop_front() else {
                break;
            };
            self.waiting_receives.to_try = self.waiting_receives.to_try.saturating_sub(1);
            match self.serve_held(application, held) {
                Some(held) => self.waiting_receives.held.push_back(held),
                None => {
                    busy = true;
                    // Later parts of its lane may continue now: try all again.
                    self.waiting_receives.to_try = self.waiting_receives.held();
                }
            }
        }
        busy || self.waiting_receives.to_try != 0
    }

    /// Handles a held message; returns it if it has to wait longer.
    fn serve_held<A: Application>(
        &mut self,
        application: &mut A,
        held: WaitingReceive,
    ) -> Option<WaitingReceive> {
        let (core, incoming) = (&mut self.resources, &mut self.incoming);
        let (key, xid) = (held.connection, held.xid);
        if core.connections.get(key).is_none_or(|it| !it.is_live()) {
            held.give_up(core);
            return None;
        }
        let must_wait = match &held.work {
            WaitingWork::Part { part, number, .. } => {
                !incoming.may_take_part(core, key, part, *number)
            }
            WaitingWork::Transmission { note, number, .. } => {
                !incoming.may_take_request(core, key, note, *number)
            }
            WaitingWork::Call(_) => !incoming.may_serve(core, key),
            WaitingWork::Chunked(_) => !incoming.may_begin_incoming(core, key),
        };
        if must_wait {
            return Some(held);
        }
        match held.work {
            WaitingWork::Part { received, part, .. } => {
                self.take_held_part(application, key, part, received);
            }
            WaitingWork::Transmission { received, note, .. } => {
                if let Some(connection) = core.connections.get_mut(key) {
                    connection.calls_in.parts.take_first();
                }
                incoming.take_request(core, application, key, &note, received);
            }
            WaitingWork::Call(stream) => incoming.serve_plain(core, application, key, xid, stream),
            WaitingWork::Chunked(chunked) => {
                incoming.begin_chunked(core, application, key, xid, chunked);
            }
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
            &mut self.waiting_receives.assembled_header,
            part,
            message,
            bytes.len(),
        );
        let messages = &mut core.messages.of(key.index);
        let action = take_part(connection, messages, counters, part, bytes);
        core.repost(key.index, received.receive);
        self.apply(application, key, action);
    }

    /// Lets the application answer a call without chunks, or holds it.
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
            self.waiting_receives
                .hold(core, key, xid, WaitingWork::Call(stream));
        }
    }

    /// Takes a call with chunks that came in one message.
    #[inline(never)]
    pub(super) fn receive_chunked<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        chunked: Chunked,
    ) {
        let (core, incoming) = (&mut self.resources, &mut self.incoming);
        if let Some(connection) = core.connections.get_mut(key) {
            connection.serves = true;
        }
        // The message may have brought credits that other messages wait for.
        core.note_if_pending(key.index);
        if !core.takes_chunks(key) {
            let received = chunked.received;
            let Some(error) = core.refusal_of_chunks(&received) else {
                // A Reply chunk may be left unused (-00 section 6.3.3.1).
                return self.serve_or_hold(application, key, xid, Stream::Received(received));
            };
            core.repost(key.index, received.receive);
            return core.refuse(key, xid, error);
        }
        if !incoming.may_begin_incoming(core, key) {
            return self
                .waiting_receives
                .hold(core, key, xid, WaitingWork::Chunked(chunked));
        }
        incoming.begin_chunked(core, application, key, xid, chunked);
    }

    /// Takes a transmission of either direction.
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
                    .receive_response(core, application, key, &note, received);
            }
            Direction::Call => self.receive_request(application, key, &note, received),
        }
        self.resources.note_if_pending(key.index);
    }

    /// Gives up the group that a peer was sending, because it broke off or was wrong.
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
            self.waiting_receives.drop_held_group(core, key, number);
        }
    }

    /// Takes a transmission of a peer's call, or holds it behind earlier ones.
    fn receive_request<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: Received,
    ) {
        let core = &mut self.resources;
        let may_begin = self.incoming.may_begin_incoming(core, key);
        let Some(connection) = core.connections.get_mut(key) else {
            return core.post_receive(received.receive);
        };
        connection.serves = true;
        let parts = &mut connection.calls_in.parts;
        if parts.any() || (note.is_first() && !may_begin) {
            let number = parts.number();
            let work = WaitingWork::Transmission {
                received,
                note: *note,
                number,
            };
            return self.waiting_receives.hold(core, key, note.id.xid, work);
        }
        self.incoming
            .take_request(core, application, key, note, received);
    }
}
