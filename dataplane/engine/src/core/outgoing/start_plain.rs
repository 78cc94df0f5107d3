//! Starts calls without bulk data: sent in one message, or in several as credits arrive.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::{
    AUTH_BODY_BYTES_MAX, AUTH_NONE, AUTH_SYS, CALL_HEADER_BYTES_WITHOUT_AUTH,
};
use rpcrdma_protocol::form::{CallWords, Form};
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
use crate::rpc::{Call, CallAuth, CallRefused, CallTag, ConnectionKey};

/// Whether a call with this credential and verifier has a form.
#[inline]
fn has_form(auth: &CallAuth<'_>) -> bool {
    let OpaqueAuth { flavor, body } = auth.credential;
    let is_known = flavor == AUTH_NONE || flavor == AUTH_SYS;
    is_known
        && body.len().is_multiple_of(4)
        && body.len() <= AUTH_BODY_BYTES_MAX
        && auth.verifier == OpaqueAuth::NONE
}

impl Outgoing {
    #[inline]
    pub(in crate::core) fn start_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        (call, auth): (Call, &CallAuth<'_>),
        args_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        if !has_form(auth) || core.is_draining() {
            return self.start_any_call(core, key, (call, auth), args_bytes_max, tag, write);
        }
        // Each branch knows its form when it is compiled.
        let connection = core.connections.get(key);
        match connection.is_some_and(|it| it.protocol.is_version_1()) {
            false => self.start_as(
                core,
                key,
                (Form::Call2, call, auth),
                args_bytes_max,
                tag,
                write,
            ),
            true => self.start_as(
                core,
                key,
                (Form::Call1, call, auth),
                args_bytes_max,
                tag,
                write,
            ),
        }
    }

    /// Starts a call of a form.
    #[inline(always)]
    fn start_as<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        (form, call, auth): (Form, Call, &CallAuth<'_>),
        args_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        let body = auth.credential.body;
        let before_bytes = form.header_bytes() + body.len();
        let message_bytes = before_bytes.saturating_add(args_bytes_max);
        let Some(connection) = core.connections.get_mut(key) else {
            return self.start_any_call(core, key, (call, auth), args_bytes_max, tag, write);
        };
        if connection.stage != Stage::Ready || !connection.has_none_before_calls() {
            return self.start_any_call(core, key, (call, auth), args_bytes_max, tag, write);
        }
        let kept = connection.credits_kept();
        let credit = connection
            .protocol
            .credit_for_form(form, message_bytes, kept);
        let xid = self.requester.next_xid(&connection.calls);
        // The arguments are written behind the place of the headers.
        let args_at = RPC_OFFSET + CALL_HEADER_BYTES_WITHOUT_AUTH + body.len();
        let args_end = args_at.saturating_add(args_bytes_max);
        let (transmit, counters) = (&mut core.transmit, &core.shared.counters);
        let space = transmit.scratch().get_mut(args_at..args_end);
        let (Some(credit), Some(xid), Some(args)) = (credit, xid, space) else {
            return self.start_any_call(core, key, (call, auth), args_bytes_max, tag, write);
        };
        let args_bytes = write(args).min(args_bytes_max);
        let words = CallWords {
            xid,
            credit,
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            flavor: auth.credential.flavor,
            credential_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
            invalidate_handle: 0,
        };
        let rest = (body, args_bytes);
        if !transmit.send_call_as(form, &mut core.port, connection, &words, rest, counters) {
            counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        }
        self.requester
            .begin(key, &mut connection.calls, tag, core.now, None);
        counters.calls_sent.increment();
        if connection.unposted.is_some() {
            core.note_pending(key.index);
        }
        Ok(())
    }

    /// Starts a call that has no form, or may not be sent by it.
    #[inline(never)]
    fn start_any_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        (call, auth): (Call, &CallAuth<'_>),
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
        let header = call.header(xid, *auth);
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
            return self.start_long_call(core, key, &header, args_end, tag, write);
        };
        let rpc_bytes = header_bytes + write(args).min(args_bytes_max);
        let (port, transmit) = (&mut core.port, &mut core.transmit);
        transmit.send_any_call(port, connection, &header, rpc_bytes, counters)?;
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
