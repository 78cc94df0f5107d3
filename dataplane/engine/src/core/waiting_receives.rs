//! Messages that wait in their Receives, or in the buffer in which they were assembled: calls whose replies could not
//! be queued, parts of continued messages without a message buffer, and calls without a slot. Their Receives are not
//! posted, and so not granted, until they are handled: a peer that sends faster than it is served runs out of credits.

use std::collections::VecDeque;

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::ChunksAt;
use rpcrdma_protocol::v2::connection::Direction;

use super::control_message::Part;
use super::group::TransmissionNote;
use super::incoming::{Incoming, Stream};
use super::resources::Resources;
use crate::config::CoreConfig;
use crate::connection::Assembled;
use crate::limits::HEADER_BYTES_MAX;
use crate::message::Received;
use crate::rpc::ConnectionKey;

/// A message that waits.
#[derive(Debug)]
pub(super) struct WaitingReceive {
    pub(super) connection: ConnectionKey,
    pub(super) xid: u32,
    pub(super) work: WaitingWork,
}

/// What has to be done with it.
#[derive(Debug)]
pub(super) enum WaitingWork {
    /// A call without chunks.
    Call(Stream),
    /// A call with chunks in its Receive.
    Chunked(Chunked),
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

/// A call or a reply with chunks, in its Receive.
#[derive(Debug)]
pub(super) struct Chunked {
    pub(super) received: Received,
    /// Where its chunks are in the header, which was decoded on arrival.
    pub(super) chunks_at: ChunksAt,
}

/// The messages that wait.
#[derive(Debug)]
pub(super) struct WaitingReceives {
    pub(super) held: VecDeque<WaitingReceive>,
    /// How many of them still have to be tried, from the first.
    pub(super) to_try: usize,
    /// The value of [`freed`] when `to_try` was last set to all.
    pub(super) freed: u64,
    /// The header of the last part of a message that was assembled, if it has chunks.
    pub(super) assembled_header: Vec<u8>,
}

impl WaitingReceives {
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

    /// How many messages wait.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// For the sums: the messages that wait.
    #[cfg(test)]
    pub(super) fn held_messages(&self) -> impl Iterator<Item = &WaitingReceive> {
        self.held.iter()
    }

    #[cold]
    pub(super) fn hold<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        connection: ConnectionKey,
        xid: u32,
        work: WaitingWork,
    ) {
        let counters = &core.shared.counters;
        let lacking = match &work {
            WaitingWork::Chunked(_) | WaitingWork::Transmission { .. } => {
                &counters.awaiting_call_slot
            }
            WaitingWork::Part { part, .. } if part.takes_slot() => &counters.awaiting_call_slot,
            WaitingWork::Call(_) | WaitingWork::Part { .. } => &counters.awaiting_message_buffer,
        };
        lacking.increment();
        self.held.push_back(WaitingReceive {
            connection,
            xid,
            work,
        });
        // The message may have brought credits that other messages wait for.
        core.note_if_pending(connection.index);
        core.wait_for(connection);
    }

    /// Whether no held message can continue: nothing that one can wait for became free since all were tried.
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
        let work = WaitingWork::Part {
            received,
            part,
            number,
        };
        self.hold(core, key, part.xid, work);
    }

    /// Gives up the message whose parts arrive now: both its assembled and its waiting parts. Returns its kind and XID.
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
        self.sift(|held| match held.work {
            WaitingWork::Part { received, part, .. }
                if held.connection == key
                    && part.what.lane() == direction
                    && part.message == current =>
            {
                given_up = Some((part.what, part.xid));
                core.give_up_last(key, direction, received);
                None
            }
            _ => Some(held),
        });
        given_up
    }

    /// Gives up the waiting transmissions of the latest call group, which has this number.
    pub(super) fn drop_held_group<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        number: u32,
    ) {
        self.sift(|held| match held.work {
            WaitingWork::Transmission { received, note, .. }
                if held.connection == key && note.group == number =>
            {
                core.give_up_last(key, Direction::Call, received);
                None
            }
            _ => Some(held),
        });
    }

    /// Gives up all messages of a closing connection: their Receives were reserved for it, and have to be
    /// posted again before another connection gets its place.
    pub(super) fn drop_held<P: Port>(&mut self, core: &mut Resources<P>, key: ConnectionKey) {
        self.sift(|held| {
            if held.connection != key {
                return Some(held);
            }
            held.give_up(core);
            None
        });
    }

    /// Passes all held messages to `look`, in order; those that it returns continue to wait.
    fn sift(&mut self, mut look: impl FnMut(WaitingReceive) -> Option<WaitingReceive>) {
        for _ in 0..self.held.len() {
            let held = self.held.pop_front().and_then(&mut look);
            self.held.extend(held);
        }
    }
}

impl<P: Port> Resources<P> {
    /// Gives up one of the latest waiting messages of a lane.
    fn give_up_last(&mut self, key: ConnectionKey, lane: Direction, received: Received) {
        self.repost(key.index, received.receive);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.lane_mut(lane).parts.forget_last();
        }
    }
}

/// A number that changes whenever something becomes free that a held message can wait for: a message buffer, a slot, a
/// place among the replies of its connection, or credits.
pub(super) fn freed<P: Port>(core: &Resources<P>, incoming: &Incoming) -> u64 {
    let buffers = core.messages.given().wrapping_add(core.backlog.popped());
    let slots = incoming.shares.given();
    buffers.wrapping_add(slots).wrapping_add(core.wakes)
}

impl WaitingReceive {
    /// Gives back what it waits in, at the end of its connection.
    pub(super) fn give_up<P: Port>(self, core: &mut Resources<P>) {
        match self.work {
            WaitingWork::Call(Stream::Received(received))
            | WaitingWork::Chunked(Chunked { received, .. })
            | WaitingWork::Part { received, .. }
            | WaitingWork::Transmission { received, .. } => core.post_receive(received.receive),
            WaitingWork::Call(stream) => core.give_stream(self.connection, stream),
        }
    }
}

impl Incoming {
    /// Whether a part is the next of its lane, and has a buffer to go to; the last part of a call
    /// with chunks needs a slot as well.
    pub(super) fn may_take_part<P: Port>(
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
