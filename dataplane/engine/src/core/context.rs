//! The operations of a core that an application may use.

use std::ops::Range;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::constants::{
    REPLY_HEADER_BYTES_WITHOUT_AUTH, V1_HEADER_BYTES_WITHOUT_CHUNKS,
};
use rpcrdma_protocol::rpc::{Direction, peek};

use super::state::State;
use crate::bulk::{BulkCall, BulkItem};
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Stage};
use crate::counters::Counters;
use crate::request::Request;
use crate::responder::{RPC_OFFSET, ReplyWriter, ServeContext, Served};
use crate::rpc::{
    Call, CallAuth, CallRefused, CallTag, ConnectionKey, DeferToken, Outcome, ReplyRefused,
};

/// Access of an application to its core, in [`crate::Application::poll`].
///
/// # Example
/// ```
/// use rpcrdma_engine::{Activity, Application, Call, ConnectionKey, Context, HostIdentity};
/// use rpcrdma_fabric::{clock::Ticks, interface::Port};
///
/// /// Makes as many calls as the peer takes, on its latest connection.
/// struct Caller {
///     connection: Option<ConnectionKey>,
///     next_tag: u64,
/// }
///
/// impl Application for Caller {
///     fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
///         self.connection = Some(connection);
///     }
///
///     fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
///         let Some(connection) = self.connection.filter(|it| core.is_ready(*it)) else {
///             return Activity::Idle;
///         };
///         let call = Call { program: 0x2000_0001, version: 1, procedure: 1 };
///         let before = self.next_tag;
///         while core.call(connection, call, b"ping", self.next_tag).is_ok() {
///             self.next_tag += 1;
///         }
///         Activity::from_busy(self.next_tag != before)
///     }
/// }
/// ```
pub struct Context<'a, P: Port> {
    pub(super) state: &'a mut State<P>,
}

impl<P: Port> Context<'_, P> {
    /// Calls `call` with `args`. It ends with [`crate::Application::completed`] and `tag`.
    ///
    /// # Errors
    /// [`CallRefused`]; nothing was sent then.
    #[inline]
    pub fn call(
        &mut self,
        connection: ConnectionKey,
        call: Call,
        args: &[u8],
        tag: CallTag,
    ) -> Result<(), CallRefused> {
        self.call_in_place(connection, call, args.len(), tag, |space| {
            // Many calls have none, and to copy nothing is a call into libc.
            if !args.is_empty() {
                space.copy_from_slice(args);
            }
            args.len()
        })
    }

    /// As [`Context::call`], but `write` puts the arguments directly into the send buffer: it gets
    /// `args_bytes_max` bytes and returns how many of them, from the start, are the arguments. The
    /// space is not cleared: it contains bytes of earlier messages.
    ///
    /// # Errors
    /// As [`Context::call`]; `write` was not called then, or its output is not used.
    #[inline]
    pub fn call_in_place(
        &mut self,
        connection: ConnectionKey,
        call: Call,
        args_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        // A constant by reference: a copy of it would be made for each call.
        let call = (call, &CallAuth::NONE);
        let (core, outgoing) = (&mut self.state.resources, &mut self.state.outgoing);
        outgoing.start_call(core, connection, call, args_bytes_max, tag, write)
    }

    /// As [`Context::call_in_place`], with a credential, or with one and its verifier. What a verifier is computed over has the
    /// XID: it is [`Context::next_xid`].
    ///
    /// # Errors
    /// As [`Context::call_in_place`].
    #[inline]
    pub fn call_authenticated<'a>(
        &mut self,
        connection: ConnectionKey,
        call: Call,
        auth: impl Into<CallAuth<'a>>,
        args_bytes_max: usize,
        tag: CallTag,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), CallRefused> {
        let (core, outgoing) = (&mut self.state.resources, &mut self.state.outgoing);
        let call = (call, &auth.into());
        outgoing.start_call(core, connection, call, args_bytes_max, tag, write)
    }

    /// Whether a call by [`Context::call_authenticated`] with a credential and a verifier of these flavors and lengths would be
    /// accepted now. Who has to know before it makes them asks this: a number of RPCSEC_GSS that is taken and not sent leaves the
    /// window of the server while its call waits (RFC 2203 section 5.3.3.1).
    ///
    /// # Errors
    /// As [`Context::call_authenticated`].
    pub fn may_call(
        &mut self,
        connection: ConnectionKey,
        call: Call,
        auth: CallAuth<'_>,
        args_bytes_max: usize,
    ) -> Result<(), CallRefused> {
        let rpc_bytes = call.header(0, auth).encoded_bytes();
        let rpc_bytes = rpc_bytes.saturating_add(args_bytes_max);
        let (core, outgoing) = (&mut self.state.resources, &self.state.outgoing);
        outgoing.check_call(core, connection, rpc_bytes)
    }

    /// As [`Context::may_call`], for [`Context::call_bulk`].
    ///
    /// # Errors
    /// As [`Context::call_bulk`].
    pub fn may_call_bulk(
        &mut self,
        connection: ConnectionKey,
        call: &BulkCall<'_>,
    ) -> Result<(), CallRefused> {
        let (core, outgoing) = (&mut self.state.resources, &mut self.state.outgoing);
        outgoing.check_bulk_call(core, connection, call).map(drop)
    }

    /// The XID of the next call of this core that is accepted.
    #[inline]
    #[must_use]
    pub fn next_xid(&self) -> u32 {
        self.state.outgoing.requester.unused_xid()
    }

    /// Makes a call again that ended with [`CallError::Disconnected`](crate::CallError::Disconnected), under the XID that it
    /// had ([`Context::next_xid`], read before it was made). A server with a duplicate request cache knows it by that, and
    /// does not execute it twice. `make` calls once, on any connection.
    ///
    /// # Errors
    /// What `make` returns, and [`CallRefused::NoSlot`] while another call has the place of the XID.
    pub fn call_again(
        &mut self,
        xid: u32,
        make: impl FnOnce(&mut Self) -> Result<(), CallRefused>,
    ) -> Result<(), CallRefused> {
        let requester = &mut self.state.outgoing.requester;
        let next = requester.repeat_xid(xid).ok_or(CallRefused::NoSlot)?;
        let made = make(self);
        self.state.outgoing.requester.go_on(next);
        made
    }

    /// Answers a deferred call. `results` are sent only with [`Outcome::Success`]. If the
    /// connection has ended, the answer is dropped; that is not an error.
    ///
    /// # Errors
    /// [`ReplyRefused`], and the token to try again.
    pub fn reply(
        &mut self,
        token: DeferToken,
        outcome: Outcome,
        results: &[u8],
    ) -> Result<(), (ReplyRefused, DeferToken)> {
        self.reply_bulk(token, outcome, results, &mut [])
    }

    /// Sends a message of a header type that the application defines: `body` behind the prefix of 20 octets, in one
    /// Send. The peer has to know the type; a property of the peer may say so
    /// ([`crate::Application::peer_properties`]). `answers` is the XID of a message of the peer, if this one answers
    /// it. An answer uses a credit as a reply does, any other message as a call does. Returns the XID, which differs
    /// from those of all calls of this core.
    ///
    /// A peer that does not know the type answers with an error ([`crate::Application::message_refused`]); if the
    /// message is an answer, it closes the connection.
    ///
    /// # Errors
    /// [`CallRefused`]; nothing was sent then.
    pub fn send_message(
        &mut self,
        connection: ConnectionKey,
        header_type: u32,
        answers: Option<u32>,
        body: &[u8],
    ) -> Result<u32, CallRefused> {
        let (core, outgoing) = (&mut self.state.resources, &mut self.state.outgoing);
        outgoing.send_message(core, connection, header_type, answers, body)
    }

    /// Takes a whole bulk buffer to fill. `None` while the core has none to spare.
    pub fn take_bulk(&mut self) -> Option<Lease> {
        self.state.resources.reply.pool.take_lease()
    }

    /// Calls with bulk data. It ends with [`crate::Application::completed_bulk`] and `tag`. The
    /// items are taken out of `call`; the peer may reach them during the call, and then they
    /// go back to the core.
    ///
    /// # Errors
    /// [`CallRefused`]; nothing was sent then, and the items are still in `call`.
    pub fn call_bulk(
        &mut self,
        connection: ConnectionKey,
        call: &mut BulkCall<'_>,
        tag: CallTag,
    ) -> Result<(), CallRefused> {
        let (core, outgoing) = (&mut self.state.resources, &mut self.state.outgoing);
        outgoing.start_bulk_call(core, connection, call, tag)
    }

    /// As [`Context::reply`], with items, each with the number of bytes of `results` that come before it; in order.
    /// An item leaves the stream if the caller asked for that; otherwise it is copied into the stream.
    ///
    /// # Errors
    /// [`ReplyRefused`], and the token to try again; the items are unchanged.
    pub fn reply_bulk(
        &mut self,
        token: DeferToken,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Result<(), (ReplyRefused, DeferToken)> {
        let (core, incoming) = (&mut self.state.resources, &mut self.state.incoming);
        match incoming.start_reply(core, &token, outcome, results, items) {
            Ok(()) => {
                incoming.deferrals.free(&token);
                Ok(())
            }
            Err(refused) => Err((refused, token)),
        }
    }

    /// Serves a call that came by another transport, as those of peers are served: the programs of the application judge it,
    /// and `answer` runs it. Returns where in `space` the RPC reply is; the octets before it, at least four, are free for a
    /// header. `None` if `message` is no call, or `answer` says [`Outcome::Deferred`]: then the caller of this sends the
    /// reply.
    ///
    /// `connection` names the caller. It is none of this core: its index is at least
    /// [`CoreConfig::connections_max`](crate::CoreConfig::connections_max). All of the reply is in its stream. The engine cannot
    /// defer the call: [`Request::defer`] is `None`.
    pub fn serve_message(
        &mut self,
        connection: ConnectionKey,
        message: &[u8],
        space: &mut [u8],
        answer: impl FnOnce(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome,
    ) -> Option<Range<usize>> {
        let Ok((xid, Direction::Call)) = peek(message) else {
            return None;
        };
        let (core, incoming) = (&mut self.state.resources, &mut self.state.incoming);
        let serving = ServeContext {
            key: connection,
            connection: None,
            programs: &core.programs,
            has_items: false,
            now: core.now,
            is_version_1: false,
            scratch: space,
            lists_bytes: 0,
            messages: core.messages.of(connection.index),
            deferrals: &mut incoming.deferrals,
            items: &mut core.reply,
            counters: &core.shared.counters,
        };
        let reply = match serving.serve(xid, message, answer) {
            Served::Short(bytes) => Some(RPC_OFFSET..RPC_OFFSET + bytes),
            Served::TooLong { rpc_bytes, .. } => {
                core.shared.counters.rpc_errors_sent.increment();
                Some(RPC_OFFSET..RPC_OFFSET + rpc_bytes)
            }
            Served::Long => {
                debug_assert!(false, "no message buffers are for connections of others");
                let buffer = core.reply.spilled.take();
                buffer.into_iter().for_each(|it| core.messages.give(it));
                None
            }
            Served::Deferred | Served::Discarded => None,
        };
        core.reply.clear();
        reply
    }

    /// Closes a connection. Its calls end with [`crate::CallError::Disconnected`].
    pub fn disconnect(&mut self, connection: ConnectionKey) {
        let core = &mut self.state.resources;
        if core.connections.get(connection).is_some() {
            core.begin_close(connection.index, CloseReason::Local);
        }
    }

    /// Whether calls may be made on a connection.
    #[inline]
    #[must_use]
    pub fn is_ready(&self, connection: ConnectionKey) -> bool {
        let connection = self.state.resources.connections.get(connection);
        connection.is_some_and(|it| it.stage == Stage::Ready)
    }

    /// How many calls of this end have no reply yet; none on a connection that has ended.
    #[must_use]
    pub fn calls_outstanding(&self, connection: ConnectionKey) -> u32 {
        let connection = self.state.resources.connections.get(connection);
        connection.map_or(0, |it| it.calls.outstanding())
    }

    /// How many calls of one message the peer's credits allow now.
    #[inline]
    #[must_use]
    pub fn credits(&self, connection: ConnectionKey) -> u32 {
        let connection = self.state.resources.connections.get(connection);
        // What waits to be sent takes the credits first.
        let connection = connection.filter(|it| !it.has_backlog());
        connection.map_or(0, Connection::credits_for_calls)
    }

    /// The most bytes of results that come without a Reply chunk, if there is a limit: in version 1 they have to fit one
    /// message (RFC 8166 section 4.3.3). A call whose results may have more, or whose arguments do not fit a message,
    /// offers chunks by [`Context::call_bulk`] there. In version 2 any results come in as many messages as necessary.
    #[must_use]
    pub fn results_inline_bytes_max(&self, connection: ConnectionKey) -> Option<usize> {
        let connection = self.state.resources.connections.get(connection)?;
        let protocol = &connection.protocol;
        let header_bytes = V1_HEADER_BYTES_WITHOUT_CHUNKS + REPLY_HEADER_BYTES_WITHOUT_AUTH;
        let message_bytes = protocol.receive_threshold_bytes() as usize;
        let most = message_bytes.saturating_sub(header_bytes);
        protocol.is_version_1().then_some(most)
    }

    /// All connections, whatever their state.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionKey> + '_ {
        self.state.resources.connections.keys()
    }

    /// Whether the core drains, and takes no new calls.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state.resources.is_draining()
    }

    /// The reading of the clock of this iteration.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Ticks {
        self.state.resources.now
    }

    /// The core's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.state.resources.shared.counters
    }
}
