//! Takes incoming transmission groups, of calls and of replies, out of their Receives.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::v2::rtr::Problem;

use super::arrival::{GroupArrival, Landing};
use super::note::TransmissionNote;
use crate::bulk::BulkPool;
use crate::connection::GroupIn;
use crate::core::incoming::Stream;
use crate::core::resources::Resources;
use crate::counters::{Counter, Counters};
use crate::message::{Received, Use};
use crate::placement_segments::PlacementSegments;
use crate::rpc::ConnectionKey;

impl<P: Port> Resources<P> {
    /// Ignores a group that cannot be used; this is its first transmission. More of it may have arrived already.
    pub(in crate::core) fn pass_group(
        &mut self,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: Received,
    ) {
        if let Some(connection) = self.connections.get_mut(key) {
            let direction = note.id.direction;
            let is_latest = connection.lane(direction).groups_come == note.group;
            // Only if this group is still open: it may be complete, and what is open now a later group or
            // continued message.
            let is_open = connection.protocol.version_2().is_group_open();
            if is_open && is_latest && connection.open_in == Some(direction) {
                connection.open_in = None;
                connection
                    .protocol
                    .version_2_mut()
                    .handle_group_refused(Problem::Continuation);
            }
        }
        self.repost(key.index, received.receive);
    }

    /// Notes that a transmission was taken for the call in a slot.
    #[inline(always)]
    pub(in crate::core) fn note_taken(
        &mut self,
        key: ConnectionKey,
        note: &TransmissionNote,
        slot: u32,
    ) {
        self.shared.counters.transmissions_received.increment();
        if let Some(connection) = self.connections.get_mut(key) {
            let number = note.group;
            let group = (!note.is_last()).then_some(GroupIn { slot, number });
            connection.lane_mut(note.id.direction).group = group;
        }
    }

    /// What is missing before a group can be taken out of its Receives: a buffer to join its payload
    /// stream in, if that lies in several Receives, spares for all that is leased, or bulk buffers
    /// for what is copied.
    #[inline(always)]
    pub(in crate::core) fn missing_for(
        &mut self,
        place: u32,
        arrival: &GroupArrival,
        purpose: Use,
    ) -> Option<&Counter> {
        let (carriers, leases, copies) = arrival.needs(&self.reply.pool);
        let counters = &self.shared.counters;
        if carriers > 1 && !self.messages.has_room(place, purpose) {
            Some(&counters.awaiting_message_buffer)
        } else if leases > self.placement.spares() {
            Some(&counters.awaiting_placement_segment)
        } else if copies != 0 && !self.reply.pool.has(copies) {
            Some(&counters.awaiting_bulk_buffer)
        } else {
            None
        }
    }

    /// The payload stream of a complete group: left in its Receive if one Receive has all of it, otherwise copied
    /// together. The other Receives are posted again.
    #[inline(always)]
    pub(in crate::core) fn join(
        &mut self,
        key: ConnectionKey,
        receives: &mut Vec<Received>,
        purpose: Use,
    ) -> Stream {
        if let [only] = receives.as_slice()
            && only.has_stream()
        {
            return receives.pop().map_or(Stream::Chunk, Stream::Received);
        }
        self.join_several(key, receives, purpose)
    }

    #[inline(never)]
    fn join_several(
        &mut self,
        key: ConnectionKey,
        receives: &mut Vec<Received>,
        purpose: Use,
    ) -> Stream {
        let carriers = receives.iter().filter(|it| it.has_stream()).count();
        if carriers <= 1 {
            let mut stream = Stream::Chunk;
            for received in receives.drain(..) {
                if received.has_stream() {
                    stream = Stream::Received(received);
                } else {
                    self.repost_of(key, received.receive);
                }
            }
            return stream;
        }
        let mut message = self.messages.take(key.index, purpose);
        for received in receives.drain(..) {
            let (gathered, counters) = (&mut self.gathered, &self.shared.counters);
            let bytes = gathered.message(&self.port, &received.receive, received.end, counters);
            if let (Some(message), Some(bytes)) = (&mut message, bytes.get(received.start..)) {
                // It fits: the protocol limits the stream of a group to the size of a message buffer.
                message.append(bytes);
                let bytes = u64::try_from(bytes.len()).unwrap_or(0);
                counters.fragment_bytes_copied.add(bytes);
            }
            self.repost_of(key, received.receive);
        }
        message.map_or(Stream::Chunk, Stream::Message)
    }

    /// Borrows what is needed to take pieces out of Receives.
    pub(in crate::core) fn taker(&mut self) -> Taker<'_, P> {
        Taker {
            placement: &mut self.placement,
            port: &mut self.port,
            pool: &mut self.reply.pool,
            counters: &self.shared.counters,
        }
    }
}

/// Takes pieces of items out of Receives.
pub(in crate::core) struct Taker<'a, P> {
    placement: &'a mut PlacementSegments,
    port: &'a mut P,
    pool: &'a mut BulkPool,
    counters: &'a Counters,
}

impl<P: Port> Taker<'_, P> {
    /// Leases the segment of a piece, or copies the piece if a later one in the same segment leases it.
    #[inline(always)]
    pub(in crate::core) fn take(
        &mut self,
        landing: &Landing,
        receives: &mut [Received],
        mut give: impl FnMut(Lease),
    ) {
        let Some(received) = receives.get_mut(landing.transmission as usize) else {
            return;
        };
        self.counters.bulk_bytes_placed.add(landing.bytes.into());
        let segment = landing.segment as usize;
        if !landing.is_shared {
            let (receive, offset, bytes) = (&mut received.receive, landing.offset, landing.bytes);
            let lease = self
                .placement
                .lease(self.port, receive, segment, offset, bytes);
            // `missing_for` found enough spares.
            debug_assert!(lease.is_ok(), "looked at before: {lease:?}");
            if let Ok(lease) = lease {
                self.counters.segments_leased.increment();
                give(lease);
            }
            return;
        }
        self.counters.bulk_bytes_copied.add(landing.bytes.into());
        let (mut at, end) = (landing.offset, landing.offset + landing.bytes);
        while at < end
            && let Some(mut buffer) = self.pool.take()
        {
            let count = (end - at).min(buffer.capacity());
            // The inline segment is number 0.
            let from = self.port.received_segment(&received.receive, segment + 1);
            let from = from.and_then(|it| it.get(at as usize..(at + count) as usize));
            let to = self.port.memory().bytes_mut(&mut buffer);
            if let (Some(from), Some(to)) = (from, to.get_mut(..count as usize)) {
                to.copy_from_slice(from);
            }
            at += count;
            if let Some(lease) = self.pool.lease(buffer, count) {
                give(lease);
            }
        }
    }
}
