//! Calls of peers, from their arrival to their replies.
//!
//! | file | what it does |
//! |---|---|
//! | [`call`], [`table`], [`shares`] | the slot of a call, and its states; all slots; how connections share them |
//! | [`plain`] | serves and answers calls without chunks |
//! | [`begin`] | takes a slot for a call, and checks its chunks |
//! | [`arrive`], [`place`] | collect a transmission group, and lease the items that its Sends placed |
//! | [`read`] | gets the items of chunks by RDMA Read |
//! | [`serve`] | lets the application answer |
//! | [`plan`], [`staying`], [`write`](mod@write), [`send`], [`group`] | choose the form of the reply, write its results by RDMA Write, and send it |
//! | [`kept`], [`resend`] | keep replies in which a peer may report an error, and send them again |

mod arrive;
mod begin;
pub(crate) mod call;
mod group;
mod kept;
mod place;
mod plain;
mod plan;
mod read;
mod resend;
mod send;
mod serve;
mod shares;
mod staying;
mod table;
mod write;

pub(crate) use call::{IncomingCall, IncomingState, Stream};
pub(crate) use table::Incoming;

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;

use super::application::Application;
use super::resources::Resources;
use super::slots::Slots;
use super::step::{Step, Steps};
use crate::bulk::Home;
use crate::rpc::ConnectionKey;
use call::RpcReply;

impl Incoming {
    /// Continues calls that may be able to make progress.
    #[inline]
    pub(super) fn go_on<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        let is_idle = self.calls.queued() == 0 && !self.kept.any_asked_for();
        if is_idle {
            return false;
        }
        let busy = self.kept.any_asked_for() && self.send_kept_replies(core);
        self.drive_queued(core, application) | busy
    }

    /// Whether a call may take bulk buffers from now on: those for its chunks, and those for its results.
    #[inline(always)]
    pub(super) fn may_have_buffers<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> bool {
        if !call.has_buffers {
            let connection = core.connections.get(call.connection);
            let answerable = connection.map_or(0, |it| it.protocol.credits_for_replies());
            let pool = &core.reply.pool;
            // The limits of a connection apply only when buffers get scarce.
            let is_plenty = pool.level() > pool.total() / 2;
            let shares = &mut self.shares;
            call.has_buffers = shares.begin_buffers(call.connection.index, answerable, is_plenty);
        }
        call.has_buffers
    }

    /// Answers a call with a transport error.
    pub(super) fn refuse_incoming<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: Box<IncomingCall>,
        error: TransportError,
    ) {
        let (key, xid) = (call.connection, call.xid);
        self.end_incoming(core, call);
        core.refuse(key, xid, error);
    }

    /// Gives back all that a call holds, and frees its slot.
    pub(super) fn end_incoming<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        mut call: Box<IncomingCall>,
    ) {
        let (key, slot) = (call.connection, call.index);
        if let Some(connection) = core.connections.get_mut(key) {
            connection.replies_reserved -= call.reply_reserved;
            connection.calls_in.leave_group(slot);
            if call.reply_reserved != 0 {
                // Calls of ours may wait for the credits that it had reserved.
                core.note_if_pending(key.index);
            }
        }
        let pool = &mut core.reply.pool;
        for buffer in call.read_parts.iter_mut().filter_map(|it| it.buffer.take()) {
            pool.give(buffer);
        }
        for (piece, part) in call.write_parts.iter_mut().zip(0..) {
            pool.take_home(piece.buffer.take(), piece.index, Home::Reply { slot, part });
        }
        for (piece, part) in call.group.parts.iter_mut().zip(0..) {
            pool.take_home(
                piece.buffer.take(),
                piece.index,
                Home::ReplyGroup { slot, part },
            );
        }
        while let Some(received) = call.arrival.receives.pop() {
            core.repost_of(key, received.receive);
        }
        if let RpcReply::Long(buffer) = std::mem::take(&mut call.reply) {
            core.messages.give(buffer);
        }
        core.give_stream(key, std::mem::take(&mut call.stream));
        self.starving.take_if(|it| *it == slot);
        if call.has_buffers {
            self.shares.end_buffers(key.index);
        }
        self.shares.give(key.index);
        call.reset();
        self.calls.give(slot, call);
    }

    /// As [`Incoming::end_incoming`], of the call in a slot.
    pub(super) fn drop_incoming<P: Port>(&mut self, core: &mut Resources<P>, index: u32) {
        if let Some(call) = self.calls.take(index) {
            self.end_incoming(core, call);
        }
    }

    /// Ends all calls of a closing connection.
    pub(super) fn close_incoming<P: Port>(&mut self, core: &mut Resources<P>, key: ConnectionKey) {
        self.kept.forget_connection(key, &mut core.reply.pool);
        for index in 0..self.calls.len() {
            let call = self.calls.get(index);
            if call.is_some_and(|it| it.state != IncomingState::Free && it.connection == key) {
                self.drop_incoming(core, index);
            }
        }
    }
}

impl<P: Port> Steps<P> for Incoming {
    type Call = IncomingCall;
    type Refusal = TransportError;

    fn slots(&mut self) -> &mut Slots<IncomingCall> {
        &mut self.calls
    }

    fn place_of(call: &IncomingCall) -> (u32, ConnectionKey) {
        (call.index, call.connection)
    }

    #[inline(always)]
    fn step<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        match call.state {
            IncomingState::Free
            | IncomingState::Arriving
            | IncomingState::Deferred
            | IncomingState::InParts => Ok(Step::Waits),
            IncomingState::Placing => self.place_items(core, call),
            IncomingState::AwaitingBuffers => Ok(self.take_read_buffers(core, call)),
            IncomingState::Reading => self.post_reads(core, call),
            IncomingState::Ready => self.serve_incoming(core, application, call),
            IncomingState::Answering => self.answer_incoming(core, call),
        }
    }

    fn end(&mut self, core: &mut Resources<P>, call: Box<IncomingCall>) {
        self.end_incoming(core, call);
    }

    fn refuse(&mut self, core: &mut Resources<P>, call: Box<IncomingCall>, error: TransportError) {
        self.refuse_incoming(core, call, error);
    }
}

impl<P: Port> Resources<P> {
    /// Gives back what a stream is in.
    #[inline]
    pub(super) fn give_stream(&mut self, key: ConnectionKey, stream: Stream) {
        match stream {
            Stream::Chunk => {}
            Stream::Received(received) => self.repost_of(key, received.receive),
            Stream::Message(message) => self.messages.give(message),
        }
    }
}
