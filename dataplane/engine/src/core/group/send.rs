//! Sends a transmission group. It begins only with credits for all of its transmissions, and then sends one after the
//! other: nothing else may be sent in between, so a group that ran out of credits would block its connection.

use rpcrdma_fabric::interface::{Port, SEGMENTS_MAX};
use rpcrdma_protocol::v2::connection::Connection as Protocol;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};
use rpcrdma_protocol::v2::plan::{Layout, LayoutRequest, SendLimits};
use rpcrdma_protocol::v2::rtr::ReceiveBufferStructure;

use super::laid_out::{Body, LaidOut, Shape};
use super::pieces::Group;
use crate::bulk::Home;
use crate::config::PADDING_BYTES;
use crate::connection::Connection;
use crate::core::resources::Resources;
use crate::core::step::{Step, Wait};
use crate::counters::{Counter, Counters};
use crate::rpc::ConnectionKey;

/// A call or a reply that is sent as a transmission group.
pub(in crate::core) trait GroupSender {
    /// Its connection.
    fn key(&self) -> ConnectionKey;

    /// The group, and the payload stream that goes with it.
    fn group(&mut self) -> (&mut Group, &[u8]);

    /// Whether other messages of its connection have to be sent before it begins.
    fn is_behind_others(&self, connection: &Connection) -> bool;

    /// The credits with which it can begin; 0 while others are before it.
    fn credits(&self, connection: &mut Connection) -> u32;

    /// Called when its first transmission is sent.
    fn begun(&mut self, connection: &mut Connection);

    /// Where piece `part` of the group belongs when the port gives it back.
    fn home(&self, part: u16) -> Home;

    /// Its record of what it waits for.
    fn wait(&mut self) -> &mut Wait;

    /// Its XID and direction.
    fn heading(&self) -> (u32, Direction);

    /// The fields of its header, if they are all that the header depends on.
    fn body(&self, shape: Shape) -> Option<Body>;

    /// Encodes the header of its first transmission, with `behind_bytes` bytes behind it.
    fn encode_first(
        &self,
        protocol: &mut Protocol,
        out: &mut [u8],
        laid_out: &LaidOut,
    ) -> Result<usize, SendRefused>;
}

/// The progress of a group that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Sending {
    /// All of it was sent.
    Done,
    /// The rest has to wait.
    Waits(Step),
    /// It cannot be sent in this form, and nothing of it was sent.
    Impossible,
}

/// What a transmission waits for.
enum Blocked {
    /// The resource of this counter.
    For(fn(&Counters) -> &Counter),
    /// Credits, or the sending of other messages of its connection.
    Credit,
    /// Bytes that an earlier Send still has; their return continues the group. Or the connection has ended.
    Returning,
    Impossible,
}

impl<P: Port> Resources<P> {
    /// The most entries of a gather list.
    pub(in crate::core) fn gather_entries_max(&self) -> u32 {
        let most = u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX);
        self.port.attributes().send_segments_max.min(most)
    }

    /// Sends as much of the rest of a group as possible. `laid_out` keeps the layout for groups of its kind.
    pub(in crate::core) fn send_group<C: GroupSender>(
        &mut self,
        call: &mut C,
        laid_out: &mut LaidOut,
    ) -> Sending {
        loop {
            match self.send_transmission(call, laid_out) {
                Ok(true) => return Sending::Done,
                Ok(false) => {}
                Err(Blocked::Impossible) => return Sending::Impossible,
                Err(Blocked::Returning) => return Sending::Waits(Step::Waits),
                Err(Blocked::Credit) => {
                    let counter = &self.shared.counters.awaiting_credit;
                    return Sending::Waits(call.wait().on_connection(counter));
                }
                Err(Blocked::For(counter)) => {
                    return Sending::Waits(call.wait().on(counter(&self.shared.counters)));
                }
            }
        }
    }

    /// Sends the next transmission of a group; whether it was the last.
    fn send_transmission<C: GroupSender>(
        &mut self,
        call: &mut C,
        laid_out: &mut LaidOut,
    ) -> Result<bool, Blocked> {
        let key = call.key();
        let (transmissions, sent) = (call.group().0.transmissions, call.group().0.sent);
        let connection = self.connections.get_mut(key).filter(|it| it.is_live());
        let connection = connection.ok_or(Blocked::Returning)?;
        if connection.unposted.is_some() {
            return Err(Blocked::For(|counters| &counters.awaiting_send_slot));
        }
        // Credits are asked for once: none is used by others until the group has ended.
        if sent == 0 {
            let credits = call.credits(connection);
            let is_open = connection.protocol.version_2().sequence_open();
            if is_open || call.is_behind_others(connection) || credits < transmissions {
                return Err(Blocked::Credit);
            }
        }
        let epoch = self.properties_epoch;
        let body_of = |call: &mut C| {
            let shape = Shape::of(call.group().0, key, epoch)?;
            call.body(shape)
        };
        let is_again = sent == 0 && laid_out.has(body_of(call).as_ref());
        if !is_again && !self.is_group_sendable(call, laid_out) {
            return Err(Blocked::Impossible);
        }
        let connection = self.connections.get_mut(key).ok_or(Blocked::Returning)?;
        if !self
            .transmit
            .has_buffers(connection, laid_out.heads, laid_out.paddings)
        {
            return Err(Blocked::For(|counters| &counters.awaiting_send_buffer));
        }
        if !call.group().0.is_here(laid_out.pieces()) {
            return Err(Blocked::Returning);
        }
        let (scratch, protocol) = (self.transmit.scratch(), connection.protocol.version_2_mut());
        let (stream_bytes, behind_bytes) = (laid_out.stream_bytes, laid_out.behind_bytes);
        let encoded = match sent {
            0 if is_again => {
                let ((xid, direction), body) = (call.heading(), laid_out.body());
                protocol.encode_transmission_again(scratch, xid, direction, body, behind_bytes)
            }
            0 => {
                let encoded = call.encode_first(protocol, scratch, laid_out);
                if let Ok(header_bytes) = encoded {
                    laid_out.keep_body(body_of(call), scratch.get(..header_bytes).unwrap_or(&[]));
                }
                encoded
            }
            _ => protocol.encode_transmit_continue(scratch, stream_bytes, behind_bytes),
        };
        let encoded = encoded.map_err(|refused| match refused {
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
        })?;
        debug_assert_eq!(
            encoded, laid_out.header_bytes as usize,
            "as it was laid out"
        );
        call.begun(connection);
        // Before the Send is posted, since its buffers come back by these homes.
        for part in 0..call.group().0.parts.len() {
            let home = call.home(u16::try_from(part).unwrap_or(u16::MAX));
            if let Some(index) = call.group().0.parts.get(part).map(|it| it.index) {
                self.reply.pool.set_home(index, home);
            }
        }
        let (group, stream) = call.group();
        let (port, counters) = (&mut self.port, &self.shared.counters);
        self.transmit.post_transmission(
            port,
            connection,
            group,
            (laid_out.pieces(), stream),
            counters,
        );
        counters.transmissions_sent.increment();
        group.sent += 1;
        let is_last = group.sent == group.transmissions;
        if (is_last || connection.unposted.is_some()) && connection.has_news() {
            // Other messages of the connection have waited for the end of the group.
            self.note_news(key.index);
        }
        Ok(is_last)
    }

    /// Lays out the next transmission of a group. False when it cannot be sent; for the first transmission also
    /// when a later one cannot, because a group that has begun must be completed.
    pub(in crate::core) fn is_group_sendable<C: GroupSender>(
        &mut self,
        call: &mut C,
        laid_out: &mut LaidOut,
    ) -> bool {
        let key = call.key();
        let (group, _) = call.group();
        let (shape, is_first) = (
            Shape::of(group, key, self.properties_epoch),
            group.sent == 0,
        );
        let gather_entries_max = self.gather_entries_max();
        if is_first && shape.is_some() && laid_out.shape == shape {
            return true;
        }
        laid_out.forget();
        let Some(connection) = self.connections.get(key) else {
            return false;
        };
        let limits = SendLimits {
            send_bytes_max: connection.protocol.send_threshold_bytes(),
            gather_entries_max,
            padding_region_bytes: PADDING_BYTES,
            transmissions_max: group.transmissions,
        };
        let buffer_bytes = u32::try_from(self.transmit.scratch().len()).unwrap_or(u32::MAX);
        let structure = connection.peer.receive_structure();
        let is_laid_out = lay_out(laid_out, group, &structure, limits, buffer_bytes);
        if is_laid_out == Some(true) && is_first {
            laid_out.shape = shape;
        }
        is_laid_out == Some(true)
    }
}

/// Does the work of [`Resources::is_group_sendable`] when there is no stored layout. `None` means false.
fn lay_out(
    laid_out: &mut LaidOut,
    group: &Group,
    structure: &ReceiveBufferStructure,
    limits: SendLimits,
    buffer_bytes: u32,
) -> Option<bool> {
    let entries_max = limits.gather_entries_max as usize;
    let request = LayoutRequest {
        structure,
        header_bytes: group.header_bytes,
        stream_bytes: group.stream_bytes,
        items: group,
        limits,
    };
    let layout = Layout::new(request).ok()?;
    let mut transmissions = layout.transmissions();
    let transmission = transmissions.nth(group.sent as usize)?;
    laid_out.set_pieces(transmission.pieces(), buffer_bytes);
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
