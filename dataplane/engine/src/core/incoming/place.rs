//! Leases the items of complete transmission groups of calls from their Receives.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::ChunkFault;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::rtr::{Location, check_explicit_memory};

use super::Incoming;
use super::begin::chunk_limits;
use super::call::{Chunk, IncomingCall, IncomingState};
use crate::bulk::{ArgumentItem, BULK_PARTS_MAX};
use crate::core::group::Way;
use crate::core::resources::Resources;
use crate::core::step::Step;
use crate::message::Use;

impl Incoming {
    /// Takes the items of a call out of its Receives: all or none, so that two calls with half of their
    /// buffers cannot wait for each other.
    #[inline(always)]
    pub(super) fn place_items<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        self.check_request(core, call)?;
        let place = call.connection.index;
        if let Some(missing) = core.missing_for(place, &call.arrival, Use::CallIn) {
            return Ok(call.wait.on(missing));
        }
        self.lease_items(core, call);
        let receives = &mut call.arrival.receives;
        call.stream = core.join(call.connection, receives, Use::CallIn);
        call.wait.ends();
        call.state = match call.chunks.is_empty() {
            true => IncomingState::Ready,
            false => IncomingState::AwaitingBuffers,
        };
        Ok(Step::GoesOn)
    }

    /// Derives the items of a call from its header and checks them, unless an equal header was checked before.
    fn check_request<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<(), TransportError> {
        if call.arrival.is_checked() {
            return Ok(());
        }
        let connection = core.connections.get(call.connection);
        let (Some(connection), Some(config)) = (connection, &core.config.placement) else {
            return Err(TransportError::System);
        };
        let structure = connection.protocol.version_2().receive_structure();
        let fits = call.arrival.land(&structure, config);
        let request = call.arrival.request().ok_or(TransportError::System)?;
        // Memory for explicit RDMA is checked before any work request is posted for it.
        let limits = chunk_limits(connection, core.config.message_bytes_max);
        check_explicit_memory(request.items, request.directions, &limits)
            .map_err(ChunkFault::transport_error)?;
        let pool = &core.reply.pool;
        let buffers = request.items.map(|item| match item.location {
            Location::Explicit(_) => pool.buffers_for(item.length_bytes),
            _ => 0,
        });
        // A call that needs more buffers than there are would wait for ever.
        if !fits || buffers.sum::<usize>() > pool.total().min(BULK_PARTS_MAX) {
            return Err(TransportError::System);
        }
        call.arrival.set_checked();
        Ok(())
    }

    #[inline(always)]
    fn lease_items<P: Port>(&mut self, core: &mut Resources<P>, call: &mut IncomingCall) {
        let IncomingCall {
            arrival,
            chunks,
            items,
            leases,
            ..
        } = call;
        let mut taker = core.taker();
        let (arrived, landings, receives) = arrival.pieces();
        let mut landings = landings.iter().peekable();
        for (item, number) in arrived.iter().zip(0..) {
            let (position, bytes) = (item.displacement, item.bytes);
            if item.way == Way::Explicit {
                chunks.push(Chunk { position, bytes });
                continue;
            }
            let first_part = leases.len();
            while let Some(landing) = landings.next_if(|landing| landing.item == number) {
                taker.take(landing, receives, |lease| leases.push(Some(lease)));
            }
            items.push(ArgumentItem {
                position,
                args_offset: 0,
                bytes,
                first_part,
                parts: leases.len() - first_part,
            });
        }
    }
}
