//! Calls of peers that came as transmission groups: their items are leased, and they are served.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::chunks::ChunkFault;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::rtr::{Location, check_explicit_memory};

use super::Step;
use crate::bulk::arrival::Landing;
use crate::bulk::group::Way;
use crate::bulk::serves::{Chunk, ServeSlot, ServeStage, Stream};
use crate::bulk::{ArgumentItem, BULK_PARTS_MAX, BulkPool};
use crate::core::bulk::chunk_limits;
use crate::core::{Received, State};
use crate::counters::Counters;
use crate::message::Use;
use crate::placement::PlacementSegments;

impl<P: Port> State<P> {
    /// Takes the items of a call out of its Receives, all or none of them.
    pub(in crate::core) fn place_items(&mut self, index: u32) -> Step {
        if let Err(error) = self.check_request(index) {
            self.refuse_serve(index, error);
            return Step::Waits;
        }
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        let needs = slot.arrival.needs(&self.bulk.reply.pool);
        if !self.can_take(needs, Use::CallIn, slot.counted) {
            if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
                slot.counted = true;
            }
            return Step::Again;
        }
        self.lease_items(index);
        let stream = self.join_call(index);
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.counted = false;
            slot.stream = stream;
            slot.stage = match slot.chunks.is_empty() {
                true => ServeStage::Ready,
                false => ServeStage::AwaitingBuffers,
            };
        }
        Step::GoesOn
    }

    /// Finds out what the header of a call says, and whether it may, unless that is known.
    fn check_request(&mut self, index: u32) -> Result<(), TransportError> {
        let slot = self.bulk.serves.get_mut(index as usize);
        let Some(slot) = slot.filter(|slot| !slot.arrival.is_checked()) else {
            return Ok(());
        };
        let (Some(connection), Some(config)) = (
            self.connections.get(slot.connection),
            &self.config.placement,
        ) else {
            return Err(TransportError::System);
        };
        let structure = connection.protocol.receive_structure();
        let fits = slot.arrival.land(&structure, config);
        self.check_explicit(index)?;
        if !fits {
            return Err(TransportError::System);
        }
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arrival.set_checked();
        }
        Ok(())
    }

    /// Checks what the call names for explicit RDMA, before anything is posted for it.
    fn check_explicit(&self, index: u32) -> Result<(), TransportError> {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Err(TransportError::System);
        };
        let (Some(connection), Some(request)) = (
            self.connections.get(slot.connection),
            slot.arrival.request(),
        ) else {
            return Err(TransportError::System);
        };
        let limits = chunk_limits(connection, self.config.message_bytes_max);
        check_explicit_memory(request.items, request.directions, &limits)
            .map_err(ChunkFault::transport_error)?;
        let pool = &self.bulk.reply.pool;
        let buffers = request.items.map(|item| match item.location {
            Location::Explicit(_) => pool.buffers_for(item.length_bytes),
            _ => 0,
        });
        match buffers.sum::<usize>() <= pool.total().min(BULK_PARTS_MAX) {
            true => Ok(()),
            false => Err(TransportError::System),
        }
    }

    fn lease_items(&mut self, index: u32) {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return;
        };
        let ServeSlot {
            arrival,
            chunks,
            items,
            leases,
            ..
        } = slot;
        for item in arrival.landed_items() {
            let (position, bytes) = (item.displacement, item.bytes);
            if item.way == Way::Explicit {
                chunks.push(Chunk { position, bytes });
            }
        }
        let mut taker = Taker {
            placement: &mut self.placement,
            port: &mut self.port,
            pool: &mut self.bulk.reply.pool,
            counters: &self.shared.counters,
        };
        let (arrived, landings, receives) = arrival.pieces();
        let mut landings = landings.iter().peekable();
        for (item, number) in arrived.iter().zip(0..) {
            if item.way == Way::Explicit {
                continue;
            }
            let first_part = leases.len();
            while let Some(landing) = landings.next_if(|landing| landing.item == number) {
                taker.take(landing, receives, |lease| leases.push(Some(lease)));
            }
            items.push(ArgumentItem {
                position: item.displacement,
                args_offset: 0,
                bytes: item.bytes,
                first_part,
                parts: leases.len() - first_part,
            });
        }
    }

    /// The payload stream of a call: where it is, if one Receive has all of it, and else put
    /// together. The other Receives are posted again.
    fn join_call(&mut self, index: u32) -> Stream {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Stream::Chunk;
        };
        let key = slot.connection;
        let mut receives = std::mem::take(&mut slot.arrival.receives);
        let joined = self.join(key, &mut receives, Use::CallIn);
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arrival.receives = receives;
        }
        joined
    }

    /// As [`State::join_call`], of the Receives of any group, all of which are taken.
    pub(super) fn join(
        &mut self,
        key: crate::application::ConnectionKey,
        receives: &mut Vec<Received>,
        purpose: Use,
    ) -> Stream {
        let has_stream = |received: &Received| received.end > received.start;
        if let [received] = receives.as_slice()
            && has_stream(received)
        {
            return receives.pop().map_or(Stream::Chunk, Stream::Received);
        }
        let carriers = receives.iter().filter(|it| has_stream(it)).count();
        if carriers <= 1 {
            let mut stream = Stream::Chunk;
            for received in receives.drain(..) {
                if has_stream(&received) {
                    stream = Stream::Received(received);
                } else {
                    self.repost_of(key, received.receive);
                }
            }
            return stream;
        }
        let mut message = self.messages.take(purpose);
        for received in receives.drain(..) {
            let counters = &self.shared.counters;
            let bytes =
                self.gathered
                    .message(&self.port, &received.receive, received.end, counters);
            if let (Some(message), Some(bytes)) = (&mut message, bytes.get(received.start..)) {
                // The protocol has held it to what a message buffer has.
                let _ = message.append(bytes);
                counters
                    .fragment_bytes_copied
                    .add(u64::try_from(bytes.len()).unwrap_or(0));
            }
            self.repost_of(key, received.receive);
        }
        message.map_or(Stream::Chunk, Stream::Message)
    }
}

/// What pieces are taken out of Receives with.
pub(super) struct Taker<'a, P> {
    pub(super) placement: &'a mut PlacementSegments,
    pub(super) port: &'a mut P,
    pub(super) pool: &'a mut BulkPool,
    pub(super) counters: &'a Counters,
}

impl<P: Port> Taker<'_, P> {
    /// Leases what lies there, or copies it where another item is leased with the segment.
    pub(super) fn take(
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
