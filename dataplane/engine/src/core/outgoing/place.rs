//! Takes replies to calls of ours that arrive as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::Location;

use super::Outgoing;
use super::call::{Answer, OutgoingCall, OutgoingState};
use super::lists::Role;
use super::reply::note_written;
use crate::core::application::Application;
use crate::core::group::{TransmissionNote, Way};
use crate::core::incoming::Stream;
use crate::core::resources::Resources;
use crate::core::step::{Step, Steps};
use crate::message::{Received, Use};
use crate::requester::Ended;
use crate::rpc::{CallError, ConnectionKey};

impl Outgoing {
    /// Takes a transmission of the reply to a call of ours.
    #[inline(always)]
    pub(in crate::core) fn receive_response<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: Received,
    ) {
        let index = if note.is_first() {
            match self.take_end(core, note.id.xid, key) {
                Ended::Bulk(index) if self.awaits_group(index, note.transmissions) => index,
                Ended::Bulk(_) | Ended::Unknown => {
                    core.shared.counters.unmatched_replies.increment();
                    return core.pass_group(key, note, received);
                }
                ended => {
                    // The call has no bulk data: a transmission group is no valid reply to it.
                    core.pass_group(key, note, received);
                    return self.report_end(
                        core,
                        application,
                        key,
                        ended,
                        Err(CallError::BadReply),
                    );
                }
            }
        } else {
            let connection = core.connections.get(key);
            match connection.and_then(|it| it.replies_in.slot_of_group(note.group)) {
                Some(index) => index,
                // The rest of a group that was ignored.
                None => return core.repost(key.index, received.receive),
            }
        };
        core.note_taken(key, note, index);
        let Some(mut call) = self.calls.take(index) else {
            return core.repost(key.index, received.receive);
        };
        if note.is_first() {
            let (receive, end) = (&received.receive, received.start);
            let counters = &core.shared.counters;
            // If the header is too long, `land` fails and the call ends with an error.
            let _ = call.arrival.begin(key, note.first, || {
                core.gathered.message(&core.port, receive, end, counters)
            });
        }
        call.arrival.receives.push(received);
        if note.is_last() {
            call.state = OutgoingState::Placing;
            self.drive(core, application, call);
        } else {
            self.calls.put(index, call);
        }
    }

    /// Whether a call waits for a reply and allows it this many transmissions.
    fn awaits_group(&self, index: u32, transmissions: u32) -> bool {
        self.calls.get(index).is_some_and(|call| {
            call.state == OutgoingState::Waiting
                && call.is_group()
                && call.arrival.receives.is_empty()
                && transmissions <= call.reply_transmissions_max
        })
    }

    /// Gives up the part of a reply that has arrived for the call in a slot.
    pub(in crate::core) fn drop_response<P: Port>(&mut self, core: &mut Resources<P>, index: u32) {
        if let Some(mut call) = self.calls.take(index) {
            self.forget_response(core, &mut call);
            self.calls.put(index, call);
        }
    }

    /// Gives back the Receives of a reply to a call of ours. The rest of its group will be ignored.
    pub(super) fn forget_response<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) {
        if let Some(connection) = core.connections.get_mut(call.connection) {
            connection.replies_in.leave_group(call.index);
        }
        while let Some(received) = call.arrival.receives.pop() {
            core.repost_of(call.connection, received.receive);
        }
        call.arrival.end();
    }

    /// Takes the results of a call out of the Receives of its reply: all, or none while spares are lacking.
    #[inline(always)]
    pub(super) fn place_results<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) -> Step {
        let connection = core.connections.get(call.connection);
        let (Some(connection), Some(config)) = (connection, &core.config.placement) else {
            return Step::Waits;
        };
        let lands = call.arrival.is_checked() || {
            let structure = connection.protocol.version_2().receive_structure();
            call.arrival.land(&structure, config)
        };
        if !lands || !call.follows_directions() {
            self.forget_response(core, call);
            return call.answered(Answer::Error(CallError::BadReply));
        }
        call.arrival.set_checked();
        let place = call.connection.index;
        if let Some(missing) = core.missing_for(place, &call.arrival, Use::ReplyIn) {
            return call.wait.on(missing);
        }
        let OutgoingCall {
            arrival, placed, ..
        } = call;
        let (_, landings, receives) = arrival.pieces();
        let mut taker = core.taker();
        for landing in landings {
            taker.take(landing, receives, |lease| {
                placed.push((landing.item as usize, lease));
            });
        }
        call.wait.ends();
        let receives = &mut call.arrival.receives;
        let answer = match core.join(call.connection, receives, Use::ReplyIn) {
            Stream::Chunk => Answer::Error(CallError::BadReply),
            stream => Answer::Stream(stream),
        };
        call.answered(answer)
    }
}

impl OutgoingCall {
    /// Whether a reply did with each result what its direction allows (RTR section 7.4, tables 1 and 2). Notes the
    /// places of the results, and what was written to the call's memory.
    #[inline(always)]
    fn follows_directions(&mut self) -> bool {
        // This reply may have been checked before, and then waited for spares.
        for part in &mut self.parts {
            part.written_bytes = 0;
        }
        let count = self.arrival.landed.len();
        // A reply without any item may leave the list out.
        if count != 0 && count != self.directions.len() {
            return false;
        }
        for number in 0..count {
            let (Some(&item), Some(&direction)) =
                (self.arrival.landed.get(number), self.directions.get(number))
            else {
                return false;
            };
            let follows = match (item.way, direction.way) {
                (Way::TooShort | Way::NoItem, _) => continue,
                (Way::Placed, Direction::Placed | Direction::Choice | Direction::BySize { .. }) => {
                    item.bytes <= direction.bytes_max
                }
                (
                    Way::Explicit,
                    Direction::Explicit | Direction::Choice | Direction::BySize { .. },
                ) => self.is_written(number, item.bytes),
                _ => false,
            };
            if !follows {
                return false;
            }
            if let Some(direction) = self.directions.get_mut(number) {
                direction.displacement = Some(item.displacement);
            }
        }
        true
    }

    /// Whether the reply reports result `number`, of `bytes` bytes, as written to the memory for it.
    fn is_written(&mut self, number: usize, bytes: u32) -> bool {
        let location = self.arrival.items().nth(number).map(|it| it.location);
        let Some(Location::Explicit(returned)) = location else {
            return false;
        };
        let chunk = u8::try_from(number).unwrap_or(u8::MAX);
        let (segments, parts, role) = (&self.segments, &mut self.parts, Role::Result { chunk });
        note_written(segments, parts, role, returned) == Some(bytes)
    }
}
