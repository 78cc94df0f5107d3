//! Sending a transmission group: all of its credits first, then one transmission after the other.

use rpcrdma_fabric::interface::{Port, SEGMENTS_MAX};
use rpcrdma_protocol::v2::connection::SendRefused;
use rpcrdma_protocol::v2::plan::SendLimits;
use rpcrdma_protocol::v2::rtr::{ReceiveBufferStructure, TransmitRequest, TransmitResponse};

use super::Step;
use super::encode::{CallDirections, CallItems, ReplyAnswers};
use super::laid_out::{LaidOut, Shape};
use crate::application::ConnectionKey;
use crate::bulk::serves::RpcReply;
use crate::bulk::{Bulk, Group, Home, Work};
use crate::config::PADDING_BYTES;
use crate::core::State;

/// How far a group came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// All of it was sent.
    Done,
    /// The rest waits.
    Waits(Step),
    /// It cannot be sent, and none of it was.
    Impossible,
}

impl<P: Port> State<P> {
    /// What one Send of ours can be.
    pub(super) fn send_limits(&self, key: ConnectionKey, transmissions_max: u32) -> SendLimits {
        let own = self
            .connections
            .get(key)
            .map_or(0, |it| it.protocol.send_threshold_bytes());
        SendLimits {
            send_bytes_max: own,
            gather_entries_max: self.gather_entries_max(),
            padding_region_bytes: PADDING_BYTES,
            transmissions_max,
        }
    }

    /// Entries of a gather list.
    pub(in crate::core) fn gather_entries_max(&self) -> u32 {
        let most = u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX);
        self.port.attributes().send_segments_max.min(most)
    }

    /// Whether the group of `work` can be sent as it is planned.
    pub(super) fn is_group_sendable(&mut self, work: Work) -> bool {
        self.lay_out(work)
    }

    /// Sends what is left of a group, as far as that goes.
    pub(super) fn send_group(&mut self, work: Work) -> Sending {
        loop {
            match self.send_transmission(work) {
                Ok(true) => return Sending::Done,
                Ok(false) => {}
                Err(Blocked::Impossible) => return Sending::Impossible,
                Err(Blocked::Returning) => return Sending::Waits(Step::Waits),
                Err(Blocked::Over) => return Sending::Waits(Step::Waits),
                Err(Blocked::Credit) => {
                    self.count_once(work, |counters| counters.awaiting_credit.increment());
                    return Sending::Waits(Step::Again);
                }
                Err(Blocked::SendSlot) => {
                    self.count_once(work, |counters| counters.awaiting_send_slot.increment());
                    return Sending::Waits(Step::Again);
                }
                Err(Blocked::Buffer) => {
                    self.count_once(work, |counters| counters.awaiting_send_buffer.increment());
                    return Sending::Waits(Step::Again);
                }
            }
        }
    }

    fn count_once(&mut self, work: Work, count: impl FnOnce(&crate::counters::Counters)) {
        let counted = match work {
            Work::Call(index) => self
                .bulk
                .calls
                .get_mut(index as usize)
                .map(|it| &mut it.counted),
            Work::Serve(index) => self
                .bulk
                .serves
                .get_mut(index as usize)
                .map(|it| &mut it.counted),
        };
        if let Some(counted) = counted
            && !std::mem::replace(counted, true)
        {
            count(&self.shared.counters);
        }
    }

    /// Sends the next transmission of a group; whether it was the last.
    fn send_transmission(&mut self, work: Work) -> Result<bool, Blocked> {
        let (key, transmissions, sent) = match group_of(&mut self.bulk, work) {
            Some((key, group)) => (key, group.transmissions, group.sent),
            None => return Err(Blocked::Over),
        };
        let Some(connection) = self.connections.get_mut(key).filter(|it| it.is_live()) else {
            return Err(Blocked::Over);
        };
        if connection.stuck.is_some() {
            return Err(Blocked::SendSlot);
        }
        if sent == 0 {
            let credits = match work {
                Work::Call(_) => connection.credits_for_calls(),
                Work::Serve(_) => connection.protocol.credits_available(),
            };
            let is_open = connection.protocol.sequence_open();
            let mut is_next = true;
            if let Work::Call(index) = work {
                // First come, first served.
                is_next = *connection.group_first.get_or_insert(index) == index;
            }
            if connection.has_backlog() || is_open || credits < transmissions || !is_next {
                return Err(Blocked::Credit);
            }
        }
        if !self.lay_out(work) {
            return Err(Blocked::Impossible);
        }
        let Some((_, group)) = group_of(&mut self.bulk, work) else {
            return Err(Blocked::Over);
        };
        let laid_out = self.laid_out.of(work);
        let (head_bytes, paddings) = (laid_out.head_bytes, laid_out.paddings);
        if !self.transmit.has_buffers(head_bytes, paddings) {
            return Err(Blocked::Buffer);
        }
        if !group.is_here(laid_out.pieces()) {
            return Err(Blocked::Returning);
        }
        let header_bytes = laid_out.header_bytes as usize;
        let encoded = encode(self, work, key)?;
        debug_assert_eq!(encoded, header_bytes, "as it was laid out");
        let Some(connection) = self.connections.get_mut(key) else {
            return Err(Blocked::Over);
        };
        let counters = &self.shared.counters;
        let (group, stream) = match work {
            Work::Call(index) => {
                let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
                    return Err(Blocked::Over);
                };
                slot.counted = false;
                if connection.group_first == Some(index) {
                    connection.group_first = None;
                }
                let stream = slot.stream.get(..slot.stream_bytes).unwrap_or(&[]);
                for (number, part) in slot.group.parts.iter().enumerate() {
                    let part_number = u16::try_from(number).unwrap_or(u16::MAX);
                    let home = Home::CallGroup {
                        slot: index,
                        part: part_number,
                    };
                    self.bulk.reply.pool.set_home(part.index, home);
                }
                (&mut slot.group, stream)
            }
            Work::Serve(index) => {
                let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
                    return Err(Blocked::Over);
                };
                slot.counted = false;
                for (number, part) in slot.group.parts.iter().enumerate() {
                    let part_number = u16::try_from(number).unwrap_or(u16::MAX);
                    let home = Home::ReplyGroup {
                        slot: index,
                        part: part_number,
                    };
                    self.bulk.reply.pool.set_home(part.index, home);
                }
                let stream = match &slot.reply {
                    RpcReply::Short(bytes) => slot.reply_space.get(..*bytes),
                    RpcReply::Long(message) => Some(message.filled()),
                    RpcReply::None | RpcReply::InChunk(_) => None,
                };
                (&mut slot.group, stream.unwrap_or(&[]))
            }
        };
        let pieces = self.laid_out.of(work).pieces();
        let port = &mut self.port;
        self.transmit
            .post_transmission(port, connection, group, (pieces, stream), counters);
        counters.transmissions_sent.increment();
        group.sent += 1;
        let is_last = group.sent == group.transmissions;
        if connection.stuck.is_some() {
            self.note_pending(key.index);
        }
        Ok(is_last)
    }

    /// Lays out the next transmission of a group. False when it cannot be sent, or, of the first,
    /// when one of the others cannot.
    fn lay_out(&mut self, work: Work) -> bool {
        let Some((key, group)) = group_of(&mut self.bulk, work) else {
            return false;
        };
        let (shape, is_first) = (Shape::of(group, key), group.sent == 0);
        let transmissions = group.transmissions;
        let laid_out = self.laid_out.of(work);
        if is_first && shape.is_some() && laid_out.shape == shape {
            return true;
        }
        laid_out.shape = None;
        let limits = self.send_limits(key, transmissions);
        let buffer_bytes = u32::try_from(self.transmit.scratch().len()).unwrap_or(u32::MAX);
        let group = group_of(&mut self.bulk, work);
        let (Some(connection), Some((_, group))) = (self.connections.get(key), group) else {
            return false;
        };
        let structure = connection.peer.receive_structure();
        let laid_out = self.laid_out.of(work);
        let is_laid_out = lay_out(laid_out, group, &structure, limits, buffer_bytes);
        if is_laid_out == Some(true) && is_first {
            laid_out.shape = shape;
        }
        is_laid_out == Some(true)
    }
}

/// As [`State::lay_out`], of a group of no known shape. `None` is false as well.
fn lay_out(
    laid_out: &mut LaidOut,
    group: &Group,
    structure: &ReceiveBufferStructure,
    limits: SendLimits,
    buffer_bytes: u32,
) -> Option<bool> {
    let entries_max = limits.gather_entries_max as usize;
    let layout = group.layout(structure, limits).ok()?;
    let mut transmissions = layout.transmissions();
    let transmission = transmissions.nth(group.sent as usize)?;
    laid_out.set_pieces(transmission.pieces());
    laid_out.header_bytes = transmission.header_bytes();
    laid_out.stream_bytes = transmission.stream_bytes();
    let behind_bytes = transmission
        .length_bytes()
        .checked_sub(transmission.header_bytes())?;
    laid_out.behind_bytes = behind_bytes as usize;
    if group.sent > 0 {
        return Some(true);
    }
    let first = laid_out.pieces().iter().copied();
    let is_sendable = layout.transmission_count() == group.transmissions
        && group.is_sendable(first, buffer_bytes, entries_max)
        && transmissions
            .clone()
            .all(|it| group.is_sendable(it.pieces(), buffer_bytes, entries_max));
    let placements = std::iter::once(transmission).chain(transmissions);
    let placements = placements.flat_map(|it| it.placements());
    Some(is_sendable && laid_out.set_numbers(placements))
}

/// What a transmission waits for.
enum Blocked {
    Credit,
    SendSlot,
    Buffer,
    /// Bytes that an earlier Send still takes: their return goes on with it.
    Returning,
    /// The connection is.
    Over,
    Impossible,
}

/// Writes the header of the transmission that was laid out into the scratch buffer.
fn encode<P: Port>(state: &mut State<P>, work: Work, key: ConnectionKey) -> Result<usize, Blocked> {
    let Some(connection) = state.connections.get_mut(key) else {
        return Err(Blocked::Over);
    };
    let protocol = &mut connection.protocol;
    let Some((_, group)) = group_of(&mut state.bulk, work) else {
        return Err(Blocked::Over);
    };
    let (sent, transmissions) = (group.sent, group.transmissions);
    let laid_out = &*state.laid_out.of(work);
    let (stream_bytes, behind_bytes) = (laid_out.stream_bytes, laid_out.behind_bytes);
    let scratch = state.transmit.scratch();
    let encoded = if sent > 0 {
        protocol.encode_transmit_continue(scratch, stream_bytes, behind_bytes)
    } else {
        match work {
            Work::Call(index) => {
                let Some(slot) = state.bulk.calls.get(index as usize) else {
                    return Err(Blocked::Over);
                };
                let request = TransmitRequest {
                    items: CallItems {
                        group: &slot.group,
                        laid_out,
                        segments: &slot.segments,
                    },
                    directions: CallDirections {
                        directions: &slot.directions,
                        minimum_bytes: slot.minimum_bytes,
                        segments: &slot.segments,
                    },
                    transmissions,
                    response_transmissions_max: slot.reply_transmissions_max,
                    stream_bytes,
                };
                protocol.encode_transmit_request(scratch, slot.xid, &request, behind_bytes)
            }
            Work::Serve(index) => {
                let Some(slot) = state.bulk.serves.get(index as usize) else {
                    return Err(Blocked::Over);
                };
                let request = slot.arrival.request();
                let response = TransmitResponse {
                    items: ReplyAnswers {
                        group: &slot.group,
                        laid_out,
                        sets: request.map(|it| it.directions).unwrap_or_default(),
                    },
                    transmissions,
                    stream_bytes,
                };
                protocol.encode_transmit_response(scratch, slot.xid, &response, behind_bytes)
            }
        }
    };
    encoded.map_err(|refused| match refused {
        SendRefused::TooLong
        | SendRefused::NoSpace
        | SendRefused::TooShort
        | SendRefused::NotAnnounced
        | SendRefused::TooManyTransmissions
            if sent == 0 =>
        {
            Blocked::Impossible
        }
        _ => Blocked::Credit,
    })
}

/// The group of a call, or of its reply.
fn group_of(bulk: &mut Bulk, work: Work) -> Option<(ConnectionKey, &mut Group)> {
    match work {
        Work::Call(index) => {
            let slot = bulk.calls.get_mut(index as usize)?;
            Some((slot.connection, &mut slot.group))
        }
        Work::Serve(index) => {
            let slot = bulk.serves.get_mut(index as usize)?;
            Some((slot.connection, &mut slot.group))
        }
    }
}
