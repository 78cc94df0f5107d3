//! Starts calls without bulk data: sent in one message, or in several as credits arrive.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::{AUTH_BODY_BYTES_MAX, AUTH_NONE, AUTH_SYS};
use rpcrdma_protocol::form::Form;
use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth};
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

/// Whether a call with this header has a form.
#[inline]
fn has_form(header: &CallHeader<'_>) -> bool {
    let OpaqueAuth { flavor, body } = header.credential;
    let is_known = flavor == AUTH_NONE || flavor == AUTH_SYS;
    is_known
        && body.len().is_multiple_of(4)
        && body.len() <= AUTH_BODY_BYTES_MAX
        && header.verifier == OpaqueAuth::NONE
}

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
        // The credits are looked at when the message is admitted, once.
        let may_begin = connection.stage == Stage::Ready
            && connection.has_none_before_calls()
            && core.transmit.has_room(connection);
        let xid = self.requester.next_xid(&connection.calls);
        header.xid = match xid.filter(|_| may_begin) {
            Some(xid) => xid,
            None => self.check_short(connection, &core.transmit, counters)?,
        };
        // The RPC call is written behind the place of a version 2 header. That of version 1 is shorter:
        // `close_gap` joins the two.
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let scratch = core.transmit.scratch();
        let one_message = scratch.len().min(threshold);
        let space = scratch
            .get_mut(RPC_OFFSET..one_message)
            .ok_or(CallRefused::TooLong)?;
        let header_bytes = header.encoded_bytes();
        let args_end = header_bytes
            .checked_add(args_bytes_max)
            .ok_or(CallRefused::TooLong)?;
        let Some(args) = space.get_mut(header_bytes..args_end) else {
            self.check_short(connection, &core.transmit, counters)?;
            return self.start_long_call(core, key, &header, args_end, tag, write);
        };
        let args_bytes = write(args).min(args_bytes_max);
        let (port, transmit) = (&mut core.port, &mut core.transmit);
        let is_sent = has_form(&header)
            // Each branch knows its form when it is compiled.
            && match connection.protocol.is_version_1() {
                false => transmit.send_call_as(Form::Call2, port, connection, &header, args_bytes, counters),
                true => transmit.send_call_as(Form::Call1, port, connection, &header, args_bytes, counters),
            };
        if !is_sent {
            self.check_short(connection, transmit, counters)?;
            let rpc_bytes = header_bytes + args_bytes;
            transmit.send_any_call(port, connection, &header, rpc_bytes, counters)?;
        }
        self.requester
            .begin(key, &mut connection.calls, tag, core.now, None);
        counters.calls_sent.increment();
        if connection.unposted.is_some() {
            core.note_pending(key.index);
        }
        Ok(())
    }

    /// Checks that a call of one message may start, and returns its XID.
    #[cold]
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
