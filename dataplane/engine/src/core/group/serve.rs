//! Calls of peers that came as transmission groups: their items are leased, and they are served.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::chunks::ChunkFault;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::rtr::{Location, check_explicit_memory};

use super::Step;
use crate::bulk::arrival::Landing;
use crate::bulk::serves::{Chunk, ServeStage, Stream};
use crate::bulk::{ArgumentItem, BULK_ITEMS_MAX, BULK_PARTS_MAX};
use crate::core::bulk::chunk_limits;
use crate::core::{Received, State};
use crate::message::Use;

impl<P: Port> State<P> {
    /// Takes the items of a call out of its Receives, all or none of them.
    pub(in crate::core) fn place_items(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
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
        let items = slot.arrival.items();
        let fits = items.len() <= BULK_ITEMS_MAX
            && slot
                .arrival
                .land(&structure, config, &mut self.bulk.landings);
        let error = match self.check_explicit(index) {
            Ok(()) if fits => None,
            Ok(()) => Some(TransportError::System),
            Err(error) => Some(error),
        };
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        let carriers = slot.arrival.carriers();
        if let Some(error) = error {
            self.refuse_serve(index, error);
            return Step::Waits;
        }
        if !self.can_take(carriers, Use::CallIn, counted) {
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
        let landings = std::mem::take(&mut self.bulk.landings);
        let mut pieces = landings.iter().peekable();
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            self.bulk.landings = landings;
            return;
        };
        let mut receives = std::mem::take(&mut slot.arrival.receives);
        let count = slot.arrival.items().len();
        for number in 0..count {
            let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
                break;
            };
            let Some(item) = slot.arrival.items().nth(number) else {
                break;
            };
            let (position, bytes) = (item.displacement, item.length_bytes);
            if matches!(item.location, Location::Explicit(_)) {
                if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
                    slot.chunks.push(Chunk { position, bytes });
                }
                continue;
            }
            let first_part = slot.leases.len();
            while let Some(landing) = pieces.next_if(|landing| landing.item == number) {
                self.lease_landing(landing, &mut receives, |state, lease| {
                    if let Some(slot) = state.bulk.serves.get_mut(index as usize) {
                        slot.leases.push(Some(lease));
                    }
                });
            }
            if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
                slot.items.push(ArgumentItem {
                    position,
                    args_offset: 0,
                    bytes,
                    first_part,
                    parts: slot.leases.len() - first_part,
                });
            }
        }
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arrival.receives = receives;
        }
        self.bulk.landings = landings;
    }

    /// Leases what lies there, or copies it where another item is leased with the segment.
    pub(super) fn lease_landing(
        &mut self,
        landing: &Landing,
        receives: &mut [Received],
        mut take: impl FnMut(&mut Self, Lease),
    ) {
        let Some(received) = receives.get_mut(landing.transmission) else {
            return;
        };
        let counters = &self.shared.counters;
        counters.bulk_bytes_placed.add(landing.bytes.into());
        if !landing.is_shared {
            let port = &mut self.port;
            let (segment, offset, bytes) = (landing.segment, landing.offset, landing.bytes);
            let lease = self
                .placement
                .lease(port, &mut received.receive, segment, offset, bytes);
            debug_assert!(lease.is_ok(), "looked at before: {lease:?}");
            if let Ok(lease) = lease {
                counters.segments_leased.increment();
                take(self, lease);
            }
            return;
        }
        counters.bulk_bytes_copied.add(landing.bytes.into());
        let (mut at, end) = (landing.offset, landing.offset + landing.bytes);
        while at < end
            && let Some(mut buffer) = self.bulk.reply.pool.take()
        {
            let count = (end - at).min(buffer.capacity());
            let port = &self.port;
            let from = port.received_segment(&received.receive, landing.segment + 1);
            let from = from.and_then(|it| it.get(at as usize..(at + count) as usize));
            let to = port.memory().bytes_mut(&mut buffer);
            if let (Some(from), Some(to)) = (from, to.get_mut(..count as usize)) {
                to.copy_from_slice(from);
            }
            at += count;
            if let Some(lease) = self.bulk.reply.pool.lease(buffer, count) {
                take(self, lease);
            }
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
