//! Starts calls without bulk data: sent in one message, or in several as credits arrive.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::rpc::CallHeader;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Direction;

use super::Outgoing;
use crate::connection::{Connection, OutgoingMessage, Stage};
use crate::core::resources::Resources;
use crate::core::transmit::Transmit;
use crate::counters::Counters;
use crate::message::Use;
use crate::responder::RPC_OFFSET;
use crate::rpc::{CallRefused, CallTag, ConnectionKey};

impl Outgoing {
    #[inline]
    pub(in crate::core) fn start_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        mut header: CallHeader<'_>,
        args_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        if core.is_draining() {
            return Err(CallRefused::Draining);
        }
        let Some(connection) = core.connections.get_mut(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        let counters = &core.shared.counters;
        let xid = self.check_short(connection, &core.transmit, counters)?;
        header.xid = xid;
        // The RPC call is written behind the place of a version 2 header. That of version 1 is shorter:
        // `close_gap` joins the two.
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let scratch = core.transmit.scratch();
        let one_message = scratch.len().min(threshold);
        let space = scratch
            .get_mut(RPC_OFFSET..one_message)
            .ok_or(CallRefused::TooLong)?;
        let header_bytes = header.encode(space).map_err(|_| CallRefused::TooLong)?;
        let args_end = header_bytes
            .checked_add(args_bytes_max)
            .ok_or(CallRefused::TooLong)?;
        let Some(args) = space.get_mut(header_bytes..args_end) else {
            return self.start_long_call(core, key, &header, args_end, tag, write);
        };
        let rpc_bytes = header_bytes + write(args).min(args_bytes_max);
        let transport_bytes = connection
            .protocol
            .encode_message(scratch, xid, Direction::Call, false, rpc_bytes)
            .map_err(|_| CallRefused::NoCredit)?;
        core.transmit.close_gap(transport_bytes, rpc_bytes);
        self.requester
            .begin(key, &mut connection.calls, tag, core.now, None);
        counters.calls_sent.increment();
        let bytes = transport_bytes + rpc_bytes;
        core.transmit
            .post_scratch(&mut core.port, connection, bytes, counters);
        if connection.unposted.is_some() {
            core.note_pending(key.index);
        }
        Ok(())
    }

    /// Checks that a call of one message may start, and returns its XID.
    #[inline(always)]
    fn check_short(
        &self,
        connection: &Connection,
        transmit: &Transmit,
        counters: &Counters,
    ) -> Result<u32, CallRefused> {
        if connection.stage != Stage::Ready {
            return Err(CallRefused::NotReady);
        }
        if connection.protocol.own_calls() == ReverseRequestSupport::None {
            return Err(CallRefused::NotTaken);
        }
        if !connection.can_call() {
            counters.calls_refused_no_credit.increment();
            return Err(CallRefused::NoCredit);
        }
        let xid = self.requester.next_xid(&connection.calls);
        let Some(xid) = xid.filter(|_| transmit.has_room(connection)) else {
            counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        Ok(xid)
    }

    /// Checks what [`Outgoing::start_call`] does, for a call of at most so many bytes.
    pub(in crate::core) fn check_call<P: Port>(
        &self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        rpc_bytes_max: usize,
    ) -> Result<(), CallRefused> {
        if core.is_draining() {
            return Err(CallRefused::Draining);
        }
        let connection = core.connections.get(key);
        let connection = connection.ok_or(CallRefused::UnknownConnection)?;
        self.check_short(connection, &core.transmit, &core.shared.counters)?;
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let one_message = core.transmit.scratch().len().min(threshold);
        match RPC_OFFSET + rpc_bytes_max > one_message {
            true => self.check_long(core, key, rpc_bytes_max),
            false => Ok(()),
        }
    }

    fn check_long<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
        rpc_bytes_max: usize,
    ) -> Result<(), CallRefused> {
        let connection = core.connections.get(key);
        let connection = connection.ok_or(CallRefused::UnknownConnection)?;
        if rpc_bytes_max > core.config.message_bytes_max as usize
            || !connection.protocol.can_send_without_chunks(rpc_bytes_max)
        {
            return Err(CallRefused::TooLong);
        }
        if !core.messages.has_room(key.index, Use::CallOut) {
            core.shared.counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        }
        Ok(())
    }

    /// Queues a call that takes several messages, which are sent one by one as credits arrive.
    #[cold]
    fn start_long_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        header: &CallHeader<'_>,
        rpc_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        self.check_long(core, key, rpc_bytes_max)?;
        let connection = core.connections.get_mut(key);
        let connection = connection.ok_or(CallRefused::UnknownConnection)?;
        let buffer = core.messages.take(key.index, Use::CallOut);
        let mut buffer = buffer.ok_or(CallRefused::NoSlot)?;
        let space = buffer.space();
        let written = header.encode(space).ok().and_then(|header_bytes| {
            let args = space.get_mut(header_bytes..rpc_bytes_max)?;
            let args_bytes_max = args.len();
            Some(header_bytes + write(args).min(args_bytes_max))
        });
        let Some(rpc_bytes) = written else {
            core.messages.give(buffer);
            return Err(CallRefused::TooLong);
        };
        buffer.set_len(rpc_bytes);
        self.requester
            .begin(key, &mut connection.calls, tag, core.now, None);
        core.shared.counters.calls_sent.increment();
        core.queue_message(
            key,
            OutgoingMessage::new(header.xid, Direction::Call, buffer),
        );
        Ok(())
    }
}
