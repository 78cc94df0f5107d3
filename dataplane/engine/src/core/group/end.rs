//! Replies to calls of ours that came as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::{Fill, check_returned};
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::Location;

use super::Step;
use crate::application::CallError;
use crate::bulk::Bulk;
use crate::bulk::calls::{Answer, CallSlot};
use crate::bulk::lists::{Role, segments_of};
use crate::bulk::serves::Stream;
use crate::core::State;
use crate::message::Use;

impl<P: Port> State<P> {
    /// Takes the results of a call out of the Receives of its reply, all or none of them.
    pub(in crate::core) fn place_reply(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.calls.get(index as usize) else {
            return Step::Waits;
        };
        let (Some(connection), Some(config)) = (
            self.connections.get(slot.connection),
            &self.config.placement,
        ) else {
            return Step::Waits;
        };
        let structure = connection.protocol.receive_structure();
        let counted = slot.counted;
        let carriers = slot.arrival.carriers();
        let lands = slot
            .arrival
            .land(&structure, config, &mut self.bulk.landings);
        if !lands || !self.bulk.follows_directions(index) {
            self.forget_arrival(index);
            self.end_bulk_call(index, Answer::Error(CallError::BadReply));
            return Step::Waits;
        }
        if !self.can_take(carriers, Use::ReplyIn, counted) {
            if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
                slot.counted = true;
            }
            return Step::Again;
        }
        self.lease_results(index);
        let answer = self.join_reply(index);
        self.end_bulk_call(index, answer);
        Step::Waits
    }

    fn lease_results(&mut self, index: u32) {
        let landings = std::mem::take(&mut self.bulk.landings);
        let receives = self.bulk.calls.get_mut(index as usize);
        let mut receives =
            receives.map_or_else(Vec::new, |slot| std::mem::take(&mut slot.arrival.receives));
        for landing in &landings {
            self.lease_landing(landing, &mut receives, |state, lease| {
                if let Some(slot) = state.bulk.calls.get_mut(index as usize) {
                    slot.placed.push((landing.item, lease));
                }
            });
        }
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            slot.arrival.receives = receives;
        }
        self.bulk.landings = landings;
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

impl Bulk {
    /// Whether a reply did with each result what its direction allows (RTR section 7.4, tables 1
    /// and 2); takes note of where they belong, and of what was written to the call's memory.
    fn follows_directions(&mut self, index: u32) -> bool {
        let Some(slot) = self.calls.get_mut(index as usize) else {
            return false;
        };
        let CallSlot {
            arrival,
            directions,
            segments,
            parts,
            ..
        } = slot;
        let items = arrival.items();
        // The reply may have been looked at before, and waited.
        for part in parts.iter_mut() {
            part.written_bytes = 0;
        }
        // A reply without any item may leave the list out.
        if !items.is_empty() && items.len() != directions.len() {
            return false;
        }
        for ((item, direction), chunk) in items.zip(directions.iter_mut()).zip(0_u8..) {
            let fits = item.length_bytes <= direction.bytes_max;
            let follows = match (&item.location, direction.way) {
                (Location::TooShort | Location::NoItem, _) => continue,
                (
                    Location::Placed { .. },
                    Direction::Placed | Direction::Choice | Direction::BySize { .. },
                ) => fits,
                (
                    Location::Explicit(returned),
                    Direction::Explicit | Direction::Choice | Direction::BySize { .. },
                ) => {
                    let offered = segments_of(segments, Role::Result { chunk });
                    let targets = offered.iter().map(|segment| segment.target);
                    let written = check_returned(targets.clone(), *returned);
                    for (segment, filled) in
                        offered.iter().zip(Fill::new(targets, item.length_bytes))
                    {
                        if let Some(part) = parts.get_mut(usize::from(segment.part)) {
                            part.written_bytes += filled.target.length_bytes;
                        }
                    }
                    written == Ok(u64::from(item.length_bytes))
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
