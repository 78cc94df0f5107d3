//! Replies to calls of ours that came as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::{Fill, check_returned};
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::Location;

use super::Step;
use super::serve::Taker;
use crate::application::CallError;
use crate::bulk::calls::{Answer, CallSlot};
use crate::bulk::group::Way;
use crate::bulk::lists::{Role, segments_of};
use crate::bulk::serves::Stream;
use crate::core::State;
use crate::message::Use;

impl<P: Port> State<P> {
    /// Takes the results of a call out of the Receives of its reply, all or none of them.
    pub(in crate::core) fn place_reply(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return Step::Waits;
        };
        let (Some(connection), Some(config)) = (
            self.connections.get(slot.connection),
            &self.config.placement,
        ) else {
            return Step::Waits;
        };
        let lands = slot.arrival.is_checked() || {
            let structure = connection.protocol.receive_structure();
            slot.arrival.land(&structure, config)
        };
        if !lands || !slot.follows_directions() {
            self.forget_arrival(index);
            self.end_bulk_call(index, Answer::Error(CallError::BadReply));
            return Step::Waits;
        }
        slot.arrival.set_checked();
        let needs = slot.arrival.needs(&self.bulk.reply.pool);
        let counted = std::mem::replace(&mut slot.counted, true);
        if !self.can_take(needs, Use::ReplyIn, counted) {
            return Step::Again;
        }
        self.lease_results(index);
        let answer = self.join_reply(index);
        self.end_bulk_call(index, answer);
        Step::Waits
    }

    fn lease_results(&mut self, index: u32) {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return;
        };
        let CallSlot {
            arrival, placed, ..
        } = slot;
        let mut taker = Taker {
            placement: &mut self.placement,
            port: &mut self.port,
            pool: &mut self.bulk.reply.pool,
            counters: &self.shared.counters,
        };
        let (_, landings, receives) = arrival.pieces();
        for landing in landings {
            taker.take(landing, receives, |lease| {
                placed.push((landing.item as usize, lease));
            });
        }
    }

    fn join_reply(&mut self, index: u32) -> Answer {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return Answer::Error(CallError::BadReply);
        };
        slot.counted = false;
        let key = slot.connection;
        let mut receives = std::mem::take(&mut slot.arrival.receives);
        let stream = self.join(key, &mut receives, Use::ReplyIn);
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            slot.arrival.receives = receives;
        }
        match stream {
            Stream::Received(received) => Answer::Received(received),
            Stream::Message(message) => Answer::Message(message),
            Stream::Chunk => Answer::Error(CallError::BadReply),
        }
    }
}

impl CallSlot {
    /// Whether a reply that landed did with each result what its direction allows (RTR section 7.4,
    /// tables 1 and 2); takes note of where they belong, and of what was written to the call's memory.
    fn follows_directions(&mut self) -> bool {
        // The reply may have been looked at before, and waited.
        for part in &mut self.parts {
            part.written_bytes = 0;
        }
        let Self {
            arrival,
            directions,
            segments,
            parts,
            ..
        } = self;
        let items = arrival.landed_items();
        // A reply without any item may leave the list out.
        if !items.is_empty() && items.len() != directions.len() {
            return false;
        }
        for ((item, direction), chunk) in items.iter().zip(directions.iter_mut()).zip(0_u8..) {
            let fits = item.bytes <= direction.bytes_max;
            let follows = match (item.way, direction.way) {
                (Way::TooShort | Way::NoItem, _) => continue,
                (Way::Placed, Direction::Placed | Direction::Choice | Direction::BySize { .. }) => {
                    fits
                }
                (
                    Way::Explicit,
                    Direction::Explicit | Direction::Choice | Direction::BySize { .. },
                ) => {
                    let returned = arrival.items().nth(chunk.into()).map(|it| it.location);
                    let Some(Location::Explicit(returned)) = returned else {
                        return false;
                    };
                    let offered = segments_of(segments, Role::Result { chunk });
                    let targets = offered.iter().map(|segment| segment.target);
                    let written = check_returned(targets.clone(), returned);
                    for (segment, filled) in offered.iter().zip(Fill::new(targets, item.bytes)) {
                        if let Some(part) = parts.get_mut(usize::from(segment.part)) {
                            part.written_bytes += filled.target.length_bytes;
                        }
                    }
                    written == Ok(u64::from(item.bytes))
                }
                _ => false,
            };
            if !follows {
                return false;
            }
            direction.displacement = Some(item.displacement);
        }
        true
    }
}
