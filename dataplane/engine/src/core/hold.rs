//! What waits for a message buffer: calls whose replies could not be kept, and parts of continued
//! messages; what waits for a slot among the calls with bulk data; and what waits for spare placement segments. They wait in their Receives, which are not posted, and so not granted, before: a peer
//! that sends faster than it is served is held up by its own credits.

use rpcrdma_fabric::interface::Port;

use super::held::{Held, HeldWork};
use super::incoming::Stream;
use super::rare::{Part, keep_header, take_part};
use super::state::State;
use crate::connection::Assembled;
use crate::core::application::Application;
use crate::message::{Received, Use};
use crate::responder::Desk;
use crate::rpc::ConnectionKey;

/// Entries looked at in one iteration.
const TRIED_MAX: usize = 16;

impl<P: Port> State<P> {
    #[cold]
    pub(super) fn hold(&mut self, connection: ConnectionKey, xid: u32, work: HeldWork) {
        self.hold_for_segments(connection, xid, work, 0);
    }

    /// As [`State::hold`], until there are also `segments` spare placement segments.
    #[cold]
    pub(super) fn hold_for_segments(
        &mut self,
        connection: ConnectionKey,
        xid: u32,
        work: HeldWork,
        segments: usize,
    ) {
        let counters = &self.shared.counters;
        if segments > self.placement.spares() {
            counters.awaiting_placement_segment.increment();
        } else {
            counters.awaiting_message_buffer.increment();
        }
        self.held.push_back(Held {
            connection,
            xid,
            segments,
            work,
        });
        // The message may have brought the credits that others wait for.
        self.note_if_pending(connection.index);
    }

    /// Holds a part of a message behind those that wait already.
    #[cold]
    pub(super) fn hold_part(&mut self, key: ConnectionKey, part: Part, received: Received) {
        let Some(connection) = self.connections.get_mut(key) else {
            return self.post_receive(received.receive);
        };
        let number = connection.lane_mut(part.what.lane()).parts.number();
        let work = HeldWork::Part {
            received,
            part,
            number,
        };
        self.hold(key, part.xid, work);
    }

    /// Whether one more call of a connection is served: its reply can be kept, should it not go out.
    fn may_serve(&self, key: ConnectionKey) -> bool {
        !self.is_draining()
            && self.messages.has_room(key.index, Use::Answer)
            && self
                .connections
                .get(key)
                .is_none_or(|connection| connection.may_queue())
    }

    /// Goes on with what was held and need not wait any more.
    #[inline]
    pub(super) fn retry_held<A: Application>(&mut self, application: &mut A) -> bool {
        if self.held.is_empty() {
            return false;
        }
        self.try_held(application)
    }

    #[cold]
    fn try_held<A: Application>(&mut self, application: &mut A) -> bool {
        let mut busy = false;
        for _ in 0..TRIED_MAX.min(self.held.len()) {
            let Some(held) = self.held.pop_front() else {
                break;
            };
            match self.serve_held(application, held) {
                Some(held) => self.held.push_back(held),
                None => busy = true,
            }
        }
        busy
    }

    /// Goes on with one; gives it back when it has to wait.
    fn serve_held<A: Application>(&mut self, application: &mut A, held: Held) -> Option<Held> {
        let (key, xid) = (held.connection, held.xid);
        if held.segments > self.placement.spares() {
            return Some(held);
        }
        match held.work {
            HeldWork::Part {
                ref part, number, ..
            } => {
                if !self.may_take_part(key, part, number) {
                    return Some(held);
                }
                if let HeldWork::Part { received, part, .. } = held.work {
                    self.take_held_part(application, key, part, received);
                }
            }
            HeldWork::Transmission {
                ref note, number, ..
            } => {
                if !self.may_take_request(key, note, number) {
                    return Some(held);
                }
                if let HeldWork::Transmission { received, note, .. } = held.work {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.calls_in.parts.take_first();
                    }
                    self.take_request(key, note, received);
                }
            }
            HeldWork::Call(_) if !self.may_serve(key) => return Some(held),
            HeldWork::Chunked(_) if !self.may_begin_incoming(key) => return Some(held),
            HeldWork::Chunked(received) => self.begin_chunked(key, xid, received),
            HeldWork::Call(stream) => self.serve_plain(application, key, xid, stream),
        }
        None
    }

    /// Has the application answer a call without chunks, or holds it.
    pub(super) fn serve_or_hold<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        stream: Stream,
    ) {
        if self.may_serve(key) {
            self.serve_plain(application, key, xid, stream);
        } else {
            self.hold(key, xid, HeldWork::Call(stream));
        }
    }

    fn serve_plain<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        stream: Stream,
    ) {
        let Some(connection) = self.connections.get(key) else {
            return self.give_stream(key, stream);
        };
        let counters = &self.shared.counters;
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
        let message = stream.bytes(&mut self.gathered, &self.port, counters);
        let served = desk.serve(xid, message, |request, reply| {
            application.call(request, reply)
        });
        self.give_stream(key, stream);
        self.answer(key.index, xid, served);
    }

    /// Whether a part is the next of its lane, and has a buffer to go to; the last of a call
    /// with chunks a slot as well.
    fn may_take_part(&self, key: ConnectionKey, part: &Part, number: u32) -> bool {
        let Some(connection) = self.connections.get(key) else {
            return true;
        };
        let has_buffer = part.offset != 0 || self.messages.has_room(key.index, part.what.purpose());
        let has_slot = !part.takes_slot() || self.may_begin_incoming(key);
        number == connection.lane(part.what.lane()).parts.first && has_buffer && has_slot
    }

    fn take_held_part<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        part: Part,
        received: Received,
    ) {
        let Some(connection) = self.connections.get_mut(key) else {
            return self.post_receive(received.receive);
        };
        connection.lane_mut(part.what.lane()).parts.take_first();
        let counters = &self.shared.counters;
        let message = self
            .gathered
            .message(&self.port, &received.receive, received.end, counters);
        let bytes = message.get(received.start..).unwrap_or(&[]);
        keep_header(&mut self.assembled_header, part, message, bytes.len());
        let upshot = take_part(
            connection,
            &mut self.messages.of(key.index),
            counters,
            part,
            bytes,
        );
        self.repost(key.index, received.receive);
        self.act(application, key, upshot);
    }

    /// Gives up the message whose parts come now: what was put together, and what waits. Tells
    /// what it was.
    #[cold]
    pub(super) fn give_up_message(&mut self, key: ConnectionKey) -> Option<(Assembled, u32)> {
        let connection = self.connections.get_mut(key)?;
        let direction = connection.open_in.take()?;
        let lane = connection.lane_mut(direction);
        let current = lane.parts.message;
        let mut given_up = None;
        if lane.parts.assembling == current {
            given_up = lane.reassembly.reset(&mut self.messages);
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
                    self.repost(key.index, received.receive);
                    // They are the last ones that came.
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.lane_mut(direction).parts.forget_last();
                    }
                }
                _ => self.held.push_back(held),
            }
        }
        given_up
    }

    /// Gives up the transmissions that wait of the call group that came last, which has this number.
    pub(super) fn drop_held_group(&mut self, key: ConnectionKey, number: u32) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            match held.work {
                HeldWork::Transmission { received, note, .. }
                    if held.connection == key && note.group == number =>
                {
                    self.repost(key.index, received.receive);
                    // They are the last ones that came.
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.calls_in.parts.forget_last();
                    }
                }
                _ => self.held.push_back(held),
            }
        }
    }

    /// Lets go of all that a closing connection holds: its Receives were reserved for it, and are
    /// posted again before another connection can have its place.
    pub(super) fn drop_held(&mut self, key: ConnectionKey) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            if held.connection != key {
                self.held.push_back(held);
                continue;
            }
            match held.work {
                HeldWork::Call(Stream::Received(received))
                | HeldWork::Chunked(received)
                | HeldWork::Part { received, .. }
                | HeldWork::Transmission { received, .. } => {
                    self.post_receive(received.receive);
                }
                HeldWork::Call(stream) => self.give_stream(key, stream),
            }
        }
    }
}
